"""The normal form of a function: few kinds of node, which say in one way what Python's syntax says in many.

All sugar is gone (`program.lowering` removes it): what is left of `and`, `or`, ternaries and chained comparisons are
branches, of comprehensions loops, of augmented assignment an operator and a write. It is structured, not a flat graph,
so that it can be written back as Python (`program.python_text`). What is none of them is `Opaque` and stays Python:
nothing is refused at this level, and a consumer decides whether the rest still serves.

A *value* is an expression that evaluates its parts from left to right and binds no name; whatever needs a statement
stands in a statement before it. A *statement* carries what is live after it and what is certainly bound before it
(`program.liveness`). Names that begin with `_ab_` are temporary: bound once, or once in each arm of a branch; what a
pattern has found may be bound in one arm and read later, and ends in `PART`.

    y = f(a, b if c else d)[i] < 2 < k          _ab_1 = c                      (only if `c` is more than a name)
                                                Branch c: _ab_2 = b, else: _ab_2 = d        choice=_ab_2
                                                _ab_3 = f(a, _ab_2)[i] < 2
                                                Branch _ab_3: _ab_3 = 2 < k                 choice=_ab_3
                                                y = _ab_3
"""

import ast
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from autobatch.facts import operators
from autobatch.program.scopes import binds

Names = frozenset[str]
TEMPORARY = "_ab_"
PART = "part"


class Place(NamedTuple):
    """Where a node was written: lines from 1, columns from 0 in bytes, as in `ast`."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """A piece of a program. `at`: where the user wrote what it was made from."""

    at: Place

    @property
    def lineno(self) -> int:
        """The line that it begins on, by the name that `ast` has for it."""
        return self.at.line


# Values.


@dataclasses.dataclass(slots=True, eq=False)
class Value(Node):
    """An expression without sugar."""


@dataclasses.dataclass(slots=True, eq=False)
class Name(Value):
    """A variable that is read."""

    id: str


@dataclasses.dataclass(slots=True, eq=False)
class Constant(Value):
    """A literal."""

    value: object


@dataclasses.dataclass(slots=True, eq=False)
class Operator(Value):
    """What syntax calls, as the function of a `Call`.

    `+` … `@` and `+=` … `@=` of two values, `<` … `!=`, `is`, `is not`, `in`, `not in`; `neg`, `pos`, `invert`, `not`
    of one, and `truth` (`not not`), where only the truth of a part of a test counts; `slice` of three; `tuple`, `list`,
    `set` of the items, `dict` of one `item` (key, value) each; `format`, an f-string, of constants and `formatted`
    (value, number of the conversion, format); `assertion`, the error of an `assert`, of its message or of nothing.
    """

    symbol: str


@dataclasses.dataclass(slots=True, eq=False)
class Spread(Value):
    """`*value` among arguments or items; `**value` if `named`."""

    value: Value
    named: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Call(Value):
    """A call, or an operator. `keywords` are (name, value); a `**value` is a named `Spread` with the name ""."""

    function: Value
    args: list[Value]
    keywords: list[tuple[str, Value]] = dataclasses.field(default_factory=list)

    @property
    def symbol(self) -> str:
        """The symbol if an operator is called, else ""."""
        return self.function.symbol if isinstance(self.function, Operator) else ""


@dataclasses.dataclass(slots=True, eq=False)
class Read(Value):
    """`base[key]`, or `base.key` if the key is a str."""

    base: Value
    key: Value | str


@dataclasses.dataclass(slots=True, eq=False)
class Yield(Value):
    """`yield value`, or `yield from value` if `every`; always the whole value of a `Bind`."""

    value: Value
    every: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Parameters:
    """The parameters of a function, in the order of their kinds; `defaults` belong to the last positional ones."""

    positional_only: list[str]
    positional: list[str]
    rest: str
    keyword_only: list[str]
    named_rest: str
    defaults: list[Value]
    keyword_defaults: list[Value | None]

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        rest = [name for name in (self.rest, self.named_rest) if name]
        return [*self.positional_only, *self.positional, *self.keyword_only, *rest]


@dataclasses.dataclass(slots=True, eq=False)
class Closure(Value):
    """A function: the user's own, at the top, or one that is made where this value is evaluated.

    Attributes:
        name: `<lambda>` and `<genexpr>` as in code objects. A generator expression has one parameter, its iterable.
        shared: names declared `global`; outer: names declared `nonlocal`.
        is_generator: True if its own body yields. doc: its docstring, or None.
        decorators: evaluated before the defaults; the last one is called first.
    """

    name: str
    parameters: Parameters
    body: list["Statement"]
    shared: Names = frozenset()
    outer: Names = frozenset()
    is_generator: bool = False
    doc: str | None = None
    decorators: list[Value] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, eq=False)
class Opaque(Value):
    """A value that stays Python: `await`, a comprehension whose functions keep its variables. `syntax` is a copy."""

    syntax: ast.expr


@dataclasses.dataclass(slots=True, eq=False)
class Each(Node):
    """`for target in over if test …` of a comprehension."""

    target: "Target"
    over: Value
    tests: list[Value]


@dataclasses.dataclass(slots=True, eq=False)
class Sugar(Value):
    """Statements that are one expression of Python; only in a program that is folded (`program.folding`).

    `how`: `if` of test, body and orelse; `and`, `or` of the parts; `compare` of values with operators between them;
    `list`, `set`, `generator` of the element, `dict` of key and value, with `loops`; `keep` of a name and the value
    that it is bound to, as by `:=`.
    """

    how: str
    parts: list[Value]
    loops: list[Each] = dataclasses.field(default_factory=list)


# Targets of `Bind` and `Loop`: a name, or a nested list of targets; at most one of a list is starred.


@dataclasses.dataclass(slots=True, eq=False)
class Unpack(Node):
    """`(a, *b, (c, d))` as a target. `starred`: the index of the starred one, or -1."""

    targets: list["Target"]
    starred: int = -1


Target = str | Unpack


# Statements.


@dataclasses.dataclass(slots=True, eq=False)
class Statement(Node):
    """Attributes set by `program.liveness`: names that may be read after it, and names certainly bound before it."""

    live_after: Names = dataclasses.field(default=frozenset(), kw_only=True)
    bound_before: Names = dataclasses.field(default=frozenset(), kw_only=True)


@dataclasses.dataclass(slots=True, eq=False)
class Bind(Statement):
    """`target = value`; `value` alone if the target is None; `del target` if the value is None."""

    target: Target | None
    value: Value | None


@dataclasses.dataclass(slots=True, eq=False)
class Write(Statement):
    """`base[key] = value` or `base.key = value`, evaluated as value, base, key; `del` if the value is None."""

    base: Value
    key: Value | str
    value: Value | None


@dataclasses.dataclass(slots=True, eq=False)
class Inner(Statement):
    """A statement with statements in it.

    Attributes:
        live_head: names that may be read from a loop's head on, or in an arm of a branch; live_out: after it.
        bound: names certainly bound before it that nothing inside unbinds; bound_end: at the end of the loop's body,
            or of both arms.
    """

    live_head: Names = dataclasses.field(default=frozenset(), kw_only=True)
    live_out: Names = dataclasses.field(default=frozenset(), kw_only=True)
    bound: Names = dataclasses.field(default=frozenset(), kw_only=True)
    bound_end: Names = dataclasses.field(default=frozenset(), kw_only=True)


@dataclasses.dataclass(slots=True, eq=False)
class Branch(Inner):
    """`if`. `choice`: the temporary name that `and`, `or` or a ternary decides, bound after both arms; else ""."""

    test: Value
    body: list[Statement]
    orelse: list[Statement]
    choice: str = ""


@dataclasses.dataclass(slots=True, eq=False)
class Loop(Inner):
    """`for target in over`, or `while test` if the target is None; `head` runs before each test.

    `fills`: the temporary list, set or dict that a comprehension fills; else "".
    """

    target: Target | None
    over: Value  # the iterable, or the test
    body: list[Statement]
    orelse: list[Statement]
    head: list[Statement] = dataclasses.field(default_factory=list)
    fills: str = ""


@dataclasses.dataclass(slots=True, eq=False)
class Jump(Statement):
    """`break` or `continue`."""

    to: str


@dataclasses.dataclass(slots=True, eq=False)
class Return(Statement):
    """`return value`; None for a bare one."""

    value: Value | None


@dataclasses.dataclass(slots=True, eq=False)
class Raise(Statement):
    """`raise value from cause`; no value: the exception being handled."""

    value: Value | None = None
    cause: Value | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Handler(Node):
    """`except types as name`; None and "" if left out."""

    types: Value | None
    name: str
    body: list[Statement]


@dataclasses.dataclass(slots=True, eq=False)
class Try(Inner):
    """`try`."""

    body: list[Statement]
    handlers: list[Handler]
    orelse: list[Statement]
    final: list[Statement]


@dataclasses.dataclass(slots=True, eq=False)
class With(Inner):
    """`with manager as target`; the target is None if left out."""

    manager: Value
    target: Target | None
    body: list[Statement]


@dataclasses.dataclass(slots=True, eq=False)
class OpaqueStatement(Statement):
    """A statement that stays Python: a class, an import, asynchronous code. `syntax` is a copy."""

    syntax: ast.stmt


# What operators do.

ARITHMETIC = frozenset(each.symbol for each in operators.ARITHMETIC)
COMPARED = frozenset(each.symbol for each in operators.COMPARISONS)
SINGLE = frozenset(each.name for each in operators.UNARY)
UPDATES = frozenset(f"{symbol}=" for symbol in ARITHMETIC)
OF_OBJECTS = frozenset(("is", "is not", "in", "not in"))
DISPLAYS = frozenset(("tuple", "list", "set", "dict", "item", "format", "formatted", "slice", "assertion"))


# What patterns look into; calls of these functions are lowered `match` statements.


def sequence_parts(subject: Any, count: int, star: int, keeps: bool) -> tuple[Any, ...] | None:
    """The items of a sequence for a pattern of so many parts, or None; `star` is the starred one, a list if it `keeps`.

    >>> sequence_parts([1, 2, 3], 2, 1, True), sequence_parts("ab", 2, -1, False)
    ((1, [2, 3]), None)
    """
    match subject:
        case [*_] if len(subject) == count if star < 0 else len(subject) >= count - 1:
            items = tuple(subject)
            end = len(items) - count + star + 1
            return items if star < 0 else (*items[:star], [*items[star:end]] if keeps else None, *items[end:])
    return None


def class_parts(subject: Any, cls: Any, count: int, names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The attributes for a class pattern of `count` positional parts and these named ones, or None.

    >>> class_parts(1.5, float, 1, ()), class_parts(1.5, int, 1, ()), class_parts(1.5, float, 0, ("real",))
    ((1.5,), None, (1.5,))
    """
    return _class_pattern(count, names)(subject, cls)


@functools.cache
def _class_pattern(count: int, names: tuple[str, ...]) -> Callable[[Any, Any], tuple[Any, ...] | None]:
    found = [f"p{place}" for place in range(count + len(names))]
    given, made = ", ".join([*found[:count], *map("{}={}".format, names, found[count:])]), ", ".join([*found, ""])
    text = f"def find(it, cls):\n match it:\n  case cls({given}): return ({made})"
    space: dict[str, Any] = {}
    exec(text, space)
    return space["find"]


PARTS: tuple[Any, ...] = (sequence_parts, class_parts)


# Walks.


def target_names(target: Target | None) -> Iterator[str]:
    """The names that a target binds."""
    if isinstance(target, str):
        yield target
    elif target is not None:
        for each in target.targets:
            yield from target_names(each)


def values_of(node: Node) -> Iterator[Value]:
    """The values that a node evaluates itself, in order; those of statements inside of it are not among them."""
    match node:
        case Call(function=function, args=args, keywords=keywords):
            yield function
            yield from args
            yield from (value for _, value in keywords)
        case Sugar(parts=parts, loops=loops):
            for each in loops:
                yield each.over
                yield from each.tests
            yield from parts
        case Closure(parameters=parameters, decorators=decorators):
            yield from decorators
            yield from parameters.defaults
            yield from (value for value in parameters.keyword_defaults if value is not None)
        case _:
            values = [getattr(node, name) for name in _VALUED.get(type(node), ())]
            yield from (value for value in values if isinstance(value, Value))


def with_values(node: Any, change: Callable[[Value], Value]) -> Any:
    """A node with the values that it evaluates itself changed; the same node if nothing changes."""

    def all_of(values: list[Value]) -> list[Value]:
        made = list(map(change, values))
        return values if all(map(operator.is_, made, values)) else made

    new: dict[str, Any] = {}
    match node:
        case Call(args=args, keywords=keywords):
            new = {"function": change(node.function), "args": all_of(args)}
            named = [value for _, value in keywords]
            if (made := all_of(named)) is not named:
                new["keywords"] = [(name, value) for (name, _), value in zip(keywords, made, strict=True)]
        case Sugar(parts=parts, loops=loops):
            heads = [dataclasses.replace(each, over=change(each.over), tests=all_of(each.tests)) for each in loops]
            new = {"parts": all_of(parts), "loops": heads or loops}
        case Closure(parameters=given, decorators=decorators):
            new = {"decorators": all_of(decorators)}
            if given.defaults or any(given.keyword_defaults):
                by_name = [None if each is None else change(each) for each in given.keyword_defaults]
                first = all_of(given.defaults)
                new["parameters"] = dataclasses.replace(given, defaults=first, keyword_defaults=by_name)
        case _:
            for name in _VALUED.get(type(node), ()):
                value = getattr(node, name)
                if isinstance(value, Value):
                    new[name] = change(value)
    if all(value is getattr(node, name) for name, value in new.items()):
        return node
    return dataclasses.replace(node, **new)


def with_bodies(node: Any, change: Callable[[list["Statement"]], list["Statement"]]) -> Any:
    """A copy of a statement with the lists of statements directly inside of it changed."""
    names = [name for name in ("head", "body", "orelse", "final") if hasattr(node, name)]
    new: dict[str, Any] = {name: change(getattr(node, name)) for name in names}
    if isinstance(node, Try):
        new["handlers"] = [dataclasses.replace(each, body=change(each.body)) for each in node.handlers]
    return dataclasses.replace(node, **new)


_VALUED = {
    Spread: ("value",), Yield: ("value",), Read: ("base", "key"), Bind: ("value",), Return: ("value",),
    Write: ("value", "base", "key"), Branch: ("test",), Loop: ("over",), Raise: ("value", "cause"), With: ("manager",),
}  # fmt: skip
"""The fields of other nodes that hold values, in the order in which they are evaluated."""


def bodies_of(node: Node) -> Iterator[list[Statement]]:
    """The lists of statements directly inside a statement of the same scope."""
    match node:
        case Branch(body=body, orelse=orelse):
            yield from (body, orelse)
        case Loop(head=head, body=body, orelse=orelse):
            yield from (head, body, orelse)
        case Try(body=body, handlers=handlers, orelse=orelse, final=final):
            yield body
            yield from (handler.body for handler in handlers)
            yield from (orelse, final)
        case With(body=body):
            yield body


def walk(nodes: Node | Sequence[Node]) -> Iterator[Node]:
    """All nodes of a scope, each before its parts; closures are yielded, and their bodies not entered."""
    stack: list[Node] = [nodes] if isinstance(nodes, Node) else list(nodes)[::-1]
    while stack:
        node = stack.pop()
        yield node
        cls = type(node)
        if cls in _LEAVES:
            continue
        if cls is Call and not node.keywords:  # type: ignore[attr-defined]
            stack += node.args[::-1]  # type: ignore[attr-defined]
            stack.append(node.function)  # type: ignore[attr-defined]
            continue
        if isinstance(node, Inner):
            inner: list[Node] = [each for body in bodies_of(node) for each in body]
            if isinstance(node, Try):
                inner += [handler.types for handler in node.handlers if handler.types is not None]
            stack += inner[::-1]
        stack += [*values_of(node)][::-1]


_LEAVES = frozenset((Name, Constant, Operator, Jump, Opaque, OpaqueStatement))


def closures(function: Closure) -> Iterator[Closure]:
    """A function, and all functions made inside of it."""
    yield function
    for node in walk(function.body):
        if isinstance(node, Closure):
            yield from closures(node)


def substituted(node: Any, names: dict[int, str]) -> Any:
    """A node with some of its values replaced by names. `names`: {id of a value: name}."""

    def change(value: Value) -> Value:
        name = names.get(id(value))
        return with_values(value, change) if name is None else Name(value.at, name)

    return with_values(node, change)


def stays(node: Value) -> bool:
    """True if a value cannot be moved into another function: it yields, awaits or binds names."""
    parts = walk(node)
    return any(isinstance(each, Yield) or (isinstance(each, Opaque) and binds(each.syntax)) for each in parts)


def is_lambda(function: Closure) -> bool:
    """True for a function that is one expression; any other is the whole value of a `Bind`."""
    return function.name == "<lambda>" and len(function.body) == 1 and isinstance(function.body[0], Return)


def is_tuple(node: Value) -> bool:
    """True for a tuple that is written out."""
    return isinstance(node, Call) and node.symbol == "tuple"


def items_of(node: Value) -> list[Value]:
    """The items of a tuple that is written out; any other value is the only one."""
    return node.args if is_tuple(node) else [node]  # type: ignore[attr-defined]


def path_of(value: Value) -> tuple[str, tuple[tuple[str, str | int], ...]] | None:
    """(name, steps) of a name followed by attributes and constant str or int keys; None for anything else."""
    steps: list[tuple[str, str | int]] = []
    while not isinstance(value, Name):
        match value:
            case Read(base=base, key=str(key)):
                steps.append(("attr", key))
            case Read(base=base, key=Constant(value=str() | int() as key)) if type(key) in (str, int):
                steps.append(("key", key))
            case _:
                return None
        value = base
    return value.id, tuple(reversed(steps))


def is_none(value: Value) -> bool:
    """True for the constant None."""
    return isinstance(value, Constant) and value.value is None


def method_of(node: Node) -> str:
    """The name of the method or function that a call names as an attribute, else ""."""
    function = node.function if isinstance(node, Call) else None
    return function.key if isinstance(function, Read) and isinstance(function.key, str) else ""
