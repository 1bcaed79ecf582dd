"""Tuples, lists, dicts, sets and strings: items, operators, comparisons and methods; guards for Python's errors."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.compiled.translation import arrays, iteration
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import METHODS, methods
from autobatch.compiled.translation.exact_types import BOOL, INT, NONE, STR
from autobatch.compiled.translation.iteration import content
from autobatch.compiled.translation.number_operators import COMPARISONS, OPERATORS, in_range
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import (
    LENGTH,
    NO_CONSTANT,
    Value,
    as_tuple,
    assigned,
    code,
    convert,
    item_text,
    parts_of,
    rep,
)
from autobatch.program import normal_form as nf


def new(reader: Reader, node: nf.Node, container: Any) -> Value:
    """An empty container."""
    kind = reader.site(node, container, 2 if issubclass(container, types.Dict) else 1)
    return reader.temp(code(f"new_{rep(kind)}"), kind)


def converted_list(reader: Reader, source: str, kind: types.Type, to: types.Type, times: str = "1") -> str:
    """The text of a new list of a list's or set's elements, converted from one type to another, `times` over.

    It is made in a function of its own: in one with a comprehension Numba removes code that it takes for unused, such
    as a write into an array that came out of a list.
    """
    each = convert("x", kind, to)
    name = f"list_as_{rep(kind)}_{rep(to)}"
    lines = [f"def {name}(items, times):", f"    return [{each} for _ in range(times) for x in items]"]
    reader.program.loops[name] = "\n".join(["@jit", *lines, ""])
    return code(name, source, times)


def widened(reader: Reader, holder: Value, value: Value, node: nf.Node, place: int = 0) -> str:
    """The text of a value as a container holds it; the container's type is widened to hold such values."""
    changed(reader, holder, node)
    if isinstance(value.kind, types.Array) and value.kind.ndim == 0:
        raise reader.refuse("a 0-d array in a container", node)
    site = holder.kind.site.find()
    joined = reader.join(site.items[place], value.kind, node)
    if place == 0 and isinstance(holder.kind, types.Set | types.Dict) and types.unified_ints(joined) != joined:
        site = site.find()
        joined = types.unified_ints(joined)
        if not site.vague or site.items[0] != joined:
            site.vague, site.items[0] = True, joined
            site.changes[0] += 1
    else:
        site.widen(place, value.kind)
    to = site.find().items[place]
    if place == 1 and isinstance(to, types.List | types.Set | types.Dict | types.Object):
        inner = to.site.find()
        if type(to) is not types.List or not all(
            isinstance(each, types.Scalar | types.Union | types.Tuple | None) for each in inner.items
        ):
            raise reader.refuse(f"a dict of {to}s", node)
        if not inner.boxed:
            inner.boxed = True
            inner.changes[0] += 1
    if (place == 0 and isinstance(holder.kind, types.Set | types.Dict)) and not hashable(to):
        raise reader.refuse(f"keys that are {to}", node)
    if any(each == holder.kind for each in types.within(value.kind)):
        raise reader.refuse("a container that contains itself", node)
    text = convert(value.text, value.kind, to)
    return _hashed(reader, text, to) if place == 0 and isinstance(holder.kind, types.Set | types.Dict) else text


def hashable(kind: types.Type) -> bool:
    """True if equal values of a type are represented alike in compiled code, so that it can hash them."""
    if isinstance(kind, types.Tuple):
        return all(map(hashable, kind.items))
    return types.is_number(kind)


def _hashed(reader: Reader, text: str, kind: types.Type) -> str:
    """The text of a key. -0.0, which has another hash here than 0.0, and NaN, which Python finds only if it is the same
    object, leave the example to Python."""
    if not floats_in(text, kind):
        return text
    name = reader.temp(text, kind).text
    reader.fail_if(" or ".join(f"{x} != {x} or ({x} == 0 and np.signbit({x}))" for x in floats_in(name, kind)))
    return name


def floats_in(text: str, kind: types.Type) -> list[str]:
    """The texts of the floats in a value: the number itself, or those in a tuple."""
    if isinstance(kind, types.Tuple):
        return [x for place, item in enumerate(kind.items) for x in floats_in(f"{text}[{place}]", item)]
    return [text] if kind.kind == "f" else []


def _equal_items(reader: Reader, a: Value, b: Value, node: nf.Node) -> Value:
    """`a == b` of two items; two NaN, which Python takes for equal if they are one object, leave the example to it."""
    if isinstance(a.kind, types.Object) or isinstance(b.kind, types.Object):
        raise reader.refuse("a comparison of objects, which are equal if they are the same", node)
    both = isinstance(a.kind, types.Scalar) and isinstance(b.kind, types.Scalar) and a.kind.kind == b.kind.kind
    if both and a.kind.kind in "fc":
        a, b = reader.once(a), reader.once(b)
        reader.fail_if(f"{a.text} != {a.text} and {b.text} != {b.text}")
    return reader.compared("Eq", a, b, node)


def literal(reader: Reader, node: nf.Node, values: Sequence[Value], container: Any) -> Value:
    """A list or a set of values."""
    held = [reader.once(value) for value in values]
    out = new(reader, node, container)
    for value in held:
        put(reader, out, value, node)
    return out


def list_literal(reader: Reader, node: nf.Call) -> Value:
    """A list literal, maybe with `*` in it."""
    stars = [isinstance(each, nf.Spread) for each in node.args]
    values = [reader.expr(each.value if isinstance(each, nf.Spread) else each) for each in node.args]
    held = list(map(reader.once, values))
    out = new(reader, node, types.List)
    for is_star, value in zip(stars, held, strict=True):
        if is_star:
            extend(reader, node, out, value)
        else:
            put(reader, out, value, node)
    return out


def put(reader: Reader, holder: Value, value: Value, node: nf.Node) -> None:
    """Append to a list, or add to a set."""
    text = widened(reader, holder, value, node)
    reader.emit(code(".append" if isinstance(holder.kind, types.List) else ".add", holder.text, text))


def struct_of(reader: Reader, cls: type, names: Sequence[str], values: Sequence[Value], node: nf.Node) -> Value:
    """An object with named parts."""
    held = [reader.held(value) for value in values]
    if any(isinstance(value.kind, types.Static) for value in held):
        raise reader.refuse(f"a {cls.__name__} that holds functions", node)
    text = code("()", *(value.text for value in held))
    return reader.temp(text, types.Struct(tuple(value.kind for value in held), cls, tuple(names)))


def dict_literal(reader: Reader, node: nf.Call) -> Value:
    """A dict literal; if its keys are all constant strings, an object with named parts."""
    items = [each.args for each in node.args if isinstance(each, nf.Call)]
    if len(items) < len(node.args):
        raise reader.refuse("a dict with ** in it", node)
    words = [key.value for key, _ in items if isinstance(key, nf.Constant) and isinstance(key.value, str)]
    if words and len(set(words)) == len(items):
        return struct_of(reader, dict, words, reader.exprs([value for _, value in items]), node)
    pairs = [(reader.held(reader.expr(key)), reader.held(reader.expr(value))) for key, value in items]
    out = new(reader, node, types.Dict)
    for key, value in pairs:
        assign_key(reader, out, key, value, node)
    return out


def unpack_with_star(reader: Reader, value: Value, target: nf.Unpack, node: nf.Node) -> None:
    """`a, *b, c = value` of a tuple or a list."""
    targets, star = target.targets, target.starred
    after = len(targets) - star - 1
    value = as_tuple(reader.once(value))
    rest = new(reader, node, types.List)
    if isinstance(value.kind, types.Tuple):
        parts = [reader.held(part) for part in parts_of(value)]
        if len(parts) < star + after:
            reader.stop(ValueError)
        for part in parts[star : len(parts) - after]:
            put(reader, rest, part, node)
        ends = [*parts[:star], *parts[len(parts) - after :]]
    elif isinstance(value.kind, types.List):
        length = reader.temp(f"len({value.text})", INT, bounds=LENGTH).text
        reader.fail_if(f"{length} < {star + after}", ValueError)
        kind = content(reader, value.kind)
        places = [str(k) for k in range(star)] + [f"{length} - {k}" for k in range(after, 0, -1)]
        ends = [reader.temp(code("list_item", value.text, place), kind) for place in places]
        middle = iteration.Iterated(
            f"{length} - {star + after}", lambda k: reader.temp(code("list_item", value.text, f"{k} + {star}"), kind)
        )
        iteration.each(reader, middle, lambda each: put(reader, rest, each, node))
    else:
        raise reader.refuse(f"a {value.kind} that is unpacked with *", node)
    for each, part in zip([*targets[:star], *targets[star + 1 :]], ends, strict=True):
        reader.store(each, part, node)
    reader.store(targets[star], rest, node)


def _slice(reader: Reader, holder: Value, index: nf.Call, node: nf.Node) -> Value:
    """`holder[start:stop:step]`."""
    holder = as_tuple(holder)
    kind = holder.kind
    if isinstance(kind, types.Tuple) and holder.parts is None:
        holder = reader.tuple_of([Value(each, item_text(holder.text, i)) for i, each in enumerate(kind.items)])
    if isinstance(kind, types.Tuple):
        ends = [reader.expr(part).constant for part in index.args]
        if any(end is NO_CONSTANT for end in ends):
            raise reader.refuse("a slice of a tuple that is not constant", node)
        return reader.tuple_of(holder.parts[slice(*ends)])
    text = arrays.slice_text(reader, index)
    if isinstance(kind, types.Text):
        return reader.temp(item_text(holder.text, text), STR)
    if isinstance(kind, types.List):
        out = new(reader, node, types.List)
        if kind.elem is not None:
            reader.join(out.kind.elem, kind.elem, node)
            out.kind.site.widen(0, kind.elem)
            source = reader.temp(item_text(holder.text, text), kind)
            if rep(out.kind.elem) == rep(kind.elem) and kind.site.find().boxed == out.kind.site.find().boxed:
                return Value(out.kind, source.text)
            reader.emit(assigned(out.text, converted_list(reader, source.text, kind.elem, out.kind.elem)))
        return out
    raise reader.refuse(f"a slice of a {kind}", node)


def item(reader: Reader, holder: Value, index: nf.Value, node: nf.Node) -> Value:
    """`holder[index]`."""
    kind = holder.kind
    if isinstance(index, nf.Call) and index.symbol == "slice":
        return _slice(reader, holder, index, node)
    if types.class_of(kind) is dict and isinstance(kind, types.ObjectTree):
        key = reader.expr(index)
        if not isinstance(key.constant, str):
            raise reader.refuse("a key that is not written as a constant", node)
        return iteration.node_attribute(reader, holder, key.constant, node)
    if isinstance(kind, types.Struct) and kind.cls is dict:
        key = reader.once(reader.expr(index))
        if key.constant is NO_CONSTANT and isinstance(key.kind, types.Text):
            return _field_of_name(reader, reader.once(holder), key, 0, node)
        if key.constant not in kind.names:
            reader.stop(KeyError)
        place = kind.names.index(key.constant)
        return Value(kind.items[place], item_text(holder.text, place))
    value = reader.expr(index)
    match kind:
        case types.Tuple():
            return _tuple_item(reader, holder, value, node)
        case types.Struct() if kind != types.RANGE:
            return _tuple_item(reader, Value(types.Tuple(kind.items), holder.text), value, node)
        case types.List():
            holder = reader.once(holder)
            k = in_range(reader, reader.index(value, node), f"len({holder.text})", value)
            return reader.temp(code("list_item", holder.text, k), content(reader, kind))
        case types.TreeNodes():
            nodes = iteration.items_of_value(reader, holder, node)
            return nodes.get(in_range(reader, reader.index(value, node), nodes.length, value))
        case types.Text():
            k = in_range(reader, reader.index(value, node), f"{holder.text}.size", value)
            return iteration.character(reader, holder, k)
        case types.ObjectTree() if kind.leaf is not None:
            at = in_range(reader, reader.index(value, node), str(len(kind.fields) - 1), value)
            return iteration.node_item(reader, holder, at)
        case types.Counts():
            return get(reader, node, holder, value, reader.constant(0, node))
        case types.Dict():
            return _value_at(reader, holder, reader.once(value), node)
        case types.Struct():
            numbers = iteration.items_of_value(reader, holder, node)
            return numbers.get(in_range(reader, reader.index(value, node), numbers.length, value))
    raise reader.refuse(f"an item of a {kind}", node)


def _field_of_name(
    reader: Reader, holder: Value, key: Value, place: int, node: nf.Node, default: Value | None = None
) -> Value:
    """`dict[key]` for keys that are strings: `key` is compared with those from `place` on, one after the other."""
    names, items = holder.kind.names, holder.kind.items
    if place == len(names):
        if default is None:
            reader.stop(KeyError)
        return default
    same = reader.compared("Eq", key, reader.constant(names[place], node), node)
    one = Value(items[place], item_text(holder.text, place))
    rest = functools.partial(_field_of_name, reader, holder, key, place + 1, node, default)
    return reader.choice(same.text, lambda: one, rest, node)


def _value_at(reader: Reader, holder: Value, key: Value, node: nf.Node) -> Value:
    """`dict[key]`; a `defaultdict` inserts a key that is missing."""
    if isinstance(holder.kind, types.DefaultDict):
        factory = holder.kind.site.find().factory
        made = new(reader, node, types.List) if factory is list else reader.constant(factory(), node)
        return setdefault(reader, node, holder, key, made)
    found = _present_key(reader, holder, key, node)
    return reader.temp(item_text(holder.text, found), content(reader, holder.kind, 1))


def _tuple_item(reader: Reader, holder: Value, value: Value, node: nf.Node) -> Value:
    kinds = holder.kind.items
    if value.constant is not NO_CONSTANT:
        place = value.constant
        if not isinstance(place, int) or not -len(kinds) <= place < len(kinds):
            reader.stop()
        if holder.parts is not None:
            return holder.parts[place]
        return reader.temp(item_text(holder.text, place % len(kinds)), kinds[place])
    items = iteration.items_of_value(reader, reader.once(holder), node)
    return items.get(in_range(reader, reader.index(value, node), str(len(kinds)), value))


def _key(reader: Reader, holder: Value, value: Value, node: nf.Node) -> str | None:
    """The text of a key as the container holds keys; None if the container can hold no key that is equal."""
    held = holder.kind.elem
    if held is None:
        return None
    try:
        same = _comparable_keys(value.kind, held)
    except TypeError:
        raise reader.refuse(f"a key that is {value.kind} among keys that are {held}", node) from None
    return _hashed(reader, convert(value.text, value.kind, held), held) if same else None


def _present_key(reader: Reader, holder: Value, value: Value, node: nf.Node) -> str:
    """The text of a key of the container; KeyError if it is missing."""
    text = _key(reader, holder, value, node)
    if text is None:
        reader.stop(KeyError)
    reader.fail_if(f"{text} not in {holder.text}", KeyError)
    return text


def _comparable_keys(a: types.Type, b: types.Type) -> bool:
    """True if values of type a, converted to type b, can equal values of type b; TypeError if that is unknown."""
    if isinstance(a, types.Tuple) and isinstance(b, types.Tuple):
        return len(a.items) == len(b.items) and all(map(_comparable_keys, a.items, b.items))
    a, b = types.unified_ints(a), types.unified_ints(b)
    if types.is_number(a) and types.is_number(b):
        if (a.kind in "biu" and b.kind in "iu" and (b.name == "int64" or a.name == b.name)) or a.name == b.name:
            return True
        raise TypeError
    if isinstance(a, types.Union) or isinstance(b, types.Union):
        raise TypeError
    return False


def set_item(reader: Reader, holder: Value, index: nf.Value, value: Value, node: nf.Node) -> None:
    """`holder[index] = value`."""
    holder, value = reader.once(holder), reader.once(value)
    part = index if isinstance(index, nf.Call) and index.symbol == "slice" else None
    if part is not None and isinstance(holder.kind, types.List) and nf.is_none(part.args[2]):
        _set_slice(reader, holder, part, value, node)
        return
    if part is not None or not isinstance(holder.kind, types.List | types.Dict):
        raise reader.refuse(f"an assignment to items of a {holder.kind}", node)
    key = reader.expr(index)
    if isinstance(holder.kind, types.Dict):
        assign_key(reader, holder, reader.once(key), value, node)
        return
    k = in_range(reader, reader.index(key, node), f"len({holder.text})", key)
    text = widened(reader, holder, value, node)
    reader.emit(code("list_put", holder.text, k, text))


def _set_slice(reader: Reader, holder: Value, index: nf.Call, value: Value, node: nf.Node) -> None:
    """`list[a:b] = list`: the old items are popped, then the new ones inserted."""
    if not isinstance(value.kind, types.List) or value.text == holder.text:
        raise reader.refuse(f"a {value.kind} in a slice of a list", node)
    changed(reader, holder, node)
    first, last = reader.fresh("start"), reader.fresh("stop")
    ends = arrays.slice_text(reader, index).split(":")
    length = f"len({holder.text})"
    reader.emit(f"{first} = clamp_slice_bound({ends[0] or '0'}, {length})")
    reader.emit(f"{last} = max({first}, clamp_slice_bound({ends[1] or length}, {length}))")
    items = iteration.items_of_value(reader, value, node)
    reader.emit(f"for _ in range({last} - {first}):", [code(".pop", holder.text, first)])

    def put_in(item: Value) -> None:
        text = widened(reader, holder, reader.once(item), node)
        reader.emit(code(".insert", holder.text, first, text), f"{first} += 1")

    iteration.each(reader, items, put_in)


def delete(reader: Reader, holder: Value, index: nf.Value, node: nf.Node) -> None:
    """`del holder[index]` of a list or a dict."""
    if isinstance(index, nf.Call) and index.symbol == "slice":
        raise reader.refuse("del of a slice", node)
    key = reader.once(reader.expr(index))
    if isinstance(holder.kind, types.List):
        pop(reader, node, holder, key)
    elif isinstance(holder.kind, types.Dict):
        pop_key(reader, node, holder, key)
    else:
        raise reader.refuse(f"del of an item of a {holder.kind}", node)


def assign_key(reader: Reader, holder: Value, key: Value, value: Value, node: nf.Node) -> None:
    """`holder[key] = value` of a dict."""
    k = widened(reader, holder, key, node)
    text = widened(reader, holder, value, node, 1)
    reader.emit(assigned(item_text(holder.text, k), text))


def augment(reader: Reader, old: Value, op: str, value: Value, node: nf.Node) -> None:
    """`name += value` of a container, in place."""
    if not (isinstance(old.kind, types.List) and op == "Add"):
        raise reader.refuse(f"{op} in place of a {old.kind}", node)
    extend(reader, node, old, value)


def operator(reader: Reader, op: str, a: Value, b: Value, node: nf.Node) -> Value:
    """`a op b` with a tuple, a list or a string."""
    a, b = as_tuple(a), as_tuple(b)
    match op, a.kind, b.kind:
        case _, types.Text(), _ if NO_CONSTANT not in (a.constant, b.constant):
            try:
                return reader.constant(OPERATORS[op].function(a.constant, b.constant), node)
            except (TypeError, ValueError):
                reader.stop()
        case "Mod", types.Text(), _:
            raise reader.refuse("a formatted string is not compiled", node)
        case "Add", types.Tuple(), types.Tuple():
            return reader.tuple_of([*parts_of(a), *parts_of(b)])
        case "Add", types.Text(), types.Text():
            return reader.temp(f"np.concatenate(({a.text}, {b.text}))", STR)
        case "Add", types.List(), types.List():
            out = new(reader, node, types.List)
            extend(reader, node, out, a)
            extend(reader, node, out, b)
            return out
        case "Mult", types.Scalar(), (types.List() | types.Tuple() | types.Text()):
            return operator(reader, op, b, a, node)
        case "Mult", types.Text(), types.Scalar():
            return reader.temp(f"repeated_text({a.text}, {reader.index(b, node)})", STR)
        case "Mult", types.Tuple(), types.Scalar() if isinstance(b.constant, int):
            return reader.tuple_of(parts_of(a) * b.constant)
        case "Mult", types.List(), types.Scalar():
            if a.kind.elem is not None and not isinstance(
                a.kind.elem, types.Scalar | types.Union | types.Tuple | types.Text
            ):
                raise reader.refuse("a list whose elements are one object several times", node)
            out = new(reader, node, types.List)
            if a.kind.elem is not None:
                reader.join(out.kind.elem, a.kind.elem, node)
                out.kind.site.widen(0, a.kind.elem)
                made = converted_list(reader, a.text, a.kind.elem, out.kind.elem, reader.index(b, node))
                reader.emit(assigned(out.text, made))
            return out
    if op in ("BitAnd", "BitOr", "BitXor", "Sub") and isinstance(a.kind, types.Set) and isinstance(b.kind, types.Set):
        return _of_sets(reader, op, a, b, node)
    if any(isinstance(value.kind, types.Struct) for value in (a, b)):
        raise reader.refuse(f"{op} of {a.kind} and {b.kind}", node)
    reader.stop()  # it raises in Python


def _of_sets(reader: Reader, op: str, a: Value, b: Value, node: nf.Node) -> Value:
    """`&`, `|`, `^` or `-` of two sets of numbers of one type."""
    out = new(reader, node, types.Set)
    for each in (a, b):
        if each.kind.elem is not None:
            reader.join(out.kind.elem, each.kind.elem, node)
            out.kind.site.widen(0, each.kind.elem)
    known = [each for each in (a, b) if each.kind.elem is not None]
    if any(each.kind.elem != out.kind.elem or each.kind.site.find().vague for each in known):
        raise reader.refuse("an operator of sets of several types", node)
    if len(known) < 2:  # one has nothing in it
        if (op in ("BitOr", "BitXor") and known) or (op == "Sub" and known == [a]):
            reader.emit(f"{out.text} = {known[0].text}.copy()")
        return out
    reader.emit(f"{out.text} = {a.text} {OPERATORS[op].symbol} {b.text}")
    return out


def compared(reader: Reader, op: str, a: Value, b: Value, node: nf.Node) -> Value:
    """A comparison of strings, tuples, lists or sets."""
    a, b = as_tuple(a), as_tuple(b)
    if isinstance(a.kind, types.Text) and isinstance(b.kind, types.Text):
        if a.constant is not NO_CONSTANT and b.constant is not NO_CONSTANT:
            return reader.constant(COMPARISONS[op].function(a.constant, b.constant), node)
        if op in ("Eq", "NotEq"):
            for one, other in ((a, b), (b, a)):
                if isinstance(one.constant, str) and len(one.constant) == 1:
                    text = f"({other.text}.size == 1 and {other.text}[0] == {ord(one.constant)})"
                    return reader.temp(text if op == "Eq" else f"not {text}", BOOL)
            return reader.temp(f"{'' if op == 'Eq' else 'not '}equal_strings({a.text}, {b.text})", BOOL)
        return reader.temp(f"compare_strings({a.text}, {b.text}) {COMPARISONS[op].symbol} 0", BOOL)
    if isinstance(a.kind, types.Tuple) and isinstance(b.kind, types.Tuple):
        return _compared_tuples(reader, op, parts_of(a), parts_of(b), node)
    kinds = {types.Dict if isinstance(each.kind, types.Dict) else type(each.kind) for each in (a, b)}
    several = {types.Maybe, types.LookedUp, types.Object, types.ObjectTree, types.TreeNodes}  # or of any class
    unknown = kinds & {types.Struct, types.Static, *several}
    if op in ("Eq", "NotEq") and len(kinds) == 2 and not unknown:
        return reader.constant(op == "NotEq", node)
    if isinstance(a.kind, types.List) and isinstance(b.kind, types.List) and op in ("Eq", "NotEq"):
        elems = {a.kind.elem, b.kind.elem} - {None}
        elem = next(iter(elems), None)
        whole = isinstance(elem, types.Scalar) and elem.kind in "biu"
        if len(elems) == 1 and hashable(elem) and (a.kind == b.kind or (whole and a.kind.elem == b.kind.elem)):
            boxed = a.kind.site.find().boxed != b.kind.site.find().boxed  # to Numba, lists of two kinds are unequal
            texts = [f"listed({each.text})" if boxed else each.text for each in (a, b)]
            return reader.temp(f"{texts[0]} {COMPARISONS[op].symbol} {texts[1]}", BOOL)
    if isinstance(a.kind, types.Set) and isinstance(b.kind, types.Set) and a.kind.elem == b.kind.elem is not None:
        return reader.temp(f"{a.text} {COMPARISONS[op].symbol} {b.text}", BOOL)
    raise reader.refuse(f"a comparison of {a.kind} and {b.kind}", node)


def _compared_tuples(reader: Reader, op: str, a: list[Value], b: list[Value], node: nf.Node) -> Value:
    if not a or not b:
        return reader.constant(COMPARISONS[op].function(len(a), len(b)), node)
    if op in ("Eq", "NotEq") and len(a) != len(b):
        return reader.constant(op == "NotEq", node)
    first = reader.once(_equal_items(reader, a[0], b[0], node))
    rest = functools.partial(_compared_tuples, reader, op, a[1:], b[1:], node)
    decided = functools.partial(_decided, reader, op, a[0], b[0], node)
    if first.constant is not NO_CONSTANT:
        return rest() if first.constant else decided()
    return reader.choice(reader.truth(first, node), rest, decided, node)


def _decided(reader: Reader, op: str, a: Value, b: Value, node: nf.Node) -> Value:
    if op in ("Eq", "NotEq"):
        return Value(BOOL, str(op == "NotEq"))
    return reader.compared(op, a, b, node)


def contains(reader: Reader, value: Value, holder: Value, node: nf.Node) -> Value:
    """`value in holder`."""
    holder = as_tuple(holder)
    kind = holder.kind
    if isinstance(kind, types.Struct) and kind.cls is dict and isinstance(value.constant, str):
        return reader.constant(value.constant in kind.names, node)
    if isinstance(kind, types.ObjectTree) and types.class_of(kind) is dict and isinstance(value.constant, str):
        return iteration.has_attribute_of_node(reader, holder, value.constant, node)
    if isinstance(kind, types.Set | types.Dict):
        text = _key(reader, holder, value, node)
        return reader.constant(False, node) if text is None else reader.temp(f"{text} in {holder.text}", BOOL)
    if isinstance(kind, types.Tuple):
        return _any_of(reader, value, parts_of(holder), node)
    if isinstance(kind, types.Text) and isinstance(value.kind, types.Text):
        return Value(BOOL, f"({METHODS[types.Text, 'find'](reader, node, holder, value).text} >= 0)")
    if isinstance(kind, types.List):
        found = reader.temp("False", BOOL)
        value = reader.once(value)

        def look(each: Value) -> None:
            same = _equal_items(reader, each, value, node)
            reader.emit(f"if {reader.truth(same, node)}:", [f"{found.text} = True", "break"])

        iteration.each(reader, iteration.items_of_value(reader, reader.once(holder), node), look)
        return found
    raise reader.refuse(f"`in` of a {kind}", node)


def _any_of(reader: Reader, value: Value, parts: list[Value], node: nf.Node) -> Value:
    if not parts:
        return reader.constant(False, node)
    first = _equal_items(reader, value, parts[0], node)
    return reader.connected(first, lambda: _any_of(reader, value, parts[1:], node), False, node)


# --- methods

_NOTHING: Callable[[], Value] = lambda: Value(NONE, "0", None)


@methods(types.Deque, "append")
@methods(types.List, "append")
@methods(types.Set, "add")
def append(reader: Reader, node: nf.Node, holder: Value, value: Value) -> Value:
    """`list.append`, `set.add`."""
    put(reader, holder, reader.once(value), node)
    return _NOTHING()


@methods(types.Set, "discard")
def discard(reader: Reader, node: nf.Node, holder: Value, value: Value) -> Value:
    """`set.discard`."""
    changed(reader, holder, node)
    text = _key(reader, holder, value, node)
    if text is not None:
        reader.emit(f"{holder.text}.discard({text})")
    return _NOTHING()


def changed(reader: Reader, holder: Value, node: nf.Node) -> None:
    """Record that a container is changed; refuse it if all examples share the container."""
    if holder.kind.given & types.FIXED:
        raise reader.refuse("it changes a value that examples share", node)
    if holder.kind.given & types.OWN:
        reader.program.note_write(holder.kind)


@methods(types.Deque, "pop")
@methods(types.List, "pop")
def pop(reader: Reader, node: nf.Node, holder: Value, index: Value | None = None) -> Value:
    """`list.pop`."""
    changed(reader, holder, node)
    reader.fail_if(f"len({holder.text}) == 0", IndexError)
    if index is None or index.constant == -1:
        return reader.temp(code(".pop", holder.text), content(reader, holder.kind))
    k = in_range(reader, reader.index(index, node), f"len({holder.text})", index)
    return reader.temp(code(".pop", holder.text, k), content(reader, holder.kind))


@methods(types.Deque, "insert")
@methods(types.List, "insert")
def insert(reader: Reader, node: nf.Node, holder: Value, index: Value, value: Value) -> Value:
    """`list.insert`."""
    text = widened(reader, holder, reader.once(value), node)
    reader.emit(code(".insert", holder.text, reader.index(index, node), text))
    return _NOTHING()


@methods(types.Deque, "extend")
@methods(types.List, "extend")
def extend(reader: Reader, node: nf.Node, holder: Value, values: Value) -> Value:
    """`list.extend`."""
    changed(reader, holder, node)
    if values.kind == holder.kind and values.text == holder.text:
        raise reader.refuse("a list that is extended by itself", node)
    items = iteration.items_of_value(reader, reader.once(values), node)
    iteration.each(reader, items, lambda each: put(reader, holder, each, node))
    return _NOTHING()


@methods(types.Deque, "reverse", "clear")
@methods(types.List, "reverse", "clear")
@methods(types.Dict, "clear")
@methods(types.Set, "clear")
def reverse(reader: Reader, node: nf.Node, holder: Value) -> Value:
    """`list.reverse`; `clear` of a list, dict or set."""
    changed(reader, holder, node)
    reader.emit(code(f".{nf.method_of(node)}", holder.text))
    return _NOTHING()


@methods(types.Dict, "get")
def get(reader: Reader, node: nf.Node, holder: Value, key: Value, default: Value | None = None) -> Value:
    """`dict.get`."""
    default = default or Value(NONE, "0", None)
    text = _key(reader, holder, reader.once(key), node)
    if text is None:
        return default
    default = reader.once(default)
    return reader.choice(
        f"{text} in {holder.text}",
        lambda: reader.temp(item_text(holder.text, text), content(reader, holder.kind, 1)),
        lambda: default,
        node,
    )


@methods(types.Dict, "pop")
def pop_key(reader: Reader, node: nf.Node, holder: Value, key: Value) -> Value:
    """`dict.pop`; a missing key raises KeyError."""
    changed(reader, holder, node)
    text = _present_key(reader, holder, reader.once(key), node)
    return reader.temp(code(".pop", holder.text, text), content(reader, holder.kind, 1))


@methods(types.Dict, "setdefault")
def setdefault(reader: Reader, node: nf.Node, holder: Value, key: Value, default: Value) -> Value:
    """`dict.setdefault`."""
    key, default = reader.once(key), reader.once(default)
    text, value = widened(reader, holder, key, node), widened(reader, holder, default, node, 1)
    reader.emit(f"if {text} not in {holder.text}:", [assigned(item_text(holder.text, text), value)])
    return reader.temp(item_text(holder.text, text), content(reader, holder.kind, 1))


@methods(types.ObjectTree, "get")
def get_of_node(reader: Reader, node: nf.Node, holder: Value, key: Value, default: Value | None = None) -> Value:
    """`dict.get` of a node of a tree."""
    if types.class_of(holder.kind) is not dict or not isinstance(key.constant, str):
        raise reader.refuse("a key that is not written as a constant", node)
    found = iteration.has_attribute_of_node(reader, holder, key.constant, node)
    other = default or Value(NONE, "0", None)
    if found.constant is not NO_CONSTANT:
        return iteration.node_attribute(reader, holder, key.constant, node) if found.constant else other
    read = functools.partial(iteration.node_attribute, reader, holder, key.constant, node)
    return reader.choice(found.text, read, lambda: other, node)


@methods(types.Struct, "get")
def get_field(reader: Reader, node: nf.Node, holder: Value, key: Value, default: Value | None = None) -> Value:
    """`dict.get` of a dict that is held as named parts."""
    default = default or Value(NONE, "0", None)
    if holder.kind.cls is dict and key.constant is NO_CONSTANT and isinstance(key.kind, types.Text):
        return _field_of_name(reader, holder, reader.once(key), 0, node, reader.once(default))
    if holder.kind.cls is not dict or key.constant is NO_CONSTANT:
        raise reader.refuse("a key that is not written as a constant", node)
    if key.constant not in holder.kind.names:
        return default
    place = holder.kind.names.index(key.constant)
    return Value(holder.kind.items[place], item_text(holder.text, place))
