"""Blocks that go through lists of recorded arrays: states of children, hypotheses, parts of a sum."""

import unittest.mock

import numpy as np
import pytest

import autobatch as ab
from autobatch.lazy.block_nodes import Block
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, map_equals_loop, normal, vectors

W, U = normal(3, 3, seed=1), normal(3, 3, seed=2)


def total(parts):
    return sum(parts[1:], parts[0])


def leaf(x):
    return np.tanh(x @ W) * 2.0


def child_sum(x, sizes):
    states = [(leaf(x + np.float32(k)), x * 0.5) for k in range(sizes)]
    h = np.tanh(x)
    if states:
        h = h + total([a for a, _ in states]) @ U
    kept = [np.tanh(a @ W) * c for a, c in states]
    return np.tanh(total([h * 2.0, *kept])) + h


def comprehension(x, sizes):
    parts = [leaf(x * np.float32(k)) for k in range(sizes + 1)]
    return np.stack([np.tanh(p @ U) + p for p in parts]).sum(0) * 0.5


def summed(x, sizes):
    parts = [x * np.float32(k) for k in range(sizes)]
    return sum(p * 2.0 for p in parts) + x @ W


def sum_of_all(x, sizes):
    parts = [leaf(x) for _ in range(sizes)]
    return sum(parts) + x * 2.0


def rows_of_an_array(x, sizes):
    rows = np.outer(np.arange(1.0, sizes + 2, dtype=np.float32), x) @ W
    return np.stack([np.tanh(r @ U) + r for r in rows]).sum(0) * 0.5


def mixed(x, sizes):
    parts = [x * 2.0, 3.0, *[leaf(x) for _ in range(sizes)]]
    return x + total([p * 2.0 for p in parts])


def shadowing(x, sizes):
    y = x * 3.0
    parts = [x + np.float32(k) for k in range(sizes + 1)]
    z = total([y * 2.0 for y in parts]) + y
    return z * y


def unpacked_wrongly(x, sizes):
    pairs = [(x * 2.0, x, x) for _ in range(sizes)]
    return x + sum(a * b for a, b in pairs)


def aliases(x, sizes):
    parts = [x * 2.0 for _ in range(sizes + 1)]
    first = total(parts[:1])
    first += 1.0
    return parts[0] * 1.0 + first


def changed_list(x, sizes):
    parts = [x * 2.0]
    out = total([p + 1.0 for p in parts]) * 2.0
    for _ in range(sizes):
        parts.append(out)
        out = total([p + 1.0 for p in parts]) * 2.0
    return out


def tupled(x, sizes):
    parts = tuple(leaf(x + np.float32(k)) for k in range(sizes + 1))
    return (np.stack([p * 2.0 for p in parts]) @ W).mean(0)


PROGRAMS = [
    child_sum,
    comprehension,
    summed,
    sum_of_all,
    rows_of_an_array,
    mixed,
    shadowing,
    aliases,
    changed_list,
    tupled,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_the_law(program):
    xs, sizes = vectors(7, 3, seed=3), [0, 3, 1, 2, 0, 20, 3]
    for _ in range(3):  # compiled later
        map_equals_loop(program, xs, sizes)
    ab.testing.assert_equivalent(program, xs[:5], sizes[:5])


def test_an_error_in_a_comprehension_is_the_users():
    xs = vectors(3, 3)
    with pytest.raises(ValueError, match="too many values to unpack") as caught:
        ab.map(unpacked_wrongly, xs, [0, 2, 1])
    assert any("example 1" in note for note in caught.value.__notes__)


def test_children_are_summed_in_one_launch_for_each_number_of_them():
    xs, sizes = vectors(12, 3), [1, 2, 3] * 4
    results, stats = map_with_stats(child_sum, xs, sizes)
    assert_same(results, loop(child_sum, xs, sizes))
    line = child_sum.__code__.co_firstlineno
    rows = {f"block test_block_lists.py:{line}": [] for line in (f"{line + 4}", f"{line + 5}-{line + 6}")}
    for (name, _), (calls, launches, _) in stats.by_signature.items():
        if name in rows:
            rows[name].append((calls, launches))
    assert list(rows.values()) == [[(12, 1)], [(4, 1)] * 3]  # what is done to the sum is done to all sums together


def test_a_cast_of_a_size_is_part_of_the_block():
    def scaled(x):
        y = x @ W
        return np.tanh(y * np.float32(y.shape[0] ** -0.5)).mean(0)

    xs = [normal(n, 3, seed=n) for n in (2, 4, 4, 1)]
    results, stats = map_with_stats(scaled, xs)
    assert_same(results, loop(scaled, xs))
    assert stats.launches == 1
    ab.testing.assert_equivalent(scaled, xs)


def test_a_block_that_never_is_one_is_not_tried_again():
    def parts(x):
        y = np.tanh(x @ W) * 2.0
        head, tail = y[:2], y[1:]  # parts of one array that have an element in common
        return head, tail

    xs, calls, call = vectors(200, 3), [], Block._call

    def counted(*args):
        calls.append(None)
        return call(*args)

    with unittest.mock.patch.object(Block, "_call", counted):  # a mock would keep the arrays that it is called with
        results, _ = map_with_stats(parts, xs)
    assert_same(results, loop(parts, xs))
    assert 1 < len(calls) < 100


def written(x, sizes):
    y = np.tanh(x @ W) * 2.0
    head, tail = y[:2], y[1:]
    head += 1.0
    y *= 2.0
    tail -= np.float32(sizes)
    return y + 0.0, head * 1.0, tail * 1.0


def written_under_another_name(x, sizes):
    y = np.outer(x, x) @ W + 1.0
    flat, row = y.reshape(-1), y[1]
    last = row[1:]
    kept = [flat, row, last]
    for each in kept[: sizes + 1]:
        each[:1] = 7.0
    return y * 1.0, flat * 1.0, last * 1.0


def shared_views(x, sizes, table):
    y = np.tanh(table @ W) * 2.0
    head = y[:1]
    if sizes:
        head += np.float32(sizes)
    return y @ x, head * 1.0


@pytest.mark.parametrize("program", [written, written_under_another_name], ids=lambda f: f.__name__)
def test_outputs_that_are_views_of_others(program):
    xs, sizes = vectors(7, 3, seed=3), [0, 2, 1, 2, 0, 1, 2]
    for _ in range(3):
        map_equals_loop(program, xs, sizes)
    ab.testing.assert_equivalent(program, xs[:3], sizes[:3])


def test_views_of_what_is_computed_from_shared_values_only():
    xs, sizes = vectors(5, 3, seed=3), [0, 2, 1, 2, 0]
    for _ in range(3):
        map_equals_loop(shared_views, xs, sizes, table=normal(3, 3, seed=9))


def test_an_array_and_a_part_of_it_are_one_launch():
    def parts(x):
        y = np.tanh(x @ W) * 2.0
        return y[:2], y

    xs = vectors(9, 3)
    results, stats = map_with_stats(parts, xs)
    assert_same(results, loop(parts, xs))
    assert stats.launches == 1


RETURNED = [
    lambda xs, ys, w: [np.tanh(x @ w) + y for x, y in zip(xs, ys, strict=True)],
    lambda xs, ys, w: [np.tanh(x @ w) + x for x in xs],
    lambda xs, ys, w: tuple([np.tanh(x @ w) + y for x, y in zip(xs, ys, strict=True)]),
    lambda xs, ys, w: (np.tanh(xs[0] @ w) + 1, [x @ w + x for x in xs]),
    lambda xs, ys, w: ([x @ w + x for x in xs], [np.tanh(y @ w) * 2 for y in ys]),
    lambda xs, ys, w: [np.tanh(xs[0] @ w) + ys[0], ys[0] @ w * 2],
    lambda xs, ys, w: [*(x @ w + x for x in xs), *[y * 2 + y for y in ys]],
    lambda xs, ys, w: (*[np.tanh(x @ w) * 2 for x in xs],),
    lambda xs, ys, w: {"a": [x @ w + x for x in xs], "b": tuple(y * 2 + 1 for y in ys)},
    lambda xs, ys, w: list(np.tanh(x @ w) * 2 for x in xs),  # noqa: C400
    lambda xs, ys, w: dict(enumerate([np.tanh(x @ w) * 2 for x in xs])),
]


def types_of(value):
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return type(value), [types_of(part) for part in parts]


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("make", [list, tuple, np.array])
def test_what_is_returned_is_of_the_type_that_the_loop_gives(returned, make):
    rng = np.random.default_rng(0)
    xs = [make(list(rng.normal(size=(n, 3)))) for n in (2, 3, 1, 1)]
    w = rng.normal(size=(3, 3))
    want = [returned(x, x, w) for x in xs]
    for _ in range(2):
        assert list(map(types_of, ab.map(lambda x, y, w: returned(x, y, w), xs, xs, w=w))) == list(map(types_of, want))
        assert list(map(types_of, ab.map(returned, xs, xs, w=w))) == list(map(types_of, want))
