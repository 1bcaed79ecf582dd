"""Lanes that are Python scalars answer as Python does: value, type and exception of each example."""

import math
import operator
import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from autobatch import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.scalars import (
    LANE_FUNCTIONS,
    lane_float,
    lane_int,
    lane_len,
    lane_max,
    lane_min,
    lane_sum,
)
from autobatch.batches.stacking import lanes_of, stack_results
from autobatch.errors import ShapeError
from tests.inspect import python_calls

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
    divmod,
]
ON_INTS = [operator.and_, operator.or_, operator.xor]
BIG = 2**63
INTS = st.one_of(st.integers(-5, 5), st.integers(-BIG, BIG - 1), st.sampled_from([BIG - 1, -BIG, 2**53 + 1, 2**31]))
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.5, -2.0, 1e308, math.inf, -math.inf, math.nan]), st.floats(-100, 100, width=32)
)


def lanes(values):
    return stack_results(values)


def identical(got, expected):
    if isinstance(expected, tuple):
        return all(map(identical, got, expected))
    return type(got) is type(expected) and (repr(got) == repr(expected))


def check(function, *columns):
    """`function` on lanes is `function` on each example: the results, or the first error with its example named."""
    size = next(len(column) for column in columns if isinstance(column, list))
    rows = [[column[i] if isinstance(column, list) else column for column in columns] for i in range(size)]
    batched = [lanes(column) if isinstance(column, list) else column for column in columns]
    expected, failed = [], None
    for row in rows:
        try:
            expected.append(function(*row))
        except Exception as error:
            failed = error
            break
    if failed is not None:
        with pytest.raises(type(failed), match=re.escape(str(failed))) as caught:
            function(*batched)
        assert caught.value.__notes__ == [f"raised for example {len(expected)}"]
        return
    got = lanes_of(function(*batched), size)
    assert all(map(identical, got, expected)), (got, expected)


@pytest.mark.parametrize("function", BINARY)
@hypothesis.given(st.lists(st.tuples(INTS, INTS), min_size=1, max_size=4))
@hypothesis.settings(max_examples=60, deadline=None)
def test_operators_on_ints(function, pairs):
    left, right = map(list, zip(*pairs, strict=True))
    check(function, left, right)
    check(function, left, right[0])
    check(function, left[0], right)


@pytest.mark.parametrize("function", BINARY)
@hypothesis.given(st.lists(st.tuples(FLOATS, FLOATS, INTS), min_size=1, max_size=4))
@hypothesis.settings(max_examples=60, deadline=None)
def test_operators_on_floats_and_ints(function, rows):
    x, y, n = map(list, zip(*rows, strict=True))
    check(function, x, y)
    check(function, x, n)
    check(function, n, y)
    check(function, x, n[0])
    check(function, n, y[0])


@pytest.mark.parametrize("function", [*BINARY, *ON_INTS])
@hypothesis.given(st.lists(st.tuples(st.booleans(), st.booleans(), INTS), min_size=1, max_size=4))
@hypothesis.settings(max_examples=30, deadline=None)
def test_operators_on_bools(function, rows):
    a, b, n = map(list, zip(*rows, strict=True))
    check(function, a, b)
    check(function, a, n)
    check(function, n, True)


@pytest.mark.parametrize("function", ON_INTS)
@hypothesis.given(st.lists(st.tuples(INTS, INTS), min_size=1, max_size=4))
@hypothesis.settings(max_examples=30, deadline=None)
def test_bit_operators(function, pairs):
    check(function, *map(list, zip(*pairs, strict=True)))


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (operator.lshift, ([1, 1, -3], [0, 70, 2])),
        (operator.rshift, ([1, -1, 2**40], [0, 70, 3])),
        (operator.rshift, ([1, 2], [1, -1])),
        (operator.pow, ([2, 3, -1], [10, 0, 5])),
        (operator.pow, ([2, 3], [70, 1])),
        (operator.pow, ([2, 4], [-1, 2])),
        (operator.pow, ([2, 4], [-1, -2])),
        (operator.pow, ([0, 2], [-1, 2])),
        (operator.pow, ([-8.0, 4.0], [1.5, 0.5])),
        (operator.pow, ([1e300, 2.0], [2.0, 2.0])),
        (operator.truediv, ([2**60 + 1, 7], [3, 2])),
        (operator.mul, ([2**40, 3], [2**40, 4])),
        (operator.add, ([2**62, 1], [2**62, 1])),
        (operator.sub, ([-(2**63), 1], [1, 1])),
        (operator.floordiv, ([-(2**63), 1], [-1, 1])),
        (operator.eq, ([2**53 + 1, 1], [2.0**53, 1.0])),
        (operator.add, ([1, 2], 2**70)),
        (operator.add, ([1j, 2j], [1j, 2.5 + 0j])),
        (operator.mul, ([1, 2], "ab")),
        (operator.mul, ("ab", [1, 2])),
        (operator.eq, ([1, 2], None)),
        (operator.add, ([1, 2], "a")),
        (operator.neg, ([1, -(2**63)],)),
        (operator.neg, ([True, False],)),
        (operator.neg, ([0.0, 1.5],)),
        (operator.pos, ([True, False],)),
        (operator.invert, ([5, -1],)),
        (operator.invert, ([1.5, 2.0],)),
        (abs, ([-(2**63), 4],)),
        (abs, ([-3, 4],)),
        (abs, ([-0.0, -1.5],)),
        (abs, ([3 + 4j, 1j],)),
    ],
)
def test_where_int64_and_numpy_differ_from_python(function, columns):
    check(function, *columns)


def test_lists_times_a_count_per_lane():
    counts = lanes([0, 2])
    assert lanes_of([7] * counts, 2) == [[], [7, 7]]


def test_in_place_operators_stay_python():
    n = lanes([1, 2])
    n += 1
    n *= 2
    assert n.examples() == [4, 6]
    assert [type(x) for x in n.examples()] == [int, int]


def test_batches_of_other_sizes_do_not_broadcast():
    with pytest.raises(ShapeError, match="batches of 1 and 3 examples"):
        lanes([1]) + lanes([1, 2, 3])


def test_numpy_scalars_are_not_weak():
    x = MaskedBatch(np.array([1.0, 2.0], np.float32))
    assert x.scalar is None
    assert [type(v) for v in x.examples()] == [np.float32, np.float32]
    assert (x + lanes([1.0, 2.0])).dtype == np.float32
    assert (x + 1.0).dtype == np.float32
    assert (lanes([1, 2]) + np.float32(1)).dtype == (1 + np.float32(1)).dtype


def test_attributes_and_methods_of_python_numbers():
    n = lanes([5, 8])
    assert n.bit_length().examples() == [3, 4]
    assert n.numerator.examples() == [5, 8]
    assert lanes([1.0, 1.5]).is_integer().examples() == [True, False]
    with pytest.raises(AttributeError, match="'int' has no attribute 'nothing'"):
        _ = n.nothing


def both(function, *columns):
    """A builtin's form for lanes against the builtin."""
    size = next(len(column) for column in columns if isinstance(column, list))
    got = lanes_of(
        LANE_FUNCTIONS[function](*(lanes(column) if isinstance(column, list) else column for column in columns)), size
    )
    expected = [function(*(c[i] if isinstance(c, list) else c for c in columns)) for i in range(size)]
    assert all(map(identical, got, expected)), (got, expected)


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (int, ([1.9, -1.9],)),
        (int, ([1e30, 2.0],)),
        (int, (["7", "8"],)),
        (int, ([True, False],)),
        (int, ([np.float32(2.5), np.float32(-2.5)],)),
        (float, ([1, 2**53 + 1],)),
        (float, ([np.float32(0.1), np.float32(1)],)),
        (bool, ([0.0, math.nan],)),
        (bool, ([[], [1]],)),
        (round, ([0.5, 1.5, 2.5, -0.5],)),
        (round, ([1e30, 1.0],)),
        (round, ([1.25, 2.675], 1)),
        (round, ([True, False],)),
        (abs, ([-1, 2],)),
        (pow, ([2, 3], 5, 7)),
        (max, ([1, 5], 3)),
        (max, ([1.0, math.nan], 2.0)),
        (max, ([1, 5], 2.5)),
        (min, ([1, 5], [4, 4], [9, 0])),
        (min, ([2, 5], 2.0)),
        (math.sqrt, ([4, 2],)),
        (math.floor, ([1.5, -1.5],)),
        (math.log, ([8, 4], 2)),
        (math.gcd, ([8, 4], [12, 6])),
        (str, ([1, 2.5],)),
        (chr, ([97, 98],)),
    ],
)
def test_builtins(function, columns):
    both(function, *columns)


def test_errors_of_builtins_name_the_example():
    for lane_call, call in [
        (lambda: lane_int(lanes([1.0, math.nan])), lambda: int(math.nan)),
        (lambda: lane_int(lanes([1.0, math.inf])), lambda: int(math.inf)),
        (lambda: LANE_FUNCTIONS[math.sqrt](lanes([1.0, -1.0])), lambda: math.sqrt(-1.0)),
        (lambda: LANE_FUNCTIONS[divmod](lanes([1, 1]), lanes([1, 0])), lambda: divmod(1, 0)),
        (lambda: lane_float(ObjectBatch(["1", "x"])), lambda: float("x")),
    ]:
        with pytest.raises(Exception, match=r"\w") as wanted:
            call()
        with pytest.raises(wanted.type, match=re.escape(str(wanted.value))) as caught:
            lane_call()
        assert caught.value.__notes__ == ["raised for example 1"]


def test_len_and_reductions_of_ragged_arrays():
    arrays = [np.array([3, 1, 2], np.int32), np.array([5], np.int32)]
    batch = MaskedBatch.from_examples(arrays)
    assert lane_len(batch).examples() == [3, 1]
    assert lane_len([1, 2]) == 2
    assert lane_len(ObjectBatch(["abc", [1]])).examples() == [3, 1]
    for function, form in [(sum, lane_sum), (max, lane_max), (min, lane_min)]:
        for got, x in zip(lanes_of(form(batch), 2), arrays, strict=True):
            assert identical(got, function(x))
    with_empty = [np.array([], np.float32), np.array([1.5, 2.0], np.float32)]
    for got, x in zip(lanes_of(lane_sum(MaskedBatch.from_examples(with_empty)), 2), with_empty, strict=True):
        assert identical(got, sum(x))
    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        lane_len(lanes([1, 2]))
    with pytest.raises(TypeError, match=r"len\(\) of unsized object"):
        lane_len(MaskedBatch(np.array([1.0])))


def test_extremes_of_arrays_select_one_of_the_operands():
    a, b = np.array([1.0, 4.0], np.float32), np.array([3.0, 2.0], np.float32)
    got = lane_max(MaskedBatch(a), MaskedBatch(b))
    assert got.dtype == np.float32
    assert got.examples() == [max(x, y) for x, y in zip(a, b, strict=True)]
    assert lane_min([MaskedBatch(a), MaskedBatch(b)]).examples() == [min(x, y) for x, y in zip(a, b, strict=True)]
    assert lane_max((MaskedBatch(a),)).examples() == a.tolist()


def test_plain_arguments_are_the_builtin():
    assert lane_int("7") == 7
    assert lane_max(1, 2) == 2
    assert lane_sum([1, 2], 3) == 6
    assert LANE_FUNCTIONS[math.exp](0) == 1.0


@pytest.mark.parametrize("f", [lane_min, lane_max])
@pytest.mark.parametrize(
    ("values", "number"),
    [([1, -5, 3], -2), ([1, -5, 3], 2), ([1, -5, 3], 2**70), ([1, -5, 3], -(2**63) - 1), ([0.5, -1.5, 2.0], math.inf)],
)
def test_the_extreme_of_lanes_and_a_number(f, values, number):
    """By one comparison for all lanes, unless the number is greater than an integer of NumPy's."""
    plain = min if f is lane_min else max
    assert lanes_of(f(stack_results(values), number), len(values)) == [plain(value, number) for value in values]
    few, many = (stack_results(values * n) for n in (2, 20))
    is_large = isinstance(number, int) and not -(2**63) <= number < 2**63
    assert (python_calls(lambda: f(few, number)) != python_calls(lambda: f(many, number))) is is_large
