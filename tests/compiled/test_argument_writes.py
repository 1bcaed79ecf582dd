"""What a function changes in its arguments is changed as the loop changes it, whatever runs compiled."""

import copy

import numpy as np
import pytest

from autobatch.compiled.compiled_map import compiled_map, prepared
from autobatch.errors import Unsupported
from tests.compiled.interpreted import each_as_text, interpreted
from tests.compiled.law import same, wait_until_compiled
from tests.law import assert_same


def scaled(x, by):
    for i in range(len(x)):
        x[i] = x[i] * (1 / by)
    return x[-1]


def _examples():
    return [np.arange(1.0, n) for n in (4, 3, 6, 2)]


def test_the_examples_before_the_one_that_raises_are_changed_and_no_other():
    xs, loops = _examples(), _examples()
    by = [1, 2, 0, 3]
    wait_until_compiled(scaled, [xs, by], {})
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        [scaled(*row) for row in zip(loops, by, strict=True)]
    with pytest.raises(ZeroDivisionError, match="division by zero") as caught:
        compiled_map(scaled, [xs, by], {})
    assert "raised for example 2" in caught.value.__notes__
    assert same(xs, loops)
    assert xs[1][0] == 0.5
    assert same(xs[3], _examples()[3])


def test_what_another_example_would_see_is_left_to_the_loop():
    by = [1, 2, 4, 3]
    wait_until_compiled(scaled, [_examples(), by], {})
    twice = _examples()
    twice[2] = twice[0]
    overlapping = np.arange(9.0)
    read_only = _examples()
    read_only[1].flags.writeable = False
    for xs in (twice, [overlapping[i : i + 3] for i in range(4)], read_only):
        before = copy.deepcopy(xs)
        with pytest.raises(Unsupported, match="written into"):
            compiled_map(scaled, [xs, by], {})
        assert same(xs, before)


def added_at(totals, places, weights):
    for place in places:
        totals[place] += weights[place]
    return totals.sum()


def test_what_is_only_read_may_be_read_only_and_overlap():
    places, weights = np.arange(5), np.arange(5.0)
    places.flags.writeable = weights.flags.writeable = False
    columns = [[np.zeros(5) for _ in range(3)], [places, places[1:], places[:3]]]
    loops = copy.deepcopy(columns)
    expected = [added_at(*row, weights) for row in zip(*loops, strict=True)]
    with interpreted():
        assert same(compiled_map(added_at, columns, {"weights": weights}), expected)
    assert same(columns, loops)


def spread(items, x):
    items.append(len(items))
    items[0] = x[0]
    x[0] = 7.0
    return items, x


def test_arguments_themselves_are_returned(text_or_compiled):
    rows = [([1.0, 2.0], np.arange(3.0)), ([5.0], np.ones(1)), ([0.5], np.ones((4, 2))[:, 0])]
    columns = [list(column) for column in zip(*rows, strict=True)]
    wait_until_compiled(spread, columns, {})
    loops = copy.deepcopy(rows)
    expected = [spread(*row) for row in loops]
    got = compiled_map(spread, columns, {})
    assert same(got, expected)
    assert same(rows, loops)
    assert all(a is items and b is x for (a, b), (items, x) in zip(got, rows, strict=True))
    assert prepared(spread, columns, {}, None)[1].failures == 0


def whole_slice(x):
    return x[:]


def itself_by_names(x):
    y = x
    return (np.asarray(y),)


def itself_or_slice(x, k):
    y = x if k else x[...]
    return y, k


def slice_of_slice(x):
    return x[::-1][::-1], len(x)


def transposed(x):
    return x.T


def flattened(x):
    return x.ravel()


def first_of_all(x):
    return x[:3]


VIEWS = [
    (whole_slice, []), (itself_by_names, []), (itself_or_slice, [0, 1, 0, 1]), (slice_of_slice, []),
    (transposed, []), (flattened, []), (first_of_all, []),
]  # fmt: skip


@each_as_text(("function", "own"), VIEWS, compiled={"itself_or_slice"})
def test_a_view_of_a_whole_argument_is_not_the_argument(function, own, text_or_compiled):
    xs = [np.arange(float(n)) for n in (4, 3, 0, 1)]
    columns = [xs, own] if own else [xs]
    wait_until_compiled(function, columns, {})
    got = compiled_map(function, columns, {})
    for x, row, result in zip(xs, zip(*columns, strict=True), got, strict=True):
        expected = function(*row)
        assert same(result, expected)
        ours, theirs = (each[0] if isinstance(each, tuple) else each for each in (result, expected))
        assert (ours is x, np.shares_memory(ours, x)) == (theirs is x, np.shares_memory(theirs, x))
    assert own or prepared(function, columns, {}, None)[1].failures == 0


def passed_on(n, inner=None):
    def own():
        return n

    if inner is not None:
        return inner() * 10 + own()
    return passed_on(n + 1, own)


def test_a_nested_function_is_not_called_in_another_call_than_its_own():
    with pytest.raises(Unsupported, match="is given to a function") as caught:
        compiled_map(passed_on, [[1, 2]], {})
    assert not caught.value.passing


def sorted_rows_are_written(rows, k):
    found = [rows[i] for i in range(len(rows))]
    found.sort(key=lambda row: row[0])
    found[0][0] = -9.0
    return k


def a_part_of_rows_is_written(rows, k):
    found = list(rows)
    few = found[k:]
    more = few + found[:k]
    more[-1][0] = -9.0
    return sorted(rows[0])


@each_as_text(("f",), [(sorted_rows_are_written,), (a_part_of_rows_is_written,)], compiled={"sorted_rows_are_written"})
def test_rows_written_through_a_list_that_nobody_reads_again(f, text_or_compiled):
    """Numba drops such a write from a function in which there is a comprehension; the text of one has none."""
    rows, places = [np.arange(6.0).reshape(2, 3)[::-1].copy(), np.ones((1, 3)), np.full((4, 3), 2.0)], [1, 0, 3]
    mine = copy.deepcopy(rows)
    want = [f(*row) for row in zip(mine, places, strict=True)]
    wait_until_compiled(f, (copy.deepcopy(rows), places), {})
    found = compiled_map(f, (rows, places), {})
    assert_same(found, want)
    assert_same(rows, mine)
