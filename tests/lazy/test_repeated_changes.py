"""Repeated maps under other values: never those of an earlier one in a result, an effect or an error."""

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, normal
from tests.lazy.repeated import same_as_loop
from tests.lazy.repeated import tables as params

SCALE = 2.0
LOG: list[int] = []


@ab.batch
def encode(tree, p):
    if isinstance(tree, int):
        return np.tanh(p["emb"][tree])
    return np.tanh(np.concatenate([encode(tree[0], p), encode(tree[1], p)]) @ p["w"])


def scores(tree, p):
    return encode(tree, p) @ p["out"]


def loss(tree, label, p):
    return ab.nn.cross_entropy(scores(tree, p), label)


def test_examples_met_before_are_copied_under_other_values():
    trees = [(3, (1, 4)), ((0, 3), (2, 2)), 1, ((1, (2, 3)), 0)]
    for epoch in range(4):
        same_as_loop(scores, trees, p=params(seed=epoch))


def test_gradients_of_copied_examples():
    trees, labels = [(1, (3, 4)), (2, 3), 0], [0, 2, 1]
    step = ab.value_and_grad(lambda p: np.mean(np.stack(ab.map(loss, trees, labels, p=p))))
    alone = ab.value_and_grad(lambda p: np.mean(np.stack([loss(t, n, p) for t, n in zip(trees, labels, strict=True)])))
    for epoch in range(3):
        p = params(seed=epoch)
        (value, gradient), (expected, wanted) = step(p), alone(p)
        assert_same(value, expected)
        for name in p:
            dense = [g.to_dense() if isinstance(g, ab.SparseRows) else g for g in (gradient[name], wanted[name])]
            assert_same(*dense)


def test_known_and_new_examples_run_together():
    known = [(3, (1, 2)), ((0, 3), (2, 2))]
    for _ in range(2):
        ab.map(scores, known, p=params())
    mixed = [(2, (4, 4)), known[1], ((1, 0), (2, 3)), known[0]]
    results, stats = map_with_stats(scores, mixed, p=params(seed=5))
    assert_same(results, loop(scores, mixed, p=params(seed=5)))
    with ab.options(blocks=False):
        assert map_with_stats(scores, mixed, p=params())[1].calls > stats.calls
    fresh = [((4, 2), 0), (1, (1, 1)), ((1, 0), (2, 3)), ((3, 3), (3, 3))]
    assert stats.launches == map_with_stats(scores, fresh, p=params())[1].launches


def test_op_by_op_and_by_blocks_are_kept_apart():
    trees = [(2, (1, 4)), (0, 3)]
    for blocks in (True, True, True, False, False, False):
        with ab.options(blocks=blocks):
            same_as_loop(scores, trees, p=params())


def shape_dependent(tree, p):
    return encode(tree, p)[: p["out"].shape[1]] * p["scale"]


@pytest.mark.parametrize("scale", [2, 2.0, True, np.float64(2), 3])
def test_other_shared_arguments_are_recorded_anew(scale):
    trees = [(3, (1, 2)), (0, 3)]
    for _ in range(3):
        same_as_loop(shape_dependent, trees, p={**params(), "scale": 2})
    same_as_loop(shape_dependent, trees, p={**params(), "scale": scale})
    same_as_loop(shape_dependent, trees, p={**params(dtype=np.float64), "scale": 2})
    same_as_loop(shape_dependent, trees, p={**params(size=6), "scale": 2})
    wide = {**params(), "scale": 2, "out": normal(4, 2, seed=3)}
    same_as_loop(shape_dependent, trees, p=wide)


def two(tree, p):
    return np.tanh(p["a"][tree[0]]) + np.tanh(p["b"][tree[1]])


def test_shared_arrays_that_were_one_and_are_two():
    a, b, trees = normal(4, 3), normal(4, 3, seed=1), [(0, 1), (2, 3)]
    for p in ({"a": a, "b": a}, {"a": a, "b": a}, {"a": a, "b": a}, {"a": a, "b": b}, {"a": b, "b": a}):
        same_as_loop(two, trees, p=p)


def test_an_id_beyond_a_smaller_table_raises():
    trees = [(3, (1, 4)), (0, 3)]
    for _ in range(3):
        same_as_loop(scores, trees, p=params())
    with pytest.raises(IndexError, match="id 4 is outside"):
        loop(scores, trees, p=params(rows=4))
    with pytest.raises(IndexError, match="id 4 is outside"):
        ab.map(scores, trees, p=params(rows=4))


def looks(tree, p):
    h = encode(tree, p)
    return h * 2 if p["flag"].max() > 0 else h


def looks_at_item(tree, p):
    h = encode(tree, p)
    return h * 2 if p["flag"][0] > 0 else h


def looks_by_bool(tree, p):
    h = encode(tree, p)
    return h * 2 if h[0] > 0 else h - 1


@pytest.mark.parametrize("f", [looks, looks_at_item, looks_by_bool])
def test_what_looks_at_a_value_is_not_copied(f):
    trees = [(3, (1, 2)), (0, 3)]
    for sign in (1, 1, 1, -1, -1):
        p = {**params(seed=3), "flag": np.full(2, sign, np.float32)}
        p["emb"] = ab.EmbeddingTable(p["emb"].weights * sign)
        same_as_loop(f, trees, p=p)


def scaled(tree, p):
    return scores(tree, p) * SCALE


def test_a_global_number_that_changes(monkeypatch):
    trees = [(3, (1, 2)), (0, 3)]
    for _ in range(3):
        same_as_loop(scaled, trees, p=params())
    monkeypatch.setitem(globals(), "SCALE", -1.0)
    same_as_loop(scaled, trees, p=params())


HELD: dict[str, type] = {"a dict": dict, "a list": list, "a set": set}


@pytest.mark.parametrize("make", HELD.values(), ids=HELD)
def test_a_container_outside_that_is_emptied(monkeypatch, make):
    monkeypatch.setitem(globals(), "HELD", held := make([("x", 1)]))

    def f(x):
        return x + 1 if HELD else x

    for _ in range(3):
        same_as_loop(f, [1.0, 2.0])
    held.clear()
    same_as_loop(f, [1.0, 2.0])


def test_a_function_called_that_changes(monkeypatch):
    trees = [(3, (1, 2)), (0, 3)]
    for _ in range(3):
        same_as_loop(scaled, trees, p=params())
    monkeypatch.setitem(globals(), "scores", lambda tree, p: encode(tree, p) * 3)
    same_as_loop(scaled, trees, p=params())


def test_code_and_defaults_that_change(monkeypatch):
    trees = [(3, (1, 2)), (0, 3)]
    for _ in range(3):
        same_as_loop(with_default, trees, p=params())
        same_as_loop(outer, trees, p=params())
    monkeypatch.setattr(with_default, "__defaults__", (5,))
    same_as_loop(with_default, trees, p=params())
    same_as_loop(outer, trees, p=params())
    monkeypatch.setattr(with_default, "__code__", other_default.__code__)
    same_as_loop(with_default, trees, p=params())
    same_as_loop(outer, trees, p=params())


def with_default(tree, p, factor=2):
    return np.tanh(p["w"][tree[0]]) * factor


def other_default(tree, p, factor=2):
    return np.tanh(p["w"][tree[0]]) - factor


def outer(tree, p):
    return with_default(tree, p)


def by_name(tree, p):
    return np.tanh(p["w"][tree[0]])


def test_a_function_of_numpy_that_is_replaced(monkeypatch):
    trees = [(3, (1, 2)), (0, 3)]
    for _ in range(3):
        same_as_loop(by_name, trees, p=params())
    monkeypatch.setattr(np, "tanh", np.sin)
    same_as_loop(by_name, trees, p=params())


def test_a_builtin_that_is_hidden(monkeypatch):
    trees = [(3, (1, 2)), (0, 3)]
    for _ in range(3):
        same_as_loop(by_length, trees, p=params())
    monkeypatch.setitem(globals(), "len", lambda tree: 0)
    same_as_loop(by_length, trees, p=params())


def by_length(tree, p):
    return np.tanh(p["w"][len(tree)])


def times(pair, p):
    return p["w"][0] * pair[0] * pair[1]


def test_examples_that_are_equal_and_differ():
    for pair in ((1, 2), (1.0, 2), (True, 2), (1, -0.0), (1, 0.0), (np.float32(1), 2)):
        for _ in range(3):
            (found,), (expected,) = ab.map(times, [pair], p=params()), loop(times, [pair], p=params())
            assert_same(found, expected)
            assert np.array_equal(np.signbit(found), np.signbit(expected))


def test_examples_of_which_one_cannot_tell_run_each_time():
    for example in ((3, Counted(2)), (3, {4}), (3, b"a"), (3, np.array(["a"])), (3, lambda: 0)):
        for _ in range(4):
            same_as_loop(first_row, [example], p=params())


class Counted:
    def __init__(self, word):
        self.word = word

    def __len__(self):
        return 1


def first_row(example, p):
    return np.tanh(p["w"][example[0]])


def logs(tree, p):
    LOG.append(tree[0])
    return np.tanh(p["w"][tree[0]])


def test_effects_happen_each_time():
    LOG.clear()
    trees = [(3, 1), (0, 3)]
    for _ in range(4):
        ab.map(logs, trees, p=params())
    assert LOG == [3, 0] * 4


def test_objects_among_the_shared_arguments():
    class Row:
        def __getitem__(self, index):
            LOG.append(index)
            return normal(4)

    LOG.clear()
    for _ in range(4):
        ab.map(first_row, [(3, 1)], p={"w": Row()})
    assert LOG == [3] * 4


def test_errors_are_those_of_the_loop():
    trees = [(3, 1), (9, 0), (0, 3)]
    for _ in range(4):
        with pytest.raises(IndexError, match="index 9 is out of bounds") as caught:
            ab.map(first_row, trees, p=params())
        assert any("1" in note for note in caught.value.__notes__)


def divides(pair, p):
    return p["w"][pair[0]] / pair[1]


def test_floating_point_errors_are_handled_as_they_are_now():
    pairs = [(0, 1.0), (1, 0.0)]
    with np.errstate(all="ignore"):
        for _ in range(3):
            ab.map(divides, pairs, p=params())
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="divide"):
        ab.map(divides, pairs, p=params())


def pairs_of(tree, p):
    h = encode(tree, p)
    return h, (h, tree[0]), h * 2


def test_structure_of_results():
    trees = [(3, (1, 2)), (0, 3)]
    for _ in range(4):
        found = ab.map(pairs_of, trees, p=params())
        assert_same(found, loop(pairs_of, trees, p=params()))
        assert all(one is other for one, (other, _), _ in found)


def lists_of(tree, p):
    return [encode(tree, p), tree]


def test_results_may_be_written_to():
    trees = [(3, (1, 2)), (0, 3)]
    for f in (scores, pairs_of, lists_of, with_constant):
        for _ in range(4):
            found = ab.map(f, trees, p=params())
            assert_same(found, loop(f, trees, p=params()))
            for each in found:
                if isinstance(each, list):
                    each.append(None)
                else:
                    array = each[0] if isinstance(each, tuple) else each
                    array[:] = np.nan


def with_constant(tree, p):
    return encode(tree, p) + np.arange(4, dtype=np.float32)


def views_of_constant(tree, p):
    c = np.zeros(4, np.float32)
    return c.reshape(2, 2), np.tanh(p["w"][tree]) + c


def test_constants_outlive_writes_to_their_views():
    for _ in range(4):
        found = ab.map(views_of_constant, [1], p=params())
        assert_same(found, loop(views_of_constant, [1], p=params()))
        found[0][0][:] = np.nan


def test_a_small_memory_budget():
    trees = [((i % 5, (1, i % 3)), i % 4) for i in range(20)]
    with ab.options(memory_budget=200):
        for epoch in range(4):
            same_as_loop(scores, trees, p=params(seed=epoch))
