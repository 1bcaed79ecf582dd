"""Reductions of bags on plain arrays, and their gradients: what the ops of bags compute."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of
from autobatch.errors import DTypeError, UnsupportedError
from autobatch.kernels import bags as kernels
from autobatch.kernels.pooling import MEAN, SQRTN, SUM
from autobatch.kernels.vectors import computed_dtype
from autobatch.tables.access import gather, integers, locate, pool, poolable

__all__ = [
    "EXTREMA",
    "Mode",
    "bag_of_each",
    "bag_scales",
    "reduce_bags",
    "table_gradient",
    "unexpanded_gradient",
    "weights_gradient",
]

EXTREMA = ("max", "min")
_NORMS = {"mean": MEAN, "sqrtn": SQRTN}
Mode = str | tuple[str, ...]


def reduce_bags(
    table: Any, ids: Any, offsets: Any, weights: Any, mode: Mode, out: np.ndarray | None = None
) -> np.ndarray:
    """Reduce each bag ids[offsets[b]:offsets[b + 1]]; ids and offsets are checked. An empty bag is 0.

    Where ids are None, bags are runs of an array's own rows.

    Args:
        out: where the result of one mode may be put, with contiguous rows and of the table's dtype.

    Returns:
        (bags, dim) for one mode, (bags, modes, dim) for several, which take one pass over the rows.
    """
    table = table if hasattr(table, "_ab_locate") else np.asarray(table)
    dtype, dim = table.dtype, table.shape[1]
    modes = (mode,) if isinstance(mode, str) else mode
    _check_dtype(dtype, modes, weights)
    found = locate(table, None if ids is None else np.asarray(ids))
    real = computed_dtype(found.format)
    kinds = {one if one in EXTREMA else "sum" for one in modes}
    wanted = tuple(kinds) if len(kinds) == 1 else ("sum", *EXTREMA)
    if weights is not None:
        weights = np.ascontiguousarray(weights, real)
    norm = _NORMS.get(mode, SUM) if weights is None and isinstance(mode, str) else SUM
    if out is None or out.dtype != real or found.dim > dim:
        out = np.empty((len(offsets) - 1, found.dim), real)
    outs = [out, *(np.empty((len(offsets) - 1, found.dim), real) for _ in wanted[1:])]
    pool(found, offsets, weights, norm, wanted, outs)
    if found.dim > dim:
        outs = [out[:, :dim] for out in outs]
    named = dict(zip(wanted, outs, strict=True))
    if isinstance(mode, str):
        out = named[wanted[0]]
        if weights is not None and mode != "sum":
            out = _normed(out, weights, offsets, mode)
        return out.astype(dtype, copy=False)
    parts = np.empty((len(offsets) - 1, len(modes), dim), dtype)
    for j, one in enumerate(modes):
        value = named[one if one in EXTREMA else "sum"]
        if one not in ("sum", *EXTREMA):
            if weights is None:
                value = value * bag_scales(np.diff(offsets), one).astype(real)[:, None]
            else:
                value = _normed(value, weights, offsets, one)
        parts[:, j] = value
    return parts


def _check_dtype(dtype: np.dtype, modes: Sequence[str], weights: Any) -> None:
    if dtype.kind not in "fiu" or not poolable(dtype):
        hint = ": ab.segment_any and ab.segment_all are the or and the and" if dtype.kind == "b" else ""
        raise DTypeError(f"a bag over a table of {dtype}; expected floats or integers{hint}")
    for mode in modes:
        if dtype.kind != "f" and (mode in ("mean", "sqrtn") or weights is not None):
            raise DTypeError(f"mode {mode!r} over a table of {dtype} is no {dtype}; make the table a float one")
        if mode in EXTREMA and weights is not None:
            raise UnsupportedError(f"weights with mode={mode!r}; only sum, mean and sqrtn take them")


def _normed(total: np.ndarray, weights: np.ndarray, offsets: Any, mode: str) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):  # where the weights sum to 0, IEEE decides
        return total / _weight_norm(weights, offsets, mode)[:, None]


def _readable(table: Any, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that a backward kernel reads well: C-contiguous floats of 4 bytes or more, gathered where they are not."""
    rows = getattr(table, "weights", table)
    if type(rows) is np.ndarray and rows.flags.c_contiguous and rows.dtype.itemsize >= 4:
        return rows, integers(ids)
    found = gather(table if hasattr(table, "_ab_locate") else np.asarray(table), ids)
    wide = {"f": np.float32, "i": np.int32, "u": np.uint32}[found.dtype.kind]
    return np.ascontiguousarray(found, found.dtype if found.dtype.itemsize >= 4 else wide), np.arange(ids.shape[0])


def bag_scales(lengths: np.ndarray, mode: str) -> np.ndarray:
    """1 / n or 1 / sqrt(n) of each bag; 1 for an empty one, whose sum is 0 anyway."""
    n = np.maximum(lengths, 1).astype(np.float64)
    return 1 / (n if mode == "mean" else np.sqrt(n))


def _weight_norm(weights: np.ndarray, offsets: np.ndarray, mode: str) -> np.ndarray:
    """The sum of the weights of each bag, or the root of the sum of their squares; 1 for an empty bag."""
    out = np.zeros((offsets.shape[0] - 1, 1), weights.dtype)
    values = weights if mode == "mean" else weights * weights
    kernels.bag_sum(values[:, None], np.arange(weights.shape[0]), offsets, out)
    norm = out[:, 0] if mode == "mean" else np.sqrt(out[:, 0])
    norm[np.diff(offsets) == 0] = 1
    return norm


def bag_of_each(offsets: Any) -> np.ndarray:
    """The bag of each id."""
    return np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))


def table_gradient(
    ct: Any, out: Any, table: Any, ids: np.ndarray, offsets: Any, bag_of: np.ndarray, weights: Any, mode: str
) -> np.ndarray:
    """The gradient of each row that was read, (ids, dim)."""
    dtype = dtype_of(table)
    real = np.dtype(np.float32) if dtype.itemsize < 4 else dtype
    wide = np.ascontiguousarray(ct, real)
    found = np.zeros((ids.size, wide.shape[1]), real)
    if mode in EXTREMA:
        rows, row_ids = _readable(table, ids)
        first = np.full(wide.shape, -1, np.int64)
        kernels.first_equal(rows, row_ids, offsets, np.ascontiguousarray(out, rows.dtype), first)
        kernels.take_first(wide, first, found)
    else:
        kernels.spread(wide, offsets, _coefficients(offsets, bag_of, weights, mode, real), found)
    return found.astype(dtype, copy=False)


def unexpanded_gradient(
    ct: Any, table: Any, offsets: Any, bag_of: np.ndarray, weights: Any, mode: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """The same of a sum or mean, before it is repeated: a cotangent for each bag, and a factor for each id or None."""
    dtype = dtype_of(table)
    wide = np.ascontiguousarray(ct, np.float32 if dtype.itemsize < 4 else dtype)
    if weights is not None:
        return wide, _coefficients(offsets, bag_of, weights, mode, wide.dtype)
    if mode != "sum":
        wide = wide * bag_scales(np.diff(offsets), mode).astype(wide.dtype)[:, None]
    return wide, None


def _coefficients(offsets: Any, bag_of: np.ndarray, weights: Any, mode: str, dtype: Any) -> np.ndarray:
    """What each row counts for in its bag's result."""
    if weights is None:
        return (
            np.ones(bag_of.size, dtype) if mode == "sum" else bag_scales(np.diff(offsets), mode).astype(dtype)[bag_of]
        )
    weights = np.ascontiguousarray(weights, dtype)[: bag_of.size]
    if mode == "sum":
        return weights
    with np.errstate(divide="ignore", invalid="ignore"):
        return weights / _weight_norm(weights, offsets, mode)[bag_of]


def weights_gradient(
    ct: Any, out: Any, table: Any, ids: np.ndarray, offsets: Any, bag_of: Any, weights: np.ndarray, mode: str
) -> np.ndarray:
    """The gradient of the weight of each id."""
    rows, row_ids = _readable(table, ids)
    ct = np.ascontiguousarray(ct, rows.dtype)
    dots = np.zeros(weights.shape[0], rows.dtype)
    kernels.bag_dots(rows, row_ids, offsets, ct, dots)
    if mode != "sum":
        n = bag_of.size
        with np.errstate(divide="ignore", invalid="ignore"):
            norm = _weight_norm(np.ascontiguousarray(weights[:n], rows.dtype), offsets, mode)[bag_of]
            level = np.sum(ct * out, axis=1, dtype=rows.dtype)[bag_of]
            dots[:n] = dots[:n] / norm - level * (1 / norm if mode == "mean" else weights[:n] / (norm * norm))
    return dots.astype(weights.dtype, copy=False)
