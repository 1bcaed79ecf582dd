"""An update that is left early, at whatever line or by whatever signal, leaves all as before or all as after it."""

import copy
import gc
import signal
import threading

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.threads import run_together
from autobatch.optim import FTRL, SGD, Adam, RMSProp, RowWiseAdagrad
from tests.faults import Left, left_at, without_memory_at

RANDOM = np.random.default_rng(3)
OPTIMIZERS = [SGD(0.1, momentum=0.9), Adam(0.1, clip_norm=1.0), RowWiseAdagrad(0.1), RMSProp(0.1), FTRL(0.1)]


def make():
    """Parameters of every form that an update writes: in place, in another dtype, with gaps, by row, in chunks."""
    rng = np.random.default_rng(0)
    params = {
        "dense": rng.standard_normal((6, 5)),
        "half": rng.standard_normal(7).astype(np.float16),
        "gaps": rng.standard_normal((4, 6)).astype(np.float32)[:, ::2],
        "table": ab.EmbeddingTable(rng.standard_normal((9, 4)).astype(np.float32)),
        "chunks": ab.SplitTable.from_array(rng.standard_normal((5, 3)), 2),
    }
    grads = {
        "dense": np.ones((6, 5)),
        "half": np.ones(7, np.float16),
        "gaps": np.ones((4, 3), np.float32),
        "table": ab.SparseRows([3, 1, 3], np.ones((3, 4), np.float32), 9),
        "chunks": ab.SparseRows([4, 0], np.ones((2, 3)), 5),
    }
    return params, grads


def seen(params, state):
    """Everything that a caller still holds, as bytes."""
    arrays = [np.asarray(x).tobytes() for x in params.values()]
    slots = [x.tobytes() for name, tree in state.items() if name != "step" for x in tree.values()]
    return state["step"], arrays, slots


LEFT = [
    pytest.param(each, threads, marks=[] if isinstance(each, Adam) else [pytest.mark.slow])
    for each in OPTIMIZERS
    for threads in (1, 2)
]


@pytest.mark.parametrize(
    ("optimizer", "threads"), LEFT, ids=lambda x: str(x) if isinstance(x, int) else type(x).__name__
)
def test_an_exception_at_any_line(optimizer, threads):
    params, grads = make()
    state = optimizer.init(params)
    old = seen(params, state)
    other, other_state = copy.deepcopy((params, state))
    optimizer.update(other, grads, other_state, threads=threads)
    new = seen(other, other_state)
    assert old[0] == 0
    assert new[0] == 1
    line, found, reached = 1, set(), True
    while reached:
        mine, mine_state = copy.deepcopy((params, state))
        where = "" if threads == 1 else "row_steps"
        reached = left_at(line, lambda p=mine, s=mine_state: optimizer.update(p, grads, s, threads=threads), where)
        after = seen(mine, mine_state)
        assert after in (old, new), f"between, at line event {line}"
        found.add(after[0])
        line += 1
    assert found == {0, 1}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_an_interrupt_at_any_time():
    def interrupt(number, frame):
        raise KeyboardInterrupt

    shape, optimizer = (200, 1000), Adam(0.1)
    params, grads = [np.ones(shape, np.float32) for _ in range(3)], [np.ones(shape, np.float32)] * 3
    state = optimizer.init(params)
    optimizer.update(params, grads, state, threads=1)
    before = signal.signal(signal.SIGALRM, interrupt)
    hit = 0
    gc.disable()  # an interrupt in what another library has called at a collection would be no exception of ours
    try:
        for k in range(60):
            step, was = state["step"], params[0][0, 0]
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 + k * 2e-5)
                    optimizer.update(params, grads, state, threads=1)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hit += 1
            values = {float(x) for array in params for x in (array.min(), array.max())}
            assert len(values) == 1
            assert state["step"] == step + (values != {float(was)})
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert hit


def test_a_failed_allocation():
    """Memory for anything may be missing, from the first array that is made to the last."""
    params, grads = make()
    optimizer = Adam(0.1)
    state = optimizer.init(params)
    other, other_state = copy.deepcopy((params, state))
    optimizer.update(other, grads, other_state)
    old, new = seen(params, state), seen(other, other_state)
    number, failed = 1, True
    while failed:
        mine, mine_state = copy.deepcopy((params, state))
        failed = without_memory_at(number, lambda p=mine, s=mine_state: optimizer.update(p, grads, s))
        number += 1
        assert seen(mine, mine_state) in ((old, new) if failed else (new,))
    assert number > 3


def test_calls_in_threads_have_ended_when_one_fails():
    ended, go = [], threading.Event()

    def slow():
        go.wait(10)
        ended.append(1)

    def fails():
        go.set()
        raise Left

    for calls in ([fails, slow, slow], [slow, fails, slow]):
        ended.clear()
        go.clear()
        with pytest.raises(Left, match=r"^$"):
            run_together(calls)
        assert len(ended) == 2
