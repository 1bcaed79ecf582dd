"""`try` in lock-step: nothing raised runs for all lanes; else the statement runs again for fewer of them."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples
from autobatch.errors import FallbackWarning
from tests.law import assert_same, batch_of, ragged
from tests.law import equals_loop_either_way as equals_loop

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

    said = pytest.warns(FallbackWarning, match="an exception that is handled")
    with pytest.raises(ZeroDivisionError, match="by zero") as caught, said:
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


def writes_first(n):
    out, rest = np.zeros(3), n
    try:
        out[0] = n
        out += 1
        out[[0, 1, 2][n]] = 5
    except IndexError:
        out[1] = -1
    return out, rest


def draws_and_counts(n):
    count = 0

    def step():
        nonlocal count
        count += 1
        return 6 // n

    try:
        x = ab.nn.dropout(np.ones(4), 0.5, seed=3)
        step()
    except ZeroDivisionError:
        x = ab.nn.dropout(np.ones(4), 0.5, seed=3)
    return x, count


@pytest.mark.parametrize("f", [appends_first, reads_the_exception, writes_first, draws_and_counts])
@pytest.mark.parametrize("chosen", [slice(None), slice(None, None, -1), slice(3, 4), slice(0, 1)])
def test_what_a_failed_attempt_changed_is_taken_back(f, chosen):
    numbers = NUMBERS[chosen]
    if f is draws_and_counts:
        want = ab.map(f, numbers)
        with ab.options(warn=False):
            got = examples(batch(f)(batch_of(numbers)))
        return assert_same(got, want)
    equals_loop(f, numbers)


def test_prints_of_a_failed_attempt_are_not_shown(capsys):
    def f(n):
        print("before", n)
        try:
            print("in", n)
            return 6 // n
        except ZeroDivisionError:
            print("caught", n)

    for n in NUMBERS:
        f(n)
    want = capsys.readouterr().out
    with ab.options(warn=False):
        batch(f)(batch_of(NUMBERS))
    assert capsys.readouterr().out == want


def reads_its_arguments(n):
    try:
        if n < 0:
            raise StopError("negative", n)
        [1, 2][n]
    except StopError as error:
        word, number = error.args
        return word, number + 1, str(error)
    except IndexError as error:
        return str(error)
    return n


def raises_another(n):
    try:
        try:
            x = 12 // n
        except ZeroDivisionError as error:
            raise StopError(n) from error
        finally:
            n += 1
        if x < 0:
            raise LookupError(x)
    except StopError as error:
        return type(error.__cause__).__name__, error.args[0], n
    except LookupError as error:
        return str(error)
    return x, n


def raises_again(n):
    try:
        try:
            return 12 // n
        except ZeroDivisionError:
            n = 7
            raise
    except ArithmeticError:
        return n


@pytest.mark.parametrize("f", [reads_its_arguments, raises_another, raises_again])
@pytest.mark.parametrize("chosen", [slice(None), slice(None, None, -1), slice(1, 2), slice(3, 4), slice(0, 3, 2)])
def test_exceptions_that_handlers_read(f, chosen):
    equals_loop(f, NUMBERS[chosen])


def test_an_exception_of_some_examples():
    def tried(n):
        try:
            n = n + 1
            if n > 6:
                raise ValueError(n)
        except ValueError:
            n = 0
        return n

    equals_loop(tried, list(range(8)))


def test_a_change_that_cannot_be_taken_back():
    def f(n):
        left = iter([1, 2, 3])
        try:
            first = next(left)
            return first, 6 // n
        except ZeroDivisionError:
            return next(left), 0

    equals_loop(f, NUMBERS, falls_back=True)


def test_an_exception_that_may_be_of_ours_is_the_loops():
    equals_loop(catches_everything, XS, falls_back=True)
