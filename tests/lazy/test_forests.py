"""Chains and trees of additions are one launch, and every sum on the way is what the loop adds up, to the last bit."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, map_equals_loop, normal

D = 4
P = {
    "emb": normal(12, D, seed=1, dtype=np.float64),
    "w": normal(D, D, seed=2, dtype=np.float64),
    "u": normal(2 * D, D, seed=3, dtype=np.float64),
    "o": normal(D, 3, seed=4, dtype=np.float64),
}


class Node:
    def __init__(self, word, left=None, right=None):
        self.word = word
        self.left = left
        self.right = right


def tree(rng, size):
    if size == 1:
        return Node(int(rng.integers(12)))
    first = int(rng.integers(1, size))
    return Node(int(rng.integers(12)), tree(rng, first), tree(rng, size - first))


RNG = np.random.default_rng(5)
TREES = [tree(RNG, int(n)) for n in RNG.integers(1, 14, 12)]
SENTENCES = [RNG.integers(0, 12, n).tolist() for n in (0, 1, 5, 9, 2, 9, 17)]


def cell(node, left, right, p):
    if left is None:
        return np.tanh(p["emb"][node.word] @ p["w"])
    return np.tanh(np.concatenate([left, right]) @ p["u"])


def cost(h, node, p):
    return ab.nn.cross_entropy(h @ p["o"], node.word % 3)


@ab.batch
def returned(node, p):
    def encode(node):
        if node.left is None:
            h = cell(node, None, None, p)
            return h, cost(h, node, p)
        left, a = encode(node.left)
        right, b = encode(node.right)
        h = cell(node, left, right, p)
        return h, a + b + cost(h, node, p)

    return encode(node)[1]


@ab.batch
def threaded_from(node, total, p):
    if node.left is None:
        h = np.tanh(p["emb"][node.word] @ p["w"])
    else:
        left, total = threaded_from(node.left, total, p)
        right, total = threaded_from(node.right, total, p)
        h = np.tanh(np.concatenate([left, right]) @ p["u"])
    total = total + ab.nn.cross_entropy(h @ p["o"], node.word % 3)
    return h, total


@ab.batch
def threaded(node, p):
    return threaded_from(node, 0.0, p)[1]


def collect(node, out, p):
    left = right = None
    if node.left is not None:
        left, right = collect(node.left, out, p), collect(node.right, out, p)
    h = cell(node, left, right, p)
    out.append(cost(h, node, p))
    return h


@ab.batch
def listed(node, p):
    out = []
    collect(node, out, p)
    return sum(out)


@ab.batch
def averaged(node, p):
    out = []
    collect(node, out, p)
    return np.mean(np.stack(out))


@ab.batch
def tagged(words, p):
    h, total = np.zeros(D), 0.0
    for word in words:
        h = np.tanh(p["emb"][word] @ p["w"] + h)
        total = total + ab.nn.cross_entropy(h @ p["o"], word % 3)
    return total


@ab.batch
def tagged_from_the_left(words, p):
    total = np.zeros(D)
    for word in words:
        total = np.tanh(p["emb"][word] @ p["w"]) + total  # a term first
    return total


def height(node):
    return 1 if node.left is None else 1 + max(height(node.left), height(node.right))


DEEPEST = max(map(height, TREES))
MODELS = [
    (returned, TREES, DEEPEST + 8, 8 + 3 * DEEPEST),
    (threaded, TREES, DEEPEST + 3, 8 + 3 * DEEPEST),
    (listed, TREES, 2 * DEEPEST + 4, 8 + 3 * DEEPEST),
    (tagged, SENTENCES, 20, 60),
    (tagged_from_the_left, SENTENCES, 20, 5),
]


@pytest.mark.parametrize(("f", "xs", "most", "op_by_op"), MODELS)
def test_terms_are_launched_together(f, xs, most, op_by_op):
    raw = f.__wrapped__
    stats = map_equals_loop(raw, xs, precision=8, p=P)
    assert (stats.looped, stats.fallbacks) == (None, {})
    assert stats.launches <= op_by_op
    _, stats = map_with_stats(f, xs, p=P)
    assert stats.launches <= most
    assert stats.launches >= stats.bound


@pytest.mark.parametrize("f", [returned, threaded, listed, averaged, tagged, tagged_from_the_left])
def test_gradients(f):
    xs = [x for x in (SENTENCES if "tagged" in f.__name__ else TREES) if x != []]
    want = ab.grad(lambda p: sum(np.sum(f(x, p) * (i + 1)) for i, x in enumerate(xs)))(P)
    for blocks in (True, False):
        with ab.options(blocks=blocks):
            found = ab.grad(lambda p: sum(np.sum(y * (i + 1)) for i, y in enumerate(ab.map(f, xs, p=p))))(P)
        for key, value in want.items():
            np.testing.assert_allclose(np.asarray(found[key]), np.asarray(value), rtol=1e-9, atol=1e-12)


UFUNC_OF = [np.add, np.multiply, np.maximum, np.minimum, np.logaddexp]


@pytest.mark.parametrize("ufunc", UFUNC_OF)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_sum_on_the_way_is_that_of_the_loop_to_the_last_bit(ufunc, dtype):
    def f(xs, start):
        total, seen = start[0], []
        for x in xs:
            total = ufunc(total, x)
            seen.append(total)
        return seen

    lists = [list(normal(n, D, seed=n, dtype=dtype)) for n in (0, 1, 6, 29, 2)]
    start = normal(D, D, seed=9, dtype=dtype)
    results, stats = map_with_stats(f, lists, start=start)
    assert_same(results, loop(f, lists, start=start))
    for found, want in zip(results, loop(f, lists, start=start), strict=True):
        for a, b in zip(found, want, strict=True):
            if ufunc is not np.logaddexp:  # whose last bit depends on how many are computed at a time
                np.testing.assert_array_equal(a, b)
    assert stats.launches == 2  # the first row, and the chain


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint16, np.float16])
def test_dtypes_and_sums_that_wrap(dtype):
    def f(x):
        total = x[0]
        for row in x[1:]:
            total = total + row
        return total, total * 2

    xs = [np.full((n, D), 100) for n in (1, 2, 5, 9)]
    map_equals_loop(lambda x: f(x.astype(np.float32).astype(dtype)), [x.astype(np.float32) for x in xs])


def test_a_total_that_is_used_on_the_way():
    """What is made of a total waits for it, and what is added after that for both."""

    def f(xs, w):
        total = xs[0]
        for i, x in enumerate(xs[1:]):
            total = total + x
            if i % 3 == 2:
                total = np.tanh(total @ w)
        return total

    lists = [list(normal(n, D, seed=n, dtype=np.float64)) for n in (1, 4, 11, 8, 3)]
    stats = map_equals_loop(f, lists, precision=8, w=P["w"])
    assert stats.launches <= 1 + 3 * 3


def test_a_residual_network_is_as_it_was():
    def f(x, w):
        for _ in range(4):
            x = x + np.tanh(x @ w)
        return x

    stats = map_equals_loop(f, [normal(D, seed=i, dtype=np.float64) for i in range(5)], precision=8, w=P["w"])
    assert stats.launches == 12


def test_a_tree_of_additions():
    def f(xs):
        while len(xs) > 1:
            xs = [a + b for a, b in zip(xs[::2], xs[1::2], strict=False)] + ([xs[-1]] if len(xs) % 2 else [])
        return xs[0]

    lists = [list(normal(n, D, seed=n, dtype=np.float64)) for n in (1, 2, 7, 16, 5)]
    assert map_equals_loop(f, lists, precision=8).launches == 1


def test_a_term_that_is_added_twice():
    def f(x):
        total = x + x
        for _ in range(5):
            total = total + x
        return total + total

    xs = [normal(D, seed=i, dtype=np.float64) for i in range(3)]
    map_equals_loop(f, xs, precision=8)
    want = ab.grad(lambda xs: sum(np.sum(f(x)) for x in xs))(xs)
    found = ab.grad(lambda xs: sum(np.sum(y) for y in ab.map(f, xs)))(xs)
    assert_same(found, want)


def test_no_number_and_infinity():
    def f(xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    lists = [[np.float64(a) for a in row] for row in ([1, np.nan, 2], [np.inf, 1, 2], [-0.0, -0.0], [1e308] * 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        map_equals_loop(lambda x: f(list(x)), [np.array(row) for row in lists])
    for row in ([np.inf, -np.inf, 0.0], [1e308, 1e308, 0.0]):
        with pytest.warns(RuntimeWarning, match="invalid value|overflow"):
            ab.map(lambda x: f(list(x)), [np.array(row), np.ones(3)])


def test_the_order_of_addition_shows():
    """Terms of which a sum in another order would be another number."""

    def f(xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    xs = [np.array([1e16, 1.0, -1e16, 1.0]), np.array([1.0, 1e16, 1.0, -1e16])]
    assert ab.map(lambda x: f(list(x)), xs) == [f(list(x)) for x in xs]


@pytest.mark.parametrize("ufunc", UFUNC_OF)
def test_gradients_of_chains(ufunc):
    def f(xs):
        total = ufunc(xs[0], xs[-1])
        for x in xs[1:]:
            total = ufunc(total, x)
        return ufunc(total, total)

    lists = [list(normal(n, D, seed=n, dtype=np.float64)) for n in (1, 2, 7, 4)]
    want = ab.grad(lambda xs: sum(np.sum(f(x)) for x in xs))(lists)
    found = ab.grad(lambda xs: sum(np.sum(y) for y in ab.map(f, xs)))(lists)
    assert_same(found, want)


@pytest.mark.parametrize("f", [returned, threaded, listed, tagged])
def test_the_same_examples_again(f):
    """The same examples again, and with other parameters."""
    xs = SENTENCES if f is tagged else TREES
    want = loop(f.__wrapped__, xs, p=P)
    for _ in range(4):
        results, stats = map_with_stats(f, xs, p=P)
        assert_same(results, want)
        assert stats.looped is None
    other = {name: x * 0.5 for name, x in P.items()}
    assert_same(map_with_stats(f, xs, p=other)[0], loop(f.__wrapped__, xs, p=other))


def test_rounds_that_are_alike_and_rounds_that_are_not():
    """Plans are kept by what was recorded; chains, and lengths, change from round to round."""

    def f(x, limit, w):
        steps = 0
        while True:
            total = x[0]
            for row in x[1:]:
                total = total + np.tanh(row @ w)
            steps += 1
            if total.sum() > limit or steps > 6:
                return total, steps
            x = np.concatenate([x, total[None]])

    xs = [normal(n, D, seed=n, dtype=np.float64) for n in (2, 3, 3, 5)]
    map_equals_loop(f, xs, [5.0, -9.0, 9.0, 3.0], precision=8, w=P["w"])


# What else is a chain


def differences(x, p):
    out = np.zeros(D)
    for row in x:
        out = out - np.tanh(row @ p["w"])
    return out


def to_and_fro(x, p):
    out = x[0]
    for at, row in enumerate(x[1:]):
        term = np.tanh(row @ p["w"])
        out = out + term if at % 3 else out - term
    return out


def from_a_number(x, p):
    total = sum(np.tanh(row @ p["w"]) for row in x)
    return 1.5 + total if len(x) > 2 else total


def subtracted(x, p):
    """What is subtracted is itself a sum."""
    out = x[0]
    for row in x[1:]:
        out = np.tanh(row @ p["w"]) - out
    return out


ROWS = [normal(n, D, seed=n + 30, dtype=np.float64) for n in (1, 4, 2, 9, 6, 3)]


@pytest.mark.parametrize("f", [differences, to_and_fro, from_a_number, subtracted])
def test_differences_and_sums_from_a_number(f):
    for each in (f, ab.batch(f)):
        results, stats = map_with_stats(each, ROWS, p=P)
        assert stats.launches <= 6
        assert_same(results, loop(f, ROWS, p=P), precision=8)

    def total(run):
        return lambda p: sum(((i + 1) * np.cos(out)).sum() for i, out in enumerate(run(f, ROWS, p=p)))

    assert_same(ab.grad(total(ab.map))(P), ab.grad(total(loop))(P))


def test_zeros_keep_their_signs():
    def f(x):
        return 1 / (0 + x), 1 / (x - x), 1 / (-x - 0.0), 1 / (x * -1.0 - x), 1 / (0.0 + (x + x))

    xs = [np.array([each]) for each in (-0.0, 0.0)]
    with np.errstate(divide="ignore"):
        for found, want in zip(ab.map(f, xs), loop(f, xs), strict=True):
            assert [a.tobytes() for a in found] == [a.tobytes() for a in want]


def test_numbers_that_no_float32_holds():
    def f(x):
        return (1e300 + x) + x

    xs = [np.full(2, each, np.float32) for each in (1, 2)]
    with pytest.warns(RuntimeWarning, match="overflow"):
        results = ab.map(f, xs)
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert_same(results, loop(f, xs))


def message_passing(edges, states, p):
    for _ in range(3):
        heard = [sum(states[j] for j in near) for near in edges]
        states = [np.tanh(h @ p["w"] + each @ p["w"]) for h, each in zip(states, heard, strict=True)]
    return np.mean(states, axis=0)


def test_rounds_of_messages_take_the_launches_of_one_graph():
    rng = np.random.default_rng(0)
    graphs = [[rng.integers(0, n, rng.integers(1, 5)).tolist() for _ in range(n)] for n in (2, 5, 3, 8)]
    states = [[normal(D, seed=7 * n + k, dtype=np.float64) for k in range(n)] for n in (2, 5, 3, 8)]
    results, stats = map_with_stats(message_passing, graphs, states, p=P)
    assert stats.launches <= 3 * 5 + 2
    assert_same(results, loop(message_passing, graphs, states, p=P), precision=8)


# Totals that are added to in place


def in_place(x, p):
    total = np.zeros(D)
    for row in x:
        total += np.tanh(row @ p["w"])
    return total / max(len(x), 1)


def of_children(node, p):
    total = np.zeros(D)
    for child in (node.left, node.right):
        if child is not None:
            total += of_children(child, p)
    return np.tanh(p["emb"][node.word] + total @ p["w"])


@pytest.mark.parametrize(("f", "xs", "most"), [(in_place, ROWS, 4), (of_children, TREES, 45)])
def test_totals_in_place_wait_for_nothing(f, xs, most):
    batched = ab.batch(f)
    results, stats = map_with_stats(batched, xs, p=P)
    assert (stats.rounds, stats.looped) == (1, None)
    assert stats.launches <= most
    assert_same(results, loop(f, xs, p=P))

    def total(run):
        return lambda p: sum(((i + 1) * np.cos(out)).sum() for i, out in enumerate(run(p)))

    found = ab.grad(total(lambda p: ab.map(batched, xs, p=p)))(P)
    assert_same(found, ab.grad(total(lambda p: loop(f, xs, p=p)))(P))


def other_names(x, p):
    """Other names of a total, parts of it, and what it was before."""
    total = other = np.zeros(D)
    kept, part, start = [total], total[1:], total.copy()
    for row in x:
        total += row @ p["w"]
        part = part + 1
    total *= 2
    total -= x[0]
    kept.append(total)
    return other, kept, part, start, total is other, type(total) is np.ndarray, isinstance(total, np.ndarray)


def decided(x, p):
    total = np.zeros(D)
    for row in x:
        total += row
        if total[0] > 0.5 or not np.isfinite(total).all():
            break
    total[total < 0] = 0
    return total, float(total.sum())


def of_float32(x, p):
    total = np.ones(D, np.float32)
    for row in x:
        total += row  # float64, which is cast to the kind of the total
    return total, total.dtype.name


def of_no_dimensions(x, p):
    total = np.full((), 0.5)
    kept = [total]
    for row in x:
        total += row[0]
    return total, kept


@ab.batch
def returned_as_it_was_made(x, p):
    total = np.zeros(D)
    for row in x[:0]:
        total += row
    return total


@pytest.mark.parametrize("f", [other_names, decided, of_float32, of_no_dimensions, returned_as_it_was_made.__wrapped__])
def test_totals_are_arrays_like_any_other(f):
    map_equals_loop(ab.batch(f), ROWS, precision=4, p=P)


def test_totals_are_of_one_example_each():
    first, second = ab.map(returned_as_it_was_made, ROWS[:2], p=P)
    first += 1
    assert not second.any()


def test_a_total_that_cannot_hold_the_sum():
    @ab.batch
    def f(x):
        total = np.zeros(D)
        total += x * 1j
        return total

    with pytest.raises(TypeError, match="Cannot cast") as caught:
        ab.map(f, ROWS[:1])
    assert "example 0" in " ".join(caught.value.__notes__)
