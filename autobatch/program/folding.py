"""Folding: the statements that a piece of sugar was lowered to become one value again.

Code written back then reads, and runs, like what the user wrote.

    _ab_1 = []
    for x in xs:                      return f([x * 2 for x in xs])
        _ab_1.append(x * 2)     ->
    return f(_ab_1)

A temporary name that is read once, by the next statement, goes: its value takes the place of the name. Lowering has put
it before the statement only because it took statements; what the statement evaluates before the name, lowering has left
there because nothing in these statements can change it. So the order of the evaluation is the user's own.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

from autobatch.program.normal_form import (
    COMPARED,
    OF_OBJECTS,
    TEMPORARY,
    Bind,
    Branch,
    Call,
    Closure,
    Constant,
    Each,
    Loop,
    Name,
    OpaqueStatement,
    Operator,
    Read,
    Statement,
    Sugar,
    Value,
    Write,
    Yield,
    closures,
    values_of,
    walk,
    with_bodies,
    with_values,
)

_OF_CLASSES = frozenset({"super", "__class__"})


def folded(function: Closure, in_lanes: bool = False) -> Closure:
    """A function with its sugar folded; its statements are new ones, and liveness is to be found anew.

    Args:
        in_lanes: operands that only some lanes evaluate will be functions of their own, and an update a read and a
            write. Operands with `super()` stay statements, and so do branches inside of each other.
    """
    nodes = (node for each in closures(function) for node in walk(each.body))
    return _Fold(Counter(node.id for node in nodes if isinstance(node, Name)), in_lanes).closure(function)


class _Fold:
    """`uses`: how many places read a temporary name."""

    def __init__(self, uses: Counter[str], in_lanes: bool) -> None:
        self.uses = uses
        self.in_lanes = in_lanes

    def closure(self, node: Closure) -> Closure:
        return dataclasses.replace(node, body=self.body(node.body))

    def body(self, statements: list[Statement]) -> list[Statement]:
        out: list[Statement] = []
        for each in statements:
            self.add(self.inside(each), out)
        return out

    def inside(self, node: Statement) -> Any:
        """A copy of a statement whose own statements, and functions, are folded."""
        node = with_bodies(with_values(node, self.value), self.body)
        return self.taking(node, node.head) if isinstance(node, Loop) and node.target is None else node

    def value(self, node: Value) -> Value:
        made = with_values(node, self.value)
        return self.closure(made) if isinstance(made, Closure) else made

    def test(self, node: Value) -> Value:
        """A test, of which only the truth counts, without the operator that says so of its parts."""
        match node:
            case Call(function=Operator(symbol="truth"), args=[part]):
                return self.test(part)
            case Call(function=Operator(symbol="not"), args=[part]):
                return dataclasses.replace(node, args=[self.test(part)])
            case Sugar(how="and" | "or", parts=parts):
                return dataclasses.replace(node, parts=[self.test(each) for each in parts])
        return node

    def add(self, node: Statement, out: list[Statement]) -> None:
        """Put a statement behind those before it, of which it may take some."""
        if not (isinstance(node, Loop) and node.target is None):
            node = self.taking(node, out)
        made = None
        match node:
            case Branch(choice=str(name)) if name:
                made = self.chosen(node, out)
            case Branch(body=[Branch(body=body, orelse=[], choice="") as inner], orelse=[]) if not self.in_lanes:
                node = Branch(node.at, _joined("and", node.test, inner.test, node), body, [])
            case Loop(fills=str(name)) if name:
                made = self.filled(node, out)
            case Write(value=Call(args=[Read(base=base, key=key), _])) if (
                base is node.base and key is node.key and not self.in_lanes
            ):
                self.update(node, out)
        if made is None:
            out.append(node)
        else:
            self.add(made, out)

    def taking(self, node: Any, out: list[Statement]) -> Any:
        """The statement with the values of the temporary names before it that it alone reads."""
        if isinstance(node, OpaqueStatement):
            return node
        read = [name for name in _evaluated(node) if name.startswith(TEMPORARY)]
        taken: dict[str, Value] = {}
        while out and read:
            last = out[-1]
            if not isinstance(last, Bind) or not isinstance(last.target, str) or last.target not in read:
                break
            if self.uses[last.target] != 1 or last.value is None or not _is_expression(last.value):
                break
            read = read[: read.index(last.target)]
            taken[last.target] = last.value
            out.pop()

        def put(value: Value) -> Value:
            if isinstance(value, Name) and value.id in taken:
                return taken[value.id]
            made = with_values(value, put)
            match made:
                case Call(function=Closure(name="<genexpr>") as generator, args=[first]):
                    return _comprehension(generator.body, "", "generator", first) or made
            return made

        node = with_values(node, put) if taken else node
        match node:
            case Branch(test=test):
                node.test = self.test(test)
            case Loop(target=None, over=test):
                node.over = self.test(test)
        return node

    def chosen(self, node: Branch, out: list[Statement]) -> Bind | None:
        """What a ternary, `and`, `or` or a chained comparison decides."""
        if self.in_lanes and any(isinstance(each, Name) and each.id in _OF_CLASSES for each in walk(node)):
            return None
        name = node.choice
        arms = [
            each[0].value if len(each) == 1 and isinstance(each[0], Bind) and each[0].target == name else None
            for each in (node.body, node.orelse)
        ]
        if all(arm is not None for arm in arms):
            return Bind(node.at, name, Sugar(node.at, "if", [node.test, *arms]))  # type: ignore[list-item]
        more = arms[0] or arms[1]
        last = out[-1] if out else None
        if more is None or (node.body and node.orelse) or not isinstance(last, Bind) or last.target != name:
            return None
        if not isinstance(node.test, Name) or node.test.id != name or last.value is None:
            return None
        out.pop()
        self.uses[name] -= 1
        middle = _middle(last.value, more) if node.body else None
        if middle is None:
            return Bind(node.at, name, _joined("and" if node.body else "or", last.value, more, node))
        parts = list(more.parts if isinstance(more, Sugar) else [more.args[0], more.function, more.args[1]])  # type: ignore[attr-defined]
        before = out[-1] if out else None
        if isinstance(middle, Name) and middle.id.startswith(TEMPORARY):
            if isinstance(before, Bind) and before.target == middle.id and self.uses[middle.id] == 2 and before.value:
                out.pop()
                middle = before.value
            else:
                return Bind(node.at, name, _joined("and", last.value, more, node))
        left: Any = last.value
        return Bind(node.at, name, Sugar(node.at, "compare", [left.args[0], left.function, middle, *parts[1:]]))

    def update(self, node: Write, out: list[Statement]) -> None:
        """`base[key] += value`, where base and key are evaluated once: put them where they are read and written."""
        for field in ("key", "base"):
            name, last = getattr(node, field), out[-1] if out else None
            if isinstance(name, Name) and isinstance(last, Bind) and last.target == name.id and self.uses[name.id] == 2:
                read: Any = node.value
                setattr(node, field, last.value)
                node.value = dataclasses.replace(read, args=[Read(name.at, node.base, node.key), read.args[1]])
                out.pop()
            elif isinstance(name, Name) and name.id.startswith(TEMPORARY):
                break

    def filled(self, node: Loop, out: list[Statement]) -> Bind | None:
        """What a comprehension fills."""
        match out[-1:]:
            case [Bind(target=str(name), value=Call(function=Operator(symbol=how), args=[]))] if name == node.fills:
                made = _comprehension([node], name, how, None)
                if made is not None:
                    out.pop()
                    self.uses[name] -= 1
                    return Bind(made.at, name, made)
        return None


def _joined(how: str, left: Value, right: Value, at: Statement) -> Sugar:
    parts = [part.parts if isinstance(part, Sugar) and part.how == how else [part] for part in (left, right)]
    return Sugar(at.at, how, [each for part in parts for each in part])


def _middle(left: Value, right: Value) -> Value | None:
    """What two comparisons share, if they are links of a chain."""
    if not isinstance(left, Call) or left.symbol not in COMPARED | OF_OBJECTS:
        return None
    ours = left.args[1]
    if isinstance(right, Sugar) and right.how == "compare":
        theirs = right.parts[0]
    elif isinstance(right, Call) and right.symbol in COMPARED | OF_OBJECTS:
        theirs = right.args[0]
    else:
        return None
    is_name = isinstance(ours, Name) and isinstance(theirs, Name) and ours.id == theirs.id
    return ours if (is_name and ours.id.startswith(TEMPORARY)) or ours is theirs else None  # type: ignore[attr-defined]


def _comprehension(body: list[Statement], fills: str, how: str, first: Value | None) -> Sugar | None:
    """The comprehension that a loop is; `first`: the iterable of a generator's first loop."""
    loops: list[Each] = []
    while True:
        match body:
            case [Loop(target=(str() | object()) as target, over=over, body=inner, orelse=[], fills=name) as loop] if (
                target is not None and name == fills
            ):
                loops.append(Each(loop.at, target, over if first is None or loops else first, []))
                body = inner
            case [Branch(test=test, body=inner, orelse=[], choice="")] if loops:
                loops[-1].tests.append(test)
                body = inner
            case _:
                break
    if not loops:
        return None
    match body:
        case [Bind(target=None, value=Call(function=Read(base=Name(id=name), key="append" | "add"), args=[element]))]:
            if name == fills:
                return Sugar(loops[0].at, how, [element], loops)
        case [Bind(target=None, value=Yield(value=element, every=False))] if how == "generator":
            return Sugar(loops[0].at, how, [element], loops)
        case [Write(base=Name(id=name), key=Constant() | Name() as key, value=Value() as value)] if name == fills:
            return Sugar(loops[0].at, how, [key, value], loops)
        case [Bind(target=str(at), value=Value() as key), Write(base=Name(id=name), key=Name(id=read), value=value)]:
            if name == fills and at == read and value is not None:
                return Sugar(loops[0].at, how, [key, value], loops)
    return None


def _is_expression(value: Value) -> bool:
    """True if a value can stand inside an expression."""
    if isinstance(value, Closure):
        if value.name == "<genexpr>":
            return _comprehension(value.body, "", "generator", value) is not None
        return value.name == "<lambda>" and len(value.body) == 1
    return True


def _evaluated(node: Any) -> Iterator[str]:
    """The names that a node reads whenever it is evaluated, in order; not those that only an arm reads."""
    match node:
        case Name(id=name):
            yield name
        case Sugar(loops=[first, *_]):
            yield from _evaluated(first.over)
        case Sugar(how="compare", parts=[left, _, right, *_]):
            yield from _evaluated(left)
            yield from _evaluated(right)
        case Sugar(parts=[first, *_]):
            yield from _evaluated(first)
        case Write(base=Name(id=name), value=value) if name.startswith(TEMPORARY) and value is not None:
            yield from _evaluated(value)  # an item of a comprehension's dict: the key is evaluated first
        case _:
            for each in values_of(node):
                yield from _evaluated(each)
