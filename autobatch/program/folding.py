"""Copies of normal form: folded, so that the statements that sugar was lowered to are one value again, or renamed.

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
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autobatch.program import normal_form as nf
from autobatch.program.liveness import binds

_UNTIL = frozenset({"any", "all", "next"})
EAGER = frozenset({"sum", "min", "max", "list", "tuple", "sorted", "set", "frozenset", "dict", "join"})
"""Functions that read an iterator to its end before they do anything else than compute: it can be a list."""
_OF_CLASSES = frozenset({"super", "__class__"})


def folded(function: nf.Closure, in_lanes: bool = False) -> nf.Closure:
    """A function with its sugar folded; its statements are new ones, and liveness has to be computed again.

    Args:
        in_lanes: operands that only some lanes evaluate will be functions of their own, and an update a read and a
            write. Operands with `super()` stay statements, and so do branches inside of each other. Comprehensions
            stay loops, and a generator that a call reads becomes a function with that loop.
    """
    nodes = (node for each in nf.closures(function) for node in nf.walk(each.body))
    return _Fold(Counter(node.id for node in nodes if isinstance(node, nf.Name)), in_lanes).closure(function)


class _Fold:
    """`uses`: how many places read a temporary name."""

    def __init__(self, uses: Counter[str], in_lanes: bool) -> None:
        self.uses = uses
        self.in_lanes = in_lanes
        self.numbers = itertools.count(1)

    def closure(self, node: nf.Closure) -> nf.Closure:
        return dataclasses.replace(node, body=self.body(node.body))

    def body(self, statements: list[nf.Statement]) -> list[nf.Statement]:
        out: list[nf.Statement] = []
        for each in statements:
            self.add(self.inside(each), out)
        return out

    def inside(self, node: nf.Statement) -> Any:
        """A copy of a statement whose own statements, and functions, are folded."""
        node = nf.with_bodies(nf.with_values(node, self.value), self.body)
        return self.taking(node, node.head) if isinstance(node, nf.Loop) and node.target is None else node

    def value(self, node: nf.Value) -> nf.Value:
        made = nf.with_values(node, self.value)
        return self.closure(made) if isinstance(made, nf.Closure) else made

    def test(self, node: nf.Value) -> nf.Value:
        """A test, of which only the truth counts, without the operator that says so of its parts."""
        match node:
            case nf.Call(function=nf.Operator(symbol="truth"), args=[part]):
                return self.test(part)
            case nf.Call(function=nf.Operator(symbol="not"), args=[part]):
                return dataclasses.replace(node, args=[self.test(part)])
            case nf.Sugar(how="and" | "or", parts=parts):
                return dataclasses.replace(node, parts=[self.test(each) for each in parts])
        return node

    def add(self, node: nf.Statement, out: list[nf.Statement]) -> None:
        """Put a statement behind those before it, of which it may take some."""
        if not (isinstance(node, nf.Loop) and node.target is None):
            node = self.taking(node, out)
        made = None
        match node:
            case nf.Branch(choice=str(name)) if name:
                made = self.chosen(node, out)
            case nf.Branch(body=[nf.Branch(body=body, orelse=[], choice="") as inner], orelse=[]) if not self.in_lanes:
                node = nf.Branch(node.at, _joined("and", node.test, inner.test, node), body, [])
            case nf.Loop(fills=str(name)) if name and not self.in_lanes:
                made = self.filled(node, out)
            case nf.Write(value=nf.Call(args=[nf.Read(base=base, key=key), _])) if (
                base is node.base and key is node.key and not self.in_lanes
            ):
                self.update(node, out)
        if made is None:
            out.append(node)
        else:
            self.add(made, out)

    def taking(self, node: Any, out: list[nf.Statement]) -> Any:
        """The statement with the values of the temporary names before it that it alone reads."""
        if isinstance(node, nf.OpaqueStatement):
            return node
        read = [name for name in _evaluated(node) if name.startswith(nf.TEMPORARY)]
        taken: dict[str, nf.Value] = {}
        while out and read:
            last = out[-1]
            if not isinstance(last, nf.Bind) or not isinstance(last.target, str) or last.target not in read:
                break
            if self.uses[last.target] != 1 or last.value is None or not _is_expression(last.value, self.in_lanes):
                break
            read = read[: read.index(last.target)]
            taken[last.target] = last.value
            out.pop()

        def put(value: nf.Value) -> nf.Value:
            if isinstance(value, nf.Name) and value.id in taken:
                return taken[value.id]
            made = nf.with_values(value, put)
            match made:
                case nf.Call(function=nf.Closure(name="<genexpr>") as generator, args=[first]) if not self.in_lanes:
                    return _comprehension(generator.body, "", "generator", first) or made
                case nf.Call(args=[nf.Call(function=nf.Closure(name="<genexpr>")), *_]) if self.in_lanes:
                    return self.read_by(made, out)
                case nf.Spread(value=nf.Call(function=nf.Closure(name="<genexpr>")) as items) if self.in_lanes:
                    return dataclasses.replace(made, value=self.looped(items, "list", out))
            return made

        node = nf.with_values(node, put) if taken else node
        match node:
            case nf.Bind(target=nf.Unpack(), value=nf.Call(function=nf.Closure(name="<genexpr>")) as items):
                node.value = self.looped(items, "list", out) if self.in_lanes else items
            case nf.Branch(test=test):
                node.test = self.test(test)
            case nf.Loop(target=None, over=test):
                node.over = self.test(test)
        return node

    def read_by(self, call: nf.Call, out: list[nf.Statement]) -> nf.Call:
        """A call of which a generator is the first argument, if it does nothing but compute with the items."""
        function, (items, *rest) = call.function, call.args
        named = function.id if isinstance(function, nf.Name) else getattr(function, "key", "")
        has_key = any(key == "key" for key, _ in call.keywords)
        if isinstance(function, nf.Name) and named in _UNTIL and not has_key and len(rest) == (named == "next"):
            known = self.looped(items, named, out, rest)  # type: ignore[arg-type]
            known.function = nf.Call(call.at, nf.Name(call.at, "_ab_until"), [function, known.function])
            return known
        rest_of = [*rest, *[value for _, value in call.keywords]]  # is evaluated before the items are
        is_simple = all(isinstance(each, nf.Name | nf.Constant | nf.Closure) for each in rest_of)
        if named in EAGER and (named == "sorted" or not has_key) and is_simple:
            return dataclasses.replace(call, args=[self.looped(items, "list", out), *rest])  # type: ignore[arg-type]
        return call

    def looped(self, items: nf.Call, how: str, out: list[nf.Statement], default: Sequence[nf.Value] = ()) -> nf.Call:
        """A call of a generator expression as that of a function that makes a list of the items, or stops early."""
        generator: Any = items.function
        at, name = items.at, f"_ab_items_{next(self.numbers)}"
        made, given = nf.Name(at, "_ab_given"), generator.parameters
        if default:
            given = dataclasses.replace(given, positional=[*given.positional, made.id])

        def read(body: list[nf.Statement]) -> list[nf.Statement]:
            return [line for each in body for line in of_item(each)]

        def of_item(node: nf.Statement) -> list[nf.Statement]:
            match node:
                case nf.Bind(target=None, value=nf.Yield(value=nf.Value() as item)):
                    if how == "list":
                        return [nf.Bind(node.at, None, nf.Call(node.at, nf.Read(node.at, made, "append"), [item]))]
                    if how == "next":
                        return [nf.Return(node.at, item)]
                    stop: list[nf.Statement] = [nf.Return(node.at, nf.Constant(node.at, how == "any"))]
                    arms = (stop, []) if how == "any" else ([], stop)
                    return [nf.Branch(node.at, item, *arms)]
            return [nf.with_bodies(node, read)]

        body = read(generator.body)
        if how == "list":
            body.insert(0, nf.Bind(at, made.id, nf.Call(at, nf.Operator(at, "list"), [])))
        body.append(nf.Return(at, nf.Constant(at, how == "all") if how in ("any", "all") else made))
        out.append(nf.Bind(at, name, nf.Closure(at, name, given, body)))
        return nf.Call(at, nf.Name(at, name), [*items.args, *default])

    def chosen(self, node: nf.Branch, out: list[nf.Statement]) -> nf.Bind | None:
        """What a ternary, `and`, `or` or a chained comparison decides."""
        if self.in_lanes and any(isinstance(each, nf.Name) and each.id in _OF_CLASSES for each in nf.walk(node)):
            return None
        name = node.choice
        arms = [
            each[0].value if len(each) == 1 and isinstance(each[0], nf.Bind) and each[0].target == name else None
            for each in (node.body, node.orelse)
        ]
        if all(arm is not None for arm in arms):
            return nf.Bind(node.at, name, nf.Sugar(node.at, "if", [node.test, *arms]))  # type: ignore[list-item]
        more = arms[0] or arms[1]
        last = out[-1] if out else None
        if more is None or (node.body and node.orelse) or not isinstance(last, nf.Bind) or last.target != name:
            return None
        if not isinstance(node.test, nf.Name) or node.test.id != name or last.value is None:
            return None
        out.pop()
        self.uses[name] -= 1
        middle = _middle(last.value, more) if node.body else None
        if middle is None:
            return nf.Bind(node.at, name, _joined("and" if node.body else "or", last.value, more, node))
        parts = list(more.parts if isinstance(more, nf.Sugar) else [more.args[0], more.function, more.args[1]])  # type: ignore[attr-defined]
        if isinstance(middle, nf.Name) and middle.id.startswith(nf.TEMPORARY):
            middle = self.just_bound(middle, out)
            if middle is None:
                return nf.Bind(node.at, name, _joined("and", last.value, more, node))
            out.pop()
        left: Any = last.value
        return nf.Bind(node.at, name, nf.Sugar(node.at, "compare", [left.args[0], left.function, middle, *parts[1:]]))

    def just_bound(self, name: Any, out: list[nf.Statement]) -> nf.Value | None:
        """The value of a name that is read twice, if the last statement binds it."""
        match out[-1:]:
            case [nf.Bind(target=str(target), value=value)] if isinstance(name, nf.Name) and name.id == target:
                return value if self.uses[target] == 2 else None
        return None

    def update(self, node: nf.Write, out: list[nf.Statement]) -> None:
        """`base[key] += value`, where base and key are evaluated once: put them where they are read and written."""
        for field in ("key", "base"):
            name = getattr(node, field)
            value = self.just_bound(name, out)
            if value is not None:
                read: Any = node.value
                setattr(node, field, value)
                node.value = dataclasses.replace(read, args=[nf.Read(name.at, node.base, node.key), read.args[1]])
                out.pop()
            elif isinstance(name, nf.Name) and name.id.startswith(nf.TEMPORARY):
                break

    def filled(self, node: nf.Loop, out: list[nf.Statement]) -> nf.Bind | None:
        """What a comprehension fills."""
        match out[-1:]:
            case [nf.Bind(target=str(name), value=nf.Call(function=nf.Operator(symbol=how), args=[]))] if (
                name == node.fills
            ):
                made = _comprehension([node], name, how, None)
                if made is not None:
                    out.pop()
                    self.uses[name] -= 1
                    return nf.Bind(made.at, name, made)
        return None


def _joined(how: str, left: nf.Value, right: nf.Value, at: nf.Statement) -> nf.Sugar:
    parts = [part.parts if isinstance(part, nf.Sugar) and part.how == how else [part] for part in (left, right)]
    return nf.Sugar(at.at, how, [each for part in parts for each in part])


def _middle(left: nf.Value, right: nf.Value) -> nf.Value | None:
    """What two comparisons share, if they are links of a chain."""
    if not isinstance(left, nf.Call) or left.symbol not in nf.COMPARED | nf.OF_OBJECTS:
        return None
    ours = left.args[1]
    if isinstance(right, nf.Sugar) and right.how == "compare":
        theirs = right.parts[0]
    elif isinstance(right, nf.Call) and right.symbol in nf.COMPARED | nf.OF_OBJECTS:
        theirs = right.args[0]
    else:
        return None
    is_name = isinstance(ours, nf.Name) and isinstance(theirs, nf.Name) and ours.id == theirs.id
    return ours if (is_name and ours.id.startswith(nf.TEMPORARY)) or ours is theirs else None  # type: ignore[attr-defined]


def _comprehension(body: list[nf.Statement], fills: str, how: str, first: nf.Value | None) -> nf.Sugar | None:
    """The comprehension that a loop is; `first`: the iterable of a generator's first loop."""
    loops: list[nf.Each] = []
    while True:
        match body:
            case [
                nf.Loop(target=(str() | object()) as target, over=over, body=inner, orelse=[], fills=name) as loop
            ] if target is not None and name == fills:
                loops.append(nf.Each(loop.at, target, over if first is None or loops else first, []))
                body = inner
            case [nf.Branch(test=test, body=inner, orelse=[], choice="")] if loops:
                loops[-1].tests.append(test)
                body = inner
            case _:
                break
    if not loops:
        return None
    match body:
        case [nf.Bind(value=nf.Call(function=nf.Read(base=nf.Name(id=name), key="append" | "add"), args=[each]))]:
            parts = [each]
        case [nf.Bind(target=None, value=nf.Yield(value=each, every=False))] if how == "generator":
            parts, name = [each], fills
        case [nf.Write(base=nf.Name(id=name), key=nf.Constant() | nf.Name() as key, value=nf.Value() as value)]:
            parts = [key, value]
        case [
            nf.Bind(target=str(at), value=nf.Value() as key),
            nf.Write(base=nf.Name(id=name), key=nf.Name(id=read), value=nf.Value() as value),
        ] if at == read:
            parts = [key, value]
        case _:
            return None
    return nf.Sugar(loops[0].at, how, parts, loops) if name == fills else None


def unfolded(node: nf.Sugar, name: str, how: str = "") -> nf.Loop:
    """The loop that a comprehension is; `name`: of the list or dict that it fills.

    Args:
        how: `any`, `all` or `next`, of a generator of one loop: the loop ends when it has found the name's value.
    """
    at, filled = node.at, nf.Name(node.at, name)
    body: list[nf.Statement]
    if node.how == "dict":
        key = nf.Name(at, f"{name}_key")
        body = [nf.Bind(at, key.id, node.parts[0]), nf.Write(at, filled, key, node.parts[1])]
    elif how:
        (part,) = node.parts
        body = [nf.Bind(at, name, part if how == "next" else nf.Constant(at, how == "any")), nf.Jump(at, "break")]
        if how != "next":
            test = part if how == "any" else nf.Call(at, nf.Operator(at, "not"), [part])
            body = [nf.Branch(at, test, body, [])]
    else:
        body = [nf.Bind(at, None, nf.Call(at, nf.Read(at, filled, "append"), list(node.parts)))]
    for each in reversed(node.loops):
        for test in reversed(each.tests):
            body = [nf.Branch(test.at, test, body, [])]
        body = [nf.Loop(each.at, each.target, each.over, body, [], fills=name)]
    (loop,) = body
    assert isinstance(loop, nf.Loop)
    return loop


def _is_expression(value: nf.Value, in_lanes: bool) -> bool:
    """True if a value can stand inside an expression."""
    if isinstance(value, nf.Closure):
        if value.name == "<genexpr>":
            return in_lanes or _comprehension(value.body, "", "generator", value) is not None
        return value.name == "<lambda>" and len(value.body) == 1
    return True


def _evaluated(node: Any) -> Iterator[str]:
    """The names that a node reads whenever it is evaluated, in order; not those that only an arm reads."""
    match node:
        case nf.Name(id=name):
            yield name
        case nf.Sugar(loops=[first, *_]):
            yield from _evaluated(first.over)
        case nf.Sugar(how="compare", parts=[left, _, right, *_]):
            yield from _evaluated(left)
            yield from _evaluated(right)
        case nf.Sugar(parts=[first, *_]):
            yield from _evaluated(first)
        case nf.Write(base=nf.Name(id=name), value=value) if name.startswith(nf.TEMPORARY) and value is not None:
            yield from _evaluated(value)  # an item of a comprehension's dict: the key is evaluated first
        case _:
            for each in nf.values_of(node):
                yield from _evaluated(each)


def renamed(body: Sequence[nf.Statement], names: Mapping[str, str]) -> list[nf.Statement]:
    """A copy of statements in which names have other names, also in the functions inside that do not bind them."""

    def value(node: nf.Value) -> nf.Value:
        if isinstance(node, nf.Name):
            return dataclasses.replace(node, id=names.get(node.id, node.id))
        node = nf.with_values(node, value)
        if isinstance(node, nf.Closure):
            own = {*node.parameters.names, *binds(node.body)} - node.outer
            free = {name: new for name, new in names.items() if name not in own}
            return dataclasses.replace(node, body=renamed(node.body, free))
        return node

    def target(node: nf.Target) -> nf.Target:
        if isinstance(node, str):
            return names.get(node, node)
        return dataclasses.replace(node, targets=list(map(target, node.targets)))

    def statement(node: nf.Statement) -> nf.Statement:
        node = nf.with_bodies(nf.with_values(node, value), lambda inner: list(map(statement, inner)))
        if isinstance(node, nf.Bind | nf.Loop | nf.With) and node.target is not None:
            node = dataclasses.replace(node, target=target(node.target))
        if isinstance(node, nf.Branch):
            node = dataclasses.replace(node, choice=names.get(node.choice, node.choice))
        elif isinstance(node, nf.Loop):
            node = dataclasses.replace(node, fills=names.get(node.fills, node.fills))
        return node

    return list(map(statement, body))
