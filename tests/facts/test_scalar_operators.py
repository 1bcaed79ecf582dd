"""The table of where operators between NumPy scalars differ from the ufuncs, compared with what NumPy does."""

import itertools
import operator
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.facts.operators import BINARY, DIFFERENCES, UNARY

DTYPES = "?bBhHiIqQefdFD"
_SAID = {"divide": "divide by zero", "over": "overflow", "invalid": "invalid value"}


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
    concerned = known is not None and any(x.dtype.char in known.chars for x in operands)
    if concerned and np.result_type(*operands).char in known.chars:
        suspects = known.suspects(theirs, *(np.array([x]) for x in operands))
        if suspects.any():
            return None if known.values or same(ours, theirs) else "a value"
        theirs_said -= {_SAID[each] for each in known.quiet}
    if not same(ours, theirs):
        return "a value"
    more = ours_said ^ theirs_said
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


NUMBERS = [np.array(pair) for pair in ([1e300, np.inf], [0.0, -np.inf], [2.0, 0.5], [-1.5, 3.0])]


def a_complex_number_first(x):
    return 1j + x.sum(), 1j * x[0], x[0] == 1j, x[1] != 1j, x[0] == 1j, complex(2) == x[0]


def a_division_of_a_complex_number(x):
    return 1j / x[:1].mean()


def powers(x):
    return x[0] ** x[1], x[0] ** np.inf, x[0] ** -np.inf, x[0] ** 0.5


@pytest.mark.parametrize("f", [a_complex_number_first, a_division_of_a_complex_number, powers])
@pytest.mark.parametrize("xs", [NUMBERS[:1] * 2, NUMBERS[1:2] * 2, NUMBERS[2:]])
def test_every_way_has_the_operators_of_scalars(f, xs):
    def outcome(call):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = call()
            except ZeroDivisionError as error:
                found = str(error)
        return repr(found), bool(caught)

    wanted = outcome(lambda: [f(x) for x in xs])
    with ab.options(way="lockstep", warn=False):
        assert outcome(lambda: ab.examples(ab.batch(f)(ab.MaskedBatch.from_examples(xs)))) == wanted
        assert outcome(lambda: ab.map(f, xs)) == wanted
