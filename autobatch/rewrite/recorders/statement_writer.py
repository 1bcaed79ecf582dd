"""Writes a version of a user function in a recorder: its statements, operators, conditions and comprehensions."""

import ast
import contextlib
import dataclasses
import enum
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.errors import Unreachable, Unsupported
from autobatch.facts import operators
from autobatch.lazy.array import LazyArray
from autobatch.rewrite.recorders.call_writer import CallWriter
from autobatch.rewrite.recorders.line_writer import Env, is_temporary
from autobatch.rewrite.recorders.recorded_kinds import (
    NOTHING,
    PLAIN,
    UNKNOWN,
    ClosureKind,
    Const,
    DictKind,
    IterKind,
    ListKind,
    NodeOrNumber,
    Parts,
    RecordedNode,
    RecorderKind,
    Term,
    constants_of,
    join,
)
from autobatch.rewrite.recorders.recorder_functions import Version, Written

BINARY = {each.syntax: (each.symbol, each.function) for each in operators.ARITHMETIC}
_COMPARED: dict[Any, tuple[str, Callable[..., Any]]] = {
    **{each.syntax: (each.symbol, each.function) for each in operators.COMPARISONS},
    ast.Is: ("is", operator.is_), ast.IsNot: ("is not", operator.is_not),
    ast.In: ("in", lambda a, b: a in b), ast.NotIn: ("not in", lambda a, b: a not in b),
}  # fmt: skip
_UNARY: dict[Any, tuple[str, Callable[..., Any]]] = {
    **{each.syntax: (each.symbol, each.function) for each in operators.UNARY},
    ast.Not: ("not ", operator.not_),
}

_MOST_ITERATIONS = 6
_MOST_UNROLLED = 16
_MISFIT = "raise _ab_misfit"


def write_version(written: Written, version: Version) -> None:
    """Write one version as far as its kinds are known, and note the kind of its result.

    Raises:
        Unsupported: something in it cannot be written.
    """
    StatementWriter(written, version).whole()


def _only(env: Env, other: Env) -> Env:
    """The environment `other`, restricted to the names that are known in `env`."""
    return Env({name: value for name, value in other.names.items() if name in env.names}, set())


class StatementWriter(CallWriter):
    """Writes the statements and expressions of one version.

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
            except Unsupported as error:
                raise error.at(self.version.filename, self.line) from None
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
                    raise Unsupported("a generator, or a function with `nonlocal`")
                if self.version.owner is not None:
                    raise Unsupported("functions nested three deep")
                self.env.names[node.name] = Term(ClosureKind(node, self.version), "None")
                return True
        raise Unsupported(f"the syntax `{type(node).__name__.lower()}`", node)

    def _returned(self, value: Term) -> None:
        value = self.as_node(value)
        if isinstance(value.kind, ClosureKind | IterKind):
            raise Unsupported("a function that returns a function or an iterator")
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
            raise Unsupported("an array or a list that is written to")
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
                with contextlib.suppress(Unsupported):  # otherwise nothing may read the name from here on
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
                        raise Unsupported("`continue` where a variable may be a number or an array")
                for each in ends:
                    joined = self._joined(joined, each)
                    if self._conversions(each, _only(each, joined)):
                        raise Unsupported("`break` where a variable may be a number or an array")
                if self._conversions(head, _only(head, joined)):
                    raise Unsupported("`break` where a variable may be a number or an array")
                self.env = joined
                return lines
            head = joined
        raise Unsupported("a loop whose types keep changing")

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
            raise Unsupported("a loop over many shared values")
        if any(isinstance(each, ast.Break | ast.Continue) for each in ast.walk(node)):
            raise Unsupported("a loop over shared values with `break` or `return`")
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
                raise Unsupported("a loop whose condition is constant")
            with self.nested_lines() as lines:
                goes_on = self.body(node.body)
            head = [*looks, "    " * (self.depth + 1) + f"if not {text}: break"]
            return head + lines, self.env if goes_on else None

        lines = self._until_fixpoint(write)
        self.emit("while True:")
        self.lines += lines
        return True

    # Expressions.

    def _folded(self, key: Any, function: Callable[..., Any], *values: Term) -> Term | None:
        """Constant folding: a constant if all operands are constant scalars, else None."""
        constants = constants_of(values)
        if constants is None or not all(each.is_scalar for each in constants):
            return None
        return self.read(self.written.constants.compute, key, function, *[each.number for each in constants])

    def _binop(self, node: ast.BinOp) -> Term:
        sign, function = BINARY[type(node.op)]
        left, right = self.expr(node.left), self.expr(node.right)
        return self.binary(sign, function, left, right)

    def binary(self, sign: str, function: Callable[..., Any], left: Term, right: Term) -> Term:
        folded = self._folded(sign, function, left, right)
        if folded is not None:
            return folded
        if isinstance(left.kind, NodeOrNumber):
            return self.either(left, lambda each: self.binary(sign, function, each, right))
        if isinstance(right.kind, NodeOrNumber):
            return self.either(right, lambda each: self.binary(sign, function, left, each))
        if isinstance(left.kind, ListKind) and isinstance(right.kind, ListKind) and sign == "+":
            if left.kind.unite(right.kind):
                self.written.changed = True
            return self.let(Term(left.kind, f"({left.text} + {right.text})"))
        if self.are_plain(left, right):
            left, right = self.check(left), self.check(right)
            return Term(PLAIN, f"({self.text(left)} {sign} {self.text(right)})")
        return self.apply(function, [left, right], ("op", sign))

    def _unaryop(self, node: ast.UnaryOp) -> Term:
        sign, function = _UNARY[type(node.op)]
        if sign == "not ":
            known, text = self.test(node.operand)
            if (
                known is None
                and text.isidentifier()
                and isinstance(self.env.names.get(text, self.literal(None)).kind, ListKind)
            ):
                text = self.counted(self.env.names[text]).text
            return self.literal(not known) if known is not None else Term(PLAIN, f"(not {text})", simple=True)
        value = self.expr(node.operand)
        folded = self._folded(sign, function, value)
        if folded is not None:
            return folded
        if value.kind is PLAIN:
            return Term(PLAIN, f"({sign}{self.check(value).text})")
        return self.apply(function, [value], ("op", sign))

    def _compare(self, node: ast.Compare) -> Term:
        if len(node.ops) > 1:
            values = [self.expr(node.left), *[self.inline(each) for each in node.comparators]]
            if not self.are_plain(*values):
                raise Unsupported("a chain of comparisons")
            text = self.text(self.check(values[0]))
            for op, value in zip(node.ops, values[1:], strict=True):
                text += f" {_COMPARED[type(op)][0]} {self.text(self.check(value))}"
            return Term(PLAIN, f"({text})", simple=True)
        sign, function = _COMPARED[type(node.ops[0])]
        left, right = self.expr(node.left), self.expr(node.comparators[0])
        if sign in ("is", "is not"):
            known = self._identity(left.kind, right.kind)
            if known is not None:
                return self.literal(known == (sign == "is"))
            for one, other in ((left, right), (right, left)):
                if isinstance(one.kind, NodeOrNumber) and self._is_none(other.kind):
                    one = self.let(one)
                    text = f"(_ab_type({one.text}) is _ab_tuple and {one.text}[0] is None)"
                    return Term(PLAIN, text if sign == "is" else f"(not {text})", simple=True)
            if left.kind is PLAIN and isinstance(right.kind, Const) and isinstance(right.kind.value, enum.Enum | type):
                return Term(PLAIN, f"({left.text} {sign} {self.written.named(right.kind.number)})", simple=True)
            if left.kind is PLAIN and (right.kind is PLAIN or self._is_singleton(right.kind)):  # `is` runs no code
                return Term(PLAIN, f"({self.text(left)} {sign} {self.text(right)})", simple=True)
            raise Unsupported(f"`{sign}` of a value that is not an object of the example")
        folded = self._folded(sign, function, left, right)
        if folded is not None:
            return folded
        if sign in ("in", "not in") and type(right.kind) is DictKind:
            return Term(PLAIN, f"({self._key(left)} {sign} {right.text})", simple=True)
        texts = [self._compared(each) for each in (left, right)]
        if None not in texts:
            return Term(PLAIN, f"({texts[0]} {sign} {texts[1]})", simple=True)
        if sign in ("in", "not in"):
            raise Unsupported(f"`{sign}` of arrays")
        return self.apply(function, [left, right], ("op", sign))

    def _compared(self, value: Term) -> str | None:
        kind = value.kind
        if isinstance(kind, Const) and not kind.is_scalar and type(kind.value) is not LazyArray:
            if isinstance(kind.value, type | tuple | list | dict | set | frozenset | enum.Enum):
                return self.written.named(kind.number)
            return None
        if self.are_plain(value):
            return self.text(self.check(value))
        if (
            isinstance(kind, Parts)
            and kind.is_tuple
            and all(part is PLAIN or self._is_scalar(part) for part in kind.parts)
        ):
            return self.text(value)
        return None

    @staticmethod
    def _is_none(kind: RecorderKind) -> bool:
        return isinstance(kind, Const) and kind.value is None

    @staticmethod
    def _is_singleton(kind: RecorderKind) -> bool:
        return isinstance(kind, Const) and type(kind.value) in (bool, type(None))

    @staticmethod
    def _is_scalar(kind: RecorderKind) -> bool:
        return isinstance(kind, Const) and kind.is_scalar

    @staticmethod
    def _identity(a: RecorderKind, b: RecorderKind) -> bool | None:
        """True or False if the kinds alone decide whether two values are one object; else None."""
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Const) and one.value is None and other is not PLAIN:
                if isinstance(other, NodeOrNumber):
                    return None
                return isinstance(other, Const) and other.value is None
        if isinstance(a, Const) and isinstance(b, Const) and a.number == b.number and not a.is_scalar:
            return True
        return None

    def test(self, node: ast.expr) -> tuple[bool | None, str]:
        """The truth of a condition if it is known, else None; and its source."""
        if isinstance(node, ast.BoolOp):
            return self._any_or_all(node)
        return self.truth(self.expr(node))

    def truth(self, value: Term) -> tuple[bool | None, str]:
        kind = value.kind
        if isinstance(kind, Const):
            if kind.is_scalar or type(kind.value) in (tuple, list, dict):
                return bool(kind.value), ""
            if isinstance(kind.value, type | types.FunctionType):
                return True, ""
            raise Unsupported("a branch on a shared value")
        if kind is PLAIN:
            return None, self.check(value).text
        if isinstance(kind, ListKind):
            return None, self.text(value)
        if isinstance(kind, Parts) and kind.is_tuple:
            return bool(kind.parts), ""
        return None, self.waited(value, exact=False).text

    def _any_or_all(self, node: ast.BoolOp) -> tuple[bool | None, str]:
        """An `and` or `or`: the lines that an operand needs run only if that operand is evaluated."""
        is_or = isinstance(node.op, ast.Or)
        found: list[tuple[list[str], bool | None, str]] = []
        before = self.env
        for i, each in enumerate(node.values):
            if not i:
                found.append(([], *self.test(each)))
                before = self.env.copy()
            else:
                self.env = before.copy()
                with self.nested_lines() as lines:
                    found.append((lines, *self.test(each)))
            if found[-1][1] == is_or:
                break
        self.env = before
        found = [each for each in found if each[1] is None or each[1] == is_or]
        if not found:
            return not is_or, ""
        if found[0][1] == is_or:
            return is_or, ""
        texts = [text if known is None else str(known) for _, known, text in found]
        if not any(lines for lines, *_ in found[1:]):
            lines = found[0][0]  # if the first operand is constant, the lines that the second one needs
            self.lines += [line[4:] for line in lines]
            return None, f"({(' or ' if is_or else ' and ').join(texts)})"
        name = self.fresh()
        self.lines += [line[4:] for line in found[0][0]]
        self.emit(f"{name} = {texts[0]}")
        for (lines, *_), text in zip(found[1:], texts[1:], strict=True):
            self.emit(f"if {'not ' if is_or else ''}{name}:")
            self.lines += lines
            self.emit(f"    {name} = {text}")
        return None, name

    def _boolop(self, node: ast.BoolOp) -> Term:
        values = [self.expr(node.values[0]), *[self.inline(each) for each in node.values[1:]]]
        if not self.are_plain(*values):
            raise Unsupported("`or` or `and` of values that are not numbers")
        sign = " or " if isinstance(node.op, ast.Or) else " and "
        return Term(PLAIN, f"({sign.join(self.text(self.check(each)) for each in values)})")

    def _ifexp(self, node: ast.IfExp) -> Term:
        known, text = self.test(node.test)
        if known is not None:
            return self.expr(node.body if known else node.orelse)
        name = self.fresh()
        arms: list[tuple[list[str], Term]] = []
        before = self.env
        for arm in (node.body, node.orelse):
            self.env = before.copy()
            with self.nested_lines() as lines:
                try:
                    value = self.as_node(self.expr(arm))
                    arms.append((lines, value))
                except Unreachable:
                    self.emit("raise _ab_misfit")
                    arms.append((lines, Term(NOTHING, "")))
        self.env = before
        kind = join(arms[0][1].kind, arms[1][1].kind)
        for lines, value in arms:
            if value.kind is not NOTHING:
                lines.append("    " * (self.depth + 1) + f"{name} = {self.converted(value, kind)}")
        self.emit(f"if {text}:")
        self.lines += arms[0][0]
        self.emit("else:")
        self.lines += arms[1][0]
        return Term(kind, name)

    def _joinedstr(self, node: ast.JoinedStr) -> Term:
        texts = []
        for each in node.values:
            if isinstance(each, ast.Constant):
                texts.append(repr(each.value))
            elif isinstance(each, ast.FormattedValue) and each.format_spec is None and each.conversion == -1:
                value = self.expr(each.value)
                if not self.are_plain(value):
                    raise Unsupported("a string made of a value that is not a number")
                value = self.check(value)
                texts.append(f"_ab_shown({self.text(value)})")
            else:
                raise Unsupported("a format specification in an f-string")
        return Term(PLAIN, f"({' + '.join(texts) or repr('')})")

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Term:
        kind = self.listed(node)
        name = self.fresh()
        self.emit(f"{name} = []")
        outer = self.env
        self.env = outer.copy()
        self._generators(node, node.generators, kind, name)
        self.env = outer
        return Term(kind, name)

    def _generators(self, node: Any, generators: Sequence[ast.comprehension], kind: ListKind, name: str) -> None:
        if not generators:
            value = self.as_node(self.expr(node.elt))
            self.add(kind, value.kind)
            self.emit(f"{name}.append({self.converted(value, kind.item)})")
            return
        each = generators[0]
        if each.is_async:
            raise Unsupported("an asynchronous comprehension")
        over = self.expr(each.iter)
        over = self.check(over)

        def body() -> None:
            conditions = [self.test(condition) for condition in each.ifs]
            if any(known is False for known, _ in conditions):
                self.emit("pass")
                return
            texts = [text for known, text in conditions if known is None]
            if texts:
                self.emit(f"if {' and '.join(texts)}:")
                self.depth += 1
            self._generators(node, generators[1:], kind, name)
            self.depth -= bool(texts)

        self.counter += 1
        self.go_through(each.target, over, body, f"_ab{self.counter}")

    def _generatorexp(self, node: ast.GeneratorExp) -> Term:
        if id(node) not in self.exhausted:  # variables may be rebound before its items are read
            raise Unsupported("a generator that is not used up at once")
        return self._listcomp(node)

    def go_through(self, target: ast.expr, over: Term, body: Callable[[], None], mark: str = "") -> None:
        """Write a loop."""
        item = self._items_of(over.kind)
        if item is NOTHING:
            return
        names, stores = self._targets(target, item, mark)
        self.emit(f"for {names} in {self._gone_through(over)}:")
        self._stored(stores)
        checked = set(self.env.checked)
        self.depth += 1
        try:
            body()
        except Unreachable:
            self.emit("raise _ab_misfit")
        self.depth -= 1
        self.env.checked &= checked
