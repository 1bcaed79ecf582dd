"""A thread pool that runs kernels, which release the GIL, on contiguous parts of their work.

Each part is computed exactly as a single thread would compute it, so results are bit-identical at any number of
threads. The pool is per process: it starts at the first use, may be used from any Python thread, and a forked child
starts its own. Work that already runs in the pool is not split further.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from autobatch.core.config import config
from autobatch.core.current_region import count_waiting, thread_clock

_MINIMUM = 1 << 23  # bytes per thread; for less, waking another thread takes longer than the work

_thread_state = threading.local()
T = TypeVar("T")


class _Pool:
    """The threads of this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.lock = threading.Lock()
        self.executor: ThreadPoolExecutor | None = None
        self.size = 0

    def submit(self, calls: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
        with self.lock:  # a larger pool replaces a smaller one, whose threads end when their work is done
            if self.executor is None or self.size < len(calls):
                if self.executor is not None:
                    self.executor.shutdown(wait=False)
                self.size = len(calls)
                self.executor = ThreadPoolExecutor(self.size, thread_name_prefix="autobatch")
            return [self.executor.submit(_run_unsplit, call) for call in calls]


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def _run_unsplit(call: Callable[[], Any]) -> Any:
    """Run a call, marked so that its own work is not split further."""
    before = getattr(_thread_state, "busy", False)
    try:
        _thread_state.busy = True  # inside the `try`, so that an interrupt here restores it too
        return call()
    finally:
        _thread_state.busy = before


def thread_count() -> int:
    """The number of threads to use: `config.threads`, by default the cores of this process; 1 in the pool."""
    if getattr(_thread_state, "busy", False):
        return 1
    return config.threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@functools.cache
def _blas_threads() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """What gets and sets the number of threads of NumPy's BLAS; None unless it is an OpenBLAS with threads of its own:
    OpenMP's may not be changed while another thread multiplies."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
        for name in map("".join, itertools.product(("scipy_", ""), ("openblas_{}",), ("64_", ""))):
            if getattr(library, name.format("get_parallel"), int)() == 1:
                return tuple(getattr(library, name.format(f"{do}_num_threads")) for do in ("get", "set"))
    return None


compiling = threading.Event()
"""Set while another process compiles for this one."""
_threads_before: list[int] = []  # of matrix products, meanwhile


def leave_core_free(leave: bool) -> None:
    """Have NumPy's matrix products leave one core to the process that compiles for this one, or take it back.

    The threads of a product wait for each other all the time: where one of them has no core, a product of 20 us took
    20 ms, most of which even counts as time of the calling thread.
    """
    (compiling.set if leave else compiling.clear)()
    if leave == bool(_threads_before) or (blas := _blas_threads()) is None:
        return
    threads, set_threads = blas
    if leave:
        _threads_before.append(threads())
    set_threads(min(threads(), max(1, thread_count() - 1)) if leave else _threads_before.pop())


def fits_one_thread(nbytes: int) -> bool:
    """True if one thread should do work of so many bytes, since more threads would not pay or are not available."""
    return nbytes < 2 * _MINIMUM or thread_count() == 1


def split_work(count: int, nbytes: int) -> list[tuple[int, int]]:
    """Split `count` items of `nbytes` in total into parts [first, last); one part if more threads would not pay.

    >>> split_work(10, 100)
    [(0, 10)]
    """
    parts = max(1, min(count, nbytes // _MINIMUM, 1 if fits_one_thread(nbytes) else thread_count()))
    return list(itertools.pairwise([count * i // parts for i in range(parts + 1)]))


def with_locks(locks: Sequence[Any], call: Callable[[], T]) -> T:
    """`call()` with all of the locks held; they are released whatever happens."""
    if not locks:
        return call()
    with locks[0]:
        return with_locks(locks[1:], call)


def run_parts(work: Callable[[tuple[int, int]], Any], parts: Sequence[tuple[int, int]]) -> None:
    """`work(part)` for each part, the first here and the others in the pool; returns when all are done."""
    run_together([lambda part=part: work(part) for part in parts])  # type: ignore[misc]


def run_together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run calls concurrently; returns their results in order. The first exception is raised after all have ended.

    The same holds for an interrupt: when this function is left, either no call has begun or all have ended. The thread
    that called it is charged the seconds of the call that took longest (`clock`).
    """
    if len(calls) < 2 or getattr(_thread_state, "busy", False):
        return [call() for call in calls]
    gate, opened = threading.Lock(), list[bool]()
    gate.acquire()
    seconds: list[float] = []

    def when_open(call: Callable[[], Any]) -> Any:
        gate.acquire()
        _open_gate(gate)
        begun = thread_clock()
        out = _run_unsplit(call) if opened else None
        seconds.append(thread_clock() - begun)
        return out

    own = 0.0
    error: BaseException | None = None
    futures: list[Future[Any]] = []
    results: list[Any] = [None]
    try:
        futures = _pool.submit([lambda call=call: when_open(call) for call in calls[1:]])  # type: ignore[misc]
        opened.append(True)
        _open_gate(gate)
        begun = thread_clock()
        results[0] = _run_unsplit(calls[0])
        own = thread_clock() - begun
    except BaseException as caught:
        error = caught
    _open_gate(gate)  # waiting threads continue; they do nothing if `opened` was not set
    if isinstance(error, RuntimeError) and not opened:  # the interpreter is shutting down, and takes no new threads
        return [call() for call in calls]
    for future in futures:
        while True:
            try:
                future.exception()
                break
            except BaseException as caught:  # an interrupt: keep waiting, no thread may write after this returns
                error = error or caught
        failed = future.exception()
        error = error or failed
        results.append(None if failed else future.result())
    count_waiting(max(0.0, max(seconds, default=0.0) - own))
    if error is not None:
        raise error
    return results


def _open_gate(gate: threading.Lock) -> None:
    with contextlib.suppress(RuntimeError):  # it is open already
        gate.release()
