"""Block launches: a straight-line run of array expressions executes as one launch for all lanes of the region.

Rewritten code calls a block's `LaneBlock` with the values that the block reads. If they are supported (arrays of one
shape in all lanes, arrays and numbers that lanes share, containers of such), the site returns the values that are live
after the block; else None, and the statements run one by one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import broadcast
from autobatch.batches.unpadded import Unpadded
from autobatch.blocks.launch import is_plain, launch, launch_ragged
from autobatch.blocks.program import Program
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import WEAK, Affine, aval_of, is_non_c_order
from autobatch.core.batched import Lengths, same_size
from autobatch.core.config import config
from autobatch.core.current_region import current_region
from autobatch.lockstep.lanes.region import Prefix, Region
from autobatch.ops.rules.aliasing import is_contiguous, is_scalar, zero_d
from autobatch.program.scopes import Guard

Key = tuple[Any, ...]
_NUMERIC = frozenset("biufc")
_NO_LENGTHS: Mapping[str, Lengths] = MappingProxyType({})
_INDEX = (int, bool, str, float, type(None), tuple, type(Ellipsis), slice, type, np.dtype)


def _key_of(values: Sequence[Any], static: Sequence[bool]) -> Key | None:
    """A hashable key of a block's inputs, from each part of which an aval follows (`_aval_of`).

    None if a value is not supported, or none differs by lane.

    Args:
        values: batches of the current region, and shared values; those after `static` are leaves of containers.
    """
    lengths: dict[str, Lengths] = {}
    key: list[Key] = []
    for place, value in enumerate(values):
        kind: Any = type(value)
        is_leaf = place >= len(static)
        is_constant = kind in _CONSTANT_LEAVES if is_leaf else static[place]
        data = value.data if kind is MaskedBatch else value
        if type(data) is Unpadded or type(data) is TapeArray:
            data = data.values if type(data) is Unpadded else data
            data = data._ab_value if type(data) is TapeArray else data
        if kind is MaskedBatch and type(data) is np.ndarray and value.scalar is None and data.dtype.kind in _NUMERIC:
            sizes = value.sizes
            if Lengths in map(type, sizes):
                sizes = tuple([_named(size, lengths) if type(size) is Lengths else size for size in sizes])
            order = value._view is not None and value._view.non_c_order
            key.append(("b", sizes, data.dtype, not sizes and is_scalar(value), order))
        elif (kind is np.ndarray or kind is TapeArray) and type(data) is np.ndarray and data.dtype.kind in _NUMERIC:
            key.append(("s", data.shape, data.dtype, not data.flags.c_contiguous and is_non_c_order(data)))
        elif not is_constant and (kind in WEAK or (isinstance(value, np.generic) and value.dtype.kind in _NUMERIC)):
            key.append(("w", kind))
        elif kind is Unpacked:
            key.append(("c", kind, value))
        elif is_constant and (kind is not tuple or {int}.issuperset(map(type, value))) and isinstance(value, _INDEX):
            key.append(("c", kind, repr(value)))
        elif is_leaf:
            key.append(_NOT_READ)
        else:
            return None
    return tuple(key) if "b" in [how for how, *_ in key] else None


def _aval_of(key: Key) -> Any:
    """The aval by which an input is traced, given its key; None for a constant, and for what a block cannot read."""
    match key:
        case ("b", sizes, dtype, scalar, non_c_order):
            shape = tuple([Affine({size: 1}) if type(size) is str else size for size in sizes])
            return aval_of(shape, dtype, scalar, non_c_order)
        case ("s", shape, dtype, non_c_order):
            return aval_of(shape, dtype, non_c_order=non_c_order)
        case ("w", kind):
            return WEAK.get(kind) or aval_of((), np.dtype(kind), True)
    return None


def _named(size: Lengths, lengths: dict[str, Lengths]) -> str:
    """The name of the unknown size that stands for the lengths of an input; equal lengths have one name."""
    name = next((name for name, known in lengths.items() if same_size(known, size)), f"x{len(lengths)}")
    lengths.setdefault(name, size)
    return name


def _known_size(size: Any, lengths: Mapping[str, Lengths]) -> Any:
    """The lengths that an unknown size stands for in this call; any other size as it is."""
    if type(size) is not Affine:
        return size
    ((name, factor),) = size.factors.items()
    own = lengths[name]
    if factor == 1 and not size.number:
        return own
    if size not in own.derived:
        own.derived[size] = Lengths(size.at({name: own.values}))
    return own.derived[size]


def as_batch(
    rows: np.ndarray | TapeArray,
    kind: tuple[Any, bool, bool],
    region: Region | None,
    lengths: Mapping[str, Lengths] = _NO_LENGTHS,
) -> Any:
    """Wrap an array that a block computed, one row per lane, as a batch.

    Args:
        kind: (sizes of an example's array, True for a 0-d array, True if it may not be in C order).
        lengths: of the region's lanes, by the names that unknown sizes have for them.
    """
    sizes, zero_dim, non_c_order = kind
    if lengths:
        sizes = tuple([_known_size(size, lengths) for size in sizes])
    batch = MaskedBatch.of_data(rows, sizes, region)
    if non_c_order:
        batch._ab_set_order(True)
    return zero_d(batch) if zero_dim else batch


@dataclasses.dataclass(frozen=True, slots=True)
class Unpacked:
    """The structure of a container whose leaves are inputs of a block: a constant of the block's program.

    Attributes:
        kind: dict, list or tuple; keys: of a dict; parts: for each item its own structure, or None for a leaf.
    """

    kind: type
    keys: tuple[Any, ...]
    parts: tuple["Unpacked | None", ...]

    def packed(self, leaves: Iterator[Any]) -> Any:
        """The container, with these leaves."""
        items = [next(leaves) if part is None else part.packed(leaves) for part in self.parts]
        return dict(zip(self.keys, items, strict=True)) if self.kind is dict else self.kind(items)


_CONTAINERS = frozenset((dict, list, tuple))


def _unpacked(value: Any, leaves: list[Any]) -> Unpacked | None:
    """The structure of a container, whose leaves are added to `leaves`; None for a leaf.

    Raises:
        LookupError: it has too many leaves, or keys that are neither strings nor integers.
    """
    kind = type(value)
    if kind not in _CONTAINERS:
        leaves.append(value)
        return None
    if len(leaves) + len(value) > 64:  # of one container
        raise LookupError
    keys = tuple(value) if kind is dict else ()
    if not all(type(key) is str or type(key) is int for key in keys):
        raise LookupError
    return Unpacked(kind, keys, tuple([_unpacked(part, leaves) for part in (value.values() if keys else value)]))


class _Unreadable:
    """Stands in a traced container for what a block cannot read, such as a table: any use ends the trace."""

    def __getattribute__(self, name: str) -> Any:
        raise TypeError(f"{name} of an input that a block cannot read")


_CONSTANT_LEAVES = frozenset((bool, int, str, type(None), np.dtype))  # a float is an operand: it may change often
_NOT_READ = ("u",)  # the key of a leaf that a block cannot read


MOST_FAILURES = 4  # in one call; then the statements run one by one
_VAIN = 16  # calls in which it never ran, after which a block is tried in one of so many


class LaneProgram(NamedTuple):
    """What a block runs for inputs of one kind.

    Attributes:
        places: the inputs that the program reads; outputs: for each result what `as_batch` takes.
    """

    program: Program
    places: Sequence[int]
    outputs: Sequence[tuple[Any, bool, bool]]

    def operands(self, values: Sequence[Any]) -> list[Any]:
        """The program's operands, of the block's inputs."""
        return [values[i] for i in self.places]


@dataclasses.dataclass(slots=True, eq=False)
class LaneBlock:
    """One block in the code of one function.

    Attributes:
        body: the block as a function of its inputs; returns the values that are live after it.
        static: for each input, True if a number there is a constant of the program (an index, an axis).
        guards: the global names whose meaning the block relies on.
        containers: the inputs that may be containers, since helpers get them.
        updates: the inputs that `+=` binds again, and thus have to be numbers: it would write into an array.
        programs: {key of the inputs: what runs, None if nothing does}.
        seen: the key of the last call; vain: the number of calls since one in which the block ran.
    """

    body: Callable[..., Any]
    static: Sequence[bool]
    guards: Sequence[Guard] = ()
    containers: Sequence[int] = ()
    updates: Sequence[int] = ()
    programs: dict[Any, LaneProgram | None] = dataclasses.field(default_factory=dict)
    seen: Any = None
    vain: int = 0

    def inputs(self, values: Sequence[Any], region: Region) -> list[Any]:
        """The values for a region's lanes; each container replaced by its structure, and all their leaves at the end.

        In a loop over items, packed arrays are padded; not rows of a table, whose mean is a bag while they are pending.
        """
        out = list(values)
        for i in self.containers:
            if type(values[i]) in _CONTAINERS:
                own: list[Any] = []
                try:
                    out[i] = _unpacked(values[i], own)
                except LookupError:
                    continue
                out += own
        for i, value in enumerate(out):
            kind = type(value)
            if kind is PackedBatch and type(region) is Prefix and value._pending is None and is_plain(value.values):
                value = out[i] = value.to_masked()
                kind = MaskedBatch
            if kind is MaskedBatch and value.region is not region:
                out[i] = region.narrow(value)
        return out

    def __call__(self, *values: Any) -> tuple[Any, ...] | None:
        region: Any = current_region()
        if region is None:
            return None
        failures = region.root.blocks
        if self not in failures:
            failures[self] = self._failures()
        if failures[self] >= MOST_FAILURES:
            return None
        found = self.find(self.inputs(values, region), region)
        if found is None:
            return None
        lane_program, operands = found[0], found[0].operands(found[1])
        program, lengths, made = lane_program.program, _NO_LENGTHS, None
        if not program.lengths:
            made = launch(program, operands)
        elif ragged := launch_ragged(program, operands):
            made, lengths = ragged
        if made is None:
            failures[self] += 1
            return None
        failures[self] = self.vain = 0
        return tuple([as_batch(*each, region, lengths) for each in zip(made, lane_program.outputs, strict=True)])

    def _failures(self) -> int:
        """As many failures as a lock-step call begins with: as many as there may be if it is not to try the block."""
        self.vain += 1
        is_tried = self.vain <= _VAIN or not self.vain % _VAIN
        return (
            0 if is_tried and config.blocks and False not in [each.holds() for each in self.guards] else MOST_FAILURES
        )

    def known(self, values: Sequence[Any], region: Region) -> tuple[LaneProgram | None, list[Any]]:
        """The program that has been found for values of this kind, and the inputs; None if there is none."""
        inputs = self.inputs(values, region)
        return self.programs.get(_key_of(inputs, self.static)), inputs

    def find(self, values: Sequence[Any], region: Region) -> tuple[LaneProgram, Sequence[Any]] | None:
        """What runs for these inputs, and the inputs that it takes; None if nothing does (yet)."""
        if type(region) is not Prefix and Unpadded in [type(x.data) for x in values if type(x) is MaskedBatch]:
            return None  # only in a loop over items is it faster to pad them, once for all steps
        key = _key_of(values, self.static)
        if key is None or False in [key[i][0] == "w" or (key[i][0] == "b" and key[i][3]) for i in self.updates]:
            region.root.blocks[self] += 1
            return None
        known = None if key in self.programs else self._promoted(key)
        if known is not None:
            values = [
                broadcast(value, region.count) if own != each else value
                for value, own, each in zip(values, key, known, strict=True)
            ]
            key = known
        if key not in self.programs:
            if self.seen != key:  # a single use is not worth tracing
                self.seen = key
                return None
            if len(self.programs) >= 16:  # per site; with more, shapes vary too much for tracing to pay
                return None
            self.programs[key] = self._traced(key, values)
        found = self.programs[key]
        if found is None:
            region.root.blocks[self] += 1
            return None
        return found, values

    def _promoted(self, key: Key) -> Key | None:
        """The key of a known program that takes batches where this call has shared arrays of that shape; else None.

        The first step of a loop, whose state is still shared by all lanes, can thus use the other steps' program.
        """
        for known, found in self.programs.items():
            if found is not None and all(map(_promotes, key, known)):
                return known
        return None

    def _traced(self, key: Key, values: Sequence[Any]) -> LaneProgram | None:
        kinds = [_aval_of(each) for each in key]
        places = [i for i, kind in enumerate(kinds) if kind is not None]
        count = len(self.static)

        def body(*operands: Any) -> Any:
            arguments = [value if i < count or key[i][0] == "c" else _Unreadable() for i, value in enumerate(values)]
            for i, operand in zip(places, operands, strict=True):
                arguments[i] = operand
            leaves = iter(arguments[count:])
            out = self.body(*[x.packed(leaves) if type(x) is Unpacked else x for x in arguments[:count]])
            out = out if type(out) is tuple else (out,)
            if not all(is_contiguous(x) or (is_non_c_order(x) and getattr(x, "_view", None) is None) for x in out):
                raise ValueError  # only of a new array it is known whether its reshapes are views
            return out if len(out) > 1 else out[0]  # one result is not in a tuple

        program = trace(body, [kinds[i] for i in places])
        if program is None or any(type(value) is Affine for value in program.constants):
            return None  # or it reads a length as a number
        if len(values) > count:  # leave out the leaves that it does not read
            read = {slot for step in program.steps for slot in step.args}
            slots = [slot for slot, i in enumerate(places) if i < count or slot in read]
            program = program.part(slots, program.steps, program.outputs)
            places = [places[slot] for slot in slots]
        if not all(program.varying([key[at][0] == "b" for at in places])):
            return None
        outputs = [(aval.shape, not aval.ndim and not aval.scalar, aval.non_c_order) for aval in program.results]
        return LaneProgram(program, places, outputs)


def _promotes(own: Key, known: Key) -> bool:
    return own == known or (own[0] == "s" and known == ("b", own[1], own[2], False, own[3]))
