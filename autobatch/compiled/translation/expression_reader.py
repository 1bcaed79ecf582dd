"""Expressions: each is read into a `Value`, and the code that computes it is written, in Python's order."""

import ast
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.compiled.translation import (
    arrays,
    containers,
    iteration,
    local_functions,
    number_operators,
    try_and_match,
)
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import call_function
from autobatch.compiled.translation.exact_types import BOOL, INT, NONE
from autobatch.compiled.translation.source_program import Instance, Lines, SourceProgram
from autobatch.compiled.translation.statement_reader import StatementReader
from autobatch.compiled.translation.typed_text import NO_CONSTANT, Value, convert, joined_bounds, parts_of
from autobatch.errors import MAKE_A_LIST
from autobatch.facts.operators import BINARY
from autobatch.facts.types import is_plain

_OPERATORS = {
    plain: [name for each in BINARY for name in (each.method, each.reflected) if name in vars(plain)]
    for plain in (int, float)
}


class ExpressionReader(StatementReader):
    """Reads a function: statements and the expressions in them."""

    on_list, on_dict, on_dictcomp = containers.list_literal, containers.dict_literal, containers.dict_comprehension
    on_call, on_lambda, on_for = call_function, local_functions.define, iteration.for_each
    on_try, on_match = try_and_match.try_statement, try_and_match.match_statement
    key_of, put_key, struct_of = containers.widened, containers.assign_key, containers.struct_of

    def expr(self, node: ast.expr) -> Value:
        method = getattr(self, f"on_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.refuse(f"{type(node).__name__} is not compiled", node)
        return method(node)

    def exprs(self, nodes: Sequence[ast.expr]) -> list[Value]:
        """The values of several expressions."""
        out: list[Value] = []
        for node in nodes:
            if not isinstance(node, ast.Starred):
                out.append(self.expr(node))
                continue
            value = self.once(self.expr(node.value))
            if not isinstance(value.kind, types.Tuple):
                raise self.refuse(f"* of a {value.kind}", node)
            out += parts_of(value)
        return out

    def truth(self, value: Value, node: Any) -> str:
        kind = value.kind
        if value.constant is not NO_CONSTANT:
            return str(bool(value.constant))
        if isinstance(kind, types.Scalar | types.Union):
            return number_operators.lift(self, lambda one: Value(BOOL, number_operators.truth_of(one)), value).text
        if isinstance(kind, types.List | types.Set | types.Dict):
            return f"(len({value.text}) > 0)"
        if isinstance(kind, types.Text):
            return f"({value.text}.size > 0)"
        if isinstance(kind, types.Array) and kind.ndim == 0:
            return f"({value.text}[()] != 0)"
        if isinstance(kind, types.Tuple):
            return str(bool(kind.items))
        raise self.refuse(f"whether a {kind} is true", node)

    # --- names and constants

    def on_name(self, node: ast.Name) -> Value:
        """The value of a variable; a copy if the same expression might bind the variable again."""
        value = self.read(node.id, node)
        binds = any(node.id in each.binds for each in self.program.local_functions.values())
        return self.held(value) if binds or node.id in self.rebound else value

    def on_constant(self, node: ast.Constant) -> Value:
        if node.value is Ellipsis or isinstance(node.value, bytes | complex):
            raise self.refuse(f"{node.value!r} is not compiled", node)
        return self.constant(node.value, node)

    def on_tuple(self, node: ast.Tuple) -> Value:
        return self.tuple_of(self.exprs(node.elts))

    def on_set(self, node: ast.Set) -> Value:
        return containers.literal(self, node, self.exprs(node.elts), types.Set)

    def on_listcomp(self, node: ast.ListComp) -> Value:
        return containers.comprehension(self, node, types.List)

    def on_setcomp(self, node: ast.SetComp) -> Value:
        return containers.comprehension(self, node, types.Set)

    def on_generatorexp(self, node: ast.GeneratorExp) -> Value:
        raise self.refuse("a generator that is not read at once", node, instead=MAKE_A_LIST)

    def on_joinedstr(self, node: ast.JoinedStr) -> Value:
        raise self.refuse("a formatted string", node)

    # --- operators

    def on_binop(self, node: ast.BinOp) -> Value:
        left = self.expr(node.left)
        return self.binary(type(node.op).__name__, left, self.expr(node.right), node)

    def as_number(self, value: Value, node: Any) -> Value:
        """An operand: members of an IntEnum, and other numbers with the operators of int or float, as plain numbers."""
        found: Any = value.constant
        plain: Any
        for plain, names in _OPERATORS.items() if isinstance(value.kind, types.Static) else ():
            if isinstance(found, plain) and all(getattr(type(found), name) is getattr(plain, name) for name in names):
                return self.constant(plain.__pos__(found), node)
        return value

    def binary(self, op: str, a: Value, b: Value, node: Any) -> Value:
        """`a op b`."""
        a, b = self.as_number(a, node), self.as_number(b, node)
        for value in (a, b):
            if isinstance(value.kind, types.Static):
                raise self.refuse(f"{op} of {value.kind}", node)
        kinds = (a.kind, b.kind)
        if all(isinstance(kind, types.Scalar | types.Union) for kind in kinds):
            quick = number_operators.tagged_operation(self, op, self.once(a), self.once(b))
            if quick is not None:
                return quick
            return number_operators.lift(self, lambda x, y: number_operators.arithmetic(self, op, x, y), a, b)
        if any(isinstance(kind, types.Array) for kind in kinds):
            return arrays.operator(self, op, a, b, node)
        return containers.operator(self, op, a, b, node)

    def on_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.expr(node.operand)
        op = type(node.op).__name__
        if op == "Not":
            if value.constant is not NO_CONSTANT:
                return self.constant(not value.constant, node)
            return self.temp(f"not {self.truth(value, node.operand)}", BOOL)
        if isinstance(value.kind, types.Array):
            return arrays.unary(self, op, value, node)
        if not isinstance(value.kind, types.Scalar | types.Union):
            raise self.refuse(f"{op} of a {value.kind}", node)
        if op == "USub":
            return number_operators.lift(self, lambda x: number_operators.negative(self, x), value)
        if op == "Invert":
            return number_operators.lift(self, lambda x: self._inverted(x, node), value)
        return number_operators.lift(self, lambda x: x if x.kind != BOOL else Value(INT, f"int64({x.text})"), value)

    def _inverted(self, value: Value, node: Any) -> Value:
        if value.kind.kind == "b" and not value.kind.python:
            return self.temp(f"not {value.text}", value.kind)
        if value.kind.kind != "i":
            raise self.refuse(f"~ of {value.kind}", node)
        return self.temp(f"~{value.text}", value.kind)

    def on_boolop(self, node: ast.BoolOp) -> Value:
        return self._and_or(node.values, isinstance(node.op, ast.And), node)

    def _and_or(self, nodes: Sequence[ast.expr], is_and: bool, node: Any) -> Value:
        first = self.expr(nodes[0])
        if len(nodes) == 1:
            return first
        if first.constant is not NO_CONSTANT:
            return self._and_or(nodes[1:], is_and, node) if bool(first.constant) == is_and else first
        first = self.held(first)
        truth = self.truth(first, nodes[0])
        return self.choice(
            truth if is_and else f"not {truth}", lambda: self._and_or(nodes[1:], is_and, node), lambda: first, node
        )

    def connected(self, first: Value, rest: Callable[[], Value], is_and: bool, node: Any) -> Value:
        """The truth of `first and rest()`, or of `first or rest()`."""
        if first.constant is not NO_CONSTANT:
            return rest() if bool(first.constant) == is_and else first
        truth = self.truth(self.once(first), node)
        return self.choice(truth if is_and else f"not {truth}", rest, lambda: Value(BOOL, str(not is_and)), node)

    def choice(self, condition: str, then: Any, other: Any, node: Any) -> Value:
        """The value of one of two computations, depending on a condition."""
        made: list[tuple[Lines, Value]] = []

        def way(body: Any) -> Any:
            return lambda: made.append((self.lines, body()))

        place = len(self.lines)
        self.branch(condition, way(then), way(other))
        kind = self._joined_kind(made, node)
        if isinstance(kind, types.Static):
            return made[0][1]
        if (
            len(made) == 2
            and all(lines in ([], ["pass"]) for lines, _ in made)
            and isinstance(kind, types.Scalar | types.Union)
        ):
            del self.lines[place:]
            return self.selected(condition, made[0][1], made[1][1], kind)
        return self._merge_branches(made, kind)

    def _joined_kind(self, made: Sequence[tuple[Lines, Value]], node: Any) -> Any:
        """The type of the value of several branches."""
        if self.env is None or not made:
            self.stop()
        kind = None
        for _, value in made:
            kind = self.join(kind, value.kind, node)
        return kind

    def _merge_branches(self, made: Sequence[tuple[Lines, Value]], kind: Any) -> Value:
        """A variable for the value of several branches: the lines of each get an assignment to it."""
        name = self.declared(kind)
        for lines, value in made:
            lines.append(f"{name} = {convert(value.text, value.kind, kind)}")
        return Value(kind, name, bounds=joined_bounds(value.bounds for _, value in made))

    def selected(self, condition: str, a: Value, b: Value, kind: Any) -> Value:
        """One of two numbers that are both computed, selected without a branch (whose outcome would depend on data)."""
        bounds = joined_bounds([a.bounds, b.bounds])
        one, two = (self.temp(convert(value.text, value.kind, kind), kind).text for value in (a, b))
        if isinstance(kind, types.Scalar):
            return self.temp(f"select({condition}, {one}, {two})", kind, bounds=bounds)
        parts = ", ".join(f"select({condition}, {one}[{i}], {two}[{i}])" for i in range(3))
        return self.temp(f"({parts})", kind)

    def condition(self, node: ast.expr) -> Value:
        """The truth of an expression; computes no more of it than that needs."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if not isinstance(op, ast.Is | ast.IsNot):
                a, b = self.exprs([left, right])
                quick = number_operators.quick_compare(self, type(op).__name__, self.once(a), self.once(b))
                if quick is not None:
                    return Value(BOOL, quick)
                value = self.compared(type(op).__name__, a, b, node)
            case ast.BoolOp(op=op, values=[first, *rest]):
                is_and = isinstance(op, ast.And)
                value = self.condition(first)
                more = ast.copy_location(ast.BoolOp(op, rest), node)
                return self.connected(value, lambda: self.condition(more), is_and, node) if rest else value
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self.condition(operand)
                if value.constant is not NO_CONSTANT:
                    return Value(BOOL, str(not value.constant), not value.constant)
                return Value(BOOL, f"(not {value.text})")
            case _:
                value = self.expr(node)
        if value.constant is not NO_CONSTANT:
            return Value(BOOL, str(bool(value.constant)), bool(value.constant))
        return Value(BOOL, self.truth(value, node))

    def on_ifexp(self, node: ast.IfExp) -> Value:
        made: list[tuple[Lines, Value]] = []

        def way(body: ast.expr) -> Any:
            return lambda: made.append((self.lines, self.expr(body)))

        self.conditional(node.test, way(node.body), way(node.orelse), None)
        kind = self._joined_kind(made, node)
        if isinstance(kind, types.Static) or len(made) == 1:
            return made[0][1]
        return self._merge_branches(made, kind)

    def on_compare(self, node: ast.Compare) -> Value:
        none = self.on_compare_none(node)
        if none is not None:
            return none
        return self._chain(self.expr(node.left), list(zip(node.ops, node.comparators, strict=True)), node)

    def on_compare_none(self, node: ast.Compare) -> Value | None:
        """`name is None` for a variable that may be None (a plain read of it would leave None to Python); else None."""
        match node:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]
            ):
                known = (self.env or {}).get(name)
                if known is not None and isinstance(known.kind, types.Maybe) and not known.maybe_unbound:
                    sign = "not " if isinstance(op, ast.Is) else ""
                    return self.temp(f"{sign}{self.variable(name, known.kind)}[0]", BOOL)
        return None

    def _chain(self, left: Value, rest: list[Any], node: Any) -> Value:
        (op, comparator), *more = rest
        right = self.expr(comparator)
        if more:
            right = self.held(right)
        out = self.compared(type(op).__name__, left, right, node)
        if not more:
            return out
        if out.constant is not NO_CONSTANT:
            return self._chain(right, more, node) if out.constant else out
        out = self.held(out)
        return self.choice(self.truth(out, node), lambda: self._chain(right, more, node), lambda: out, node)

    def compared(self, op: str, a: Value, b: Value, node: Any) -> Value:
        """`a op b`, where `op` is a comparison, `in` or `is`."""
        if op in ("In", "NotIn"):
            found = containers.contains(self, a, b, node)
            if op == "In":
                return found
            if found.constant is not NO_CONSTANT:
                return self.constant(not found.constant, node)
            return self.temp(f"not {found.text}", BOOL)
        if op in ("Is", "IsNot"):
            return self._is(a, b, op == "Is", node)
        a, b = self.as_number(a, node), self.as_number(b, node)
        if all(isinstance(value.kind, types.Scalar | types.Union) for value in (a, b)):
            return number_operators.lift(self, lambda x, y: number_operators.compare(self, op, x, y), a, b)
        if op in ("Eq", "NotEq") and all(isinstance(value.constant, np.dtype | type | str) for value in (a, b)):
            return self.constant((a.constant == b.constant) == (op == "Eq"), node)
        if any(isinstance(value.kind, types.Array) for value in (a, b)):
            return arrays.operator(self, op, a, b, node)
        return containers.compared(self, op, a, b, node)

    def _is(self, a: Value, b: Value, same: bool, node: Any) -> Value:
        if b.kind != NONE:
            if a.constant is not NO_CONSTANT and isinstance(b.constant, bool | type):
                return self.constant((a.constant is b.constant) == same, node)
            raise self.refuse("`is` of something else than None", node)
        if isinstance(a.kind, types.Union) and NONE in a.kind.scalars:
            return self.temp(f"({a.text}[0] == 0) == {same}", BOOL)
        return self.constant((a.kind == NONE) == same, node)

    def on_namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.expr(node.value)
        self.store(node.target, value)
        return self.read(node.target.id, node)

    # --- attributes, items, calls

    def on_attribute(self, node: ast.Attribute) -> Value:
        value = self.expr(node.value)
        kind, name = value.kind, node.attr
        if isinstance(kind, types.Static):
            holder = kind.value
            try:
                found = getattr(holder, name)
            except AttributeError:
                self.stop()
            if isinstance(holder, np.ufunc):
                return self.constant(found, node)  # nobody can change those
            return self.known_object(found, lambda: getattr(holder, name), name, node)
        if isinstance(kind, types.Struct) and kind.cls is not dict and name in kind.names:
            place = kind.names.index(name)
            return Value(kind.items[place], f"{value.text}[{place}]")
        if isinstance(kind, types.Array):
            return arrays.attribute(self, value, name, node)
        if isinstance(kind, types.LookedUp) and name in ("shape", "dtype", "ndim", "size"):
            return arrays.attribute(self, Value(kind.weights, value.text), name, node)
        raise self.refuse(f"the attribute {name} of a {kind}", node)

    def on_subscript(self, node: ast.Subscript) -> Value:
        value = self.expr(node.value)
        kind = value.kind
        if isinstance(kind, types.Array):
            return arrays.item(self, value, node.slice, node)
        if isinstance(kind, types.LookedUp):
            return arrays.looked_up(self, value, node.slice, node)
        return containers.item(self, value, node.slice, node)

    def makes_plainly(self, cls: type) -> bool:
        """True if objects of a class consist of their fields alone: a plain dataclass or named tuple."""
        is_one = dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        return is_one and is_plain(cls)

    # --- statements and functions within

    def on_with(self, node: ast.With) -> None:
        for item in node.items:  # a float operation that sets a flag leaves the example to Python, which warns or not
            called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else None
            if called is None or self.expr(called).constant is not np.errstate or item.optional_vars is not None:
                raise self.refuse("a `with` block", node)
            given = item.context_expr.keywords  # type: ignore[attr-defined]
            if any(word.arg in ("all", "under") and self.expr(word.value).constant != "ignore" for word in given):
                raise self.refuse("a `with` block that asks for underflow to be reported", node)
        self.block(node.body)

    def on_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Subscript):
                raise self.refuse("del of a name", node)
            containers.delete(self, self.held(self.expr(target.value)), target.slice, node)

    def on_functiondef(self, node: ast.FunctionDef) -> None:
        self.assign(node.name, local_functions.define(self, node))

    # --- stores

    def store(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(id=name):
                self.assign(name, value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                if any(isinstance(each, ast.Starred) for each in targets):
                    containers.unpack_with_star(self, value, targets, target)
                    return
                for each, part in zip(targets, self.parts(value, len(targets), target), strict=True):
                    self.store(each, part)
            case ast.Subscript():
                holder = self.expr(target.value)
                if isinstance(holder.kind, types.Array):
                    arrays.set_item(self, holder, target.slice, value, target)
                else:
                    containers.set_item(self, holder, target.slice, value, target)
            case _:
                raise self.refuse(f"an assignment to {type(target).__name__}", target)

    def parts(self, value: Value, count: int, node: Any) -> list[Value]:
        """The items of a value that is unpacked, each in a variable of its own."""
        kind = value.kind
        if value.parts is not None:
            if len(value.parts) != count:
                self.stop()
            return [self.held(part) for part in value.parts]
        if isinstance(kind, types.Tuple):
            if len(kind.items) != count:
                self.stop()
            return [self.temp(f"{value.text}[{i}]", item) for i, item in enumerate(kind.items)]
        if isinstance(kind, types.List):
            self.fail_if(f"len({value.text}) != {count}")
            return [self.temp(f"{value.text}[{i}]", iteration.content(self, kind)) for i in range(count)]
        if isinstance(kind, types.Array) and kind.ndim:
            self.fail_if(f"{value.text}.shape[0] != {count}")
            return [arrays.row(self, value, str(i)) for i in range(count)]
        raise self.refuse(f"a {kind} that is unpacked", node)

    def on_augassign(self, node: ast.AugAssign) -> None:
        op = type(node.op).__name__
        match node.target:
            case ast.Name(id=name):
                old = self.on_name(node.target)
                value = self.expr(node.value)
                if isinstance(old.kind, types.Array):
                    arrays.augment(self, old, op, value, node)
                elif isinstance(old.kind, types.List | types.Set | types.Dict):
                    containers.augment(self, old, op, value, node)
                else:
                    self.assign(name, self.binary(op, old, value, node))
            case ast.Subscript():
                holder = self.held(self.expr(node.target.value))
                if isinstance(holder.kind, types.Array):
                    arrays.augment_item(self, holder, node, op)
                else:
                    containers.augment_item(self, holder, node, op)
            case _:
                raise self.refuse(f"an assignment to {type(node.target).__name__}", node)

    def index(self, value: Value, node: Any) -> str:
        """An index as an int64; for anything but an integer Python raises, so the example is left to it."""
        if isinstance(value.kind, types.Union):
            return number_operators.lift(self, lambda one: Value(INT, self.index(one, node)), value).text
        if not types.is_number(value.kind) or value.kind.kind == "f":
            self.stop()
        return value.text if value.kind.name == "int64" else f"int64({value.text})"


def read_function(program: SourceProgram, instance: Instance) -> None:
    """Read a function for the types of an instance, and write its text."""
    ExpressionReader(program, instance).whole()
