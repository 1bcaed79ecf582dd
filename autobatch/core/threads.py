"""Running a kernel on parts of its work in several threads, for kernels that let go of the GIL.

Work is cut into contiguous parts, each of which one thread does as one thread alone would do it; so the result is the
same to the bit at any number of threads. The pool belongs to this process: it starts when it is first needed, may be
used from any Python thread, and a forked child starts its own. Work that is itself in the pool is not cut again.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from autobatch.core.config import config

_MINIMUM = 1 << 23  # bytes that one thread reads from its cache sooner than a second one is woken

_own = threading.local()
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
        with self.lock:  # a larger pool replaces a smaller one, whose threads end when they have nothing left to do
            if self.executor is None or self.size < len(calls):
                if self.executor is not None:
                    self.executor.shutdown(wait=False)
                self.size = len(calls)
                self.executor = ThreadPoolExecutor(self.size, thread_name_prefix="autobatch")
            return [self.executor.submit(_inside, call) for call in calls]


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def _inside(call: Callable[[], Any]) -> Any:
    """Run a call whose own work is not cut any further."""
    before = getattr(_own, "busy", False)
    try:
        _own.busy = True  # in here, so that an interrupt beside it is put right too
        return call()
    finally:
        _own.busy = before


def thread_count() -> int:
    """The number of threads to use: `config.threads`, by default the cores of this process; 1 in the pool."""
    if getattr(_own, "busy", False):
        return 1
    return config.threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def fits_one_thread(nbytes: int) -> bool:
    """Whether one thread is to read so many bytes, because more would not pay or are not there."""
    return nbytes < 2 * _MINIMUM or thread_count() == 1


def split_work(count: int, nbytes: int) -> list[tuple[int, int]]:
    """[first, last) of the parts of `count` things of `nbytes` together; one part where more would not pay.

    >>> split_work(10, 100)
    [(0, 10)]
    """
    parts = max(1, min(count, nbytes // _MINIMUM, 1 if fits_one_thread(nbytes) else thread_count()))
    bounds = [count * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(bounds))


def holding(locks: Sequence[Any], call: Callable[[], T]) -> T:
    """`call()` with all of the locks held, and let go of whatever happens."""
    if not locks:
        return call()
    with locks[0]:
        return holding(locks[1:], call)


def run_parts(work: Callable[[tuple[int, int]], Any], parts: Sequence[tuple[int, int]]) -> None:
    """`work(part)` for each part, the first here and the others in the pool; returns when all are done."""
    run_together([lambda part=part: work(part) for part in parts])  # type: ignore[misc]


def run_together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls that may run at once, in their order. The first exception is raised when all have ended.

    So is an interrupt: none of the calls has begun, or all have ended, when this is left, however it is.
    """
    if len(calls) < 2 or getattr(_own, "busy", False):
        return [call() for call in calls]
    gate, opened = threading.Lock(), list[bool]()
    gate.acquire()

    def when_open(call: Callable[[], Any]) -> Any:
        gate.acquire()
        _open(gate)
        return _inside(call) if opened else None

    error: BaseException | None = None
    futures: list[Future[Any]] = []
    results: list[Any] = [None]
    try:
        futures = _pool.submit([lambda call=call: when_open(call) for call in calls[1:]])  # type: ignore[misc]
        opened.append(True)
        _open(gate)
        results[0] = _inside(calls[0])
    except BaseException as caught:
        error = caught
    _open(gate)  # those that wait go on, and where it was not opened do nothing
    if isinstance(error, RuntimeError) and not opened:  # the interpreter is shutting down, and takes no new threads
        return [call() for call in calls]
    for future in futures:
        while True:
            try:
                future.exception()
                break
            except BaseException as caught:  # an interrupt; memory must not be written to after this is left
                error = error or caught
        failed = future.exception()
        error = error or failed
        results.append(None if failed else future.result())
    if error is not None:
        raise error
    return results


def _open(gate: threading.Lock) -> None:
    with contextlib.suppress(RuntimeError):  # it is open
        gate.release()
