"""Generated recorders: when one is generated for a function, how it is compiled, and how it runs in a map.

The function of a map is read together with all user functions that it calls (`call_writer`), and written again:
work on an example's own objects stays Python, computations become appends to the segment, and everything that is the
same for all examples is evaluated beforehand. This happens after an example has run as Python, because only then do its
blocks know their inputs. A function with anything unknown or not covered keeps running as Python.
"""

import dataclasses
import functools
import operator
import re
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.core.abstract_eval import SHORTEST, Aval, known_aval
from autobatch.core.current_region import Arguments
from autobatch.core.pytree import leaves_of_kind
from autobatch.core.recorded_array import is_recorded
from autobatch.errors import NeedsLoop, Reason, Unsupported, reason_of
from autobatch.facts.types import COMPARISON_METHODS, SCALARS, SILENT_ATTRIBUTES, is_stored
from autobatch.lazy.array import LazyArray
from autobatch.lazy.block_nodes import Block
from autobatch.lazy.example_recorder import NO_ROOM, NOT_RECORDED
from autobatch.lazy.grouping.any_length import LONGEST
from autobatch.lazy.recorders import recorded_kinds as rk
from autobatch.lazy.recorders.call_writer import write_version
from autobatch.lazy.recorders.guards import FUNCTION, TRACE, Constants
from autobatch.lazy.recorders.recorder_functions import CallSite, Version, Wait, Written, defined
from autobatch.lazy.trace import Trace
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict
from autobatch.program.source import PARSING

_MOST_FAILURES = 6  # failed attempts to generate a recorder for a function
_largest = np.maximum.reduce
_KEYS = frozenset((int, str, np.int64))
_VIEWS: tuple[Any, ...] = (range, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
_BUILTIN = frozenset((*SCALARS, *_VIEWS, list, tuple, dict, np.int64, np.int32, np.float64, np.float32, np.bool_))
_CONTAINERS = frozenset((list, tuple, dict, str, int, float))
_OF_NUMPY = frozenset((np.int64, np.int32, np.float64, np.float32, np.bool_))
_NUMBERS = frozenset(SCALARS) | _OF_NUMPY
_RESULTS = _NUMBERS | {np.ndarray}
_HARMLESS = SILENT_ATTRIBUTES | {
    "__repr__", "__str__", "__getnewargs__", "__getstate__", "__setstate__", "__qualname__", "__abstractmethods__",
    "__reduce__", "__copy__", "__deepcopy__", "__call__",
}  # fmt: skip

_found: BoundedDict[tuple[int, int], "FunctionRecorders"] = BoundedDict(MOST_FUNCTIONS)


def recorders_of(function: Any, shared: dict[str, Any], arguments_of: Arguments | None) -> "MapRecorders | None":
    """The recorders of a user's function, for a map; None if there can never be any.

    Args:
        function: the user's function; shared: {name: shared value}; arguments_of: as for `map_with_stats`.
    """
    of: Any = function.__func__ if type(function) is MethodType else function
    of = of.__wrapped__ if hasattr(type(of), "_ab_batch") else of
    found = _recorders_of(of)
    if found is None or found.failures >= _MOST_FAILURES:
        return None
    return MapRecorders(found, function, of, shared, arguments_of)


def _recorders_of(function: Any) -> "FunctionRecorders | None":
    if type(function) is not FunctionType:
        return None
    key = id(function.__code__), id(function.__globals__)
    if key not in _found:
        _found[key] = FunctionRecorders(function.__code__, function.__globals__)
    return _found[key]


def why_not_recorded(function: Any) -> Reason:
    """Why the last attempt to generate a recorder for a user's function failed; "" if none did."""
    found = _recorders_of(function)
    return Reason(f"{type(function).__name__} is not a plain Python function" if found is None else found.reason)


def recorder_text(function: Any) -> str:
    """The text of the recorder that was generated last for a user's function.

    Raises:
        Unsupported: there is none.
    """
    found = _recorders_of(function)
    if found is None or not found.forms:
        raise Unsupported(why_not_recorded(function) or "no example was recorded")
    return found.forms[0].source


def forget_recorders() -> None:
    """Drop all recorders."""
    _found.clear()


@dataclasses.dataclass(slots=True, eq=False)
class FunctionRecorders:
    """The recorders generated from one function.

    Attributes:
        forms: the recorders, latest first; failures: the number of failed attempts to generate one.
        has_run: an example has run as Python.
        reason: why the last attempt failed.
    """

    code: CodeType  # kept with the globals so that their ids, which are the cache key, stay valid
    space: dict[str, Any]
    forms: list["_GeneratedRecorder"] = dataclasses.field(default_factory=list)
    failures: int = 0
    has_run: bool = False
    reason: str = ""


@dataclasses.dataclass(slots=True, eq=False)
class _Example:
    """Placeholder for an argument that differs by example, at position `at`."""

    at: int


@dataclasses.dataclass(slots=True, eq=False)
class MapRecorders:
    """The recorders of a function in one map."""

    _recorders: FunctionRecorders
    _function: Any
    _of: FunctionType
    _shared: dict[str, Any]
    _arguments_of: Arguments | None
    _tried: int = 0

    def count_misfit(self) -> None:
        """Count an example that did not fit; running it as Python may show its blocks inputs for another recorder."""
        if self._recorders.forms:
            self._recorders.forms[0].misfits += 1

    def bound(self, trace: Trace, columns: Sequence[Sequence[Any]], index: int) -> "_BoundRecorder | None":
        """The recorder that fits this map, generated if necessary; None if there is none."""
        recorders = self._recorders
        found = self._arguments(len(columns))
        if found is None:
            return None
        places, named = found
        roots: dict[Any, Any] = {FUNCTION: self._of, TRACE: trace}
        if type(self._function) is MethodType:
            roots["self"] = self._function.__self__
        arguments: list[tuple[int | str, Any]] = [*enumerate(places), *named.items()]
        for key, value in arguments:
            if type(value) is not _Example:
                roots[key] = value
        given = frozenset([(key, value.at if type(value) is _Example else None) for key, value in arguments])
        for form in list(recorders.forms):
            if form.given != given:
                continue  # in its calls, other parameters had their defaults
            if form.misfits < _PATIENCE_OF_FORM + form.fits // 4 and not (form.misfits and form.has_new_kinds()):
                try:
                    return _BoundRecorder(form, trace, roots)
                except NeedsLoop:
                    continue
        if self._tried >= 3 or recorders.failures >= _MOST_FAILURES:  # attempts in one map
            return None
        # So many examples run as Python before the first recorder is written.
        if not recorders.has_run and index < max(1, min(3, len(columns[0]) // 4)):
            return None  # its blocks have seen no inputs yet
        recorders.has_run = True
        self._tried += 1
        try:
            with PARSING:
                form = _form_of(self._of, places, named, roots, trace, columns, index)
            form.given = given
            bound = _BoundRecorder(form, trace, roots)
        except Exception as error:  # whatever the error is, the examples run as Python
            if isinstance(error, Unsupported):
                error.at(recorders.code.co_filename, recorders.code.co_firstlineno)
            recorders.reason = reason_of(error)
            recorders.failures += 1
            return None
        recorders.forms[7:] = []  # the latest are the likeliest to fit
        recorders.forms.insert(0, form)
        return bound

    def _arguments(self, count: int) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments of the function: shared values, and placeholders for those that differ by example; None if one
        argument has parts of both."""
        given = [_Example(at) for at in range(count)]
        if self._arguments_of is None:
            return list(given), dict(self._shared)
        try:
            positional, named = self._arguments_of(given, self._shared)
        except Exception:  # it inspects the placeholders
            return None
        mixed = [each for each in (*positional, *named.values()) if type(each) is not _Example]
        if leaves_of_kind(mixed, _Example):
            return None
        return list(positional), dict(named)


_PATIENCE_OF_FORM = 8  # examples that may not fit, beside a quarter of those that did: each runs half in vain


@dataclasses.dataclass(eq=False)
class _GeneratedRecorder:
    """A generated recorder.

    Attributes:
        constants: what it relies on; used, operands, sites, recipes, waits, attributes: as in `Written`.
        make: makes the function for a map and a segment, given their objects.
        result: the kind of its result.
        given: the arguments of the calls it serves: (position or name, the column of values; None if it is shared).
        blocks: the blocks of its functions; met: the number of input kinds that they had met; misfits, fits: the number
            of examples that did not fit, and that did.
    """

    constants: Constants
    used: list[int]
    operands: dict[int, Aval]
    sites: list[tuple[CallSite, bool]]
    recipes: list[Any]
    waits: list[Wait]
    attributes: list[str]
    make: Callable[..., Any]
    result: rk.RecorderKind
    source: str
    blocks: list[Block]
    met: int
    given: frozenset[tuple[int | str, int | None]] = frozenset()
    misfits: int = 0
    fits: int = 0

    def has_new_kinds(self) -> bool:
        """True if its blocks have met new kinds of inputs since it was written."""
        return sum(len(block.met) for block in self.blocks) > self.met


def _form_of(
    function: FunctionType,
    places: Sequence[Any],
    named: dict[str, Any],
    roots: dict[Any, Any],
    trace: Trace,
    columns: Sequence[Sequence[Any]],
    index: int,
) -> _GeneratedRecorder:
    """Read a function and write its recorder.

    Raises:
        Unsupported: no recorder can be written.
    """
    if leaves_of_kind([value for key, value in roots.items() if key is not TRACE], Batch):
        raise Unsupported("a batch among the shared arguments")
    of = defined(function)
    if of.form.parameters.rest or of.form.parameters.named_rest:
        raise Unsupported("a function with *args or **kwargs")
    constants = Constants(roots)
    written = Written(trace, constants, _classes_in([column[i] for column in columns for i in range(index + 1)]))

    def term(key: int | str, value: Any) -> rk.Term:
        """An argument; one that differs by example has its position as its source, until its name is known."""
        if type(value) is _Example:
            return rk.Term(rk.PLAIN, str(value.at))
        return rk.Term(written.const(constants.root(key)), "")

    args = [term("self", None)] if "self" in roots else []
    args += [term(key, value) for key, value in enumerate(places)]
    env = written.given(of, args, {name: term(name, value) for name, value in named.items()})
    own = {name: int(value.text) for name, value in env.items() if value.kind is rk.PLAIN}
    root = written.version(of, {name: value.kind for name, value in env.items()})
    root.seen = {name: rk.Seen(columns[at][index], (name,)) for name, at in own.items()}
    written.settle(write_version)
    if written.waits and written.lengths:
        raise Unsupported("arrays of varying length, and a value that is needed at once")
    _check_result(root.result)
    columns_order = [name for name, _ in sorted(own.items(), key=lambda each: each[1])]
    used = sorted(written.used)
    source, sites = _source(written, root, columns_order, used)
    space: dict[str, Any] = {"__builtins__": {}, **_FIXED}
    exec(compile(source, f"<recorder of {function.__qualname__}>", "exec", dont_inherit=True), space)
    result = rk.without_values(root.result)
    blocks = [block for version in written.versions.values() for block in version.of.blocks.values()]
    written.close()
    return _GeneratedRecorder(
        constants,
        used,
        dict(written.operands),
        [written.sites[number] for number in sites],
        written.recipes,
        written.waits if root.waits else [],
        sorted(written.attributes),
        space["_make"],
        result,
        source,
        blocks,
        sum(len(block.met) for block in blocks),
    )


def _check_result(result: rk.RecorderKind) -> None:
    """Raise Unsupported for a result that each example would not have for itself."""
    if result is rk.NOTHING:
        raise Unsupported("a function whose result is unknown")
    for kind in rk.within(result):
        if isinstance(kind, rk.ClosureKind | rk.DeferredRows) or (isinstance(kind, rk.Const) and not kind.is_scalar):
            raise Unsupported("a result that the examples share")


def _source(written: Written, root: Version, columns: Sequence[str], used: Sequence[int]) -> tuple[str, list[int]]:
    """The source of a function that makes the recorder for a segment, and the numbers of the sites that it reads.

    Args:
        root: the version of the map's function; columns: the names of its arguments that differ by example.
        used: the numbers of the constants that it reads.
    """
    body = [f"    {line}" for version in written.versions.values() for line in version.lines]
    sites = sorted({int(number) for number in re.findall(r"\b_ab_t(\d+)\b", "\n".join(body))})
    names = [
        *[f"_ab_c{number}" for number in used],
        *[f"_ab_d{number}" for number in written.operands],
        *[f"_ab_t{number}" for number in sites],
        *[f"_ab_apply{number}" for number in range(len(written.recipes))],
        *[f"_ab_unbox{number}" for number in range(len(written.recipes))],
        *_OF_SEGMENT,
        "_ab_most",
    ]
    called = f"{root.name}({', '.join(root.given)})"
    functions = [version.name for version in written.versions.values()]
    lines = [
        f"def _make({', '.join(names)}):",
        *body,
        f"    def record({', '.join(columns)}):",
        f"        return {called}" if root.waits else f"        return _ab_finish({called})",
        "    def forget():",
        f"        nonlocal {', '.join(functions)}",
        f"        {' = '.join(functions)} = None",
        "    def room(most):",
        "        nonlocal _ab_most",
        "        _ab_most = most",
        "    return record, forget, room",
    ]
    return "\n".join(lines), sites


_OF_SEGMENT = {
    "_ab_suited": "_suited", "_ab_check": "_check", "_ab_array": "_array", "_ab_constant": "_constant",
    "_ab_own": "_own", "_ab_read": "_read", "_ab_made": "_make", "_ab_written": "_written", "_ab_box": "_box",
    "_ab_ids": "_ids", "_ab_any_length": "_any_length", "_ab_finish": "finished",
    "_ab_there": "_trace.segment.there", "_ab_sigs": "_trace.segment.sigs",
    "_ab_add_sigs": "_trace.segment.sigs.extend", "_ab_add_ref": "_trace.segment.refs.append",
    "_ab_add_refs": "_trace.segment.refs.extend", "_ab_sources": "_trace.segment.sources",
    "_ab_add_source": "_trace.segment.sources.append", "_ab_add_sources": "_trace.segment.sources.extend",
}  # fmt: skip
"""The names that a recorder reads for the segment being recorded, and which attributes of `_BoundRecorder` they are."""


def _classes_in(values: Sequence[Any]) -> list[type]:
    """The user's classes of objects in some examples, among the first few thousand objects."""
    found: dict[type, None] = {}
    seen: set[int] = set()
    stack = list(values)
    while stack and len(seen) < 4096:  # objects in examples whose classes are collected
        value = stack.pop()
        kind = type(value)
        if kind in SCALARS or id(value) in seen:
            continue
        seen.add(id(value))
        if kind in (list, tuple):
            stack += value
        elif kind is dict:
            stack += value.values()
        elif kind.__module__ != "builtins" and kind.__module__.partition(".")[0] not in ("numpy", "autobatch"):
            found[kind] = None
            stack += getattr(value, "__dict__", {}).values()
            for each in kind.__mro__:
                slots = vars(each).get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    if is_stored(kind, name) and hasattr(value, name):
                        stack.append(getattr(value, name))
            if isinstance(value, tuple):
                stack += tuple.__iter__(value)
    return list(found)


class _BoundRecorder:
    """A recorder bound to one map.

    Attributes:
        largest: an upper estimate of the memory budget that one node takes.
        seen: the example's own arrays that Python code has read since `note_seen`.

    Raises:
        NeedsLoop: something that it relies on has changed.
    """

    def __init__(self, form: _GeneratedRecorder, trace: Trace, roots: dict[Any, Any]) -> None:
        self._form = form
        self._trace = trace
        self._roots = roots
        self._values = form.constants.replay(roots)
        self._suited = set(_BUILTIN)
        self._entered: dict[int, int] = {}
        self.seen: list[np.ndarray] = []  # arrays of the example being recorded
        self._forget: Callable[[], Any] = bool
        self._set_room: Callable[[int], Any] = bool
        self._made: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
        self._tails: list[Any] = []
        self.largest = 0
        for site, by_key in form.sites:
            if by_key:
                self._tails.append(_SignatureTails(site, trace, self._values))
                self.largest = max(self.largest, 8 * sum(aval.nbytes for aval in site.outs))  # an estimate
                continue
            sig = site.signature(trace, self._values, ())
            self._tails.append(sig.tail)
            self.largest = max(self.largest, sig.nbytes)

    def begin(self) -> Callable[..., Any]:
        """Make the function for the segment that is being recorded."""
        form, trace, values = self._form, self._trace, self._values
        segment = trace.segment
        operands = []
        for number, expected in form.operands.items():
            value = values[number]
            if id(value) in trace.reached:
                value = trace.shared(value)
            if type(value) is LazyArray:
                aval, ref = value.aval.key, segment.external(value.source)
            else:
                aval, ref = trace.constant(value)
            if aval is not expected:
                raise NeedsLoop
            operands.append(ref)
        self.end()
        self._entered = {}
        self.seen = []
        recorded: Callable[..., Any]
        recorded, self._forget, self._set_room = form.make(
            *[values[number] for number in form.used],
            *operands,
            *self._tails,
            *[each.function for each in form.recipes],
            *[functools.partial(_unboxed, trace, each.kind) for each in form.recipes],
            **{name: operator.attrgetter(path)(self) for name, path in _OF_SEGMENT.items()},
            _ab_most=self._most(),
        )
        return recorded

    def make_room(self) -> int:
        """Let the function record as much as still fits into the memory budget; returns the number of nodes."""
        self._entered = {}
        most = self._most()
        self._set_room(most)
        return most - len(self._trace.segment.sigs)

    def note_seen(self) -> None:
        """Register the arrays that the current example has read, which then goes on."""
        for each in self.seen:
            self._trace.inputs.add(each, self._trace.example)
        self.seen.clear()

    def _most(self) -> int:
        return len(self._trace.segment.sigs) + max(self._trace._room, 0) // max(self.largest, 1)

    @property
    def waits(self) -> Sequence[Wait]:
        """The places where it waits for values; if there are any, the function is a generator."""
        return self._form.waits

    def is_unchanged(self) -> bool:
        """True if everything it relies on is still the same object (equal for scalars)."""
        try:
            values = self._form.constants.replay(self._roots)
        except NeedsLoop:
            return False
        return all(map(_is_same_read, values, self._values))

    def end(self) -> None:
        """Drop the function, which is part of a reference cycle."""
        self._forget()

    def _check(self, value: Any) -> None:
        """Check that using an object of this class, as the recorder does, runs no user code."""
        kind = type(value)
        if kind is np.ndarray:
            self._note(value)
            return
        if not _is_suited(kind, self._form.attributes):
            raise NeedsLoop
        self._suited.add(kind)

    def _read(self, value: Any) -> None:
        """Check that what NumPy computes with is a number or an array, and note the array."""
        if type(value) is np.ndarray:
            self._note(value)
        elif type(value) not in _NUMBERS:
            raise NeedsLoop

    def _note(self, value: np.ndarray) -> None:
        """Note that Python reads an array of the example, where it would see writes by other examples."""
        if is_recorded(value) and not self._is_made(value):
            self.seen.append(value)

    def _make(self, value: np.ndarray, *args: Any) -> None:
        """Note an array that the function has made of the arguments, unless it is one of them or a view."""
        if value.base is None and all(value is not each for each in args):
            self._made[id(value)] = value

    def _is_made(self, value: np.ndarray) -> bool:
        """True if the function itself has made an array, or that of which it is a view: it may write into it."""
        if not self._made:
            return False
        while type(value.base) is np.ndarray:
            value = value.base
        return self._made.get(id(value)) is value

    def _written(self, value: Any) -> None:
        """Check that an array may be written into, and no example would see it that ran again as Python."""
        if type(value) is not np.ndarray or not self._is_made(value):
            raise NeedsLoop

    def _array(self, value: Any, aval: Aval) -> int:
        """The reference of an example's own array, which examples that run as Python see wrapped."""
        return self._entered_array(value, lambda found: found is aval)

    def _entered_array(self, value: Any, fits: Callable[[Aval], bool]) -> int:
        if type(value) is not np.ndarray or not is_recorded(value):
            raise NeedsLoop
        if self._is_made(value):
            value = value.copy()  # before later writes
        if not fits(known_aval(value)):
            raise NeedsLoop
        ref = self._entered.get(id(value))
        if ref is None or self._trace.segment.sources[~ref] is not value:
            ref = self._entered[id(value)] = self._trace.segment.external(value)
        self.seen.append(value)
        return ref

    def _ids(self, value: Any, height: int, shortest: int = SHORTEST) -> int:
        """The reference of an array of ids, each of which names a row of a table of this height."""
        if type(value) is not np.ndarray or value.ndim != 1 or value.dtype.kind not in "iu":
            raise NeedsLoop
        if not shortest <= len(value) <= LONGEST:
            raise NeedsLoop(NOT_RECORDED)
        ids = value.astype(np.int64)  # a copy, which later writes do not change
        if _largest(ids.view(np.uint64)) >= height:  # viewed as unsigned, a negative id is large
            raise NeedsLoop
        return self._trace.segment.external(ids)

    def _any_length(self, value: Any, any_length: Aval) -> int:
        """The reference of an example's own array of any length; like `_array`."""

        def fits(aval: Aval) -> bool:
            if aval.bits != any_length.bits or aval.ndim != any_length.ndim:
                return False
            sizes = list(zip(aval.shape, any_length.shape, strict=True))
            if any(type(own) is int and size != own for size, own in sizes):
                return False
            if any(type(own) is not int and not SHORTEST <= size <= LONGEST for size, own in sizes):
                raise NeedsLoop(NOT_RECORDED)
            return True

        return self._entered_array(value, fits)

    def _own(self, value: Any) -> Any:
        """A value of an example as an operand of an op outside blocks: its arrays are wrapped, as in examples."""
        if type(value) is np.ndarray and is_recorded(value):
            if self._is_made(value):
                return self._trace.computed(value.copy())
            self.seen.append(value)
            return self._trace.computed(value)
        return value

    def _constant(self, value: Any, aval: Aval) -> int:
        """The reference of an array that an example holds in a place where arrays are not wrapped."""
        if type(value) is not np.ndarray or not is_recorded(value):
            raise NeedsLoop
        self._note(value)
        found, ref = self._trace.constant(value.copy() if self._is_made(value) else value)
        if found is not aval:
            raise NeedsLoop
        return ref

    def _box(self, ref: int, aval: Aval) -> LazyArray:
        return LazyArray(self._trace, aval, self._trace.segment, ref)

    def finished(self, result: Any) -> Any:
        """Convert the function's result to Python values.

        Raises:
            NeedsLoop: it cannot be converted.
        """
        self._form.fits += 1
        self.note_seen()
        return _finished(self._form.result, result, self._trace, {})


def _finished(kind: rk.RecorderKind, value: Any, trace: Trace, made: dict[Any, Any]) -> Any:
    """A result, converted from its representation to Python values."""
    if isinstance(kind, rk.NodeOrNumber):
        if type(value) is tuple:
            return _finished(rk.PLAIN, value[0], trace, made)
        kind = kind.node
    if isinstance(kind, rk.RecordedNode | rk.RaggedNode):
        if value < 0:  # an array that is not the result of a node
            raise NeedsLoop
        if value not in made:
            made[value] = LazyArray(trace, kind.aval, trace.segment, value)
        return made[value]
    if isinstance(kind, rk.Parts):
        key: Any = ("object", id(value), kind.make)
        if kind.make is None or key not in made:
            parts = [_finished(part, each, trace, made) for part, each in zip(kind.parts, value, strict=True)]
            if kind.make is None:
                return tuple(parts)
            made[key] = kind.make(**dict(zip(kind.names, parts, strict=True)))
        return made[key]
    if isinstance(kind, rk.ListKind):
        key = ("list", id(value))
        if key not in made:
            if type(kind) is rk.DictKind:
                made[key] = {name: _finished(kind.item, each, trace, made) for name, each in value.items()}
            elif kind.item is rk.PLAIN and _RESULTS.issuperset(map(type, value)):
                made[key] = value
            else:
                made[key] = [_finished(kind.item, each, trace, made) for each in value]
        return made[key]
    if isinstance(kind, rk.Const):
        return kind.value
    if type(value) not in _RESULTS:
        raise NeedsLoop
    return value


def _is_same_read(a: Any, b: Any) -> bool:
    """True if two reads gave the same value."""
    if type(a) is LazyArray and type(b) is LazyArray:
        return a.source is b.source
    return a is b or type(a) in SCALARS


class _SignatureTails(dict[Any, Any]):
    """{key of a call: what it appends to the signatures}, filled on demand; the key holds what varies by call."""

    def __init__(self, site: CallSite, trace: Trace, values: Sequence[Any]) -> None:
        super().__init__()
        self._site, self._trace, self._values = site, trace, values

    def __missing__(self, key: tuple[Any, ...]) -> Any:
        sig = self._site.signature(self._trace, self._values, key)
        self[key] = sig.tail
        return sig.tail


def _unboxed(trace: Trace, kind: rk.RecorderKind, found: Any) -> Any:
    """The node numbers in the result of an operation."""
    if isinstance(kind, rk.RecordedNode):
        is_node = type(found) is LazyArray and found.aval is kind.aval and found.segment is trace.segment
        if not is_node or found.ref < 0:
            raise NeedsLoop
        return found.ref
    assert isinstance(kind, rk.Parts)
    if type(found) is not tuple or len(found) != len(kind.parts):
        raise NeedsLoop
    return tuple([_unboxed(trace, *each) for each in zip(kind.parts, found, strict=True)])


def _index(value: Any) -> None:
    if type(value) is not np.int64:
        raise NeedsLoop


def _shown(value: Any) -> str:
    if type(value) not in SCALARS:
        raise NeedsLoop
    return f"{value}"


_FIXED = {
    "_ab_type": type, "_ab_len": len, "_ab_int": int, "_ab_tuple": tuple, "_ab_misfit": NeedsLoop, "_ab_full": NO_ROOM,
    "_ab_slice": slice, "_ab_ndarray": np.ndarray, "_ab_index": _index, "_ab_keys": _KEYS,
    "_ab_scalars": frozenset(SCALARS), "_ab_containers": _CONTAINERS,
    "_ab_arrays": _OF_NUMPY | {np.ndarray}, "_ab_numbers": _NUMBERS, "_ab_shown": _shown,
    "_ab_errors": functools.partial(np.errstate, divide="raise", over="raise", invalid="raise"),
}  # fmt: skip
"""The names that every recorder reads."""


def _is_suited(kind: type, attributes: Sequence[str]) -> bool:
    """True if objects of a class are plain data, so that the recorder's reads run no user code."""
    for each in kind.__mro__:
        if each in _BUILTIN or each is object:
            continue
        if type(each).__name__ == "EnumType":
            return True
        if not each.__flags__ & (1 << 9):  # Py_TPFLAGS_HEAPTYPE
            return False
        for name, value in vars(each).items():
            if not (name.startswith("__") and name.endswith("__")) or name in _HARMLESS or value is None:
                continue
            code = getattr(value, "__code__", None)
            if not (name in COMPARISON_METHODS and code is not None and code.co_filename == "<string>"):
                return False
    return all(is_stored(kind, name) for name in attributes)
