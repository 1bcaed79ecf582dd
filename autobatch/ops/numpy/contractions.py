"""Products that contract a dimension: matmul, einsum and relatives; outer products and convolutions.

The op `einsum_p` can express all the other contractions; its param `spec` has one letter per example dimension and an
explicit result. The batch axis is an additional letter; if one operand is shared, the batch of products becomes a
single product of a tall matrix, forward and backward. If the contracted dimension is ragged, the padding of both
operands is set to zero.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import Affine, dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, same_size
from autobatch.core.cotangent import Product, unbroadcast
from autobatch.core.op import Op, is_boxed
from autobatch.errors import NeedsLoop, ShapeError, Unsupported
from autobatch.ops.numpy.creation import arange
from autobatch.ops.numpy.indexing import getitem
from autobatch.ops.rules.aliasing import unclear_view
from autobatch.ops.rules.dispatch import UFUNCS, as_array, cast, expect, implements, leave_to_python, name_of, source
from autobatch.ops.rules.op_kinds import run_by_length
from autobatch.ops.rules.padding import align, fill, fill_p, mask_padding, speculate
from autobatch.ops.rules.sizes import (
    are_unknown,
    broadcast_size,
    differ_somewhere,
    first_difference,
    has_lengths,
    is_one_in_some,
    lane_count,
    lane_lengths,
    padded_shape,
    padded_width,
    sizes_of,
)

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@functools.lru_cache(maxsize=4096)
def split_spec(spec: str) -> tuple[list[str], str]:
    """The letters of each operand, and those of the result."""
    inputs, out = spec.split("->")
    return inputs.split(","), out


@functools.lru_cache(maxsize=4096)
def _batched_spec(spec: str, batched: tuple[bool, ...]) -> str:
    """The subscripts with a letter for the batch axis added to the batched operands and the result."""
    inputs, result = split_spec(spec)
    batch = next(letter for letter in _LETTERS if letter not in spec)
    return ",".join(batch * has + letters for letters, has in zip(inputs, batched, strict=True)) + f"->{batch}{result}"


@functools.lru_cache(maxsize=4096)
def product_plan(spec: str) -> tuple[Any, ...] | None:
    """How to compute a contraction of two operands as one (stacked) matrix product; None if that is impossible.

    Returns (pairs of equal axes, order of the left axes, of the right axes, numbers of (batch, row, contracted)
    letters, order of the result's axes): left becomes (batch, rows, contracted), right (batch, contracted, columns).
    """
    (left, right), out = split_spec(spec)
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        return None
    shared = [letter for letter in left if letter in right]
    contracted = [letter for letter in shared if letter not in out]
    batch = [letter for letter in out if letter in shared]
    rows = [letter for letter in out if letter in left and letter not in right]
    columns = [letter for letter in out if letter in right and letter not in left]
    summed_alone = any(letter not in out and letter not in shared for letter in left + right)
    if summed_alone or not contracted or not (rows or columns):
        return None
    result = [*batch, *rows, *columns]
    return (
        [(left.index(letter), right.index(letter)) for letter in shared],
        [left.index(letter) for letter in (*batch, *rows, *contracted)],
        [right.index(letter) for letter in (*batch, *contracted, *columns)],
        (len(batch), len(rows), len(contracted)),
        [result.index(letter) for letter in out],
    )


def _einsum(*operands: Any, spec: str) -> Any:
    """einsum; two float operands are multiplied by np.matmul (BLAS) if possible, everything else by np.einsum."""
    plan = product_plan(spec) if len(operands) == 2 else None
    if plan is None:
        return np.einsum(spec, *operands, optimize=len(operands) > 2)
    x, y = map(np.asarray, operands)
    equal, x_order, y_order, (batch, rows, contracted), out_order = plan
    if x.dtype.kind not in "fc" or False in [x.shape[i] == y.shape[j] for i, j in equal]:
        return np.einsum(spec, x, y)
    x, y = x.transpose(x_order), y.transpose(y_order)
    stack, k = x.shape[:batch], math.prod(x.shape[batch + rows :])
    m, n = x.shape[batch : batch + rows], y.shape[batch + contracted :]
    product = np.matmul(x.reshape(*stack, math.prod(m), k), y.reshape(*stack, k, math.prod(n)))
    return product.reshape(*stack, *m, *n).transpose(out_order)


def _einsum_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The contraction with result and operand exchanged; if the operand repeats a letter, its gradient is diagonal."""
    inputs, result = split_spec(params["spec"])
    own, x = inputs[position], args[position]
    shape = dict(zip(own, shape_of(x), strict=True))
    full: dict[str, int] = {}
    for letters, arg in zip(inputs, args, strict=True):
        for letter, n in zip(letters, shape_of(arg), strict=True):
            full[letter] = max(n, full.get(letter, n)) if n != 0 else 0
    others = [(letters, arg) for at, (letters, arg) in enumerate(zip(inputs, args, strict=True)) if at != position]
    have = set(result).union(*(letters for letters, _ in others)) if others else set(result)
    unique = "".join(dict.fromkeys(own))
    kept = "".join(letter for letter in unique if letter in have and shape[letter] == full[letter])
    spec = ",".join([result, *(letters for letters, _ in others)]) + "->" + kept
    grad = einsum_p(ct, *(arg for _, arg in others), spec=spec)
    sizes = dict(zip(kept, shape_of(grad), strict=True))
    if kept != unique or any(sizes[letter] != shape[letter] for letter in kept):  # broadcast, or in no other operand
        grad = np.reshape(grad, tuple(sizes.get(letter, 1) for letter in unique))
        grad = np.broadcast_to(grad, tuple(shape[letter] for letter in unique))
        summed = [full[c] for c in unique if c not in kept and shape[c] == 1 and c not in have]
        grad = grad * math.prod(summed) if math.prod(summed) != 1 else grad
    if unique != own:
        grad = _on_diagonal(grad, own, shape)
    return unbroadcast(grad, x)


def _on_diagonal(grad: Any, own: str, shape: dict[str, int]) -> Any:
    seen: list[str] = []
    axes: list[int] = []
    mask: Any = True
    for at, letter in enumerate(own):
        if letter in seen:
            n = shape[letter]
            first = own.index(letter)
            view = [1] * len(own)
            view[first] = view[at] = n
            mask = mask & np.eye(n, dtype=bool).reshape(view)
            axes.append(at)
        seen.append(letter)
    for at in axes:
        grad = np.expand_dims(grad, at)
    return np.where(mask, grad, np.zeros((), dtype_of(grad)))


def _einsum_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    inputs, result = split_spec(params["spec"])
    sizes, used = _letter_sizes(inputs, operands), set("".join(inputs))
    spec = _batched_spec(params["spec"], tuple(isinstance(x, Batched) for x in operands))
    out_sizes = tuple(sizes[letter] for letter in result)
    if not has_lengths(tuple(sizes.values())):
        return Batched(op(*(x.data if isinstance(x, Batched) else x for x in operands), spec=spec), out_sizes)
    for letters, x in zip(inputs, operands, strict=True):
        if is_one_in_some(sizes_of(x), [sizes[letter] for letter in letters]):
            return run_by_length(op, operands, params)
    boxed = any(is_boxed(x.data if isinstance(x, Batched) else x) for x in operands)
    padded_shape(lane_count(operands), out_sizes)
    products = None if are_unknown(tuple(sizes.values())) else _lane_by_lane(inputs, result, operands, sizes)
    if products is not None:
        return Batched(products, out_sizes)
    # A quarter of a byte is made in the time of a multiplication.
    padded_shape(lane_count(operands), tuple(sizes.values()), 0.25)
    contracted = {letter for letter in used if letter not in result}

    def arrays(letters_to_fill: set[str]) -> list[Any]:
        return [_prepare(x, letters, sizes, letters_to_fill) for letters, x in zip(inputs, operands, strict=True)]

    out = speculate(lambda: op(*arrays(used if boxed else contracted), spec=spec), lambda: op(*arrays(used), spec=spec))
    return Batched(mask_padding(out, out_sizes) if boxed else out, out_sizes)


_CALL = 100_000  # cost of one np.matmul call, in multiplications


def _lane_by_lane(
    inputs: Sequence[str], result: str, operands: Sequence[Any], sizes: dict[str, Size]
) -> np.ndarray | None:
    """A matrix product per lane, without padding; None if one batched product is as fast, or for other contractions.

    Returns:
        (B, rows, columns), zero at the padding.
    """
    if not (len(inputs) == 2 and len(set(inputs[0] + inputs[1])) == 3 and {2} == {len(result), *map(len, inputs)}):
        return None
    if not all(isinstance(x, Batched) for x in operands) or len({dtype_of(x.data) for x in operands}) > 1:
        return None
    if dtype_of(operands[0].data).kind != "f":
        return None
    for letters, x in zip(inputs, operands, strict=True):
        if not all(same_size(own, sizes[letter]) for letter, own in zip(letters, x.sizes, strict=True)):
            return None  # some lanes are broadcast
    contracted = next(letter for letter in inputs[0] if letter not in result)
    left = 0 if result[0] in inputs[0] else 1
    if contracted not in inputs[1] or result[1] not in inputs[1 - left]:
        return None
    lanes = operands[0].batch_size
    m, k, n = (lane_lengths(sizes[letter], lanes) for letter in (result[0], contracted, result[1]))
    rows, depth, columns = (padded_width(sizes[letter]) for letter in (result[0], contracted, result[1]))
    saved = lanes * rows * depth * columns - int((m * k * n).sum())
    if isinstance(sizes[contracted], Lengths):
        # To set one element of the padding to zero costs as much as forty multiplications.
        saved += 40 * lanes * depth * (rows + columns)
    if saved < _CALL * lanes:
        return None
    x = _lanes(operands[left], m, k, inputs[left][0] != result[0])
    y = _lanes(operands[1 - left], k, n, inputs[1 - left][1] != result[1])
    if x is None or y is None:
        return None
    out = np.zeros((lanes, rows, columns), dtype_of(operands[0].data))
    for lane, own, other in zip(out, x, y, strict=True):
        np.matmul(own, other, out=lane[: own.shape[0], : other.shape[1]])
    return out


def _lanes(x: Batched, rows: np.ndarray, columns: np.ndarray, is_transposed: bool) -> list[np.ndarray] | None:
    """The (rows, columns) matrix of each lane; None if the data is not plain. `is_transposed`: stored transposed."""
    first, second = (columns.tolist(), rows.tolist()) if is_transposed else (rows.tolist(), columns.tolist())
    data = x.data
    if getattr(data, "_ab_unpadded", False):  # packed: the lanes' rows, concatenated
        if type(data.values) is not np.ndarray:
            return None
        stops = np.cumsum(first).tolist()
        found = [data.values[stop - n : stop] for n, stop in zip(first, stops, strict=True)]
    elif type(data) is np.ndarray:
        found = [lane[:n, :m] for lane, n, m in zip(data, first, second, strict=True)]
    else:
        return None
    return [lane.T for lane in found] if is_transposed else found


def _letter_sizes(inputs: Sequence[str], operands: Sequence[Any]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for letters, x in zip(inputs, operands, strict=True):
        for letter, size in zip(letters, sizes_of(x), strict=True):
            sizes[letter] = broadcast_size(sizes[letter], size) if letter in sizes else size
    return sizes


def _prepare(x: Any, letters: str, sizes: dict[str, Size], to_fill: set[str]) -> Any:
    """An operand's data: cropped to the common extents, zero at padding of `to_fill`."""
    batched = isinstance(x, Batched)
    goal = tuple(sizes[letter] for letter in letters)
    shape = tuple(map(padded_width, goal))
    data = align(x.data if batched else x, sizes_of(x), goal, shape, batched)
    if not batched:  # every lane has the shared operand's length, or the operand has length one
        return data
    widths = data.shape[1:]
    axes = [at for at, letter in enumerate(letters) if letter in to_fill and widths[at] == shape[at]]
    mask = padding_mask(goal, widths, axes)
    return data if mask is None else fill_p(data, mask, value=0)


def _einsum_layout(params: dict[str, Any], non_c_order: bool, rank: int) -> bool:
    """The result may not be in C order if an operand is not, or has its letters in another order than the result."""
    inputs, result = split_spec(params["spec"])
    return non_c_order or any([c for c in result if c in own] != [c for c in own if c in result] for own in inputs)


einsum_p = Op("einsum", _einsum, rule=_einsum_rule, vjp=_einsum_vjp, layout=_einsum_layout, kind="contraction")


def explicit_spec(subscripts: str, ranks: Sequence[int]) -> str:
    """Subscripts with the ellipsis replaced by letters and an explicit result.

    >>> explicit_spec("...i,ij", [3, 2])
    'abi,ij->abj'
    """
    subscripts = subscripts.replace(" ", "")
    inputs_text, arrow, out = subscripts.partition("->")
    inputs = inputs_text.split(",")
    if len(inputs) != len(ranks):
        raise ValueError(f"einsum: {len(inputs)} subscripts for {len(ranks)} operands")
    named = set(inputs_text + out) - set(".,")
    free = [letter for letter in _LETTERS if letter not in named]
    widths = [rank - (len(text) - 3) if "..." in text else 0 for text, rank in zip(inputs, ranks, strict=True)]
    dots = "".join(free[: max(widths, default=0)])
    full = []
    for text, rank, width in zip(inputs, ranks, widths, strict=True):
        letters = text.replace("...", dots[len(dots) - width :] if width > 0 else "")
        if len(letters) != rank:
            raise ValueError(f"einsum: subscripts {text!r} do not name the {rank} dimensions of their operand")
        full.append(letters)
    joined = "".join(full)
    if not arrow:
        once = sorted(letter for letter in set(joined) - set(dots) if joined.count(letter) == 1)
        out = dots + "".join(once)
    return ",".join(full) + "->" + out.replace("...", dots)


@implements(np.einsum)
def _np_einsum(*operands: Any, optimize: Any = False) -> Any:
    if not isinstance(operands[0], str):
        raise Unsupported("np.einsum with subscripts as lists")
    arrays = _common(*operands[1:])
    spec = explicit_spec(operands[0], [ndim_of(x) for x in arrays])
    own, result = spec.split("->")
    if len(arrays) > 1 or set(own) != set(result):
        return einsum_p(*arrays, spec=spec)
    if len(own) == len(result):  # a single operand, nothing summed: NumPy returns a view
        return np.transpose(arrays[0], [own.index(letter) for letter in result])
    return unclear_view(einsum_p(*arrays, spec=spec), arrays[0])


def _matmul(x: Any, y: Any, **options: Any) -> Any:
    tall = type(x) is np.ndarray and x.ndim > 2 and type(y) is np.ndarray and y.ndim == 2 and not options
    if tall and y.shape[0] and x.shape[-1] == y.shape[0]:
        return np.matmul(x.reshape(-1, y.shape[0]), y).reshape(*x.shape[:-1], y.shape[1])
    return np.matmul(x, y, **options)


def mt(x: Any) -> Any:
    """`x.mT`."""
    return np.swapaxes(x, -1, -2)


def _matmul_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, y = args
    x_rank, y_rank = ndim_of(x), ndim_of(y)
    if x_rank == y_rank == 2 and type(ct) is type(x) is type(y) is np.ndarray:
        # Below this, the matrix's gradient is a deferred Product, to be summed with others in one product.
        if len(x) < 512 and x.dtype is ct.dtype is y.dtype:
            return Product(x, ct) if position else np.matmul(ct, y.T)
        return unbroadcast(np.matmul(x.T, ct) if position else np.matmul(ct, y.T), args[position])
    if x_rank == 1 and y_rank == 1:
        return unbroadcast(ct * (x if position else y), args[position])
    if x_rank == 1:
        if position:
            if y_rank == 2 and type(ct) is type(x) is type(y) is np.ndarray and x.dtype is ct.dtype is y.dtype:
                return Product(x[None], ct[None])
            return unbroadcast(np.expand_dims(x, -1) * np.expand_dims(ct, -2), y)
        return unbroadcast(matmul_p(y, np.expand_dims(ct, -1))[..., 0], x)
    if position and y_rank < 3 and y_rank < x_rank and sum([type(size) is Affine for size in shape_of(ct)]) > 1:
        (left, right), result = split_spec(matmul_spec(x_rank, y_rank))  # no reshape merges sizes that are not known
        return unbroadcast(einsum_p(x, ct, spec=f"{left},{result}->{right}"), y)
    if y_rank == 1:
        if position:
            return unbroadcast(matmul_p(np.reshape(ct, (-1,)), np.reshape(x, (_size(ct), shape_of(y)[0]))), y)
        return unbroadcast(np.expand_dims(ct, -1) * y, x)
    if position == 0:
        return unbroadcast(matmul_p(ct, mt(y)), x)
    if y_rank == 2 and x_rank > 2:
        rows = _size(ct) // max(shape_of(y)[1], 1) if shape_of(y)[1] else math.prod(shape_of(x)[:-1])
        flat = np.reshape(x, (rows, shape_of(y)[0]))
        return unbroadcast(matmul_p(mt(flat), np.reshape(ct, (rows, shape_of(y)[1]))), y)
    return unbroadcast(matmul_p(mt(x), ct), y)


def _size(x: Any) -> int:
    return math.prod(shape_of(x))


def _matmul_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, y = operands
    if isinstance(x, Batched):
        if not isinstance(y, Batched):
            shape = shape_of(y)
            if len(shape) == 2 and x.sizes and x.sizes[-1] == shape[0] and x.scalar is None:
                return _tall(op, x, y, params, (*x.sizes[:-1], shape[1]))
        elif len(x.sizes) == len(y.sizes) > 1 and _plain_stack(x.sizes, y.sizes):
            return Batched(op(x.data, y.data, **params), (*x.sizes[:-1], y.sizes[-1]))
    if params:
        raise Unsupported("np.matmul with dtype= on a batch of these shapes")
    own = [sizes_of(x) for x in operands]
    check_matmul(own[0], own[1])
    dtype = np.result_type(*(dtype_of(x.data if isinstance(x, Batched) else x) for x in operands))
    operands = [_as(x, dtype) for x in operands]
    return einsum_p.rule(einsum_p, operands, {"spec": matmul_spec(len(own[0]), len(own[1]))})  # type: ignore[misc]


def _tall(op: Op, x: Batched, y: Any, params: dict[str, Any], sizes: tuple[Size, ...]) -> Batched:
    """The rows of all lanes times a shared matrix. If gradients are recorded, padding is zeroed, before and after."""
    if not has_lengths(x.sizes):
        return Batched(op(x.data, y, **params), sizes)
    if is_boxed(x.data) or is_boxed(y):
        return Batched(mask_padding(op(fill(x, 0), y, **params), sizes), sizes)
    return Batched(speculate(lambda: op(x.data, y, **params), lambda: op(fill(x, 0), y, **params)), sizes)


def _plain_stack(x: tuple[Size, ...], y: tuple[Size, ...]) -> bool:
    return x[:-2] == y[:-2] and x[-1] == y[-2] and not has_lengths(x) and not has_lengths(y)


def _as(x: Any, dtype: np.dtype) -> Any:
    if isinstance(x, Batched):
        return x if dtype_of(x.data) == dtype and x.scalar is None else Batched(x.data.astype(dtype), x.sizes)
    return cast(x if hasattr(x, "shape") else np.asarray(x), dtype)


def check_matmul(x: tuple[Size, ...], y: tuple[Size, ...]) -> None:
    """Raise if the contracted dimensions of some example differ (they do not broadcast)."""
    if not x or not y:
        which = 0 if not x else 1
        raise ValueError(
            f"matmul: Input operand {which} does not have enough dimensions (has 0, gufunc core with signature "
            "(n?,k),(k,m?)->(n?,m?) requires 1)"
        )
    check_same(x[-1], y[-2] if len(y) > 1 else y[-1], "matmul")


def check_same(a: Size, b: Size, name: str) -> None:
    """Raise ShapeError, naming the first such example, if two contracted dimensions differ."""
    if same_size(a, b):
        return
    left, right, lane = first_difference(a, b)
    raise ShapeError(f"{name}: the contracted dimensions are {left} and {right} in example {lane}")


def matmul_spec(x_rank: int, y_rank: int) -> str:
    """The einsum subscripts of matmul for operands of these ranks.

    >>> matmul_spec(3, 2)
    'Smk,kn->Smn'
    """
    stack = "STUVWXYZQRP"
    x_stack, y_stack = max(x_rank - 2, 0), max(y_rank - 2, 0)
    both = stack[: max(x_stack, y_stack)]
    left = both[len(both) - x_stack :] + ("mk" if x_rank > 1 else "k")
    right = both[len(both) - y_stack :] + ("kn" if y_rank > 1 else "k")
    return f"{left},{right}->{both}{'m' if x_rank > 1 else ''}{'n' if y_rank > 1 else ''}"


@source(sums=True)
def products_of_stacks(a, b):
    """`a @ b` where one has more than two dimensions: a product for each item along the first of them."""
    if a.ndim > b.ndim:
        return np.stack([item @ b for item in a])
    if a.ndim < b.ndim:
        return np.stack([a @ item for item in b])
    if len(a) != len(b):
        leave_to_python()
    return np.stack([one @ other for one, other in zip(a, b, strict=False)])


matmul_p: Op = Op(
    "matmul", _matmul, rule=_matmul_rule, vjp=_matmul_vjp, kind="contraction",
    layout=lambda params, non_c_order, rank: non_c_order and rank > 3,  # only several leading dimensions keep an order
)  # fmt: skip
UFUNCS[np.matmul] = matmul_p


def _common(*arrays: Any) -> list[Any]:
    arrays_ = [x if hasattr(x, "shape") else np.asarray(x) for x in arrays]
    dtype = np.result_type(*(dtype_of(x) for x in arrays_))
    return [cast(x, dtype) for x in arrays_]


def _contract(name: str, a: Any, b: Any, spec: str, pairs: Sequence[tuple[int, int]]) -> Any:
    """An einsum whose contracted dimensions, `pairs` of axes, must be equal: only np.einsum broadcasts them."""
    a, b = _common(a, b)
    left, right = sizes_of(a), sizes_of(b)
    for i, j in pairs:
        if isinstance(left[i], int | Lengths) and isinstance(right[j], int | Lengths):
            check_same(left[i], right[j], name)
        elif differ_somewhere(left[i], right[j]):
            raise NeedsLoop(f"{name}: contracted dimensions that differ in some example")
    return einsum_p(a, b, spec=spec)


def _product_of(ufunc: np.ufunc, product: Callable[..., Any]) -> None:
    """Register a function of two operands for a product's ufunc; calls with options are declined."""

    def call(a: Any, b: Any, **options: Any) -> Any:
        if options:
            raise Unsupported(f"{name_of(ufunc)} with dtype=")
        return product(a, b)

    UFUNCS[ufunc] = call


def _conjugate(x: Any) -> Any:
    return np.conjugate(x) if dtype_of(x).kind == "c" else x


def _row(x: Any) -> Any:
    return np.expand_dims(_conjugate(x), -2)


def _column(x: Any) -> Any:
    return np.expand_dims(x, -1)


_product_of(np.vecdot, lambda a, b: np.matmul(_row(a), _column(b))[..., 0, 0])
_product_of(np.matvec, lambda a, b: np.matmul(a, _column(b))[..., 0])
_product_of(np.vecmat, lambda a, b: np.matmul(_row(a), b)[..., 0, :])


def _letters_of(left: int, right: int) -> tuple[str, str]:
    """Distinct letters for `left` and `right` dimensions of two operands."""
    return _LETTERS[:left], _LETTERS[left : left + right]


@implements(np.dot)
def _np_dot(a: Any, b: Any) -> Any:
    if ndim_of(a) == 0 or ndim_of(b) == 0:
        return np.multiply(as_array(a), as_array(b))  # a Python number is not weak here: NumPy converts it to an array
    if ndim_of(b) <= 2:
        return np.matmul(a, b)
    left, right = _letters_of(ndim_of(a) - 1, ndim_of(b) - 2)
    return _contract("dot", a, b, f"{left}K,{right}KN->{left}{right}N", [(-1, -2)])


implements(np.vdot)(lambda a, b: np.matmul(_flat(_conjugate(a)), _flat(b)))


def _flat(x: Any) -> Any:
    return x if ndim_of(x) == 1 else np.ravel(x)


@implements(np.inner)
def _np_inner(a: Any, b: Any) -> Any:
    if ndim_of(a) == 0 or ndim_of(b) == 0:
        return np.multiply(as_array(a), as_array(b))
    left, right = _letters_of(ndim_of(a) - 1, ndim_of(b) - 1)
    return _contract("inner", a, b, f"{left}K,{right}K->{left}{right}", [(-1, -1)])


@implements(np.linalg.cross)
def _linalg_cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    if any(type(size := shape_of(x)[axis]) is not int or size != 3 for x in (x1, x2)):
        raise Unsupported("np.linalg.cross of vectors that are not of three elements")
    return cross(x1, x2, axis=axis)


@implements(np.cross)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(as_array(a), axisa, -1), np.moveaxis(as_array(b), axisb, -1)
    if any(type(size := shape_of(x)[-1]) is not int or size != 3 for x in (a, b)):
        raise Unsupported("np.cross of vectors that are not of three elements")
    x, y, z = (a[..., i] for i in range(3))
    u, v, w = (b[..., i] for i in range(3))
    return np.moveaxis(np.stack([y * w - z * v, z * u - x * w, x * v - y * u], axis=-1), -1, axisc)


@implements(np.kron)
def kron(a: Any, b: Any) -> Any:
    a, b = as_array(a), as_array(b)
    rank = max(ndim_of(a), ndim_of(b))
    a, b = a[(None,) * (rank - ndim_of(a))], b[(None,) * (rank - ndim_of(b))]
    left = a[tuple(item for _ in range(rank) for item in (slice(None), None))]
    right = b[tuple(item for _ in range(rank) for item in (None, slice(None)))]
    return np.reshape(left * right, tuple(m * n for m, n in zip(shape_of(a), shape_of(b), strict=True)))


@implements(np.convolve)
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    a, v = as_array(a), as_array(v)
    expect(a, "np.convolve", rank=1)
    expect(v, "np.convolve", rank=1)
    return _convolved(a, v, mode, (np.minimum(shape_of(a)[0], shape_of(v)[0]) - 1) // 2)


def _convolved(a: Any, v: Any, mode: str, start: Any) -> Any:
    """Convolution: the row sums of the longer array's Toeplitz matrix times the shorter one.

    Zeros are selected, since 0 * inf is NaN.

    Args:
        start: the index in the full result at which the result of mode="same" begins.
    """
    n, m = shape_of(a)[0], shape_of(v)[0]
    for name, size in (("a", n), ("v", m)):
        if np.any(np.equal(size.data if is_boxed(size) else size, 0)):
            raise ValueError(f"{name} cannot be empty")
    if mode not in ("full", "valid", "same"):
        raise Unsupported(f"np.convolve with mode={mode!r}")
    dtype = np.result_type(dtype_of(a), dtype_of(v))
    small, large = np.minimum(n, m), np.maximum(n, m)
    if _longest(n) > _longest(m):
        (a, n), (v, m) = (v, m), (a, n)
    places = arange(n + m - 1)[:, None] - arange(n)
    inside = (places >= 0) & (places < m)
    wide = np.float32 if dtype == np.float16 else dtype  # NumPy sums products of float16 in float32
    terms = getitem(v, np.where(inside, places, 0)).astype(wide) * a.astype(wide)
    out = np.sum(np.where(inside, terms, np.zeros((), wide)), axis=1, dtype=wide).astype(dtype)
    if mode == "full":
        return out
    return out[small - 1 : large] if mode == "valid" else out[start : start + large]


def _longest(n: Any) -> int:
    return int(np.max(n.data)) if is_boxed(n) else n


@implements(np.correlate)
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    a, v = as_array(a), as_array(v)
    expect(a, "np.correlate", rank=1, kinds="iufc")
    expect(v, "np.correlate", rank=1, kinds="iufc")
    n, m = shape_of(a)[0], shape_of(v)[0]
    # NumPy swaps the arrays if the first is shorter, and reverses the result
    return _convolved(a, np.conjugate(v)[::-1], mode, np.where(n < m, n // 2, (m - 1) // 2))
