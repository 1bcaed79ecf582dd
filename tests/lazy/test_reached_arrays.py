"""Arrays that a function reaches without being given them are shared by its examples, as those in a dict are."""

import dataclasses
import functools

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import assert_same, batch_of, vectors

SIZE = 4
RNG = np.random.default_rng(0)
ARRAYS = {
    "emb": RNG.normal(size=(9, SIZE)).astype(np.float32),
    "w": RNG.normal(size=(SIZE, SIZE)).astype(np.float32),
    "u": RNG.normal(size=(SIZE, SIZE)).astype(np.float32),
    "b": RNG.normal(size=SIZE).astype(np.float32),
}
SENTENCES = [np.array([1, 8, 1]), np.array([3]), np.zeros(0, np.int64), np.array([0, 2, 5, 7])]
TREES = [1, (2, 3), ((4, 5), (6, (7, 0))), (1, (1, 1))]


def given(ids, p):
    h = np.zeros(SIZE, np.float32)
    for x in p["emb"][ids]:
        h = np.tanh(x @ p["w"] + h @ p["u"] + p["b"])
    return h


class Plain:
    def __init__(self, arrays):
        np.random.rand(1)  # drawing while it is made is no matter
        for name, value in arrays.items():
            setattr(self, name, value)

    def __call__(self, ids):
        h = np.zeros(SIZE, np.float32)
        for x in self.emb[ids]:
            h = np.tanh(x @ self.w + h @ self.u + self.b)
        return h

    def tree(self, node):
        if isinstance(node, int):
            return np.tanh(self.emb[node] @ self.w + self.b)
        left, right = self.tree(node[0]), self.tree(node[1])
        return np.tanh(left @ self.w + right @ self.u + self.b)


class Slotted(Plain):
    __slots__ = ("b", "emb", "u", "w")


@dataclasses.dataclass
class Fields:
    emb: np.ndarray
    w: np.ndarray
    u: np.ndarray
    b: np.ndarray
    __call__ = Plain.__call__
    tree = Plain.tree


class Held:
    """A model whose parts are objects, in lists and dicts."""

    def __init__(self, arrays):
        self.cells = [Plain(arrays), Fields(**arrays)]
        self.by_name = {"out": Plain(arrays)}

    def __call__(self, ids):
        total = np.zeros(SIZE, np.float32)
        for cell in self.cells:
            total = total + cell(ids)
        return total + self.by_name["out"].b


GLOBAL = Plain(ARRAYS)
W, U, B, EMB = ARRAYS["w"], ARRAYS["u"], ARRAYS["b"], ARRAYS["emb"]


def of_globals(ids):
    h = np.zeros(SIZE, np.float32)
    for x in EMB[ids]:
        h = np.tanh(x @ W + h @ U + B)
    return h


def of_closure(arrays):
    emb, w, u, b = (arrays[name] for name in ("emb", "w", "u", "b"))

    def read(ids):
        h = np.zeros(SIZE, np.float32)
        for x in emb[ids]:
            h = np.tanh(x @ w + h @ u + b)
        return h

    return read


def of_default(ids, p=ARRAYS):
    return given(ids, p)


TABLED = {**ARRAYS, "emb": ab.EmbeddingTable(EMB)}
WAYS = {
    "an object": lambda: Plain(ARRAYS),
    "an object with a table": lambda: Plain(TABLED),
    "slots": lambda: Slotted(ARRAYS),
    "a dataclass": lambda: Fields(**ARRAYS),
    "a method": lambda: Plain(ARRAYS).__call__,
    "globals": lambda: of_globals,
    "a global object": lambda: lambda ids: GLOBAL(ids),
    "a closure": lambda: of_closure(ARRAYS),
    "a dict in a closure": lambda: lambda ids: given(ids, ARRAYS),
    "a default": lambda: of_default,
    "a partial": lambda: functools.partial(given, p=ARRAYS),
}


@pytest.mark.parametrize("name", WAYS)
def test_whatever_holds_them_launches_what_a_dict_does(name):
    make = WAYS[name]
    with ab.options(way="fly"):
        for _ in range(2):
            expected, of_dict = map_with_stats(given, SENTENCES, p=ARRAYS)
            found, stats = map_with_stats(make(), SENTENCES)
    assert_same(found, expected)
    assert_same(found, [make()(x) for x in SENTENCES])
    assert (stats.calls, stats.launches, stats.looped) == (of_dict.calls, of_dict.launches, None)
    assert of_dict.calls > len(SENTENCES)


@pytest.mark.parametrize("make", [Plain, Slotted, lambda arrays: Fields(**arrays)])
@pytest.mark.parametrize("arrays", [ARRAYS, TABLED], ids=["array", "table"])
def test_a_tree_is_recorded(make, arrays):
    model = make(arrays)
    with ab.options(way="fly"):
        for _ in range(2):
            found, stats = map_with_stats(model.tree, TREES * 4)
    assert_same(found, [model.tree(tree) for tree in TREES * 4])
    assert stats.recorded > 0
    assert stats.launches < 12
    assert stats.calls > 4 * len(TREES) * 4


def test_parts_of_a_model_that_are_called_are_looked_into():
    model = Held(ARRAYS)
    with ab.options(way="fly"):
        found, stats = map_with_stats(model, SENTENCES)
    assert_same(found, [model(x) for x in SENTENCES])
    assert stats.launches < stats.calls / 2


@pytest.mark.parametrize("make", [Plain, Slotted, lambda arrays: Fields(**arrays)])
@pytest.mark.parametrize("arrays", [ARRAYS, TABLED], ids=["array", "table"])
def test_gradients_are_those_of_the_loop(make, arrays):
    model = make(arrays)

    def loss(model, run):
        return sum((each * each).sum() for each in run(model))

    with ab.options(way="fly"):
        gradient = ab.grad(lambda m: loss(m, lambda m: ab.map(m, SENTENCES)))(model)
        of_trees = ab.grad(lambda m: loss(m, lambda m: ab.map(m.tree, TREES)))(model)
    expected = ab.grad(lambda m: loss(m, lambda m: [m(x) for x in SENTENCES]))(model)
    expected_of_trees = ab.grad(lambda m: loss(m, lambda m: [m.tree(x) for x in TREES]))(model)
    for name in ARRAYS:
        for a, b in ((gradient, expected), (of_trees, expected_of_trees)):
            one, other = (getattr(each, name) for each in (a, b))
            one, other = (each.to_dense() if isinstance(each, ab.SparseRows) else each for each in (one, other))
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


# Where the arrays are changed on the way, every example sees what it would in the loop.


class Nudged(Plain):
    def __call__(self, ids):
        self.w[0, 0] += 1
        try:
            return super().__call__(ids)
        finally:
            self.w[0, 0] -= 1


class Drifting(Plain):
    def __call__(self, ids):
        out = super().__call__(ids)
        self.emb[0] *= 2
        self.b[:] = self.b + 1
        return out


class Replaced(Plain):
    def __call__(self, ids):
        out = super().__call__(ids)
        self.b = self.b + 1
        return out


def nudge(cell, ids):
    cell.b[0] += len(ids)
    return cell(ids)


class OfParts(Plain):
    """What is called is held in an attribute, and changes the array of another."""

    def __init__(self, arrays):
        super().__init__(arrays)
        self.cell = Plain(arrays)
        self.change = functools.partial(nudge, self.cell)
        self.steps = [self.change]

    def __call__(self, ids):
        return self.cell(ids) + self.change(ids)


class OfSteps(OfParts):
    def __call__(self, ids):
        out = self.cell(ids)
        for step in self.steps:
            out = out + step(ids)
        return out


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("make", [Nudged, Drifting, Replaced, OfParts, OfSteps])
def test_what_is_changed_on_the_way_is_seen(make):
    fresh = lambda: make({name: value.copy() for name, value in ARRAYS.items()})
    model, other = fresh(), fresh()
    expected = [model(x) for x in SENTENCES]
    with ab.options(way="fly"):
        found = ab.map(other, SENTENCES)
    assert_same(found, expected)
    for name in ARRAYS:
        assert_same(getattr(other, name), getattr(model, name))


class Node:
    """Of an example: it holds what is called, under the name that the model has for its own."""

    def __init__(self, cell):
        self.cell = cell


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_what_an_example_holds_is_not_taken_for_the_models():
    model = OfParts({name: value.copy() for name, value in ARRAYS.items()})
    other = OfParts({name: value.copy() for name, value in ARRAYS.items()})
    call = lambda node, model: node.cell(SENTENCES[0]) + model.cell(SENTENCES[0])
    expected = [call(Node(each), model) for each in (model.change, model.cell, model.change)]
    with ab.options(way="fly"):
        found = ab.map(call, [Node(each) for each in (other.change, other.cell, other.change)], model=other)
    assert_same(found, expected)
    assert_same(other.cell.b, model.cell.b)


def test_arrays_given_back_are_the_models():
    model = Plain(ARRAYS)
    with ab.options(way="fly"):
        (first, second) = ab.map(lambda ids: (model(ids), model.w), SENTENCES[:2])
    assert first[1] is model.w
    assert second[1] is model.w


def test_numbers_of_a_vector_and_items_of_a_matrix_stay_numbers():
    matrix, prior = ARRAYS["w"].copy(), ARRAYS["b"].copy()

    def best(ids):
        total = prior[int(ids[0]) % SIZE]
        for i in ids:
            total = max(total, matrix[i % SIZE, 0])
        return total

    sentences = [each for each in SENTENCES if len(each)]
    with ab.options(way="fly"):
        found, stats = map_with_stats(best, sentences)
    assert_same(found, [best(ids) for ids in sentences])
    assert stats.rounds == 0


WEIGHTS = np.cos(np.arange(64.0))


def weighted(x):
    n = np.size(x)
    return np.sum(x * WEIGHTS[:n])


def of_an_example(x, w):
    w = w * 1.0
    w[0] = 3.0
    return weighted(x)


def of_what_is_shared(x, w):
    return weighted(max(w))


def test_an_array_that_is_reached_by_some_maps_only():
    """The block of a helper is recorded with the array as a constant, and then with it as what all examples share."""
    rows, w = vectors(3, 3, dtype=np.float64), np.array([1.1, 1.4, 1.2])
    for f in (of_an_example, of_what_is_shared, of_an_example):
        for _ in range(3):
            with ab.options(way="fly"):
                value, gradient = ab.value_and_grad(lambda w, f=f: ab.mean(ab.batch(f)(batch_of(rows), w)))(w)
            np.testing.assert_allclose(value, np.mean([f(x, w) for x in rows]))
            np.testing.assert_allclose(gradient, ab.grad(lambda w, f=f: sum(f(x, w) for x in rows) / 3)(w))
