"""`embedding_bag`: many bags over one table, with torch's argument names, order and results."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.lanes import current_region
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from autobatch.tables.bag_batch import embedding_bag_p
from autobatch.tables.bag_call import Call, Options, checked_offsets, per_id, reduced, table_below
from autobatch.tables.bag_direct import direct
from autobatch.tables.bags import MODES
from autobatch.tables.ids import integer_ids
from autobatch.tables.protocol import Table

__all__ = ["embedding_bag"]


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str | Sequence[str] = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    *,
    positional_weights: Any = None,
    empty: Any = None,
    bad_ids: str = "raise",
    skipped: np.ndarray | None = None,
) -> Any:
    """Look up bags of ids and reduce each bag to one row.

    Args:
        input: (N,) ids with `offsets`; or (B, n), each row a bag; or a `PackedBatch` of ids, each example a bag.
            In example-level code that is batched, the ids of one example in any of the first two forms.
        weight: the table, a `Table` (its gradient is `SparseRows`) or an array (num_rows, dim).
        offsets: (B,) where each bag starts, from 0; with `include_last_offset` (B + 1,), the last being N.
        max_norm: each row that is named and whose `norm_type`-norm is greater is first scaled to it, once, in place.
        scale_grad_by_freq: the gradient of a row is divided by how often its id occurs in `input`.
        mode: "sum", "mean", "max", "min", or "sqrtn" (the sum over the root of the count); or several, in one pass.
        per_sample_weights: a factor for each id, in the shape of `input`; for sum, mean (Σwx/Σw), sqrtn (Σwx/√Σw²).
        padding_idx: this id is skipped: not counted by a mean, no gradient. Negative: counted from the table's end.
        positional_weights: instead: a factor for each position in a bag, (as many as the longest bag has, or more,).
        empty: the value, or the row (dim,), of an empty bag; None is 0.
        bad_ids: "raise", or "skip": ids outside the table are dropped.
        skipped: (B,) integers, out: how many ids of each bag were dropped so.

    Returns:
        (B, dim), of the table's dtype; with several modes a tuple of them.

    Raises:
        BadIdError: an id outside the table (negative ids included), or offsets that do not start at 0, fall, or pass N.
        ShapeError: shapes that do not fit together.
        DTypeError: ids or offsets that are not integers, weights that are not floats.
        UnsupportedError: an unknown mode; weights or `scale_grad_by_freq` with max or min; `sparse` with an array.

    Source: `torch.nn.functional.embedding_bag`; min, sqrtn, weighted means and the keywords after the star are
    additions.

    >>> weight = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
    >>> embedding_bag([0, 2, 3], weight, [0, 1], mode="sum")
    array([[ 0.,  1.],
           [10., 12.]])
    >>> embedding_bag([0, 2, 3], weight, [0, 1], mode=("mean", "max"))[1]
    array([[0., 1.],
           [6., 7.]])
    """
    if padding_idx is max_norm is positional_weights is empty is skipped is None and not sparse and bad_ids == "raise":
        out = direct(input, weight, offsets, mode, per_sample_weights, bool(include_last_offset))
        if out is not None:
            return out
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    weights = per_sample_weights if positional_weights is None else positional_weights
    _check_options(weight, scale_grad_by_freq, modes, sparse, weights, bad_ids, max_norm)
    if positional_weights is not None and per_sample_weights is not None:
        raise UnsupportedError("per_sample_weights and positional_weights; give one of them")
    options = Options(
        mode if isinstance(mode, str) else modes,
        offsets is not None,
        weights is not None,
        positional_weights is not None,
        include_last_offset,
        _as_int(padding_idx, "padding_idx"),
        None if max_norm is None else float(max_norm),
        float(norm_type),
        scale_grad_by_freq,
        _empty(empty, shape_of(weight)[1]),
        bad_ids,
    )
    input, offsets = _now(input), _now(offsets)
    if hasattr(input, "offsets") and hasattr(input, "values") and current_region() is None:
        call = _packed_call(input, offsets, weights, options)
    elif any(rank_of(x) == BATCH_RANK for x in (input, weight, offsets, weights)):
        if skipped is not None:
            raise UnsupportedError("skipped= counts the bags of one call; leave it out in batched code")
        out = embedding_bag_p(weight, input, *(x for x in (offsets, weights) if x is not None), **options.params())
        return out if isinstance(mode, str) else tuple(out[:, i] for i in range(len(modes)))
    else:
        call = _flat_call(input, offsets, weights, options)
    call.skipped = _checked_skipped(skipped, len(call.bounds) - 1)
    out = reduced(weight, call, options, shape_of(weight)[0])
    return out if isinstance(mode, str) else tuple(out[:, i] for i in range(len(modes)))


def _check_options(
    weight: Any, by_freq: bool, modes: tuple[str, ...], sparse: bool, weights: Any, bad_ids: str, max_norm: Any
) -> None:
    for mode in modes:
        if mode not in MODES:
            raise UnsupportedError(f"mode={mode!r}; expected one of {', '.join(MODES)}, or several of them")
    if not modes:
        raise UnsupportedError(f"mode=(); expected one of {', '.join(MODES)}, or several of them")
    if ndim_of(weight) != 2:
        raise ShapeError(f"a table of shape {shape_of(weight)}; expected (num_rows, dim): is it the second argument?")
    extreme = next((mode for mode in modes if mode in ("max", "min")), None)
    if by_freq and extreme:
        raise UnsupportedError(f"scale_grad_by_freq=True with mode={extreme!r}; only sum, mean and sqrtn take it")
    if bad_ids not in ("raise", "skip"):
        raise UnsupportedError(f"bad_ids={bad_ids!r}; expected 'raise' or 'skip'")
    if sparse and not isinstance(table_below(weight), Table):
        raise UnsupportedError("sparse=True with a plain array; the gradient of an EmbeddingTable(weight) is sparse")
    if weights is not None:
        if extreme:
            raise UnsupportedError(f"per_sample_weights with mode={extreme!r}; only sum, mean and sqrtn take them")
        if dtype_of(weights).kind != "f":
            raise DTypeError(f"per_sample_weights have dtype {dtype_of(weights)}; expected floats")
    if max_norm is not None and not (isinstance(max_norm, int | float | np.number) and max_norm >= 0):
        raise UnsupportedError(f"max_norm={max_norm!r}; expected a number, 0 or greater")


def _as_int(value: Any, what: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise DTypeError(f"{what}={value!r}; expected an integer")
    return int(value)


def _empty(value: Any, dim: int) -> Any:
    """The value of an empty bag as something that can be compared: a number or a tuple."""
    if value is None or np.ndim(value) == 0:
        return None if value is None else np.asarray(value).item()
    if np.shape(value) != (dim,):
        raise ShapeError(f"empty has shape {np.shape(value)}; expected a number or a row, ({dim},)")
    return tuple(np.asarray(value).tolist())


def _now(x: Any) -> Any:
    """Ids and offsets that are recorded, as plain arrays; batches as they are."""
    return np.asarray(x) if is_boxed(x) and rank_of(x) != BATCH_RANK else x


def _checked_skipped(skipped: Any, bags: int) -> np.ndarray | None:
    if skipped is None:
        return None
    if not isinstance(skipped, np.ndarray) or skipped.shape != (bags,) or skipped.dtype.kind not in "iu":
        raise ShapeError(f"skipped has shape {shape_of(skipped)}; expected an array of ({bags},) integers")
    return skipped


def _packed_call(input: Any, offsets: Any, weights: Any, options: Options) -> Call:
    """Each example of a packed batch is a bag."""
    _refuse_offsets(offsets, "a PackedBatch, which has its own")
    bounds = np.asarray(input.offsets)
    weights = weights.values if hasattr(weights, "offsets") else weights
    return _weighted(_ids(input.values, options), bounds, weights, options)


def _flat_call(input: Any, offsets: Any, weights: Any, options: Options) -> Call:
    """Ids with offsets, or rows of ids."""
    ids = _ids(input, options)
    if ids.ndim == 2:
        _refuse_offsets(offsets, "ids of two dimensions, of which each row is a bag")
        bags, width = ids.shape
        if weights is not None and not options.positional:
            _check_weights(weights, ids.shape)
            weights = np.reshape(weights, (bags * width,))
        return _weighted(ids.reshape(-1), np.arange(bags + 1) * width, weights, options)
    if ids.ndim != 1:
        raise ShapeError(f"input has shape {ids.shape}; expected (N,) with offsets, or (B, n)")
    if offsets is None:
        raise ShapeError("offsets are needed with ids of one dimension; offsets=[0] makes them one bag")
    starts = integer_ids(offsets, "offsets")
    return _weighted(ids, checked_offsets(starts, len(ids), options.include_last_offset), weights, options)


def _ids(input: Any, options: Options) -> np.ndarray:
    if options.bad_ids == "skip" and getattr(input, "dtype", None) == np.uint64:
        input = np.where(input > np.uint64(np.iinfo(np.int64).max), -1, input.astype(np.int64))
    return integer_ids(input, "input")


def _weighted(ids: np.ndarray, bounds: np.ndarray, weights: Any, options: Options) -> Call:
    if weights is not None and not is_boxed(weights):
        weights = np.asarray(weights)
    if options.positional:
        weights = per_id(weights, bounds)
        ids = ids[: int(bounds[-1]) if len(bounds) else 0]
    elif weights is not None:
        _check_weights(weights, ids.shape)
    return Call(ids, bounds, weights)


def _refuse_offsets(offsets: Any, what: str) -> None:
    if offsets is not None:
        raise ShapeError(f"offsets with {what}; leave offsets out")


def _check_weights(weights: Any, shape: tuple[int, ...]) -> None:
    if shape_of(weights) != shape:
        raise ShapeError(f"per_sample_weights have shape {shape_of(weights)}; expected that of the ids, {shape}")
