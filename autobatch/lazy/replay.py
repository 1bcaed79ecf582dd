"""Recordings that are kept: an example that equals an earlier one is recorded again without running its Python.

Training sees the same trees epoch after epoch, and recording them takes longer than computing. Of a function that is
proved to see the structure of its arguments only (`rewrite.structural`), what it records for one example is a matter of

- the example, made of plain containers, numbers, text and objects that hold such: known by its bytes (`lazy.content`);
- the structure, shapes and dtypes of the shared arguments, and the plain numbers in them: the key of a `Shelf`;
- what its global names mean: the guards of its `Memory`.

A recording is kept when an example is seen for the second time, and only if nothing looked at the value of an array.
"""

import dataclasses
import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.inputs import Guard
from autobatch.core.abstract_eval import WEAK, Aval
from autobatch.core.config import config, current
from autobatch.core.diagnostics import users_filters
from autobatch.core.pytree import attributes
from autobatch.lazy.array import LazyArray
from autobatch.lazy.example_keys import CONTAINERS, NUMBERS, Classes, Unsuited, Writer, is_constant
from autobatch.lazy.example_state import Inputs
from autobatch.lazy.launching import BlockCall, Signature
from autobatch.lazy.trace import Trace
from autobatch.tables.table import EmbeddingTable

__all__ = ["Memory", "Replay"]

_SHELVES = 8  # structures of shared arguments, of one function
_LARGEST = 1 << 16  # bytes of an example
_KEYS = (int, bool, str, type(None))
_TABLES = (np.ndarray, EmbeddingTable)
_ROOM = 1 << 26  # bytes of the recordings of one shelf, about
_numbering = threading.Lock()
_WARNING = ("autobatch", "numpy", "scipy")  # packages that compute, and may warn in their own name
_PATIENCE = 32  # recordings that could not be kept, where none could


class SharedPlace:
    """The place of a shared array in a template, known by its number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    @staticmethod
    @functools.cache
    def of(number: int) -> "SharedPlace":
        """The one of this number."""
        return SharedPlace(number)


class Template:
    """A signature without the arrays that all examples share.

    Attributes:
        key: what it is interned by, with the places of shared arrays for their avals; avals: those of its operands,
            likewise.
        sig: a signature like it, without avals and shared values; program: what it runs if it is a block's.
    """

    __slots__ = ("avals", "key", "program", "sig")

    def __init__(self, sig: Signature, key: tuple[Any, ...], number_of: Callable[[Any], Any]) -> None:
        self.key = tuple(map(number_of, key))
        self.avals = tuple(map(number_of, sig.avals))
        self.program = None if sig.block is None else sig.block.program
        self.sig = sig.copied()
        self.sig.avals, self.sig.block = (), None

    def bound(self, trace: Trace, arrays: Sequence[LazyArray]) -> Signature:
        """The signature with these shared arrays, in this trace."""
        key = _bound(self.key, arrays)
        sig = trace.interned.get(key)
        if sig is None:
            sig = self.sig.copied()
            sig.avals, sig.index, sig.errors = _bound(self.avals, arrays), len(trace.table), trace.errors
            if self.program is not None:
                values = [arrays[part.number].source if type(part) is SharedPlace else None for part in self.key[1:]]
                sig.block = BlockCall(self.program, values, sig.index)
            trace.table.append(sig)
            trace.interned[key] = sig
        return sig


def _bound(parts: Sequence[Any], arrays: Sequence[LazyArray]) -> tuple[Any, ...]:
    return tuple([arrays[part.number].aval if type(part) is SharedPlace else part for part in parts])


class Shelf:
    """The recordings for one structure of the shared arguments.

    Attributes:
        found: {an example's bytes: its recording; None: it was seen once}; templates: their signatures.
        room: how many bytes more are kept; patience: how many more may turn out not to be kept
            before one is.
    """

    __slots__ = ("_numbers", "found", "patience", "room", "templates")

    def __init__(self) -> None:
        self.found: dict[bytes, Recording | None] = {}
        self.templates: list[Template] = []
        self._numbers: dict[Any, int] = {}
        self.room = _ROOM
        self.patience = _PATIENCE

    def number(self, template: Template) -> int:
        """The number of a template like this one."""
        with _numbering:
            number = self._numbers.setdefault(template.key, len(self.templates))
            if number == len(self.templates):
                self.templates.append(template)
        return number

    def spend(self, nbytes: int) -> bool:
        """Whether there is room."""
        if self.room < nbytes:
            return False
        self.room -= nbytes
        return True

    def give_way(self) -> None:
        """Forget what does not come any more, if that leaves no room for what comes."""
        if self.room < _ROOM // 16:
            self.found.clear()
            self.room = _ROOM


@dataclasses.dataclass(slots=True, eq=False)
class Recording:
    """What one example adds to a segment.

    Attributes:
        sigs: for each node the number of its template, -1 for a further output.
        refs: the operands: a node of the example (>= 0), or ~i for its i-th value from outside.
        sources: those values; shared: (i, number of a shared array) for those that are one;
            inputs: (i, number of an array of the example, which part of it) for those that are one;
            constants: the places i of arrays.
        result: a function of the new handles' maker; nbytes: of the recorded results.
    """

    sigs: np.ndarray
    refs: np.ndarray
    sources: list[Any]
    shared: list[tuple[int, int]]
    inputs: list[tuple[int, int, Any]]
    result: Callable[[Any], Any]
    nbytes: int
    constants: list[int] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.constants = [place for place, source in enumerate(self.sources) if type(source) is np.ndarray]


def part_of(source: Any, arrays: Sequence[np.ndarray]) -> tuple[int, Any] | None:
    """The number of the array that a value is a view of, and which: (shape, offset, strides), None for all of it."""
    if type(source) is np.ndarray:
        for number, array in enumerate(arrays):
            if source is array:
                return number, None
            if np.may_share_memory(source, array):
                if source.dtype != array.dtype:
                    raise Unsuited
                start = source.__array_interface__["data"][0] - array.__array_interface__["data"][0]
                return number, (source.shape, start, source.strides)
    return None


class Memory:
    """The recordings of one function.

    Args:
        guards: what it relies on; attributes: names of attributes that it reads.
        modules: names of the modules that the function and what it calls are of.
    """

    def __init__(self, guards: Sequence[Guard], attributes: Iterable[str], modules: Iterable[str] = ()) -> None:
        self.guards = tuple(guards)
        self.modules = frozenset(modules)
        self.classes = Classes(attributes)
        self._shelves: dict[Any, Shelf] = {}

    def holds(self) -> bool:
        """Whether all that the function relies on still means what it meant."""
        return all(guard.holds() for guard in self.guards) and self.classes.hold()

    def forget(self) -> None:
        """Let go of what was recorded."""
        self._shelves.clear()

    def opened(self, trace: Trace, columns: Sequence[Sequence[Any]], shared: dict[str, Any]) -> "Replay | None":
        """What serves one map; None where nothing may be kept.

        Args:
            columns: the arguments of the examples; shared: those of all examples, as these see them.
        """
        filters = users_filters()
        if not config.replay or any(_shows_all(each, self.modules) for each in filters):
            return None
        arrays: list[LazyArray] = []
        try:
            kind = _described(shared, self.classes, arrays, {})
        except (Unsuited, RecursionError):
            return None
        where = (kind, current(), tuple(np.geterr().values()), tuple(filters))
        shelf = self._shelves.get(where)
        if shelf is None:
            if len(self._shelves) >= _SHELVES:
                self._shelves.pop(next(iter(tuple(self._shelves))), None)
            shelf = self._shelves[where] = Shelf()
        write = self.classes.writer([column[0] for column in columns]) if shelf.patience else None
        return None if write is None else Replay(trace, shelf, self.classes, write, shared, arrays)


class Replay:
    """The recordings that one map finds and makes.

    Args:
        write: writes the arguments of an example as bytes.
        shared: what all examples share; arrays: the handles in it, in the order of their description.
    """

    def __init__(
        self,
        trace: Trace,
        shelf: Shelf,
        classes: Classes,
        write: Writer,
        shared: dict[str, Any],
        arrays: Sequence[LazyArray],
    ) -> None:
        self.trace = trace
        self.shelf = shelf
        self.classes = classes
        self.write = write
        self.shared = shared
        self.arrays = arrays
        self._keys: list[tuple[bytes, Sequence[np.ndarray]]] = []  # of each example; no bytes: it is not to be kept
        self._places = {id(handle.source): number for number, handle in enumerate(arrays)}
        self._memory = [np.asarray(handle.source) for handle in arrays if type(handle.source) in _TABLES]
        self._avals = {id(handle.aval): SharedPlace.of(number) for number, handle in enumerate(arrays)}

    @property
    def sees_all(self) -> bool:
        """Whether the function is proved to see structure only, and so to change nothing, for all of the examples."""
        return all(key for key, _ in self._keys)

    def play(self, columns: Sequence[Sequence[Any]]) -> dict[int, Any]:
        """Put into the trace, which is empty, what is known of the examples, as far as the memory budget goes.

        Args:
            columns: the arguments of the examples.

        Returns:
            The results of these examples, by their number: they need not run.
        """
        trace, places = self.trace, self._places
        found: list[tuple[int, Recording, Sequence[np.ndarray]]] = []
        for index, given in enumerate(zip(*columns, strict=True)):
            try:
                key, inputs = self.write(given)
            except Exception:  # whatever cannot be written
                key, inputs = b"", []
            if len(key) > _LARGEST or any(id(each) in places for each in inputs):
                key = b""
            self._keys.append((key, inputs))
            recording = self.shelf.found.get(key)
            if recording is not None and recording.nbytes <= trace._room:
                trace._room -= recording.nbytes
                found.append((index, recording, inputs))
        if not found:
            self.shelf.give_way()
            return {}
        return self._entered(found)

    def _entered(self, found: Sequence[tuple[int, Recording, Sequence[np.ndarray]]]) -> dict[int, Any]:
        trace, segment = self.trace, self.trace.segment
        for index, recording, inputs in found:
            outside = len(segment.sources)
            segment.sources += recording.sources
            for place in recording.constants:
                segment.sources[outside + place] = recording.sources[place].copy()  # of which a result may be a view
            for place, number in recording.shared:
                segment.sources[outside + place] = self.arrays[number].source
            for place, number, part in recording.inputs:
                own = inputs[number]
                segment.sources[outside + place] = (
                    own if part is None else np.ndarray(part[0], own.dtype, own, *part[1:])
                )
            for each in inputs:
                trace.inputs.add(each, index)
        recordings = [recording for _, recording, _ in found]
        segment.rows = [-1] * len(segment.sources)
        sigs = np.concatenate([each.sigs for each in recordings])
        refs = np.concatenate([each.refs for each in recordings])
        nodes = np.cumsum([0, *[len(each.sigs) for each in recordings]])[:-1]
        sources = np.cumsum([0, *[len(each.sources) for each in recordings]])[:-1]
        counts = [len(each.refs) for each in recordings]
        bound = np.full(len(self.shelf.templates) + 1, -1, np.int64)  # the last one is for further outputs
        for number in np.flatnonzero(np.bincount(sigs + 1)[1:]).tolist():
            bound[number] = self.shelf.templates[number].bound(trace, self.arrays).index
        segment.sigs = bound[sigs]
        segment.refs = refs + np.where(refs >= 0, np.repeat(nodes, counts), np.repeat(-sources, counts))
        if len(found) < len(self._keys):  # others are recorded behind them
            segment.sigs, segment.refs = segment.sigs.tolist(), segment.refs.tolist()
        trace.stats.replayed += len(found)
        return {
            index: recording.result(_Handles(trace, base))
            for (index, recording, _), base in zip(found, nodes.tolist(), strict=True)
        }

    def before(self, index: int) -> "_Progress | None":
        """Where the trace is as an example begins to run; None if what it records is not to be kept."""
        key, shelf = self._keys[index][0], self.shelf
        if key in shelf.found:
            return _Progress(self.trace) if shelf.patience and shelf.found[key] is None else None
        if key and shelf.spend(len(key) + 128):
            shelf.found[key] = None  # most that comes once never comes again
        return None

    def after(self, index: int, given: list[Any], result: Any, before: "_Progress") -> None:
        """Keep what an example has recorded, if it follows from the example alone."""
        key, inputs = self._keys[index]
        try:
            self.shelf.found[key] = self._kept(given, inputs, result, before)
        except Unsuited:
            self.shelf.patience -= not self.shelf.templates

    def _kept(self, given: list[Any], inputs: Sequence[np.ndarray], result: Any, before: "_Progress") -> Recording:
        """What an example has just recorded.

        Raises:
            Unsuited: it cannot be kept.
        """
        trace, segment = self.trace, self.trace.segment
        if not before.is_still(trace) or not all(map(trace.inputs.has, inputs)):  # which Python then sees as they are
            raise Unsuited
        for number, array in enumerate(inputs):  # whose part something is shows only where they lie apart
            if any(np.may_share_memory(array, other) for other in (*inputs[:number], *self._memory)):
                raise Unsuited
        held = self.classes.containers_in(given, self.write) | _containers(self.shared)
        sigs = segment.sigs[before.nodes :]
        numbers = {each: -1 if each < 0 else self._template(trace.table[each]) for each in set(sigs)}
        sources: list[Any] = []
        shared: list[tuple[int, int]] = []
        own: list[tuple[int, int, Any]] = []
        outside: dict[int, int] = {}
        refs = []
        for ref in segment.refs[before.refs :]:
            if ref >= 0:
                if ref < before.nodes:
                    raise Unsuited
                refs.append(ref - before.nodes)
                continue
            if ref not in outside:
                outside[ref] = -1 - len(sources)
                self._outside(ref, inputs, sources, shared, own)
            refs.append(outside[ref])
        found = Recording(
            np.array([numbers[each] for each in sigs], np.int64),
            np.array(refs, np.int64),
            sources,
            shared,
            own,
            _result_of(result, trace, before.nodes, held),
            nbytes=sum(trace.table[each].nbytes for each in sigs if each >= 0),
        )
        if not self.shelf.spend(found.sigs.nbytes + found.refs.nbytes + 64 * len(sources) + 1024):
            raise Unsuited
        return found

    def _template(self, sig: Signature) -> int:
        """The number of a signature's template."""
        if sig.base is not None or sig.shared:
            raise Unsuited
        key = next((key for key, value in self.trace.interned.items() if value is sig), None)
        if key is None:
            raise Unsuited
        return self.shelf.number(Template(sig, key, self._number_of))

    def _number_of(self, part: Any) -> Any:
        if type(part) is Aval and part.shared:
            part = self._avals.get(id(part))
            if part is None:
                raise Unsuited
        return part

    def _outside(
        self, ref: int, inputs: Sequence[np.ndarray], sources: list[Any], shared: list[Any], own: list[Any]
    ) -> None:
        """Note a value from outside of the segment."""
        segment = self.trace.segment
        source, row = segment.sources[-1 - ref], segment.rows[-1 - ref]
        if row != -1:
            raise Unsuited
        place = len(sources)
        sources.append(None)
        if id(source) in self._places:
            shared.append((place, self._places[id(source)]))
        elif (found := part_of(source, inputs)) is not None:
            own.append((place, *found))
        elif ref in segment.large or part_of(source, self._memory) is not None:
            raise Unsuited
        elif type(source) in WEAK or type(source) is np.ndarray or isinstance(source, np.generic):
            sources[-1] = source
        else:
            raise Unsuited


def _containers(value: Any) -> set[int]:
    """The containers in what all examples share, by id."""
    kind = type(value)
    parts = value.values() if kind is dict else value if kind in CONTAINERS else ()
    return {id(value)}.union(*map(_containers, parts))


def _shows_all(each: Any, modules: frozenset[str]) -> bool:
    """Whether a filter of warnings shows those of examples, whose functions are of these modules, as often as set.

    Libraries set filters for modules of their own: awkward does, which Numba imports where it is installed.
    """
    if each[0] in ("ignore", "error") or not issubclass(RuntimeWarning, each[2]):
        return False
    pattern = each[3]
    if not isinstance(pattern, re.Pattern):
        return True
    return any(map(pattern.match, modules)) or _is_of_arrays(pattern)


@functools.cache
def _is_of_arrays(pattern: "re.Pattern[str]") -> bool:
    """Whether it matches a module in which operations on arrays warn."""
    return any(pattern.match(name) for name in tuple(sys.modules) if name.partition(".")[0] in _WARNING)


class _Handles:
    """The handles of the nodes of an example: one for each node."""

    __slots__ = ("_base", "_made", "_trace")

    def __init__(self, trace: Trace, base: int) -> None:
        self._trace = trace
        self._base = base
        self._made: dict[int, LazyArray] = {}

    def __call__(self, ref: int, aval: Aval) -> LazyArray:
        found = self._made.get(ref)
        if found is None:
            found = self._made[ref] = LazyArray(self._trace, aval, self._trace.segment, self._base + ref)
        return found


class _Progress:
    """How far a trace was before an example."""

    __slots__ = ("_counts", "nodes", "refs", "segment")

    def __init__(self, trace: Trace) -> None:
        self.segment = trace.segment
        self.nodes = len(trace.segment.sigs)
        self.refs = len(trace.segment.refs)
        self._counts = _counts(trace)

    def is_still(self, trace: Trace) -> bool:
        """Whether the example has only recorded."""
        return trace.segment is self.segment and trace.failed is None and _counts(trace) == self._counts


def _counts(trace: Trace) -> tuple[int, int, int]:
    inputs: Inputs = trace.inputs
    return trace.stats.reads, trace.stats.fallbacks.total(), len(inputs.written)


def _result_of(
    value: Any, trace: Trace, base: int, held: set[int]
) -> Callable[[Callable[[int, Aval], LazyArray]], Any]:
    """What builds a result like this one, given what makes the handles of its nodes.

    Args:
        held: containers that may not be in it.
    """
    kind = type(value)
    if kind in CONTAINERS:
        if id(value) in held:
            raise Unsuited
        held.add(id(value))
    if kind is LazyArray:
        if (
            value.trace is not trace
            or value.segment is not trace.segment
            or value.ref < base
            or value.source is not None
        ):
            raise Unsuited
        ref, aval = value.ref - base, value.aval
        return lambda handle: handle(ref, aval)
    if is_constant(value):
        return lambda _: value
    if kind is tuple or kind is list:
        parts = [_result_of(part, trace, base, held) for part in value]
        return lambda handle: kind([part(handle) for part in parts])
    if kind is dict and all(type(key) in _KEYS for key in value):
        items = {key: _result_of(part, trace, base, held) for key, part in value.items()}
        return lambda handle: {key: part(handle) for key, part in items.items()}
    raise Unsuited


def _described(value: Any, classes: Classes, arrays: list[LazyArray], places: dict[int, int]) -> Any:
    """The structure of a shared argument, in which its arrays are numbered in the order in which they occur.

    Raises:
        Unsuited: there is more to it than structure, arrays and numbers.
    """
    kind = type(value)
    if kind is LazyArray:
        number = places.setdefault(id(value), len(arrays))
        if number == len(arrays):
            arrays.append(value)
        source, kinds = value.source, []
        while hasattr(source, "_ab_rank") and hasattr(source, "value"):  # on a tape
            kinds.append(type(source))
            source = source.value
        if type(source) is not float and type(source) not in _TABLES:
            raise Unsuited
        return number, value.aval.key, value.aval.scalar, getattr(source, "strides", None), type(source), *kinds
    if kind in NUMBERS and value == value:
        return kind, repr(value) if kind in (float, complex) else value
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if kind is tuple or kind is list:
        return kind, *[_described(part, classes, arrays, places) for part in value]
    if kind is dict and all(type(key) in _KEYS for key in value):
        return kind, *[(type(key), key, _described(part, classes, arrays, places)) for key, part in value.items()]
    if dataclasses.is_dataclass(kind) and kind.__eq__ is not object.__eq__ and classes.admit(kind):
        names = attributes(value)
        return kind, *[(name, _described(getattr(value, name), classes, arrays, places)) for name in names]
    raise Unsuited
