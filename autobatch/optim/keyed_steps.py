"""The step of a table of keys: its gradient's keys become rows, those that are new come to life, and the kernels run.

Rows for new keys are written first where nobody looks yet; that they are there is said when all is done, in one call.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.optim.row_threads import RowStep, make_step
from autobatch.tables.keyed.variable import EmbeddingVariable
from autobatch.tables.sparse import Indexer, SparseRows

__all__ = ["keyed_step"]


def keyed_step(
    table: EmbeddingVariable, state: Sequence[Any], grad: SparseRows, by_row: bool, indexer: Indexer | None
) -> tuple[RowStep | None, Callable[[], None]]:
    """What a kernel has to do for a table of keys, and what makes it seen; None where no key is updated.

    The table's lock is held until that was called, or the step given up.
    """
    update = table.start_update(grad)
    arrays = [table.slot_array(slot, by_row) for slot in state]
    step = make_step(table.row_array, arrays, update.grad, by_row, indexer, update.rows_of)
    if step is None:
        return None, update.finish
    step.finish = functools.partial(_finish, step.finish, update.finish)
    return step, update.finish


def _finish(write_back: Callable[[], None] | None, seen: Callable[[], None]) -> None:
    if write_back is not None:
        write_back()
    seen()
