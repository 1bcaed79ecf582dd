"""Writes the statements of user functions in a recorder."""

import ast
import contextlib
import dataclasses
from collections.abc import Callable, Sequence

from autobatch.rewrite.recorders.expression_writer import BINARY, ExpressionWriter
from autobatch.rewrite.recorders.line_writer import Env, Unreachable, is_temporary
from autobatch.rewrite.recorders.recorded_kinds import (
    NOTHING,
    PLAIN,
    UNKNOWN,
    Closure,
    Const,
    IterKind,
    ListKind,
    NodeOrNumber,
    NotCovered,
    RecordedNode,
    RecorderKind,
    Term,
    join,
)
from autobatch.rewrite.recorders.recorder_functions import Version, Written

_MOST_ITERATIONS = 6
_MOST_UNROLLED = 16
_MISFIT = "raise _ab_misfit"


def write_version(written: Written, version: Version) -> None:
    """Write one version as far as its kinds are known, and note the kind of its result.

    Raises:
        NotCovered: something in it cannot be written.
    """
    StatementWriter(written, version).whole()


def _only(env: Env, other: Env) -> Env:
    """The environment `other`, restricted to the names that are known in `env`."""
    return Env({name: value for name, value in other.names.items() if name in env.names}, set())


class StatementWriter(ExpressionWriter):
    """Writes the statements of one version.

    Attributes:
        env: what is known at the next statement; None if it cannot be reached.
    """

    def __init__(self, written: Written, version: Version) -> None:
        super().__init__(written, version)
        self.loops: list[tuple[list[Env], list[Env]]] = []  # environments at each loop's exits and continues

    def whole(self) -> None:
        version = self.version
        self.emit(f"def {version.name}({', '.join(version.given)}):")
        self.depth += 1
        for name, kind in version.env.items():
            self.env.names[name] = Term(kind, name, seen=version.seen.get(name, UNKNOWN))
            if isinstance(kind, Const) and kind.is_scalar and name in version.local:
                self.emit(f"{name} = {self.text(self.env.names[name])}")
        if version.waits:
            self.emit("if 0: yield")  # makes it a generator, whatever is reached
            self.emit("_ab_lists = {}")
        if self.body(version.tree.body):
            self._returned(self.literal(None))
        self.depth -= 1
        version.lines = self.lines

    def body(self, statements: Sequence[ast.stmt]) -> bool:
        """Write statements; True if code after them can be reached."""
        for each in statements:
            try:
                goes_on = self.statement(each)
            except Unreachable:
                self.emit(_MISFIT)
                return False
            if not goes_on:
                return False
        return True

    def statement(self, node: ast.stmt) -> bool:
        """Write a statement; True if the next one can be reached."""
        self.line = getattr(node, "lineno", self.line)
        match node:
            case ast.Pass():
                return True
            case ast.Expr(value=ast.Constant()):
                return True
            case ast.Expr():
                self.let(self.expr(node.value))  # evaluating it may raise
                return True
            case ast.Assign(targets=targets):
                value = self.expr(node.value)
                if len(targets) > 1:
                    value = self.let(value)
                for target in targets:
                    self.bind(target, value)
                return True
            case ast.AnnAssign(target=ast.Name() as target, value=value):
                if value is not None:
                    self.bind(target, self.expr(value))
                return True
            case ast.AugAssign(target=ast.Name()):
                self._augmented(node)
                return True
            case ast.Return(value=value):
                self._returned(self.literal(None) if value is None else self.expr(value))
                return False
            case ast.If():
                return self._if(node)
            case ast.For(orelse=[]):
                return self._for(node)
            case ast.While(orelse=[]):
                return self._while(node)
            case ast.Break() | ast.Continue():
                ends, again = self.loops[-1]
                (ends if isinstance(node, ast.Break) else again).append(self.env)
                self.emit("break" if isinstance(node, ast.Break) else "continue")
                return False
            case ast.Assert():
                known, text = self.test(node.test)
                if known is None:
                    self.emit(f"if not {text}: {_MISFIT}")
                elif not known:
                    self.emit(_MISFIT)
                return known is not False
            case ast.Raise():
                self.emit(_MISFIT)
                return False
            case ast.FunctionDef(decorator_list=[]):
                if any(
                    isinstance(each, ast.Nonlocal | ast.Global | ast.Yield | ast.YieldFrom) for each in ast.walk(node)
                ):
                    raise NotCovered("a generator, or a function that binds names of others")
                if self.version.owner is not None:
                    raise NotCovered("a function in a function in a function")
                self.env.names[node.name] = Term(Closure(node, self.version), "None")
                return True
        raise NotCovered(f"{type(node).__name__} in line {getattr(node, 'lineno', 0)}")

    def _returned(self, value: Term) -> None:
        value = self.as_node(value)
        if isinstance(value.kind, Closure | IterKind):
            raise NotCovered("a function that returns a function or an iterator")
        self.written.add_result_kind(self.version, value.kind)
        self.emit(f"return {self.converted(value, self.version.result)}")

    def _augmented(self, node: ast.AugAssign) -> None:
        assert isinstance(node.target, ast.Name)
        left = self.expr(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))
        right = self.expr(node.value)
        scalar = isinstance(left.kind, Const) and left.kind.is_scalar
        array = left.kind.node if isinstance(left.kind, NodeOrNumber) else left.kind
        if left.kind is PLAIN:
            self.emit(f"if _ab_type({left.text}) not in _ab_scalars: {_MISFIT}")
        elif not (scalar or (isinstance(array, RecordedNode) and array.aval.scalar)):
            raise NotCovered("an array or a list that is written to")
        sign, function = BINARY[type(node.op)]
        self.bind(node.target, self.binary(sign, function, left, right))

    # Control flow.

    def _arm(self, statements: Sequence[ast.stmt], env: Env) -> tuple[list[str], Env | None]:
        """The lines of an arm, and the environment at its end; None if the end is not reached."""
        self.env = env
        with self.nested_lines() as lines:
            goes_on = self.body(statements)
            if not lines:
                self.emit("pass")
        return lines, self.env if goes_on else None

    def _if(self, node: ast.If) -> bool:
        known, text = self.test(node.test)
        if known is not None:
            return self.body(node.body if known else node.orelse)
        before = self.env
        body, after_body = self._arm(node.body, before.copy())
        orelse, after_orelse = self._arm(node.orelse, before.copy())
        found = [each for each in (after_body, after_orelse) if each is not None]
        self.env = before if not found else found[0] if len(found) == 1 else self._joined(*found)
        if len(found) == 2:
            body += self._conversions(found[0], self.env)
            orelse += self._conversions(found[1], self.env)
        self.emit(f"if {text}:")
        self.lines += body
        self.emit("else:")
        self.lines += orelse
        return bool(found)

    def _conversions(self, before: Env, after: Env, further: int = 1) -> list[str]:
        """The lines that convert the values at the end of one branch to the kinds where branches meet."""
        lines = []
        for name, value in after.names.items():
            old = before.names[name]
            if old.kind != value.kind:
                text = self.converted(old, value.kind)
                if text != name:
                    lines.append("    " * (self.depth + further) + f"{name} = {text}")
        return lines

    def _joined(self, a: Env, b: Env) -> Env:
        """The environment where two branches meet."""
        names: dict[str, Term] = {}
        for name, value in a.names.items():
            other = b.names.get(name)
            if other is None:
                continue
            if value.kind == other.kind and value.text == other.text and value.parts == other.parts:
                names[name] = dataclasses.replace(value, seen=value.seen.or_else(other.seen))
            elif not is_temporary(name):
                with contextlib.suppress(NotCovered):  # otherwise nothing may read the name from here on
                    names[name] = Term(self._join(value.kind, other.kind), name)
        return Env(names, a.checked & b.checked)

    def _join(self, a: RecorderKind, b: RecorderKind) -> RecorderKind:
        if isinstance(a, ListKind) and type(a) is type(b) and a.unite(b):
            self.written.changed = True
        return join(a, b)

    def _until_fixpoint(self, write: Callable[[], tuple[list[str], Env | None]]) -> list[str]:
        """The lines of a loop's body, written repeatedly until the environment at its head no longer changes."""
        before = head = self.env
        for _ in range(_MOST_ITERATIONS):
            ends: list[Env] = []
            again: list[Env] = []
            self.loops.append((ends, again))
            self.env = head.copy()
            try:
                lines, after = write()
            finally:
                self.loops.pop()
            joined = head
            for each in [*again, *([after] if after is not None else [])]:
                joined = self._at_head(joined, each)
            if joined.names == head.names and joined.checked == head.checked:
                if after is not None:
                    lines += self._conversions(after, _only(after, head))
                self.lines += self._conversions(before, _only(before, head), 0)
                for each in again:
                    if self._conversions(each, _only(each, head)):
                        raise NotCovered("`continue` where a number may be an array by then")
                for each in ends:
                    joined = self._joined(joined, each)
                    if self._conversions(each, _only(each, joined)):
                        raise NotCovered("`break` where a number may be an array by then")
                if self._conversions(head, _only(head, joined)):
                    raise NotCovered("`break` where a number may be an array by then")
                self.env = joined
                return lines
            head = joined
        raise NotCovered("a loop whose values do not settle")

    def _at_head(self, head: Env, after: Env) -> Env:
        names = {}
        for name, value in head.names.items():
            other = after.names.get(name)
            if other is not None:
                same = value.kind == other.kind
                seen = value.seen.or_else(other.seen)
                kind = value.kind if same else self._join(value.kind, other.kind)
                names[name] = dataclasses.replace(value, seen=seen) if same else Term(kind, name)
        return Env(names, head.checked & after.checked)

    def _for(self, node: ast.For) -> bool:
        over = self.check(self.expr(node.iter))
        if isinstance(over.kind, Const) and type(over.kind.value) in (list, tuple):
            return self._unrolled(node, over.kind)
        over = self.let(over)
        item = self._items_of(over.kind)
        if item is NOTHING:
            self.emit(f"if {self.text(over)}: {_MISFIT}")
            return True
        found: list[str] = []

        def write() -> tuple[list[str], Env | None]:
            names, stores = self._targets(node.target, item)
            found[:] = [names]
            self._stored(stores)
            return self._arm(node.body, self.env)

        lines = self._until_fixpoint(write)
        self.emit(f"for {found[0]} in {self._gone_through(over)}:")
        self.lines += lines
        return True

    def _unrolled(self, node: ast.For, over: Const) -> bool:
        if len(over.value) > _MOST_UNROLLED:
            raise NotCovered("a loop over many shared values")
        if any(isinstance(each, ast.Break | ast.Continue) for each in ast.walk(node)):
            raise NotCovered("a loop over shared values that is left")
        for at in range(len(over.value)):
            self.bind(node.target, self.read(self.written.constants.item, over.number, at))
            if not self.body(node.body):
                return False
        return True

    def _while(self, node: ast.While) -> bool:
        def write() -> tuple[list[str], Env | None]:
            with self.nested_lines() as looks:
                known, text = self.test(node.test)
            if known is not None:
                raise NotCovered("a loop whose condition is constant")
            with self.nested_lines() as lines:
                goes_on = self.body(node.body)
            head = [*looks, "    " * (self.depth + 1) + f"if not {text}: break"]
            return head + lines, self.env if goes_on else None

        lines = self._until_fixpoint(write)
        self.emit("while True:")
        self.lines += lines
        return True
