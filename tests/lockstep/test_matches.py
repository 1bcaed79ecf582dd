"""`match` in lock-step: lanes take different cases, guards see the names; what looks into a lane's object is traced.

Broken once by hand: a guard that is asked before the names are bound, and an alternative that is left out.
"""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import assert_same, equals_loop, every_way_equals_loop, map_equals_loop

XS = [np.array(x) for x in ([1.0, -2.0, 3.0], [4.0], [-1.0, 2.0], [0.5, 0.5, 2.0, 5.0], [-3.0])]
NS = [0, 1, 2, 3, 7]


def by_number_and_sign(n, x):
    total = x.sum() * 0
    for v in x:
        match n % 4, v > 0:
            case 0, positive if positive:
                total = total + v
            case 1 | 2 as k, _:
                total = total * k + v
            case True | 3, _:
                continue
            case k, False:
                total = total + k
            case _:
                n += 1
    return total, n, k if n % 4 in (1, 2) else -1


def names_of_what_fails(n, x):
    k = 10
    match n:
        case k if k > 5:
            x = x * 2
        case 0 | 3 as other if x[0] > 0:
            k = other
        case other:
            x = x - other
    return x, k


def items_in_a_tuple(n, x):
    pair = x * 2, (n, x[0])
    match pair:
        case [y, (0, z)]:
            return y + z
        case [y, (a, z)] if z > 0:
            y = y * a
        case [y, *rest]:
            y = y - len(rest)
    return y.sum() * x


def leaves_its_loop(n, x):
    found = 0.0
    for v in x:
        match n:
            case 0:
                break
            case 2:
                return v, found
            case _ if v > 3:
                continue
        found = found + v
    else:
        found = found * 2
    return found, found


@pytest.mark.parametrize("f", [by_number_and_sign, names_of_what_fails, items_in_a_tuple, leaves_its_loop])
def test_cases_that_lanes_take(f):
    equals_loop(f, NS, XS)
    equals_loop(f, NS[3:], XS[3:])
    map_equals_loop(f, NS, XS)


def weighed_by_case(x, n, w):
    match n, x[0] > 0:
        case 0, _:
            h = x * w
        case k, True if k < 3:
            h = np.tanh(x * w) * k
        case _:
            h = x + w
    return h.sum()


def test_gradients():
    every_way_equals_loop(weighed_by_case, XS, NS, w=np.float64(0.5))


def takes_no_case(n, x):
    match n:
        case 1:
            y = x
        case 0 if x[0] / (n - 7) > 0:
            y = x * 2
    return y


@pytest.mark.parametrize("ns", [[1, 0, 1, 2, 1], [1, 1, 1, 1, 7]])
def test_an_example_without_a_case_raises_as_in_the_loop(ns):
    with pytest.raises(UnboundLocalError, match="'y'"):
        takes_no_case(ns[3] if ns[3] != 1 else ns[4], XS[0])
    with pytest.raises(UnboundLocalError, match="'y'"):
        equals_loop(takes_no_case, ns, XS)


@dataclasses.dataclass
class Leaf:
    word: int


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def of_a_tree(tree, w):
    match tree:
        case Leaf(word):
            return w[word]
        case Pair(left=Leaf(word=0), right=right):
            return of_a_tree(right, w) * 2
        case Pair(left, right):
            return np.tanh(of_a_tree(left, w) + of_a_tree(right, w))


def test_trees_are_traced():
    trees = [Leaf(1), Pair(Leaf(0), Leaf(2)), Pair(Pair(Leaf(1), Leaf(2)), Leaf(0)), Pair(Leaf(2), Leaf(2))]
    w = np.arange(12.0).reshape(3, 4)
    for _ in range(3):
        found, stats = map_with_stats(of_a_tree, trees * 3, w=w)
    assert_same(found, [of_a_tree(tree, w) for tree in trees] * 3)
    assert stats.recorded > 8, ab.testing.forms(of_a_tree, trees, w=w)["fly"]
    assert "gradients" not in ab.testing.assert_equivalent(of_a_tree, trees, w=w).skipped
