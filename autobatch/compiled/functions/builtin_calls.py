"""Python's own functions: builtins, `math`, `heapq` and some of `collections`."""

import collections
import functools
import heapq
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.compiled.translation import arrays, containers, iteration, user_objects
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import CALLS, ITERATORS, call_values, calls, constant_of, methods
from autobatch.compiled.translation.exact_types import BOOL, FLOAT, INT, NONE
from autobatch.compiled.translation.number_operators import cast, lift, negative, quick_compare
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import (
    LENGTH,
    NO_CONSTANT,
    Value,
    code,
    item_text,
    parts_of,
)
from autobatch.core.op import Op
from autobatch.errors import MAKE_A_LIST
from autobatch.facts import operators
from autobatch.ops.numpy.python_math import OPS_OF_NUMBERS
from autobatch.program import normal_form as nf


def takes_nodes(handler: Callable[..., Value]) -> Callable[..., Value]:
    """Mark a handler that reads its arguments from their syntax, so that no generator has to be made."""
    handler.takes_nodes = True  # type: ignore[attr-defined]
    return handler


@calls(len)
def length(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`len`."""
    match value.kind:
        case types.RANGE | types.TreeNodes():
            return reader.temp(iteration.items_of_value(reader, value, node).length, INT)
        case types.Tuple() | types.Struct():
            return reader.constant(len(value.kind.items), node)
        case types.Text() | types.LookedUp() | types.Array() if getattr(value.kind, "ndim", 1):
            return reader.temp(f"{value.text}.shape[0]", INT, bounds=LENGTH)
        case types.List() | types.Set() | types.Dict():
            return reader.temp(f"len({value.text})", INT, bounds=LENGTH)
    reader.stop()


@calls(range)
def range_(reader: Reader, node: nf.Node, *args: Value) -> Value:
    """`range`, other than in the head of a loop."""
    if not 1 <= len(args) <= 3:
        reader.stop()
    texts = [reader.index(arg, node) for arg in args]
    start, stop = ("0", texts[0]) if len(texts) == 1 else texts[:2]
    step = texts[2] if len(texts) == 3 else "1"
    if len(texts) == 3:
        reader.fail_if(f"{step} == 0")
    return reader.temp(f"(int64({start}), int64({stop}), int64({step}))", types.RANGE)


@calls(int)
def int_(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`int` of a number."""

    def one(x: Value) -> Value:
        if x.constant is not NO_CONSTANT and x.kind.kind != "f":
            return Value(INT, cast(x, INT), int(x.constant), x.bounds)
        return _to_int(reader, x)

    return _of_numbers(reader, node, one, value)


def _to_int(reader: Reader, x: Value, rounding: str = "float64") -> Value:
    """A number as an int; a float by this function, if the int has 64 bits at most."""
    if x.kind.kind != "f":
        return Value(INT, cast(x, INT), bounds=x.bounds)
    reader.fail_if(f"not (-9.2e18 < {x.text} < 9.2e18)")
    return reader.temp(code("int64", code(rounding, cast(x, FLOAT))), INT)


def _number(reader: Reader, value: Value, node: nf.Node) -> Value:
    """A number; of a 0-d array its element."""
    value = arrays.operand(reader, value, node)
    if isinstance(value.kind, types.Text | types.Static):
        raise reader.refuse(f"a number of a {value.kind}", node)
    if not isinstance(value.kind, types.Scalar | types.Union):
        reader.stop()
    return value


def _of_numbers(reader: Reader, node: nf.Node, function: Callable[..., Value], *values: Value) -> Value:
    """`function` of numbers, for each type that they may have; for None the example is left to Python, which raises."""

    def one(*each: Value) -> Value:
        if any(x.kind == NONE for x in each):
            reader.stop()
        return function(*each)

    return lift(reader, one, *(_number(reader, value, node) for value in values))


@calls(float)
def float_(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`float` of a number."""

    def one(x: Value) -> Value:
        return Value(FLOAT, cast(x, FLOAT), float(x.constant) if x.constant is not NO_CONSTANT else NO_CONSTANT)

    return _of_numbers(reader, node, one, value)


@calls(round)
def round_(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`round` to an integer."""

    def one(x: Value) -> Value:
        if x.kind == NONE or not (x.kind.python or x.kind.kind == "f"):
            raise reader.refuse(f"round of a {x.kind}", node)
        return _to_int(reader, x, "np.rint")

    return lift(reader, one, _number(reader, value, node))


@calls(isinstance)
def isinstance_(reader: Reader, node: nf.Node, value: Value, classes: Value) -> Value:
    """`isinstance` of a value whose class is known while compiling."""
    found = classes.constant
    wanted = found if isinstance(found, tuple) else (found,)
    if not all(isinstance(each, type) for each in wanted) or isinstance(value.kind, types.Static):
        raise reader.refuse("isinstance with these arguments", node)

    def one(x: Value) -> Value:
        own = types.class_of(x.kind)
        if isinstance(x.kind, types.ObjectTree):
            suit = [k for k, cls in enumerate(x.kind.classes) if issubclass(cls, wanted)]
            return iteration.has_form(reader, x, suit, node)
        if own is None:
            raise reader.refuse(f"isinstance of a {x.kind}", node)
        return reader.constant(issubclass(own, wanted), node)

    return lift(reader, one, value) if isinstance(value.kind, types.Union) else one(value)


@calls(hasattr)
def hasattr_(reader: Reader, node: nf.Call, value: Value, name: Value) -> Value:
    """`hasattr` of a value whose class is known while compiling."""
    own, word = types.class_of(value.kind), name.constant
    if isinstance(value.kind, types.ObjectTree) and not any(hasattr(cls, str(word)) for cls in value.kind.classes):
        return iteration.has_attribute_of_node(reader, value, word, node)
    if own is None or not isinstance(word, str):
        raise reader.refuse(f"hasattr of a {value.kind}", node)
    if isinstance(value.kind, types.Object):
        return user_objects.has_attribute(reader, reader.once(value), word, node)
    return reader.constant(hasattr(own, word) or (own is not dict and word in getattr(value.kind, "names", ())), node)


@calls(bool)
def bool_(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`bool`."""
    return reader.temp(reader.truth(value, node), BOOL)


@calls(abs)
def abs_(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`abs`."""
    if isinstance(value.kind, types.Array):
        return arrays.elementwise(reader, np.absolute, [value], node)

    def one(x: Value) -> Value:
        if x.kind.kind == "b":
            return Value(INT if x.kind.python else x.kind, f"int64({x.text})" if x.kind.python else x.text)
        if x.kind.kind == "f":
            return reader.temp(code("abs", x.text), x.kind)
        if x.kind.kind == "u":
            return x
        return reader.choice(f"{x.text} < 0", lambda: negative(reader, x), lambda: x, node)

    return _of_numbers(reader, node, one, reader.once(value))


@calls(ord)
def ord_(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`ord`."""
    if not isinstance(value.kind, types.Text):
        reader.stop()
    value = reader.once(value)
    reader.fail_if(f"{value.text}.size != 1")
    return reader.temp(f"int64({value.text}[0])", INT, bounds=LENGTH)


# --- of many values


def reduced(
    reader: Any, node: nf.Call, argument: nf.Value, step: Callable[[Value, Value], Value], first: Value | None,
    made: Callable[[Value], Value] | None = None, begin: Callable[[Value], Value] = lambda value: value,
) -> str:  # fmt: skip
    """Reduce an iterable argument with `step(so_far, item)`; returns the name of the variable that holds the result.

    Args:
        first: the value to begin with, if any; else `begin` of the first item.
        made: maps an item to what is reduced, by default the item itself.
    """
    name = f"fold.{node.at.line}.{node.at.column}"
    if first is not None:
        reader.assign(name, first)
    else:
        reader.env.pop(name, None)
    reader.locals.add(name)

    def item(value: Value) -> None:
        value = reader.once(value) if made is None else made(value)
        known = reader.env.get(name)
        if known is None:
            reader.assign(name, begin(value))
            return

        def update() -> None:
            so_far = Value(known.kind, reader.variable(name, known.kind))
            reader.env[name] = type(known)(known.kind)
            reader.assign(name, step(so_far, value))

        if known.maybe_unbound:
            reader.branch(f"b_{reader.variable(name, None)}", update, lambda: bind(value))
        else:
            update()

    def bind(value: Value) -> None:
        reader.env.pop(name)
        reader.assign(name, begin(value))

    iteration.each_item(reader, argument, item)
    return name


def _finished(reader: Any, name: str, node: nf.Node, default: Value | None = None) -> Value:
    known = reader.env.get(name)
    if known is None:
        if default is None:
            reader.stop()
        return default  # type: ignore[return-value]
    if known.maybe_unbound and default is not None:
        plain = Value(known.kind, reader.variable(name, known.kind))
        out = reader.choice(f"b_{reader.variable(name, None)}", lambda: plain, lambda: default, node)
    else:
        out = reader.once(reader.read(name, node))
    reader.env.pop(name, None)
    return out


@calls(sum)
@takes_nodes
def sum_(reader: Reader, node: nf.Call, start: nf.Value | None = None) -> Value:
    """`sum`."""
    given = start or (node.args[1] if len(node.args) > 1 else None)
    first = reader.once(reader.expr(given)) if given is not None else reader.constant(0, node)
    of_arrays = reader.program.sums_of_arrays

    def begin(each: Value) -> Value:
        return reader.once(reader.binary("Add", first, each, node))

    def step(so_far: Value, item: Value) -> Value:
        if isinstance(item.kind, types.Array | types.Object) and isinstance(so_far.kind, types.Scalar):
            of_arrays.add(id(node))  # to be read once more: the first item gives the type
            reader.program.changes[0] += 1
            reader.stop()
        if sys.version_info >= (3, 12) and FLOAT in (so_far.kind, item.kind):
            raise reader.refuse("sum of floats, which this Python compensates", node)
        return reader.binary("Add", so_far, item, node)

    is_of_arrays = id(node) in of_arrays
    name = reduced(reader, node, node.args[0], step, None if is_of_arrays else first, begin=begin)
    if id(node) in of_arrays and not is_of_arrays:
        reader.stop()
    return _finished(reader, name, node)


for _each in (*operators.ARITHMETIC, *operators.COMPARISONS):
    _does = "compared" if _each in operators.COMPARISONS else "binary"
    calls(_each.function)(
        lambda reader, node, a, b, does=_does, word=_each.syntax: getattr(reader, does)(word, a, b, node)
    )


@calls(functools.reduce)
@takes_nodes
def reduce(reader: Reader, node: nf.Call) -> Value:
    """`functools.reduce`."""
    function = reader.expr(node.args[0])
    if not isinstance(function.kind, types.Static) or not 2 <= len(node.args) <= 3:
        raise reader.refuse("with these arguments it is not compiled", node)
    first = reader.once(reader.expr(node.args[2])) if len(node.args) == 3 else None

    def step(so_far: Value, each: Value) -> Value:
        return call_values(reader, node, function.kind.value, [reader.once(so_far), each])

    return _finished(reader, reduced(reader, node, node.args[1], step, first), node)


def _extreme(
    reader: Reader, node: nf.Call, default: nf.Value | None = None, key: nf.Value | None = None, *, sign: str
) -> Value:
    """`max` and `min`; with a key, of pairs of the key and the value."""
    called = None if key is None else _called_with(reader, key, node)

    def step(so_far: Value, new: Value) -> Value:
        before, item = reader.once(so_far), reader.once(new)
        one, other = (value if called is None else parts_of(value)[0] for value in (item, before))
        quick = quick_compare(reader, sign, one, other) if called is None else None
        better = reader.compared(sign, one, other, node) if quick is None else Value(BOOL, quick)
        if better.constant is not NO_CONSTANT:
            return item if better.constant else before
        return reader.choice(reader.truth(better, node), lambda: item, lambda: before, node)

    def paired(value: Value) -> Value:
        value = reader.once(value)
        return value if called is None else reader.held(reader.tuple_of([reader.once(called(value)), value]))

    if len(node.args) == 1:
        other = None if default is None else reader.once(reader.expr(default))
        if called is not None and default is not None:
            raise reader.refuse("a key together with a default", node)
        out = _finished(reader, reduced(reader, node, node.args[0], step, None, paired), node, other)
    else:
        values = [paired(reader.expr(arg)) for arg in node.args]
        out = functools.reduce(step, values)
    return out if called is None else reader.temp(item_text(out.text, 1), out.kind.items[1])


calls(max)(takes_nodes(functools.partial(_extreme, sign="Gt")))
calls(min)(takes_nodes(functools.partial(_extreme, sign="Lt")))


def _quantifier(reader: Reader, node: nf.Call, until: bool) -> Value:
    """`any`, which reads until an item is true, and `all`, which reads until one is false."""
    out = reader.temp(str(not until), BOOL)
    argument = node.args[0]
    generator = iteration.generator_of(reader, argument)
    if generator is not None and sum(isinstance(x, nf.Loop) for x in nf.walk(generator.body)) > 1:
        raise reader.refuse("a generator with several loops that is not read to its end", node, instead=MAKE_A_LIST)

    def item(value: Value) -> None:
        truth = reader.truth(value, node)
        found = [f"{out.text} = {until}", *(["break"] if generator is not None else [])]
        reader.emit(f"if {truth if until else f'not {truth}'}:", found)

    iteration.each_item(reader, argument, item)
    return out


calls(any)(takes_nodes(functools.partial(_quantifier, until=True)))
calls(all)(takes_nodes(functools.partial(_quantifier, until=False)))


def _collected(reader: Reader, node: nf.Call, kind: Any) -> Value:
    """A new list, set or deque of the items of an iterable."""
    if len(node.args) > 1:
        raise reader.refuse("with these arguments it is not compiled", node)
    out = containers.new(reader, node, kind)
    if node.args:
        iteration.each_item(reader, node.args[0], lambda item: containers.put(reader, out, reader.once(item), node))
    return out


calls(list)(takes_nodes(functools.partial(_collected, kind=types.List)))
calls(collections.deque)(takes_nodes(functools.partial(_collected, kind=types.Deque)))
calls(set)(takes_nodes(functools.partial(_collected, kind=types.Set)))


def _filtered(reader: Reader, node: nf.Node, test: Value, values: Value) -> Value:
    """The items that `filter` lets through, in a new list."""
    out = containers.new(reader, node, types.List)

    def look(item: Value) -> None:
        item = reader.once(item)
        passed = item if test.kind == NONE else call_values(reader, node, test.constant, [item])
        keep = functools.partial(containers.put, reader, out, item, node)
        reader.decide(Value(BOOL, reader.truth(passed, node)), keep, lambda: None, None)

    iteration.each(reader, iteration.items_of_value(reader, reader.once(values), node), look)
    return out


ITERATORS[filter] = _filtered


@calls(collections.Counter)
@takes_nodes
def counter(reader: Reader, node: nf.Call) -> Value:
    """`collections.Counter` of items."""
    out = containers.new(reader, node, types.Counts)

    def count(item: Value) -> None:
        key = reader.once(item)
        before = containers.get(reader, node, out, key, reader.constant(0, node))
        containers.assign_key(reader, out, key, reader.binary("Add", before, reader.constant(1, node), node), node)

    if node.args:
        iteration.each_item(reader, node.args[0], count)
    return out


@calls(collections.defaultdict)
def defaultdict(reader: Reader, node: nf.Node, factory: Value) -> Value:
    """`collections.defaultdict` of numbers or lists."""
    if factory.constant not in (int, float, list):
        raise reader.refuse("a defaultdict of anything but int, float or list", node)
    out = containers.new(reader, node, types.DefaultDict)
    out.kind.site.factory = factory.constant
    return out


@calls(dict)
def dict_(reader: Reader, node: nf.Call) -> Value:
    """`dict()`."""
    return containers.new(reader, node, types.Dict)


@calls(sorted)
@takes_nodes
def sorted_(reader: Reader, node: nf.Call, key: nf.Value | None = None, reverse: nf.Value | None = None) -> Value:
    """`sorted`."""
    out = containers.new(reader, node, types.List)
    take = lambda item: containers.put(reader, out, reader.once(item), node)
    iteration.each_item(reader, node.args[0], take, any_order=True)  # which does not show in the result
    sort(reader, node, out, key, reverse)
    return out


@methods(types.List, "sort")
@takes_nodes
def sort(
    reader: Reader, node: nf.Call, holder: Value, key: nf.Value | None = None, reverse: nf.Value | None = None
) -> Value:
    """`list.sort`, which is stable."""
    containers.changed(reader, holder, node)
    backwards = False if reverse is None else constant_of(reader, reader.expr(reverse), False, node, "reverse")
    keys = holder
    if holder.kind.elem is None:
        return Value(NONE, "0", None)
    if key is not None:
        keys = containers.new(reader, key, types.List)
        called = _called_with(reader, key, node)
        items = iteration.items_of_value(reader, holder, node)
        iteration.each(reader, items, lambda item: containers.put(reader, keys, reader.once(called(item)), node))
    _ordered(reader, keys.kind.elem, node)
    _without_nan(reader, keys.text, keys.kind.elem)
    order = reader.temp(f"stable_argsort({keys.text}, {backwards})", types.Array("int64", 1))
    reader.emit(code("reorder", holder.text, order.text))
    return Value(NONE, "0", None)


def _called_with(reader: Reader, key: nf.Value, node: nf.Node) -> Callable[[Value], Value]:
    """A key function, as a function of values: the body of a lambda is read in place, any other function is called."""
    if isinstance(key, nf.Closure):
        given = key.parameters
        if len(given.names) != 1 or given.positional != given.names or given.defaults:
            raise reader.refuse("a key function that does not take one argument", node)

        def call(value: Value) -> Value:
            body, names = iteration.in_place(reader, key)
            reader.assign(names[given.names[0]], value)
            (result,) = body
            assert isinstance(result, nf.Return)
            assert result.value is not None
            return reader.expr(result.value)

        return call
    function = reader.expr(key)
    if not isinstance(function.kind, types.Static):
        raise reader.refuse("a key that is not a function", node)
    return lambda value: call_values(reader, node, function.kind.value, [value])


def _has_order(kind: types.Type) -> bool:
    return types.is_number(kind) or (
        isinstance(kind, types.Tuple) and bool(kind.items) and all(map(_has_order, kind.items))
    )


def _ordered(reader: Reader, kind: types.Type, node: nf.Node) -> None:
    """Refuse values that compiled code cannot put into Python's order."""
    if not _has_order(kind):
        raise reader.refuse(f"an order of {kind}", node)


def _nan_in(text: str, kind: types.Type) -> list[str]:
    """Tests for NaN, as text: of a number, or of each number in a tuple."""
    return [f"{x} != {x}" for x in containers.floats_in(text, kind)]


def _without_nan(reader: Reader, text: str, kind: types.Type) -> None:
    """Leave the example to Python if a value is NaN, since the order then depends on the sorting algorithm."""
    tests = _nan_in("x", kind)
    if tests:
        flag = reader.temp("False", BOOL)
        reader.emit(code("for", "x", text), [f"if {' or '.join(tests)}:", [f"{flag.text} = True"]])
        reader.fail_if(flag.text)


# --- heapq


@calls(heapq.heappush, heapq.heappop, heapq.heappushpop, heapq.heapreplace, heapq.heapify)
def heap(reader: Reader, node: nf.Call, holder: Value, *values: Value) -> Value:
    """The functions of `heapq` that change a heap; each with the value that is pushed, if any."""
    name = reader.expr(node.function).constant.__name__
    if not isinstance(holder.kind, types.List) or len(values) != int("push" in name or "replace" in name):
        raise reader.refuse(f"a heap in a {holder.kind}", node)
    held = [reader.once(value) for value in values]
    texts = [holder.text, *(containers.widened(reader, holder, value, node) for value in held)]
    containers.changed(reader, holder, node)
    if holder.kind.elem is not None:
        _ordered(reader, holder.kind.elem, node)
    if name == "heapify" and holder.kind.elem is not None:
        _without_nan(reader, holder.text, holder.kind.elem)
    tests = [test for value in held for test in _nan_in(value.text, value.kind)]
    if tests:
        reader.fail_if(" or ".join(tests))
    call = code(f"heapq.{name}", *texts)
    if name in ("heappush", "heapify"):
        reader.emit(call)
        return Value(NONE, "0", None)
    reader.fail_if(f"len({holder.text}) == 0")
    return reader.temp(call, iteration.content(reader, holder.kind))


# --- math


def _math(function: Any, op: Op) -> None:
    """Register a function of C's math library; where Python's raises, a floating-point flag is set.

    A call whose result the compiler works out itself would set none, so it must not know the argument.
    """
    flags = op.vjp is not None and op.ufunc not in (np.fabs, np.copysign)
    kind, text = BOOL if op.vjp is None else FLOAT, op.number[1]  # type: ignore[index]

    @calls(function)
    def call(reader: Reader, node: nf.Node, *args: Value) -> Value:
        if len(args) != (1 if op.ufunc is None else op.ufunc.nin):
            raise reader.refuse("with these arguments it is not compiled", node)

        def one(*each: Value) -> Value:
            *floats, last = [cast(x, FLOAT) for x in each]
            last = code("opaque", last) if flags else last
            return reader.temp(code(text, *floats, last), kind)

        return _of_numbers(reader, node, one, *args)


# Python's functions, which raise where NumPy's of the same names (`numpy_calls`) warn and give NaN.
for _function, _op in OPS_OF_NUMBERS.items():
    if _function not in CALLS and _function is not math.cbrt:  # which Numba does not have
        _math(_function, _op)


def _rounded(reader: Reader, node: nf.Node, value: Value, *, by: str) -> Value:
    return _of_numbers(reader, node, lambda x: _to_int(reader, x, by), value)


for _name in ("floor", "ceil", "trunc"):
    calls(getattr(math, _name))(functools.partial(_rounded, by=f"np.{_name}"))
