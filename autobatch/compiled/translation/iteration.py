"""Loops and comprehensions: an iterable is a length and a way to get its k-th item."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autobatch.compiled.translation import arrays
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import ITERATORS, call_values, first_of
from autobatch.compiled.translation.exact_types import BOOL, INT, STR
from autobatch.compiled.translation.object_trees import dtypes_of
from autobatch.compiled.translation.source_program import Inline
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import (
    LENGTH,
    NO_CONSTANT,
    Bounds,
    Value,
    as_tuple,
    bounds_of,
    code,
    convert,
    item_text,
    numba_type,
    parts_of,
)
from autobatch.errors import MAKE_A_LIST, Unsupported
from autobatch.program import normal_form as nf
from autobatch.program.folding import renamed
from autobatch.program.liveness import binds

_MOST_UNROLLED = 16  # more would be long to compile


@dataclasses.dataclass
class Iterated:
    """An iterable in compiled code.

    Attributes:
        length: text of the number of items, evaluated again before each item if it `changes`.
        get: returns the k-th item, k being text.
        over: what a loop that needs no k runs over; `take` makes the item of its variable.
    """

    length: str
    get: Callable[[str], Value]
    changes: bool = False
    over: str = ""
    take: Callable[[str], Value] | None = None


def for_each(reader: Any, node: nf.Loop) -> None:
    """`for target in iterable`, its body and its `else`.

    Where that has no compiled form, a body that leaves none of the few known items out is read once for each.
    """

    products = row_products(reader, node)
    reader.row_products |= products

    def body(item: Value) -> None:
        try:
            reader.store(node.target, item, node)
            reader.block(node.body)
        finally:
            for call in [call for calls in products.values() for call in calls]:
                reader.ahead.pop(call, None)

    def read_once() -> None:
        over_items(reader, node, items_of(reader, node.over), body)

    def read_for_each() -> None:
        jumps = any(isinstance(each, nf.Jump) for each in nf.walk(node.body))
        items = None if jumps else known_items(reader, node.over)
        if items is None or len(items) > _MOST_UNROLLED:
            raise Unsupported

        def each_once() -> None:
            for item in items if reader.env is not None else ():
                body(item)

        lines, reader.env = reader.arm(each_once, reader.env)
        reader.emit(code("for", reader.fresh("k"), "range(1)"), lines)  # which what reads a generator may leave
        if reader.env is not None:
            reader.block(node.orelse)

    first_of(reader, read_once, read_for_each, node)


# Products with the rows that a loop runs over are made before it, in a fraction of the time, with one record on a tape:
#
#     for x in rows:                             ahead = rows @ w
#         h = np.tanh(x @ w + h @ u)       ->    for k in range(len(rows)):
#                                                    h = np.tanh(ahead[k] + h @ u)


def row_products(reader: Reader, loop: nf.Loop) -> dict[nf.Value, Sequence[nf.Call]]:
    """The products `x @ w` that each round makes of an item x and of what the loop does not bind, by x's iterable."""
    inside = list(nf.walk(loop.body))
    if any(isinstance(each, nf.Jump | nf.Return) for each in inside):
        return {}  # some rows may not be reached
    always = [part for each in loop.body if isinstance(each, nf.Bind | nf.Write) for part in nf.walk(each)]
    products = [(each, nf.path_of(each.args[1])) for each in always if isinstance(each, nf.Call) and each.symbol == "@"]
    written = [nf.path_of(each.base) for each in inside if isinstance(each, nf.Write)]
    inner = [each.binds for each in reader.program.local_functions.values()]  # which the loop may call
    inner += [each.outer for each in nf.closures(reader.form)]
    changed = binds(loop).union(*inner, (path[0] for path in written if path))
    fixed = [(each, getattr(each.args[0], "id", "")) for each, path in products if path and path[0] not in changed]
    items = [each for each in _named_items(reader, loop.target, loop.over) if each[0] not in binds(loop.body)]
    return {over: [each for each, item in fixed if item == name] for name, over in items}


def _named_items(reader: Reader, target: nf.Target | None, over: nf.Value) -> Iterator[tuple[str, nf.Value]]:
    """The names that a loop binds to items of an iterable, each with the iterable."""
    over = reader.given.get(getattr(over, "id", ""), over)
    called = over.function.id if isinstance(over, nf.Call) and isinstance(over.function, nf.Name) else ""
    if isinstance(target, str):
        yield target, over
    elif target is not None and called in ("zip", "enumerate"):
        for each, own in zip(target.targets, [*nf.values_of(over)][called == "zip" :], strict=False):
            yield from _named_items(reader, each, own)


def made_ahead(reader: Reader, rows: Value, products: Sequence[nf.Call]) -> dict[nf.Call, Value]:
    """Write products of a matrix before its rows are taken, as far as nothing writes into the factors; their values."""
    out = {}
    for call in products if _is_kept(reader, rows) and rows.kind.ndim == 2 else ():
        known = (reader.env or {}).get((nf.path_of(call.args[1]) or ("",))[0])
        if known is not None and not known.maybe_unbound and isinstance(known.kind, types.Array | types.Struct):
            factor = reader.held(reader.expr(call.args[1]))
            if _is_kept(reader, factor) and 0 < factor.kind.ndim < 3:
                out[call] = reader.held(arrays.matmul(reader, rows, factor, call))
    return out


def _is_kept(reader: Reader, value: Value) -> bool:
    """True for an array that nothing writes into, as far as the program is read; if that changes, it is read again."""
    kind, program = value.kind, reader.program
    if not isinstance(kind, types.Array) or kind.given & types.OWN:
        return isinstance(kind, types.Array) and not program.may_change(kind)
    return bool(kind.given) or kind.dtype not in program.fills


def known_items(reader: Any, node: Any) -> Any:
    """The items of an iterable whose number, and the type of each, is known while compiling; None of any other."""
    node = reader.given.get(getattr(node, "id", None), node)
    if isinstance(node, nf.Call) and node.symbol in ("list", "tuple"):
        return list(map(reader.held, reader.exprs(node.args)))
    if not isinstance(node, nf.Call) or node.symbol:
        return _parts_known(reader, reader.held(reader.expr(node)), node, "keys")
    view, function, found = nf.method_of(node), node.function, None
    if isinstance(function, nf.Read) and view in ("items", "keys", "values") and not node.args:
        return _parts_known(reader, reader.held(reader.expr(function.base)), node, view)
    called = reader.expr(function).constant
    if called is range:
        ends = [reader.expr(each).constant for each in node.args]
        found = [reader.constant(k, node) for k in range(*ends)] if all(type(end) is int for end in ends) else None
    elif called is enumerate and node.args:
        given = [*node.args[1:], *(start for _, start in node.keywords)]
        start, items = reader.expr(given[0]).constant if given else 0, known_items(reader, node.args[0])
        if items is not None and type(start) is int:
            found = [reader.tuple_of([reader.constant(k, node), item]) for k, item in enumerate(items, start)]
    elif called in (reversed, zip):
        parts = [known_items(reader, each) for each in node.args]
        if parts and None not in parts and (not node.keywords or len(set(map(len, parts))) == 1):
            found = parts[0][::-1] if called is reversed else list(map(reader.tuple_of, zip(*parts, strict=False)))
    return found


def _parts_known(reader: Any, value: Value, node: nf.Node, view: str) -> Any:
    """The items of a tuple, or those that a view of a dict of named parts has."""
    value = as_tuple(value)
    parts: Any = parts_of(value) if value.parts or isinstance(value.kind, types.Tuple | types.Struct) else None
    if not isinstance(value.kind, types.Struct):
        return parts if view == "keys" else None
    if value.kind.cls is not dict or view == "values":
        return parts if value.kind.cls is dict else None
    names = [reader.constant(name, node) for name in value.kind.names]
    return names if view == "keys" else list(map(reader.tuple_of, zip(names, parts, strict=True)))


def over_items(reader: Any, node: Any, items: Iterated, body: Callable[[Value], Any]) -> None:
    """Run `body(item)` for each item; `node` says which variables are live, and has the loop's `else`."""
    k = reader.fresh("k")
    if items.changes:
        reader.emit(f"{k} = -1")
        exits: list[Any] = []

        def step() -> None:
            place: list[Any] = []
            reader.emit(f"{k} += 1", f"if {k} >= {items.length}:", [Inline(place), "break"])
            exits.append((place, dict(reader.env)))
            body(items.get(k))

        reader.loop(node, "while True:", step, exits, node.orelse)
        return
    take = items.take or items.get
    reader.loop(node, code("for", k, items.over or f"range({items.length})"), lambda: body(take(k)), [], node.orelse)


def items_of(reader: Reader, node: nf.Value, any_order: bool = False) -> Iterated:
    """The items that a loop iterates over; `any_order`: those of a set may come in any order."""
    if isinstance(node, nf.Name) and node.id in reader.given:
        node = reader.given[node.id]
    if isinstance(node, nf.Call) and isinstance(node.function, nf.Name | nf.Read):
        found = _iterator_call(reader, node)
        if found is not None:
            return found
    return items_of_value(reader, reader.held(reader.expr(node)), node, any_order)


def _iterator_call(reader: Reader, node: nf.Call) -> Iterated | None:
    """`range`, `enumerate`, `zip` and the like, and views of a dict, which need not be made; None for other calls."""
    holder = reader.expr(node.function.base) if isinstance(node.function, nf.Read) else None
    if holder is not None and not isinstance(holder.kind, types.Static):
        method = nf.method_of(node)
        if method not in ("items", "keys", "values") or node.args:
            return None
        if not isinstance(holder.kind, types.Dict):
            raise reader.refuse(f"{method} of a {holder.kind}", node)
        return dict_items(reader, reader.held(holder), method)
    function = reader.expr(node.function)
    called: Any = function.kind.value if isinstance(function.kind, types.Static) else None
    if any(isinstance(arg, nf.Spread) for arg in node.args):
        return None
    words = dict(node.keywords)
    if called is range and not words:
        return range_items(reader, [reader.expr(arg) for arg in node.args], node)
    if called is enumerate and 1 <= len(node.args) + len(words) <= 2:
        inner = items_of(reader, node.args[0])
        given = node.args[1] if len(node.args) > 1 else words.get("start")
        start = None if given is None else reader.held(reader.expr(given))

        def numbered(k: str) -> Value:
            place = Value(INT, k, bounds=LENGTH)
            if start is not None:
                place = reader.binary("Add", start, place, node)
            return reader.tuple_of([place, inner.get(k)])

        return Iterated(inner.length, numbered, inner.changes)
    if called is zip and set(words) <= {"strict"}:
        parts = [items_of(reader, arg) for arg in node.args]
        if "strict" in words and reader.expr(words["strict"]).constant is not False:
            for part in parts[1:]:  # Python runs what precedes the error
                reader.fail_if(f"{part.length} != {parts[0].length}")
        zipped = _together(parts, lambda k: reader.tuple_of([part.get(k) for part in parts]))
        if parts and not zipped.changes:
            zipped.length = reader.temp(zipped.length, INT).text
        return zipped
    if called is map and len(node.args) >= 2 and not words:
        mapped = reader.expr(node.args[0])
        if not isinstance(mapped.kind, types.Static):
            raise reader.refuse(f"a call of a {mapped.kind}", node)
        parts = [items_of(reader, arg) for arg in node.args[1:]]
        call = functools.partial(call_values, reader, node, mapped.kind.value)
        return _together(parts, lambda k: call([reader.once(part.get(k)) for part in parts]))
    if called in ITERATORS:
        made = ITERATORS[called](reader, node, *reader.exprs(node.args))
        return items_of_value(reader, reader.once(made), node)
    if called is reversed and len(node.args) == 1 and not words:
        inner = items_of(reader, node.args[0])
        length = reader.temp(inner.length, INT, bounds=LENGTH).text
        return Iterated(length, lambda k: inner.get(reader.temp(f"{length} - 1 - {k}", INT, bounds=LENGTH).text))
    return None


def _together(parts: Sequence[Iterated], get: Callable[[str], Value]) -> Iterated:
    """Items made of one item of each part, as many as the shortest has."""
    lengths = [part.length for part in parts] or ["0"]
    length = lengths[0] if len(lengths) == 1 else f"min({', '.join(lengths)})"
    return Iterated(length, get, any(part.changes for part in parts))


def range_items(reader: Reader, args: Sequence[Value], node: nf.Node) -> Iterated:
    """The numbers of a range."""
    if not 1 <= len(args) <= 3:
        reader.stop()
    held = [reader.held(Value(INT, reader.index(arg, node), arg.constant, arg.bounds)) for arg in args]
    start = held[0] if len(held) > 1 else Value(INT, "0", 0, bounds_of(0))
    stop = held[1] if len(held) > 1 else held[0]
    step = held[2] if len(held) > 2 else Value(INT, "1", 1, bounds_of(1))
    if step.constant is NO_CONSTANT:
        reader.fail_if(f"{step.text} == 0")
    elif step.constant == 0:
        reader.stop()
    rises = step.constant is not NO_CONSTANT and step.constant > 0
    low = start.bounds.low if rises else stop.bounds.low
    bounds = Bounds(max(start.bounds.bits, stop.bounds.bits), low)
    texts = [start.text, stop.text, step.text if step.constant is NO_CONSTANT else str(step.constant)]
    written = f"range({', '.join(texts if texts[2] != '1' else texts[:2])})"
    counted = f"len({written})"
    plain = texts[0] == "0" and texts[2] == "1"

    def get(k: str) -> Value:
        return reader.temp(k if plain else f"{texts[0]} + {k} * {texts[2]}", INT, bounds=bounds)

    def take(k: str) -> Value:
        return reader.temp(k, INT, bounds=bounds)

    return Iterated(counted, get, False, written, take)


def content(reader: Reader, kind: types.Type, place: int = 0) -> types.Type:
    """The type of a container's elements or keys, or of a dict's values (`place` 1); stops if it is always empty."""
    found = kind.site.find().items[place]
    if place == 0 and kind.site.find().vague:
        raise reader.refuse(f"{kind} whose keys are Python's or NumPy's, and are read")
    if found is None:
        reader.stop()
    return found


def items_of_value(reader: Reader, value: Value, node: nf.Node, any_order: bool = False) -> Iterated:
    """The items of a list, tuple, string, array, range or dict; with `any_order` also of a set."""
    value = as_tuple(value)
    kind = value.kind
    match kind:
        case types.List():
            return Iterated(
                f"len({value.text})",
                lambda k: reader.temp(code("list_item", value.text, k), content(reader, kind)),
                changes=True,
            )
        case types.Array() if kind.ndim:
            length = reader.temp(f"{value.text}.shape[0]", INT, bounds=LENGTH).text
            ahead = made_ahead(reader, value, reader.row_products.get(node, ()))

            def row(k: str) -> Value:
                reader.ahead |= {call: (rows, k) for call, rows in ahead.items()}
                return arrays.row(reader, value, k)

            return Iterated(length, row)
        case types.Text():
            length = reader.temp(f"{value.text}.size", INT, bounds=LENGTH).text
            return Iterated(length, lambda k: character(reader, value, k))
        case types.Tuple():
            joined = None
            for each in kind.items:
                joined = reader.join(joined, each, node)
            texts = [convert(item_text(value.text, i), each, joined) for i, each in enumerate(kind.items)]
            if not texts:
                return Iterated("0", lambda k: Value(INT, "0"))
            made = reader.temp(code("()", *texts), types.Tuple((joined,) * len(texts)))
            return Iterated(str(len(texts)), lambda k: reader.temp(item_text(made.text, k), joined))
        case types.RANGE:
            return range_items(reader, parts_of(value), node)
        case types.TreeNodes():
            holder = reader.once(value)
            places = [item_text(holder.text, k) for k in range(len(dtypes_of(kind.tree)) + 2)]
            length = reader.temp(f"{places[-1]} - {places[-2]}", INT, bounds=LENGTH).text
            return Iterated(
                length,
                lambda k: reader.temp(code("()", *places[:-2], item_text(places[1], f"{places[-2]} + {k}")), kind.tree),
            )
        case types.Set() if any_order:
            found = reader.site(node, types.List)
            found.site.widen(0, kind.elem and content(reader, kind))
            return items_of_value(reader, reader.temp(code("listed", value.text), found), node)
        case types.Dict():
            return dict_items(reader, value, "keys")
    raise reader.refuse(
        f"a loop over a {kind}: its order is Python's own" if "set" in str(kind) else f"a loop over a {kind}", node
    )


def _held(reader: Any, value: Value) -> tuple[list[str], str]:
    """The arrays that hold a node of a tree, and its place among the nodes."""
    held = reader.once(value).text
    arrays: list[str] = [item_text(held, k) for k in range(len(dtypes_of(value.kind)))]
    return arrays, item_text(held, len(arrays))


def node_item(reader: Any, value: Value, place: str) -> Value:
    """An item of a nested tuple; of a number in it Python raises."""
    (arrays, row), tree = _held(reader, value), value.kind
    reader.fail_if(f"not ({_is_one_of(item_text(arrays[0], f'{row} * {tree.words}'), [1])})")
    return reader.temp(code("()", *arrays, item_text(arrays[0], f"{row} * {tree.words} + 1 + {place}")), tree)


def leaf_of(reader: Any, value: Value) -> str:
    """The text of the number that a nested tuple is, if it is one."""
    (arrays, row), kind = _held(reader, value), value.kind.leaf
    place = f"{row} * {value.kind.words} + 1" if kind.kind != "f" else row
    return _number(kind, item_text(arrays[2 if kind.kind == "f" else 0], place))


def _number(kind: types.Scalar, text: str) -> str:
    """The text of a number that is held as a whole or a real number."""
    return f"{text} != 0" if kind.kind == "b" else code(numba_type(kind), text)


def node_attribute(reader: Any, value: Value, name: str, node: nf.Node) -> Value:
    """An attribute of a node of a tree."""
    (arrays, row), tree = _held(reader, value), value.kind
    field = next((each for each in tree.fields if each.name == name), None)
    if field is None:
        raise reader.refuse(f"the attribute {name} of a {tree}", node)
    kind = field.kind
    words = [item_text(arrays[0], f"{row} * {tree.words} + {k}") for k in range(tree.words)]
    real = item_text(arrays[2], f"{row} * {tree.reals} + {field.real}")
    if len(field.forms) < len(tree.forms):
        reader.fail_if(f"not ({_is_one_of(words[0], field.forms)})")
    first = words[field.word] if field.word < tree.words else ""
    match kind:
        case types.NODE:
            return reader.temp(code("()", *arrays, first), tree)
        case types.NODE_OR_NONE:
            place = reader.temp(first, INT).text
            inner = code("()", *arrays, code("max", place, "0"))
            return reader.temp(code("()", f"{place} >= 0", inner), types.Maybe(tree))
        case types.NODES:
            return reader.temp(code("()", *arrays, first, words[field.word + 1]), types.TreeNodes(tree))
        case types.Text() | types.Array():
            shape = words[field.word + 1 : field.word + 1 + getattr(kind, "ndim", 1)]
            view = item_text(arrays[field.array], f"{first}:{first} + {' * '.join(shape)}")
            return reader.temp(code(".reshape", view, code("()", *shape)) if len(shape) > 1 else view, kind)
        case types.Union():
            return reader.temp(code("()", first, words[field.word + 1], real), kind)
        case types.Scalar(name="none"):
            return reader.constant(None, node)
    return reader.temp(_number(kind, real if kind.kind == "f" else first), kind)


def has_attribute_of_node(reader: Any, value: Value, name: str, node: nf.Node) -> Value:
    """Whether a node of a tree has an attribute, or a key."""
    return has_form(reader, value, [k for k, (_, names) in enumerate(value.kind.forms) if name in names], node)


def has_form(reader: Any, value: Value, forms: Sequence[int], node: nf.Node) -> Value:
    """Whether a node of a tree is of one of these forms."""
    tree = value.kind
    if len(forms) in (0, len(tree.forms)):
        return reader.constant(bool(forms), node)
    arrays, row = _held(reader, value)
    own = item_text(arrays[0], f"{row} * {tree.words}")
    return reader.temp(_is_one_of(own, forms), BOOL)


def _is_one_of(number: str, others: Sequence[int]) -> str:
    return " or ".join(f"{number} == {k}" for k in others)


def dict_items(reader: Reader, value: Value, view: str) -> Iterated:
    """The keys, values or items of a dict, in insertion order."""
    kind = value.kind

    def both(k: str) -> Value:
        first = reader.temp(item_text(k, 0), content(reader, kind))
        return reader.tuple_of([first, reader.temp(item_text(k, 1), content(reader, kind, 1))])

    def one(k: str) -> Value:
        return reader.temp(k, content(reader, kind, 1 if view == "values" else 0))

    def never(k: str) -> Value:
        raise reader.refuse("a dict that is looped over together with something else")

    return Iterated("0", never, False, code(f".{view}", value.text), both if view == "items" else one)


def character(reader: Reader, value: Value, k: str) -> Value:
    """The k-th character of a string; k is in range."""
    return reader.temp(f"{value.text}[{k}:{k} + 1]", STR)


class GeneratedLoop:
    """Stands in for the `for` statement of a loop that the library adds: all names are live, there is no `else`."""

    live_head = live_out = None
    orelse: tuple[Any, ...] = ()


def each(reader: Reader, items: Iterated, body: Callable[[Value], Any]) -> None:
    """Run `body(item)` for each item, in a loop that the library adds."""
    over_items(reader, GeneratedLoop(), items, body)


def generator_of(reader: Reader, node: nf.Value) -> nf.Closure | None:
    """The generator expression that a value is, if it is one."""
    if isinstance(node, nf.Call) and isinstance(node.function, nf.Name):
        known = (reader.env or {}).get(node.function.id)
        if known is not None and isinstance(known.kind, types.Static) and isinstance(known.kind.value, nf.Closure):
            return known.kind.value
    return None


def each_item(reader: Reader, node: nf.Value, take: Callable[[Value], Any], any_order: bool = False) -> None:
    """Run `take(item)` for each item of an argument; a generator expression is read in place."""
    generator = generator_of(reader, node)
    if generator is None:
        each(reader, items_of(reader, node, any_order), take)
        return
    assert isinstance(node, nf.Call)
    body, names = in_place(reader, generator)
    (items,) = generator.parameters.names
    reader.given[names[items]] = node.args[0]
    reader.yields.append(take)
    reader.inside += 1
    reader.block(body)
    reader.inside -= 1
    reader.yields.pop()
    forget(reader, names)


def unrolled(reader: Any, node: nf.Value) -> Value | None:
    """The items of a generator expression over known items, as a tuple: its body is read for each; None of others."""
    generator = generator_of(reader, node)
    if generator is None:
        return None
    assert isinstance(node, nf.Call)
    loop, *rest = in_place(reader, generator)[0]
    once = isinstance(loop, nf.Loop) and all(isinstance(each, nf.Bind) for each in (*rest, *loop.head, *loop.body))
    if not once or known_items(reader, node.args[0]) is None:
        raise reader.refuse("a generator that is not read at once", node, instead=MAKE_A_LIST)
    out: list[Value] = []
    reader.program.otherwise.add((id(loop), reader.instance.name))
    each_item(reader, node, lambda value: out.append(reader.held(value)))
    return reader.tuple_of(out)


def in_place(reader: Reader, function: nf.Closure) -> tuple[list[nf.Statement], dict[str, str]]:
    """The body of a function with names of its own in the function around, and {name: its name there}."""
    known = reader.program.in_place
    if id(function) not in known:
        number = len(known)
        names = {name: f"{name}.{number}" for name in {*function.parameters.names, *binds(function.body)}}
        known[id(function)] = renamed(function.body, names), names
    body, names = known[id(function)]
    reader.locals.update(names.values())
    return body, names


def forget(reader: Any, names: dict[str, str]) -> None:
    """Forget the variables of a function that was read in place."""
    for name in names.values():
        if reader.env is not None:
            reader.env.pop(name, None)
