"""NumPy's functions: arrays are made, reduced, sorted and searched, with NumPy's types and guards for its errors."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.compiled.functions.builtin_calls import takes_nodes
from autobatch.compiled.translation import arrays, containers
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import (
    CALLS,
    call_values,
    calls,
    constant_of,
    methods,
    read_source,
    user_function,
)
from autobatch.compiled.translation.exact_types import BOOL, FLOAT, INT, NONE
from autobatch.compiled.translation.number_operators import cast, lift
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import (
    NO_CONSTANT,
    Value,
    as_tuple,
    assigned,
    code,
    item_text,
    numba_type,
    parts_of,
)
from autobatch.core.op import Op
from autobatch.errors import BUILD_ARRAYS, Unsupported
from autobatch.ops.numpy.contractions import einsum_p, explicit_spec, product_plan, split_spec
from autobatch.ops.numpy.creation import MADE_LIKE
from autobatch.ops.numpy.creation import arange as arange_of_sizes
from autobatch.ops.numpy.cumulative_and_sorting import SCANS, accumulate_one, scattered_one
from autobatch.ops.numpy.function_table import REARRANGES
from autobatch.ops.numpy.joining import filled, joined_of_one, stacked_of_lists, stacked_of_one
from autobatch.ops.numpy.reductions import REDUCTIONS, argmax_p
from autobatch.ops.rules.dispatch import SOURCES
from autobatch.program import normal_form as nf

# --- dtypes, shapes, new arrays


def dtype_of(reader: Reader, value: Value | None, default: str, node: nf.Node) -> str:
    """The name of a dtype, which has to be known while compiling."""
    if value is None or value.kind == NONE:
        return default
    found = constant_of(reader, value, None, node, "a dtype")
    try:
        return types.of_dtype(np.dtype(found)).name
    except (Unsupported, TypeError) as error:
        raise reader.refuse(f"the dtype {found}: {error}", node) from None


def shape_of(reader: Reader, value: Value, node: nf.Node) -> tuple[str, int]:
    """A shape as text, and the number of its dimensions."""
    texts = []
    for each in parts_of(value) if isinstance(value.kind, types.Tuple) else [value]:
        text = reader.temp(reader.index(each, node), INT).text
        reader.fail_if(f"{text} < 0")
        texts.append(text)
    if not texts:
        raise reader.refuse("a 0-d array", node)
    return f"({''.join(text + ', ' for text in texts)})", len(texts)


def _order(reader: Reader, order: Value | None, node: nf.Node) -> None:
    if order is not None and order.constant not in ("C", "K", "A"):
        raise reader.refuse("another order than C", node)


def _creation(function: Any, like: Any) -> None:
    """Register a function of a shape, and that of an array like another."""

    @calls(function)
    def make(reader: Any, node: nf.Node, shape: Value, dtype: Value | None = None, order: Value | None = None) -> Value:
        _order(reader, order, node)
        text, rank = shape_of(reader, shape, node)
        kind = dtype_of(reader, dtype, "float64", node)
        return reader.temp(code(f"np.{function.__name__}", text, arrays.np_name(kind)), types.Array(kind, rank))

    @calls(like)
    def make_like(reader: Reader, node: nf.Node, a: Value, *fill: Value, dtype: Value | None = None) -> Value:
        if not isinstance(a.kind, types.Array):
            raise reader.refuse(f"an array like a {a.kind}", node)
        own = reader.constant(np.dtype(a.kind.dtype), node) if dtype is None else dtype
        shape = arrays.attribute(reader, a, "shape", node)
        return (full if fill else make)(reader, node, shape, *fill, dtype=own)


@calls(np.full)
def full(
    reader: Reader, node: nf.Node, shape: Value, fill_value: Value, dtype: Value | None = None,
    order: Value | None = None,
) -> Value:  # fmt: skip
    """`np.full`."""
    _order(reader, order, node)
    text, rank = shape_of(reader, shape, node)
    fill = arrays.operand(reader, reader.once(fill_value), node)
    if isinstance(fill.kind, types.Union) and dtype is None:
        raise reader.refuse("an array of a dtype that is known only when it runs", node)
    if not isinstance(fill.kind, types.Scalar | types.Union) or fill.kind == NONE:
        raise reader.refuse(f"an array full of {fill.kind}", node)
    kind = dtype_of(reader, dtype, getattr(fill.kind, "name", ""), node)
    number = reader.temp(arrays.converted(reader, fill, kind, node), types.Scalar(kind, False))
    return reader.temp(code("np.full", text, number.text, arrays.np_name(kind)), types.Array(kind, rank))


for _made, _made_like in MADE_LIKE.items():
    _creation(_made, _made_like)
calls(np.full_like)(CALLS[np.empty_like])


@calls(np.arange, arange_of_sizes)
def arange(reader: Reader, node: nf.Node, *args: Value, dtype: Value | None = None) -> Value:
    """`np.arange`."""
    if not 1 <= len(args) <= 3 or not all(types.is_number(arg.kind) and arg.kind.name == "int64" for arg in args):
        raise reader.refuse("np.arange with these arguments", node)
    texts = [reader.temp(reader.index(arg, node), INT).text for arg in args]
    kind = dtype_of(reader, dtype, "int64", node)
    if len(texts) == 3:
        reader.fail_if(f"{texts[2]} == 0")
    out = reader.temp(f"np.arange({', '.join(texts)})", types.Array("int64", 1))
    return astype_text(reader, out, kind)


def astype_text(reader: Reader, value: Value, name: str, node: nf.Node | None = None) -> Value:
    """The array converted to this dtype, as a new array unless it has that dtype."""
    if value.kind.dtype == name:
        return value
    out = types.Array(name, value.kind.ndim)
    if name == "bool":
        return reader.temp(f"({value.text} != 0)", out)
    if np.dtype(name).kind in "iu" and np.dtype(value.kind.dtype).kind == "f":
        low, high = float(max(np.iinfo(name).min, -9.2e18)), float(min(np.iinfo(name).max, 9.2e18))
        reader.fail_if(f"not all_within({value.text}, {low!r}, {high!r})")
    return reader.temp(code(".astype", value.text, arrays.np_name(name)), out)


@methods(types.Array, "astype")
def astype(reader: Reader, node: nf.Node, value: Value, dtype: Value) -> Value:
    """`array.astype`."""
    name = dtype_of(reader, dtype, "", node)
    if name == value.kind.dtype:
        return copy(reader, node, value)
    return astype_text(reader, value, name)


@calls(np.copy)
def copy(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`array.copy`, `np.copy`."""
    value = arrays.as_array(reader, value, node)
    return reader.temp(code(".copy", value.text), types.Array(value.kind.dtype, value.kind.ndim))


def _written_out(node: nf.Value) -> list[nf.Value]:
    """The items of a list or tuple that is written out; [] of anything else."""
    return node.args if isinstance(node, nf.Call) and node.symbol in ("list", "tuple") else []


@calls(np.array, np.asarray)
@takes_nodes
def array(reader: Reader, node: nf.Call, dtype: nf.Value | None = None) -> Value:
    """`np.array` or `np.asarray` of an array, a list, or nested lists that are written out."""
    if not 1 <= len(node.args) <= 2:
        raise reader.refuse("with these arguments it is not compiled", node)
    given = node.args[1] if len(node.args) == 2 else dtype
    wanted = None if given is None else reader.expr(given)
    function = reader.expr(node.function).kind.value
    source = node.args[0]
    rows = _written_out(source)
    if rows and all(_written_out(row) for row in rows):
        return _stacked(reader, [reader.tuple_of(reader.exprs(_written_out(row))) for row in rows], wanted, node)
    value = reader.tuple_of(reader.exprs(rows)) if rows else as_tuple(reader.expr(source))
    if isinstance(value.kind, types.Array):
        name = dtype_of(reader, wanted, value.kind.dtype, node)
        if name != value.kind.dtype:
            return astype_text(reader, value, name)
        return value if function is np.asarray else copy(reader, node, value)
    if isinstance(value.kind, types.Tuple):
        parts = parts_of(value)
        if parts and all(isinstance(part.kind, types.Array) and part.kind.ndim for part in parts):
            value = containers.literal(reader, node, parts, types.List)
        else:
            return _stacked(reader, [value], wanted, node, flat=True)
    if isinstance(value.kind, types.Scalar | types.Union):
        raise reader.refuse("a 0-d array", node)
    if isinstance(value.kind, types.List) and isinstance(value.kind.elem, types.List | types.Array):
        return _nested(reader, reader.once(value), wanted, node)
    out = arrays.as_array(reader, reader.once(value), node)
    return _checked_numbers(reader, out, dtype_of(reader, wanted, out.kind.dtype, node), node)


def _checked_numbers(reader: Reader, numbers: Value, name: str, node: nf.Node) -> Value:
    """Numbers of a list as an array of a dtype, which NumPy checks that it holds each."""
    if np.dtype(name).kind in "iu" and not np.can_cast(numbers.kind.dtype, name, "safe"):
        raise reader.refuse(f"an array of {name} from a list of {numbers.kind.dtype}", node, instead=BUILD_ARRAYS)
    return astype_text(reader, numbers, name)


def _nested(reader: Reader, value: Value, wanted: Value | None, node: nf.Node) -> Value:
    """An array from a list of lists, or of arrays, of one shape."""
    of_arrays = isinstance(value.kind.elem, types.Array)
    out = user_function(reader, node, stacked_of_one if of_arrays else stacked_of_lists, [value], {})
    name = dtype_of(reader, wanted, out.kind.dtype, node)
    return astype_text(reader, out, name) if of_arrays else _checked_numbers(reader, out, name, node)


def _stacked(reader: Reader, rows: list[Value], wanted: Value | None, node: nf.Node, flat: bool = False) -> Value:
    numbers = [arrays.operand(reader, reader.once(part), node) for row in rows for part in row.parts or []]
    kinds = [number.kind for number in numbers]
    fit = all(isinstance(kind, types.Scalar | types.Union) and kind != NONE for kind in kinds)
    if not (numbers and fit) or len({len(row.parts or []) for row in rows}) > 1:
        raise reader.refuse("an array of such values", node)
    if wanted is None and any(isinstance(kind, types.Union) for kind in kinds):
        raise reader.refuse("an array of a dtype that is known only when it runs", node)
    samples = [np.ones((), kind.name).dtype for kind in kinds if isinstance(kind, types.Scalar)]
    name = dtype_of(reader, wanted, np.result_type(*samples).name if samples else "", node)
    shape = (len(numbers),) if flat else (len(rows), len(numbers) // len(rows))
    out = reader.temp(f"np.empty({shape}, {arrays.np_name(name)})", types.Array(name, len(shape)))
    for number, place in zip(numbers, np.ndindex(*shape), strict=True):
        text = arrays.converted(reader, number, name, node)
        reader.emit(assigned(item_text(out.text, ", ".join(map(str, place))), text))
    return out


@calls(np.concatenate, np.hstack, np.vstack)
@takes_nodes
def concatenate(reader: Reader, node: nf.Call, axis: nf.Value | None = None) -> Value:
    """`np.concatenate`, `np.hstack` and `np.vstack` of arrays in a list, or written out."""
    given = node.args[1] if len(node.args) > 1 else axis
    along = 0 if given is None else constant_of(reader, reader.expr(given), 0, node, "an axis")
    written = _written_out(node.args[0])
    value = reader.tuple_of(reader.exprs(written)) if written else reader.once(reader.expr(node.args[0]))
    if isinstance(value.kind, types.List) and value.kind.elem is None:
        reader.stop()
    of_list = isinstance(value.kind, types.List) and isinstance(value.kind.elem, types.Array)
    if not (of_list or value.parts):
        raise reader.refuse("the arrays to join are not written out as a list or tuple", node)
    parts = [] if of_list else [arrays.as_array(reader, part, node) for part in value.parts]
    function = reader.expr(node.function).constant
    if function is np.vstack and of_list and value.kind.elem.ndim == 1:
        return user_function(reader, node, stacked_of_one, [value], {})
    if function is np.vstack:
        parts = [_called(reader, node, np.atleast_2d, part) for part in parts]
    ranks = {value.kind.elem.ndim} if of_list else {part.kind.ndim for part in parts}
    rank = max(ranks)
    if function is not np.concatenate:
        along = int(rank > 1 and function is np.hstack) if given is None else rank  # an axis is no argument of it
    if len(ranks) > 1 or along not in range(-rank, rank):
        raise reader.refuse("a concatenation of these values", node)
    along %= rank
    if of_list:
        return read_source(SOURCES[joined_of_one], reader, node, value, reader.constant(along, node))
    name = types.of_dtype(np.result_type(*[np.dtype(part.kind.dtype) for part in parts])).name
    texts = [reader.once(astype_text(reader, part, name)).text for part in parts]
    for text, axis in itertools.product(texts[1:], {*range(rank)} - {along}):
        reader.fail_if(f"{text}.shape[{axis}] != {texts[0]}.shape[{axis}]", ValueError)
    made = code("np.concatenate", code("()", *texts), *[str(along)] * (rank > 1))
    return reader.temp(made, types.Array(name, rank))


@calls(filled)
def fill(reader: Reader, node: nf.Node, out: Value, parts: Value) -> Value:
    """Fill an array that was just made with the elements of those of a list, which are as many."""
    reader.emit(code("fill_parts", out.text, parts.text))
    return out


# --- element by element


@calls(np.ufunc)
def of_ufunc(
    reader: Reader, node: nf.Node, *args: Value, ufunc: Any = None, function: Any = None, **named: Value
) -> Value:
    """A call of a ufunc that has an op, or of its `accumulate` or `at`."""
    if function is not ufunc and function.__name__ == "at":
        return scatter(reader, node, *args, ufunc=ufunc)
    if function is not ufunc:
        return scan(reader, node, *args, ufunc=ufunc, function=function, **named)
    if len(args) != ufunc.nin or named:
        raise reader.refuse("with these arguments it is not compiled", node)
    return arrays.elementwise(reader, ufunc, [reader.once(arg) for arg in args], node)


@calls(np.where)
def where(reader: Reader, node: nf.Node, condition: Value, x: Value | None = None, y: Value | None = None) -> Value:
    """`np.where` of a condition, and of choices that are numbers or arrays, broadcast to one shape."""
    if x is None or y is None:
        return nonzero(reader, node, condition)
    values = [arrays.operand(reader, reader.once(value), node) for value in (condition, x, y)]
    kinds = [value.kind for value in values]
    ranks = [kind.ndim for kind in kinds if isinstance(kind, types.Array)]
    samples = [types.sample(kind) for kind in kinds if isinstance(kind, types.Array) or types.is_number(kind)]
    if not ranks or len(samples) < 3 or np.result_type(samples[0]).kind != "b":
        raise reader.refuse(f"a choice by a {kinds[0]} of a {kinds[1]} and a {kinds[2]}", node)
    out, rank = types.of_dtype(np.where(*samples).dtype), max(ranks)
    sources, shape = arrays.aligned(reader, values, [types.Scalar("bool", False), out, out])
    texts = [code("broadcast_aligned", source.text, shape) for source in sources]
    return reader.temp(code("where_aligned", *texts), types.Array(out.name, rank))


@calls(np.nonzero)
def nonzero(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`np.nonzero`."""
    mask = arrays.as_array(reader, value, node)
    if mask.kind.dtype != "bool":
        mask = arrays.elementwise(reader, np.not_equal, [mask, reader.constant(0, node)], node)
    return reader.tuple_of(arrays.places_of(reader, mask))


# --- reductions


def _axis(reader: Reader, axis: Value | None, value: Value, node: nf.Node) -> tuple[int, int] | None:
    """The adjacent axes to reduce, as the first and the one after the last; None for all."""
    found = constant_of(reader, axis, None, node, "an axis")
    if found is None:
        return None
    rank = value.kind.ndim
    several = found if isinstance(found, tuple) else (found,)
    if not several or not all(isinstance(each, int) for each in several):
        raise reader.refuse("such an axis", node)
    if not all(-rank <= each < rank for each in several):
        reader.stop()
    axes = sorted(each % rank for each in several)
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise reader.refuse("axes that are not adjacent", node)
    return None if len(axes) == rank else (axes[0], axes[-1] + 1)


def _along(
    reader: Any, node: nf.Node, value: Value, axes: tuple[int, int] | None, keep: bool, dtype: types.Scalar,
    reduce: Any, ufunc: Any,
) -> Value:  # fmt: skip
    """`reduce` of all elements, or of each 1-d part along the reduced axes.

    Args:
        keep: NumPy's `keepdims`; ufunc: what `reduce` repeats, without a change of dtype.
    """
    rank = value.kind.ndim
    first, last = axes or (0, rank)
    if axes is None and not keep:
        return reduce(value)
    value = reader.once(value)
    sizes = [f"{value.text}.shape[{axis}]" for axis in range(rank)]
    parts = [" * ".join(each) or "1" for each in (sizes[:first], sizes[first:last], sizes[last:])]
    before, many, after = (reader.temp(part, INT).text for part in parts)
    whole = code(".reshape", code("np.ascontiguousarray", value.text), f"({before}, {many}, {after})")
    source = reader.temp(whole, types.Array(value.kind.dtype, 3))
    sizes[first:last] = ["1"] * (last - first) if keep else []
    starts = ufunc in (np.maximum, np.minimum)
    if (starts or ufunc is np.add) and np.dtype(value.kind.dtype).kind in ("fiu" if starts else "f"):
        place, _ = arrays.loop_of(reader, ufunc, [source.kind, source.kind], node)
        text = code("reduced_rows", f"table[{2 * place}]", f"table[{2 * place + 1}]", source.text, str(int(starts)))
        if starts:
            reader.fail_if(f"{many} == 0")
        if last < rank:
            by = ["extreme_rows", source.text, str(ufunc is np.maximum)] if starts else ["sum_rows", source.text]
            text = code(*by)
        out = reader.temp(text, types.Array(dtype.name, 2))
        return reader.temp(code(".reshape", out.text, code("()", *sizes)), types.Array(dtype.name, len(sizes)))
    out = reader.temp(f"np.empty(({before}, {after}), {arrays.np_name(dtype.name)})", types.Array(dtype.name, 2))
    i, j = reader.fresh("i"), reader.fresh("j")

    def body() -> None:
        lane = reader.temp(item_text(source.text, f"{i}, :, {j}"), types.Array(value.kind.dtype, 1))
        reader.emit(assigned(item_text(out.text, f"{i}, {j}"), reduce(lane).text))

    lines, _ = reader.arm(body, reader.env)
    reader.emit(f"for {i} in range({before}):", [f"for {j} in range({after}):", lines])
    return reader.temp(code(".reshape", out.text, code("()", *sizes)), types.Array(dtype.name, len(sizes)))


def _of_one(reader: Reader, function: Any, value: Value) -> Value:
    """A reduction of one number: the number, as one of the result's dtype."""

    def one(x: Value) -> Value:
        if x.kind == NONE:
            reader.stop()
        if function in (np.argmax, np.argmin):
            return reader.constant(np.int64(0), None)
        kind = types.of_dtype(function(np.ones((), x.kind.name)).dtype)
        if function in (np.sum, np.mean) and kind.kind == "f":  # of -0.0 it is 0.0
            return reader.temp(code("+", cast(x, kind), f"{kind.name}(0)"), kind)
        return Value(kind, cast(x, kind))

    return lift(reader, one, value)


@calls(np.mean)
def mean(reader: Reader, node: nf.Node, value: Value, *args: Value, **named: Value) -> Value:
    """`np.mean`."""
    if isinstance(value.kind, types.Scalar | types.Union) and not (args or named):
        return _of_one(reader, np.mean, value)
    return read_source(SOURCES[np.mean], reader, node, value, *args, **named)


def _reduction(function: Any, op: Op) -> None:
    """Register a function: the op's ufunc of all; without a ufunc, a place."""
    ufunc = op.ufunc
    start = None if ufunc is None else ufunc.identity

    @calls(function)
    def call(
        reader: Reader, node: nf.Node, value: Value, axis: Value | None = None, keepdims: Value | None = None
    ) -> Value:
        if isinstance(value.kind, types.Scalar | types.Union) and axis is None and keepdims is None:
            return _of_one(reader, function, value)
        value = reader.once(arrays.as_array(reader, value, node))
        axes = _axis(reader, axis, value, node)
        dtype = types.of_dtype(function(np.ones(1, value.kind.dtype)).dtype)
        reader.program.approximate |= ufunc in (np.add, np.multiply)

        def reduce(lane: Value) -> Value:
            source = lane if ufunc is None else astype_text(reader, lane, dtype.name)
            contiguous = code("np.ascontiguousarray", source.text)
            flat = reader.temp(code(".ravel", contiguous), types.Array(source.kind.dtype, 1))
            if start is None:
                reader.fail_if(f"{flat.text}.size == 0")
            if ufunc is None:
                return reader.temp(f"arg_extremum({flat.text}, {op is argmax_p})", dtype)
            place, _ = arrays.loop_of(reader, ufunc, [flat.kind, flat.kind], node)
            ends = item_text(flat.text, 0), item_text(flat.text, "1:")
            first, rest = ends if start is None else (str(start), flat.text)
            first = first if start is None else f"{numba_type(dtype)}({start})"
            return reader.temp(code("reduced", f"table[{2 * place}]", f"table[{2 * place + 1}]", rest, first), dtype)

        keeps = bool(constant_of(reader, keepdims, False, node, "keepdims"))
        return _along(
            reader, node, value, axes, keeps, dtype, reduce, ufunc if value.kind.dtype == dtype.name else None
        )


for _function, _op in REDUCTIONS.items():
    _reduction(_function, _op)


def scan(
    reader: Reader, node: nf.Node, value: Value, axis: Value | None = None, *, ufunc: np.ufunc, function: Any
) -> Value:
    """`ufunc.accumulate` of a vector or a matrix, and the functions of NumPy that it is."""
    value = arrays.as_array(reader, value, node)
    if axis is None and function in SCANS:
        value = reshape(reader, node, value, reader.constant(-1, node))
    along, rank = constant_of(reader, axis, 0, node, "an axis"), value.kind.ndim
    if rank > 2 or along not in range(-rank, rank):
        raise reader.refuse("with these arguments it is not compiled", node)
    start = astype_text(reader, value, types.of_dtype(function(np.ones(1, value.kind.dtype)).dtype).name)
    return user_function(reader, node, accumulate_one, [start, *(reader.constant(x, node) for x in (ufunc, along))], {})


def scatter(
    reader: Reader, node: nf.Node, a: Value, indices: Value, b: Value | None = None, *, ufunc: np.ufunc
) -> Value:
    """`ufunc.at` with an array as index, or with one for the rows and one for the columns of a matrix."""
    parts = parts_of(indices) if isinstance(indices.kind, types.Tuple) else [indices]
    places = [arrays.as_array(reader, part, node) for part in parts]
    if b is None or ufunc.nin != 2 or len(places) not in (1, a.kind.ndim) or any(x.kind.ndim != 1 for x in places):
        raise reader.refuse("with these arguments it is not compiled", node)
    b = b if isinstance(b.kind, types.Scalar) else arrays.as_array(reader, b, node)
    _, (*_, made) = arrays.loop_of(reader, ufunc, [a.kind, b.kind], node)
    if not np.can_cast(made.name, a.kind.dtype, "same_kind"):
        reader.stop()
    return user_function(reader, node, scattered_one, [a, b, reader.constant(ufunc, node), *places], {})


for _function, _ufunc in SCANS.items():
    calls(_function)(functools.partial(scan, ufunc=_ufunc, function=_function))


calls(np.matmul)(lambda reader, node, a, b: arrays.operator(reader, "MatMult", a, b, node))


@calls(np.dot)
def dot(reader: Reader, node: nf.Node, a: Value, b: Value) -> Value:
    """`np.dot` of vectors and matrices."""
    if max(getattr(each.kind, "ndim", 1) for each in (a, b)) > 2:
        raise reader.refuse("np.dot of more than two dimensions", node)
    return arrays.operator(reader, "MatMult", a, b, node)


def _called(reader: Reader, node: nf.Node, function: Any, *args: Any) -> Value:
    """A call of a function of NumPy, with values and constants."""
    given = [each if isinstance(each, Value) else reader.constant(each, node) for each in args]
    return reader.once(call_values(reader, node, function, given))


@calls(getattr(np, einsum_p.name))
def contraction(reader: Reader, node: nf.Node, subscripts: Value, *operands: Value) -> Value:
    """`np.einsum` of floats, with subscripts that are known: two operands at a time."""
    values = [arrays.as_array(reader, each, node) for each in operands]
    given = constant_of(reader, subscripts, None, node, "subscripts")
    try:
        inputs, result = split_spec(explicit_spec(given, [each.kind.ndim for each in values]))
    except (ValueError, AttributeError):
        raise reader.refuse("such subscripts", node) from None
    name = np.result_type(*(each.kind.dtype for each in values)).name
    repeats = any(len(set(letters)) < len(letters) for letters in (*inputs, result))
    if name not in ("float32", "float64") or repeats or not set(result) <= set("".join(inputs)):
        raise reader.refuse("with arguments of these types it is not compiled", node)
    reader.program.approximate = True
    values = [reader.once(astype_text(reader, each, name)) for each in values]
    while len(values) > 1:
        both, later = inputs[0] + inputs[1], "".join([result, *inputs[2:]])
        kept = "".join(letter for letter in dict.fromkeys(later) if letter in both)
        values[:2] = [_contracted(reader, node, values[:2], inputs[:2], kept)]
        inputs = [kept, *inputs[2:]]
    return _summed(reader, node, values[0], inputs[0], result)


def _summed(reader: Reader, node: nf.Node, x: Value, letters: str, kept: str) -> Value:
    """The sum over the axes of other letters than those kept, which come in their order."""
    order = [letters.index(letter) for letter in dict.fromkeys(kept + letters)]
    x = _called(reader, node, np.transpose, x, tuple(order)) if order else x
    return _called(reader, node, np.sum, x, tuple(range(len(kept), len(order)))) if len(order) > len(kept) else x


def _contracted(reader: Reader, node: nf.Node, values: Sequence[Value], inputs: Sequence[str], kept: str) -> Value:
    """`np.einsum` of two arrays: a product of matrices or of stacks of them, or products of elements and a sum."""
    plan = product_plan(",".join(inputs) + "->" + kept)
    if plan is not None:
        _, *orders, (batch, rows, contracted), order = plan
        counts = rows, contracted, len(orders[1]) - batch - contracted
        if counts == (1, 1, 1) or (not batch and max(counts) == 1):
            factors = [
                _called(reader, node, np.transpose, x, tuple(own)) for x, own in zip(values, orders, strict=True)
            ]
            return _called(
                reader, node, np.transpose, arrays.matmul(reader, factors[0], factors[1], node), tuple(order)
            )
    every, factors = "".join(dict.fromkeys(kept + "".join(inputs))), []
    for each, letters in zip(values, inputs, strict=True):
        made = _summed(reader, node, each, letters, "".join(letter for letter in every if letter in letters))
        missing = tuple(axis for axis, letter in enumerate(every) if letter not in letters)
        factors.append(_called(reader, node, np.expand_dims, made, missing) if missing else made)
    return _summed(reader, node, _called(reader, node, np.multiply, *factors), every, kept)


# --- order


@methods(types.Array, "sort")
def sort_method(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`array.sort`."""
    arrays.writable(reader, value, node)
    if value.kind.ndim != 1:
        raise reader.refuse("of a matrix", node)
    reader.emit(assigned(item_text(value.text, ":"), code("np.sort", value.text)))
    return Value(NONE, "0", None)


# --- shapes


@calls(np.shape, np.ndim, np.size)
def measure(reader: Reader, node: nf.Call, value: Value) -> Value:
    """`np.shape`, `np.ndim` and `np.size`: attributes of an array, and of a number."""
    function = reader.expr(node.function).kind.value
    if isinstance(value.kind, types.Scalar | types.Union):
        return reader.constant(function(0), node)
    return arrays.attribute(reader, arrays.as_array(reader, value, node), function.__name__, node)


def _rearranging(function: Any) -> None:
    """Register a function of `REARRANGES`: on a small array, NumPy says what it does."""

    @calls(function)
    def call(reader: Reader, node: nf.Node, value: Value, *args: Value, **named: Value) -> Value:
        value = reader.once(arrays.as_array(reader, value, node))
        given = [constant_of(reader, each, None, node, "an axis") for each in args]
        given = [tuple(given)] if function is np.transpose and len(given) > 1 else given
        by_name = {name: constant_of(reader, each, None, node, "an axis") for name, each in named.items()}
        rank = value.kind.ndim
        if not rank:
            raise reader.refuse("a 0-d array", node)
        try:
            sizes = function(np.broadcast_to(0, range(2, rank + 2)), *given, **by_name).shape
        except Exception:
            reader.stop()
        order = [size - 2 for size in sizes if size > 1]
        if order != list(range(rank)):
            value = reader.temp(code(".transpose", value.text, str(tuple(order))), value.kind.view(rank))
        if len(sizes) > rank:
            index = ", ".join("None" if size == 1 else ":" for size in sizes)
            value = reader.temp(item_text(value.text, index), value.kind.view(len(sizes)))
        return value


for _function in REARRANGES:
    _rearranging(_function)


@calls(np.broadcast_to)
def broadcast_to(reader: Reader, node: nf.Node, array: Value, shape: Value) -> Value:
    """`np.broadcast_to`, a view that cannot be written."""
    text, rank = shape_of(reader, shape, node)
    if isinstance(array.kind, types.Scalar):
        kind = types.Array(array.kind.name, rank, types.FIXED)
        return dataclasses.replace(full(reader, node, shape, array), kind=kind)
    array = reader.once(arrays.as_array(reader, array, node))
    if array.kind.ndim > rank:
        reader.stop(ValueError)
    made = reader.declared(types.Tuple((INT,) * rank))
    reader.emit(f"{made}, o_{made} = common_shape({array.text}.shape, {text})")
    reader.fail_if(f"not o_{made} or {made} != {text}", ValueError)
    return reader.temp(code("np.broadcast_to", array.text, made), types.Array(array.kind.dtype, rank, types.FIXED))


@calls(np.reshape)
def reshape(reader: Reader, node: nf.Node, value: Value, *shape: Value) -> Value:
    """`array.reshape`."""
    given = shape[0] if len(shape) == 1 else reader.tuple_of(list(shape))
    parts = parts_of(given) if isinstance(given.kind, types.Tuple) else [given]
    texts = []
    known = [part for part in parts if part.constant != -1]
    value = reader.once(value)
    product = " * ".join([reader.temp(reader.index(part, node), INT).text for part in known]) or "1"
    for part in parts:
        if part.constant == -1:
            if len(known) != len(parts) - 1:
                reader.stop()
            reader.fail_if(f"{product} == 0 or {value.text}.size % ({product}) != 0")
            texts.append(f"{value.text}.size // ({product})")
        else:
            texts.append(reader.index(part, node))
            reader.fail_if(f"{texts[-1]} < 0")
    if len(known) == len(parts):
        reader.fail_if(f"{product} != {value.text}.size")
    shape_text = f"({''.join(text + ', ' for text in texts)})"
    reader.fail_if(f"not reshapes_alike({value.text}, {shape_text})")
    contiguous = code("np.ascontiguousarray", value.text)
    return reader.temp(code(".reshape", contiguous, shape_text), value.kind.view(len(parts)))


@calls(np.squeeze)
def squeeze(reader: Reader, node: nf.Node, value: Value, axis: Value | None = None) -> Value:
    """`np.squeeze` of one axis that is known."""
    value = reader.once(arrays.as_array(reader, value, node))
    at, rank = constant_of(reader, axis, None, node, "an axis"), value.kind.ndim
    if type(at) is not int or not -rank <= at < rank or rank < 2:
        raise reader.refuse("with these arguments it is not compiled", node)
    reader.fail_if(f"{value.text}.shape[{at % rank}] != 1", ValueError)
    index = ", ".join("0" if k == at % rank else ":" for k in range(rank))
    return reader.temp(item_text(value.text, index), value.kind.view(rank - 1))


methods(types.Scalar, "copy", "squeeze", "conj", "conjugate")(lambda reader, node, value: value)


@methods(types.Scalar, "astype")
def number_astype(reader: Reader, node: nf.Node, value: Value, dtype: Value) -> Value:
    """`number.astype`."""
    name = dtype_of(reader, dtype, "", node)
    return reader.temp(arrays.converted(reader, value, name, node), types.Scalar(name, False))


@methods(types.Scalar, "item", "tolist")
def scalar_item(reader: Reader, node: nf.Node, value: Value) -> Value:
    """`number.item`."""

    def one(x: Value) -> Value:
        kind = {"f": FLOAT, "b": BOOL}.get(x.kind.kind, INT)
        return Value(kind, cast(x, kind))

    return lift(reader, one, value)


def _constructor(name: str) -> None:
    @calls(getattr(np, name))
    def make(reader: Reader, node: nf.Node, value: Value) -> Value:
        kind = types.of_dtype(np.dtype(getattr(np, name)))
        if not isinstance(value.kind, types.Scalar | types.Union):
            raise reader.refuse(f"a number of a {value.kind}", node)
        known = value.constant is not NO_CONSTANT and isinstance(value.kind, types.Scalar) and value.kind.python
        if known and value.kind != NONE:
            try:
                return reader.constant(getattr(np, name)(value.constant), node)
            except (OverflowError, ValueError, TypeError):
                reader.stop()
        return reader.temp(arrays.converted(reader, value, kind.name, node), kind)


for _name in types.DTYPES:
    _constructor(_name)
