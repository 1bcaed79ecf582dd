"""einsum: the contraction that every other one can be written as.

The op's param `spec` has one letter per example dimension and an explicit result. The batch axis is one more letter,
so a shared operand turns a batch of products into a single tall one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, same_size
from autobatch.core.op import Op, is_boxed
from autobatch.errors import ShapeError
from autobatch.ops.broadcasting import align, fill_p, has_lengths, per_lane, quietly, select, unbroadcast
from autobatch.ops.table import Declined, implements

__all__ = ["einsum_p"]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _split(spec: str) -> tuple[list[str], str]:
    inputs, out = spec.split("->")
    return inputs.split(","), out


def _einsum(*operands: Any, spec: str) -> Any:
    """Two operands become one matrix product where BLAS gains by it; NumPy's einsum does the rest."""
    if len(operands) != 2:
        return np.einsum(spec, *operands, optimize=len(operands) > 2)
    (left, right), out = _split(spec)
    x, y = (np.asarray(operand) for operand in operands)
    if x.dtype.kind not in "fc" or len(set(left)) < len(left) or len(set(right)) < len(right):
        return np.einsum(spec, x, y)
    extents = dict(zip(left, x.shape, strict=True))
    broadcasts = any(extents.get(letter, n) != n for letter, n in zip(right, y.shape, strict=True))
    shared = [letter for letter in left if letter in right]
    contracted = [letter for letter in shared if letter not in out]
    rows = [letter for letter in out if letter in left and letter not in right]
    columns = [letter for letter in out if letter in right and letter not in left]
    alone = any(letter not in out and letter not in shared for letter in left + right)
    if broadcasts or alone or not contracted or not (rows or columns):
        return np.einsum(spec, x, y)
    batch = [letter for letter in out if letter in shared]
    extents.update(zip(right, y.shape, strict=True))

    def arranged(array: np.ndarray, letters: str, *groups: list[str]) -> np.ndarray:
        order = [letters.index(letter) for group in groups for letter in group]
        shape = [extents[letter] for letter in groups[0]]
        shape += [int(np.prod([extents[letter] for letter in group], dtype=np.int64)) for group in groups[1:]]
        return array.transpose(order).reshape(shape)

    product = np.matmul(arranged(x, left, batch, rows, contracted), arranged(y, right, batch, contracted, columns))
    letters = [*batch, *rows, *columns]
    product = product.reshape([extents[letter] for letter in letters])
    return product.transpose([letters.index(letter) for letter in out])


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
    if kept != unique:
        grad = np.reshape(grad, tuple(shape[letter] if letter in kept else 1 for letter in unique))
        grad = np.broadcast_to(grad, tuple(shape[letter] for letter in unique))
        summed = [full[c] for c in unique if c not in kept and shape[c] == 1 and c not in have]
        grad = grad * np.prod(summed) if summed and np.prod(summed) != 1 else grad
    if unique != own:
        grad = _on_diagonal(grad, unique, own, shape)
    return unbroadcast(grad, x)


def _on_diagonal(grad: Any, unique: str, own: str, shape: dict[str, int]) -> Any:
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
    batch = next(letter for letter in _LETTERS if letter not in used)
    spec = ",".join(
        batch + letters if isinstance(x, Batched) else letters for letters, x in zip(inputs, operands, strict=True)
    )
    spec = f"{spec}->{batch}{result}"
    out_sizes = tuple(sizes[letter] for letter in result)
    if not has_lengths(tuple(sizes.values())):
        return Batched(op(*(x.data if isinstance(x, Batched) else x for x in operands), spec=spec), out_sizes)
    extents = _letter_extents(inputs, operands, sizes)
    boxed = any(is_boxed(x.data if isinstance(x, Batched) else x) for x in operands)
    contracted = {letter for letter in used if letter not in result}

    def arrays(letters_to_fill: set[str]) -> list[Any]:
        return [
            _prepare(x, letters, sizes, extents, letters_to_fill) for letters, x in zip(inputs, operands, strict=True)
        ]

    out = quietly(lambda: op(*arrays(used if boxed else contracted), spec=spec), lambda: op(*arrays(used), spec=spec))
    return Batched(select(out, out_sizes) if boxed else out, out_sizes)


def _letter_sizes(inputs: Sequence[str], operands: Sequence[Any]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for letters, x in zip(inputs, operands, strict=True):
        for letter, size in zip(letters, x.sizes if isinstance(x, Batched) else shape_of(x), strict=True):
            sizes[letter] = _joined(sizes[letter], size) if letter in sizes else size
    return sizes


def _joined(a: Size, b: Size) -> Size:
    if a is b:
        return a
    if same_size(a, b):
        return a if isinstance(a, Lengths) else b
    left, right = np.broadcast_arrays(per_lane(a), per_lane(b))
    wrong = (left != right) & (left != 1) & (right != 1)
    if wrong.any():
        lane = int(np.argmax(wrong))
        raise ShapeError(f"operands do not agree in a dimension: {left[lane]} and {right[lane]} in example {lane}")
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b) if a and b else 0
    return Lengths(np.where(left == 1, right, left))


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


einsum_p = Op("einsum", _einsum, rule=_rule, vjp=_vjp, kind="contraction")


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
    return einsum_p(*arrays, spec=_explicit(operands[0], [ndim_of(x) for x in arrays]))
