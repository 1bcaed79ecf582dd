"""Examples of any length are recorded without running, as calls of one signature, and give what each gives alone."""

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, map_equals_loop, normal

D = 4
W, V, TABLE = (normal(D, D, seed=1), normal(D, seed=2), normal(9, D, seed=3))
PARAMS = {"w": W, "v": V, "table": TABLE}
LENGTHS = [3, 5, 8, 13, 2, 21, 7, 6, 9, 4, 11, 12, 17, 30]


def examples(lengths, seed=0):
    return [normal(n, D, seed=n + 100 * i + seed) for i, n in enumerate(lengths)]


def ids_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, len(TABLE), n) for n in lengths]


def pooled(x, p):
    return np.tanh(x @ p["w"]).sum(0)


def ragged_result(x, p):
    return np.tanh(x @ p["w"]) * p["v"]


def differences(x, p):
    return np.tanh(x[1:] @ p["w"] - x[:-1] @ p["w"]).sum(0)


def twice_as_long(x, p):
    return np.concatenate([x @ p["w"], x @ p["w"] * 2]) + p["v"]


def number_of_rows(x, p):
    return (x @ p["w"]).sum(0) / x.shape[0] + p["v"]


def squeezed(x, p):  # of one row no dimension is left
    return (x @ p["w"][:, :1]).squeeze() * 2 + 1


def to_itself(x, p):
    return (ab.nn.softmax((x @ p["w"]) @ x.T, axis=-1) @ x).sum(0)


def helper(x, w):
    return np.tanh(x @ w).mean(0)


def by_a_helper(x, p):
    return helper(x, p["w"]) * 2


def of_rows(ids, p):
    return np.tanh(p["table"][ids] @ p["w"]).sum(0) * 2


def attended(ids, p):
    rows = p["table"][ids]
    return ab.nn.softmax(rows @ p["v"] + 1) @ rows


def looked_up(ids, p):
    return p["table"][ids]


def linear(x, p):
    return x @ p["w"] + p["v"]


def by_layers(ids, p):  # operations between calls are no part of a line of several
    return linear(looked_up(ids, p), p).sum(0)


def of_several_arrays(ids, p):
    x = looked_up(ids, p)
    y = linear(x, p)
    z = ab.nn.softmax(y, axis=0)
    return y.sum(0), z.T @ x, y.max(1)


BY_LAYERS = {by_layers: 3, of_several_arrays: 4}
ON_ROWS = (pooled, ragged_result, differences, twice_as_long, squeezed, to_itself, by_a_helper)
ON_IDS = (of_rows, attended)


@pytest.mark.parametrize("f", [*ON_ROWS, *ON_IDS], ids=lambda f: f.__name__)
def test_one_signature_serves_all_lengths(f):
    make = ids_of if f in ON_IDS else examples
    batched = ab.batch(f)
    for seed in range(2):
        results, report = map_with_stats(batched, make(LENGTHS, seed), p=PARAMS)
        assert_same(results, loop(f, make(LENGTHS, seed), p=PARAMS))
    assert report.recorded == len(LENGTHS), "the second time nothing has to run"
    assert report.launches == (1 if f in ON_ROWS else 2)
    assert report.looped is None
    for seed in range(2, 4):  # lengths that no recorder has met
        lengths = [40 + seed, 19, *LENGTHS, 33]
        results, report = map_with_stats(batched, make(lengths, seed), p=PARAMS)
        assert_same(results, loop(f, make(lengths, seed), p=PARAMS))
        assert report.recorded == len(lengths)


@pytest.mark.parametrize("f", BY_LAYERS)
def test_an_operation_between_calls_serves_all_lengths(f):
    for lengths in (LENGTHS, [*LENGTHS, 1, 0, 2], [4, 4, 4], []):
        for seed in range(2):
            xs = ids_of(lengths, seed)
            results, report = map_with_stats(f, xs, p=PARAMS)
            assert_same(results, loop(f, xs, p=PARAMS))
        if lengths == LENGTHS:
            assert (report.recorded, report.launches) == (len(xs), BY_LAYERS[f])


@pytest.mark.parametrize("f", [*ON_ROWS, *ON_IDS, number_of_rows], ids=lambda f: f.__name__)
@pytest.mark.parametrize("lengths", [[1], [5, 1, 4, 1, 1, 9, 1, 3, 2, 1], [7] * 5])
def test_the_shortest_run(f, lengths):
    make = ids_of if f in ON_IDS else examples
    batched = ab.batch(f)
    for lens in (LENGTHS, lengths, LENGTHS + lengths):
        map_equals_loop(batched, make(lens), p=PARAMS)


@pytest.mark.parametrize("f", [pooled, ragged_result, of_rows], ids=lambda f: f.__name__)
def test_none_at_all(f):
    make = ids_of if f in ON_IDS else examples
    map_equals_loop(ab.batch(f), make([*LENGTHS, 0, 3, 0]), p=PARAMS)


@pytest.mark.parametrize("f", [pooled, differences, to_itself, of_rows, attended, by_layers], ids=lambda f: f.__name__)
def test_gradients(f):
    make = ids_of if f in (*ON_IDS, by_layers) else examples

    def total(params, xs):
        return ab.sum(np.stack(ab.map(ab.batch(f), xs, p=params)))

    def summed(params, xs):
        return np.sum(np.stack([f(x, params) for x in xs]))

    xs = make(LENGTHS)
    for _ in range(2):
        found = ab.value_and_grad(total)(PARAMS, xs)
    assert_same(found, ab.value_and_grad(summed)(PARAMS, xs))


@ab.batch
def with_steps_in_sizes(x, p):
    return (x @ p["w"]) * (x.shape[0] == 7) + x.shape[0] % 3


@ab.batch
def with_a_bound(x, p):
    return np.tanh(x[:5] @ p["w"]) * 2


@ab.batch
def with_a_bound_from_the_end(x, p):
    return np.tanh(x[6:] @ p["w"]) * 2


@pytest.mark.parametrize("f", [with_steps_in_sizes, with_a_bound, with_a_bound_from_the_end], ids=str)
def test_what_does_not_follow_from_the_lengths(f):
    for _ in range(2):
        map_equals_loop(f, examples(LENGTHS), p=PARAMS)


@ab.batch
def with_equal_lengths(x, y, p):
    return np.tanh(x @ p["w"]).sum(0) * (x.shape[0] == y.shape[0]) + np.tanh(y @ p["w"]).max(0) * 2


def test_lengths_that_are_equal_by_chance():
    ys = examples([n if i % 2 else n + 1 for i, n in enumerate(LENGTHS)], seed=7)
    for way in ("fly", "lockstep"):
        with ab.options(way=way):
            for _ in range(3):
                map_equals_loop(with_equal_lengths, examples(LENGTHS), ys, p=PARAMS)


@ab.batch
def by_a_number(x, p):  # which the block is given from outside
    return x[0] * np.float32(len(x)) + x[-1] * p["v"]


@ab.batch
def by_two_numbers(x, p):
    return np.tanh(x @ p["w"]) * 2 if len(x) % 2 else np.tanh(x @ p["w"]) * 3


@pytest.mark.parametrize("f", [by_a_number, by_two_numbers], ids=str)
def test_calls_that_differ_in_numbers_are_not_taken_for_one(f):
    for seed in range(3):
        map_equals_loop(f, examples([*LENGTHS, *LENGTHS], seed), p=PARAMS)


@ab.batch
def likeness(x, y, p):
    return (np.tanh(x @ p["w"]) @ np.tanh(y @ p["w"]).T).max(1).sum()


def test_two_arrays_of_any_length():
    ys = examples(LENGTHS[::-1], seed=7)
    for _ in range(2):
        _, report = map_with_stats(likeness, examples(LENGTHS), ys, p=PARAMS)
    assert (report.recorded, report.launches) == (len(LENGTHS), 1)
    map_equals_loop(likeness, examples(LENGTHS), ys, p=PARAMS)


def test_two_arrays_that_have_to_be_of_one_length():
    @ab.batch
    def f(x, y, p):
        return np.tanh(x + y) @ p["v"]

    ys = examples(LENGTHS, seed=7)
    for _ in range(2):
        map_equals_loop(f, examples(LENGTHS), ys, p=PARAMS)
    with pytest.raises(ValueError, match="broadcast"):
        ab.map(f, examples(LENGTHS), [*ys[:-1], ys[0]], p=PARAMS)


CUT = [  # the first, second, third and fourth length that a call depends on, near the shortest and the longest
    lambda a, b, c, d: np.tanh(a[3:]) * 2,
    lambda a, b, c, d: np.tanh(a[:510]) * 2,
    lambda a, b, c, d: a.max(0) * np.tanh(b[3:]),
    lambda a, b, c, d: a.max(0) * np.tanh(b[:510]),
    lambda a, b, c, d: a.max(0) * b.max(0) * np.tanh(c[3:]),
    lambda a, b, c, d: a.max(0) * b.max(0) * np.tanh(c[:510]),
    lambda a, b, c, d: a.max(0) * b.max(0) * c.max(0) * np.tanh(d[3:]),
    lambda a, b, c, d: a.max(0) * b.max(0) * c.max(0) * np.tanh(d[:510]),
]


@pytest.mark.parametrize("f", CUT)
def test_rows_that_only_the_shortest_or_the_longest_lack(f):
    batched = ab.batch(f)
    for seed in range(2):
        columns = [examples([2, 3, 511, 5, 512], 9 * seed + place) for place in range(4)]
        results, stats = map_with_stats(batched, *columns)
        assert_same(results, loop(f, *columns))
        assert stats.looped is None


def test_ids_out_of_range_are_errors_of_their_example():
    batched = ab.batch(of_rows)
    xs = ids_of(LENGTHS)
    for _ in range(2):
        ab.map(batched, xs, p=PARAMS)
    for wrong in (9, -10):
        bad = [*xs[:5], np.array([1, wrong, 2]), *xs[5:]]
        with pytest.raises(IndexError, match=r"index|id") as caught:
            ab.map(batched, bad, p=PARAMS)
        assert "example 5" in "\n".join(caught.value.__notes__)
    below = [*xs[:5], np.array([1, -2, -9], np.int32), *xs[5:]]
    map_equals_loop(batched, below, p=PARAMS)


def test_ids_are_read_when_they_are_used():
    @ab.batch
    def f(ids, p):
        out = np.tanh(p["table"][ids] @ p["w"]).sum(0)
        ids[:] = 0
        return out

    expected = loop(f, [ids.copy() for ids in ids_of(LENGTHS)], p=PARAMS)
    for _ in range(2):
        assert_same(ab.map(f, ids_of(LENGTHS), p=PARAMS), expected)


def encoded(x, p):
    return np.tanh(x @ p["w"]) * p["v"]


@ab.batch
def two_towers(x, y, p):  # one helper, for arrays of other lengths
    return (encoded(x, p) @ encoded(y, p).T).max(1).sum()


@ab.batch
def one_of_two(x, y, p):
    z = x if len(x) % 2 else y
    return np.concatenate([np.tanh(z @ p["w"]), np.tanh(x @ p["w"])]).sum(0)


@ab.batch
def parts_in_a_loop(x, y, p):
    found = []
    for part in (x, y, x):
        found.append(np.tanh(part @ p["w"]) * 2)
    return np.concatenate(found) * p["v"]


@ab.batch
def rebound(x, y, p):
    first = np.tanh(x @ p["w"]) * 2
    x = y
    return np.concatenate([first, np.tanh(x @ p["w"]) * 2]) * p["v"]


@pytest.mark.parametrize("f", [two_towers, one_of_two, parts_in_a_loop, rebound], ids=str)
def test_lengths_of_different_arrays_are_kept_apart(f):
    ys = examples(LENGTHS[::-1], seed=7)
    for _ in range(3):
        map_equals_loop(f, examples(LENGTHS), ys, p=PARAMS)


@ab.batch
def of_an_object(example, p):
    return np.tanh(p["table"][example["ids"]] @ p["w"]).mean(0) * 2


def test_arrays_that_lie_in_examples():
    xs = [{"ids": ids} for ids in ids_of(LENGTHS)]
    for _ in range(2):
        _, report = map_with_stats(of_an_object, xs, p=PARAMS)
    assert (report.recorded, report.launches) == (len(LENGTHS), 2)
    map_equals_loop(of_an_object, xs, p=PARAMS)


class Branch:
    def __init__(self, ids, children=()):
        self.ids = np.array(ids)
        self.children = list(children)


def trees_of_ids(count=8, seed=0, shortest=1):
    rng = np.random.default_rng(seed)

    def tree(depth):
        children = [tree(depth - 1) for _ in range(rng.integers(0, 3) if depth else 0)]
        return Branch(rng.integers(0, len(TABLE), rng.integers(shortest, 6)), children)

    return [tree(3) for _ in range(count)]


def of_tree(reduced):
    def state(node, p):
        x = reduced(p["table"][node.ids]) @ p["w"]
        for child in node.children:
            x = x + np.tanh(state(child, p) @ p["w"])
        return x

    return state


def rows_by_a_helper(node, p):
    rows = looked_up(node.ids, p)
    below = [rows_by_a_helper(child, p) for child in node.children]
    return sum(below, np.tanh(rows.mean(axis=0) * p["v"]))


BAGS = {
    "sum": of_tree(lambda rows: rows.sum(0)),
    "mean": of_tree(lambda rows: np.mean(rows, axis=0)),
    "max": of_tree(lambda rows: np.max(rows, 0)),
    "min": of_tree(lambda rows: rows.min(axis=0)),
    "by a helper": rows_by_a_helper,
}
NO_BAGS = {
    "an item": of_tree(lambda rows: rows[0]),
    "a product": of_tree(lambda rows: np.full(len(rows), 0.5, np.float32) @ rows),
    "another axis": of_tree(lambda rows: rows.sum(1).mean() * np.ones(D, np.float32)),
    "kept": of_tree(lambda rows: rows.sum(0, keepdims=True)[0]),
}


@pytest.mark.parametrize("f", BAGS.values(), ids=BAGS)
def test_a_recursion_records_bags_of_any_number_of_ids(f):
    batched = ab.batch(f)
    map_with_stats(batched, trees_of_ids(seed=1), p=PARAMS)
    results, report = map_with_stats(batched, trees_of_ids(seed=2), p=PARAMS)
    assert_same(results, loop(f, trees_of_ids(seed=2), p=PARAMS))
    assert report.recorded == len(results)
    ab.testing.assert_equivalent(f, trees_of_ids(seed=3), p=PARAMS)


@pytest.mark.parametrize("f", NO_BAGS.values(), ids=NO_BAGS)
def test_rows_in_a_recursion_that_are_no_bag(f):
    for seed in range(3):
        map_equals_loop(f, trees_of_ids(seed=seed), p=PARAMS)


def test_no_ids_in_a_recursion():
    for name in ("sum", "max"):
        map_with_stats(ab.batch(BAGS[name]), trees_of_ids(seed=1), p=PARAMS)
    map_equals_loop(BAGS["sum"], trees_of_ids(seed=2, shortest=0), p=PARAMS)
    with pytest.raises(ValueError, match="zero-size array"):
        ab.map(BAGS["max"], trees_of_ids(seed=2, shortest=0), p=PARAMS)


def test_ids_in_a_recursion_that_are_out_of_range_or_change():
    f = BAGS["sum"]
    map_with_stats(ab.batch(f), trees_of_ids(seed=1), p=PARAMS)
    trees = trees_of_ids(seed=2)
    trees[3].ids[-1] = -1
    map_equals_loop(f, trees, p=PARAMS)
    for bad in (len(TABLE), -len(TABLE) - 1):
        trees[3].ids[-1] = bad
        with pytest.raises(IndexError, match=r"index|id") as caught:
            ab.map(f, trees, p=PARAMS)
        assert "example 3" in "\n".join(caught.value.__notes__)

    def changing(node, p):
        rows = p["table"][node.ids]
        node.ids[:] = 0
        return sum([changing(child, p) for child in node.children], rows.sum(0) @ p["w"])

    for seed in range(3):
        results = ab.map(changing, trees_of_ids(seed=seed), p=PARAMS)
        assert_same(results, loop(changing, trees_of_ids(seed=seed), p=PARAMS))
