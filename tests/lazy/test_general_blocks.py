"""Blocks that differ in the shared arrays they read, or in how many terms they add up, are launched as one."""

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, normal

D = 4
KINDS = 3


def weights(dtype=np.float64):
    out = {"emb": normal(20, D, seed=1, dtype=dtype), "w": normal(D, D, seed=2, dtype=dtype)}
    for kind in range(KINDS):
        out[f"u_{kind}"] = normal(D, D, seed=10 + kind, dtype=dtype)
        out[f"b_{kind}"] = normal(D, seed=20 + kind, dtype=dtype)
    return out


def graphs(count=12, fan_in=4, seed=0):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        graph = []
        for place in range(int(rng.integers(1, 14))):
            near = sorted({int(n) for n in rng.integers(max(0, place - 4), place, min(place, rng.integers(1, fan_in)))})
            graph.append((int(rng.integers(20)), int(rng.integers(KINDS)), near if place else []))
        out.append(graph)
    return out


def depth(graph):
    found = []
    for _, _, parents in graph:
        found.append(1 + max([found[parent] for parent in parents], default=0))
    return max(found)


@ab.batch
def dag(graph, p):
    states = []
    for word, kind, parents in graph:
        z = p["emb"][word] @ p["w"]
        if parents:
            found = [states[parent] for parent in parents]
            z = z + np.tanh(z + found[0]) * (sum(found[1:], found[0]) @ p[f"u_{kind}"])
        states.append(np.tanh(z))
    return states[-1]


@ab.batch
def relations(graph, p):
    states = []
    for word, kind, parents in graph:
        h = p["emb"][word]
        for parent in parents:
            h = h + states[parent] @ p[f"u_{(kind + parent) % KINDS}"]
        states.append(np.tanh(h * p[f"b_{kind}"] + p[f"b_{(kind * 2 + 1) % KINDS}"]))
    return states[-1]


@ab.batch
def doubled(graph, p):
    """A kind's matrix in a product and beside it; two kinds' matrices multiplied."""
    h = p["emb"][graph[0][0]]
    for _, kind, _ in graph:
        u = p[f"u_{kind}"]
        h = np.tanh(h @ (u * 0.5) + h @ u) + (u @ p[f"b_{kind}"])
    return h


def total(results):
    return sum(((i + 1) * np.cos(result)).sum() for i, result in enumerate(results))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("f", [dag, relations, doubled])
def test_values_and_gradients(f, dtype):
    p, examples = weights(dtype), graphs()
    results, stats = map_with_stats(f, examples, p=p)
    assert (stats.looped, stats.fallbacks) == (None, {})
    plain = f.__wrapped__
    assert_same(results, loop(plain, examples, p=p))
    for _ in range(5):  # by its rules, as one function, and with kernels
        found = ab.grad(lambda p: total(ab.map(f, examples, p=p)))(p)
    want = ab.grad(lambda p: total([plain(example, p) for example in examples]))(p)
    for name, value in want.items():
        close = 1e-9 if dtype == np.float64 else 2e-3
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(value), rtol=close, atol=close)
        assert found[name].dtype == dtype


def test_a_level_of_a_graph_is_one_launch():
    examples = graphs(30)
    _, stats = map_with_stats(dag, examples, p=weights())
    assert stats.launches == max(map(depth, examples)) + 1


def test_kinds_are_no_reason_for_launches_of_their_own():
    examples = [[(n, (n + i) % KINDS, []) for n in range(9)] for i in range(8)]
    _, stats = map_with_stats(doubled, examples, p=weights())
    assert stats.launches <= 10


def test_second_derivatives():
    p, examples = weights(), graphs(4)

    def slope(f):
        def norm(p):
            return sum((each**2).sum() for each in ab.grad(f)(p).values())

        return ab.grad(norm)(p)

    found = slope(lambda p: total(ab.map(dag, examples, p=p)))
    want = slope(lambda p: total([dag.__wrapped__(example, p) for example in examples]))
    for name, value in want.items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(value), rtol=1e-8, atol=1e-9)


def test_what_a_call_lacks_changes_no_bit():
    """Negative zeros stay, and what is not a number."""

    @ab.batch
    def f(parts, p):
        found = sum(parts[1:], parts[0]) * p["one"]
        return found, 1 / found

    rows = [np.full(2, each) for each in (-0.0, 0.0, np.inf, np.nan, -np.inf, 5e-324)]
    examples = [[row] for row in rows] + [[rows[0], rows[0]], [rows[1], rows[0], rows[0]], [rows[2], rows[5]]]
    with np.errstate(all="ignore"):
        results, stats = map_with_stats(f, examples, p={"one": np.ones(2)})
        want = loop(f.__wrapped__, examples, p={"one": np.ones(2)})
    assert stats.launches == 1
    for found, each in zip(results, want, strict=True):
        for a, b in zip(found, each, strict=True):
            assert a.tobytes() == b.tobytes()


def test_matrices_of_kinds_over_sequences_of_any_length():
    @ab.batch
    def f(x, kind, p):
        return np.tanh(x @ p[f"u_{kind}"]).sum(0)

    p = weights()
    xs = [normal(n, D, seed=n, dtype=np.float64) for n in (3, 1, 5, 3, 0, 2, 7)]
    kinds = [0, 1, 2, 1, 0, 0, 2]
    results, stats = map_with_stats(f, xs, kinds, p=p)
    assert_same(results, loop(f.__wrapped__, xs, kinds, p=p))
    assert (stats.looped, stats.fallbacks) == (None, {})
    found = ab.grad(lambda p: total(ab.map(f, xs, kinds, p=p)))(p)
    want = ab.grad(lambda p: total([f.__wrapped__(x, kind, p) for x, kind in zip(xs, kinds, strict=True)]))(p)
    for name, value in want.items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(value), rtol=1e-9, atol=1e-12)


def test_calls_of_kinds_that_have_no_rule_for_several_lengths():
    @ab.batch
    def f(x, kind, p):
        y = np.tanh(x @ p[f"u_{kind}"] + x[0] @ p[f"v_{kind}"] + p[f"b_{kind}"])
        return (y * np.broadcast_to(p["gain"], y.shape)).sum(0)  # of shared values alone, as long as each example

    p = weights() | {f"v_{kind}": normal(D, D, seed=30 + kind, dtype=np.float64) for kind in range(KINDS)}
    p["gain"] = normal(D, seed=40, dtype=np.float64)
    xs, kinds = [normal(n, D, seed=i, dtype=np.float64) for i, n in enumerate((2, 2, D, D, 6, 6))], [0, 1] * 3
    found = ab.grad(lambda given: total(ab.map(f, given[0], kinds, p=given[1])))((xs, p))
    want = ab.grad(lambda given: total([f.__wrapped__(x, k, given[1]) for x, k in zip(given[0], kinds, strict=True)]))(
        (xs, p)
    )
    assert_same(found, want)


def test_sequences_of_one_length_are_one_launch():
    @ab.batch
    def f(x, kind, p):
        return np.tanh(x @ p[f"u_{kind}"]).sum(0)

    xs = [normal(3, D, seed=n, dtype=np.float64) for n in range(7)]
    _, stats = map_with_stats(f, xs, [0, 1, 2, 1, 0, 0, 2], p=weights())
    assert stats.launches == 1


def test_tables_of_kinds_are_read_apart():
    @ab.batch
    def f(ids, kind, p):
        return np.tanh(p["tables"][kind][ids[0]] @ p["w"])

    p = {"w": normal(D, D, dtype=np.float64), "tables": [ab.EmbeddingTable(normal(9, D, seed=k)) for k in range(2)]}
    examples, kinds = [[1], [2], [3], [8]], [0, 1, 1, 0]
    results, _ = map_with_stats(f, examples, kinds, p=p)
    plain = {"w": p["w"], "tables": [np.asarray(table) for table in p["tables"]]}
    assert_same(results, loop(f.__wrapped__, examples, kinds, p=plain))
