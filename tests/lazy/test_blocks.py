"""Blocks: the law with them and without, what must stay op by op, and how many launches are left.

To see these tests fail: let `Block._follow` read properties, let `BlockForm._opaque` move calls past operations, let
`blocks.tracing.trace` accept views as outputs, or leave `Guard`s out.
"""

import types
import unittest.mock

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats, noted_fallbacks
from tests.law import assert_same, garbage_of, loop, normal, vectors
from tests.lazy import programs_objects, programs_syntax
from tests.lazy.programs_effects import CASES, LOG

assert {programs_objects.__name__, programs_syntax.__name__} <= {f.__module__ for f in CASES.values()}
W, B = normal(4, 4, seed=1), normal(4, seed=2)


def outcome(run, f, xs):
    """What a run gives, raises, notes, leaves in its arguments, and whether it had to be repeated as a loop."""
    LOG.clear()
    xs = [x.copy() for x in xs]
    with noted_fallbacks() as fallbacks:
        try:
            results, error = run(f, xs), None
        except Exception as raised:
            results, error = None, (type(raised), str(raised))
    repeated = any("could not run these examples together" in reason for reason in fallbacks)
    return results, error, list(LOG), xs, repeated


def by_map(blocks):
    def run(f, xs):
        with ab.options(blocks=blocks):
            return ab.map(f, xs, w=W, b=B)

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_blocks_change_nothing(name):
    f = CASES[name]
    xs = vectors(6, 4, seed=3)
    expected = outcome(lambda f, xs: loop(f, xs, w=W, b=B), f, xs)
    op_by_op = outcome(by_map(False), f, xs)
    in_blocks = outcome(by_map(True), f, xs)
    for found in (op_by_op, in_blocks):
        assert found[1] == expected[1]
        if expected[1] is None:
            assert_same(found[0], expected[0], precision=4)
        assert_same(found[3], expected[3])
    assert in_blocks[2] == op_by_op[2]
    assert in_blocks[4] == op_by_op[4]


def blocks_of(stats):
    """{name: [calls, launches, seconds]} of the blocks among what was launched."""
    return {op: row for (op, _), row in stats.by_signature.items() if op.startswith("block ")}


OF_ITS_OWN = {"comparisons", "keyword_arguments_of_numpy", "shapes_of_python"}  # no weights: it stays in Python
OP_BY_OP = OF_ITS_OWN | {
    "a_call_changes_a_container",
    "a_call_writes_between",
    "a_division_raises",
    "a_helper_returns_a_view",
    "a_key_is_missing",
    "a_property",
    "a_property_writes",
    "it_looks_at_its_names",
    "operators_of_the_users_own",
    "scalars_and_0_d_arrays",
    "the_same_object",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_provably_pure_stays_op_by_op(name):
    xs = vectors(3, 4, seed=3)
    if name == "shapes_disagree":
        with pytest.raises(ValueError, match="broadcast"):
            map_with_stats(CASES[name], xs, w=W, b=B)
        return
    _, stats = map_with_stats(CASES[name], xs, w=W, b=B)
    assert bool(blocks_of(stats)) == (name not in OP_BY_OP)


def check(f, *columns, **shared):
    """As the loop; returns what was launched with blocks."""
    results, stats = map_with_stats(f, *columns, **shared)
    assert_same(results, loop(f, *columns, **shared))
    return stats


def mlp(x, w):
    h = np.tanh(x @ w + 1) * 0.5
    h = np.tanh(h @ w + 1) * 0.5
    return h.sum()


@pytest.mark.parametrize("count", [1, 2, 64])
def test_a_straight_line_is_one_launch(count):
    stats = check(mlp, vectors(count, 4), w=W)
    assert (stats.launches, stats.calls) == (1, count)


def test_no_example_is_no_launch():
    assert map_with_stats(mlp, [], w=W)[0] == []


def test_without_blocks_each_op_is_launched():
    with ab.options(blocks=False):
        assert check(mlp, vectors(3, 4), w=W).launches == 9


def test_equal_runs_of_several_places_go_together():
    def f(x, w):
        if x[0] > 0:
            return np.tanh(x @ w) + 1
        h = np.tanh(x @ w) + 1
        return h * 1  # another run, around the same operations

    def g(x, w):
        if x[0] > 0:
            return np.tanh(x @ w) + 1
        return np.tanh(x @ w) + 1

    assert len(blocks_of(check(f, vectors(8, 4), w=W))) == 2
    (row,) = blocks_of(check(g, vectors(8, 4), w=W)).values()
    assert row[:2] == [8, 1]


def sigmoid(x):
    """A helper of the kind that users write."""
    return 1 / (1 + np.exp(-x))


def gate(x, scale=2.0):
    y = sigmoid(x) * scale
    return y - x


def noted(x):
    LOG.append("noted")
    return np.tanh(x) * 2


def test_helpers_that_only_compute_are_part_of_the_block():
    stats = check(lambda x, w: gate(x @ w) + gate(x, 3.0) * sigmoid(x), vectors(5, 4), w=W)
    assert stats.launches == 1


def test_helpers_with_effects_are_called_for_each_example():
    LOG.clear()
    stats = check(lambda x, w: noted(x @ w) + noted(x) * 2, vectors(5, 4), w=W)
    assert LOG == ["noted"] * 20  # the map's and the loop's
    assert len(blocks_of(stats)) >= 1


def test_a_helper_that_is_rebound_is_seen(monkeypatch):
    def f(x):
        return sigmoid(x) * 2 + 1

    check(f, vectors(3, 4))
    monkeypatch.setitem(globals(), "sigmoid", lambda x: x * 10)
    assert float(ab.map(f, [np.ones(1)])[0][0]) == 21.0


def raised(x, *, offset=1.0):
    return np.tanh(x) + offset


@ab.batch
def decorated(x, *, offset=1.0):
    return np.tanh(x) + offset


def test_defaults_of_helpers_that_change_are_seen(monkeypatch):
    def f(x):
        return raised(x) * 2 + decorated(x)

    check(f, vectors(3, 4))
    monkeypatch.setitem(raised.__kwdefaults__, "offset", 2.0)
    check(f, vectors(3, 4))
    monkeypatch.setattr(decorated.__wrapped__, "__kwdefaults__", {"offset": 5.0})
    check(f, vectors(3, 4))


@pytest.mark.parametrize("blocks", [True, False])
def test_numpy_rebound_is_seen(monkeypatch, blocks):
    def f(x):
        return np.tanh(x) * 2 + 1

    with ab.options(blocks=blocks):
        check(f, vectors(3, 4))
        with unittest.mock.patch.object(np, "tanh", lambda x: x * 10):
            assert float(ab.map(f, [np.ones(1)])[0][0]) == 21.0
        monkeypatch.setitem(globals(), "np", types.SimpleNamespace(tanh=lambda x: x * 100))
        (result,) = ab.map(f, [ones()])
    assert float(result[0]) == 201.0


def ones(numpy=np):
    return numpy.ones(1)


SCALE = 2.0
TABLE = normal(4, 4, seed=5)


def test_global_values_are_read_at_each_call(monkeypatch):
    def f(x):
        return np.tanh(x * SCALE) @ TABLE + SCALE

    xs = vectors(3, 4)
    check(f, xs)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    check(f, xs)
    monkeypatch.setitem(globals(), "TABLE", TABLE * 2)
    check(f, xs)


def test_a_global_array_written_to_between_calls(monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", TABLE.copy())

    def f(x):
        y = np.tanh(x @ TABLE) + 1
        TABLE[0] += 1
        return y * 2 + TABLE[0]

    xs = vectors(3, 4)
    TABLE[:] = 1
    found = ab.map(f, xs)
    TABLE[:] = 1
    assert_same(found, loop(f, xs))


class Cell:
    def __init__(self, w):
        self.w = w
        self.layers = [{"b": B}, {"b": B * 2}]

    def __call__(self, x):
        return np.tanh(x @ self.w) + self.layers[1]["b"]

    def twice(self, x):
        return self(self(x)) * 2


def test_methods_and_what_objects_hold():
    cell = Cell(W)
    stats = check(lambda x: cell.twice(x) + cell(x), vectors(5, 4))
    assert sum(row[0] for row in blocks_of(stats).values()) == 5 * 3
    assert stats.launches <= 5


def test_an_attribute_that_changes_between_examples():
    cell = Cell(W)

    def f(x, k):
        cell.w = W * k
        return np.tanh(x @ cell.w) + x

    check(f, vectors(4, 4), [1, 2, 3, 4])


def test_outputs_are_rows_of_their_own():
    def f(x, w):
        i, o = np.split(np.tanh(x @ w), 2)
        c = i * o + 1
        h = c * 2 - i
        return h, c

    def g(x, w):
        h, c = f(x, w)
        k, d = f(np.concatenate([h, c]), w)
        h += 1
        return h, c, k, d

    stats = check(g, vectors(9, 4), w=W)
    assert stats.launches == 4  # two blocks, a concatenation, an addition


def test_a_small_budget_launches_several_outputs_in_segments():
    def f(x, w):
        for _ in range(6):
            y = np.tanh(x @ w) + 1
            x = y * x - 1
            x = x / 2 + y
        return x, y

    with ab.options(memory_budget=200):
        assert check(f, vectors(5, 4), w=W).rounds > 4


def test_a_value_that_is_needed_parks_the_example():
    def f(x, w):
        steps = 0
        while (x * x).sum() + steps < 6 and steps < 9:
            x = np.tanh(x @ w) * 1.5
            steps += 1
        return x, steps

    check(f, [np.float32(k) * x for k, x in enumerate(vectors(8, 4))], w=W)


@pytest.mark.parametrize("scheduler", ["depth", "agenda", "frontier", "auto"])
def test_schedulers_take_several_outputs(scheduler):
    def f(x, w):
        a, b = np.tanh(x @ w) * 2, np.tanh(x) + 1
        return a @ w + b if a[0] > 0 else np.exp(b) * a

    with ab.options(scheduler=scheduler):
        check(f, vectors(16, 4), w=W)


def test_errstate_goes_with_the_block():
    def f(x):
        with np.errstate(divide="raise"):
            y = np.log(x) * 2
        return y + np.log(x * 0) * 0

    with np.errstate(divide="ignore", invalid="ignore"), pytest.raises(FloatingPointError, match="divide by zero"):
        ab.map(f, [np.ones(2), np.zeros(2)])
    with np.errstate(divide="ignore", invalid="ignore"):
        check(f, [np.ones(2), np.ones(2)])


def test_a_warning_of_a_block():
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        ab.map(lambda x: np.log(x) * 2 + 1, [np.zeros(2)])


def test_numbers_of_python_are_operands():
    def f(x, k):
        return x * k + (1 - k) * x

    stats = check(f, vectors(4, 4), [0.5, 0.25, -0.0, 2.0])
    assert len(blocks_of(stats)) >= 1
    check(f, vectors(4, 4), [1, 2, True, 2.5])


def test_rows_of_tables():
    def f(word, emb, w):
        h = np.tanh(emb[word] @ w) + 1
        return h, emb[word] * 2 - h

    words = [0, 3, np.int64(2), 3]
    for emb in (normal(5, 4), ab.EmbeddingTable(normal(5, 4))):
        stats = check(f, words, emb=emb, w=W)
        assert stats.launches <= 2
    check(f, [0, -1], emb=normal(5, 4), w=W)
    with pytest.raises(IndexError, match="example 1"):
        ab.map(f, [0, 7], emb=normal(5, 4), w=W)


def test_a_row_that_lives_on_stays_a_view():
    def f(word, emb):
        row = emb[word]
        h = row * 2 + 1
        return row, h

    check(f, [0, 1, 1], emb=normal(5, 4))


@pytest.mark.parametrize("blocks", [True, False])
def test_a_row_that_is_written_to_is_the_tables(blocks):
    def row_and_more(word, emb):
        return emb[word], emb[word] * 2 + 1

    def f(word, emb):
        row, more = row_and_more(word, emb)
        row[0] = 9.0
        return row, more, emb[0] * 1

    tables = normal(5, 4), normal(5, 4)
    with ab.options(blocks=blocks), noted_fallbacks() as found:
        results = ab.map(f, [0, 1, 1], emb=tables[0])
    assert len(found) == 1
    assert_same(results, loop(f, [0, 1, 1], emb=tables[1]))
    assert_same(tables[0], tables[1])


def test_explain_names_the_lines():
    report = ab.explain(mlp, vectors(3, 4), w=W)
    (row,) = report.rows
    first = mlp.__code__.co_firstlineno
    assert row.op == f"block test_blocks.py:{first + 1}-{first + 3}"
    assert row.signature.startswith("float32[4], float32[4, 4]s: matmul, add, tanh, multiply")
    assert "block test_blocks.py" in str(report)


def test_a_map_with_blocks_leaves_no_garbage():
    xs = vectors(5, 4)
    with ab.options(kernels=False):  # loading one that has become ready leaves some
        assert garbage_of(lambda: ab.map(mlp, xs, w=W)) == 0
