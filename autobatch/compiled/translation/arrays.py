"""Arrays: items, slices, writes and element-wise operations, by NumPy's own loops, with guards for NumPy's errors."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import read_source
from autobatch.compiled.translation.exact_types import INT, NONE
from autobatch.compiled.translation.number_operators import cast, guard_root, in_range, lift, payload
from autobatch.compiled.translation.source_program import Lines, flat
from autobatch.compiled.translation.statement_reader import FAIL, Reader
from autobatch.compiled.translation.typed_text import (
    LENGTH,
    NO_CONSTANT,
    Value,
    assigned,
    code,
    item_text,
    numba_type,
    parts_of,
)
from autobatch.facts import operators
from autobatch.ops.numpy.contractions import products_of_stacks
from autobatch.ops.rules.dispatch import SOURCES, UFUNCS
from autobatch.program import normal_form as nf

_UFUNCS: dict[str, Any] = {each.syntax: each.ufunc for each in (*operators.BINARY, *operators.UNARY)}
_ARITHMETIC = {each.ufunc: each.symbol for each in operators.ARITHMETIC[:4]}
_POWERS = {2: np.square, 0.5: np.sqrt, 1: np.positive, -1: np.reciprocal}  # that `array ** n` is, where NumPy sees n
_SIGNS = _ARITHMETIC | {each.ufunc: each.symbol for each in operators.COMPARISONS}


@functools.cache
def _exact(ufunc: np.ufunc) -> str:
    """How a loop writes an operation on floats that has one correct result, whoever computes it; "" for any other."""
    op: Any = UFUNCS.get(ufunc)
    found = re.fullmatch(r"(\w+)\(([^()]*)\)", (getattr(op, "fused", None) or {}).get("text", ""))
    made = getattr(np, found[1], None) if found and op.fused.get("exact", True) else None
    operands = found[2].split(", ") if found else []
    if made in _ARITHMETIC:
        return f" {_ARITHMETIC[made]} ".join(operands)
    number = getattr(UFUNCS.get(made), "number", None)
    return f"-{operands[0]}" if made is np.negative else f"{number[1]}({operands[0]})" if number else ""


def scalar_of(kind: types.Array) -> types.Scalar:
    """The type of an array's elements."""
    return types.Scalar(kind.dtype, False)


def row(reader: Reader, value: Value, k: str) -> Value:
    """`value[k]`, for a k in range."""
    kind = value.kind
    if kind.ndim == 1:
        return reader.temp(item_text(value.text, k), scalar_of(kind))
    return reader.temp(item_text(value.text, k), kind.view(kind.ndim - 1))


def attribute(reader: Reader, value: Value, name: str, node: nf.Node) -> Value:
    """An attribute of an array."""
    kind = value.kind
    if name == "shape":
        value = reader.once(value)
        return reader.tuple_of([Value(INT, f"{value.text}.shape[{axis}]", bounds=LENGTH) for axis in range(kind.ndim)])
    if name == "size":
        return reader.temp(f"{value.text}.size", INT, bounds=LENGTH)
    if name == "ndim":
        return reader.constant(kind.ndim, node)
    if name == "dtype":
        return reader.known_object(np.dtype(kind.dtype), lambda: np.dtype(kind.dtype), "dtype", node)
    if name == "T":
        return reader.temp(code(".T!", value.text), kind.view(kind.ndim))
    raise reader.refuse(f"the attribute {name} of an array", node)


@dataclasses.dataclass
class ArrayIndex:
    """An index of an array, evaluated and checked.

    Attributes:
        parts: for each axis its text; for an axis indexed by an array, the text of the k-th element, with `@` for k.
        slices: for each axis, whether it is a slice; fancy: the axes that arrays index, all together.
        count: the number of elements of the index arrays, as text; shape: their common shape, as text; rank: its rank.
        new: the axes before which an axis of length 1 is inserted.
    """

    parts: list[str]
    slices: list[bool]
    fancy: list[int]
    new: list[int]
    count: str = ""
    shape: str = ""
    rank: int = 1


def _index(reader: Reader, holder: Value, index: nf.Value, node: nf.Node) -> ArrayIndex:
    """Evaluate an index and check it."""
    kind = holder.kind
    given = _parts_of_index(reader, index, node)
    wide = sum(part.kind.ndim if _is_mask(part) else 1 for part in given if part != "..." and part != "new")
    if wide > kind.ndim:
        reader.stop(IndexError)
    place = next((i for i, part in enumerate(given) if isinstance(part, str) and part == "..."), None)
    if place is not None:
        given[place : place + 1] = [None] * (kind.ndim - wide)
    out = ArrayIndex([], [], [], [])
    arrays: list[tuple[int, Value]] = []
    for part in given:
        axis = len(out.parts)
        length = f"{holder.text}.shape[{axis}]"
        if isinstance(part, str):
            out.new.append(len(out.parts))
        elif part is None or isinstance(part, nf.Call):
            out.parts.append(":" if part is None else slice_text(reader, part))
            out.slices.append(True)
        elif _is_mask(part):
            for k in range(part.kind.ndim):
                reader.fail_if(f"{part.text}.shape[{k}] != {holder.text}.shape[{axis + k}]", IndexError)
            for one in places_of(reader, part):
                arrays.append((len(out.parts), one))
                out.parts.append("")
                out.slices.append(False)
        elif isinstance(part.kind, types.Array | types.List):
            arrays.append((axis, as_array(reader, part, node)))
            out.parts.append("")
            out.slices.append(False)
        else:
            if isinstance(part.kind, types.Scalar) and part.kind.kind == "b":
                raise reader.refuse("a bool as an index", node)
            out.parts.append(in_range(reader, reader.index(part, node), length, part, signed=False))
            out.slices.append(False)
    for _ in range(kind.ndim - len(out.parts)):
        out.parts.append(":")
        out.slices.append(True)
    if arrays:
        _together(reader, holder, out, arrays, node)
    return out


def _parts_of_index(reader: Reader, index: nf.Value, node: nf.Node) -> list[Any]:
    """The parts of an index: a value each, a call of `slice` that is not evaluated, "..." or "new" (None)."""
    nodes = index.args if isinstance(index, nf.Call) and index.symbol == "tuple" else [index]
    parts: list[Any] = []
    for part in nodes:
        if isinstance(part, nf.Call) and part.symbol == "slice":
            parts.append(part)
            continue
        if isinstance(part, nf.Constant) and part.value is Ellipsis:
            parts.append("...")
            continue
        value = reader.expr(part)
        if value.kind == NONE:
            parts.append("new")
        elif isinstance(value.kind, types.Tuple) and len(nodes) == 1:
            parts += map(reader.once, parts_of(value))
        else:
            parts.append(reader.once(value))
    return parts


def _is_mask(part: object) -> bool:
    return isinstance(part, Value) and isinstance(part.kind, types.Array) and part.kind.dtype == "bool"


def places_of(reader: Reader, mask: Value) -> list[Value]:
    """The indices at which a mask is true, an array for each of its axes."""
    places, rank = types.Array("int64", 1), mask.kind.ndim
    own = f"{mask.text}.copy()"  # read twice, while another thread may write into it
    found = reader.temp(f"np.nonzero({own})", types.Tuple((places,) * rank))
    return [reader.temp(f"{found.text}[{k}]", places) for k in range(rank)]


def _together(reader: Reader, holder: Value, out: ArrayIndex, arrays: list[tuple[int, Value]], node: nf.Node) -> None:
    """Broadcast index arrays to one shape, check their range, and wrap negative indices."""
    out.fancy = [axis for axis, _ in arrays]
    beside = [axis for axis, is_slice in enumerate(out.slices) if not is_slice]
    if out.new or beside != list(range(beside[0], beside[0] + len(beside))):
        raise reader.refuse("an index of arrays, numbers and slices in this order", node)
    ranks = {value.kind.ndim for _, value in arrays}
    out.rank = max(ranks)
    if out.rank not in (1, 2) or (len(ranks) > 1):
        raise reader.refuse("an index of arrays of several ranks", node)
    shape = reader.temp(f"{arrays[0][1].text}.shape", types.Tuple((INT,) * out.rank))
    for _, value in arrays[1:]:
        ok = reader.fresh("o")
        reader.emit(f"{shape.text}, {ok} = common_shape({shape.text}, {value.text}.shape)")
        reader.fail_if(f"not {ok}", IndexError)
    for axis, value in arrays:
        text = value.text if len(arrays) == 1 else f"broadcast_aligned({value.text}, {shape.text})"
        flat = reader.temp(f"np.ascontiguousarray({text}).ravel()", types.Array(value.kind.dtype, 1))
        out.parts[axis] = f"{checked_places(reader, flat, f'{holder.text}.shape[{axis}]', node)}[@]"
    out.shape = shape.text
    out.count = f"{out.parts[out.fancy[0]][:-3]}.size"


def slice_text(reader: Reader, node: nf.Call) -> str:
    """A slice of a list, a string or an array as text, which means what it means in Python."""
    parts: list[Any] = []
    for part in node.args:
        if nf.is_none(part):
            parts.append(None)
            continue
        value = reader.expr(part)
        parts.append(None if value.kind == NONE else reader.once(Value(INT, reader.index(value, node), value.constant)))
    if parts[2] is not None and parts[2].constant is NO_CONSTANT:
        reader.fail_if(f"{parts[2].text} == 0")
    elif parts[2] is not None and parts[2].constant == 0:
        reader.stop()
    texts = [
        "" if part is None else str(part.constant) if part.constant is not NO_CONSTANT else part.text for part in parts
    ]
    return ":".join(texts) if parts[2] is not None else ":".join(texts[:2])


def item(reader: Reader, holder: Value, index: nf.Value, node: nf.Node) -> Value:
    """`holder[index]`."""
    holder = reader.once(holder)
    found = _index(reader, holder, index, node)
    return taken(reader, holder, found)


def looked_up(reader: Reader, table: Value, index: nf.Value, node: nf.Node) -> Value:
    """`table[index]`: a copy of the rows with these ids, which must not be negative."""
    table = reader.once(table)
    several = isinstance(index, nf.Call) and index.symbol in ("slice", "tuple")
    ids = None if several else reader.once(reader.expr(index))
    if ids is not None and isinstance(ids.kind, types.Union) and all(each.kind in "iu" for each in ids.kind.scalars):
        ids = reader.temp(reader.index(ids, node), types.INT)  # Python's ints and NumPy's
    if ids is not None and types.is_number(ids.kind) and ids.kind.kind in "iu":
        k = in_range(reader, reader.index(ids, node), f"{table.text}.shape[0]", ids, signed=False)
        if ids.bounds.low is None or ids.bounds.low < 0:
            reader.fail_if(f"{ids.text} < 0")
        return reader.temp(code("table_row", table.text, k), types.Array(table.kind.weights.dtype, 1))
    if ids is None or not isinstance(ids.kind, types.Array | types.List):
        raise reader.refuse("an index of a table that is not ids", node)
    ids = as_array(reader, ids, node)
    if ids.kind.dtype == "bool" or not ids.kind.ndim:
        raise reader.refuse("an index of a table that is not ids", node)
    reader.fail_if(f"not all_within({ids.text}, 0, 9.2e18)")
    flat = reader.temp(f"np.ascontiguousarray({ids.text}).ravel()", types.Array(ids.kind.dtype, 1))
    own = checked_places(reader, flat, f"{table.text}.shape[0]", node)  # a copy: another thread may write into ids
    dtype, ndim = table.kind.weights.dtype, ids.kind.ndim
    out = reader.temp(code("table_rows", table.text, own), types.Array(dtype, 2))
    if ndim == 1:
        return out
    sizes = [*(f"{ids.text}.shape[{axis}]" for axis in range(ndim)), f"{out.text}.shape[1]"]
    return reader.temp(code(".reshape", out.text, code("()", *sizes)), types.Array(dtype, ndim + 1))


def taken(reader: Reader, holder: Value, index: ArrayIndex) -> Value:
    """The item at an index: a number, a view, or, for index arrays, a new array."""
    kind = holder.kind
    if not index.fancy:
        parts = list(index.parts)
        for axis in reversed(index.new):
            parts.insert(axis, "None")
        where, rank = ", ".join(parts), sum(index.slices) + len(index.new)
        if not rank:
            return reader.temp(item_text(holder.text, where or "()"), scalar_of(kind))
        if not any(index.slices):
            raise reader.refuse("a new axis of a number")
        return reader.temp(item_text(holder.text, where), kind.view(rank))
    k, before = reader.fresh("k"), sum(index.slices[: index.fancy[0]])
    if len(index.fancy) == 1 and set(index.parts) - {index.parts[before]} <= {":"}:
        return _along(reader, holder, index, before)
    out, view = _gathered(reader, holder, index, k)
    source = item_text(holder.text, ", ".join(index.parts).replace("@", k))
    reader.emit(f"for {k} in range({index.count}):", [assigned(view, source)])
    if index.rank == 1:
        return out
    rest = [f"{out.text}.shape[{axis}]" for axis in range(out.kind.ndim)]
    rest[before : before + 1] = [f"{index.shape}[{axis}]" for axis in range(index.rank)]
    return reader.temp(code(".reshape", out.text, f"({', '.join(rest)})"), types.Array(kind.dtype, len(rest)))


def _along(reader: Reader, holder: Value, index: ArrayIndex, axis: int) -> Value:
    """What an index array selects along one axis."""
    kind, sizes = holder.kind, [f"{holder.text}.shape[{k}]" for k in range(holder.kind.ndim)]
    three = [" * ".join(sizes[:axis] or "1"), sizes[axis], " * ".join(sizes[axis + 1 :] or "1")]
    whole = code(".reshape", code("np.ascontiguousarray", holder.text), code("()", *three))
    of_parts = reader.temp(whole, types.Array(kind.dtype, 3)).text
    made = reader.temp(code("taken", of_parts, index.parts[axis][:-3]), types.Array(kind.dtype, 3)).text
    sizes[axis : axis + 1] = [f"{index.shape}[{k}]" for k in range(index.rank)]
    return reader.temp(code(".reshape", made, code("()", *sizes)), types.Array(kind.dtype, len(sizes)))


def _gathered(reader: Reader, holder: Value, index: ArrayIndex, k: str) -> tuple[Value, str]:
    """An empty array for what index arrays select, and the text of its part for their k-th elements."""
    kind, first = holder.kind, index.fancy[0]
    sizes, places = [], []
    for axis, is_slice in enumerate(index.slices):
        if is_slice:
            part = index.parts[axis]
            length = f"{holder.text}.shape[{axis}]"
            if part != ":":
                zero = ", ".join(part if at == axis else "0:1" for at in range(kind.ndim))
                length = reader.temp(f"{holder.text}[{zero}].shape[{axis}]", INT).text
            sizes.append(length)
            places.append(":")
        elif axis == first:
            sizes.append(index.count)
            places.append(k)
    rank = len(sizes)
    out = reader.temp(
        f"np.empty(({''.join(size + ', ' for size in sizes)}), {np_name(kind.dtype)})", types.Array(kind.dtype, rank)
    )
    return out, item_text(out.text, ", ".join(places))


def checked_places(reader: Reader, places: Value, length: str, node: nf.Node) -> str:
    """The name of an index array with all indices in range, negative ones wrapped."""
    if np.dtype(places.kind.dtype).kind not in "iu":
        reader.stop()
    out = reader.temp(f"nonnegative_indices({places.text}, {length})", types.Array("int64", 1))
    reader.fail_if(f"{out.text}.size != {places.text}.size", IndexError)
    return out.text


def as_array(reader: Reader, value: Value, node: nf.Node) -> Value:
    """An array; a list of numbers is converted to one."""
    kind = value.kind
    if isinstance(kind, types.Array):
        return value
    if isinstance(kind, types.List) and types.is_number(kind.elem):
        name = kind.elem.name
        return reader.temp(code("array_of", value.text, f"{numba_type(kind.elem)}(0)"), types.Array(name, 1))
    if isinstance(kind, types.List) and kind.elem is None:
        if reader.program.recursive:  # what it holds may not be known yet
            reader.stop()
        return reader.temp("np.empty(0, np.float64)", types.Array("float64", 1))
    raise reader.refuse(f"an array of a {kind}", node)


def operand(reader: Reader, value: Value, node: nf.Node) -> Value:
    """A list as an array, of a 0-d array its element, any other value as it is."""
    if isinstance(value.kind, types.Array) and not value.kind.ndim:
        return reader.temp(item_text(value.text, "()"), scalar_of(value.kind))
    return as_array(reader, value, node) if isinstance(value.kind, types.List) else value


def np_name(dtype: str) -> str:
    """A dtype in the text that Numba compiles: `np.float64`, or `np.bool_`."""
    return "np.bool_" if dtype == "bool" else f"np.{dtype}"


def converted(reader: Reader, value: Value, to: str, node: nf.Node) -> str:
    """The text of a number as an element of an array of this dtype."""
    target = types.Scalar(to, False)

    def one(x: Value) -> Value:
        if x.kind == NONE:
            reader.stop()
        if target.kind in "iu" and x.kind.kind == "f":
            low, high = ("-9.2e18", "9.2e18") if to == "int64" else (str(np.iinfo(to).min), str(np.iinfo(to).max))
            reader.fail_if(f"not ({low} <= {x.text} <= {high})")
        elif target.kind in "iu" and x.kind.kind in "iu" and to != "int64":
            reader.fail_if(f"{x.text} < {np.iinfo(to).min} or {x.text} > {np.iinfo(to).max}")
        return Value(target, cast(x, target))

    if isinstance(value.kind, types.Union) and (found := payload(value)) is not None and found.kind.name == to:
        return found.text
    if not isinstance(value.kind, types.Scalar | types.Union):
        raise reader.refuse(f"a {value.kind} as an element of an array", node)
    return lift(reader, one, value).text


def set_item(reader: Reader, holder: Value, index: nf.Value, value: Value, node: nf.Node) -> None:
    """`holder[index] = value`."""
    holder, value = reader.once(holder), reader.once(value)
    writable(reader, holder, node)
    put_at(reader, holder, _index(reader, holder, index, node), value, node)


def writable(reader: Reader, holder: Value, node: nf.Node) -> None:
    """Record that an array is written into; refuse a shared one, and a copy where NumPy has a view."""
    given = holder.kind.given
    if given & types.FIXED:
        raise reader.refuse("it writes into a value that examples share, or into an unsupported view", node)
    reader.program.note_write(holder.kind)


def put_at(reader: Reader, holder: Value, index: ArrayIndex, value: Value, node: nf.Node) -> None:
    """`holder[index] = value`, for an index that is checked."""
    kind = holder.kind
    if index.new:
        raise reader.refuse("None in an index that is assigned to", node)
    if index.fancy:
        _put_fancy(reader, holder, index, value, node)
        return
    texts, slices = index.parts, index.slices
    where = ", ".join(texts) or "()"
    value = operand(reader, value, node)
    if isinstance(value.kind, types.Array):
        rank = sum(slices)
        if not rank:
            reader.stop()
        if value.kind.ndim > rank or not np.can_cast(value.kind.dtype, kind.dtype, "same_kind"):
            raise reader.refuse(f"a {value.kind} in a slice of a {kind}", node)
        if value.kind.dtype != kind.dtype:
            value = reader.temp(
                code(".astype", value.text, np_name(kind.dtype)), types.Array(kind.dtype, value.kind.ndim)
            )
        view = reader.temp(item_text(holder.text, where), kind.view(rank))
        if value.kind.given or kind.given:
            reader.fail_if(f"overlap({view.text}, {value.text})")
        if value.kind.ndim == rank:
            reader.fail_if(f"{view.text}.shape != {value.text}.shape")
        else:
            reader.fail_if(f"{view.text}.shape[{rank - value.kind.ndim}:] != {value.text}.shape")
        reader.emit(assigned(item_text(view.text, ", ".join([":"] * rank)), value.text))
        return
    text = converted(reader, value, kind.dtype, node)
    reader.emit(assigned(item_text(holder.text, where), text))


def _put_fancy(reader: Reader, holder: Value, index: ArrayIndex, value: Value, node: nf.Node) -> None:
    """`holder[index] = value` for index arrays: in order, so that of repeated indices the last one stays."""
    kind = holder.kind
    k = reader.fresh("k")
    where = item_text(holder.text, ", ".join(index.parts).replace("@", k))
    value = operand(reader, value, node)
    if not isinstance(value.kind, types.Array):
        text = reader.temp(converted(reader, value, kind.dtype, node), scalar_of(kind)).text
        reader.emit(f"for {k} in range({index.count}):", [assigned(where, text)])
        return
    rank = 1 + sum(index.slices)
    fits = value.kind.ndim in (rank, rank - 1) and np.can_cast(value.kind.dtype, kind.dtype)
    if index.rank != 1 or any(index.slices[: index.fancy[0]]) or not fits:
        raise reader.refuse("an assignment with arrays as index", node)
    source, target, lines = value.text, where, []
    if value.kind.ndim == rank:
        reader.fail_if(f"{value.text}.shape[0] != {index.count}")
        source = item_text(value.text, k)
    if rank > 1:
        part = reader.declared(kind.view(rank - 1))
        lines = [assigned(part, where), f"if {part}.shape != {source}.shape:", [FAIL]]
        target = item_text(part, ", ".join([":"] * (rank - 1)))
    reader.emit(f"for {k} in range({index.count}):", [*lines, assigned(target, source)])


def augment_item(reader: Reader, holder: Value, key: nf.Value, more: nf.Value, node: nf.Node, op: str) -> None:
    """`holder[key] op= more`."""
    writable(reader, holder, node)
    index = _index(reader, holder, key, node)
    old = taken(reader, holder, index)
    if index.fancy or not any(index.slices):
        put_at(reader, holder, index, reader.once(reader.binary(op, old, reader.expr(more), node)), node)
    else:
        augment(reader, old, op, reader.expr(more), node)


def augment(reader: Reader, old: Value, op: str, value: Value, node: nf.Node) -> None:
    """`array op= value`, in place."""
    writable(reader, old, node)
    made = operator(reader, op, old, value, node)
    if old.kind.ndim and not np.can_cast(made.kind.dtype, old.kind.dtype, "same_kind"):
        reader.stop()
    if not old.kind.ndim or (made.kind.ndim, made.kind.dtype) != (old.kind.ndim, old.kind.dtype):
        raise reader.refuse(f"a {made.kind} that is put into a {old.kind}", node)
    reader.fail_if(f"{made.text}.shape != {old.text}.shape")
    reader.emit(assigned(item_text(old.text, ", ".join([":"] * old.kind.ndim)), made.text))


def operator(reader: Reader, op: str, a: Value, b: Value, node: nf.Node) -> Value:
    """`a op b` where one is an array."""
    if op == "MatMult":
        return matmul(reader, a, b, node)
    power = _POWERS.get(b.constant) if op == "Pow" and type(b.constant) in (int, float) else None
    if power is not None and np.dtype(a.kind.dtype).kind == "f":
        return elementwise(reader, power, [a], node)
    ufunc = _UFUNCS.get(op)
    if ufunc is None:
        raise reader.refuse(f"{op} of arrays", node)
    return elementwise(reader, ufunc, [a, b], node)


def unary(reader: Reader, op: str, value: Value, node: nf.Node) -> Value:
    """`-array` and `~array`."""
    return elementwise(reader, _UFUNCS[op], [value], node)


def loop_of(reader: Reader, ufunc: np.ufunc, kinds: Sequence[Any], node: nf.Node) -> tuple[int, list[types.Scalar]]:
    """The index of a ufunc's loop in the table of addresses, for these operand types, and the loop's dtypes."""
    weak = {"int64": int, "float64": float, "bool": np.dtype(bool)}
    dtypes: list[Any] = [
        weak[kind.name]
        if isinstance(kind, types.Scalar) and kind.python
        else np.dtype(kind.name if isinstance(kind, types.Scalar) else kind.dtype)
        for kind in kinds
    ]
    try:
        if all(isinstance(each, type) for each in dtypes):  # for Python's numbers alone, NumPy's default dtypes
            dtypes = [np.dtype(each) for each in dtypes]
        found = ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout))
        scalars = [types.of_dtype(dtype) for dtype in found]
    except Exception as error:
        raise reader.refuse(f"{ufunc.__name__}: {error}", node) from None
    loop = "".join(np.dtype(each.name).char for each in scalars[: ufunc.nin])
    loop += "->" + "".join(np.dtype(each.name).char for each in scalars[ufunc.nin :])
    if loop not in {_normal(each) for each in ufunc.types}:
        raise reader.refuse(f"{ufunc.__name__} has no loop {loop}", node)
    return reader.program.ufunc(ufunc, loop), scalars


def _normal(loop: str) -> str:
    return "".join(each if each in "->" else np.dtype(each).char for each in loop)


def elementwise(reader: Reader, ufunc: np.ufunc, values: Sequence[Value], node: nf.Node) -> Value:
    """A ufunc of arrays and numbers: by NumPy's own loop, or if it is exact by a loop that is written out."""
    values = [operand(reader, value, node) for value in values]
    for value in values:
        if not isinstance(value.kind, types.Array | types.Scalar | types.Union):
            raise reader.refuse(f"{ufunc.__name__} of a {value.kind}", node)
    if any(isinstance(value.kind, types.Union) for value in values):
        return lift(reader, lambda *each: elementwise(reader, ufunc, each, node), *values)
    if any(value.kind == NONE for value in values):
        reader.stop()
    place, scalars = loop_of(reader, ufunc, [value.kind for value in values], node)
    wanted, (out,) = scalars[: ufunc.nin], scalars[ufunc.nin :]
    address = f"table[{2 * place}]", f"table[{2 * place + 1}]"
    for value, to in zip(values, wanted, strict=True):
        is_int = isinstance(value.kind, types.Scalar) and value.kind.python and value.kind.kind == "i"
        if is_int and to.kind in "iu" and to.name != "int64":
            reader.fail_if(f"{value.text} < {np.iinfo(to.name).min} or {value.text} > {np.iinfo(to.name).max}")
    ranks = [value.kind.ndim for value in values if isinstance(value.kind, types.Array)]
    if not ranks:
        texts = [cast(value, to) for value, to in zip(values, wanted, strict=True)]
        if (number := getattr(UFUNCS.get(ufunc), "number", None)) and out.kind == "b" and wanted[0].kind == "f":
            return reader.temp(code(number[1], *texts), out)
        sign = _SIGNS.get(ufunc)
        if sign and out.kind in "fb" and all(x.kind == "f" for x in wanted):
            return reader.temp(code(sign, *texts), out)
        if ufunc is np.power and out.kind == "f":
            guard_root(reader, values[1], *texts)
        return reader.temp(code(f"scalar_{ufunc.nin}", *address, *texts, f"{numba_type(out)}(0)"), out)
    if ufunc is np.multiply and len(ranks) == 1:
        factor, whole = sorted(values, key=lambda value: isinstance(value.kind, types.Array))
        if type(factor.constant) is float and factor.constant == 1.0 and whole.kind.dtype == out.name:
            return reader.temp(code(".copy", whole.text), types.Array(out.name, whole.kind.ndim))
    by_loop = bool(_exact(ufunc)) and {scalar.name for scalar in scalars} in ({"float64"}, {"float32"})
    sources, shape = aligned(reader, values, wanted, by_loop)
    made = reader.temp(f"np.empty({shape}, {np_name(out.name)})", types.Array(out.name, max(ranks)))
    given = [source.text for source in sources]
    if not by_loop:
        reader.emit(code(f"apply_{ufunc.nin}", *address, *given, made.text))
        return made
    forms = "".join("a" if isinstance(source.kind, types.Array) else "n" for source in sources)
    name = f"each_{ufunc.__name__}_{forms}"
    reader.program.loops[name] = _loop_text(name, _exact(ufunc), forms)
    reader.emit(code(name, *given, code(".ravel", made.text) if max(ranks) > 1 else made.text))
    return made


def aligned(
    reader: Reader, values: Sequence[Value], wanted: Sequence[types.Scalar], by_loop: bool = False
) -> tuple[list[Value], str]:
    """The operands of a loop over elements, converted, arrays broadcast, and the shape of its result, as text.

    Args:
        wanted: their dtypes. by_loop: the loop is written out: it takes numbers, and arrays of one dimension.
    """
    rank = max(value.kind.ndim for value in values if isinstance(value.kind, types.Array))
    sources: list[Value] = []
    for value, to in zip(values, wanted, strict=True):
        if isinstance(value.kind, types.Array):
            if value.kind.dtype == to.name:
                sources.append(reader.once(value))
                continue
            text = code(".astype", value.text, np_name(to.name))
            sources.append(reader.temp(text, types.Array(to.name, value.kind.ndim)))
        elif by_loop:
            sources.append(reader.temp(cast(value, to), to))
        else:
            sources.append(
                reader.temp(code("np.full", "1", cast(value, to), np_name(to.name)), types.Array(to.name, 1))
            )
    whole = [isinstance(value.kind, types.Array) for value in values]
    given = [source for source, is_whole in zip(sources, whole, strict=True) if is_whole]
    given.sort(key=lambda source: -source.kind.ndim)
    shape = reader.declared(types.Tuple((INT,) * rank))
    reader.emit(f"{shape} = {given[0].text}.shape")
    for source in given[1:]:
        reader.emit(f"{shape}, o_{shape} = common_shape({source.text}.shape, {shape})")
        reader.fail_if(f"not o_{shape}")
    if by_loop and rank == 1:
        return sources, shape
    for place, source in enumerate(sources):
        if whole[place]:
            if len(given) == 1:
                made = code("np.ascontiguousarray", source.text)
            else:
                made = code("broadcast_aligned", source.text, shape)
            made = code(".ravel", made) if by_loop else made
            sources[place] = reader.temp(made, types.Array(source.kind.dtype, 1 if by_loop else rank))
    return sources, shape


def _loop_text(name: str, operation: str, forms: str) -> str:
    """The source of the function `name(x, out)` or `name(x, y, out)`; `forms`: a for a 1-d array, n for a number.

    An array of one element is broadcast to the length of the other array.
    """

    def loop(*operands: str) -> Lines:
        return ["for i in range(out.size):", [f"out[i] = {operation.format(*operands)}"]]

    body = loop(*(f"{operand}[i]" if form == "a" else operand for operand, form in zip("xy", forms, strict=False)))
    if forms == "aa":
        body = ["if x.size == y.size:", body, "elif x.size == 1:", loop("x[0]", "y[i]"), "else:", loop("x[i]", "y[0]")]
    return "\n".join(flat(["@jit", f"def {name}({', '.join('xy'[: len(forms)])}, out):", body, ""]))


def matmul(reader: Reader, a: Value, b: Value, node: nf.Node) -> Value:
    """`a @ b`."""
    if not all(isinstance(value.kind, types.Array | types.List) for value in (a, b)):
        reader.stop()
    a, b = as_array(reader, a, node), as_array(reader, b, node)
    ranks = a.kind.ndim, b.kind.ndim
    if max(ranks) > 2 and min(ranks) > 0:
        return read_source(SOURCES[products_of_stacks], reader, node, a, b)
    if min(ranks) == 0:
        raise reader.refuse("a product with a 0-d array", node)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = types.of_dtype(np.result_type(a.kind.dtype, b.kind.dtype))
    except Exception as error:
        raise reader.refuse(str(error), node) from None
    if out.kind == "b":
        raise reader.refuse("a product of bools", node)
    a, b = reader.once(a), reader.once(b)
    reader.fail_if(f"{a.text}.shape[{a.kind.ndim - 1}] != {b.text}.shape[0]")
    reader.program.approximate = True
    text = code(f"product_{a.kind.ndim}{b.kind.ndim}", a.text, b.text, f"{numba_type(out)}(0)")
    rank = a.kind.ndim + b.kind.ndim - 2
    return reader.temp(text, types.Array(out.name, rank) if rank else out)
