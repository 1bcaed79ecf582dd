"""One call of `embedding_bag`, its bags flat: what happens to the ids before they are reduced, and to the result."""

import dataclasses
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.errors import BadIdError, DTypeError, NeedsLoop, ShapeError, UnsupportedError
from autobatch.tables.bags import bags_p
from autobatch.tables.ids import check_ids, check_offsets
from autobatch.tables.protocol import Table
from autobatch.tables.sparse import first_seen

__all__ = ["Call", "Options", "checked_offsets", "per_id", "reduced", "table_below"]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The arguments of a call that are no arrays, and which of the arrays it has."""

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

    def params(self) -> dict[str, Any]:
        """As the attributes of an op."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(slots=True)
class Call:
    """Flat bags: ids[bounds[b]:bounds[b + 1]], and a weight for each id or None.

    Attributes:
        lane_of_id: the example of each id, where the bags of several examples go together.
        shift: how far the ids of each example are moved, where each has a table of its own.
        skipped: (bags,) out, how many ids of each bag were dropped because they are outside the table.
    """

    ids: np.ndarray
    bounds: np.ndarray
    weights: Any
    lane_of_id: np.ndarray | None = None
    shift: np.ndarray | None = None
    skipped: np.ndarray | None = None


def checked_offsets(offsets: np.ndarray, total: int, closed: bool) -> np.ndarray:
    """The bounds of the bags that offsets describe, (bags + 1,).

    Raises:
        ShapeError, BadIdError: they describe no bags of `total` ids.
    """
    check_offsets(offsets, total, closed=closed)
    if closed:
        return offsets
    if total >= 1 << 31:
        offsets = offsets.astype(np.int64)
    return np.append(offsets, offsets.dtype.type(total))


def per_id(weights: Any, bounds: np.ndarray) -> Any:
    """Weights by position in the bag as weights by id."""
    lengths = np.diff(bounds)
    most, given = int(lengths.max(initial=0)), shape_of(weights)
    if len(given) != 1 or given[0] < most:
        raise ShapeError(f"positional_weights have shape {given}; expected one for each position, ({most},) or more")
    first = int(bounds[0]) if len(bounds) else 0
    total = int(bounds[-1]) - first if len(bounds) else 0
    return np.take(weights, np.arange(total) - np.repeat(bounds[:-1].astype(np.int64) - first, lengths), axis=0)


def reduced(table: Any, call: Call, options: Options, num_rows: Any) -> Any:
    """The reduced bags, (bags, dim), or (bags, modes, dim).

    Args:
        num_rows: the rows that ids may name, or those of each example.
    """
    call = _dropped(table, call, options, num_rows)
    ids = call.ids
    if call.shift is not None:
        ids = ids + call.shift[call.lane_of_id]
    operands = [table, ids, call.bounds]
    if call.weights is not None:
        operands.append(call.weights)
    params: dict[str, Any] = {"mode": options.mode}
    if options.by_freq and is_boxed(table):
        operands.append(_frequencies(ids, call.lane_of_id, shape_of(table)[0]))
        params["by_freq"] = True
    out = bags_p(*operands, **params)
    if options.empty is None:
        return out
    lengths = np.diff(call.bounds).reshape(-1, *(1,) * (len(shape_of(out)) - 1))
    return np.where(lengths == 0, np.asarray(options.empty, dtype_of(out)), out)


def _dropped(table: Any, call: Call, options: Options, num_rows: Any) -> Call:
    """Without the ids that are padding or to be skipped; the others are checked, and their rows within `max_norm`."""
    ids, keep = call.ids, None
    own = num_rows if call.lane_of_id is None or np.ndim(num_rows) == 0 else num_rows[call.lane_of_id]
    if options.bad_ids == "skip":
        keep = (ids >= 0) & (ids < own)
        keep = None if keep.all() else keep
        if call.skipped is not None:
            bad = np.zeros(len(ids) + 1, np.int64)
            if keep is not None:
                np.cumsum(~keep, out=bad[1:])
            call.skipped[...] = np.diff(bad[call.bounds])
    elif call.lane_of_id is None:
        check_ids(ids, num_rows, call.bounds)
    if options.max_norm is not None:
        if call.shift is not None:
            raise NeedsLoop("max_norm= with a table of each example")
        _renormalise(table, ids if keep is None else ids[keep], options.max_norm, options.norm_type)
    if options.padding_idx is not None:
        wrong = np.atleast_1d(num_rows)[~_within(options.padding_idx, np.atleast_1d(num_rows))]
        if wrong.size:
            raise BadIdError(f"padding_idx={options.padding_idx} is outside a table of {wrong[0]} rows")
        padding = options.padding_idx if options.padding_idx >= 0 else options.padding_idx + own
        keep = ids != padding if keep is None else keep & (ids != padding)
    if keep is None or keep.all():
        return call
    kept = np.concatenate([[0], np.cumsum(keep)])
    places = np.flatnonzero(keep)
    weights = None if call.weights is None else call.weights[places]
    lanes = None if call.lane_of_id is None else call.lane_of_id[places]
    return Call(ids[places], kept[call.bounds], weights, lanes, call.shift)


def _within(index: int, num_rows: np.ndarray) -> np.ndarray:
    return (-num_rows <= index) & (index < num_rows)


def _frequencies(ids: np.ndarray, lane_of_id: np.ndarray | None, num_rows: int) -> np.ndarray:
    """How often each id occurs among those of its example."""
    keys = ids.astype(np.int64)
    if lane_of_id is not None:
        keys = keys + lane_of_id * num_rows
    _, inverse = first_seen(keys)
    return np.bincount(inverse)[inverse] if len(inverse) else inverse


def table_below(weight: Any) -> Any:
    """The table or array below the interpreters of a weight."""
    while is_boxed(weight):
        inner = getattr(weight, "value", None)
        weight = getattr(weight, "source", None) if inner is None else inner
    return weight


def _renormalise(weight: Any, ids: np.ndarray, max_norm: float, norm_type: float) -> None:
    """Scale the rows whose norm is greater than `max_norm` to it, in place, each once."""
    table = table_below(weight) if is_boxed(weight) else weight
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
