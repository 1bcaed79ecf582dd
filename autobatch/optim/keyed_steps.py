"""The step of a table of keys: its gradient's keys become rows, those that are new come to life, and the kernels run.

Rows for new keys are written first where nobody looks yet; that they are there is said when all is done, in one call.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.optim.row_threads import RowStep, make_step
from autobatch.tables.keyed.partitioned import PartitionedVariable
from autobatch.tables.keyed.variable import EmbeddingVariable
from autobatch.tables.sparse import Indexer, SparseRows


def keyed_steps(
    table: EmbeddingVariable | PartitionedVariable,
    state: Sequence[Any],
    grad: SparseRows,
    by_row: bool,
    indexer: Indexer | None,
) -> tuple[list[RowStep], list[Callable[[], None]]]:
    """What a kernel has to do for the parts of a table of keys; and what ends the step of those without a key.

    The table's locks are held until all of it is done, or given up.
    """
    steps, ends = [], []
    for part, own in table.split(grad):
        update = part.start_update(own)
        arrays = [part.slot_array(slot, by_row) for slot in state]
        memory = indexer if part is table else None
        step = make_step(part.row_array, arrays, update.grad, by_row, memory, update.rows_of)
        if step is None:
            ends.append(update.finish)
        else:
            step.finish = functools.partial(_finish, step.finish, update.finish)
            steps.append(step)
    return steps, ends


def _finish(write_back: Callable[[], None] | None, seen: Callable[[], None]) -> None:
    if write_back is not None:
        write_back()
    seen()
