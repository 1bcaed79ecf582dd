"""The law for operators between NumPy scalars, which are not the ufuncs (`facts.operators`)."""

import functools
import itertools
import operator

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import NeedsLoop
from tests.law import every_way_is_exact


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
    numbers = [-np.inf, -65504.0, -0.5, -0.0, 0.0, 2.0, 65504.0, np.inf, np.nan]
    for pair in itertools.product(numbers, numbers):
        with np.errstate(all="raise"):
            every_way_is_exact(f, [np.array([1, 2], np.float16), np.array(pair, np.float16)])


def test_the_proof_under_errors():
    xs = [np.array([3, 4]), np.array([2**62, 4]), np.array([1, 1])]
    report = ab.testing.assert_equivalent(multiply, xs, errors="raise")
    assert (report.failing, report.examples) == (1, 3)
    with np.errstate(all="ignore"):
        assert ab.testing.assert_equivalent(multiply, xs).failing == 0
    with pytest.raises(ab.errors.OptionError, match='expected "raise"'):
        ab.testing.assert_equivalent(multiply, xs, errors="warn")


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


_NUMBERS = [
    *(np.dtype(char).type(x) for char, x in itertools.product("bHq", (0, 3, 100))),
    *(np.dtype(char).type(x) for char, x in itertools.product("efd", (0.0, np.nan, -np.inf))),
    *(np.finfo(char).max for char in "efd"),
    *(np.finfo(char).tiny for char in "efd"),
    *(np.dtype(char).type(x) for char, x in itertools.product("FD", (3e38 + 3e38j, 2e-38 + 2e-38j, np.nan * 1j, 1j))),
    *(np.int8(-128), np.uint16(65535), np.int64(-(2**63)), np.bool_(True)),
    *(300, -2, 1e300, 1e-300, np.inf, True, 1e300 + 1j, 0j),
]


def reports(function, *operands):
    """What NumPy reports of a call, or the class of the exception."""
    found = set()
    with np.errstate(all="call", call=lambda kind, _: found.add(kind)):
        try:
            function(*operands)
        except Exception as error:
            return type(error)
    return found


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "ge", "eq"])
def test_what_is_reported_of_any_two_dtypes(name):
    function = getattr(operator, name)
    columns = [ab.collate([x]) for x in _NUMBERS]
    for (x, of_x), (y, of_y) in itertools.product(zip(_NUMBERS, columns, strict=True), repeat=2):
        infinite = name == "pow" and np.isinf(y)  # of which NumPy's ufunc reports overflow for large x
        if (name == "pow" and type(x) is type(y) is int) or infinite:
            continue
        expected = reports(function, x, y)
        for operands in ((of_x, of_y), (of_x, y), (x, of_y)):
            found = reports(function, *operands)
            assert found in (expected, NeedsLoop), (name, x, y, type(operands[0]), type(operands[1]))


def of_shared_integers(x, w):
    return abs(x)[2] * w[0]


def of_a_python_number(x):
    return len(x) * x[1], x[1] // len(x)


def test_floats_beside_integers_overflow():
    x = np.array([0, 0, 3e38], np.complex64)
    for kind in ("raise", "ignore"):
        with np.errstate(over=kind):
            every_way_is_exact(of_shared_integers, [x / 1e30, x], w=np.array([50000, 1], np.uint16))
            every_way_is_exact(of_a_python_number, [np.zeros(3, np.float32), np.full(2, 3e38, np.float32)])


def by_complex_numbers(x):
    return 1j * x[0], x[0] * 1j, 1j - x[0], 2j / x[1]


def test_a_complex_number_of_python_takes_a_float64():
    for dtype in (np.float64, np.float32):
        xs = [np.array([2.0, 1.0], dtype), np.array([3.0, 2.0], dtype)]
        every_way_is_exact(by_complex_numbers, xs)
    every_way_is_exact(by_complex_numbers, [np.array([2.0, 1.0]), np.array([2.0, 0.0])])  # Python divides, and raises


def to_a_number(x):
    return np.linspace(0, x, 3), np.linspace(x, 1, 3)


def test_the_signs_of_a_complex_zero_are_kept_in_a_range():
    every_way_is_exact(to_a_number, [-0j, 1j])
