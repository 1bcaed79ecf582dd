"""Expressions: each is read into a `Value`, and the code that computes it is written, in Python's order."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from autobatch.compiled.translation import (
    arrays,
    containers,
    iteration,
    local_functions,
    number_operators,
    try_and_match,
    user_objects,
)
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import call_function
from autobatch.compiled.translation.exact_types import BOOL, INT, NONE
from autobatch.compiled.translation.source_program import Instance, Lines, OutsideDict, SourceProgram
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import (
    NO_CONSTANT,
    Value,
    as_tuple,
    assigned,
    code,
    convert,
    item_text,
    joined_bounds,
    parts_of,
)
from autobatch.facts.operators import BINARY, UNARY
from autobatch.program import normal_form as nf

_OPERATORS = {
    plain: [name for each in BINARY for name in (each.method, each.reflected) if name in vars(plain)]
    for plain in (int, float)
}


_METHODS = {each.syntax: each for each in BINARY}
_SIGNS = {each.syntax: f"__{each.name}__" for each in UNARY}
WORDS = {each.symbol: each.syntax for each in BINARY} | {
    "is": "Is", "is not": "IsNot", "in": "In", "not in": "NotIn",
    **{each.name: each.syntax for each in UNARY},
}  # fmt: skip


_ORDERS = nf.COMPARED | nf.OF_OBJECTS


class ExpressionReader(Reader):
    """Reads a function: statements and the expressions in them."""

    define, for_each, in_place = local_functions.define, iteration.for_each, iteration.in_place
    on_try = try_and_match.try_statement
    key_of, put_key, struct_of = containers.widened, containers.assign_key, containers.struct_of
    new_list = functools.partialmethod(containers.new, container=types.List)
    new_object, call_attribute, special = user_objects.new_object, user_objects.called, user_objects.special
    attribute_of = user_objects.attribute
    is_simple = staticmethod(user_objects.is_simple)

    def expr(self, node: nf.Value) -> Value:
        match node:
            case nf.Name():
                return self.name(node)
            case nf.Constant(value=value):
                if value is Ellipsis or isinstance(value, bytes | complex):
                    raise self.refuse(f"{value!r} is not compiled", node)
                return self.constant(value, node)
            case nf.Call():
                return self.operation(node) if node.symbol else call_function(self, node)
            case nf.Read(key=str() as key):
                return self.attribute(node, key)
            case nf.Read(key=nf.Value() as key):
                return self.item(node, key)
            case nf.Closure(is_generator=True):
                return self.constant(node, node)  # read in place where it is called
            case nf.Closure():
                return self.define(node)
        raise self.refuse("this syntax is not supported", node)

    def operation(self, node: nf.Call) -> Value:
        """What syntax calls."""
        symbol, args = node.symbol, node.args
        if node in self.ahead:
            return arrays.row(self, *self.ahead[node])
        match symbol:
            case "tuple":
                return self.tuple_of(self.exprs(args))
            case "list":
                return containers.list_literal(self, node)
            case "set":
                return containers.literal(self, node, self.exprs(args), types.Set)
            case "dict":
                return containers.dict_literal(self, node)
            case "not" | "truth":
                found = self.condition(node)
                return found if found.constant is not NO_CONSTANT else self.temp(found.text, BOOL)
            case "neg" | "pos" | "invert":
                return self.unary(WORDS[symbol], self.expr(args[0]), node)
            case "format":
                return self.constant("".join(str(self.expr(each).constant) for each in args), node)
            case "formatted":
                found, (conversion, form) = self.expr(args[0]).constant, [self.expr(each).constant for each in args[1:]]
                if type(found) not in (int, str, bool, float):
                    raise self.refuse("a formatted string is not compiled", node)
                made: Any = {114: repr, 115: str, 97: ascii}.get(conversion)
                return self.constant(format(made(found) if made else found, form), node)
            case "slice":
                raise self.refuse("Slice is not compiled", node)
        if symbol in nf.UPDATES:
            return self.updated(node)
        match args[0]:
            case nf.Name(id=name) if symbol in ("is", "is not"):
                left = self.read(name, node, whole=True)
            case _:
                left = self.expr(args[0])
        right = self.expr(args[1])
        does = self.compared if symbol in _ORDERS else self.binary
        return does(WORDS[symbol], left, right, node)

    def exprs(self, nodes: Sequence[nf.Value]) -> list[Value]:
        """The values of several expressions."""
        out: list[Value] = []
        for node in nodes:
            if not isinstance(node, nf.Spread):
                out.append(self.expr(node))
                continue
            value = as_tuple(self.once(self.expr(node.value)))
            if not isinstance(value.kind, types.Tuple):
                raise self.refuse(f"* of a {value.kind}", node)
            out += parts_of(value)
        return out

    def truth(self, value: Value, node: nf.Node) -> str:
        value = as_tuple(value)
        kind = value.kind
        if value.constant is not NO_CONSTANT:
            return str(bool(value.constant))
        if isinstance(kind, types.Scalar | types.Union):
            return number_operators.lift(self, lambda one: Value(BOOL, number_operators.truth_of(one)), value).text
        if isinstance(kind, types.List | types.Set | types.Dict):
            return f"(len({value.text}) > 0)"
        if isinstance(kind, types.Text):
            return f"({value.text}.size > 0)"
        if isinstance(kind, types.Array):
            value = self.once(value)
            self.fail_if(f"{value.text}.size != 1")
            return f"({item_text(value.text, ', '.join('0' * kind.ndim) or '()')} != 0)"
        if isinstance(kind, types.Tuple):
            return str(bool(kind.items))
        if isinstance(kind, types.TreeNodes):
            return f"({iteration.items_of_value(self, value, node).length} > 0)"
        inner = kind.inner if isinstance(kind, types.Maybe) else kind
        if isinstance(inner, types.ObjectTree) and inner.leaf is None:
            return "True" if inner is kind else item_text(value.text, 0)
        if isinstance(kind, types.Object):
            return user_objects.truth(self, self.once(value), node)
        raise self.refuse(f"whether a {kind} is true", node)

    # --- names and operators

    def name(self, node: nf.Name) -> Value:
        """The value of a variable; a copy if a call in the same expression might bind the variable again."""
        value = self.read(node.id, node, whole=node.id.startswith(nf.TEMPORARY))
        binds = any(node.id in each.binds for each in self.program.local_functions.values())
        return self.held(value) if binds else value

    def as_number(self, value: Value, node: nf.Node) -> Value:
        """An operand: members of an IntEnum, and other numbers with the operators of int or float, as plain numbers."""
        found: Any = value.constant
        plain: Any
        for plain, names in _OPERATORS.items() if isinstance(value.kind, types.Static) else ():
            if isinstance(found, plain) and all(getattr(type(found), name) is getattr(plain, name) for name in names):
                return self.constant(plain.__pos__(found), node)
        return value

    def some(self, value: Value) -> Value:
        """A value that is used as what it is if it is not None, which is left to Python."""
        if not isinstance(value.kind, types.Maybe):
            return value
        value = self.once(value)
        self.fail_if(f"not {value.text}[0]")
        return self.temp(item_text(value.text, 1), value.kind.inner)

    def binary(self, op: str, a: Value, b: Value, node: nf.Node) -> Value:
        """`a op b`."""
        a, b = self.as_number(self.some(a), node), self.as_number(self.some(b), node)
        for value, name in ((a, _METHODS[op].method), (b, _METHODS[op].reflected)):
            if isinstance(value.kind, types.Object):
                if not (value is a or (isinstance(a.kind, types.Scalar) and a.kind.python)):
                    raise self.refuse(f"{op} of {a.kind} and {b.kind}", node)
                return user_objects.special(self, name, [self.once(value), b if value is a else a], node)
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

    def unary(self, op: str, value: Value, node: nf.Node) -> Value:
        """`-value`, `+value` or `~value`."""
        value = self.some(value)
        if isinstance(value.kind, types.Array):
            return arrays.unary(self, op, value, node)
        if isinstance(value.kind, types.Object):
            return user_objects.special(self, _SIGNS[op], [self.once(value)], node)
        if not isinstance(value.kind, types.Scalar | types.Union):
            raise self.refuse(f"{op} of a {value.kind}", node)
        if op == "USub":
            return number_operators.lift(self, lambda x: number_operators.negative(self, x), value)
        if op == "Invert":
            return number_operators.lift(self, lambda x: self._inverted(x, node), value)
        return number_operators.lift(self, lambda x: x if x.kind != BOOL else Value(INT, f"int64({x.text})"), value)

    def _inverted(self, value: Value, node: nf.Node) -> Value:
        if value.kind.kind == "b" and not value.kind.python:
            return self.temp(f"not {value.text}", value.kind)
        if value.kind.kind != "i":
            raise self.refuse(f"~ of {value.kind}", node)
        return self.temp(f"~{value.text}", value.kind)

    def connected(self, first: Value, rest: Callable[[], Value], is_and: bool, node: nf.Node) -> Value:
        """The truth of `first and rest()`, or of `first or rest()`."""
        if first.constant is not NO_CONSTANT:
            return rest() if bool(first.constant) == is_and else first
        truth = self.truth(self.once(first), node)
        return self.choice(truth if is_and else f"not {truth}", rest, lambda: Value(BOOL, str(not is_and)), node)

    def choice(self, condition: str, then: Any, other: Any, node: nf.Node) -> Value:
        """The value of one of two computations, depending on a condition."""
        made: list[tuple[Lines, Value]] = []

        def way(body: Any) -> Any:
            return lambda: made.append((self.lines, body()))

        place = len(self.lines)
        self.branch(condition, way(then), way(other))
        kind = self._joined_kind(made, node)
        if isinstance(kind, types.Static):
            return made[0][1]
        is_simple = len(made) == 2 and all(lines in ([], ["pass"]) for lines, _ in made)
        if is_simple and isinstance(kind, types.Scalar | types.Union):
            del self.lines[place:]
            return self.selected(condition, made[0][1], made[1][1], kind)
        return self._merge_branches(made, kind)

    def _joined_kind(self, made: Sequence[tuple[Lines, Value]], node: nf.Node) -> Any:
        """The type of the value of several branches."""
        if self.env is None or not made:
            self.stop()
        kind = None
        for _, value in made:
            kind = self.join(kind, value.kind, node)
        return kind

    def _merge_branches(self, made: Sequence[tuple[Lines, Value]], kind: types.Type) -> Value:
        """A variable for the value of several branches: the lines of each get an assignment to it."""
        name = self.declared(kind)
        for lines, value in made:
            lines.append(assigned(name, convert(value.text, value.kind, kind)))
        return Value(kind, name, bounds=joined_bounds(value.bounds for _, value in made))

    def selected(self, condition: str, a: Value, b: Value, kind: types.Type) -> Value:
        """One of two numbers that are both computed, selected without a branch (whose outcome would depend on data)."""
        bounds = joined_bounds([a.bounds, b.bounds])
        one, two = (self.temp(convert(value.text, value.kind, kind), kind).text for value in (a, b))
        if isinstance(kind, types.Scalar):
            return self.temp(code("select", condition, one, two), kind, bounds=bounds)
        parts = [code("select", condition, item_text(one, i), item_text(two, i)) for i in range(3)]
        return self.temp(code("()", *parts), kind)

    def condition(self, node: nf.Value) -> Value:
        """The truth of an expression; computes no more of it than that needs."""
        match node:
            case nf.Call(function=nf.Operator(symbol=symbol), args=[left, right]) if (
                symbol in _ORDERS and symbol not in ("is", "is not")
            ):
                a, b = self.exprs([left, right])
                quick = number_operators.quick_compare(self, WORDS[symbol], self.once(a), self.once(b))
                if quick is not None:
                    return Value(BOOL, quick)
                value = self.compared(WORDS[symbol], a, b, node)
            case nf.Call(function=nf.Operator(symbol="not"), args=[operand]):
                value = self.condition(operand)
                if value.constant is not NO_CONSTANT:
                    return Value(BOOL, str(not value.constant), not value.constant)
                return Value(BOOL, f"(not {value.text})")
            case nf.Call(function=nf.Operator(symbol="truth"), args=[operand]):
                return self.condition(operand)
            case _:
                value = self.expr(node)
        if value.constant is not NO_CONSTANT:
            return Value(BOOL, str(bool(value.constant)), bool(value.constant))
        return Value(BOOL, self.truth(value, node))

    def compared(self, op: str, a: Value, b: Value, node: nf.Node) -> Value:
        """`a op b`, where `op` is a comparison, `in` or `is`."""
        if op in ("In", "NotIn"):
            if isinstance(b.constant, OutsideDict):
                found = self.program.in_python(self, node, b.constant.has, [a], {})
            else:
                found = containers.contains(self, a, b, node)
            if op == "In":
                return found
            if found.constant is not NO_CONSTANT:
                return self.constant(not found.constant, node)
            return self.temp(f"not {found.text}", BOOL)
        if op in ("Is", "IsNot"):
            return self._is(a, b, op == "Is", node)
        if isinstance(a.kind, types.Object) or isinstance(b.kind, types.Object):
            return user_objects.special(self, _METHODS[op].method, [self.once(a), b], node)
        a, b = self.as_number(a, node), self.as_number(b, node)
        if all(isinstance(value.kind, types.Scalar | types.Union) for value in (a, b)):
            return number_operators.lift(self, lambda x, y: number_operators.compare(self, op, x, y), a, b)
        if op in ("Eq", "NotEq") and all(isinstance(value.constant, np.dtype | type | str) for value in (a, b)):
            return self.constant((a.constant == b.constant) == (op == "Eq"), node)
        if any(isinstance(value.kind, types.Array) for value in (a, b)):
            return arrays.operator(self, op, a, b, node)
        return containers.compared(self, op, a, b, node)

    def _is(self, a: Value, b: Value, same: bool, node: nf.Node) -> Value:
        if b.kind != NONE:
            if all(isinstance(each.kind, types.List | types.Set | types.Dict | types.Object) for each in (a, b)):
                if a.kind != b.kind:  # containers of two places in the program
                    return self.constant(not same, node)
                return self.temp(f"(address({a.text}) == address({b.text})) == {same}", BOOL)
            if a.constant is not NO_CONSTANT and (isinstance(b.constant, bool) or isinstance(b.kind, types.Static)):
                return self.constant((a.constant is b.constant) == same, node)
            if isinstance(b.constant, bool) and a.kind == BOOL:
                return self.temp(f"({a.text} == {b.constant}) == {same}", BOOL)
            is_none = a.kind == NONE and not isinstance(b.kind, types.Union | types.Maybe)
            if is_none or (isinstance(b.constant, bool) and isinstance(a.kind, types.Scalar)):
                return self.constant(not same, node)
            raise self.refuse("`is` of something else than None", node)
        if isinstance(a.kind, types.Maybe):
            return self.temp(f"{a.text}[0] != {same}", BOOL)
        if isinstance(a.kind, types.Union) and NONE in a.kind.scalars:
            return self.temp(f"({a.text}[0] == 0) == {same}", BOOL)
        return self.constant((a.kind == NONE) == same, node)

    # --- attributes and items

    def attribute(self, node: nf.Read, name: str) -> Value:
        """`base.name`."""
        value = self.some(self.expr(node.base))
        kind = value.kind
        if isinstance(kind, types.Static):
            holder = kind.value
            try:
                found = getattr(holder, name)
            except AttributeError:
                self.stop()
            if isinstance(holder, np.ufunc):
                return self.constant(found, node)  # nobody can change those
            return self.known_object(found, functools.partial(getattr, holder, name), name, node)
        if isinstance(kind, types.Object):
            return user_objects.attribute(self, self.once(value), name, node)
        if isinstance(kind, types.ObjectTree) and dict not in kind.classes:
            return iteration.node_attribute(self, value, name, node)
        if isinstance(kind, types.Struct) and kind.cls is not dict and name in kind.names:
            place = kind.names.index(name)
            return Value(kind.items[place], item_text(value.text, place))
        if isinstance(kind, types.Array):
            return arrays.attribute(self, value, name, node)
        if isinstance(kind, types.Scalar) and not kind.python and name in ("shape", "dtype", "ndim", "size"):
            return self.constant(getattr(np.dtype(kind.name).type(0), name), node)
        if isinstance(kind, types.LookedUp) and name in ("shape", "dtype", "ndim", "size"):
            return arrays.attribute(self, Value(kind.weights, value.text), name, node)
        raise self.refuse(f"the attribute {name} of a {kind}", node)

    def item(self, node: nf.Read, key: nf.Value) -> Value:
        """`base[key]`."""
        value = self.some(self.expr(node.base))
        if isinstance(value.kind, types.Array):
            return arrays.item(self, value, key, node)
        if isinstance(value.kind, types.LookedUp):
            return arrays.looked_up(self, value, key, node)
        if isinstance(value.kind, types.Object):
            return user_objects.special(self, "__getitem__", [self.once(value), self.expr(key)], node)
        if isinstance(value.constant, OutsideDict):
            return self.program.in_python(self, node, value.constant.item, [self.expr(key)], {})
        return containers.item(self, value, key, node)

    # --- statements

    def on_bind(self, node: nf.Bind) -> None:
        match node:
            case nf.Bind(target=None, value=nf.Yield(value=item, every=False)) if self.yields:
                take = self.yields.pop()  # an item may be made of another generator, which is read in place, too
                try:
                    take(self.expr(item))
                finally:
                    self.yields.append(take)
            case nf.Bind(target=nf.Unpack() | str(), value=None):
                raise self.refuse("del of a name", node)
            case nf.Bind(target=None, value=nf.Value() as value):
                self.expr(value)
            case nf.Bind(target=nf.Unpack() | str() as target, value=nf.Value() as value):
                made = iteration.unrolled(self, value) if isinstance(target, nf.Unpack) else None
                self.store(target, made or self.expr(value), node)

    def on_write(self, node: nf.Write) -> None:
        key = node.key
        if isinstance(key, str):
            made = None if node.value is None else self.once(self.expr(node.value))
            holder = self.once(self.expr(node.base))
            if made is None or not isinstance(holder.kind, types.Object):
                raise self.refuse("an assignment to an attribute", node)
            user_objects.set_attribute(self, holder, key, made, node)
            return
        match node.value:
            case None:
                containers.delete(self, self.held(self.expr(node.base)), key, node)
            case nf.Call(function=nf.Operator(symbol=symbol), args=[nf.Read(), value]) if (
                symbol in nf.UPDATES and isinstance((holder := self.held(self.expr(node.base))).kind, types.Array)
            ):
                arrays.augment_item(self, holder, key, value, node, WORDS[symbol[:-1]])
            case value:
                made = self.expr(value)
                holder = self.expr(node.base)
                store = arrays.set_item if isinstance(holder.kind, types.Array) else containers.set_item
                store(self, holder, key, made, node)

    def on_loop(self, node: nf.Loop) -> None:
        if node.target is None:
            self.while_(node)
        else:
            self.for_each(node)

    def on_with(self, node: nf.With) -> None:
        # a float operation that sets a flag leaves the example to Python, which warns or not
        called = node.manager.function if isinstance(node.manager, nf.Call) else None
        if called is None or self.expr(called).constant is not np.errstate or node.target is not None:
            return self.managed(node)
        given = node.manager.keywords  # type: ignore[attr-defined]
        if any(name in ("all", "under") and self.expr(value).constant != "ignore" for name, value in given):
            raise self.refuse("a `with` block that asks for underflow to be reported", node)
        self.block(node.body)

    def conditional(self, test: nf.Value, then: Any, other: Any, live: nf.Names | None) -> None:
        """Like `Reader.conditional`; a test of a tree's class narrows a variable."""
        match test:
            case nf.Call(function=nf.Name(id="isinstance"), args=[nf.Name(id=name), nf.Value() as classes]):
                known = (self.env or {}).get(name)
                if known is not None and getattr(known.kind, "leaf", None) and not known.maybe_unbound:
                    return try_and_match.tree_test(self, self.expr(classes), name, then, other, live)
        return super().conditional(test, then, other, live)

    def managed(self, node: nf.With) -> None:
        """`with` of a user's object."""
        manager = self.held(self.expr(node.manager))
        if not isinstance(manager.kind, types.Object):
            raise self.refuse("a `with` block", node)
        entered, nothing = self.special("__enter__", [manager], node), [self.constant(None, node)] * 3
        if node.target is not None:
            self.store(node.target, entered, node)
        try_and_match.finally_(self, node.body, lambda: self.special("__exit__", [manager, *nothing], node))

    def updated(self, node: nf.Call) -> Value:
        """`value += more`: the value that the name is bound to afterwards."""
        op = WORDS[node.symbol[:-1]]
        old, value = self.expr(node.args[0]), self.expr(node.args[1])
        if isinstance(old.kind, types.Object):
            return user_objects.updated(self, self.once(old), _METHODS[op].method, value, node)
        if isinstance(old.kind, types.Array):
            arrays.augment(self, old, op, value, node)
        elif isinstance(old.kind, types.List | types.Set | types.Dict):
            containers.augment(self, old, op, value, node)
        else:
            return self.binary(op, old, value, node)
        return old

    # --- stores

    def store(self, target: nf.Target, value: Value, node: nf.Node) -> None:
        """Bind the names of a target."""
        if isinstance(target, str):
            self.assign(target, value)
        elif target.starred >= 0:
            containers.unpack_with_star(self, value, target, node)
        else:
            for each, part in zip(target.targets, self.parts(value, len(target.targets), node), strict=True):
                self.store(each, part, node)

    def parts(self, value: Value, count: int, node: nf.Node) -> list[Value]:
        """The items of a value that is unpacked, each in a variable of its own."""
        value = as_tuple(value)
        kind = value.kind
        if value.parts is not None:
            if len(value.parts) != count:
                self.stop()
            return [self.held(part) for part in value.parts]
        if isinstance(kind, types.Tuple):
            if len(kind.items) != count:
                self.stop()
            return [self.temp(item_text(value.text, i), each) for i, each in enumerate(kind.items)]
        if isinstance(kind, types.ObjectTree) and kind.leaf is not None:
            if len(kind.fields) - 1 != count:
                self.stop()
            return [iteration.node_item(self, self.once(value), str(i)) for i in range(count)]
        if isinstance(kind, types.List | types.Array | types.Text | types.TreeNodes) or kind == types.RANGE:
            items = iteration.items_of_value(self, self.once(value), node)
            self.fail_if(f"{items.length} != {count}")
            return [items.get(str(i)) for i in range(count)]
        raise self.refuse(f"a {kind} that is unpacked", node)

    def index(self, value: Value, node: nf.Node) -> str:
        """An index as an int64; for anything but an integer Python raises, so the example is left to it."""
        value = arrays.operand(self, value, node)
        if isinstance(value.kind, types.Union):
            return number_operators.lift(self, lambda one: Value(INT, self.index(one, node)), value).text
        if not types.is_number(value.kind) or value.kind.kind == "f":
            self.stop()
        return value.text if value.kind.name == "int64" else f"int64({value.text})"

    statements: ClassVar[dict[type[nf.Statement], Callable[..., None]]] = {
        nf.Bind: on_bind, nf.Write: on_write, nf.Branch: Reader.on_branch, nf.Loop: on_loop,
        nf.Jump: Reader.on_jump, nf.Return: Reader.on_return, nf.Raise: Reader.on_raise,
        nf.Try: on_try, nf.With: on_with,
    }  # fmt: skip


def read_function(program: SourceProgram, instance: Instance) -> None:
    """Read a function for the types of an instance, and write its text."""
    ExpressionReader(program, instance).whole()
