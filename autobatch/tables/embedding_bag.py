"""`embedding_bag`: many bags over one table, with torch's argument names, order and results.

Each call is converted to flat bags (`_FlatBags`). Ids that are padding or to be skipped are dropped, and the rest is
reduced by `bag_and_segment_op.bags`. A batch of calls is one call of that op, unless an option needs the ids of each
example. The formula of each mode's gradient is in `reduction_modes`; the op's vjp is in `bag_and_segment_op`.
"""

import dataclasses
import math
import numbers
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from autobatch.core.abstract_eval import check_plain, dtype_of, ndim_of, shape_of
from autobatch.core.current_region import current_region
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import BadIdError, DTypeError, OptionError, ShapeError, UnsupportedError
from autobatch.ops.rules.dispatch import cast, refuse
from autobatch.ops.rules.ragged_checks import (
    check_offsets,
    id_bound,
    own_ids,
    segments_of,
    table_ids,
)
from autobatch.tables.bag_and_segment_op import bags, bags_of_rows, check_bag_table, empty_value, segment_p
from autobatch.tables.fast_paths import direct_bags
from autobatch.tables.protocol import Table
from autobatch.tables.reduction_modes import BAG_MODES, MODES, BagMode
from autobatch.tables.sparse import first_seen


@dataclasses.dataclass(frozen=True, slots=True)
class _Options:
    """The non-array arguments of `embedding_bag`; `offsets`, `weights`, `positional` say which arrays are given."""

    mode: str | tuple[str, ...]
    offsets: bool = False
    weights: bool = False
    positional: bool = False
    include_last_offset: bool = False
    padding_idx: int | None = None
    max_norm: float | None = None
    norm_type: float = 2.0
    by_freq: bool = False
    empty: float | tuple[float, ...] | None = None
    bad_ids: str = "raise"


@dataclasses.dataclass(slots=True)
class _FlatBags:
    """Bag b is ids[bounds[b]:bounds[b + 1]]; `weights` has a weight for each id, or is None.

    Attributes:
        skipped: (bags,) output, how many ids of each bag were dropped because they are outside the table; or None.
    """

    ids: np.ndarray
    bounds: np.ndarray
    weights: Any
    skipped: np.ndarray | None = None

    def where(self, keep: np.ndarray) -> "_FlatBags":
        """The bags with only the ids for which `keep` is True."""
        dropped = np.flatnonzero(~keep)  # few ids are dropped, so this takes little memory
        bounds = self.bounds - np.searchsorted(dropped, self.bounds)
        weights = None if self.weights is None else self.weights[np.flatnonzero(keep)]
        return _FlatBags(self.ids[keep], bounds, weights)


@overload
def embedding_bag(
    input: ArrayLike,
    weight: ArrayLike,
    offsets: ArrayLike | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: BagMode = "mean",
    sparse: bool = False,
    per_sample_weights: ArrayLike | None = None,
    include_last_offset: bool = False,
    padding_idx: SupportsIndex | None = None,
    *,
    positional_weights: ArrayLike | None = None,
    empty: ArrayLike | None = None,
    bad_ids: Literal["raise", "skip"] = "raise",
    skipped: NDArray[np.integer[Any]] | None = None,
) -> NDArray[Any]: ...
@overload
def embedding_bag(
    input: ArrayLike,
    weight: ArrayLike,
    offsets: ArrayLike | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    *,
    mode: list[BagMode] | tuple[BagMode, ...],
    sparse: bool = False,
    per_sample_weights: ArrayLike | None = None,
    include_last_offset: bool = False,
    padding_idx: SupportsIndex | None = None,
    positional_weights: ArrayLike | None = None,
    empty: ArrayLike | None = None,
    bad_ids: Literal["raise", "skip"] = "raise",
    skipped: NDArray[np.integer[Any]] | None = None,
) -> tuple[NDArray[Any], ...]: ...
@hiding_frames
def embedding_bag(
    input: ArrayLike,
    weight: ArrayLike,
    offsets: ArrayLike | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: BagMode | list[BagMode] | tuple[BagMode, ...] = "mean",
    sparse: bool = False,
    per_sample_weights: ArrayLike | None = None,
    include_last_offset: bool = False,
    padding_idx: SupportsIndex | None = None,
    *,
    positional_weights: ArrayLike | None = None,
    empty: ArrayLike | None = None,
    bad_ids: Literal["raise", "skip"] = "raise",
    skipped: NDArray[np.integer[Any]] | None = None,
) -> NDArray[Any] | tuple[NDArray[Any], ...]:
    """Look up bags of ids and reduce each bag to one row.

    Args:
        input: ids (N,) together with `offsets`; or (B, n), where each row is a bag; or a `PackedBatch` of ids, where
            each example is a bag. Inside a batched function: the ids of one example, in one of the first two forms.
        weight: the table, a `Table` (its gradient is `SparseRows`) or an array (num_rows, dim).
        offsets: (B,) the start of each bag, the first 0; with `include_last_offset` (B + 1,), the last being N.
        max_norm: first scale each named row whose `norm_type`-norm is greater than this down to it, in place.
        scale_grad_by_freq: divide the gradient of a row by the number of times its id occurs in `input`.
        mode: "sum", "mean", "max", "min", or "sqrtn" (sum divided by the root of the count); or a list of modes.
        per_sample_weights: a factor for each id, in the shape of `input`; for sum, mean (Σwx/Σw), sqrtn (Σwx/√Σw²).
        padding_idx: an id to ignore: no part of the result, the count or the gradient. Negative: from the table's end.
        positional_weights: instead, a factor for each position in a bag, at least as many as the longest bag has ids.
        empty: the value of an empty bag, a number or a row (dim,); None means 0.
        bad_ids: "raise" BadIdError for an id outside the table, or "skip" it.
        skipped: (B,) integers, written: how many ids of each bag `bad_ids="skip"` dropped.

    Returns:
        (B, dim), of the table's dtype; for a list of modes, a tuple of such arrays.

    Raises:
        BadIdError: an id is outside the table (negative ids included), or offsets do not start at 0, fall, or pass N.
        ShapeError: the shapes do not match.
        DTypeError: ids or offsets are not integers, or weights are not floats.
        OptionError: unknown mode; weights or `scale_grad_by_freq` with max or min; `sparse=True` with an array. It is
            both a `ValueError`, as in torch, and an `UnsupportedError`.

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
    if max_norm is positional_weights is empty is skipped is None and not sparse and bad_ids == "raise":
        out = direct_bags(input, weight, offsets, mode, per_sample_weights, bool(include_last_offset), padding_idx)
        if out is not None:
            return out
    modes: tuple[Any, ...] = tuple(mode) if isinstance(mode, list | tuple) else (mode,)
    weights = per_sample_weights if positional_weights is None else positional_weights
    _check_options(weight, scale_grad_by_freq, modes, sparse, weights, bad_ids)
    if positional_weights is not None and per_sample_weights is not None:
        raise UnsupportedError("per_sample_weights and positional_weights; give one of them")
    options = _Options(
        mode if isinstance(mode, str) else modes,
        offsets is not None,
        weights is not None,
        positional_weights is not None,
        include_last_offset,
        _as_int(padding_idx, "padding_idx"),
        None if max_norm is None else _as_float(max_norm, "max_norm", 0.0),
        _as_float(norm_type, "norm_type"),
        scale_grad_by_freq,
        _empty(empty, shape_of(weight)[1]),
        bad_ids,
    )
    if options.empty is not None:
        empty_value(options.empty, dtype_of(weight))  # raises, if it does, before max_norm changes rows
    input, offsets = _force(input), _force(offsets)
    if hasattr(input, "offsets") and hasattr(input, "values") and current_region() is None:
        call = _packed_call(input, weight, offsets, weights, options)
    elif any(rank_of(x) == BATCH_RANK for x in (input, weight, offsets, weights)):
        if skipped is not None:
            raise UnsupportedError("skipped= counts the bags of one call; leave it out in batched code")
        if (out := _of_batch(input, weight, offsets, weights, options)) is None:
            args: Any = (
                input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
                include_last_offset, padding_idx,
            )  # fmt: skip
            named = {"positional_weights": positional_weights, "empty": empty, "bad_ids": bad_ids}
            return refuse(embedding_bag, args, named, "these options are for each example's ids")
        return out if isinstance(mode, str) else tuple(out[:, i] for i in range(len(modes)))
    else:
        call = _flat_call(input, weight, offsets, weights, options)
    call.skipped = _checked_skipped(skipped, len(call.bounds) - 1)
    out = _reduced(weight, call, options, id_bound(weight))
    return out if isinstance(mode, str) else tuple(out[:, i] for i in range(len(modes)))


def _check_options(
    weight: object, by_freq: bool, modes: tuple[str, ...], sparse: bool, weights: object, bad_ids: str
) -> None:
    for mode in modes:
        if mode not in BAG_MODES:
            raise OptionError(f"mode={mode!r}; expected one of {', '.join(BAG_MODES)}, or several of them")
    if not modes:
        raise OptionError(f"mode=(); expected one of {', '.join(BAG_MODES)}, or several of them")
    check_plain(weight, "the table")
    if ndim_of(weight) != 2:
        raise ShapeError(f"a table of shape {shape_of(weight)}; expected (num_rows, dim): is it the second argument?")
    other = next((mode for mode in modes if not MODES[mode].uses_weights), None)
    sums = ", ".join(mode for mode in BAG_MODES if MODES[mode].uses_weights) if other else ""
    if by_freq and other:
        raise OptionError(f"scale_grad_by_freq=True with mode={other!r}; only {sums} take it")
    if bad_ids not in ("raise", "skip"):
        raise OptionError(f"bad_ids={bad_ids!r}; expected 'raise' or 'skip'")
    if sparse and not isinstance(_unboxed_table(weight), Table):
        raise OptionError("sparse=True with a plain array; the gradient of an EmbeddingTable(weight) is sparse")
    if weights is not None:
        if other:
            raise OptionError(f"per_sample_weights with mode={other!r}; only {sums} take them")
        if dtype_of(weights).kind != "f":
            raise DTypeError(f"per_sample_weights have dtype {dtype_of(weights)}; expected floats")
    check_bag_table(dtype_of(weight), modes, weights is not None)


def _as_float(value: Any, name: str, least: float = -math.inf) -> float:
    known = isinstance(value, int | float | np.integer | np.floating)
    try:
        found = float(value) if known else math.nan
    except OverflowError:  # an int that no float holds
        found = math.nan
    if not found >= least:
        raise OptionError(f"{name}={value!r:.60}; expected a number{', 0 or greater' if least == 0 else ''}")
    return found


def _as_int(value: object, what: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise DTypeError(f"{what}={value!r}; expected an integer")
    return int(value)


def _empty(value: Any, dim: int) -> Any:
    """The value of an empty bag as a number or a tuple, since op parameters are compared; None stays None."""
    if value is None or np.ndim(value) == 0:
        return None if value is None else np.asarray(value).item()
    if np.shape(value) != (dim,):
        raise ShapeError(f"empty has shape {np.shape(value)}; expected a number or a row, ({dim},)")
    return tuple(np.asarray(value).tolist())


def _force(x: object) -> Any:
    """Evaluate recorded ids or offsets to a plain array; return batches and plain values unchanged."""
    return np.asarray(x) if is_boxed(x) and rank_of(x) != BATCH_RANK else x


def _checked_skipped(skipped: object, bags: int) -> np.ndarray | None:
    if skipped is None:
        return None
    if not isinstance(skipped, np.ndarray) or skipped.shape != (bags,) or skipped.dtype.kind not in "iu":
        raise ShapeError(f"skipped has shape {shape_of(skipped)}; expected an array of ({bags},) integers")
    return skipped


def _packed_call(input: Any, table: object, offsets: object, weights: Any, options: _Options) -> _FlatBags:
    """The flat bags of a `PackedBatch` of ids: each example is a bag."""
    _refuse_offsets(offsets, "a PackedBatch, which has its own")
    ids = _ids(input.values, table, options)
    if ids.ndim != 1:
        raise ShapeError(f"the input's values have shape {ids.shape}; expected (N,) ids, one bag after the other")
    bounds = check_offsets(input.offsets, len(ids))  # may be any object with these two attributes
    if hasattr(weights, "offsets"):
        if not options.positional and not np.array_equal(weights.offsets, bounds):
            raise ShapeError("the weights have other offsets than the ids; expected a weight for each id")
        weights = weights.values
    return _weighted(ids, bounds, weights, options)


def _flat_call(input: object, table: object, offsets: object, weights: Any, options: _Options) -> _FlatBags:
    """The flat bags of ids (N,) with offsets, or of ids (B, n)."""
    ids = _ids(input, table, options)
    if ids.ndim == 2:
        _refuse_offsets(offsets, "ids of two dimensions, each row a bag")
        bags, width = ids.shape
        if weights is not None and not options.positional:
            _check_weights(weights, ids.shape)
            weights = np.reshape(weights, (bags * width,))
        return _weighted(ids.reshape(-1), np.arange(bags + 1) * width, weights, options)
    if ids.ndim != 1:
        raise ShapeError(f"input has shape {ids.shape}; expected (N,) with offsets, or (B, n)")
    if offsets is None:
        raise ShapeError("offsets are needed with ids of one dimension; offsets=[0] makes them one bag")
    bounds, _, _ = segments_of(len(ids), "offsets" if options.include_last_offset else "starts", offsets)
    return _weighted(ids, bounds, weights, options)


def _ids(input: Any, table: object, options: _Options) -> np.ndarray:
    skips = options.bad_ids == "skip" and id_bound(table) is not None
    if skips and getattr(input, "dtype", None) == np.uint64:
        input = np.where(input > np.uint64(np.iinfo(np.int64).max), -1, input.astype(np.int64))
    return table_ids(table, input, "input")


def _weighted(ids: np.ndarray, bounds: np.ndarray, weights: object, options: _Options) -> _FlatBags:
    if weights is not None and not is_boxed(weights):
        check_plain(weights, "per_sample_weights")
        weights = np.asarray(weights)
    if options.positional:
        weights = _per_id(weights, bounds)
        ids = ids[: int(bounds[-1]) if len(bounds) else 0]
    elif weights is not None:
        _check_weights(weights, ids.shape)
    return _FlatBags(ids, bounds, weights)


def _refuse_offsets(offsets: object, what: str) -> None:
    if offsets is not None:
        raise ShapeError(f"offsets with {what}; leave offsets out")


def _check_weights(weights: object, shape: tuple[int, ...]) -> None:
    if shape_of(weights) != shape:
        raise ShapeError(f"per_sample_weights have shape {shape_of(weights)}; expected that of the ids, {shape}")


# Flat bags: padding, skipped ids, and the reduction.


def _per_id(weights: Any, bounds: np.ndarray) -> Any:
    """Turn positional weights into a weight for each id."""
    lengths = np.diff(bounds)
    most, given = int(lengths.max(initial=0)), shape_of(weights)
    if len(given) != 1 or given[0] < most:
        raise ShapeError(f"positional_weights have shape {given}; expected one for each position, ({most},) or more")
    first = int(bounds[0]) if len(bounds) else 0
    total = int(bounds[-1]) - first if len(bounds) else 0
    return np.take(weights, np.arange(total) - np.repeat(bounds[:-1].astype(np.int64) - first, lengths), axis=0)


def _reduced(table: object, call: _FlatBags, options: _Options, num_rows: object) -> Any:
    """Check the ids and reduce the bags to (bags, dim), or (bags, modes, dim) for several modes.

    Args:
        num_rows: the number of rows of the table; None for a table of keys.
    """
    keep = _keep_mask(table, call, options, num_rows)
    call = call if keep is None else call.where(keep)
    counts = None
    if options.by_freq and is_boxed(table):  # for each id, how often it occurs
        _, inverse = first_seen(call.ids)
        counts = np.bincount(inverse)[inverse] if len(inverse) else inverse
    out = bags(table, call.ids, call.bounds, call.weights, mode=options.mode, frequencies=counts)
    if dtype_of(out) != dtype_of(table):
        out = out.astype(dtype_of(table))
    if options.empty is None:
        return out
    lengths = np.diff(call.bounds).reshape(-1, *(1,) * (len(shape_of(out)) - 1))
    return np.where(lengths == 0, empty_value(options.empty, dtype_of(out)), out)


def _keep_mask(table: object, call: _FlatBags, options: _Options, num_rows: Any) -> np.ndarray | None:
    """A mask of the ids that are neither padding nor skipped, or None if all are kept; also checks ids, applies
    `max_norm` and fills `call.skipped`.

    In a table of keys (`num_rows` None) every id is valid, and a negative `padding_idx` is itself a key."""
    keep: np.ndarray | None = None
    padding = options.padding_idx
    if padding is not None and num_rows is not None:
        if not -num_rows <= padding < num_rows:
            raise BadIdError(f"padding_idx={padding} is outside a table of {num_rows} rows")
        padding %= num_rows
    skips = options.bad_ids == "skip"
    call.ids = ids = np.array(call.ids) if skips else own_ids(call.ids, num_rows, call.bounds)
    if skips:
        keep = np.ones(len(ids), np.bool_) if num_rows is None else (ids >= 0) & (ids < num_rows)
        keep = None if keep.all() else keep
    if options.max_norm is not None:
        _renormalise(table, ids if keep is None else ids[keep], options.max_norm, options.norm_type)
    if call.skipped is not None:
        bad = np.zeros(len(ids) + 1, np.int64)
        if keep is not None:
            np.cumsum(~keep, out=bad[1:])
        call.skipped[...] = np.diff(bad[call.bounds])
    if padding is not None:
        keep = ids != padding if keep is None else keep & (ids != padding)
    return None if keep is None or keep.all() else keep


def _unboxed_table(weight: object) -> Any:
    """The table or array inside a boxed weight (recorded or on a tape)."""
    while is_boxed(weight):
        inner = getattr(weight, "_ab_value", None)
        weight = getattr(weight, "source", None) if inner is None else inner
    return weight


def _renormalise(weight: Any, ids: np.ndarray, max_norm: float, norm_type: float) -> None:
    """Scale each named row whose norm exceeds `max_norm` down to it, in place, once for each distinct id."""
    table = _unboxed_table(weight) if is_boxed(weight) else weight
    if not isinstance(table, Table) and table is not weight:
        raise UnsupportedError("max_norm= writes into the table; differentiate an EmbeddingTable, not an array")
    if dtype_of(table).kind != "f":
        raise DTypeError(f"max_norm= with a table of {dtype_of(table)}; expected floats")
    unique, _ = first_seen(ids)
    rows = table.read(unique) if isinstance(table, Table) else table[unique]
    norms = np.linalg.norm(rows.astype(np.float64), ord=norm_type, axis=1)
    over = norms > max_norm
    if not over.any():
        return
    scaled = rows[over] * (max_norm / (norms[over, None] + 1e-7)).astype(rows.dtype)
    if isinstance(table, Table):
        table.write(unique[over], scaled)
    else:
        table[unique[over]] = scaled


def _of_batch(input: Any, table: object, offsets: object, weights: object, options: _Options) -> Any:
    """The bags of a batch of calls, in one launch; None if an option, or the arguments' form, is for each example."""
    own = options.padding_idx is options.max_norm is None and options.bad_ids == "raise" and not options.by_freq
    if not own or options.positional or isinstance(options.empty, tuple):
        return None
    params: dict[str, Any] = {} if options.empty is None else {"empty": options.empty}
    if ndim_of(input) == 2 and offsets is weights is options.empty is None:
        out = bags_of_rows(table, input, options.mode)
    elif ndim_of(input) == 1 and offsets is not None:
        form, more = "offsets" if options.include_last_offset else "starts", () if weights is None else (weights,)
        params |= {"mode": options.mode, "form": form, "fused": True} | ({"weighted": True} if more else {})
        out = segment_p(table, offsets, input, *more, **params)
    else:
        return None
    return cast(out, dtype_of(table))
