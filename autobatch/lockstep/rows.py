"""Values of single lanes, for containers whose lanes have come to differ: each lane then has one of its own.

What a batch gives to such a container is a `Row` for each lane: the batch and the lane's place in it. Reading one value
per lane back (`gathered`) takes the rows of one batch together, so that arrays stay batched and their gradients whole.
Numbers that no tape holds are kept as they are, since they are compared and hashed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, name_lane, narrowed
from autobatch.batches.examples import stack_results, take_lanes
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.lanes import current_region, set_region
from autobatch.core.op import is_boxed
from autobatch.core.pytree import flatten, is_node, unflatten
from autobatch.errors import NeedsLoop
from autobatch.lockstep.merging import OBJECTS, concatenated, stackable
from autobatch.lockstep.ownership import changing, freeze, is_changeable
from autobatch.lockstep.regions import Subset, current_root, lanes_within
from autobatch.lockstep.row import Row
from autobatch.ops.rules.aliasing import is_scalar, zero_d

__all__ = [
    "CONTAINERS", "Choice", "Held", "each_lane", "gathered", "is_owned", "owned", "scattered", "themselves",
    "unified",
]  # fmt: skip


class Held:
    """A container that each lane of its region has. Abstract: `LaneList` and `LaneBox` are its forms."""

    __slots__ = ()
    region: Any

    def apart(self) -> list[Any]:
        """The containers of all lanes of the region, one for each; from here on it is these that hold the values."""
        raise TypeError(f"{type(self).__name__} has no containers of single lanes")

    def here(self) -> list[Any]:
        """The containers of the lanes of the current region."""
        lanes = self.apart()
        region = current_region()
        if region is self.region:
            return lanes
        index = lanes_within(region, self.region)
        if index is None:
            raise NeedsLoop(f"a {self.kind.__name__} of other examples is used")
        return [lanes[i] for i in index.tolist()]

    @staticmethod
    def _ab_unite(pieces: Sequence[Any], regions: Sequence[Any]) -> "Held":
        """One of ours for the lanes of the current region from those that its parts bring; no container is copied."""
        target: Any = current_region()
        if any(not isinstance(piece, Held) or piece.kind is not pieces[0].kind for piece in pieces):
            return Choice.of(pieces, regions)
        containers: list[Any] = [None] * target.count
        for region, piece in zip(regions, pieces, strict=True):
            set_region(region)
            lanes: Any = lanes_within(region, target)
            for lane, container in zip(lanes.tolist(), piece.here(), strict=True):
                containers[lane] = container
        set_region(target)
        return CONTAINERS[pieces[0].kind](containers)

    @property
    def kind(self) -> type:
        """The Python type of a lane's container."""
        raise TypeError(f"{type(self).__name__} does not say what it holds")

    def about_to_change(self) -> None:
        """Note a change by the lanes of the current region, which an attempt that fails takes back."""
        root = current_root()
        changing(self)
        if root is not None and root.journal is not None and getattr(self, "lanes", None) is not None:
            for each in self.here():
                changing(each)

    def _parting(self) -> None:
        """Note that the lanes are given containers of their own: an attempt that fails takes them away again."""
        root = current_root()
        if root is not None and root.journal is not None:
            changing(self)

    def count_here(self) -> Any:
        """The number of its values: an int, or one per lane of the current region."""
        raise TypeError(f"{type(self).__name__} does not say its length")

    @property
    def is_spread(self) -> bool:
        """Whether its lanes may hold different numbers of values."""
        return True


class Choice:
    """What is one object for some lanes and another for others: objects of this call, its containers, None, tuples.

    Nothing is copied: what is read or changed is always the lane's own object. Where ways of lanes meet, arrays and
    numbers beside objects of other kinds are held too, those of each way as they came.

    Attributes:
        objects: the different objects.
        which: for each lane of the region the place of its own in `objects`.
        region: the lanes.
    """

    __slots__ = ("__weakref__", "objects", "region", "which")

    def __init__(self, objects: list[Any], which: np.ndarray) -> None:
        self.objects = objects
        self.which = which
        self.region: Any = current_region()

    @staticmethod
    def of(pieces: Sequence[Any], regions: Sequence[Any]) -> Any:
        """What the lanes of the current region have, from what its parts have."""
        target: Any = current_region()
        lanes: list[Any] = [None] * target.count
        for region, piece in zip(regions, pieces, strict=True):
            own = piece.here(region) if type(piece) is Choice else [piece] * region.count
            places: Any = lanes_within(region, target)
            for place, each in zip(places.tolist(), own, strict=True):
                lanes[place] = each
        return chosen(lanes)

    def here(self, region: Any) -> list[Any]:
        """The object of each lane of a region."""
        lanes = lanes_within(region, self.region)
        if lanes is None:
            raise NeedsLoop("an object of other examples is used")
        return [self.objects[i] for i in self.which[lanes].tolist()]

    def groups(self) -> list[tuple[Any, list[int]]]:
        """Each object that lanes of the current region have, and those lanes."""
        found: dict[int, tuple[Any, list[int]]] = {}
        for lane, each in enumerate(self.here(current_region())):
            found.setdefault(id(each), (each, []))[1].append(lane)
        return list(found.values())

    def sole(self) -> Any:
        """The object of all lanes of the current region, or this choice if they have several."""
        found = self.groups()
        return found[0][0] if len(found) == 1 else self

    def _refuse(self, *_: Any) -> Any:
        raise NeedsLoop("objects that differ by example are compared, hashed or tested by code that is not converted")

    __eq__ = __ne__ = __hash__ = __bool__ = __array__ = _refuse
    _ab_unite = of


def chosen(lanes: list[Any]) -> Any:
    """What is this object for the first lane of the current region, this one for the second, and so on."""
    objects: list[Any] = []
    places: dict[int, int] = {}
    which = np.empty(len(lanes), np.int64)
    for lane, each in enumerate(lanes):
        place = places.get(id(each))
        if place is None:
            place = places[id(each)] = len(objects)
            objects.append(each)
        which[lane] = place
    return objects[0] if len(objects) == 1 else Choice(objects, which)


def _require_object(value: Any) -> None:
    if isinstance(value, Batch | np.ndarray | np.generic | int | float | complex | str) or is_boxed(value):
        raise NeedsLoop("an object for some examples, an array or a number for others")
    if isinstance(value, tuple) and any(isinstance(leaf, Batch | Held) for leaf in flatten(value)[0]):
        raise NeedsLoop("an object for some examples, a tuple for others")


OBJECTS["choice"] = Choice.of
CONTAINERS: dict[type, Callable[[list[Any]], Held]] = {}
"""For each type of container, what makes one of ours from the containers of the lanes of the current region."""


def owned(container: Any) -> Any:
    """Note a container as the own of one lane, which converted code may change. Returns it."""
    root = current_root()
    if root is not None:
        root.apart[id(container)] = container
    return container


def is_owned(container: Any) -> bool:
    """Whether a container is the own of one lane."""
    root = current_root()
    return root is not None and id(container) in root.apart


def scattered(value: Any) -> list[Any]:
    """The value of each lane of the current region, as a container of that lane keeps it."""
    if isinstance(value, Held):
        return value.here()
    region: Any = current_region()
    if type(value) is Choice:
        return _of_choice(value, region)
    if is_changeable(value):
        return [value] * region.count
    if isinstance(value, Batch):
        batch = narrowed(value)
        if isinstance(batch, ObjectBatch):
            return list(batch.values)
        if isinstance(batch, PackedBatch):
            if isinstance(batch.values, PackedBatch):
                return batch.examples()
            batch = batch.to_masked()
        if is_scalar(batch) and type(batch.data) is np.ndarray:
            return batch.data.tolist() if batch.scalar is not None else list(batch.data)
        if batch is not value:
            freeze(value)
            freeze(batch)
        return [Row(batch, lane) for lane in range(region.count)]
    if is_node(value) or isinstance(value, slice):
        if isinstance(value, slice):
            parts: Any = zip(*map(scattered, (value.start, value.stop, value.step)), strict=True)
            return [slice(*each) for each in parts]
        leaves, structure = flatten(value)
        if any(isinstance(leaf, Batch | Held) for leaf in leaves):
            columns = [scattered(leaf) for leaf in leaves]
            return [unflatten(structure, row) for row in zip(*columns, strict=True)]
    if type(value) is np.ndarray:
        freeze(value)
    return [value] * region.count


def _of_choice(choice: Choice, region: Any) -> list[Any]:
    out = []
    for lane, each in enumerate(choice.here(region)):
        if isinstance(each, Batch | Held | tuple | dict | list):
            set_region(Subset(region, region.lanes()[lane : lane + 1]))
            (each,) = scattered(each)
            set_region(region)
        out.append(each)
    return out


def gathered(values: Sequence[Any]) -> Any:
    """One value for the lanes of the current region from what a container of each keeps; the inverse of `scattered`."""
    if not values:
        return ObjectBatch([])
    first = values[0]
    kind = type(first)
    if any(map(is_changeable, values)) or (
        any(map(is_owned, values)) and any(type(each) is not kind for each in values)
    ):
        return _chosen(values)
    if any(type(value) is not kind for value in values):
        return _mixed(values)
    if kind is Row:
        return _rows(values)
    if kind in CONTAINERS and (is_owned(first) or any(map(is_owned, values))):
        if not all(map(is_owned, values)):
            raise NeedsLoop(f"a {kind.__name__} that the call did not make, beside one that it made")
        return CONTAINERS[kind](list(values))
    if kind is tuple or hasattr(kind, "_fields"):
        if any(len(value) != len(first) for value in values):
            return _mixed(values)
        columns = [gathered(column) for column in zip(*values, strict=True)]
        return kind(columns) if kind is tuple else kind(*columns)
    if is_node(first):
        leaves, structures = zip(*map(flatten, values), strict=True)
        if any(type(leaf) is Row for row in leaves for leaf in row):
            if any(structure != structures[0] for structure in structures):
                return _mixed(values)
            return unflatten(structures[0], [gathered(column) for column in zip(*leaves, strict=True)])
    return stack_results(values)


def _chosen(values: Sequence[Any]) -> Any:
    """Objects of the call, and containers of single lanes: each kind of containers as one of ours."""
    region: Any = current_region()
    lanes = list(values)
    for kind in {type(value) for value in values if is_owned(value)}:
        places = [i for i, value in enumerate(values) if is_owned(value) and type(value) is kind]
        set_region(Subset(region, region.lanes()[places]))
        held = CONTAINERS[kind]([values[i] for i in places])
        set_region(region)
        for i in places:
            lanes[i] = held
    for each in lanes:
        _require_object(each)
    return chosen(lanes)


def _mixed(values: Sequence[Any]) -> Any:
    """Values that are no batch of ours as they are: the plain objects of the lanes."""
    return stack_results([settled(value) for value in values])


def _rows(rows: Sequence[Row]) -> Any:
    region: Any = current_region()
    first = rows[0].batch
    if all(row.batch is first for row in rows):
        lanes = [row.lane for row in rows]
        if first.region is region and lanes == list(range(first.batch_size)):
            return first
        return _copy_of([first], _as_array(take_lanes(first, np.array(lanes)), first))
    known: dict[int, int] = {}
    batches: list[Any] = []
    starts: list[int] = []
    total = 0
    index = np.empty(len(rows), np.int64)
    for place, row in enumerate(rows):
        number = known.setdefault(id(row.batch), len(batches))
        if number == len(batches):
            batches.append(row.batch)
            starts.append(total)
            total += row.batch.batch_size
        index[place] = starts[number] + row.lane
    sources = list(batches)
    if not stackable(batches):
        return stack_results([row.value() for row in rows])
    if total > 4 * len(rows):  # mostly lanes that are not asked for: take each batch's own first
        index = np.empty(len(rows), np.int64)
        start = 0
        for number, batch in enumerate(batches):
            places = [place for place, row in enumerate(rows) if known[id(row.batch)] == number]
            batches[number] = take_lanes(batch, np.array([rows[place].lane for place in places]))
            index[places] = np.arange(start, start + len(places))
            start += len(places)
    return _copy_of(sources, _as_array(take_lanes(concatenated(batches), index), first))


def _copy_of(batches: list[Any], out: Any) -> Any:
    """What was copied from rows: a write would not reach it, nor one into it the rows."""
    for batch in batches:
        freeze(batch, out)
    return freeze(out)


def themselves(values: Sequence[Any]) -> Any:
    """What is written into by the lanes of the current region, of which containers keep these values: no copies."""
    region: Any = current_region()
    if not all(type(value) is Row and value.batch.region is not None for value in values):
        return gathered(values)
    places: dict[int, int] = {}
    batches: list[Any] = []
    which = np.empty(len(values), np.int64)
    for place, (row, lane) in enumerate(zip(values, region.lanes().tolist(), strict=True)):
        if row.batch.region.lanes()[row.lane] != lane:
            return gathered(values)
        if id(row.batch) not in places:
            places[id(row.batch)] = len(batches)
            batches.append(row.batch)
        which[place] = places[id(row.batch)]
    return Choice(batches, which)


def _as_array(out: Any, like: Any) -> Any:
    out.region = current_region()
    return out if is_scalar(like) else zero_d(out)


def each_lane(function: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]:
    """Call a function for each lane of the current region, on the values that the lanes keep: the results, as kept."""
    out = []
    for place, row in enumerate(zip(*columns, strict=True)):
        try:
            out.append(function(*row))
        except Exception as error:
            name_lane(error, place)
            raise
    return out


def unified(kind: type, values: list[Any]) -> Held:
    """Our container of this type from fresh containers, one for each lane of the current region."""
    for value in values:
        owned(value)
    return CONTAINERS[kind](values)


def settled(value: Any) -> Any:
    """A value with an array for each row in it; containers stay the lanes' own."""
    if type(value) is Row:
        return value.value()
    if isinstance(value, tuple) or (is_node(value) and not is_owned(value) and not is_changeable(value)):
        leaves, structure = flatten(value)
        return unflatten(structure, map(settled, leaves)) if any(type(leaf) is Row for leaf in leaves) else value
    return value
