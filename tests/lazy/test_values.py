"""The law on values: `ab.map` gives what the loop gives, in value, dtype, shape and structure."""

import collections
import dataclasses
import fractions
import math

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same, loop, map_equals_loop, normal, vectors

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class State:
    h: np.ndarray
    steps: int = 0


W = normal(4, 4, seed=1)
TABLE = normal(20, 4, seed=2)


def keeps_types(x, w):
    return {
        "vector": np.tanh(x @ w),
        "scalar": x.sum(),
        "zero_d": np.array(x.sum()),
        "truth": x[0] > 0,
        "position": np.argmax(x),
        "python": 3,
        "text": "a",
        "nothing": None,
        "pair": Pair(x * 2, (x, [x.max()])),
        "state": State(x - 1, 2),
    }


def leaves_early(x, w):
    steps = 0
    while np.abs(x).sum() > 0.5 and steps < 20:
        x = 0.7 * np.tanh(x @ w)
        steps += 1
    return x, steps


def writes_in_place(x, w):
    y = x.copy()
    y += 1
    y[0] = 5.0
    view = y[1:3]
    view *= 2
    y[y > 1.5] = 0
    return y, view


def asks_for_numbers(x, w):
    total = x.sum()
    return (
        float(total), int(total), round(total, 2), f"{total:.2f}", str(total), bool(total > 0), math.floor(total),
        math.ceil(total), total.item(), x.tolist(), len(x), [1, 2, 3, 4][np.argmax(x)],
        {total > 0: 1}, x[0] in x, 99.0 in x, [float(v) for v in x], np.asarray(x * 2), math.exp(total), complex(total),
    )  # fmt: skip


def without_dimensions(x, w):
    found, a, b = [], np.array(x.sum()), (x * 2)[:1].reshape(())
    for each in (a, b):
        found.append(fractions.Fraction(1, 3) + each)
        for function in (round, math.trunc, float, abs):
            try:
                found.append(function(each))
            except TypeError as error:  # an array is no number to round and trunc
                found.append(str(error))
    return found, a, b


def reads_one_row_at_a_time(x, w):
    out = []
    for row in w:
        out.append(row @ x)
    return np.stack(out), [w[i] for i in range(2)], w[-1], w.shape, w.T @ x


@pytest.mark.parametrize(
    "f",
    [keeps_types, leaves_early, writes_in_place, asks_for_numbers, without_dimensions, reads_one_row_at_a_time],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("count", [1, 7])
def test_equals_the_loop(f, count):
    map_equals_loop(f, vectors(count, 4), w=W)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_python_numbers_stay_weak(dtype):
    map_equals_loop(lambda x, k: (x * k + 1 / x, x**2, k - x), vectors(3, 4, dtype=dtype), [2, 2, 2])
    map_equals_loop(lambda x, k: x * k, vectors(3, 4, dtype=dtype), [2.5, -0.0, 7.0])


def test_the_sign_of_zero_is_kept():
    with np.errstate(divide="ignore"):
        results = ab.map(lambda x, k: 1 / (x * k), [np.ones(1)] * 2, [0.0, -0.0])
    assert [r[0] for r in results] == [np.inf, -np.inf]


@pytest.mark.parametrize("lengths", [(), (0,), (3, 0, 1), (4, 4, 4)])
def test_examples_of_any_length(lengths):
    def f(x, w):
        h = np.zeros(4, np.float32)
        for row in x:
            h = np.tanh(row @ w + h)
        return h, x.sum(0), x.T @ x

    map_equals_loop(f, [normal(n, 4, seed=n) for n in lengths], w=W)


def test_integers_and_objects_pass_as_they_are():
    def f(ids, name):
        return ids[ids > 1], ids.dtype, name.upper(), type(ids)

    map_equals_loop(f, [np.array([1, 2, 3]), np.array([0], np.int8)], ["a", "b"])


def test_containers_with_arrays_and_shared_parts():
    def f(example, scale):
        assert example["x"] is example["again"][0]
        return example["x"] * scale, example["n"]

    xs = vectors(3, 4)
    map_equals_loop(f, [{"x": x, "again": (x,), "n": i} for i, x in enumerate(xs)], scale=normal(4))


def test_a_structure_that_contains_itself():
    def ring(x):
        node = State(x)
        node.steps = node
        return node

    results = ab.map(lambda node, w: node.steps.h @ w, [ring(x) for x in vectors(3, 4)], w=W)
    assert_same(results, [x @ W for x in vectors(3, 4)])


def test_shared_results_are_arrays_of_their_own():
    first, second = ab.map(lambda x, w: w * 2, vectors(2, 4), w=W)
    first += 1
    np.testing.assert_array_equal(second, W * 2)


def test_an_input_that_is_returned_is_itself():
    xs = vectors(2, 4)
    assert all(out is x for out, x in zip(ab.map(lambda x: x, xs), xs, strict=True))


@pytest.mark.parametrize("large", [False, True])
def test_constants_written_to_after_they_were_used(large):
    n = 64 if large else 3

    def f(x):
        buffer = np.zeros((n, n), np.float32)
        first = x @ buffer
        buffer += 1
        return first, x @ buffer

    with ab.options(warn=False):
        map_equals_loop(f, vectors(3, n))


def test_closures_are_shared_or_stacked():
    small, large = normal(4, 4), [normal(64, 64, seed=i) / 8 for i in range(2)]
    assert map_equals_loop(lambda x: x @ small, vectors(5, 4)).launches == 1
    assert map_equals_loop(lambda x: np.tanh(x @ large[0]) @ large[1], vectors(5, 64)).launches == 3
    assert map_equals_loop(lambda x: x @ large[0] + x @ large[1], vectors(5, 64)).launches == 3


def test_a_map_inside_a_map():
    def f(x, w):
        return np.stack(ab.map(lambda row, scale: np.tanh(row * scale), [x, x + 1], scale=w[0]))

    assert map_equals_loop(f, vectors(9, 4), w=W).launches <= 5


def test_a_gradient_inside_a_map():
    def f(x, w):
        return ab.grad(lambda p: np.tanh(x @ p).sum())(w)

    assert map_equals_loop(f, vectors(9, 4), w=W).launches <= 12


def test_looks_up_rows_and_bags():
    def f(ids, table):
        rows = table[ids]
        h = np.zeros(4, np.float32)
        for row in rows:
            h = np.tanh(h + row)
        return (
            h,
            rows.sum(0),
            rows.mean(axis=0),
            np.max(rows, axis=0),
            rows[0],
            rows * 2,
            np.min(rows, 0),
            table[ids[-1]],
        )

    docs = [np.random.default_rng(n).integers(0, 20, n) for n in (3, 5, 1)]
    map_equals_loop(f, docs, table=TABLE)
    map_equals_loop(f, docs, table=ab.EmbeddingTable(TABLE))


def test_weighted_bags():
    def f(ids, weights, table):
        return (table[ids] * weights[:, None]).sum(0)

    def mirrored(ids, weights, table):
        return (weights[:, None] * table[ids]).sum(0)

    docs = [np.arange(n) for n in (3, 0, 5)]
    launched = []
    for each in (f, mirrored):
        stats = map_equals_loop(each, docs, [normal(n, seed=n) for n in (3, 0, 5)], table=TABLE)
        launched.append([op for op, _ in stats.by_signature])
    assert launched[0].count("segment") == 1
    assert launched[1] == launched[0]


def test_negative_ids_of_an_array():
    map_equals_loop(lambda ids, table: table[ids].sum(0), [np.array([-1, 2]), np.array([-20])], table=TABLE)


def test_a_decorated_method_keeps_its_object():
    class Model:
        def __init__(self, w):
            self.w = w

        @ab.batch
        def forward(self, x):
            return x * self.w

        @ab.batch
        @classmethod
        def name(cls, x):
            return cls.__name__, x.sum()

    xs = vectors(3, 2)
    assert_same(ab.map(Model(2.0).forward, xs), [x * 2.0 for x in xs])
    assert_same(ab.map(Model.name, xs), [("Model", x.sum()) for x in xs])


def test_several_iterables_and_generators():
    xs = vectors(3, 4)
    results = ab.map(lambda x, k: x * k, (x for x in xs), range(3))
    assert_same(results, loop(lambda x, k: x * k, xs, range(3)))


def test_results_that_outlive_the_map():
    kept = []
    ab.map(lambda x: kept.append(x * 2), vectors(3, 4))
    assert_same([np.asarray(x + 1) for x in kept], [x * 2 + 1 for x in vectors(3, 4)])


def test_writes_reach_the_views_of_an_input_and_back():
    def f(x):
        first, rest = x[0], x[1:]
        for row in rest:
            row *= 2
        x[0, 0] = 7.0
        rest[0] = first
        return x, first, rest, x[0, 0], list(x)

    xs = vectors(3, 3, 4)
    found = ab.map(f, [x.copy() for x in xs])
    assert_same(found, loop(f, [x.copy() for x in xs]))


def test_rows_of_an_input_by_position():
    def f(x, w):
        h = np.zeros(4, np.float32)
        for t in range(len(x)):
            h = np.tanh(x[t] @ w + h)
        return h, x[-1], x[1:3].sum(), x[::2]

    stats = map_equals_loop(f, [normal(n, 4, seed=n) for n in (3, 1, 6)], w=W)
    rows = {op: figures for (op, text), figures in stats.by_signature.items() if op == "matmul"}
    assert rows["matmul"][:2] == [10, 1]


def test_writes_into_what_was_computed_from_shared_arrays():
    def f(x, w):
        h = w[0] * 2
        h += x
        g = w.copy()
        g[0] = h
        g[1:] *= 2
        return h, g, w * 2

    map_equals_loop(f, vectors(3, 4), w=W)


def test_the_type_of_a_value_is_numpys():
    def f(x):
        if type(x) is np.ndarray and type(x[0]) is np.float64:
            return x * 2, type(x), type(x.sum() > 0), int
        return x * 3

    found = ab.map(f, [np.ones(2), np.ones(3)])
    assert [each[1:] for each in found] == [(np.ndarray, np.bool_, int)] * 2
