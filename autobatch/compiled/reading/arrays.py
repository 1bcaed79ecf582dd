"""Arrays: items, slices, writes and element-wise operations, with NumPy's own loops and NumPy's errors as guards."""

import ast
import operator as python_operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.compiled.reading.exact_types import (
    BOOL,
    DTYPES,
    FLOAT,
    INT,
    NONE,
    Array,
    List,
    Scalar,
    Tuple,
    Union,
    is_number,
    of_dtype,
)
from autobatch.compiled.reading.machine import LENGTH, NO_CONSTANT, Value, numba_type
from autobatch.compiled.reading.number_operators import cast, in_range, lift, payload

__all__ = ["attribute", "augment", "augment_item", "elementwise", "item", "operator", "row", "set_item", "unary"]

_UFUNCS = {
    "Add": np.add, "Sub": np.subtract, "Mult": np.multiply, "Div": np.true_divide, "FloorDiv": np.floor_divide,
    "Mod": np.remainder, "Pow": np.power, "BitAnd": np.bitwise_and, "BitOr": np.bitwise_or, "BitXor": np.bitwise_xor,
    "Eq": np.equal, "NotEq": np.not_equal, "Lt": np.less, "LtE": np.less_equal, "Gt": np.greater,
    "GtE": np.greater_equal, "LShift": np.left_shift, "RShift": np.right_shift,
}  # fmt: skip
_TESTS = {np.isnan: "np.isnan", np.isinf: "np.isinf", np.isfinite: "np.isfinite"}
_SIGNS = {np.add: "+", np.subtract: "-", np.multiply: "*", np.true_divide: "/", np.equal: "==", np.not_equal: "!=",
          np.less: "<", np.less_equal: "<=", np.greater: ">", np.greater_equal: ">="}  # fmt: skip


def scalar_of(kind: Array) -> Scalar:
    """The type of an array's elements."""
    return Scalar(kind.dtype, False)


def row(reader: Any, value: Value, k: str) -> Value:
    """`value[k]`, k in range."""
    kind = value.kind
    if kind.ndim == 1:
        return reader.temp(f"{value.text}[{k}]", scalar_of(kind))
    return reader.temp(f"{value.text}[{k}]", Array(kind.dtype, kind.ndim - 1, kind.given))


def attribute(reader: Any, value: Value, name: str, node: Any) -> Value:
    """An attribute of an array."""
    kind = value.kind
    if name == "shape":
        value = reader.once(value)
        return reader.tuple_of([Value(INT, f"{value.text}.shape[{axis}]", reach=LENGTH) for axis in range(kind.ndim)])
    if name == "size":
        return reader.temp(f"{value.text}.size", INT, reach=LENGTH)
    if name == "ndim":
        return reader.constant(kind.ndim, node)
    if name == "dtype":
        return reader.known_object(np.dtype(kind.dtype), lambda: np.dtype(kind.dtype), "dtype", node)
    if name == "T":
        return reader.temp(f"{value.text}.T", kind)
    raise reader.refuse(f"the attribute {name} of an array", node)


def _index(reader: Any, holder: Value, index: ast.expr, node: Any) -> tuple[list[str], list[bool], Value | None]:
    """The index of each axis as text, checked; whether each is a slice; or one array of indices or truth values."""
    kind = holder.kind
    nodes = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    parts: list[Any] = []
    for part in nodes:
        if isinstance(part, ast.Slice):
            parts.append(part)
            continue
        if isinstance(part, ast.Constant) and part.value is Ellipsis:
            parts.append("...")
            continue
        value = reader.expr(part)
        if value.kind == NONE:
            raise reader.refuse("None in an index", node)
        if isinstance(value.kind, Tuple) and len(nodes) == 1:
            values = value.parts or [Value(each, f"{value.text}[{i}]") for i, each in enumerate(value.kind.items)]
            parts += [reader.once(each) for each in values]
            continue
        parts.append(reader.once(value) if not isinstance(value.kind, List) else value)
    given = sum(part != "..." if isinstance(part, str) else True for part in parts)
    if given > kind.ndim:
        reader.stop()
    if "..." in [part for part in parts if isinstance(part, str)]:
        place = next(i for i, part in enumerate(parts) if isinstance(part, str))
        parts[place : place + 1] = [ast.Slice(None, None, None)] * (kind.ndim - given)
    arrays = [part for part in parts if isinstance(part, Value) and isinstance(part.kind, Array | List)]
    if arrays:
        if len(parts) == 1:
            return [], [], as_array(reader, arrays[0], node)
        raise reader.refuse("an index of arrays along several axes", node)
    texts, slices = [], []
    for axis, part in enumerate(parts):
        length = f"{holder.text}.shape[{axis}]"
        if isinstance(part, Value):
            if part.kind == BOOL or (isinstance(part.kind, Scalar) and part.kind.kind == "b"):
                raise reader.refuse("a truth value as an index", node)
            texts.append(in_range(reader, reader.index(part, node), length, part, signed=False))
        else:
            texts.append(_slice(reader, part, node))
        slices.append(not isinstance(part, Value))
    slices += [True] * (kind.ndim - len(parts))
    return texts, slices, None


def _slice(reader: Any, part: ast.Slice, node: Any) -> str:
    ends = []
    for each in (part.lower, part.upper, part.step):
        if each is None:
            ends.append("")
            continue
        value = reader.expr(each)
        if value.kind == NONE:
            ends.append("")
        elif value.constant is not NO_CONSTANT:
            if not isinstance(value.constant, int):
                reader.stop()
            ends.append(str(value.constant))
        else:
            ends.append(reader.temp(reader.index(value, node), INT).text)
    if ends[2]:
        reader.fail_if(f"{ends[2]} == 0")
    return ":".join(ends if ends[2] else ends[:2])


def item(reader: Any, holder: Value, index: ast.expr, node: Any) -> Value:
    """`holder[index]`."""
    holder = reader.once(holder)
    kind = holder.kind
    texts, slices, fancy = _index(reader, holder, index, node)
    if fancy is not None:
        if fancy.kind.ndim != 1 or kind.ndim > 2:
            raise reader.refuse("an index of an array of several dimensions", node)
        if fancy.kind.dtype == "bool":
            if kind.ndim != 1:
                raise reader.refuse("an index of truth values", node)
            reader.fail_if(f"{fancy.text}.size != {holder.text}.size")
            return reader.temp(f"{holder.text}[{fancy.text}]", Array(kind.dtype, 1))
        places = checked_places(reader, fancy, f"{holder.text}.shape[0]", node)
        return reader.temp(f"{holder.text}[{places}]", Array(kind.dtype, kind.ndim))
    if not any(slices):
        return reader.temp(f"{holder.text}[{', '.join(texts) or '()'}]", scalar_of(kind))
    return reader.temp(f"{holder.text}[{', '.join(texts)}]", Array(kind.dtype, sum(slices), kind.given))


def checked_places(reader: Any, places: Value, length: str, node: Any) -> str:
    """An array of indices, each in range and counted from the start."""
    if np.dtype(places.kind.dtype).kind not in "iu":
        reader.stop()
    out = reader.temp(f"wrapped({places.text}, {length})", NONE)
    reader.fail_if(f"{out.text}.size != {places.text}.size")
    return out.text


def as_array(reader: Any, value: Value, node: Any) -> Value:
    """An array, a list of numbers as one."""
    kind = value.kind
    if isinstance(kind, Array):
        return value
    if isinstance(kind, List) and is_number(kind.elem):
        name = {"int64": "int64"}.get(kind.elem.name, kind.elem.name)
        return reader.temp(
            f"np.array([{numba_type(kind.elem)}(x) for x in {value.text}], np.{_dtype(name)})", Array(name, 1)
        )
    if isinstance(kind, List) and kind.elem is None:
        return reader.temp("np.empty(0, np.float64)", Array("float64", 1))
    raise reader.refuse(f"an array of a {kind}", node)


def _dtype(name: str) -> str:
    return "bool_" if name == "bool" else name


def converted(reader: Any, value: Value, to: str, node: Any) -> str:
    """A number as an array of this dtype takes it."""
    target = Scalar(to, False)

    def one(x: Value) -> Value:
        if x.kind == NONE:
            reader.stop()
        if target.kind in "iu" and x.kind.kind == "f":
            low, high = ("-9.2e18", "9.2e18") if to == "int64" else (str(np.iinfo(to).min), str(np.iinfo(to).max))
            reader.fail_if(f"not ({low} <= {x.text} <= {high})")
        elif target.kind in "iu" and x.kind.kind in "iu" and to != "int64":
            reader.fail_if(f"{x.text} < {np.iinfo(to).min} or {x.text} > {np.iinfo(to).max}")
        return Value(target, cast(x, target))

    if isinstance(value.kind, Union) and (found := payload(value)) is not None and found.kind.name == to:
        return found.text
    if not isinstance(value.kind, Scalar | Union):
        raise reader.refuse(f"a {value.kind} as an element of an array", node)
    return lift(reader, one, value).text


def set_item(reader: Any, holder: Value, index: ast.expr, value: Value, node: Any) -> None:
    """`holder[index] = value`."""
    holder, value = reader.once(holder), reader.once(value)
    kind = holder.kind
    if kind.given:
        raise reader.refuse("it writes into an argument", node)
    texts, slices, fancy = _index(reader, holder, index, node)
    _put(reader, holder, texts, slices, fancy, value, node)


def _put(reader: Any, holder: Value, texts: list[str], slices: list[bool], fancy: Any, value: Value, node: Any) -> None:
    kind = holder.kind
    if fancy is not None:
        if fancy.kind.ndim != 1 or kind.ndim != 1 or isinstance(value.kind, Array | List):
            raise reader.refuse("an assignment to places that an array names", node)
        text = reader.temp(converted(reader, value, kind.dtype, node), scalar_of(kind)).text
        if fancy.kind.dtype == "bool":
            reader.fail_if(f"{fancy.text}.size != {holder.text}.size")
            reader.emit(
                f"for i in range({holder.text}.size):", [f"if {fancy.text}[i]:", [f"{holder.text}[i] = {text}"]]
            )
        else:
            places = checked_places(reader, fancy, f"{holder.text}.shape[0]", node)
            reader.emit(f"for i in {places}:", [f"{holder.text}[i] = {text}"])
        return
    where = ", ".join(texts) or "()"
    if isinstance(value.kind, List):
        value = as_array(reader, value, node)
    if isinstance(value.kind, Array):
        rank = sum(slices)
        if not rank:
            reader.stop()
        if value.kind.ndim > rank or value.kind.dtype not in _SAFE(kind.dtype):
            raise reader.refuse(f"a {value.kind} in a slice of a {kind}", node)
        view = reader.temp(f"{holder.text}[{where}]", Array(kind.dtype, rank))
        if value.kind.ndim == rank:
            reader.fail_if(f"{view.text}.shape != {value.text}.shape")
        else:
            reader.fail_if(f"{view.text}.shape[{rank - value.kind.ndim}:] != {value.text}.shape")
        reader.emit(f"{view.text}[{', '.join([':'] * rank)}] = {value.text}")
        return
    text = converted(reader, value, kind.dtype, node)
    reader.emit(f"{holder.text}[{where}] = {text}")


def _SAFE(dtype: str) -> set[str]:  # noqa: N802
    """The dtypes whose numbers this one holds."""
    return {name for name in DTYPES if np.can_cast(name, dtype, "safe")} | ({"int64"} if dtype == "float64" else set())


def augment_item(reader: Any, holder: Value, node: ast.AugAssign, op: str) -> None:
    """`holder[index] op= value`."""
    kind = holder.kind
    if kind.given:
        raise reader.refuse("it writes into an argument", node)
    target: Any = node.target
    texts, slices, fancy = _index(reader, holder, target.slice, node)
    if fancy is not None:
        raise reader.refuse("an assignment to places that an array names", node)
    if not any(slices):
        old = reader.temp(f"{holder.text}[{', '.join(texts) or '()'}]", scalar_of(kind))
        value = reader.binary(op, old, reader.expr(node.value), node)
        _put(reader, holder, texts, slices, None, value, node)
        return
    view = reader.temp(f"{holder.text}[{', '.join(texts)}]", Array(kind.dtype, sum(slices)))
    augment(reader, view, op, reader.expr(node.value), node)


def augment(reader: Any, old: Value, op: str, value: Value, node: Any) -> None:
    """`array op= value`, in place."""
    if old.kind.given:
        raise reader.refuse("it writes into an argument", node)
    made = operator(reader, op, old, value, node)
    if not np.can_cast(made.kind.dtype, old.kind.dtype, "same_kind"):
        reader.stop()
    if made.kind.ndim != old.kind.ndim or made.kind.dtype != old.kind.dtype:
        raise reader.refuse(f"a {made.kind} that is put into a {old.kind}", node)
    reader.fail_if(f"{made.text}.shape != {old.text}.shape")
    reader.emit(f"{old.text}[{', '.join([':'] * old.kind.ndim)}] = {made.text}")


def operator(reader: Any, op: str, a: Value, b: Value, node: Any) -> Value:
    """`a op b` where one is an array."""
    values = [as_array(reader, value, node) if isinstance(value.kind, List) else value for value in (a, b)]
    if op == "MatMult":
        return matmul(reader, values[0], values[1], node)
    if op == "Pow" and b.constant is not NO_CONSTANT and isinstance(b.constant, int | float):
        if a.kind.dtype in ("float32", "float64") and b.constant == 2:
            return elementwise(reader, np.square, [a], node)
        raise reader.refuse("a power of an array", node)
    ufunc = _UFUNCS.get(op)
    if ufunc is None:
        raise reader.refuse(f"{op} of arrays", node)
    return elementwise(reader, ufunc, values, node)


def unary(reader: Any, op: str, value: Value, node: Any) -> Value:
    """`-array` and `~array`."""
    ufunc = {"USub": np.negative, "Invert": np.invert, "UAdd": np.positive}[op]
    return elementwise(reader, ufunc, [value], node)


def loop_of(reader: Any, ufunc: Any, kinds: Sequence[Any], node: Any) -> tuple[int, list[Scalar]]:
    """The place of a ufunc's loop for operands of these types, and the dtypes it takes and gives."""
    weak = {"int64": int, "float64": float, "bool": np.dtype(bool)}
    dtypes: list[Any] = [
        weak[kind.name]
        if isinstance(kind, Scalar) and kind.python
        else np.dtype(kind.name if isinstance(kind, Scalar) else kind.dtype)
        for kind in kinds
    ]
    try:
        if all(isinstance(each, type) for each in dtypes):  # Python's numbers alone are NumPy's own
            dtypes = [np.dtype(each) for each in dtypes]
        found = ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout))
        scalars = [of_dtype(dtype) for dtype in found]
    except Exception as error:
        raise reader.refuse(f"{ufunc.__name__}: {error}", node) from None
    loop = "".join(np.dtype(each.name).char for each in scalars[: ufunc.nin])
    loop += "->" + "".join(np.dtype(each.name).char for each in scalars[ufunc.nin :])
    if loop not in {_normal(each) for each in ufunc.types}:
        raise reader.refuse(f"{ufunc.__name__} has no loop {loop}", node)
    return reader.program.ufunc(ufunc, loop), scalars


def _normal(loop: str) -> str:
    return "".join(each if each in "->" else np.dtype(each).char for each in loop)


def elementwise(reader: Any, ufunc: Any, values: Sequence[Value], node: Any) -> Value:
    """A ufunc of arrays and numbers, by NumPy's own loop."""
    if ufunc is abs:
        ufunc = np.absolute
    values = [as_array(reader, value, node) if isinstance(value.kind, List) else value for value in values]
    for value in values:
        if not isinstance(value.kind, Array | Scalar | Union):
            raise reader.refuse(f"{ufunc.__name__} of a {value.kind}", node)
    if any(isinstance(value.kind, Union) for value in values):
        if any(isinstance(value.kind, Array) for value in values):
            return _with_union(reader, ufunc, values, node)
        return lift(reader, lambda *each: elementwise(reader, ufunc, each, node), *values)
    if any(value.kind == NONE for value in values):
        reader.stop()
    if any(value.kind.kind == "n" for value in values if isinstance(value.kind, Scalar)):
        reader.stop()
    place, scalars = loop_of(reader, ufunc, [value.kind for value in values], node)
    wanted, (out,) = scalars[: ufunc.nin], scalars[ufunc.nin :]
    address = f"table[{2 * place}], table[{2 * place + 1}]"
    for value, to in zip(values, wanted, strict=True):
        if (
            isinstance(value.kind, Scalar)
            and value.kind.python
            and value.kind.kind == "i"
            and to.kind in "iu"
            and to.name != "int64"
        ):
            reader.fail_if(f"{value.text} < {np.iinfo(to.name).min} or {value.text} > {np.iinfo(to.name).max}")
    arrays = [value for value in values if isinstance(value.kind, Array)]
    if not arrays:
        texts = [cast(value, to) for value, to in zip(values, wanted, strict=True)]
        if ufunc in _TESTS and wanted[0].kind == "f":
            return reader.temp(f"{_TESTS[ufunc]}({texts[0]})", out)
        sign = _SIGNS.get(ufunc)
        if sign and not (sign == "/" and out.kind != "f") and out.kind in "fb" and all(x.kind == "f" for x in wanted):
            return reader.temp(f" {sign} ".join(texts), out)
        return reader.temp(f"scalar_{ufunc.nin}({address}, {', '.join(texts)}, {numba_type(out)}(0))", out)
    rank = max(value.kind.ndim for value in arrays)
    if any(value.kind.ndim == 0 for value in arrays):
        raise reader.refuse("a 0-d array", node)
    sources = []
    for value, to in zip(values, wanted, strict=True):
        if isinstance(value.kind, Array):
            text = value.text if value.kind.dtype == to.name else f"{value.text}.astype(np.{_dtype(to.name)})"
            sources.append(reader.temp(text, Array(to.name, value.kind.ndim)))
        else:
            sources.append(reader.temp(f"np.full(1, {cast(value, to)}, np.{_dtype(to.name)})", NONE))
    full = [source for source in sources if isinstance(source.kind, Array)]
    shape = reader.temp(f"{full[0].text}.shape", NONE)
    if len(full) == 2:
        one, two = full
        ranks = [source.kind.ndim for source in full]
        if ranks[0] > ranks[1]:
            one, two = two, one
        which = "common_shape" if ranks[0] == ranks[1] else "common_shape_ranked"
        reader.lines.pop()
        reader.emit(f"{shape.text}, o_{shape.text} = {which}({one.text}.shape, {two.text}.shape)")
        reader.fail_if(f"not o_{shape.text}")
        texts = [
            f"{'spread_same' if source.kind.ndim == rank else 'spread'}({source.text}, {shape.text})" for source in full
        ]
    else:
        texts = [f"np.ascontiguousarray({source.text})" for source in full]
    given = iter(texts)
    texts = [
        reader.temp(next(given), NONE).text if isinstance(source.kind, Array) else source.text for source in sources
    ]
    made = reader.temp(f"np.empty({shape.text}, np.{_dtype(out.name)})", Array(out.name, rank))
    reader.emit(f"apply_{ufunc.nin}({address}, {', '.join(texts)}, {made.text})")
    return made


def _with_union(reader: Any, ufunc: Any, values: Sequence[Value], node: Any) -> Value:
    """A number that may be of several types, beside an array: the loop has to be one."""
    loops = set()
    place = next(i for i, value in enumerate(values) if isinstance(value.kind, Union))
    for scalar in values[place].kind.scalars:
        if scalar != NONE:
            kinds = [scalar if i == place else value.kind for i, value in enumerate(values)]
            loops.add(tuple(loop_of(reader, ufunc, kinds, node)[1]))
    if len(loops) != 1:
        raise reader.refuse(f"an array beside a number that is {values[place].kind}", node)
    (wanted,) = loops
    number = Scalar(wanted[place].name, False)
    text = lift(
        reader, lambda one: reader.stop() if one.kind == NONE else Value(number, cast(one, number)), values[place]
    )
    return elementwise(reader, ufunc, [text if i == place else value for i, value in enumerate(values)], node)


def matmul(reader: Any, a: Value, b: Value, node: Any) -> Value:
    """`a @ b` of vectors and matrices."""
    if not (isinstance(a.kind, Array) and isinstance(b.kind, Array)):
        reader.stop()
    if a.kind.ndim not in (1, 2) or b.kind.ndim not in (1, 2):
        raise reader.refuse("a product of stacks of matrices", node)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = of_dtype(np.result_type(a.kind.dtype, b.kind.dtype))
    except Exception as error:
        raise reader.refuse(str(error), node) from None
    if out.kind == "b":
        raise reader.refuse("a product of truth values", node)
    a, b = reader.once(a), reader.once(b)
    reader.fail_if(f"{a.text}.shape[{a.kind.ndim - 1}] != {b.text}.shape[0]")
    reader.program.approximate = True
    text = f"product_{a.kind.ndim}{b.kind.ndim}({a.text}, {b.text}, {numba_type(out)}(0))"
    rank = a.kind.ndim + b.kind.ndim - 2
    return reader.temp(text, Array(out.name, rank) if rank else out)


_ = (python_operator, FLOAT)
