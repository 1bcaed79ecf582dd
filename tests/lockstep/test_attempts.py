"""`try` in lock-step: nothing raised runs for all lanes; else the statement runs lane by lane, or the loop knows."""

import numpy as np
import pytest

from autobatch.api.batch import batch
from autobatch.errors import FallbackWarning
from tests.lockstep.law import batch_of, equals_loop, ragged

NUMBERS = [3, -1, 2, 0, -4]
XS = ragged(3, 1, 0, 4)


def raises_and_catches(n):
    try:
        if n < 0:
            raise ValueError(n)
        return n
    except ValueError:
        return 0


def item_or_default(n):
    table = {3: "three", 2: "two"}
    try:
        found = table[n]
    except KeyError:
        found = None
    else:
        found = found + "!"
    finally:
        n = n + 1
    return found, n


def division_in_a_loop(n):
    out = 0
    while n > -3:
        n -= 1
        try:
            out += 12 // n
            if n == 1:
                continue
            if out > 20:
                break
        except ZeroDivisionError:
            out = -1
        except (KeyError, AssertionError):
            return "never"
    return out, n


def nested(n):
    try:
        try:
            x = 12 // n
        except KeyError:
            x = 1
        assert x > 0
    except ZeroDivisionError:
        x = "zero"
    except AssertionError:
        x = -100
    return x


def several_statements(n):
    y = np.ones(2)
    try:
        y = y * n
        z = 6 // n
        y = y + z
    except ZeroDivisionError:
        y = y - 1
    return y


def in_a_branch(n):
    if n > 0:
        try:
            return [10, 20, 30][n]
        except IndexError:
            n = 100
    return n


class StopError(Exception):
    pass


def own_class(n):
    for i in range(6):
        try:
            if i == n:
                raise StopError
        except StopError:
            return i
    return None


@pytest.mark.parametrize(
    "f", [raises_and_catches, item_or_default, division_in_a_loop, nested, several_statements, in_a_branch, own_class]
)
@pytest.mark.parametrize("chosen", [slice(None), slice(None, None, -1), slice(1, 2), slice(0, 1), slice(0, 3, 2)])
def test_exceptions_of_some_lanes(f, chosen):
    equals_loop(f, NUMBERS[chosen])


def test_an_item_that_some_arrays_do_not_have():
    def f(x):
        try:
            y = x[2]
        except IndexError:
            y = np.float64(-1)
        return y

    equals_loop(f, XS)


def test_what_no_handler_takes_is_raised_for_the_first_example():
    def f(n):
        try:
            return 12 // n
        except KeyError:
            return 0

    with pytest.raises(ZeroDivisionError) as caught:
        batch(f)(batch_of(NUMBERS))
    assert caught.value.__notes__ == ["raised for example 3"]


def appends_first(n):
    kept = []
    try:
        kept.append(n)
        kept.append(6 // n)
    except ZeroDivisionError:
        kept.append(-1)
    return kept


def reads_the_exception(n):
    try:
        return 6 // n
    except ZeroDivisionError as error:
        return str(error)


def catches_everything(x):
    try:
        return x.no_such_attribute
    except Exception:
        return 0


@pytest.mark.parametrize("f", [appends_first, reads_the_exception])
def test_what_the_loop_must_do(f):
    equals_loop(f, NUMBERS, falls_back=True)


def test_an_exception_that_may_be_of_ours_is_the_loops():
    equals_loop(catches_everything, XS, falls_back=True)


def test_the_warning_says_why():
    with pytest.warns(FallbackWarning, match="after the body of the try changed something"):
        batch(appends_first)(batch_of(NUMBERS))
