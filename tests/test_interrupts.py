"""A call that writes in place, left early at whatever line: its arrays are as before it or as after it."""

import asyncio
import copy
import itertools
import signal

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.config import current
from tests.faults import interrupted_at, left_at, without_memory_at
from tests.law import batch_of

RNG = np.random.default_rng(5)
TABLE = RNG.standard_normal((7, 4)).astype(np.float32)
TABLES = [RNG.standard_normal((7, 4)).astype(np.float32) for _ in range(3)]
IDS = np.array([3, 0, 3, 6, 1])
ROWS = RNG.standard_normal((5, 4)).astype(np.float32)


def sparse(dense):
    ab.SparseRows(IDS, ROWS, 7).add_to(dense)


def written(y, scale):
    y += 1
    y *= scale
    return y.sum()


def counted(y, log, scale):
    y += 1
    log.append((y * scale).sum())
    return y


def mapped(*arrays):
    log = []
    ab.map(written, list(arrays), scale=2.0)
    return log


def held(make):
    """A call of batches, which have the data of the arrays, and what has become of it."""

    def call(*arrays):
        batches = [make(each) for each in arrays]
        try:
            ab.batch(added, strict=True)(*batches)
        finally:
            for array, batch in zip(arrays, batches, strict=True):
                array[...] = batch.data if isinstance(batch, ab.MaskedBatch) else batch.values

    return call


def added(y, z=1.0):
    y += 1
    y *= z
    return y.sum()


CALLS = (
    {
        "lookup": (lambda out: ab.lookup(TABLE, IDS, out=out), [np.zeros((5, 4), np.float32)]),
        "lookup of several": (lambda out: ab.lookup(TABLE, IDS[None, :3], out=out), [np.zeros((1, 4), np.float32)]),
        "lookup in a split table": (
            lambda out: ab.lookup(ab.SplitTable.from_array(TABLE, 2), IDS, out=out),
            [np.zeros((5, 4), np.float32)],
        ),
        "lookup into gaps": (lambda out: ab.lookup(TABLE, IDS, out=out[:, ::2]), [np.zeros((5, 8), np.float32)]),
        "add_to": (sparse, [np.ones((7, 4), np.float32)]),
        "add_to another dtype": (sparse, [np.ones((7, 4))]),
        "scatter_add": (lambda out: ab.scatter_add(out, IDS, ROWS, out=out), [np.ones((7, 4), np.float32)]),
        "scatter_assign": (lambda out: ab.scatter_assign(out, IDS, ROWS, out=out), [np.ones((7, 4), np.float32)]),
        "scatter_weighted_sum": (
            lambda out: ab.scatter_weighted_sum(out, 0.5, IDS, ROWS, 2.0, ROWS, 3.0, out=out),
            [np.ones((7, 4), np.float32)],
        ),
        "bag that scales rows": (
            lambda table: ab.embedding_bag(IDS, table, [0, 2], max_norm=0.5, padding_idx=0),
            [np.ones((7, 4))],
        ),
        "map": (mapped, [np.ones(3), np.zeros(4), np.arange(3.0)]),
        "lock-step": (held(lambda x: ab.MaskedBatch(x, lengths=[4, 2, 3])), [np.ones((3, 4))]),
        "packed": (held(lambda x: ab.PackedBatch(x, [0, 4, 4, 12])), [np.ones(12)]),
        "two batches": (held(ab.MaskedBatch), [np.ones((3, 4)), np.full((3, 4), 2.0)]),
    }
    | {
        f"maplookup, {name}": (
            lambda *out, name=name: ab.maplookup(TABLES, [IDS] * 3, getattr(ab.strategies, name)(), out=list(out)),
            [np.zeros((5, 4), np.float32) for _ in TABLES],
        )
        for name in ("Default", "SimpleParallel")
    }
    | {
        f"maplookup side by side, {dtype}": (
            lambda out, dtype=dtype: ab.maplookup(
                [TABLE.astype(dtype), TABLE], [IDS] * 2, ab.strategies.Preallocation(), out=out
            ),
            [np.zeros((5, 8), dtype)],
        )
        for dtype in ("f4", "f8")
    }
)


def seen(arrays):
    return [x.tobytes() for x in arrays]


def gradient_of_what_is_written_later():
    """It is that of the values at the time of the product, as long as nothing of the library's is thought to run."""
    buffer = np.ones(2)

    def f(w):
        y = w * buffer
        buffer[:] = 5.0
        return y.sum()

    return ab.grad(f)(np.zeros(2)).tolist()


EVERY = [pytest.param(name, 11 if name == "map" else 3, id=name) for name in CALLS]
EVERY += [pytest.param(name, 1, id=f"{name}, each", marks=pytest.mark.slow) for name in CALLS]


@pytest.mark.parametrize(("name", "apart"), EVERY)
def test_an_exception_at_any_line(name, apart):
    """By default one line in a few: so many apart."""
    call, arrays = CALLS[name]
    after = copy.deepcopy(arrays)
    call(*after)
    call(*copy.deepcopy(arrays))  # what is found once is found
    states = seen(arrays), seen(after)
    assert states[0] != states[1]
    found = set()
    for line in itertools.count(1, apart):
        mine = copy.deepcopy(arrays)
        where = "tables" if "Parallel" in name else ""  # not where threads hold locks
        before = current()
        reached = left_at(line, lambda: call(*mine), where)  # noqa: B023
        assert current() == before, f"other options are left at line event {line}"
        assert seen(mine) in states, f"between, at line event {line}"
        found.add(states.index(seen(mine)))
        assert gradient_of_what_is_written_later() == [1.0, 1.0], f"what line event {line} left behind is seen"
        if line % 8 == 0:
            clean = copy.deepcopy(arrays)
            call(*clean)
            assert seen(clean) == states[1], f"the call after the interrupt at line event {line} is wrong"
        if not reached:
            break
    assert 1 in found


@pytest.mark.parametrize("name", CALLS)
def test_memory_that_is_missing_for_any_array(name):
    call, arrays = CALLS[name]
    after = copy.deepcopy(arrays)
    call(*after)
    call(*copy.deepcopy(arrays))
    states = seen(arrays), seen(after)
    for number in itertools.count(1):
        mine = copy.deepcopy(arrays)
        with ab.options(warn=False):  # where a batch is too large, examples may still fit, one at a time
            failed = without_memory_at(number, lambda: call(*mine))  # noqa: B023
        assert seen(mine) in states, f"between, at array {number}"
        assert gradient_of_what_is_written_later() == [1.0, 1.0], f"what array {number} left behind is seen"
        if not failed:
            break
    assert seen(mine) == states[1]


def test_containers_that_a_map_changes():
    """What a map was to change of what examples share is as before it, or as after it."""
    xs, log = [np.ones(3), np.zeros(4)], []
    for line in itertools.count(1, 3):  # each third line, by time
        mine = copy.deepcopy(xs)
        log.clear()
        reached = left_at(line, lambda: ab.map(counted, mine, log=log, scale=2.0), "lazy/example_map")  # noqa: B023
        assert log in ([], [12.0, 8.0]), f"between, at line event {line}: {log}"
        assert (log == []) == (mine[0][0] == 1.0)
        if not reached:
            break
    assert log
    assert batch_of(xs).batch_size == 2


def test_a_block_of_options_that_is_left_at_any_line():
    """The user's own `with ab.options()`, and a call in it."""
    xs = [np.ones(3), np.zeros(4)]

    def block():
        with ab.options(seed=3, warn=False), ab.options(way="loop"):
            ab.map(written, copy.deepcopy(xs), scale=2.0)
        assert ab.config.seed is None

    block()
    before = current()
    for line in itertools.count(1):
        reached = left_at(line, block, "core/config")
        assert current() == before, f"other options are left at line event {line}"
        if not reached:
            break
    assert line > 20
    for line in itertools.count(1, 7):
        reached = left_at(line, block)
        assert current() == before, f"other options are left at line event {line}"
        if not reached:
            break


class Own(BaseException):
    """A user's own exception that is not an `Exception`."""


LOG: list[float] = []
KIND: type[BaseException] = Own


def leaves(x, k):
    x[0] += 1
    LOG.append(float(k))
    if k == 2:
        raise KIND("own")
    x[1] = x.sum()
    return x.sum()


def stop_at(k):
    if k == 2:
        raise SystemExit(3)


def waits_and_leaves(x, k):
    x[0] += 1
    if x.sum() > 1:
        LOG.append(float(k))
    stop_at(k)
    x *= 2
    return x.sum()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Own])
@pytest.mark.parametrize("f", [leaves, waits_and_leaves])
def test_an_exception_of_the_functions_own(f, kind, monkeypatch):
    """It leaves exactly what the loop leaves, and is raised as in the loop."""
    monkeypatch.setitem(globals(), "KIND", kind)
    rows = np.arange(12.0).reshape(4, 3)

    def left(call):
        LOG.clear()
        data = rows.copy()
        with pytest.raises(SystemExit if f is waits_and_leaves else kind, match=r"own|3") as raised:
            call(data)
        return type(raised.value), raised.value.args, data.tolist(), LOG.copy()

    want = left(lambda data: [f(x, k) for k, x in enumerate(data)])
    with ab.options(warn=False):
        assert left(lambda data: ab.map(f, list(data), range(4))) == want
        assert left(lambda data: ab.map(ab.grad(f), list(data), range(4))) == want
    assert left(lambda data: [ab.grad(f)(x, k) for k, x in enumerate(data)]) == want
    for way in ("lockstep", "fly", "auto"):
        with ab.options(way=way, warn=False):
            assert left(lambda data: ab.batch(f)(ab.MaskedBatch(data), ab.MaskedBatch(np.arange(4)))) == want


def test_what_a_signals_handler_raises():
    """It is an interrupt, not the function's own: nothing of the map is left."""

    def stop(number, frame):
        raise SystemExit("stop")

    rows = [np.ones(3) for _ in range(4)]
    LOG.clear()
    before = signal.signal(signal.SIGINT, stop)
    try:
        for line in (7, 3, 10):
            with pytest.raises(SystemExit, match="stop"):
                interrupted_at(line, lambda: ab.map(leaves, rows, range(4)), "line", __file__)
            assert LOG == []
            assert [x.tolist() for x in rows] == [[1.0] * 3] * 4
    finally:
        signal.signal(signal.SIGINT, before)
