"""Changes of what is outside a lock-step call: kept per lane while it runs, made example by example at its end.

The loop over the examples makes them one example after the other, so an example sees what those before it have changed.
Here no lane sees another's change. That comes to the same as long as nobody reads what an example before has changed;
a lane that would asks for the loop (`NeedsLoop`), and nothing has happened yet. A lane's own changes it does see.
"""

from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.base import Batch
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.lanes import current_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.boxes import LaneBox
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.ownership import changing, is_changeable
from autobatch.lockstep.places import MISSING, NOBODY, Effect, Place, Several, Whole
from autobatch.lockstep.regions import lanes_within
from autobatch.lockstep.rows import Choice

__all__ = ["Outside", "memory_of"]

_FIXED = frozenset({
    int, float, complex, bool, str, bytes, type(None), range, BuiltinFunctionType, MaskedBatch, PackedBatch, np.ufunc,
    type(np.sum), np.dtype, type(Ellipsis), frozenset, *np.sctypeDict.values(),
})  # fmt: skip
_NOTHING_INSIDE = _FIXED | {type, ModuleType, FunctionType}
_CONTAINERS = (dict, list, set, tuple)


class Outside:
    """What the lanes of one call have read and changed outside of it.

    Attributes:
        effects: what is to be done at the end.
        known: objects that were there before the call, by identity: only those may change.
        given: results of code that is not converted, by identity; nobody knows whether they were there before.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.places: dict[tuple[int, Any], Place] = {}
        self.wholes: dict[int, Whole] = {}
        self.effects: list[Effect] = []
        self.known: dict[int, Any] = {}
        self.given: dict[int, Any] = {}
        self.codes: dict[int, Any] = {}
        self.names: dict[int, set[str]] = {}

    def enter(self, function: Any) -> None:
        """A converted function runs: what its code can name was there before, and it may read each of its globals."""
        code = function.__code__
        if id(code) in self.codes and not function.__closure__:
            return
        self.codes[id(code)] = function
        names = self.names.setdefault(id(function.__globals__), set())
        new = set(_names(code)) - names
        names |= new
        self.know(function.__globals__)
        for name in new:
            if name in function.__globals__:
                self.know(function.__globals__[name])
            place = self.places.get((id(function.__globals__), name))
            if place is not None and place.writer < self.size:
                raise self._conflict(place.target, name)
        for cell in function.__closure__ or ():
            try:
                self.know(cell.cell_contents)
            except ValueError:
                continue
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.know(default)

    def know(self, value: Any) -> Any:
        """Note a value as one that was there before the call. Returns it."""
        if type(value) not in _FIXED:
            self.known[id(value)] = value
            if isinstance(value, tuple):
                for each in value:
                    self.know(each)
        return value

    def give(self, value: Any) -> Any:
        """Note a value as a result of code that is not converted. Returns it."""
        if type(value) not in _FIXED and not isinstance(value, np.ndarray | Batch) and id(value) not in self.known:
            self.given[id(value)] = value
        return value

    def is_known(self, value: Any) -> bool:
        """Whether an object was there before the call, for certain."""
        return id(value) in self.known

    def place(self, target: Any, key: Any) -> Place:
        """The place of an attribute (`key` is a tuple of its name) or of an item."""
        place = self.places.get((id(target), key))
        if place is None:
            place = self.places[id(target), key] = Place(target, key, self.size)
        return place

    def read(self, place: Place, before: Callable[[], Any]) -> Any:
        """The value of a place for the lanes of the current region; a `Several` if they have it from different sources.

        Args:
            before: gives what it was before the call; MISSING if it was not there.
        """
        region: Any = current_region()
        if place.pieces and lanes_within(region, place.pieces[-1][0]) is not None:
            return place.pieces[-1][1]
        lanes = region.lanes().tolist()
        place.spill()
        if place.lanes.keys().isdisjoint(lanes):
            self.read_before(place, lanes)
            return before()
        return Several(self.read_lane(place, lane, before) for lane in lanes)

    def read_lane(self, place: Place, lane: int, before: Callable[[], Any]) -> Any:
        """The value of a place for one lane, as a container of that lane keeps it."""
        place.spill()
        if lane in place.lanes:
            return place.lanes[lane]
        self.read_before(place, [lane])
        return self.know(before())

    def read_before(self, place: Place, lanes: list[int]) -> None:
        """Note that lanes read what a place was before the call."""
        last = max(lanes, default=NOBODY)
        if place.writer < last or not place.updated.isdisjoint(lanes):
            raise self._conflict(place.target, place.key)
        place.reader = max(place.reader, last)
        self.look_up(place.target, lanes)

    def look_up(self, target: Any, lanes: list[int]) -> None:
        """Note that what lanes do depends on where something is in an object: of a list, on its length."""
        last = max(lanes, default=NOBODY)
        whole = self._whole(target)
        if whole.shifted <= last:
            raise self._conflict(target)
        whole.looked_up = max(whole.looked_up, last)

    def write(self, place: Place, value: Any, act: Callable[..., Any]) -> None:
        """The lanes of the current region set a place; `act(value)` does it when it is their turn."""
        region: Any = current_region()
        lanes = region.lanes()
        self.changes(place, lanes)
        place.set(region, value)
        if place.updated:
            place.updated.difference_update(lanes.tolist())
        self.will(act, (value,), place)

    def has_own(self, place: Place, lanes: Iterable[int]) -> bool:
        """Whether one of these lanes has set a place itself."""
        place.spill()
        return not place.lanes.keys().isdisjoint(lanes)

    def write_lane(self, place: Place, lane: int, kept: Any) -> None:
        """One lane sets a place; the caller says what is to be done."""
        self.changes(place, np.array([lane]))
        place.spill()
        place.lanes[lane] = kept
        place.updated.discard(lane)

    def update(self, place: Place, lanes: np.ndarray) -> None:
        """Lanes change a place by what it will be when it is their turn."""
        self.changes(place, lanes)
        place.spill()
        for lane in lanes.tolist():
            place.lanes.pop(lane, None)
            place.updated.add(lane)

    def changes(self, place: Place, lanes: np.ndarray) -> None:
        """Note that lanes change a place."""
        first = int(lanes.min()) if len(lanes) else self.size
        changing(place)
        if place.reader > first or place.key in self.names.get(id(place.target), ()):
            raise self._conflict(place.target, place.key)
        place.writer = min(place.writer, first)
        place.version += 1
        self._change(place.target, first)

    def change_whole(self, target: Any) -> None:
        """Note that the lanes of the current region change an object in another way than at one place."""
        region: Any = current_region()
        lanes = region.lanes()
        first = int(lanes.min()) if len(lanes) else self.size
        whole = self._change(memory_of(target), first)
        if whole.looked_up > first:
            raise self._conflict(target)
        whole.shifted = min(whole.shifted, first)

    def _change(self, target: Any, first: int) -> Whole:
        whole = self._whole(target)
        if whole.reader >= first:
            raise self._conflict(target)
        whole.writer = min(whole.writer, first)
        self.known[id(target)] = target
        return whole

    def _whole(self, target: Any) -> Whole:
        whole = self.wholes.get(id(target))
        if whole is None or whole.held() is not target:
            whole = self.wholes[id(target)] = Whole(target, self.size)
        return whole

    def will(
        self, act: Callable[..., Any], values: tuple[Any, ...], sets: Place | None = None, updates: Any = ()
    ) -> None:
        """`act` of each lane's values is to be done at its turn, for the lanes of the current region."""
        region: Any = current_region()
        effects = self.effects
        region.root.note_change()
        if region.root.journal is not None:
            count = len(effects)
            region.root.journal.on_undo(lambda: effects.__delitem__(slice(count, None)))
        effects.append(Effect(region, act, values, sets, updates))

    def note(self, value: Any, deep: bool = True) -> None:
        """The lanes of the current region read all of a value, by code that looks nothing up here.

        Args:
            deep: whether the objects in it are read as well, not just its containers.
        """
        if type(value) in _NOTHING_INSIDE:
            return
        region: Any = current_region()
        lanes = region.lanes()
        if len(lanes):
            self._note(value, int(lanes.max()), deep, False)

    def note_result(self, value: Any) -> None:
        """The result of the call holds this value, as it is when all is done."""
        self._note(value, self.size - 1, True, False)

    def _note(self, value: Any, last: int, deep: bool, inside: bool) -> None:
        kind = type(value)
        if kind in _NOTHING_INSIDE:
            return
        if isinstance(value, np.ndarray | TapeArray):
            self._read_whole(memory_of(value), last)
        elif isinstance(value, tuple):
            self._note_all(value, last, deep, inside)
        elif isinstance(value, LaneList | LaneBox | Choice | ObjectBatch):
            self._note_all(_inside(value), last, deep, True)
        elif is_changeable(value):
            if deep:
                self._note_once(value, vars(value).values() if hasattr(value, "__dict__") else (), last, deep, inside)
        elif isinstance(value, _CONTAINERS):
            self.require(value, inside)
            if id(value) in self.known:
                for each in _inside(value):
                    self.know(each)
            self._read_whole(value, last)
            self._note_once(value, _inside(value), last, deep, inside)
        elif not isinstance(value, Batch):
            self._whole(value)
            if deep:
                self._read_whole(value, last)
                self._note_once(value, _inside(value), last, deep, True)

    def _note_once(self, value: Any, parts: Iterable[Any], last: int, deep: bool, inside: bool) -> None:
        whole = self._whole(value)
        if deep:
            if whole.deep >= last:
                return
            whole.deep = last
        self._note_all(parts, last, deep, inside)

    def _note_all(self, parts: Iterable[Any], last: int, deep: bool, inside: bool) -> None:
        for each in parts:
            if type(each) not in _NOTHING_INSIDE:
                self._note(each, last, deep, inside)

    def _read_whole(self, target: Any, last: int) -> None:
        whole = self._whole(target)
        if whole.writer <= last:
            raise self._conflict(target)
        whole.reader = max(whole.reader, last)

    def require(self, container: Any, inside: bool = False) -> None:
        """Raise NeedsLoop for a container that may be a copy, made where lanes met, of one that was there before."""
        if not (inside or id(container) in self.known or id(container) in self.given):
            raise NeedsLoop(
                f"a {type(container).__name__} that the call did not make, beside a change of what is outside"
            )

    def _conflict(self, target: Any, key: Any = MISSING) -> NeedsLoop:
        what = f"a {type(target).__name__}"
        if isinstance(target, dict) and "__builtins__" in target:
            what = f"the global name {key}"
        elif key is not MISSING:
            what = f"an item of {what}" if isinstance(target, _CONTAINERS) else f"attribute {key[0]!r} of {what}"
        return NeedsLoop(f"{what} from outside the call is changed by an example and read by it or another one")


def memory_of(value: Any) -> Any:
    """What an array is a view of, or the array itself: two arrays that share memory have the same."""
    while isinstance(value, TapeArray):
        value = value.value
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    if isinstance(value, np.ndarray) and isinstance(value.base, memoryview):
        return value.base.obj
    return value


def _inside(value: Any) -> list[Any]:
    """What a container or an object holds."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | set | tuple):
        return list(value)
    if isinstance(value, LaneList):
        return [*value.items, *(value.lanes or ())]
    if isinstance(value, LaneBox):
        return [*(value.whole or {}).values(), *(value.lanes or ())]
    if isinstance(value, Choice):
        return value.objects
    if isinstance(value, ObjectBatch):
        return list(value.values)
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each) if name[:2] != "__"]
    return [*(getattr(value, name, None) for name in names), *getattr(value, "__dict__", {}).values()]


def _names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)
