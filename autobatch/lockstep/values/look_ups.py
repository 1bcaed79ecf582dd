"""Look-ups by ids of any number per example, `table[ids]`: rows that are not there before they are needed."""

from typing import Any

import numpy as np

from autobatch.batches.any_batch import narrowed
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.batched import Lengths
from autobatch.errors import BadIdError
from autobatch.lockstep.values.own_objects import is_made
from autobatch.ops.rules.ragged_checks import as_ids, check_ids
from autobatch.tables.lookup import PackedRows, lookup_p
from autobatch.tables.table import EmbeddingTable

__all__ = ["is_table", "rows_later"]

_FLOATS = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))


def is_table(table: Any, index: Any) -> bool:
    """Whether `table[index]` is a look-up whose rows may be put off: nothing changes the table in the meantime.

    A plain array is one if the call did not make it (then the call does not write into it), and no id counts from its
    end.
    """
    kind = type(table)
    if kind is np.ndarray:
        if table.ndim != 2 or table.base is not None or table.dtype not in _FLOATS or is_made(table):
            return False
    elif kind is not EmbeddingTable:
        return False
    if type(index) is PackedBatch:
        ids = index.values
        return type(ids) is np.ndarray and ids.ndim == 1 and _are_ids(ids, kind)
    if type(index) is not MaskedBatch or kind is not np.ndarray or len(index.sizes) != 1:
        return False
    size, data = index.sizes[0], index.data
    return type(size) is Lengths and type(data) is np.ndarray and _are_ids(data[size.mask(data.shape[1])], kind)


def _are_ids(ids: np.ndarray, kind: type) -> bool:
    return ids.dtype.kind in "iu" and (kind is not np.ndarray or ids.min(initial=0) >= 0)


def rows_later(table: Any, index: Any) -> Any:
    """`table[index]`; a reduction over the rows of each example that comes next is one bag launch.

    Raises:
        BadIdError: an id that is not in the table.
    """
    if type(index) is not PackedBatch:
        return lookup_p(table, index)
    index = narrowed(index)
    ids = as_ids(index.values)
    try:
        check_ids(ids, table.shape[0])
    except BadIdError:
        return lookup_p(table, index)  # says which example has it
    return PackedBatch.pending(PackedRows(table, ids, lookup_p), index.offsets, index.size_of_first)
