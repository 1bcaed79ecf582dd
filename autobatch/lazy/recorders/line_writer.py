"""The base of all recorder writers: source lines, reads of constants, kinds where branches meet, and operations."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.block_inputs import FAULTS
from autobatch.core.abstract_eval import Aval
from autobatch.errors import NeedsLoop, Unreachable, Unsupported
from autobatch.lazy.array import LazyArray
from autobatch.lazy.deferred_lookups import rows_signature
from autobatch.lazy.recorders import recorded_kinds as rk
from autobatch.lazy.recorders.recorder_functions import CallSite, LookupEntry, OpEntry, Recipe, Version, Written, trial
from autobatch.program import normal_form as nf
from autobatch.program.python_text import text_of

_NUMBERS = "?bhilqBHILQefd"  # dtypes whose values `tolist` preserves exactly


@dataclasses.dataclass(slots=True)
class Env:
    """What is known at one place: the bound names, and the names whose values can be read without running code."""

    names: dict[str, rk.Term]
    checked: set[str]

    def copy(self) -> "Env":
        return Env(dict(self.names), set(self.checked))


Arm = tuple[list[str], rk.Term | None]
"""The lines of one of several ways to a value, and the value; None if the end is not reached."""


def _called(function: Callable[..., Any], count: int, names: tuple[str, ...], *args: Any) -> Any:
    """Call a function with the first `count` arguments by position, the others by name."""
    return function(*args[:count], **dict(zip(names, args[count:], strict=True)))


class LineWriter:
    """Writes one version; an expression's side effects go into lines before it.

    Attributes:
        lines: its source so far; depth: the indentation of the next line.
        env: what is known at the next line.
    """

    def __init__(self, written: Written, version: Version) -> None:
        self.written = written
        self.version = version
        self.lines: list[str] = []
        self.depth = 0
        self.counter = 0
        self.line = 0  # the line of the user's statement
        self.env: Env = Env({}, set())

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self) -> str:
        self.counter += 1
        return f"_ab_k{self.counter}"

    def let(self, value: rk.Term) -> rk.Term:
        """Bind a value to a name, so that it is evaluated here; also if its kind is known, as reading it may raise."""
        if value.parts is None and value.text.isidentifier():
            return value
        if isinstance(value.kind, rk.Const | rk.ClosureKind):
            if value.text:
                self.emit(value.text)
            return rk.Term(value.kind, "", seen=value.seen)
        name = self.fresh()
        self.emit(f"{name} = {self.text(value)}")
        return rk.Term(value.kind, name, simple=value.simple, seen=value.seen)

    @contextlib.contextmanager
    def nested_lines(self) -> Iterator[list[str]]:
        """Context that collects the lines written in it, indented once more, to be placed elsewhere."""
        outer, self.lines = self.lines, []
        self.depth += 1
        try:
            yield self.lines
        finally:
            self.lines = outer
            self.depth -= 1

    def text(self, value: rk.Term) -> str:
        return self.written.text(value)

    def literal(self, value: Any) -> rk.Term:
        return rk.Term(self.written.literal(value), "")

    def read(self, make: Callable[..., int], *args: Any) -> rk.Term:
        """Read a constant.

        Raises:
            Unsupported: it does not exist, or reading it may run code.
        """
        try:
            return rk.Term(self.written.const(make(*args)), "")
        except NeedsLoop:
            shown = [each for each in args if type(each) is not dict]  # leaves out the dict of all names of a module
            raise Unsupported(f"a read of a shared value: {shown}") from None

    def check(self, value: rk.Term) -> rk.Term:
        """Write a check that using an example's object runs no user code."""
        if value.kind is not rk.PLAIN or value.simple:
            return value
        value = self.let(value)
        if value.text not in self.env.checked:
            self.emit(f"if _ab_type({value.text}) not in _ab_suited: _ab_check({value.text})")
            self.env.checked.add(value.text)
        return value

    def value(self, node: nf.Value) -> rk.Term:
        method = getattr(self, f"of_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unsupported(f"`{text_of(node)}`", node)
        out: rk.Term = method(node)
        if out.kind is rk.NOTHING:
            raise Unreachable
        if self.written.writes and out.kind is rk.PLAIN:
            return self.let(out)  # before an array that it reads is written into
        return out

    def new(self, value: rk.Term, *args: str) -> rk.Term:
        """A value that a call has made of arguments with this source, as an array that may be written into."""
        if self.written.writes:
            value = self.let(value)
            self.emit(f"if _ab_type({value.text}) is _ab_ndarray: _ab_made({', '.join((value.text, *args))})")
        return value

    def arm(self, write: Callable[[], rk.Term]) -> Arm:
        """Write one of several ways to a value."""
        before = self.env
        self.env = before.copy()
        made = None
        with self.nested_lines() as lines:
            try:
                made = self.as_node(write())
                if made.kind is rk.NOTHING:
                    raise Unreachable
            except Unreachable:
                made = None
                self.emit("raise _ab_misfit")
            finally:
                self.env = before
        return lines, made

    def meet(self, arms: Sequence[tuple[str, Arm]]) -> rk.Term:
        """The value of the first arm whose condition, the source before it, holds; that of the last one may be ""."""
        kind: rk.RecorderKind = rk.NOTHING
        for _, (_, value) in arms:
            kind = kind if value is None else self.joined(kind, value.kind)
        name = self.fresh()
        for at, (condition, (lines, value)) in enumerate(arms):
            self.emit(f"{'elif' if at else 'if'} {condition}:" if condition else "else:")
            self.lines += lines
            if value is not None:
                self.emit(f"    {name} = {self.converted(value, kind)}")
        return rk.Term(kind, name)

    def joined(self, a: rk.RecorderKind, b: rk.RecorderKind) -> rk.RecorderKind:
        """The kind of a value that has one kind or the other."""
        if isinstance(a, rk.ListKind) and type(a) is type(b) and a.unite(b):
            self.written.changed = True
        return rk.join(a, b)

    def either(self, value: rk.Term, write: Callable[[rk.Term], rk.Term]) -> rk.Term:
        """Write code for both a recorded array and a number, if a value may be either."""
        kind = value.kind
        assert isinstance(kind, rk.NodeOrNumber)
        value = self.let(value)
        refused: Unsupported | None = None

        def tried(each: rk.Term) -> rk.Term:
            nonlocal refused
            try:
                made = write(each)
            except Unsupported as error:
                refused = error
                raise Unreachable from None
            if isinstance(made.kind, rk.Const) and (each.kind is not rk.PLAIN or made.kind.value is None):
                raise Unreachable  # the block cannot run with it
            return made

        number = self.arm(lambda: tried(rk.Term(rk.PLAIN, f"{value.text}[0]", simple=True)))
        if number[1] is None:  # unless it is an array of the example's own
            number = self.arm(lambda: tried(rk.Term(rk.PLAIN, f"{value.text}[0]")))
        node = self.arm(lambda: tried(rk.Term(kind.node, value.text)))
        if node[1] is None:
            raise Unreachable if refused is None else refused
        return self.meet([(f"_ab_type({value.text}) is _ab_tuple", number), ("", node)])

    def waited(self, value: rk.Term, exact: bool = True, shapes: bool = False) -> rk.Term:
        """A number whose value is needed: the example waits for it.

        Args:
            exact: as in `Wait`; shapes: an array of any shape is allowed, and becomes nested lists of numbers.

        Raises:
            Unsupported: the value is no number.
        """
        kind = value.kind
        if isinstance(kind, rk.NodeOrNumber):
            return self.either(value, lambda each: each if each.kind is rk.PLAIN else self.waited(each, exact))
        is_array = isinstance(kind, rk.RecordedNode) and kind.aval.dtype.char in _NUMBERS
        if not is_array or (kind.aval.shape and not shapes):  # type: ignore[attr-defined]
            raise Unsupported("a value of an array that is needed at once")
        number = self.written.wait(self.version, self.line, exact)
        name = self.fresh()
        self.emit(f"{name} = yield {self.text(value)}, {number}")
        return rk.Term(rk.PLAIN, name, simple=not kind.aval.shape)  # type: ignore[attr-defined]

    def element(self, array: rk.Term, index: rk.Term, exact: bool) -> rk.Term:
        """A number of a short array whose value is needed: the example waits once for all of the array."""
        number = self.written.wait(self.version, self.line, exact)
        array, index = self.let(array), self.let(index)
        if index.kind is rk.PLAIN:
            self.emit(f"if _ab_type({index.text}) is not _ab_int: _ab_index({index.text})")
        name = self.fresh()
        self.emit(f"{name} = _ab_lists.get({array.text})")
        self.emit(f"if {name} is None:")
        self.emit(f"    {name} = _ab_there({array.text})")
        self.emit(f"    if {name} is None: {name} = yield {array.text}, {number}")
        self.emit(f"    _ab_lists[{array.text}] = {name}")
        return self.let(rk.Term(rk.PLAIN, f"{name}[{self.text(index)}]"))

    @staticmethod
    def are_plain(*values: rk.Term) -> bool:
        """True if all are numbers or objects of the example, or constant scalars."""
        return all(
            each.kind is rk.PLAIN or (isinstance(each.kind, rk.Const) and each.kind.is_scalar) for each in values
        )

    @staticmethod
    def is_short(array: rk.Term, index: rk.Term) -> bool:
        """True if a number of an array is best read from a list of all of them."""
        kind, at = array.kind, index.kind
        if not isinstance(kind, rk.RecordedNode) or kind.aval.ndim != 1 or kind.aval.dtype.char not in _NUMBERS:
            return False
        is_index = at is rk.PLAIN or (isinstance(at, rk.Const) and type(at.value) is int)
        return is_index and kind.aval.shape[0] <= 1 << 10

    def converted(self, value: rk.Term, kind: rk.RecorderKind) -> str:
        """The source that converts a value to a wider kind.

        Raises:
            Unsupported: this would need a conversion of its parts at run time.
        """
        if isinstance(kind, rk.RecordedNode) and isinstance(value.kind, rk.Const):
            return self.operand(value.kind, kind.aval)
        if isinstance(kind, rk.NodeOrNumber) and (value.kind is rk.PLAIN or isinstance(value.kind, rk.Const)):
            return f"({self.text(value)},)"
        if isinstance(kind, rk.Parts) and isinstance(value.kind, rk.Parts) and kind != value.kind:
            parts = value.parts
            if parts is None:
                if not value.text.isidentifier():
                    raise Unsupported("a tuple of another kind")
                parts = [rk.Term(part, f"{value.text}[{i}]") for i, part in enumerate(value.kind.parts)]
            each = [self.converted(part, to) for part, to in zip(parts, kind.parts, strict=True)]
            return f"({', '.join(each)},)"
        return self.text(value)

    def as_node(self, value: rk.Term) -> rk.Term:
        """A constant array of numbers, as an ordinary operand."""
        kind = value.kind
        if value.parts is not None and isinstance(kind, rk.Parts):
            parts = [self.as_node(part) for part in value.parts]
            return rk.Term(rk.Parts(tuple(part.kind for part in parts), kind.make, kind.names), "", parts)
        aval = rk.aval_of_constant(kind)
        if not isinstance(kind, rk.Const) or type(kind.value) is not np.ndarray or aval is None:
            return value
        return rk.Term(rk.RecordedNode(aval), self.operand(kind, aval))

    def operand(self, kind: rk.Const, aval: Aval) -> str:
        """The source of a constant array, as an operand of an example's own."""
        self.written.operands[kind.number] = aval
        return f"_ab_d{kind.number}"

    # Operations outside blocks: called with recorded arrays as Python sees them, as in an example that runs as Python.

    def apply(self, function: Callable[..., Any], args: Sequence[rk.Term], key: Any, **named: rk.Term) -> rk.Term:
        """Call an operation with recorded arrays as Python sees them.

        Raises:
            Unsupported: the kind of the result is not known.
        """
        for at, arg in enumerate(args):
            if isinstance(arg.kind, rk.NodeOrNumber):
                return self.either(
                    arg,
                    lambda each, at=at: self.apply(function, [*args[:at], each, *args[at + 1 :]], key, **named),  # type: ignore[misc]
                )
        values = [*args, *named.values()]
        if self.are_plain(*values) and any(each.kind is rk.PLAIN for each in values):
            raise Unsupported("an operation on nothing but numbers of the example")
        if any(rk.is_empty(each.kind) for each in values):
            raise Unreachable
        called = functools.partial(_called, function, len(args), tuple(named))
        if any(isinstance(part, rk.DeferredRows) for each in values for part in rk.within(each.kind)):
            return self.of_deferred_rows(called, values)
        if any(rk.has_any_length(each.kind) for each in values):
            return self.of_any_length(called, values)
        trace, constants = self.written.trace, self.written.constants
        known = rk.constants_of(values)
        if known is not None:
            quietly = any(type(each.value) is LazyArray for each in known)
            compute = constants.compute_without_warnings if quietly else constants.compute
            with contextlib.suppress(*[Unsupported] * quietly), trial(trace):
                return self.read(compute, (key, len(args), *named), called, *[each.number for each in known])
        kinds = [each.kind for each in values]
        if all(isinstance(kind, rk.RecordedNode) or (isinstance(kind, rk.Const) and kind.is_scalar) for kind in kinds):
            with contextlib.suppress(Unsupported, TypeError, IndexError, ValueError):
                return self._node(OpEntry(called, kinds, trace, constants.values), values)
        kind = self._kind_of_result(called, kinds)
        self.written.recipes.append(Recipe(function, kind))
        texts = [self.boxed(each) for each in args]
        texts += [f"{name}={self.boxed(each)}" for name, each in named.items()]
        at = len(self.written.recipes) - 1
        return self.let(rk.Term(kind, f"_ab_unbox{at}(_ab_apply{at}({', '.join(texts)}))"))

    def _kind_of_result(self, function: Callable[..., Any], kinds: Sequence[rk.RecorderKind]) -> rk.RecorderKind:
        """The kind of an operation's result, found by a call that leaves nothing recorded.

        Raises:
            Unsupported: it fails, or its result is no array.
        """
        tables = [k.value.source for k in kinds if isinstance(k, rk.Const) and type(k.value) is LazyArray]
        if any(getattr(table, "_ab_ids", None) is not None for table in tables):
            raise Unsupported("a look-up by key, which counts the key and may insert it")
        trace, lengths = self.written.trace, itertools.repeat(2)
        try:
            for number in (1, 0, 1.0):  # possible numbers of an example; the result is checked at run time
                given = [
                    number if kind is rk.PLAIN else rk.built(kind, trace, self.written.constants.values, lengths)
                    for kind in kinds
                ]
                with contextlib.suppress(TypeError, IndexError), np.errstate(all="ignore"), trial(trace):
                    return self._kind_of(function(*given))
            raise Unsupported("an operation that raises an error")
        except Unsupported:
            raise
        except Exception as error:
            raise Unsupported(f"an operation that raises {type(error).__name__}") from error

    def of_any_length(self, function: Callable[..., Any], values: Sequence[rk.Term]) -> rk.Term:
        """An operation with some operands that are arrays of any length."""
        raise Unsupported("an operation on arrays of varying length")

    def of_deferred_rows(self, function: Callable[..., Any], values: Sequence[rk.Term]) -> rk.Term:
        """An operation on rows by any number of ids: a bag."""
        kind, constants = values[0].kind, rk.constants_of(values[1:])
        if not isinstance(kind, rk.DeferredRows) or constants is None:
            raise Unsupported("a look-up of a varying number of rows, other than in a bag")
        more, ids = [each.value for each in constants], np.zeros(2, np.int64)
        found = functools.partial(rows_signature, ids=ids, reduction=lambda rows: function(rows, *more))
        return self.looked_up(kind.table, found, values[0].text)

    def looked_up(self, table: int, found: Callable[..., Any], ids: str, check: Callable[[], Any] = bool) -> rk.Term:
        """A look-up in a shared table by ids, given the source of their reference and what writes a check before it.

        Raises:
            Unsupported: it is recorded in another way.
        """
        constants = self.written.constants.values
        try:
            site = LookupEntry(table, found, self.written.trace, constants)
        except (NeedsLoop, *FAULTS):
            raise Unsupported("rows of a table, read in a way that is not recorded") from None
        check()
        self.written.operands[table] = constants[table].aval.key
        return self.recorded(site, [f"_ab_d{table}", ids])

    def _node(self, site: OpEntry, values: Sequence[rk.Term]) -> rk.Term:
        """The call of an operation that becomes one node."""
        numbers = [each for each in site.operands if type(each) is tuple]
        refs = []
        for each in site.operands:
            if type(each) is tuple:
                self.emit(f"_ab_add_source({self.written.named(self.written.constants.literal(each[0]))})")
                numbers.pop()
                refs.append(f"{len(numbers)} - _ab_len(_ab_sources)")
            else:
                refs.append(self.text(values[each]))
        return self.recorded(site, refs)

    def entry(self, site: CallSite, key: Sequence[str] = ()) -> str:
        """The source of a call's signature entry; by a key, it is looked up here, since that may create it."""
        tail = f"_ab_t{len(self.written.sites)}"
        self.written.sites.append((site, bool(key)))
        return self.let(rk.Term(rk.PLAIN, f"{tail}[{', '.join(key)},]")).text if key else tail

    def recorded(self, site: CallSite, refs: Sequence[str], tail: str = "") -> rk.Term:
        """Record a call, given the source of its operands, and that of its signature entry if it has a key."""
        tail = tail or self.entry(site)
        self.counter += 1
        node = f"_ab_n{self.counter}"
        if len(refs) == 1 and "," not in refs[0] and not refs[0].startswith("*"):
            self.emit(f"_ab_add_ref({refs[0]})")
        elif len(refs) == 1 and refs[0][1:].isidentifier():
            self.emit(f"_ab_add_refs({refs[0][1:]})")
        else:
            self.emit(f"_ab_add_refs(({', '.join(refs)},))")
        self.emit(f"{node} = _ab_len(_ab_sigs)")
        self.emit(f"_ab_add_sigs({tail})")
        self.emit(f"if {node} > _ab_most: raise _ab_misfit(_ab_full)")
        outs = [rk.Term(rk.node_kind(aval), f"({node} + {i})" if i else node) for i, aval in enumerate(site.outs)]
        return outs[0] if len(outs) == 1 else rk.Term(rk.Parts(tuple(each.kind for each in outs)), "", outs)

    def _kind_of(self, found: Any) -> rk.RecorderKind:
        """The kind of an operation's result."""
        if type(found) is LazyArray and found.segment is self.written.trace.segment and not found.aval.shared:
            return rk.RecordedNode(found.aval)
        if type(found) is tuple and found:
            return rk.Parts(tuple(map(self._kind_of, found)))
        raise Unsupported("an operation whose result is not an array")

    def boxed(self, value: rk.Term) -> str:
        """A value as Python sees it."""
        kind = value.kind
        if isinstance(kind, rk.Const) and not kind.is_scalar:
            return self.written.named(kind.number)
        if kind is rk.PLAIN and value.simple:
            return self.text(value)
        return self.boxed_text(kind, self.text(value if value.parts is not None else self.let(value)))

    def boxed_text(self, kind: rk.RecorderKind, text: str) -> str:
        if isinstance(kind, rk.RecordedNode):
            return f"_ab_box({text}, {self.written.named(self.written.constants.literal(kind.aval))})"
        if isinstance(kind, rk.Parts):
            if kind.make is not None:
                raise Unsupported("an operation on an object")
            name = self.fresh() + "p"
            parts = [self.boxed_text(part, f"{name}[{i}]") for i, part in enumerate(kind.parts)]
            return f"[({', '.join(parts)},) for {name} in (({text}),)][0]"
        if isinstance(kind, rk.ListKind):
            name = self.fresh() + "e"
            return f"[{self.boxed_text(kind.item, name)} for {name} in {text}]"
        return f"_ab_own({text})" if kind is rk.PLAIN else text
