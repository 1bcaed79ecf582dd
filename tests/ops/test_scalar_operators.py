"""Operators between NumPy scalars, which are not the ufuncs: the table of differences, and the law over it."""

import functools
import itertools
import operator

import numpy as np
import pytest

import autobatch as ab
from autobatch.facts.operators import BINARY, UNARY
from autobatch.facts.scalar_operators import DIFFERENCES
from tests.law import every_way_is_exact

# What NumPy does.

DTYPES = "?bBhHiIqQefdFD"


def numbers(char, step=1):
    """Extreme and small numbers of a dtype, as scalars."""
    dtype = np.dtype(char)
    if dtype.kind == "b":
        return [np.False_, np.True_]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        found = [info.min, info.min + 1, -1, 0, 1, 2, 3, 7, info.max - 1, info.max]
        return [dtype.type(x) for x in found if info.min <= x <= info.max]
    info = np.finfo(dtype)
    parts = [-np.inf, float(info.min), -0.5, -0.0, 0.0, 1.0, 2.0, float(info.max), np.inf, np.nan]
    if dtype.kind == "c":
        return [dtype.type(complex(a, b)) for a, b in itertools.product(parts, parts)][::step]
    return [dtype.type(x) for x in parts]


def reported(function, *operands):
    """The result, or the class of the exception, and what NumPy reports of it."""
    found = set()
    with np.errstate(all="call", call=lambda kind, _: found.add(kind)):
        try:
            return function(*operands), found
        except Exception as error:
            return type(error), found


def same(a, b):
    a, b = np.ravel(a)[0], np.ravel(b)[0]
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind == "c":
        return same(a.real, b.real) and same(a.imag, b.imag)
    if a.dtype.kind != "f" or not np.isfinite(a) or a == 0:
        return repr(a) == repr(b)
    return bool(np.isclose(a, b, 1e-6, 0))


def differs(ufunc, function, operands):
    """How NumPy's operator differs from the ufunc where the table has them alike; None if it does not."""
    ours, ours_said = reported(function, *operands)
    theirs, theirs_said = reported(ufunc, *(np.array([x]) for x in operands))
    if isinstance(ours, type) or isinstance(theirs, type):
        return None if isinstance(ours, type) and isinstance(theirs, type) else "an exception"
    known = DIFFERENCES.get(ufunc)
    if known is not None and any(x.dtype.char in known.chars for x in operands):
        suspects = known.suspects(theirs, *(np.array([x]) for x in operands))
        if suspects is not None and suspects[0]:
            return None if known.values or same(ours, theirs) else "a value"
        theirs_said = theirs_said & ours_said if known.quiet else theirs_said
    if not same(ours, theirs):
        return "a value"
    more = ours_said - theirs_said if ufunc is np.power else ours_said ^ theirs_said  # np.power says more of infinities
    return f"reports {more}" if more - {"underflow"} else None


def compare_with_numpy(dtypes, others, step):
    wrong = []
    for each in (*BINARY, *UNARY, None):
        ufunc, function = (each.ufunc, each.function) if each else (np.absolute, abs)
        if ufunc is np.matmul:
            continue
        for a, b in itertools.product(dtypes, others if ufunc.nin == 2 else "?"):
            columns = [numbers(a, step), numbers(b, step)][: ufunc.nin]
            for operands in itertools.product(*columns):
                what = differs(ufunc, function, operands)
                wrong += [(ufunc.__name__, operands, what)] if what else []
    assert not wrong, wrong[:5]


def test_the_table_has_every_difference():
    compare_with_numpy("bQedF", "b", 9)
    compare_with_numpy("F", "F", 9)
    for char in "HqQed":
        compare_with_numpy(char, char, 9)


@pytest.mark.slow
def test_the_table_has_every_difference_of_all_dtypes():
    compare_with_numpy(DTYPES, DTYPES, 3)


def test_what_is_suspected_of_integers_is_reported():
    for ufunc, name in ((np.add, "add"), (np.subtract, "sub"), (np.multiply, "mul")):
        for char in "bBiIqQ":
            for x, y in itertools.product(numbers(char), numbers(char)):
                out = ufunc(np.array([x]), np.array([y]))
                suspected = bool(DIFFERENCES[ufunc].suspects(out, np.array([x]), np.array([y]))[0])
                assert suspected == bool(reported(getattr(operator, name), x, y)[1]), (ufunc, x, y)


# The law.


def add(x):
    return x[0] + x[1]


def subtract(x):
    return x[0] - x[1]


def multiply(x):
    return x[0] * x[1]


def negative(x):
    return -x[1]


def absolute(x):
    return abs(x[1])


def power(x):
    return x[0] ** x[1]


def floor_divide(x):
    return x[0] // x[1]


def remainder(x):
    return x[0] % x[1]


def less(x):
    return x[0] < x[1]


def greater_equal(x):
    return x[0] >= x[1]


def in_place(x):
    total = x[0]
    total *= x[1]
    return total


def item_in_place(x):
    out = x.copy()
    out[0] -= x[1]
    return out


def summed(x):
    return sum(x)


def of_reductions(x):
    return x.sum(dtype=x.dtype) * x.max()


def by_python_number(x):
    return x[0] * 3 - 100


def by_ufuncs(x):  # reports nothing
    return np.add(x[0], x[1]), np.multiply(x[0], x[1]), np.negative(x[0]), np.absolute(x[0])


def of_arrays(x):  # reports nothing
    return x[:1] * x[1], x[..., 0] + x[1], -x


def until_it_overflows(x):
    n, steps = x[0], 0
    while steps < 200:
        n, steps = n * x[1], steps + 1
    return n


def reduced(x):
    return functools.reduce(operator.mul, x)


OF_INTEGERS = [
    add, subtract, multiply, negative, absolute, power, floor_divide, remainder, in_place, item_in_place, summed,
    of_reductions, by_python_number, by_ufuncs, of_arrays, until_it_overflows, reduced,
]  # fmt: skip


@pytest.mark.parametrize("f", OF_INTEGERS, ids=lambda f: f.__name__)
def test_integers_that_overflow(f):
    rows = [[3, 4], [1, 1], [-1, 2], [7, 0]], [[3, 4], [100, 2]], [[0, -128], [1, 1]], [[-128, -1], [1, 2]]
    for dtype in (np.int8, np.int64, np.uint8):
        for examples in rows:
            scale = 2**56 if dtype is np.int64 else 1
            xs = [
                np.array([a % 256 if dtype is np.uint8 else a * scale for a in row]).astype(dtype) for row in examples
            ]
            with np.errstate(all="raise"):
                every_way_is_exact(f, xs)
            with np.errstate(all="ignore"):
                every_way_is_exact(f, xs)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("f", [add, multiply, negative, until_it_overflows], ids=lambda f: f.__name__)
def test_warnings_as_errors(f):
    kind, message = every_way_is_exact(f, [np.array([1, 1]), np.array([2**62, 2**62]), np.array([3, -(2**63)])])
    assert kind is RuntimeWarning
    assert message.startswith("overflow encountered in scalar")


def by_shared(x, w):
    return x[0] * w


def by_shared_item(x, w):
    return x[0] + w[0] * w[1]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_a_shared_operand(dtype):
    xs = [np.array([3, 4], dtype), np.array([100, 4], dtype)]
    with np.errstate(over="raise"):
        assert every_way_is_exact(by_shared, xs, w=np.int8(100) if dtype is not np.uint8 else np.uint8(100))
        assert every_way_is_exact(by_shared_item, xs, w=np.array([2, 14], np.int8))
        assert every_way_is_exact(by_shared_item, xs, w=np.array([100, 14], np.int8))


@pytest.mark.parametrize("f", [less, greater_equal, multiply], ids=lambda f: f.__name__)
def test_complex_numbers(f):
    parts = [1.0, 2.0, np.nan, np.inf, 1e308]
    for dtype in (np.complex128, np.complex64):
        with np.errstate(all="ignore"):
            scalars = [dtype(complex(a, b)) for a, b in itertools.product(parts, parts)]
            every_way_is_exact(f, [np.array([a, b]) for a, b in itertools.product(scalars, scalars[::3])])
    with np.errstate(all="raise"):
        every_way_is_exact(f, [np.array([1 + 1j, 2 + 2j]), np.array([complex(1, np.nan), 2 + 2j])])


@pytest.mark.parametrize("f", [floor_divide, remainder], ids=lambda f: f.__name__)
def test_half_precision(f):
    for pair in itertools.product(numbers("e"), numbers("e")):
        with np.errstate(all="raise"):
            every_way_is_exact(f, [np.array([1, 2], np.float16), np.array(pair, np.float16)])


def test_the_way_may_change_between_calls():
    xs = [np.array([3, 4]), np.array([2**62, 4])]
    with np.errstate(over="raise"), ab.options(way="auto", warn=False):
        for _ in range(20):
            with pytest.raises(FloatingPointError, match="overflow encountered in scalar multiply"):
                ab.map(multiply, xs)


def test_a_loop_that_does_not_overflow_stays_in_lock_step():
    batch = ab.MaskedBatch.from_examples([np.array([1, 1]), np.array([-1, 1])])
    with np.errstate(over="raise"):
        out = ab.batch(until_it_overflows, strict=True)(batch)
    assert out.data.tolist() == [1, -1]
