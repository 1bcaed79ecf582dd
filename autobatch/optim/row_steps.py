"""Runs an optimiser's step on rows, split between threads; the arithmetic is in `kernels.optimizer_steps`.

Work is split by unique rows, never by positions of the gradient. So one thread sums a row's gradient, in the order of
the positions, and applies it: results are bit-identical for any number of threads.

An interrupt or a failed allocation leaves nothing or everything updated: all memory is allocated and every kernel
compiled before the first row is written; then the main thread runs no Python between kernels, so an interrupt waits.
"""

import collections
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.core.threads import run_together, thread_count
from autobatch.kernels.jit import Kernel
from autobatch.kernels.segment_reductions import segment_sum
from autobatch.kernels.simd_rows import VectorLayout
from autobatch.kernels.sparse_gradients import row_squares
from autobatch.tables.keyed.partitioned import PartitionedVariable
from autobatch.tables.keyed.variable import EmbeddingVariable
from autobatch.tables.sparse import Indexer, SparseRows

_CHUNK = 1 << 16  # elements that one task updates
_CACHED = 1 << 22  # repeated rows are summed in advance only if all sums fit into so many bytes
_WORTH = 1 << 19  # elements for each thread; with fewer, fewer threads are used


@dataclasses.dataclass(slots=True)
class RowStep:
    """One parameter's step in the form that kernels take.

    Attributes:
        arrays: weights and state, C-contiguous (rows, width); a state with one number for each row has width 1.
        ids: (u,) the rows to update; None: all rows, in order.
        pieces: (starts, positions, sources, segments, factors), arguments of `sparse_gradients.row_gradient`.
        count: the number of rows to update; width: the length of a row.
        finish: if `arrays` are copies, writes them back; else None.
    """

    arrays: list[Any]
    ids: np.ndarray | None
    pieces: tuple[Any, ...]
    count: int
    width: int
    dtype: np.dtype
    finish: Callable[[], None] | None

    def chunks(self, parts: int | None = None) -> Iterator[tuple[int, int]]:
        """The row range [first, last) of each task: at most `parts` tasks, or tasks of about `_CHUNK` elements."""
        rows = max(1, -(-self.count // parts) if parts else _CHUNK // max(self.width, 1))
        return ((lo, min(lo + rows, self.count)) for lo in range(0, self.count, rows))


def make_step(
    weights: Any,
    state: Sequence[Any],
    grad: Any,
    by_row: bool,
    indexer: Indexer | None,
    rows_of: Callable[[np.ndarray], np.ndarray] | None = None,
) -> RowStep | None:
    """Convert one parameter, its state and gradient to the form that kernels take; None if no row changes.

    Args:
        weights: an array, or a table with `read(ids)` and `write(ids, rows)`.
        by_row: the state has one number for each row, so a dense array must be split by its first dimension.
        rows_of: maps the distinct ids of the gradient to row numbers of the arrays; None: they are the same.
    """
    dtype = np.result_type(np.float32, weights.dtype, *(x.dtype for x in state))  # one dtype for all: fewer kernels
    if 0 in weights.shape:
        return None
    if not isinstance(weights, np.ndarray) and not isinstance(grad, SparseRows):
        grad = SparseRows.trusted(np.arange(len(grad)), np.asarray(grad), len(grad))
    arrays = [weights, *state]
    fast = all(isinstance(x, np.ndarray) and x.dtype == dtype and x.flags.c_contiguous for x in arrays)
    if not isinstance(grad, SparseRows):
        rows = _rows_of_dense(weights, by_row)
        forms = [x if fast else np.ascontiguousarray(x, dtype) for x in arrays]
        sources = np.ascontiguousarray(grad, dtype).reshape(rows, -1)
        finish = None if fast else lambda: _write_back(arrays, forms, ...)
        views = [x.reshape(rows, -1) for x in forms]
        return RowStep(views, None, (None, None, sources, None, None), rows, sources.shape[1], dtype, finish)
    ids = grad.checked_ids()  # checked, since the caller may have changed them
    index = (indexer or Indexer(len(ids)))(ids)
    count = len(index.unique)
    if not count:
        return None
    sources, segments, factors = grad.pieces()
    sources = sources.astype(dtype, copy=False)
    factors = None if factors is None else factors.astype(dtype, copy=False)
    pieces: tuple[Any, ...] = (index.starts, index.positions, sources, segments, factors)
    width = sources.shape[1]
    if 2 * count <= len(ids) and count * width * dtype.itemsize <= _CACHED:
        pieces = (None, None, _summed(index.inverse, count, sources, segments, factors), None, None)
    unique = index.unique if rows_of is None else rows_of(index.unique)
    if fast:
        views = [x.reshape(len(x), -1) for x in arrays]
        return RowStep(views, unique, pieces, count, width, dtype, None)
    named = [np.ascontiguousarray(x[unique] if isinstance(x, np.ndarray) else x.read(unique), dtype) for x in arrays]
    views = [x.reshape(count, -1) for x in named]
    return RowStep(views, None, pieces, count, width, dtype, lambda: _write_back(arrays, named, unique))


def _summed(inverse: np.ndarray, count: int, sources: np.ndarray, segments: object, factors: object) -> np.ndarray:
    """The gradient of each unique row, summed in the order of the positions, as `sparse_gradients.row_gradient` does.

    For few unique rows this is faster: the gradient is read sequentially, and the sums stay in the cache.
    """
    out = np.zeros((count, sources.shape[1]), sources.dtype)
    segment_sum(sources, segments, factors, inverse, out)
    return out


def _write_back(arrays: Sequence[Any], copies: Sequence[Any], rows: Any) -> None:
    for x, new in zip(arrays, copies, strict=True):
        if not isinstance(x, np.ndarray):
            x.write(rows, new)
        elif new is not x:
            x[rows] = new


def _rows_of_dense(weights: np.ndarray, by_row: bool) -> int:
    """The number of rows to treat a dense parameter as: its own if `by_row`, else such that rows are long enough."""
    if by_row:
        return weights.shape[0] if weights.ndim > 1 else weights.size
    width = math.gcd(weights.size, 4096)
    return weights.size // width if width >= 64 else 1


def squares(step: RowStep) -> float:
    """The sum of squares of a gradient, in float64; the rows of repeated ids are added first."""
    out = np.empty(step.count)
    starts, positions, sources, segments, factors = step.pieces
    acc = np.empty(step.width, step.dtype)
    row_squares(0, step.count, acc, starts, positions, sources, segments, factors, out)
    return float(out.sum())


@dataclasses.dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of running steps, none of which changes results.

    Attributes:
        threads: the number of threads; None: up to the number of cores, depending on the work.
        parts: the number of tasks for each parameter; None: depends on its size.
        scratch: one-dimensional arrays for a row's partial sums, one for each thread; None: allocate them.
        nontemporal: store weights with non-temporal stores, if the rows are aligned for it.
    """

    threads: int | None = None
    parts: int | None = None
    scratch: Sequence[np.ndarray] | None = None
    nontemporal: bool = False


def run_steps(
    steps: Sequence[RowStep],
    kernel: Callable[..., None],
    numbers: Callable[[Any], Sequence[Any]],
    scale: float,
    limit: float,
    how: RunOptions,
    ends: Sequence[Callable[[], Any]],
) -> None:
    """Run `kernel` on every row of every step, then write copies back; either all of it or nothing happens.

    Args:
        numbers: makes the kernel's hyperparameters with a dtype's constructor.
        scale: a factor for the gradients; limit: clip their elements to [-limit, limit], -1: do not clip.
        ends: called after the last row; these, and the steps' `finish`, may be called twice.
    """
    tasks = [(step, lo, hi) for step in steps for lo, hi in step.chunks(how.parts)]
    count = how.threads or min(thread_count(), sum(step.count * step.width for step in steps) // _WORTH)
    count = max(1, min(count, len(tasks)))
    spaces = [_scratch_by_dtype(steps, own) for own in itertools.islice([*(how.scratch or ()), *[None] * count], count)]
    prepared = {}
    for step in steps:
        real, extra = step.dtype.type, tuple(numbers(step.dtype.type))
        call = kernel.dispatcher if isinstance(kernel, Kernel) else kernel  # callable without Python code
        lanes = _nontemporal_lanes(step) if how.nontemporal else None
        gradient = (*step.pieces, real(scale), real(limit), lanes)
        prepared[id(step)] = call, gradient, extra
        if len(steps) > 1:  # on no rows: compile now, so that an error comes before any row is written
            call(*step.arrays, step.ids, 0, 0, spaces[0][step.dtype][: step.width], gradient, *extra)

    def arguments(own: dict[np.dtype, np.ndarray], task: int) -> tuple[Any, ...]:
        step, lo, hi = tasks[task]
        call, gradient, extra = prepared[id(step)]
        return call, *step.arrays, step.ids, lo, hi, own[step.dtype][: step.width], gradient, *extra

    waiting = iter(range(len(tasks)))
    ready = [arguments(spaces[0], task) for task in range(len(tasks))].__getitem__
    works = [functools.partial(_run_tasks, waiting, ready)]
    works += [functools.partial(_run_tasks, waiting, functools.partial(arguments, own)) for own in spaces[1:]]
    ends = [*(step.finish for step in steps if step.finish is not None), *ends]
    ending = False
    try:
        if count == 1:
            _run_tasks(waiting, ready)
        else:
            run_together(works)
        ending = True
        call_each(ends)
    except BaseException:
        if ending or operator.length_hint(waiting) == 0 < len(tasks):
            call_each(ends)
        raise


def _scratch_by_dtype(steps: Sequence[RowStep], given: np.ndarray | None) -> dict[np.dtype, np.ndarray]:
    """One thread's scratch array for each dtype, as long as the longest row: the given array if it fits, else new."""
    widths: dict[np.dtype, int] = {}
    for step in steps:
        widths[step.dtype] = max(step.width, widths.get(step.dtype, 0))
    fits = {dtype for dtype, width in widths.items() if given is not None and given.size >= width}
    reused = {given.dtype: given} if given is not None and given.dtype in fits else {}
    return {dtype: reused[dtype] if dtype in reused else np.empty(width, dtype) for dtype, width in widths.items()}


def _run_tasks(waiting: Iterator[int], arguments: Callable[[int], tuple[Any, ...]]) -> None:
    """Call kernels until no task waits, inside one C call, so that an interrupt comes before the first or after all."""
    collections.deque(itertools.starmap(operator.call, map(arguments, waiting)), maxlen=0)


@np.errstate(all="ignore")  # as in kernels: overflow of float16 gives infinity, without an error
def call_each(calls: Sequence[Callable[[], Any]]) -> None:
    """Call the functions in order."""
    for call in calls:
        call()


def _nontemporal_lanes(step: RowStep) -> VectorLayout | None:
    """A layout of 16-byte lanes if every row of the weights starts and ends at a multiple of 16 bytes; else None."""
    weights, size = step.arrays[0], 16
    address, stride = weights.__array_interface__["data"][0], weights.strides[0]
    if (address | stride | step.width * weights.itemsize) % size:
        return None
    return VectorLayout(weights.dtype.str[1:], size // weights.itemsize)


def keyed_steps(
    table: EmbeddingVariable | PartitionedVariable,
    state: Sequence[Any],
    grad: SparseRows,
    by_row: bool,
    indexer: Indexer | None,
) -> tuple[list[RowStep], list[Callable[[], None]]]:
    """The kernel steps for the parts of a table of keys, and the `finish` functions of parts without rows to update.

    The caller holds the table's locks until the step is done or has failed.
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
            both = [call for call in (step.finish, update.finish) if call is not None]
            step.finish = functools.partial(call_each, both)
            steps.append(step)
    return steps, ends
