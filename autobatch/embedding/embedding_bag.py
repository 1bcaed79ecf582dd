"""`embedding_bag`: many bags over one table, with torch's argument names, order and results."""

from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched
from autobatch.core.lanes import current_region
from autobatch.core.op import is_boxed
from autobatch.embedding.bags import MODES, bags_p
from autobatch.embedding.ids import as_ids, check_ids, check_offsets
from autobatch.embedding.sparse import first_seen
from autobatch.embedding.table import EmbeddingTable
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError

__all__ = ["embedding_bag"]


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    *,
    empty: float | None = None,
    bad_ids: str = "raise",
) -> Any:
    """Look up bags of ids and reduce each bag to one row.

    Args:
        input: (N,) ids with `offsets`; or (B, n), each row a bag; or a `PackedBatch` of ids, each example a bag.
        weight: the table, an `EmbeddingTable` (its gradient is `SparseRows`) or an array (num_rows, dim).
        offsets: (B,) where each bag starts, from 0; with `include_last_offset` (B + 1,), the last being N.
        max_norm: each row that is read and whose `norm_type`-norm is greater is first scaled to it, in place.
        mode: "sum", "mean", "max", "min", or "sqrtn" (the sum over the root of the count).
        per_sample_weights: a factor for each id, in the shape of `input`; for sum, mean (Σwx/Σw), sqrtn (Σwx/√Σw²).
        padding_idx: this id is skipped: not counted by a mean, no gradient. Negative: counted from the table's end.
        empty: the value of an empty bag; None is 0.

    Returns:
        (B, dim), of the table's dtype.

    Raises:
        BadIdError: an id outside the table (negative ids included), or offsets that do not start at 0, fall, or pass N.
        ShapeError: shapes that do not fit together.
        DTypeError: ids or offsets that are not integers, weights that are not floats.
        UnsupportedError: `scale_grad_by_freq`, `bad_ids="skip"`, `sparse` with a plain array, weights with max or min.

    Source: `torch.nn.functional.embedding_bag`; min, sqrtn and the weighted mean are additions.

    >>> weight = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
    >>> embedding_bag([0, 2, 3], weight, [0, 1], mode="sum")
    array([[ 0.,  1.],
           [10., 12.]])
    """
    _check_options(weight, scale_grad_by_freq, mode, sparse, per_sample_weights, bad_ids)
    ids, bounds, weights = _flat(input, offsets, per_sample_weights, include_last_offset)
    num_rows = shape_of(weight)[0]
    if not is_boxed(ids):
        check_ids(ids, num_rows, bounds)
    elif padding_idx is not None or max_norm is not None or empty is not None:
        raise UnsupportedError("padding_idx=, max_norm= and empty= need the ids of all bags as one plain array")
    if padding_idx is not None:
        ids, bounds, weights = _without(ids, bounds, weights, padding_idx, num_rows)
    if max_norm is not None:
        _renormalise(weight, ids, float(max_norm), norm_type)
    out = bags_p(weight, ids, bounds, *(() if weights is None else (weights,)), mode=mode)
    if empty is None:
        return out
    return np.where(np.diff(bounds)[:, None] == 0, dtype_of(out).type(empty), out)


def _check_options(weight: Any, by_freq: bool, mode: str, sparse: bool, per_sample_weights: Any, bad_ids: str) -> None:
    if mode not in MODES:
        raise UnsupportedError(f"mode={mode!r}; expected one of {', '.join(MODES)}")
    if ndim_of(weight) != 2:
        raise ShapeError(f"a table of shape {shape_of(weight)}; expected (num_rows, dim): is it the second argument?")
    if by_freq:
        raise UnsupportedError("scale_grad_by_freq=True is not supported; divide the gradient's rows by their counts")
    if bad_ids != "raise":
        raise UnsupportedError(f"bad_ids={bad_ids!r} is not supported; drop the ids outside the table before the call")
    if sparse and _inner(weight) is None:
        raise UnsupportedError("sparse=True with a plain array; the gradient of an EmbeddingTable(weight) is sparse")
    if per_sample_weights is not None:
        if mode in ("max", "min"):
            raise UnsupportedError(f"per_sample_weights with mode={mode!r}; only sum, mean and sqrtn take them")
        if dtype_of(per_sample_weights).kind != "f":
            raise DTypeError(f"per_sample_weights have dtype {dtype_of(per_sample_weights)}; expected floats")


def _inner(weight: Any) -> EmbeddingTable | None:
    """The table below the interpreters of a weight, if there is one."""
    while is_boxed(weight):
        weight = getattr(weight, "value", None)
    return weight if isinstance(weight, EmbeddingTable) else None


def _flat(ids: Any, offsets: Any, weights: Any, closed: bool) -> tuple[Any, Any, Any]:
    """(N,) ids, bounds of the bags (B + 1,), (N,) weights or None."""
    if hasattr(ids, "offsets") and hasattr(ids, "values") and current_region() is None:  # else one example's ids
        _refuse_offsets(offsets, "a PackedBatch, which has its own")
        weights = weights.values if hasattr(weights, "offsets") else weights
        return _checked(as_ids(ids.values, "input"), np.asarray(ids.offsets), weights)
    if not is_boxed(ids):
        ids = as_ids(ids, "input")
    rank = ndim_of(ids)
    if rank == 2:
        _refuse_offsets(offsets, "ids of two dimensions, of which each row is a bag")
        bags, width = shape_of(ids)
        _check_weights(weights, (bags, width))
        weights = None if weights is None else np.reshape(weights, (bags * width,))
        return np.reshape(ids, (bags * width,)), np.arange(bags + 1) * width, weights
    if rank != 1:
        raise ShapeError(f"input has shape {shape_of(ids)}; expected (N,) with offsets, or (B, n)")
    if offsets is None:
        raise ShapeError("offsets are needed with ids of one dimension; offsets=[0] makes them one bag")
    if is_boxed(offsets) or isinstance(offsets, Batched):
        raise UnsupportedError("offsets that differ from example to example; make one PackedBatch of all bags")
    starts = as_ids(offsets, "offsets")
    total = shape_of(ids)[0]
    if is_boxed(total):
        raise UnsupportedError("ids whose number differs from example to example; make one PackedBatch of all bags")
    check_offsets(starts, total, closed=closed)
    return _checked(ids, starts if closed else np.append(starts, total), weights)


def _checked(ids: Any, bounds: np.ndarray, weights: Any) -> tuple[Any, np.ndarray, Any]:
    _check_weights(weights, shape_of(ids))
    if weights is not None and not is_boxed(weights):
        weights = np.asarray(weights)
    return ids, bounds, weights


def _refuse_offsets(offsets: Any, what: str) -> None:
    if offsets is not None:
        raise ShapeError(f"offsets with {what}; leave offsets out")


def _check_weights(weights: Any, shape: tuple[int, ...]) -> None:
    if weights is not None and shape_of(weights) != shape:
        raise ShapeError(f"per_sample_weights have shape {shape_of(weights)}; expected that of the ids, {shape}")


def _without(
    ids: np.ndarray, bounds: np.ndarray, weights: Any, padding_idx: int, num_rows: int
) -> tuple[Any, Any, Any]:
    """The bags without the padding id."""
    if not -num_rows <= padding_idx < num_rows:
        raise BadIdError(f"padding_idx={padding_idx} is outside a table of {num_rows} rows")
    keep = ids != padding_idx % num_rows
    kept = np.concatenate([[0], np.cumsum(keep)])
    places = np.flatnonzero(keep)
    return ids[places], kept[bounds], None if weights is None else weights[places]


def _renormalise(weight: Any, ids: np.ndarray, max_norm: float, norm_type: float) -> None:
    table = _inner(weight)
    rows = weight if type(weight) is np.ndarray else None if table is None else table.weights
    if rows is None:
        raise UnsupportedError("max_norm= writes into the table; differentiate an EmbeddingTable, not an array")
    unique, _ = first_seen(ids)
    read = rows[unique]
    norms = np.linalg.norm(read.astype(np.float64), ord=norm_type, axis=1)
    over = norms > max_norm
    rows[unique[over]] = read[over] * (max_norm / (norms[over, None] + 1e-7)).astype(rows.dtype)
