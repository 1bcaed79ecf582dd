"""Writes operators, conditions and comprehensions in a recorder."""

import ast
import enum
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.facts import operators
from autobatch.lazy.array import LazyArray
from autobatch.rewrite.recorders.call_writer import CallWriter
from autobatch.rewrite.recorders.line_writer import Unreachable
from autobatch.rewrite.recorders.recorded_kinds import (
    NOTHING,
    PLAIN,
    Const,
    DictKind,
    ListKind,
    NodeOrNumber,
    NotCovered,
    Parts,
    RecorderKind,
    Term,
    constants_of,
    join,
)

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


class ExpressionWriter(CallWriter):
    """Writes expressions of all kinds."""

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
                raise NotCovered("a chain of comparisons")
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
            raise NotCovered(f"`{sign}` of what is no object of an example's")
        folded = self._folded(sign, function, left, right)
        if folded is not None:
            return folded
        if sign in ("in", "not in") and type(right.kind) is DictKind:
            return Term(PLAIN, f"({self._key(left)} {sign} {right.text})", simple=True)
        texts = [self._compared(each) for each in (left, right)]
        if None not in texts:
            return Term(PLAIN, f"({texts[0]} {sign} {texts[1]})", simple=True)
        if sign in ("in", "not in"):
            raise NotCovered(f"`{sign}` of arrays")
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
            raise NotCovered("a decision by a shared value")
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
            raise NotCovered("`or`, `and` of what is no number")
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
                    raise NotCovered("text of what is no number")
                value = self.check(value)
                texts.append(f"_ab_shown({self.text(value)})")
            else:
                raise NotCovered("text in a format")
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
            raise NotCovered("an asynchronous comprehension")
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
            raise NotCovered("a generator whose items are not asked for at once")
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
