"""The functions of a generated recorder: one version of each user function for each combination of argument kinds.

Result kinds are found by a fixed-point iteration over all versions: the result of a recursion is first known from the
calls that end it.
"""

import ast
import dataclasses
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import WEAK, Affine, Aval, aval_of
from autobatch.errors import NeedsLoop, Unsupported
from autobatch.lazy.array import LazyArray
from autobatch.lazy.block_nodes import Block, Row
from autobatch.lazy.deferred_lookups import rows_signature
from autobatch.lazy.grouping.any_length import AnyLength
from autobatch.lazy.grouping.signatures import Signature
from autobatch.program.scopes import bound_names, captured, parameters
from autobatch.rewrite.recorders.guards import Constants
from autobatch.rewrite.recorders.recorded_kinds import (
    NOTHING,
    PLAIN,
    ClosureKind,
    Const,
    RaggedNode,
    RecordedNode,
    RecorderKind,
    Seen,
    Term,
    built,
    join,
    node_kind,
    without_values,
)

_MOST_VERSIONS = 24
_MOST_VERSIONS_OF_ONE = 4  # versions that differ only in numbers
_ROUNDS = 12


class BlockSite:
    """The call of a block at one place of a recorder.

    Args:
        specs: how each slot of the block is given: ("const", number of a constant), ("built", a kind), ("row", number
            of the table), ("number", a type); or by the next part of the call's key: ("static", a type), ("item",
            number of the container).
        kinds: the block's own names for the kinds of its slots.
        outs: the `Aval` of each output.
    """

    __slots__ = ("_checked", "block", "kinds", "outs", "specs")

    def __init__(self, block: Block, specs: Sequence[tuple[Any, ...]]) -> None:
        self.block = block
        self.specs = tuple(specs)
        self.kinds: tuple[str, ...] = ()
        self.outs: tuple[Aval, ...] = ()
        self._checked: set[tuple[Any, ...]] = set()

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
                given.append(built(what[0], trace, values, parts))
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

    def signature(self, trace: Any, values: Sequence[Any], key: Sequence[Any]) -> Signature:
        """The signature of a call, which must match the first call.

        Raises:
            NeedsLoop: it does not match.
        """
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
        self.check_lengths(found[0], key)
        return found[0]

    def check_lengths(self, sig: Signature, key: Sequence[Any]) -> None:
        """Check once that calls of any length can run together, if the inputs have any length.

        Raises:
            NeedsLoop: they cannot.
        """
        if sig.any_length is not None and tuple(key) not in self._checked:
            check_any_length(sig.any_length)
            self._checked.add(tuple(key))

    def out_kinds(self, key: Sequence[Any]) -> list[RecorderKind]:
        """The kinds of the outputs."""
        return [node_kind(aval) for aval in self.outs]


def check_any_length(any_length: AnyLength) -> None:
    """Check that calls of any length can run together.

    Raises:
        NeedsLoop: they cannot.
    """
    try:
        any_length.check()
    except Exception as error:  # whatever the error is, such examples run as Python
        raise NeedsLoop from error


class RowsSite:
    """The look-up of any number of rows of a shared table.

    Args:
        table: the number of the table's constant; source: the number of the length source that gives the number of ids.

    Attributes:
        outs: the `Aval` of the rows.
    """

    __slots__ = ("_ids", "outs", "specs", "table")

    def __init__(self, table: int, source: int, trace: Any, values: Sequence[Any]) -> None:
        self.table = table
        self.specs: tuple[tuple[Any, ...], ...] = ()
        self._ids = aval_of((Affine({f"n{source}": 1}),), np.dtype(np.int64))
        found = rows_signature(trace, values[table], self._ids_of(trace))
        if found is None or found.any_length is None:
            raise NeedsLoop
        check_any_length(found.any_length)
        self.outs = (found.out,)

    def _ids_of(self, trace: Any) -> LazyArray:
        return LazyArray(trace, self._ids, trace.segment, 0)

    def signature(self, trace: Any, values: Sequence[Any], key: Sequence[Any]) -> Signature:
        """The signature of such a look-up.

        Raises:
            NeedsLoop: the rows have another `Aval`.
        """
        found = rows_signature(trace, values[self.table], self._ids_of(trace))
        if found is None or found.out is not self.outs[0]:
            raise NeedsLoop
        return trace.under_error_state(found)

    def out_kinds(self, key: Sequence[Any]) -> list[RecorderKind]:
        """The kind of the rows."""
        return [RaggedNode(self.outs[0])]


class RowSite:
    """The look-up of one row of a shared table.

    Args:
        table: the number of the table's constant; out: the `Aval` of the row.
    """

    __slots__ = ("outs", "specs", "table")

    def __init__(self, table: int, out: Aval) -> None:
        self.table = table
        self.specs: tuple[tuple[Any, ...], ...] = ()
        self.outs = (out,)

    def signature(self, trace: Any, values: Sequence[Any], key: Sequence[Any]) -> Signature:
        """The signature of such a look-up.

        Raises:
            NeedsLoop: the row has another `Aval`.
        """
        found = rows_signature(trace, values[self.table], np.int64(0))
        if found is None or found.out is not self.outs[0]:
            raise NeedsLoop
        return trace.under_error_state(found)

    def out_kinds(self, key: Sequence[Any]) -> list[RecorderKind]:
        """The kind of the row."""
        return [RecordedNode(self.outs[0])]


class OpSite:
    """The call of an operation outside blocks that becomes one node.

    Args:
        function: the operation, as a function of its operands; kinds: the operands' kinds: recorded arrays and constant
            scalars.

    Attributes:
        operands: the node's operands: positions of arrays among the operation's operands, or (number,).
    """

    __slots__ = ("_function", "operands", "outs", "specs")

    def __init__(self, function: Callable[..., Any], kinds: Sequence[RecorderKind], trace: Any, values: Any) -> None:
        self._function = function
        self.specs: tuple[tuple[Any, ...], ...] = tuple([("built", kind) for kind in kinds])
        sig, self.operands = self._called(trace, values)
        self.outs = (sig.out,)

    def _called(self, trace: Any, values: Sequence[Any]) -> tuple[Signature, list[Any]]:
        """The signature of a call and the operands of its node.

        Raises:
            NeedsLoop: it records other than one node, or a node with other operands.
        """
        segment = trace.segment
        nodes, refs = len(segment.sigs), len(segment.refs)
        given = [built(kind, trace, values, iter(())) for _, kind in self.specs]
        for place, each in enumerate(given):
            if type(each) is LazyArray:  # made for this call, as constants are scalars
                each.ref = place
        park, trace.park = trace.park, refuse_to_wait
        try:
            out = self._function(*given)
            if (
                type(out) is not LazyArray
                or out.segment is not segment
                or (out.ref, len(segment.sigs) - 1) != (nodes, nodes)
            ):
                raise NeedsLoop
            operands = [ref if ref >= 0 else (segment.sources[~ref],) for ref in segment.refs[refs:]]
            if any(type(each) is tuple and type(each[0]) not in _NUMBERS for each in operands):
                raise NeedsLoop
            return trace.under_error_state(trace.signature_of(out)), operands
        finally:
            trace.park = park
            del segment.sigs[nodes:]
            del segment.refs[refs:]

    def signature(self, trace: Any, values: Sequence[Any], key: Sequence[Any]) -> Signature:
        """The signature of a call, which must match the first call.

        Raises:
            NeedsLoop: it does not match.
        """
        sig, operands = self._called(trace, values)
        if sig.out is not self.outs[0] or operands != self.operands:
            raise NeedsLoop
        return sig

    def out_kinds(self, key: Sequence[Any]) -> list[RecorderKind]:
        """The kind of its result."""
        return [RecordedNode(self.outs[0])]


_NUMBERS = frozenset((*WEAK, np.int64))


def refuse_to_wait(urgent: bool) -> None:
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
    kind: RecorderKind


Site = BlockSite | RowSite | RowsSite | OpSite


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """The origin of a user function.

    Attributes:
        tree, blocks, scope: its definition, its blocks and its globals.
        function: the function, for its closure variables; None for a closure.
        origin: the number of the function's constant; None for the map's function and for a closure.
        owner: the version whose code defines the function, if any.
    """

    tree: ast.FunctionDef
    blocks: dict[str, Block]
    scope: dict[str, Any]
    function: FunctionType | None = None
    origin: int | None = None
    owner: "Version | None" = None


class Version:
    """One user function for one combination of argument kinds.

    Attributes:
        name: its name in the recorder; env: the kinds of its arguments and captured variables, by name; given: those
            that are passed at run time.
        local: its local names; captured: those that closures read.
        result: the kind of its result, as far as known; lines: its source.
        seen: what is known of its arguments.
        waits: it waits for a value, or calls a function that does, and so is a generator.
    """

    def __init__(self, name: str, of: Definition, env: dict[str, RecorderKind]) -> None:
        tree = of.tree
        self.name = name
        self.of = of
        self.tree = tree
        self.blocks = of.blocks
        self.scope = of.scope
        self.function = of.function
        self.origin = of.origin
        self.owner = of.owner
        if of.function is not None:
            self.filename = of.function.__code__.co_filename
        elif of.owner is not None:
            self.filename = of.owner.filename
        self.env = env
        self.waits = False
        self.given = [each for each, kind in env.items() if not isinstance(kind, Const | ClosureKind)]
        self.local = parameters(tree) | bound_names(tree.body)
        self.captured = captured(tree) & self.local
        self.result: RecorderKind = NOTHING
        self.lines: list[str] = []
        self.seen: dict[str, Seen] = {}
        self.lists: dict[Any, Any] = {}  # {place in the code: kind of the lists made there}


class Written:
    """A recorder under construction.

    Args:
        trace: the trace of the map for which it is written.
        constants: what it relies on; classes: the known classes of objects in examples.

    Attributes:
        attributes: names of the attributes that it reads from examples' objects.
        sites, recipes, waits: calls of blocks and of other operations, and places where values are waited for.
        lengths: {(array of any length, dimension): number}, the sources of lengths.
        used: the numbers of constants named in its source; operands: {number: `Aval`} of constants that are operands
            themselves.
    """

    def __init__(self, trace: Any, constants: Constants, classes: Sequence[type]) -> None:
        self.trace = trace
        self.constants = constants
        self.classes = classes
        self.attributes: set[str] = set()
        self.changed = False
        self.lengths: dict[Any, int] = {}
        self.versions: dict[Any, Version] = {}
        self.sites: list[tuple[Site, bool]] = []
        self.recipes: list[Recipe] = []
        self.waits: list[Wait] = []
        self.used: set[int] = set()
        self.operands: dict[int, Aval] = {}
        self._alive: list[Any] = []

    def version(self, of: Definition, env: dict[str, RecorderKind]) -> Version:
        """The version of a function for these argument kinds, added if it is new.

        Raises:
            Unsupported: there are too many versions.
        """
        tree, owner = of.tree, of.owner
        same = [each for each in self.versions.values() if each.tree is tree and each.owner is owner]
        key = id(tree), id(owner), tuple(env.items())
        if key not in self.versions and len(same) >= _MOST_VERSIONS_OF_ONE:  # such as a number that counts the depth
            env = {
                name: PLAIN if isinstance(kind, Const) and type(kind.value) in (int, float) else kind
                for name, kind in env.items()
            }
            key = id(tree), id(owner), tuple(env.items())
        found = self.versions.get(key)
        if found is None:
            if len(self.versions) >= _MOST_VERSIONS:
                raise Unsupported("a function that is called with too many kinds of arguments")
            self._alive.append(tree)
            name = f"_ab_f{len(self.versions)}_{tree.name}"
            found = self.versions[key] = Version(name, of, env)
            self.changed = True
        return found

    def settle(self, write: Callable[["Written", Version], None]) -> None:
        """Write all versions repeatedly until nothing changes.

        Raises:
            Unsupported: something cannot be written, or changes never end.
        """
        for _ in range(_ROUNDS):
            self.changed = False
            self.sites, self.recipes, self.waits = [], [], []
            self.used, self.operands, self.lengths = set(), {}, {}
            done = 0
            while done < len(self.versions):
                write(self, list(self.versions.values())[done])
                done += 1
            if not self.changed:
                return
        raise Unsupported("a recursion whose types keep changing")

    @property
    def is_waiting(self) -> bool:
        """True if some version is known to wait for values."""
        return any(version.waits for version in self.versions.values())

    def wait(self, version: Version, line: int, exact: bool) -> int:
        """Register a place where a version waits for a value, and return its number."""
        if not version.waits:
            version.waits = self.changed = True
        owner = version
        while owner.owner is not None:
            owner = owner.owner
        file = "" if owner.function is None else owner.function.__code__.co_filename
        self.waits.append(Wait((file, line), exact))
        return len(self.waits) - 1

    def add_result_kind(self, version: Version, kind: RecorderKind) -> None:
        """Note the kind of a value that a version returns."""
        found = join(version.result, kind)
        if found != version.result:
            version.result = found
            self.changed = True

    def const(self, number: int) -> Const:
        return Const(number, self.constants.values[number])

    def literal(self, value: Any) -> Const:
        return self.const(self.constants.literal(value))

    def text(self, value: Term) -> str:
        """The source of a value."""
        if value.parts is not None:
            return f"({', '.join(map(self.text, value.parts))},)" if value.parts else "()"
        kind = value.kind
        if isinstance(kind, Const):
            if type(kind.value) in (int, str, bool, type(None)):
                shown = repr(kind.value)
                return f"({shown})" if shown.startswith("-") else shown  # `-2 ** n` is -(2 ** n)
            if kind.is_scalar:
                return self.named(kind.number)
            return "None"  # a part that is known needs no value at run time
        return "None" if isinstance(kind, ClosureKind) else value.text

    def named(self, number: int) -> str:
        """The name of a constant in the source."""
        self.used.add(number)
        return f"_ab_c{number}"

    def close(self) -> None:
        """Drop all references to the map for which it was written."""
        self.constants.close()
        for site, _ in self.sites:
            site.specs = tuple([(how, *map(_stripped, what)) for how, *what in site.specs])

    def shared_block(self, site: BlockSite) -> Const:
        """The result of a block whose inputs are all constants.

        Raises:
            Unsupported: the block warns, or fails.
        """
        try:
            return self.const(self.constants.shared_block(site))
        except NeedsLoop:
            raise Unsupported("a block of shared values warns") from None


def _stripped(what: Any) -> Any:
    return without_values(what) if isinstance(what, RecorderKind) else what
