"""Recorders of whole functions: the law, which examples they record, and what makes them give an example up.

To see these tests fail: leave the reads of `Constants.now` out, let `ExampleRecorder.record` keep the nodes of an
example that did not fit, or let `_is_suited` take every class.
"""

import collections
import dataclasses

import numpy as np
import pytest

import autobatch as ab
from autobatch.lazy.recorders.generated_recorders import forget_recorders
from tests.inspect import map_with_stats
from tests.law import assert_same, normal
from tests.lazy.tree_models import CASES, examples_of, shared_of, weights


@pytest.fixture(autouse=True)
def _fresh():
    forget_recorders()


def recorded(f, xs, **shared):
    """How many examples of a map a recorder records; the results are those of the loop."""
    found, stats = map_with_stats(f, xs, **shared)
    assert_same(found, [f(x, **shared) for x in xs], precision=4)
    assert stats.looped is None
    return stats.recorded


@pytest.mark.parametrize("name", CASES)
def test_all_but_the_first_example_are_recorded_without_running(name):
    f, p = CASES[name][0], shared_of(name)

    assert recorded(f, examples_of(name, 8), p=p) == 6
    assert recorded(f, examples_of(name, 5, seed=1), p=p) == 5
    assert recorded(f, examples_of(name, 1, seed=2), p=p) == 1
    assert recorded(f, [], p=p) == 0


LAUNCHES = {  # and calls of ops and blocks, of 20 new examples
    "helper": (8, 206),
    "no_block_of_its_own": (7, 186),
    "list_of_losses": (9, 542),
    "children_added_in_a_loop": (11, 234),
    "children_summed": (19, 387),
    "dataclass_states": (13, 368),
    "named_tuple_states": (13, 368),
    "methods": (7, 194),
    "losses_threaded": (6, 174),
    "total_from_zero": (3, 180),
    "floats_at_leaves": (7, 180),
    "recurrent": (9, 120),
    "method_of_nodes": (18, 438),
    "stack_machine": (7, 200),
    "states_by_key": (15, 371),
}


@pytest.mark.parametrize("name", CASES)
def test_new_examples_take_no_more_launches_and_calls_than_they_did(name):
    f, p = CASES[name][0], shared_of(name)
    for seed in range(3):
        _, stats = map_with_stats(f, examples_of(name, 20, seed=seed), p=p)
    launches, calls = LAUNCHES[name]
    assert stats.recorded == 20
    assert stats.launches <= launches
    assert stats.calls <= calls


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    f, p = CASES[name][0], shared_of(name)
    xs = examples_of(name, 6, seed=3)
    counts = []

    def mapped(p):
        found, stats = map_with_stats(f, xs, p=p)
        counts.append(stats.recorded)
        return sum([y.sum() for y in found])

    def looped(p):
        return sum([y.sum() for y in [f(x, p) for x in xs]])

    for _ in range(2):
        found, got = ab.value_and_grad(mapped)(p)
    expected, wanted = ab.value_and_grad(looped)(p)
    assert_same([found, got], [expected, wanted], precision=4)
    assert counts == [5, 6]


# What makes a recorder give up.


def outcome(run):
    """What a run gives or raises."""
    try:
        return run()
    except Exception as error:
        return type(error), str(error)


def agrees(f, xs, **shared):
    """How many examples were recorded; values, or the exception, are those of the loop."""
    expected = outcome(lambda: [f(x, **shared) for x in xs])
    counts = []

    def run():
        found, stats = map_with_stats(f, xs, **shared)
        counts.append(stats.recorded)
        return found

    found = outcome(run)
    if type(expected) is tuple:
        assert found == expected
    else:
        assert_same(found, expected, precision=4)
    return counts[0] if counts else None


SCALE = 2.0


def activation(x):
    return np.tanh(x) * SCALE


def sigmoid_like(x):
    return 1.0 / (1.0 + np.exp(-x))


def nested(tree, p):
    if isinstance(tree, int):
        return activation(p["emb"][tree] @ p["w"])
    left, right = tree
    return activation(np.concatenate([nested(left, p), nested(right, p)]) @ p["u"])


TREES = [((1, 2), 3), (4, (5, 6)), ((7, 8), (9, 10)), 11, (12, 13), ((14, (15, 16)), 17)]


def test_a_global_that_changes_between_maps(monkeypatch):
    p = weights()
    assert agrees(nested, TREES, p=p) == 5
    monkeypatch.setattr("tests.lazy.test_whole_functions.SCALE", -1.0)
    agrees(nested, TREES, p=p)
    monkeypatch.setattr("tests.lazy.test_whole_functions.activation", sigmoid_like)
    agrees(nested, TREES, p=p)
    monkeypatch.setattr(np, "tanh", np.sin)
    agrees(nested, TREES, p=p)
    agrees(nested, TREES[::-1], p=p)


def test_a_helper_that_gets_other_code():
    p = weights()

    def cell(x):
        return np.tanh(x)

    def other(x):
        return np.cos(x) * x

    space = {"np": np, "cell": cell}

    def model(t, p):
        return cell(p["emb"][t] @ p["w"]) @ p["out"]

    assert agrees(model, [1, 2, 3], p=p) == 2
    cell.__code__ = other.__code__
    agrees(model, [1, 2, 3], p=p)
    del space


class Meddler:
    """A pair that changes a global when it is taken apart."""

    def __iter__(self):
        global SCALE
        SCALE += 1.0
        return iter((1, 2))


def test_a_global_that_an_example_changes_in_the_middle_of_a_map(monkeypatch):
    p = weights()
    monkeypatch.setattr("tests.lazy.test_whole_functions.SCALE", 2.0)
    agrees(nested, TREES, p=p)
    xs = [*TREES[:3], Meddler(), *TREES[3:]]
    expected = [nested(x, p) for x in xs]
    monkeypatch.setattr("tests.lazy.test_whole_functions.SCALE", 2.0)
    found, _ = map_with_stats(nested, xs, p=p)
    assert_same(found, expected, precision=4)


@dataclasses.dataclass
class Leaf:
    word: int


@dataclasses.dataclass
class Fork:
    left: object
    right: object
    factor: float = 1.0


def of_objects(t, p):
    if isinstance(t, Leaf):
        return np.tanh(p["emb"][t.word] @ p["w"])
    return np.tanh(np.concatenate([of_objects(t.left, p), of_objects(t.right, p)]) @ p["u"] * t.factor)


def forks(count):
    return [Fork(Fork(Leaf(i), Leaf(i + 1)), Leaf(2), 0.5 + i) for i in range(count)]


def test_a_class_that_changes(monkeypatch):
    p = weights()
    assert agrees(of_objects, forks(5), p=p) == 4
    monkeypatch.setattr(Leaf, "word", property(lambda self: vars(self)["word"] + 1), raising=False)
    agrees(of_objects, [dataclasses.replace(x) for x in forks(0)] + forks_of_dicts(5), p=p)


def forks_of_dicts(count):
    """As `forks`, whose objects were made before their class changed."""
    out = []
    for i in range(count):
        leaves = [object.__new__(Leaf) for _ in range(3)]
        for leaf, word in zip(leaves, (i, i + 1, 2), strict=True):
            vars(leaf)["word"] = word
        out.append(Fork(Fork(leaves[0], leaves[1]), leaves[2], 0.5 + i))
    return out


def test_a_class_that_gets_an_item_protocol():
    class Odd:
        def __init__(self, word):
            self.word = word

        def __bool__(self):
            seen.append(self.word)
            return self.word > 2

    seen = []

    def model(t, p):
        return np.tanh(p["emb"][t.word] @ p["w"]) if t else np.cos(p["emb"][t.word] @ p["w"])

    xs = [Odd(i) for i in range(6)]
    assert agrees(model, xs, p=weights()) == 0
    assert seen == [*range(6), *range(6)]


@pytest.mark.parametrize("word", [np.int64(3), np.int32(3), True, -1, -50, 50, -51, 2.0, "a", None, np.array(3), [3]])
def test_an_index_of_another_type_or_out_of_range(word):
    agrees(nested, [*TREES[:3], (1, word), *TREES[3:]], p=weights())


def test_an_item_of_an_array_of_the_functions_surroundings():
    after = np.array([3, 1, 0, 2])

    def following(word, p):
        return np.tanh(p["emb"][after[word]] @ p["w"])

    words = [0, 1, 2, 3, -1, 1, 0, 2]
    recorded(following, words, p=weights())
    assert recorded(following, words, p=weights()) == len(words)
    after[:] = after[::-1].copy()
    assert recorded(following, words, p=weights()) == len(words)
    for odd in (np.int32(2), np.array([1, 2]), 4, "a"):
        agrees(following, [*words, odd, 3], p=weights())


def test_the_length_of_a_shared_array():
    def scaled(word, p):
        return np.tanh(p["emb"][word] / len(p["emb"]))

    words = [4, 0, 2, 2, 1, 3, 7, 5]
    recorded(scaled, words, p=weights())
    assert recorded(scaled, words, p=weights()) == len(words)
    short = weights() | {"emb": weights()["emb"][:9]}
    assert recorded(scaled, words, p=short) == len(words)


def _on_a_diagonal(rows, w):
    scale = np.diag(w)  # of a shared array, written into an array of each example's own
    h = np.zeros(3, np.float32)
    for row in rows:
        h = np.tanh(h @ scale + row) @ scale.T
    return h


def _split_of_a_diagonal(rows, w):
    left, right = np.split(np.diag(w), [1])
    h = np.zeros(3, np.float32)
    for row in rows:
        h = np.tanh((left @ h)[0] * h + row @ right.T @ right)
    return h


@pytest.mark.parametrize("f", [_on_a_diagonal, _split_of_a_diagonal])
def test_what_each_example_computes_of_shared_arrays_is_an_operand(f):
    xs = [normal(i % 4, 3, seed=i) for i in range(20)]
    for _ in range(3):
        recorded(f, xs, w=normal(3, seed=3))
    assert recorded(f, xs[:1], w=normal(3, seed=4)) in (0, 1)
    ab.testing.assert_equivalent(f, xs, w=normal(3, seed=3))


@pytest.mark.parametrize("factor", [2, np.float32(2), True, 1j, np.float64(2), -0.0, np.nan, "a", None, np.ones(6)])
def test_a_number_of_another_type(factor):
    xs = forks(6)
    xs[3].factor = factor
    agrees(of_objects, xs, p=weights())


def test_the_first_example_that_fails_raises():
    xs = [*TREES[:2], (1, (2,)), TREES[3], (5000, 1), TREES[4]]
    agrees(nested, xs, p=weights())
    agrees(nested, xs[3:], p=weights())


def test_trees_as_deep_as_python_goes():
    def left_deep(depth):
        tree = 1
        for i in range(depth):
            tree = (tree, i % 50)
        return tree

    p = weights()
    assert agrees(nested, [TREES[0], left_deep(300), left_deep(400)], p=p) == 2
    agrees(nested, [TREES[0], TREES[1], left_deep(5000), TREES[2]], p=p)


def test_what_a_function_does_to_its_examples():
    def visiting(t, p):
        t.append(len(t))
        return np.tanh(p["emb"][t[0]] @ p["w"])

    def marking(t, p):
        t[0] = t[0] + 1
        return np.tanh(p["emb"][t[0]] @ p["w"])

    for f in (visiting, marking):
        xs, ys = [[i] for i in range(5)], [[i] for i in range(5)]
        expected = [f(x, weights()) for x in xs]
        found, stats = map_with_stats(f, ys, p=weights())
        assert_same(found, expected, precision=4)
        assert ys == xs
        assert stats.recorded == 0


def test_generators_and_handlers_run_as_python():
    def words(t):
        if isinstance(t, int):
            yield t
        else:
            for each in t:
                yield from words(each)

    def summed(t, p):
        total = p["emb"][0] * 0.0
        for word in words(t):
            total = total + np.tanh(p["emb"][word] @ p["w"])
        return total

    def tried(t, p):
        try:
            return np.tanh(p["emb"][t] @ p["w"])
        except TypeError:
            return np.cos(p["emb"][t[0]] @ p["w"])

    agrees(summed, TREES, p=weights())
    agrees(tried, [1, (2, 3), 4, (5, 6)], p=weights())


def test_functions_made_anew_for_each_map():
    for scale in (1.0, 2.0, 2.0, -3.0):

        def model(t, p, scale=scale):
            return np.tanh(p["emb"][t] @ p["w"]) * scale

        def closed(t, p, scale=scale):
            def inner(u):
                return np.tanh(p["emb"][u] @ p["w"]) * scale + np.cos(p["b"])

            return inner(t)

        agrees(model, [1, 2, 3], p=weights())
        agrees(closed, [1, 2, 3], p=weights())


def test_shared_arguments_of_other_shapes_and_structure():
    p, q = weights(), {name: x.astype(np.float64) for name, x in weights(1).items()}
    assert agrees(nested, TREES, p=p) == 5
    agrees(nested, TREES, p=q)
    agrees(
        nested, TREES, p={**p, "w": ab.EmbeddingTable(p["w"])} if False else {**p, "emb": ab.EmbeddingTable(p["emb"])}
    )
    assert agrees(nested, TREES, p=p) == 6
    agrees(nested, TREES, p={**p, "emb": p["emb"][:20]})


def test_results_of_all_structures():
    def structured(t, p):
        h = np.tanh(p["emb"][t[0]] @ p["w"])
        both = [h, h + 1.0]
        return (both, both, h, t[1], len(t), None, "text", h.shape[0])

    xs = [(1, 2.5), (2, 3), (3, "x"), (4, None), (5, [1]), (6, (1,))]
    found, stats = map_with_stats(structured, xs, p=weights())
    assert_same(found, [structured(x, weights()) for x in xs], precision=4)
    for each in found:
        assert each[0] is each[1]
        assert each[0][0] is each[2]
    assert stats.recorded == 3  # not what gives parts of its example
    assert found[4][3] is xs[4][1]


def test_a_small_memory_budget():
    p = weights()
    xs = TREES * 20
    with ab.options(memory_budget=2000):
        found, stats = map_with_stats(nested, xs, p=p)
    assert_same(found, [nested(x, p) for x in xs], precision=4)
    assert stats.rounds > 2
    assert stats.recorded > 0


def test_containers_with_code_of_their_own():
    class Loud(list):
        def __getitem__(self, at):
            heard.append(at)
            return super().__getitem__(at)

    heard = []

    def model(t, p):
        return np.tanh(p["emb"][t[0]] @ p["w"])

    agrees(
        model,
        [[1], [2], Loud([3]), (4,), collections.defaultdict(int, {0: 5}), collections.defaultdict(int)],
        p=weights(),
    )
    assert heard == [0, 0]


def test_a_spent_memory_budget_costs_no_example_its_recorder():
    name = next(iter(CASES))
    f, p, xs = CASES[name][0], shared_of(name), examples_of(name, 40)
    recorded(f, xs, p=p)
    with ab.options(memory_budget=8_000):
        found, stats = map_with_stats(f, xs, p=p)
    assert_same(found, [f(x, p=p) for x in xs], precision=4)
    assert stats.rounds > 4
    assert stats.recorded == len(xs)


Pair = collections.namedtuple("Pair", "x y")


def _kept_by_key(x):
    d = {}
    d[0] = 1
    return d[len(x) % 3]


def _taken_off(x):
    s, n = [0, 0, 0], 0
    while s:
        s.pop()
        n += 1
    return n, s


def _taken_off_while_there(x):
    s, out = [7, 7, 7], []
    while len(s) > 1:
        out.append(s.pop())
    return out, s


def _read_for_nothing(x):
    d = {0: 1}
    d[len(x) % 3]
    return x.sum()


def _divided_for_nothing(x):
    1 / (len(x) - 5)
    return x.sum()


def _grown(x):
    s = []
    for _ in x:
        s.append(1)
    return s[2]


def _until_the_end(x):
    s, i = [1] * (len(x) + 1), 0
    while s[i] == 1 and i < 3:
        i += 1
    return i


ITEMS_OF_ONE_CONSTANT = {
    "of a dict": lambda x: {0: 1}[len(x) % 3],
    "of a list": lambda x: [1, 1][len(x) % 3],
    "None": lambda x: [None][len(x) % 3],
    "of a comprehension": lambda x: [1 for _ in range(1)][len(x) % 3],
    "taken": lambda x: [1].pop(len(x) % 3),
    "a function": lambda x: [np.tanh][len(x) % 3](x).sum(),
    "a lambda": lambda x: [lambda v: v + 1][len(x) % 3](2),
    "within": lambda x: [[1]][0][len(x) % 3],
    "of several": lambda x: [[1][i] for i in range(len(x) % 3)],
    "by key, set before": _kept_by_key,
    "beside another": lambda x: (1 / (len(x) - 5), 1)[1],
    "beside another in a dict": lambda x: {"a": [7][len(x) % 3], "b": 1}["b"],
    "beside another in an object": lambda x: Pair(x[2], 1).y,
    "taken off": _taken_off,
    "taken off while there": _taken_off_while_there,
    "read for nothing": _read_for_nothing,
    "divided for nothing": _divided_for_nothing,
    "of a list that grew": _grown,
    "until the end": _until_the_end,
}


@pytest.mark.parametrize("name", ITEMS_OF_ONE_CONSTANT)
def test_an_item_that_is_known_is_read_all_the_same(name):
    """A list whose items are all the same number has no item past its end either."""
    f = ITEMS_OF_ONE_CONSTANT[name]
    for lengths in ((3, 0, 3), (3, 0, 5, 1), (5,)):
        xs = [np.ones(n) for n in lengths]
        want = outcome(lambda: [f(x) for x in xs])  # noqa: B023
        found = outcome(lambda: ab.map(f, xs))  # noqa: B023
        assert (type(found), repr(found)) == (type(want), repr(want))


def test_arguments_left_at_their_defaults_are_recorded():
    def steps(x, w, scale=2.0, shift=1.0, *, factor=0.5):
        h = np.zeros(2)
        for row in x:
            h = np.tanh(row @ w * scale + h * factor + shift)
        return h

    xs, w = [normal(1 + i % 4, 3, seed=i, dtype=np.float64) for i in range(12)], normal(3, 2, dtype=np.float64)
    for _ in range(2):
        found, stats = map_with_stats(steps, xs, w=w)
        assert_same(found, [steps(x, w) for x in xs])
    assert stats.recorded == len(xs)
