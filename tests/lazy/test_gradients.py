"""Gradients through `ab.map` equal those through the loop."""

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import Tape
from tests.law import assert_same, loop, normal, vectors

PARAMS = {
    "emb": normal(12, 4, seed=1), "w": normal(4, 4, seed=2) / 2, "u": normal(8, 4, seed=3) / 2, "b": normal(4, seed=4),
}  # fmt: skip


def total(results):
    return sum(np.sum(result) for result in results)


def check_gradient(f, *columns, **shared):
    """The gradient with respect to the shared arguments, and its launches against those of the loop's tape."""

    def by_map(shared):
        return total(ab.map(f, *columns, **shared))

    def by_loop(shared):
        return total(loop(f, *columns, **shared))

    value, gradient = ab.value_and_grad(by_map)(shared)
    wanted_value, wanted = ab.value_and_grad(by_loop)(shared)
    np.testing.assert_allclose(value, wanted_value, rtol=1e-5)
    assert_same(dense(gradient), dense(wanted))


def dense(tree):
    if isinstance(tree, dict):
        return {name: dense(value) for name, value in tree.items()}
    return tree.to_dense() if isinstance(tree, ab.SparseRows) else tree


def sequence(ids, params):
    h = np.zeros(4, np.float32)
    for x in params["emb"][ids]:
        h = np.tanh(x @ params["w"] + h + params["b"])
    return h


def branches(ids, params):
    x = params["emb"][ids].sum(0)
    if x.sum() > 0:
        return np.tanh(x @ params["w"])
    return (x * params["b"])[1:3]


def stops_when_the_model_says(ids, params):
    x = params["emb"][ids[0]]
    for _ in range(6):
        x = np.tanh(np.concatenate([x, params["b"]]) @ params["u"])
        if np.argmax(x) == 2:
            break
    return x


def a_tree(ids, params):
    def node(span):
        if len(span) == 1:
            return params["emb"][int(span[0])]
        half = len(span) // 2
        return np.tanh(np.concatenate([node(span[:half]), node(span[half:])]) @ params["u"])

    return node(ids) if len(ids) else params["b"] * 2


def guarded(ids, params):
    x = params["b"][len(ids) % 4]
    return np.sqrt(x) if x > 0 else x * 0


def bags(ids, params):
    rows = params["emb"][ids]
    weights = np.arange(len(ids), dtype=np.float32)
    return rows.mean(0) + rows.max(0) + (rows * weights[:, None]).sum(0) + (params["emb"][ids] * rows).sum(0)


DOCS = [np.random.default_rng(n).integers(0, 12, n) for n in (4, 1, 7, 2, 2)]


@pytest.mark.parametrize("table", ["array", "table"])
@pytest.mark.parametrize(
    "f", [sequence, branches, stops_when_the_model_says, a_tree, guarded, bags], ids=lambda f: f.__name__
)
def test_shared_parameters(f, table):
    params = PARAMS if table == "array" else {**PARAMS, "emb": ab.EmbeddingTable(PARAMS["emb"])}
    check_gradient(f, DOCS, params=params)


@pytest.mark.parametrize("budget", [1, 300])
def test_in_segments(budget):
    with ab.options(memory_budget=budget):
        check_gradient(sequence, DOCS, params=PARAMS)


def test_per_example_inputs():
    xs = vectors(4, 4)
    w = PARAMS["w"]
    gradient = ab.grad(lambda xs: total(ab.map(lambda x, w: np.tanh(x @ w), xs, w=w)))(xs)
    wanted = ab.grad(lambda xs: total(loop(lambda x, w: np.tanh(x @ w), xs, w=w)))(xs)
    assert_same(gradient, wanted)


def test_results_of_one_map_go_into_another():
    def both(run):
        def loss(params):
            states = run(sequence, DOCS, params=params)
            return total(run(lambda h, params: np.tanh(h @ params["w"]) * h, states, params=params))

        return ab.grad(loss)(PARAMS)

    assert_same(both(ab.map), both(loop))


def test_a_closure_that_carries_a_gradient():
    def both(run):
        return ab.grad(lambda w: total(run(lambda x: np.tanh(x @ w), vectors(5, 4))))(PARAMS["w"])

    assert_same(both(ab.map), both(loop))


def test_python_numbers_that_carry_a_gradient():
    def both(run):
        return ab.grad(lambda s: total(run(lambda x, s: np.tanh(x * s) + s, vectors(3, 4), s=s)))(0.5)

    assert_same(both(ab.map), both(loop), precision=4)


def test_a_gradient_of_a_gradient():
    def f(x, w):
        return np.sum(ab.grad(lambda w: np.sum(np.tanh(x @ w)))(w) ** 2)

    check_gradient(f, vectors(3, 4), w=PARAMS["w"])


def test_the_tape_sees_launches_not_calls():
    sizes = []
    for count in (2, 40):
        tape = Tape()
        w = tape.leaf(PARAMS["w"])
        ab.map(lambda x, w: np.tanh(np.tanh(x @ w) @ w), vectors(count, 4), w=w)
        sizes.append(len(tape.nodes) - count)  # one row is read per result
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("kind", [np.float64, float, np.array])
def test_isinstance_sees_the_same_class_under_a_gradient(kind):
    def f(x, own, shared):
        factor = 1.0
        for value in (own, shared):
            factor *= 2 if isinstance(value, np.floating) else 3 if isinstance(value, np.ndarray) else 5
            factor *= 7 if isinstance(value, float) else 1
        return x.astype(np.float32).sum() * own * shared * factor

    dtypes = []

    def both(run):
        def loss(own, p):
            results = run(f, vectors(2, 3), own, shared=p)
            dtypes.append([result.dtype for result in results])
            return total(results)

        return ab.grad(loss, (0, 1))([kind(1.5), kind(2.5)], kind(3.5))

    assert_same(both(ab.map), both(loop))
    assert dtypes[0] == dtypes[1]


CAPTURED = {
    "a float": (0.5, lambda p: lambda x: np.tanh(x * p + 1.0).sum()),
    "a scalar": (np.float64(0.5), lambda p: lambda x: np.tanh(x * p + 1.0).sum()),
    "an array without dimensions": (np.array(0.5), lambda p: lambda x: np.tanh(x * p + 1.0).sum()),
    "a row": (np.array([0.5, 2.0]), lambda p: lambda x: np.tanh(x[:, None] * p + 1.0).sum()),
    "a list": ([np.array(0.5), np.array(2.0)], lambda p: lambda x: np.tanh(x * p[0] + p[1]).sum()),
    "a tuple of floats": ((0.5, 2.0), lambda p: lambda x: np.tanh(x * p[0] + p[1]).sum()),
    "a dict": ({"a": 0.5, "b": np.ones(1)}, lambda p: lambda x: np.tanh(x * p["a"] + p["b"]).sum()),
    "what is joined": ([np.ones(2), np.ones(2)], lambda p: lambda x: np.concatenate(p).sum() * np.tanh(x + 1.0).sum()),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_parameters_that_a_function_takes_from_around_it(name):
    params, make = CAPTURED[name]
    xs = [np.arange(float(n)) for n in (3, 0, 2)]
    wanted = ab.grad(lambda p: sum(make(p)(x) for x in xs))(params)
    with ab.options(strict=True, way="fly"):
        for _ in range(3):  # the later ones by what the first one found
            assert_same(ab.grad(lambda p: sum(ab.map(make(p), xs)))(params), wanted)
