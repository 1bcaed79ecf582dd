"""Calls that differ in sizes only are one launch, and give what each gives alone."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, map_equals_loop, normal

D = 4
W, V, TABLE = (
    normal(D, D, seed=1, dtype=np.float64),
    normal(D, seed=2, dtype=np.float64),
    normal(9, D, dtype=np.float64),
)
PARAMS = {"w": W, "v": V, "table": TABLE}
LENGTHS = [3, 1, 4, 4, 7, 2, 1, 12]


def examples(lengths=LENGTHS, dtype=np.float64):
    return [normal(n, D, seed=n + 10 * i, dtype=dtype) for i, n in enumerate(lengths)]


PROGRAMS = {}  # name: (function, launches op by op where no bound is better)


def program(launches):
    def add(f):
        PROGRAMS[f.__name__] = (f, launches)
        return f

    return add


@program(3)
def pooled(x, p):
    return np.tanh(x @ p["w"]).sum(0)


@program(3)
def mean(x, p):
    return (x * p["v"]).mean(0)


@program(7)
def attention(x, p):
    scores = x @ p["v"]
    e = np.exp(scores - scores.max())
    return (e / e.sum()) @ x


@program(3)
def attention_by_softmax(x, p):
    return ab.nn.softmax(x @ p["v"]) @ x


@program(8)
def attention_to_itself(x, p):
    weights = ab.nn.softmax((x @ p["w"]) @ x.T / np.sqrt(D), axis=-1)
    return (weights @ x).sum(0)


@program(9)
def pairs(x, p):
    t = x[:, 0]
    difference = t[:, None] - t[None, :]
    return np.exp(-(difference**2)).sum(1) / len(t)


@program(4)
def spread(x, p):
    return ((x - x.mean(0)) ** 2).sum()


@program(4)
def ends(x, p):
    return x[0] * x[-1] + x[1:].sum(0)


@program(3)
def extrema(x, p):
    return x.max(0) - x.min(0)


@program(4)
def extremum_of_all(x, p):
    return x.max() + x.min(1).max()


@program(2)
def reversed_rows(x, p):
    return (x[::-1] * x).sum(1)


@program(1)
def running(x, p):
    return np.cumsum(x, 0)


@program(1)
def ordered(x, p):
    return np.sort(x, 0)


@program(4)  # one of them for the examples of one row, whose transpose lies in C order
def second_moments(x, p):
    return np.tanh(x.T @ x)


@program(16)
def interest(x, p):
    c = p["v"]
    features = np.concatenate([x, x - c, x * c, np.broadcast_to(c, x.shape)], axis=1)
    hidden = np.maximum(features @ np.concatenate([p["w"]] * 4), 0)
    return (hidden @ c) @ x


@program(2)
def kept_lengths(x, p):
    return np.tanh(x @ p["w"])


@program(2)
def transposed(x, p):
    return (x @ p["w"]).T


@program(4)
def normalised(x, p):
    return ab.nn.layer_norm(x, p["v"], p["v"]).sum(0)


@program(1)
def rows(x, p):
    return [row * 2 for row in x]


@program(4)
def flattened(x, p):
    return x.reshape(-1).sum() + x.ravel()[0]


@program(3)
def reshaped(x, p):
    return (x.reshape(len(x) * 2, 2) * 2).sum(0)


@program(4)
def guarded(x, p):
    return np.where(x > 0, x, 0.1 * x).sum(0)


@program(3)
def best_row(x, p):
    return x[x.sum(1).argmax()]


@program(3)
def joined(x, p):
    return np.concatenate([x, x * 2]).sum(0)


@program(3)
def stacked(x, p):
    return np.stack([x, x * 2], 1).sum(1)


@program(1)
def shares(x, p):
    return x / len(x)


@program(4)
def squares(x, p):
    return (x[:, :, None] * x[:, None, :]).sum(0)


@program(3)
def looked_up(x, p):
    found = p["table"][np.arange(len(x)) % 9]
    return np.tanh(found * x)


@program(3)
def truths(x, p):
    return (x > 0).any(0), (x > 0).all()


@program(3)
def whole_numbers(x, p):
    return (x * 10).astype(np.int16).sum(0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_lengths_are_launched_together(name):
    f, launches = PROGRAMS[name]
    stats = map_equals_loop(f, examples(), precision=8, p=PARAMS)
    assert stats.looped is None
    assert not stats.fallbacks
    assert stats.launches <= launches
    _, blocks = map_with_stats(ab.batch(f), examples(), p=PARAMS)
    assert blocks.looped is None
    assert blocks.launches <= max(3, launches // 2)


def total(results):
    return sum(
        ((i + 1) * (part * np.cos(part)).sum() for i, result in enumerate(results) for part in _parts(result)), 0.0
    )


def _parts(result):
    return result if isinstance(result, list | tuple) else [result]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("truths", "whole_numbers")])
def test_gradients_through_launches_of_several_lengths(name):
    f, _ = PROGRAMS[name]
    xs = examples()
    want = ab.grad(lambda p: total([f(x, p) for x in xs]))(PARAMS)
    for blocks in (True, False):
        with ab.options(blocks=blocks):
            found = ab.grad(lambda p: total(ab.map(ab.batch(f), xs, p=p)))(PARAMS)
        for key, value in want.items():
            np.testing.assert_allclose(np.asarray(found[key]), np.asarray(value), rtol=1e-9, atol=1e-10)


def test_the_gradient_of_the_examples_themselves():
    xs = examples()
    want = ab.grad(lambda xs: total([attention(x, PARAMS) for x in xs]))(xs)
    found = ab.grad(lambda xs: total(ab.map(attention, xs, p=PARAMS)))(xs)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lengths", [[], [3], [D] * D, [0, 3], [0, 0, 1], [0], [1, 1, 2]])
def test_batches_at_their_ends(lengths):
    def f(x, p):
        y = np.tanh(x @ p["w"])
        return y.sum(0), y.sum(), y[:, 0], (y > 0).any()

    map_equals_loop(f, examples(lengths), precision=8, p=PARAMS)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.int8, np.uint8, np.bool_])
def test_dtypes(dtype):
    def f(x):
        return x.sum(0), x.max(0), x + x, x.sum(), x * 2

    xs = [(np.arange(n * D).reshape(n, D) % 120).astype(dtype) for n in LENGTHS]
    xs[0][0, 0] = 100  # sums of int8 do not wrap, products do
    map_equals_loop(lambda i, xs=xs: f(ab.stop_gradient(xs[i])), list(range(len(xs))))
    floats = [x.astype(np.float32) for x in xs]
    map_equals_loop(lambda x: f(x.astype(dtype)), floats)


def test_what_is_no_number_stays_in_its_example():
    xs = examples()
    xs[2][1, 1], xs[4][0, 0], xs[5][1, 2] = np.nan, np.inf, -np.inf

    def f(x):
        return x.max(0), x.min(), x.sum(0), ab.nn.softmax(x, axis=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        map_equals_loop(f, xs, precision=8)


def test_warnings_are_those_of_the_examples():
    xs = [np.abs(x) + 1 for x in examples()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        map_equals_loop(lambda x: np.log(x).sum(0) + (1 / x[:, :1] * x).sum(0), xs, precision=8)
    xs[3][0, 0] = -1
    with pytest.warns(RuntimeWarning, match="invalid value"):
        ab.map(lambda x: np.log(x).sum(0), xs)


def test_an_error_is_that_of_its_example():
    def f(x):
        return x.max(0)

    xs = examples([2, 3, 0, 1])
    with pytest.raises(ValueError, match="zero-size array") as caught:
        ab.map(f, xs)
    assert "example 2" in " ".join(caught.value.__notes__)


def test_an_id_that_is_not_there_is_an_error_of_its_example():
    def f(ids, table):
        return np.tanh(table[np.asarray(ids)])

    with pytest.raises(IndexError, match="99") as caught:
        ab.map(f, [[1, 2], [3], [4, 5, 99]], table=ab.EmbeddingTable(TABLE))
    assert "example 2" in " ".join(caught.value.__notes__)


def test_results_lie_as_those_of_the_loop():
    def f(x, w):
        y = x @ w
        return y, y.T, y[:, 0], y[:, :2], y.T @ y, y[1:]

    xs = examples()
    for found, want in zip(ab.map(f, xs, w=W), loop(f, xs, w=W), strict=True):
        for a, b in zip(found, want, strict=True):
            assert a.flags.c_contiguous == b.flags.c_contiguous or a.flags.c_contiguous
            assert a.flags.writeable
            assert_same(a, b)


def test_results_are_arrays_of_their_own():
    results = ab.map(lambda x, w: x @ w, examples(), w=W)
    before = [y.copy() for y in results]
    results[0][...] = 99
    for a, b in zip(results[1:], before[1:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_values_of_one_length_and_of_several_meet():
    """Rows of a launch of several lengths go into launches of one, and the other way round."""

    def f(x, p):
        y = np.tanh(x @ p["w"])  # of several lengths
        if len(x) == 4:
            y = np.exp(y)  # of one
        z = y * 2  # rows of both
        return z if z.sum() > 0 else -z  # and those of an earlier round

    map_equals_loop(f, examples(), precision=8, p=PARAMS)


MOVED = {"T": np.transpose, "moveaxis": lambda x: np.moveaxis(x, 0, 1), "swapaxes": lambda x: np.swapaxes(x, 0, 1)}
READ = {
    "joined along it": lambda z: np.concatenate([z, z], 1),
    "joined along the other": lambda z: np.concatenate([z, z]),
    "stacked": lambda z: np.stack([z, z]),
    "sum": lambda z: z.sum(1),
    "mean": lambda z: z.mean(1),
    "max": lambda z: (z - 9.0).max(1),
    "prod": lambda z: z.prod(1),
    "product of matrices": lambda z: z @ np.ones((1, 2)),
    "reshaped": lambda z: z.reshape(-1),
    "sorted": lambda z: np.sort(z, 1),
    "cumulated": lambda z: np.cumsum(z, 1)[:, -1],
    "softmax": lambda z: ab.nn.softmax(z, 1),
    "repeated": lambda z: np.repeat(z, 2, 1),
    "shape": lambda z: z + z.shape[1],
    "itself": lambda z: z,
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("moved", MOVED)
def test_a_dimension_of_one_size_may_come_from_a_launch_where_it_differs(moved, read):
    """`(n, D)` and `(1, n)` are transposed in one launch, so what is `(n, 1)` lies in rows of more columns."""

    def f(x):
        wide, thin = MOVED[moved](x), MOVED[moved](x[:, 0][None])
        return wide, READ[read](thin)

    map_equals_loop(f, examples())


def test_thirty_lengths_are_one_launch_of_a_block():
    @ab.batch
    def f(x, w):
        return np.tanh(x @ w).sum(0)

    xs = examples(range(2, 32))
    map_with_stats(f, xs, w=W)  # the first examples of the first map have a signature for each length
    _, report = map_with_stats(f, xs, w=W)
    assert (report.launches, report.bound, report.calls) == (1, 1, 30)


def test_large_arrays_are_not_copied_to_be_launched_together():
    xs = [np.ones((n, 1 << 16)) for n in (1, 2)]
    assert map_equals_loop(np.tanh, xs, precision=8).launches == 2


def test_graphs_on_different_lengths_have_different_gradients_by_blocks():
    """A second map, whose lengths differ from those of the first, and its first launches compiled."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        xs = examples(rng.integers(0, 9, 12).tolist())
        want = ab.grad(lambda p, xs=xs: total([pooled(x, p) for x in xs]))(PARAMS)
        found = ab.grad(lambda p, xs=xs: total(ab.map(ab.batch(pooled), xs, p=p)))(PARAMS)
        np.testing.assert_allclose(found["w"], want["w"], rtol=1e-9, atol=1e-12)


# Lists of different lengths


def stacked_list(parts, w):
    return np.tanh(np.stack([part * 2 for part in parts]) @ w).sum(0)


def joined_list(parts, w):
    return np.tanh(np.concatenate([part[None] @ w for part in parts])).sum(0)


def mean_of_list(parts, w):
    return np.mean([part * 2 for part in parts], axis=0) @ w


def largest_of_list(parts, w):
    return np.stack(parts).max(0) @ w


LISTS = [[row.copy() for row in normal(n, D, seed=n, dtype=np.float64)] for n in (1, 3, 2, 3, 7, 5, 12)]


@pytest.mark.parametrize(
    ("f", "launches"), [(stacked_list, 5), (joined_list, 5), (mean_of_list, 4), (largest_of_list, 3)]
)
def test_lists_of_different_lengths_are_joined_in_one_launch(f, launches):
    stats = map_equals_loop(f, LISTS, precision=8, w=W)
    assert (stats.looped, stats.fallbacks) == (None, {})
    assert stats.launches <= launches
    want = ab.grad(lambda xs: total([f(x, W) for x in xs]))(LISTS)
    found = ab.grad(lambda xs: total(ab.map(ab.batch(f), xs, w=W)))(LISTS)
    assert_same(found, want)


def test_blocks_that_join_what_they_are_given():
    @ab.batch
    def f(parts, w):
        hidden = [np.tanh(part @ w) for part in parts]
        return combined(hidden, w)

    @ab.batch
    def combined(hidden, w):
        return np.tanh(np.stack(hidden).mean(0) @ w) + hidden[0]

    results, stats = map_with_stats(f, LISTS, w=W)
    assert_same(results, loop(lambda x, w: f.__wrapped__(x, w), LISTS, w=W))
    assert stats.launches <= 8


def test_pieces_of_different_lengths():
    lists = [[normal(n, D, seed=n, dtype=np.float64) for n in lengths] for lengths in ([0, 2], [3], [1, 1, 4], [0])]
    stats = map_equals_loop(lambda xs, w: np.concatenate([x @ w for x in xs]).sum(0), lists, precision=8, w=W)
    assert stats.launches == 3
