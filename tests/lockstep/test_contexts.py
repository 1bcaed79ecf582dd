"""`with` in lock-step: a library's manager once for all lanes, the user's own for the lanes that enter and leave."""

import collections
import contextlib
import contextvars
import functools
import types

import numpy as np
import pytest

from tests.law import equals_loop_either_way as equals_loop
from tests.law import every_way_equals_loop, ragged

NUMBERS = [3, -1, 2, 0, -4]
CHOSEN = [slice(None), slice(None, None, -1), slice(1, 2), slice(3, 4), slice(0, 3, 2)]


class Noted:
    def __init__(self, log, forgives=()):
        self.log = log
        self.forgives = forgives

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append("out")
        if kind is None:
            return None
        self.log.append(str(error))
        return issubclass(kind, self.forgives)


def returns_inside(n):
    log = []
    with Noted(log) as noted:
        noted.log.append("body")
        if n > 1:
            return log
        log.append("more")
    return log


def jumps_inside(n):
    log, total = [], 0
    for i in range(4):
        with Noted(log):
            if i == n:
                continue
            if n == 0 and i == 2:
                break
            total += i
        total += 10
    else:
        total += 100
    return log, total


def forgives(n):
    log = []
    with Noted(log, (ZeroDivisionError,)):
        share = 12 // n
        if share > 5:
            return log
        log.append("shared")
    log.append("after")
    return log


def does_not_forgive(n):
    log = []
    try:
        with Noted(log, (KeyError,)), Noted(log):
            log.append("body")
            if 12 // n < 0:
                raise KeyError(n)
    except ZeroDivisionError:
        log.append("caught")
    finally:
        log.append("finally")
    return log


def nested_in_a_loop_and_try(n):
    log = []
    while n > -3:
        n -= 1
        try:
            with Noted(log, (LookupError,)) as noted:
                noted.log.append("try")
                [1, 2][n]
                if n == 0:
                    raise ValueError("zero")
        except ValueError as error:
            log.append(str(error))
    return log


@pytest.mark.parametrize("f", [returns_inside, jumps_inside, forgives, does_not_forgive, nested_in_a_loop_and_try])
@pytest.mark.parametrize("chosen", CHOSEN)
def test_managers_of_the_users_own(f, chosen):
    equals_loop(f, NUMBERS[chosen])


def test_a_librarys_manager_around_exceptions_of_some_lanes():
    def f(n):
        with contextlib.suppress(ZeroDivisionError), np.errstate(all="ignore"):
            x = np.float64(1.0) / np.float64(n)
            return 12 // n, x
        return -1, None

    equals_loop(f, NUMBERS)
    assert np.geterr()["divide"] == "warn"


def test_gradients_inside():
    class Gain:
        def __init__(self, w):
            self.w = w

        def __enter__(self):
            self.w = self.w * 2
            return self.w

        def __exit__(self, *_):
            return False

    def f(xs, w):
        total = xs.sum() * 0
        for x in xs:
            with Gain(w) as gain:
                if x < 0:
                    continue
                total = np.tanh(total + x * gain)
        return total

    xs = ragged(3, 1, 4, 2)
    equals_loop(f, xs, w=0.7)
    every_way_equals_loop(f, xs, w=0.7)


def test_a_generator_as_a_manager_runs_as_a_loop():
    @contextlib.contextmanager
    def twice(n):
        yield n * 2

    def f(n):
        with twice(n) as m:
            return m

    equals_loop(f, NUMBERS, falls_back=True)


@contextlib.contextmanager
def noting(log, name, caught=()):
    log.append("in " + name)
    try:
        yield log
    except caught as error:
        log.append(str(error))
    finally:
        log.append("out " + name)


def a_generator_notes(n):
    log = []
    with noting(log, "a"):
        log.append(n)
    return log


def generators_catch(n):
    log, share = [], -1
    with noting(log, "a", (ZeroDivisionError,)) as noted, noting(noted, "b"):
        share = 12 // n
    return log, share


def a_generator_keeps_nothing(n):
    share = -1
    with contextlib.suppress(KeyError), noting([], "a", (ZeroDivisionError,)):
        share = 12 // n
    return share


def a_generator_puts_back(n):
    @contextlib.contextmanager
    def changed(values, key, value):
        old, values[key] = values[key], value
        yield values
        values[key] = old

    values = {"n": n}
    with changed(values, "n", n * 2) as inner:
        seen = dict(inner)
    return values, seen


@pytest.mark.parametrize("f", [a_generator_notes, generators_catch, a_generator_keeps_nothing, a_generator_puts_back])
def test_generators_as_managers(f):
    equals_loop(f, NUMBERS)


def a_partial(n):
    log = []
    note = functools.partial(list.append, log)
    note(n)
    note(1)
    return log


def a_partial_of_the_users(n):
    log = []
    note = functools.partial(lambda value, logs: logs[0].append(value), logs=[log])
    note(n)
    return log


def an_object_of_a_library(n):
    log = []
    held = types.SimpleNamespace(log=log)
    held.log.append(n)
    with contextlib.nullcontext(log) as same:
        same.append(1)
    return log, collections.UserList(log).data


@pytest.mark.parametrize("f", [a_partial, a_partial_of_the_users, an_object_of_a_library])
def test_a_list_that_a_call_keeps_is_the_lanes_own(f):
    equals_loop(f, NUMBERS)


def test_what_a_call_sets_for_the_thread_is_set_for_the_caller():
    setting = contextvars.ContextVar("setting", default=0)

    def f(x):
        np.seterr(divide="ignore")
        setting.set(3)
        return x * 2

    with np.errstate(divide="warn"):
        equals_loop(f, NUMBERS)
        assert np.geterr()["divide"] == "ignore"
    assert setting.get() == 3
