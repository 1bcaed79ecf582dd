"""Writes into arguments: results, and what has become of the caller's data, are those of the loop over the examples."""

import copy
import textwrap

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import noted_fallbacks
from tests.law import assert_same, batch_of, loop, outcome, padded

WRITES = [
    "y[-1] = 3; return y.sum()",
    "y += 1; return y",
    "y.fill(2); return y",
    "y.sort(); return y[0]",
    "np.add(y, 1, out=y); return y * 2",
    "y[y > 0] = 0; return y.sum()",
    "np.copyto(y, 7.0); return y",
    "y[::-1][0] = 5; return y",
    "y.reshape(-1)[0] = 5; return y",
    "z = y[1:]; z *= 2; return z",
    "z = y[::-1]; y *= 2; return z",
    "z = np.flip(y); z *= 2; return y",
    "z = y[None]; y *= 2; return z",
    "z = y.view(); z += 1; return y",
    "z = y.ravel(); z += 1; return y",
    "z = np.asarray(y); z += 1; return y",
    "a = y; y = y * 2; a += 1; return y, a",
    "a, b = np.split(y, [1]); a += 1; return y",
    "y = np.array([y, y]); y += 1; return y",
    "y = y.copy(); y[0] = 9.0; return y",
    "np.put(y, 0, 4.0); return y",
    "y.flat[0] = 7.0; return y",
    "y.flat = 3.0; return y",
    """
    if y.sum() > 0:
        y[0] = 100.0
    return y
    """,
    """
    for i in range(len(y)):
        if np.sum(y[i]) > 0:
            y[i] = -1
    return y.sum()
    """,
]
READ_BEFORE = [
    "a = list(y)", "a = [v for v in y]", "a = [v * 1 for v in y]", "a, *b = y; a = a, b", "a = y[0]", "a = tuple(y)",
    "a = dict(enumerate(y))", "a = {i: v for i, v in enumerate(y)}", "a = list(zip(y, y))", "a = max(y.ravel())",
    "a = y.max()", "a = list(map(np.tanh, y))", "a = np.array([v for v in y])", "a = list(reversed(y))",
    "a = y.ravel()[0].item()", "a = {'a': y[0]}", "a = list(y[1:])", "a = [*y]", "a = []; a.extend(y)", "a = y[1:]",
    "a = y.reshape(-1)", "a = y * 1", "a = y.T", "a = np.tanh(y)", "a = y if len(y) > 2 else y[:1]",
    """
    a = []
    for v in y:
        a.append(v)
    """,
]  # fmt: skip
WRITTEN_WHILE_READ = [
    """
    for v in y:
        y[-1] = 3
        out = out + v
    """,
    """
    for v in y:
        y *= 2
        out = out + v
    """,
    """
    for v in y:
        put(y)
        out = out + v
    """,
    """
    z = y[::-1]
    for v in z:
        y *= 2
        out = out + v
    """,
    """
    z = y[1:]
    for v in y:
        z *= 2
        out = out + v
    """,
    """
    for i, v in enumerate(y):
        y[-1] = y[-1] + 1
        out = out + v * i
    """,
    """
    for v in reversed(y):
        y[0] = 9.0
        out = out + v
    """,
    """
    for v, w in zip(y, y[1:]):
        y[-1] = 9
        out = out + v * w
    """,
    """
    for v in y:
        if v.sum() > 0:
            y[-1] = 8.0
        out = out + v
    """,
    """
    y = y * 1
    for v in y:
        y[-1] = 8.0
        out = out + v
    """,
    "out = [put(y) + v for v in y]",
    "out = [y.__setitem__(-1, 4.0) or v for v in y]",
    "out = [v for v in y if not y.__setitem__(-1, 3.0)]",
    "out = sum(put(y) + v for v in y)",
    "out = {i: v + put(y) for i, v in enumerate(y)}",
    "out = sum([v + w + put(y) for v in y for w in y])",
]

PARTED = [np.array([1.0, -2.0, 3.0]), np.array([-1.0, 2.0]), np.array([0.5, 1.0, 2.0, 3.0])]
EVEN = [np.array([1.0, -2.0, 3.0]), np.array([-1.0, 2.0, 1.0])]
MATRICES = [np.arange(6.0).reshape(2, 3), np.arange(9.0).reshape(3, 3)]
COLUMNS = {"parted": PARTED, "even": EVEN, "matrices": MATRICES}


def put(y):
    y[-1] = 4.0
    return 0.0


def function(body, before="", after=""):
    """A function of one array from its source, which `inspect` finds too."""
    import linecache  # noqa: PLC0415

    lines = textwrap.dedent(body).strip().replace("; ", "\n").splitlines()
    text = "def f(y):\n" + "".join(f"    {line}\n" for line in [*before.splitlines(), *lines, *after.splitlines()])
    name = f"<argument writes {hash(text)}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space = {"np": np, "put": put, "__name__": __name__}
    exec(compile(text, name, "exec"), space)
    return space["f"]


def holds(f, column, way):
    mine, theirs = copy.deepcopy(column), copy.deepcopy(column)
    want = outcome(loop, f, theirs)
    batch = {"masked": batch_of, "packed": ab.PackedBatch.from_examples, "on the fly": list}[way](mine)
    with noted_fallbacks():
        found = outcome(ab.map, f, batch) if way == "on the fly" else outcome(ab.batch(f), batch)
    if isinstance(want, Exception):
        assert type(found) is type(want), found
        return
    if isinstance(found, Exception):
        raise found
    assert_same(ab.examples(found) if way != "on the fly" else found, want)
    assert_same([*(batch.examples() if way != "on the fly" else batch)], theirs)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("way", ["masked", "packed", "on the fly"])
@pytest.mark.parametrize("body", WRITES)
def test_what_is_written(body, way, column):
    holds(function(body), COLUMNS[column], way)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("way", ["masked", "packed", "on the fly"])
@pytest.mark.parametrize("body", READ_BEFORE)
def test_what_was_read_before(body, way, column):
    holds(function(body, after="y[0] = 5.0\ny[-1] = 6.0\nreturn a"), COLUMNS[column], way)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("way", ["masked", "packed", "on the fly"])
@pytest.mark.parametrize("body", WRITTEN_WHILE_READ)
def test_what_is_written_while_a_loop_reads_it(body, way, column):
    holds(function(body, before="out = 0.0", after="return out"), COLUMNS[column], way)


def test_a_write_stays_in_lock_step_and_keeps_the_padding():
    def f(y):
        y += 1
        return y * 2

    batch = ab.MaskedBatch(padded(PARTED).data, lengths=[3, 2, 4])
    batch.data[...] = np.nan_to_num(batch.data, nan=7.0)
    before, mask = batch.data.copy(), batch.mask
    ab.batch(f, strict=True)(batch)
    np.testing.assert_array_equal(batch.data, np.where(mask, before + 1, before))


def test_one_batch_given_twice_is_one_array():
    def f(y, z):
        y += 1
        z *= 2
        return y + z

    batch = batch_of(copy.deepcopy(PARTED))
    found = ab.examples(ab.batch(f)(batch, batch))
    theirs = copy.deepcopy(PARTED)
    assert_same(found, [f(y, y) for y in theirs])
    assert_same(batch.examples(), theirs)


def test_batches_of_one_memory():
    def f(y, z):
        y += 1
        z *= 2
        return y + z

    data, theirs = np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4)
    with noted_fallbacks():
        found = ab.batch(f)(ab.MaskedBatch(data), ab.MaskedBatch(data))
    assert_same(ab.examples(found), [f(y, y) for y in theirs])
    assert_same(data, theirs)


def test_data_that_is_read_only():
    def f(y):
        y += 1
        return y

    data = np.zeros((2, 3))
    data.flags.writeable = False
    for lengths in (None, [3, 2]):
        with noted_fallbacks(), pytest.raises(ValueError, match="read-only"):
            ab.batch(f)(ab.MaskedBatch(data, lengths=lengths))
    assert not data.any()


def test_nothing_is_written_where_an_example_fails_before_any_has_run():
    def f(y, w):
        y += 1
        return y @ w

    batch = batch_of(copy.deepcopy(PARTED))
    theirs = copy.deepcopy(PARTED)
    with noted_fallbacks(), pytest.raises(ValueError, match="matmul"):
        ab.batch(f)(batch, w=np.ones(3))
    with pytest.raises(ValueError, match="matmul"):
        loop(f, theirs, w=np.ones(3))
    assert_same(batch.examples(), theirs)


def test_one_array_left_outside_twice_is_one():
    log = []

    def f(x):
        y = np.tanh(x)
        log.append(y)
        log.append(y)
        return y

    with ab.options(warn=False):
        ab.batch(f)(batch_of(EVEN))
    assert log[0] is log[1]
    assert log[2] is log[3]
    assert log[0] is not log[2]


@pytest.mark.parametrize(
    "body",
    [
        "return np.ones(4).reshape(-2)", "return y.reshape(-2)", "return (y * 1).reshape(-3, 1)",
        "return np.reshape(y, (-5,))", "return y.reshape(-1, -1)", "return y.reshape(-2, -1)",
        "v = y.flat; v += 1; return y", "return y.flat[1]", "return [v for v in y.flat]", "return list(y.flat)",
        "return y.flat.copy()", "return type(y.flat).__name__", "return np.asarray(y.flat)", "return y.flat + 1",
        "return np.tanh(y.flat)", "return len(y.flat)", "return y.flat.shape", "return y.flat.sum()",
        "return max(y.flat)", "it = y.flat; return next(it) + next(it)", "return y.flat == y", "return np.sum(y.flat)",
        "return y.flat.index", "return y.flat[1:] * 2", "return 2 * y.flat", "return sum(y.flat)",
        "a = y.flat[:2]; a += 1; return y, a",
        "y[0].fill(3.0); return y", "a = y[0]; a += 1; return y, a", "np.add(y[0], 1, out=y[0]); return y",
        "np.copyto(y[0], 3.0); return y", "np.sum(y, out=y[0]); return y", "y[0][...] = 3.0; return y",
        "y.sum().fill(3.0); return y", "y.sum()[...] = 3.0; return y", "v = y[0, ...]; v.fill(5.0); return y",
        "y.max().sort(); return y", "a = []; a += y; return a", "a = [1.0]; a += y; return a",
    ],
)  # fmt: skip
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("way", ["masked", "packed", "on the fly"])
def test_what_numpy_really_does(body, way, column):
    holds(function(body), COLUMNS[column], way)


class Own(np.ndarray):
    def twice(self):
        return np.asarray(self) * 2


@pytest.mark.parametrize(
    "f",
    [
        lambda y: y.view(Own), lambda y: y.view(Own).twice(), lambda y: np.tanh(y).view(Own) + 1,
        lambda y: type(y.view(Own)).__name__, lambda y: y.view(type=Own), lambda y: y.view(np.float64, Own),
        lambda y: np.ma.masked_less(y, 0.5).sum(), lambda y: y.view(np.ma.MaskedArray), lambda y: Own(y.shape) * 0,
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["masked", "packed", "on the fly"])
def test_arrays_of_the_users_own_classes(f, way):
    holds(f, PARTED, way)


def reads_and_then_writes(x, w):
    h = x @ w
    x[0] = 5.0
    return h.sum()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled"])
def test_what_was_read_before_a_write_decides_the_gradient(way, count):
    xs, w = [np.arange(3.0) + i for i in range(count)], np.ones((3, 2))
    want = np.sum([[x, x] for x in xs], 0).T
    batched, plain = ab.MaskedBatch.from_examples(xs), [x.copy() for x in xs]
    with ab.options(way=way, warn=False):
        found = ab.grad(lambda w: sum(ab.examples(ab.batch(reads_and_then_writes)(batched, w))))(w)
        mapped = ab.grad(lambda w: sum(ab.map(reads_and_then_writes, plain, w=w)))(w)
    assert_same(found, want)
    assert_same(mapped, want)
    assert_same([x[0] for x in plain], [np.float64(5)] * count)
