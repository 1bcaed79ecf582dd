"""Lists made in converted code: appended to in ragged loops, stacked, joined, indexed, iterated, returned."""

# ruff: noqa: B905, B007 (the programs are what people write)

import operator

import numpy as np
import pytest

from autobatch import batch
from autobatch.errors import FallbackWarning
from tests.law import batch_of, ragged
from tests.law import equals_loop_either_way as equals_loop

LENGTHS = [(3, 5, 1, 2, 5), (4, 4, 4), (5, 3, 2), (1,)]
WITH_EMPTY = [*LENGTHS, (2, 0, 3), (0, 0)]


def birnn(xs, w, u):
    h = np.zeros(3)
    forward, backward = [], []
    for x in xs:
        h = np.tanh(x @ w + h @ u)
        forward.append(h)
    h = np.zeros(3)
    for x in reversed(xs):
        h = np.tanh(x @ w + h @ u)
        backward.append(h)
    return np.concatenate([np.stack(forward), np.stack(backward[::-1])], axis=1)


def states_as_a_list(xs):
    out = []
    for x in xs:
        out.append(np.tanh(x))
    return out


def pairs(xs):
    out = [("start", 0.0)]
    for i, x in enumerate(xs):
        out.append(("step", x.sum()))
    return out


def length_of_a_list(xs):
    out = []
    for x in xs:
        out.append(x)
    return len(out), len(xs)


def loops_over_its_list(xs):
    kept = []
    for x in xs:
        kept.append((x, x * 2))
    total = np.zeros(2)
    for x, y in kept:
        total = total + x * y
    for x, y in reversed(kept):
        total = total * 0.5 + x
    return total


def last_item(xs):
    kept = [np.zeros(2)]
    for x in xs:
        kept.append(kept[-1] + x)
    return kept[-1], kept[0], kept[len(kept) - 1]


def comprehensions(xs):
    squares = [x * x for x in xs]
    shifted = [x + i for i, x in enumerate(xs) if i != 1]
    table = [[a * b for a in (1.0, 2.0)] for b in (3.0, 4.0)]
    return squares, shifted, table, {k: xs.sum() + k for k in (1, 2)}


def nested_lists(xs):
    rows = []
    for i, x in enumerate(xs):
        row = []
        for j in range(i + 1):
            row.append(x * j)
        rows.append(np.stack(row).sum(0))
    return rows


def extends(xs):
    out = []
    for x in xs:
        out += [x, x + 1]
    out.extend([xs.sum(0)])
    return out


def only_some(xs):
    out = [xs.sum()]
    for x in xs:
        out.append(x.sum())
    out.append(xs.mean())
    return np.array(out), sum(out)


def stacked(xs):
    return np.stack([x * 2 for x in xs], axis=1), np.array([x.sum() for x in xs])


def joined(xs):
    return np.concatenate([np.concatenate([x, x[:1]]) for x in xs])


def enumerated(xs):
    states = []
    for x in xs:
        states.append(x)
    out = np.zeros(2)
    for i, (a, b) in enumerate(zip(states, xs)):
        out = out + i * a * b
    return out


@pytest.mark.parametrize("lengths", WITH_EMPTY)
@pytest.mark.parametrize(
    "f", [states_as_a_list, pairs, length_of_a_list, last_item, comprehensions, nested_lists, extends]
)
def test_lists(f, lengths):
    equals_loop(f, ragged(*lengths, width=2))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("f", [only_some, stacked, joined, loops_over_its_list, enumerated])
def test_lists_of_at_least_one_item(f, lengths):
    equals_loop(f, ragged(*lengths, width=2))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_bidirectional_rnn(lengths):
    w, u = ragged(2, 3, width=3, seed=9)
    equals_loop(birnn, ragged(*lengths, width=2), w=w, u=u)


def test_stack_of_no_items_raises_for_that_example():
    xs = ragged(2, 0, 3, width=2)
    w, u = ragged(2, 3, width=3, seed=9)
    with pytest.raises(ValueError, match="need at least one array to stack") as caught:
        batch(birnn)(batch_of(xs), w, u)
    assert "raised for example 1" in caught.value.__notes__


def test_an_outer_list_is_appended_to_once_per_example():
    def f(x, log):
        log.append(float(x.sum()))
        return x * 2

    xs = ragged(3, 1, 2)
    log = []
    with pytest.warns(FallbackWarning, match=r"\.append\(\) of a list that the call did not make"):
        batch(f)(batch_of(xs), log)
    assert log == [float(x.sum()) for x in xs]


@pytest.mark.parametrize("change", [operator.iadd, operator.iconcat, lambda kept, more: operator.delitem(kept, 0)])
def test_functions_of_operator_change_the_list_itself(change):
    def f(xs):
        kept = [1.0]
        change(kept, [2.0])
        return kept, xs.sum()

    equals_loop(f, ragged(3, 1, 0, 4))


def test_lists_that_are_others_in_some_lanes():
    def f(xs):
        kept = [1.0]
        total = sum(xs)
        if total > 0:
            kept = [*kept, total]
        elif len(xs) < 2:
            kept = kept + [total, -total]  # noqa: RUF005
        else:
            kept = []
        return kept, len(kept), [k * 2 for k in kept]

    equals_loop(f, ragged(3, 1, 0, 4, 2, 2, 2))


def test_a_change_after_lists_met_reaches_all_names():
    def f(xs):
        kept, other = [1.0], [2.0]
        same = kept
        if len(xs) > 2:
            kept = other
        kept.append(3.0)
        return kept, other, same

    equals_loop(f, ragged(3, 1, 0, 4))


def sum_of_positives(xs):
    out = []
    for x in xs:
        if x > 0:
            out.append(x)
    return np.stack(out).sum() if out else 0.0


def joined_where_there_is_something(xs):
    out = []
    for x in xs:
        if x < -1:
            break
        out.append(np.stack([x, x * x]))
    if len(out) > 0:
        return np.concatenate(out), np.array(out).shape
    return None


@pytest.mark.parametrize("f", [sum_of_positives, joined_where_there_is_something])
@pytest.mark.parametrize("lengths", WITH_EMPTY)
def test_a_list_that_is_empty_only_elsewhere(f, lengths):
    equals_loop(f, ragged(*lengths, seed=3))


def test_a_list_that_is_empty_here_raises_as_numpy_does():
    with pytest.raises(ValueError, match="need at least one array to stack"):
        batch(lambda xs: np.stack([x for x in xs if x > 9]))(batch_of(ragged(3, 2)))
