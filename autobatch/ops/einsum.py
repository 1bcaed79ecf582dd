"""einsum: the contraction that every other one can be written as.

The op's param `spec` has one letter per example dimension and an explicit result. The batch axis is one more letter,
so a shared operand turns a batch of products into a single tall one.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, same_size
from autobatch.core.op import Op, is_boxed
from autobatch.ops.rules.aliasing import unclear_view
from autobatch.ops.rules.dispatch import Declined, implements
from autobatch.ops.rules.padding import align, fill_p, quietly, select, unbroadcast
from autobatch.ops.rules.sizes import broadcast_size, has_lengths

__all__ = ["einsum_p"]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@functools.lru_cache(maxsize=4096)
def _split(spec: str) -> tuple[list[str], str]:
    inputs, out = spec.split("->")
    return inputs.split(","), out


@functools.lru_cache(maxsize=4096)
def _batched_spec(spec: str, batched: tuple[bool, ...]) -> str:
    """The subscripts with a letter for the batch axis on the operands that have one, and on the result."""
    inputs, result = _split(spec)
    batch = next(letter for letter in _LETTERS if letter not in spec)
    return ",".join(batch * has + letters for letters, has in zip(inputs, batched, strict=True)) + f"->{batch}{result}"


@functools.lru_cache(maxsize=4096)
def _product_plan(spec: str) -> tuple[Any, ...] | None:
    """How a contraction of two operands is one matrix product, or None where it is none.

    Returns (equal axes, order of the left axes, of the right axes, number of batch, row and contracted letters, order
    of the result's axes): left becomes (batch, rows, contracted), right (batch, contracted, columns).
    """
    (left, right), out = _split(spec)
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        return None
    shared = [letter for letter in left if letter in right]
    contracted = [letter for letter in shared if letter not in out]
    batch = [letter for letter in out if letter in shared]
    rows = [letter for letter in out if letter in left and letter not in right]
    columns = [letter for letter in out if letter in right and letter not in left]
    alone = any(letter not in out and letter not in shared for letter in left + right)
    if alone or not contracted or not (rows or columns):
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
    """Two operands become one matrix product where BLAS gains by it; NumPy's einsum does the rest."""
    plan = _product_plan(spec) if len(operands) == 2 else None
    if plan is None:
        return np.einsum(spec, *operands, optimize=len(operands) > 2)
    x, y = (np.asarray(operand) for operand in operands)
    equal, x_order, y_order, (batch, rows, contracted), out_order = plan
    if x.dtype.kind not in "fc" or any(x.shape[i] != y.shape[j] for i, j in equal):
        return np.einsum(spec, x, y)
    x, y = x.transpose(x_order), y.transpose(y_order)
    stack, k = x.shape[:batch], math.prod(x.shape[batch + rows :])
    m, n = x.shape[batch : batch + rows], y.shape[batch + contracted :]
    product = np.matmul(x.reshape(*stack, math.prod(m), k), y.reshape(*stack, k, math.prod(n)))
    return product.reshape(*stack, *m, *n).transpose(out_order)


def _vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The same contraction with result and operand exchanged; a repeated letter puts it on the diagonal."""
    inputs, result = _split(params["spec"])
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
    if kept != unique or any(sizes[letter] != shape[letter] for letter in kept):  # 1 in all others: it was stretched
        grad = np.reshape(grad, tuple(sizes.get(letter, 1) for letter in unique))
        grad = np.broadcast_to(grad, tuple(shape[letter] for letter in unique))
        summed = [full[c] for c in unique if c not in kept and shape[c] == 1 and c not in have]
        grad = grad * np.prod(summed) if summed and np.prod(summed) != 1 else grad
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


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    inputs, result = _split(params["spec"])
    sizes = _letter_sizes(inputs, operands)
    used = set("".join(inputs))
    spec = _batched_spec(params["spec"], tuple(isinstance(x, Batched) for x in operands))
    out_sizes = tuple(sizes[letter] for letter in result)
    if not has_lengths(tuple(sizes.values())):
        return Batched(op(*(x.data if isinstance(x, Batched) else x for x in operands), spec=spec), out_sizes)
    extents = _letter_extents(inputs, operands, sizes)
    boxed = any(is_boxed(x.data if isinstance(x, Batched) else x) for x in operands)
    products = _lane_by_lane(inputs, result, operands, sizes, extents)
    if products is not None:
        return Batched(products, out_sizes)
    contracted = {letter for letter in used if letter not in result}

    def arrays(letters_to_fill: set[str]) -> list[Any]:
        return [
            _prepare(x, letters, sizes, extents, letters_to_fill) for letters, x in zip(inputs, operands, strict=True)
        ]

    out = quietly(lambda: op(*arrays(used if boxed else contracted), spec=spec), lambda: op(*arrays(used), spec=spec))
    return Batched(select(out, out_sizes) if boxed else out, out_sizes)


_CALL = 100_000  # multiplications that take as long as the call of a product
_CLEARED = 40  # and those that take as long as to make an element of the padding zero


def _lane_by_lane(
    inputs: Sequence[str], result: str, operands: Sequence[Any], sizes: dict[str, Size], extents: dict[str, int]
) -> np.ndarray | None:
    """The product of two matrices of each lane, without their padding; None where one of all lanes is no slower.

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
            return None  # some lanes are stretched
    contracted = next(letter for letter in inputs[0] if letter not in result)
    left = 0 if result[0] in inputs[0] else 1
    if contracted not in inputs[1] or result[1] not in inputs[1 - left]:
        return None
    lanes = operands[0].batch_size
    m, k, n = (_per_lane(sizes[letter], lanes) for letter in (result[0], contracted, result[1]))
    rows, depth, columns = (extents[letter] for letter in (result[0], contracted, result[1]))
    saved = lanes * rows * depth * columns - int((m * k * n).sum())
    if isinstance(sizes[contracted], Lengths):
        saved += _CLEARED * lanes * depth * (rows + columns)
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


def _lanes(x: Batched, rows: np.ndarray, columns: np.ndarray, turned: bool) -> list[np.ndarray] | None:
    """The matrix (rows, columns) of each lane, if its data is plain; `turned`: it lies transposed."""
    first, second = (columns.tolist(), rows.tolist()) if turned else (rows.tolist(), columns.tolist())
    data = x.data
    if getattr(data, "_ab_unpadded", False):  # all positions, one lane after the other
        if type(data.values) is not np.ndarray:
            return None
        stops = np.cumsum(first).tolist()
        found = [data.values[stop - n : stop] for n, stop in zip(first, stops, strict=True)]
    elif type(data) is np.ndarray:
        found = [lane[:n, :m] for lane, n, m in zip(data, first, second, strict=True)]
    else:
        return None
    return [lane.T for lane in found] if turned else found


def _per_lane(size: Size, lanes: int) -> np.ndarray:
    return size.values if isinstance(size, Lengths) else np.full(lanes, size)


def _letter_sizes(inputs: Sequence[str], operands: Sequence[Any]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for letters, x in zip(inputs, operands, strict=True):
        for letter, size in zip(letters, x.sizes if isinstance(x, Batched) else shape_of(x), strict=True):
            sizes[letter] = broadcast_size(sizes[letter], size) if letter in sizes else size
    return sizes


def _letter_extents(inputs: Sequence[str], operands: Sequence[Any], sizes: dict[str, Size]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for letter, size in sizes.items():
        if isinstance(size, int):
            extents[letter] = size
            continue
        widths = [
            (x.data.shape[1 + at] if isinstance(x, Batched) else shape_of(x)[at])
            for letters, x in zip(inputs, operands, strict=True)
            for at, own in enumerate(letters)
            if own == letter and same_size(x.sizes[at] if isinstance(x, Batched) else shape_of(x)[at], size)
        ]
        extents[letter] = min(widths) if widths else size.max()
    return extents


def _prepare(x: Any, letters: str, sizes: dict[str, Size], extents: dict[str, int], to_fill: set[str]) -> Any:
    """An operand's data cropped to the common extents, lanes of length one stretched, zero at the padding."""
    batched = isinstance(x, Batched)
    own = x.sizes if batched else shape_of(x)
    goal = tuple(sizes[letter] for letter in letters)
    shape = tuple(extents[letter] for letter in letters)
    data = align(x.data if batched else x, own, goal, shape, batched)
    if not batched and not any(isinstance(size, Lengths) for size in goal):
        return data
    axes = [at for at, letter in enumerate(letters) if letter in to_fill and isinstance(goal[at], Lengths)]
    if not axes:
        return data
    if not batched:  # every lane has the shared operand's length, or the operand has length one
        return data
    widths = data.shape[1:]
    axes = [at for at in axes if widths[at] == shape[at]]
    mask = padding_mask(goal, widths, axes)
    return data if mask is None else fill_p(data, mask, value=0)


def _layout(params: dict[str, Any], crooked: bool, rank: int) -> bool:
    """NumPy writes the result in C order where no operand has its letters in another order."""
    inputs, result = _split(params["spec"])
    return crooked or any([c for c in result if c in own] != [c for c in own if c in result] for own in inputs)


einsum_p = Op("einsum", _einsum, rule=_rule, vjp=_vjp, layout=_layout, kind="contraction")


def _explicit(subscripts: str, ranks: Sequence[int]) -> str:
    """Subscripts with the ellipsis replaced by letters and the result written out.

    >>> _explicit("...i,ij", [3, 2])
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
def _np_einsum(*operands: Any, out: Any = None, optimize: Any = False, dtype: Any = None, **kwargs: Any) -> Any:
    if out is not None or dtype is not None or kwargs or not isinstance(operands[0], str):
        raise Declined("np.einsum with out=, dtype=, order=, casting= or subscripts as lists")
    arrays = [x if hasattr(x, "shape") else np.asarray(x) for x in operands[1:]]
    common = np.result_type(*(dtype_of(x) for x in arrays))
    arrays = [x if dtype_of(x) == common else x.astype(common) for x in arrays]
    spec = _explicit(operands[0], [ndim_of(x) for x in arrays])
    own, result = spec.split("->")
    if len(arrays) > 1 or set(own) != set(result):
        return einsum_p(*arrays, spec=spec)
    if len(own) == len(result):  # of a single operand, without a sum: a view
        return np.transpose(arrays[0], [own.index(letter) for letter in result])
    return unclear_view(einsum_p(*arrays, spec=spec), arrays[0])
