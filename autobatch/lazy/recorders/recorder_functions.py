"""The functions of a generated recorder: one version of each user function for each combination of argument kinds.

Result kinds are found by a fixed-point iteration over all versions: the result of a recursion is first known from the
calls that end it.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import WEAK, Aval
from autobatch.errors import NeedsLoop, Unsupported
from autobatch.lazy.array import LazyArray
from autobatch.lazy.block_forms import block_program
from autobatch.lazy.block_nodes import Block, Row
from autobatch.lazy.callees import Marks
from autobatch.lazy.grouping.signatures import Signature
from autobatch.lazy.recorders import recorded_kinds as rk
from autobatch.lazy.recorders.guards import Constants
from autobatch.lazy.trace import Trace
from autobatch.program import normal_form as nf
from autobatch.program.liveness import binds, captured

_ROUNDS = 12  # of writing all versions: the kinds of a recursion may change without end


class CallSite:
    """A call that is recorded at one place of a recorder.

    Attributes:
        specs: how what varies by call is given; outs: the `Aval` of each output.
    """

    __slots__ = ("outs", "specs")

    def __init__(self, specs: tuple[tuple[Any, ...], ...] = (), outs: tuple[Aval, ...] = ()) -> None:
        self.specs = specs
        self.outs = outs

    def signature(self, trace: Trace, values: Sequence[Any], key: Sequence[Any]) -> Signature:
        """The signature of a call, which must match the first call.

        Raises:
            NeedsLoop: it does not match.
        """
        raise NeedsLoop


class BlockEntry(CallSite):
    """The call of a block at one place of a recorder.

    Args:
        specs: how each slot of the block is given: ("const", number of a constant), ("built", a kind), ("row", number
            of the table), ("number", a type); or by the next part of the call's key: ("static", a type), ("item",
            number of the container).
        kinds: the block's own names for the kinds of its slots.
        outs: the `Aval` of each output.
    """

    __slots__ = ("block", "kinds")

    def __init__(self, block: Block, specs: Sequence[tuple[Any, ...]]) -> None:
        super().__init__(tuple(specs))
        self.block = block
        self.kinds: tuple[str, ...] = ()

    def called(self, trace: Any, values: Sequence[Any], key: Sequence[Any]) -> tuple[Signature, tuple[str, ...]] | None:
        """The signature of a call and the kinds of the slots; None if the block cannot run with these inputs.

        Args:
            values: the constants' values; key: what varies by call: numbers that decide shapes, lengths of lists.
        """
        parts = iter(key)
        given: list[Any] = []
        for how, *what in self.specs:
            if how == "const":
                given.append(values[what[0]])
            elif how == "built":
                given.append(rk.built(what[0], trace, values, parts))
            elif how == "row":
                given.append(Row(values[what[0]], 0))
            elif how == "number":
                given.append(what[0](1))
            elif how == "static":
                part = next(parts)
                given.append(part[0] if what[0] is float else part)
            else:
                given.append(values[what[0]][next(parts)])
        call = self.block._call(trace, given)
        return None if call is None else (trace.under_error_state(call[0]), tuple(call[2]))

    def signature(self, trace: Trace, values: Sequence[Any], key: Sequence[Any]) -> Signature:
        try:
            found = self.called(trace, values, key)
        except (LookupError, TypeError) as error:
            raise NeedsLoop from error
        if found is None or found[1] != self.kinds or found[0].shared:
            raise NeedsLoop
        assert found[0].block is not None
        outs = found[0].block.outs
        if len(outs) != len(self.outs) or any(a is not b for a, b in zip(outs, self.outs, strict=True)):
            raise NeedsLoop
        return check_lengths(found[0])


def check_lengths(sig: Signature) -> Signature:
    """Check that calls of any length can run together, if the inputs have any length; returns the signature.

    Raises:
        NeedsLoop: they cannot.
    """
    try:
        if sig.any_length is not None:
            sig.any_length.check()
    except Exception as error:  # whatever the error is, such examples run as Python
        raise NeedsLoop from error
    return sig


class LookupEntry(CallSite):
    """The look-up of rows of a shared table: of one, of any number, or of those of a bag, which are reduced.

    Args:
        table: the number of the table's constant; found: its signature for a table, None if there is none.

    Raises:
        NeedsLoop: there is no such signature.
    """

    __slots__ = ("_found", "_table")

    def __init__(
        self, table: int, found: Callable[[Trace, LazyArray], Signature | None], trace: Trace, values: Sequence[Any]
    ) -> None:
        super().__init__()
        self._table = table
        self._found = found
        self.outs = (check_lengths(self.signature(trace, values, ())).out,)

    def signature(self, trace: Trace, values: Sequence[Any], key: Sequence[Any]) -> Signature:
        with trial(trace):
            found = self._found(trace, values[self._table])
        if found is None or (self.outs and found.out is not self.outs[0]):
            raise NeedsLoop
        return trace.under_error_state(found)


class OpEntry(CallSite):
    """The call of an operation outside blocks that becomes one node.

    Args:
        function: the operation, as a function of its operands; kinds: the operands' kinds: recorded arrays and constant
            scalars.

    Attributes:
        operands: the node's operands: positions of arrays among the operation's operands, or (number,).
    """

    __slots__ = ("_function", "operands")

    def __init__(self, function: Callable[..., Any], kinds: Sequence[rk.RecorderKind], trace: Any, values: Any) -> None:
        super().__init__(tuple([("built", kind) for kind in kinds]))
        self._function = function
        sig, self.operands = self._called(trace, values)
        self.outs = (sig.out,)

    def _called(self, trace: Trace, values: Sequence[Any]) -> tuple[Signature, list[Any]]:
        """The signature of a call and the operands of its node.

        Raises:
            NeedsLoop: it records other than one node, or a node with other operands.
        """
        segment = trace.segment
        with trial(trace):
            nodes, refs = len(segment.sigs), len(segment.refs)
            given = [rk.built(kind, trace, values, iter(())) for _, kind in self.specs]
            for place, each in enumerate(given):
                if type(each) is LazyArray:  # made for this call, as constants are scalars
                    each.ref = place
            out = self._function(*given)
            is_new = type(out) is LazyArray and out.segment is segment
            if not is_new or (out.ref, len(segment.sigs) - 1) != (nodes, nodes):
                raise NeedsLoop
            operands = [ref if ref >= 0 else (segment.sources[~ref],) for ref in segment.refs[refs:]]
            if any(type(each) is tuple and type(each[0]) not in _NUMBERS for each in operands):
                raise NeedsLoop
            return trace.under_error_state(trace.signature_of(out)), operands

    def signature(self, trace: Trace, values: Sequence[Any], key: Sequence[Any]) -> Signature:
        sig, operands = self._called(trace, values)
        if sig.out is not self.outs[0] or operands != self.operands:
            raise NeedsLoop
        return sig


_NUMBERS = frozenset((*WEAK, np.int64))


@contextlib.contextmanager
def trial(trace: Trace) -> Iterator[None]:
    """Context whose calls leave nothing recorded, and raise where they would wait for a value."""
    segment = trace.segment
    nodes, refs, wanted = len(segment.sigs), len(segment.refs), len(trace.wanted)
    park, trace.park = trace.park, _refuse_to_wait
    try:
        yield
    finally:
        trace.park, trace.failed = park, None
        del segment.sigs[nodes:], segment.refs[refs:], trace.wanted[wanted:]


def _refuse_to_wait(urgent: bool) -> None:
    """Called in a recorder where a value would have to be waited for.

    Raises:
        NeedsLoop: always.
    """
    raise NeedsLoop


class Wait(NamedTuple):
    """A place where a recorder needs a value.

    Attributes:
        where: the user's (file, line); exact: True if the number itself is used, not only a decision based on it, so
            that it may carry no gradient.
    """

    where: tuple[str, int]
    exact: bool


class Recipe(NamedTuple):
    """A call of an operation outside blocks, made at run time with recorded arrays as Python sees them.

    Attributes:
        function: the operation; kind: the kind of its result.
    """

    function: Callable[..., Any]
    kind: rk.RecorderKind


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """The origin of a user function.

    Attributes:
        form: its program with calls of its blocks; blocks, marks: these, and what is known of its calls; scope: its
            globals.
        function: the function, for its closure variables; None for a closure.
        origin: the number of the function's constant; None for the map's function and for a closure.
        owner: the version whose code defines the function, if any.
    """

    form: nf.Closure
    blocks: dict[str, Block]
    marks: Marks
    scope: dict[str, Any]
    function: FunctionType | None = None
    origin: int | None = None
    owner: "Version | None" = None


def defined(function: FunctionType, origin: int | None = None) -> Definition:
    """The origin of a function that is no closure.

    Raises:
        Unsupported: it is no plain Python function of the user's with source, or sets a variable that is not its own.
    """
    form, blocks, marks = block_program(function)
    if form.shared or form.outer:
        raise Unsupported("an assignment to a global or nonlocal name")
    return Definition(form, blocks, marks, function.__globals__, function, origin)


class Version:
    """One user function for one combination of argument kinds.

    Attributes:
        name: its name in the recorder; env: the kinds of its arguments and captured variables, by name; given: those
            that are passed at run time.
        local: its local names; captured: those that closures read; filename: the file of the user's code.
        result: the kind of its result, as far as known; lines: its source.
        seen: what is known of its arguments.
        waits: it waits for a value, or calls a function that does, and so is a generator.
        lists: {place in the code: kind of the lists made there}; loops: {comprehension: its loop}.
    """

    def __init__(self, name: str, of: Definition, env: dict[str, rk.RecorderKind]) -> None:
        self.name = name
        self.of = of
        self.env = env
        self.waits = False
        self.given = [each for each, kind in env.items() if not isinstance(kind, rk.Const | rk.ClosureKind)]
        self.local = frozenset(of.form.parameters.names) | binds(of.form.body)
        self.captured = captured(of.form) & self.local
        self.filename: str = of.owner.filename if of.owner else of.function.__code__.co_filename if of.function else ""
        self._chosen = {node.choice for node in nf.walk(of.form.body) if isinstance(node, nf.Branch)}
        self.result: rk.RecorderKind = rk.NOTHING
        self.lines: list[str] = []
        self.seen: dict[str, rk.Seen] = {}
        self.lists: dict[Any, Any] = {}
        self.loops: dict[int, nf.Loop] = {}

    def is_temporary(self, name: str) -> bool:
        """True for a name that lowering or blocks have made for one value: it needs no variable."""
        return name.startswith(nf.TEMPORARY) and name[len(nf.TEMPORARY) :].isdigit() and name not in self._chosen


class Written:
    """A recorder under construction.

    Args:
        trace: the trace of the map for which it is written.
        constants: what it relies on; classes: the known classes of objects in examples.

    Attributes:
        attributes: names of the attributes that it reads from examples' objects.
        is_outdated: rows whose number was that of one array's may be of several; all kinds have to be found anew.
        writes: it writes into arrays that it makes, so that what is read from an array is read where it is written.
        sites, recipes, waits: calls of blocks and of other operations, and places where values are waited for.
        lengths: {(array of any length, dimension): number}, the sources of lengths.
        used: the numbers of constants named in its source; operands: {number: `Aval`} of constants that are operands
            themselves.
    """

    def __init__(self, trace: Trace, constants: Constants, classes: Sequence[type]) -> None:
        self.trace = trace
        self.constants = constants
        self.classes = classes
        self.attributes: set[str] = set()
        self.changed = self.is_outdated = False
        self.writes = False
        self.lengths: dict[Any, int] = {}
        self.versions: dict[Any, Version] = {}
        self.sites: list[tuple[CallSite, bool]] = []
        self.recipes: list[Recipe] = []
        self.waits: list[Wait] = []
        self.used: set[int] = set()
        self.operands: dict[int, Aval] = {}
        self._alive: list[Any] = []

    def version(self, of: Definition, env: dict[str, rk.RecorderKind]) -> Version:
        """The version of a function for these argument kinds, added if it is new.

        Raises:
            Unsupported: there are too many versions.
        """
        same = [each for each in self.versions.values() if each.of.form is of.form and each.of.owner is of.owner]
        key = id(of.form), id(of.owner), tuple(env.items())
        # `same` differ only in numbers.
        if key not in self.versions and len(same) >= 4:  # such as a number that counts the depth
            env = {
                name: rk.PLAIN if isinstance(kind, rk.Const) and type(kind.value) in (int, float) else kind
                for name, kind in env.items()
            }
            key = id(of.form), id(of.owner), tuple(env.items())
        found = self.versions.get(key)
        if found is None:
            if len(self.versions) >= 24:
                raise Unsupported("a function that is called with too many kinds of arguments")
            self._alive.append(of.form)
            shown = of.form.name if of.form.name.isidentifier() else "lambda"
            found = self.versions[key] = Version(f"_ab_f{len(self.versions)}_{shown}", of, env)
            self.changed = True
        return found

    def given(self, of: Definition, args: Sequence[rk.Term], named: dict[str, rk.Term]) -> dict[str, rk.Term]:
        """The value given to each parameter in a call.

        Raises:
            Unsupported: the arguments do not fit, or a default is not known.
        """
        parameters = of.form.parameters
        positional = [*parameters.positional_only, *parameters.positional]
        env = dict(zip(positional, args, strict=False))
        more = list(args[len(positional) :])
        if parameters.rest:
            env[parameters.rest] = rk.Term(rk.Parts(tuple([each.kind for each in more])), "", more)
        elif more:
            raise Unsupported("a call with arguments that do not match the parameters")
        every = [*positional, *parameters.keyword_only, *([parameters.rest] if parameters.rest else [])]
        twice = (set(env) | set(parameters.positional_only)) & set(named)
        if twice or set(named) - set(every) or parameters.named_rest:
            raise Unsupported("a call with arguments that do not match the parameters")
        env.update(named)
        named_defaults = getattr(of.function, "__kwdefaults__", None) or {}
        for name in every:
            if name in env:
                continue
            if of.function is None:
                raise Unsupported("a default argument of a nested function")
            at = positional.index(name) - len(positional) if name in positional else name
            has_default = name in named_defaults if isinstance(at, str) else len(parameters.defaults) + at >= 0
            if not has_default:
                raise Unsupported("a call with too few arguments")
            env[name] = rk.Term(self.const(self.constants.default(of.origin, at)), "")
        return {name: env[name] for name in every}

    def settle(self, write: Callable[["Written", Version], None]) -> None:
        """Write all versions repeatedly until nothing changes.

        Raises:
            Unsupported: something cannot be written, or changes never end.
        """
        for _ in range(_ROUNDS):
            if self.is_outdated:
                for each in self.versions.values():
                    each.result = rk.NOTHING
                    for made in each.lists.values():
                        made.site.item = rk.NOTHING
            self.changed = self.is_outdated = False
            self.sites, self.recipes, self.waits = [], [], []
            self.used, self.operands, self.lengths = set(), {}, {}
            done = 0
            try:
                while done < len(self.versions):
                    write(self, list(self.versions.values())[done])
                    done += 1
            except Unsupported:
                if not self.is_outdated:
                    raise
            if not (self.changed or self.is_outdated):
                return
        raise Unsupported("a recursion whose values keep changing type")

    @property
    def is_waiting(self) -> bool:
        """True if some version is known to wait for values."""
        return any(version.waits for version in self.versions.values())

    def wait(self, version: Version, line: int, exact: bool) -> int:
        """Register a place where a version waits for a value, and return its number."""
        if not version.waits:
            version.waits = self.changed = True
        self.waits.append(Wait((version.filename, line), exact))
        return len(self.waits) - 1

    def add_result_kind(self, version: Version, kind: rk.RecorderKind) -> None:
        """Note the kind of a value that a version returns."""
        found = rk.join(version.result, kind)
        if found != version.result:
            version.result = found
            self.changed = True

    def const(self, number: int) -> rk.Const:
        return rk.Const(number, self.constants.values[number])

    def literal(self, value: Any) -> rk.Const:
        return self.const(self.constants.literal(value))

    def text(self, value: rk.Term) -> str:
        """The source of a value."""
        if value.parts is not None:
            return f"({', '.join(map(self.text, value.parts))},)" if value.parts else "()"
        kind = value.kind
        if isinstance(kind, rk.Const):
            if type(kind.value) in (int, str, bool, type(None)):
                shown = repr(kind.value)
                return f"({shown})" if shown.startswith("-") else shown  # `-2 ** n` is -(2 ** n)
            if kind.is_scalar:
                return self.named(kind.number)
            return "None"  # a part that is known needs no value at run time
        return "None" if isinstance(kind, rk.ClosureKind) else value.text

    def named(self, number: int) -> str:
        """The name of a constant in the source."""
        self.used.add(number)
        return f"_ab_c{number}"

    def close(self) -> None:
        """Drop all references to the map for which it was written."""
        self.constants.close()
        for site, _ in self.sites:
            site.specs = tuple([(how, *map(_stripped, what)) for how, *what in site.specs])


def _stripped(what: Any) -> Any:
    return rk.without_values(what) if isinstance(what, rk.RecorderKind) else what
