"""Loops over a list that they change themselves: each lane runs as many steps as its own list comes to have items."""

import collections

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples
from tests.inspect import noted_fallbacks
from tests.law import batch_of, ragged
from tests.law import equals_loop_either_way as equals_loop

XS = [2 * x for x in ragged(3, 1, 0, 4)]


def counts_up(x):
    queue = [0]
    for i in queue:
        if i + 1 < len(x):
            queue.append(i + 1)
    return queue, i


def halves(x):
    queue, seen = [len(x)], []
    for n in queue:
        if n % 2:
            continue
        seen.append(n)
        if n > 1:
            queue.append(n // 2)
            queue.extend([n // 2 - 1, 0])
        if len(queue) > 6:
            break
    else:
        seen.append(-1)
    return seen, queue


def visits(x):
    edges = {0: [1, 2], 1: [3], 2: [3], 3: []}
    reached, order = {0}, [0]
    for node in order:
        for other in edges[node]:
            if other not in reached and other <= len(x):
                reached.add(other)
                order.append(other)
    return order


def shrinks(x):
    items = list(range(len(x)))
    read = []
    for item in items:
        read.append(item)
        if len(x) > 2:
            items.pop()
        else:
            items.remove(item)
    return read, items


def of_arrays(x):
    queue, total = [x], 0.0
    for part in queue:
        total = total + (part**2).sum()
        if len(part) > 1:
            queue.append(part[: len(part) // 2])
            queue.insert(len(queue), part[1:] * 0.5)
    return total


def two_at_once(x):
    pairs = [(len(x), 0)]
    for n, depth in pairs:
        others = [n]
        for m in others:
            if m > 2:
                others.append(m - 1)
        if depth < 2 and n:
            pairs.append((n - 1, depth + len(others)))
    return pairs


def a_list_that_grows_while_it_is_read(xs):
    kept, steps = [1.0, 2.0], 0
    for v in kept:
        steps += 1
        if len(xs) > 2 and steps < 3:
            kept.append(v)
    return kept, steps


def a_ragged_list_that_grows_while_it_is_read(xs):
    kept = [x + 0 for x in xs]
    for v in kept:
        if v > 3:
            kept.append(v - 3)
    return kept


LOOPS = [
    a_list_that_grows_while_it_is_read, a_ragged_list_that_grows_while_it_is_read, counts_up, halves, visits, shrinks,
    of_arrays, two_at_once,
]  # fmt: skip


@pytest.mark.parametrize("f", LOOPS, ids=[f.__name__ for f in LOOPS])
def test_the_loop_follows_each_lanes_own_list(f):
    equals_loop(f, XS)
    equals_loop(f, XS[:1])
    assert examples(batch(f)(ab.MaskedBatch(np.zeros((0, 3)), lengths=np.zeros(0, int)))) == []


def test_gradients_pass_through_the_items():
    assert ab.testing.assert_equivalent(of_arrays, ragged(3, 1, 4)) is not None


def test_what_is_no_list_is_the_loops():
    def f(x):
        queue = collections.deque([1, 2])
        for _ in queue:
            queue.append(1)
        return x

    with noted_fallbacks(), pytest.raises(RuntimeError, match="deque mutated during iteration"):
        batch(f)(batch_of(XS))
