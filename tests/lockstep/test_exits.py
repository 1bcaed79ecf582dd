"""Ways out of `try`: jumps through `finally`, `else`, and exceptions that pass through several statements."""

import runpy

import pytest

from tests.law import equals_loop_either_way as equals_loop
from tests.law import every_way_equals_loop, ragged

NUMBERS = [3, -1, 2, 0, -4]


def leaves_through_finally(n):
    log = []
    for i in range(5):
        try:
            if i == n:
                break
            if n < -1:
                return log
            if i % 2:
                continue
            log.append(i)
        finally:
            log.append(-i)
    else:
        log.append(100)
    return log


def returns_before_others_raise(n):
    try:
        if n > 2:
            return "early", n
        share = 12 // n
        if share > 3:
            return "share", share
    except ZeroDivisionError:
        return "zero", n
    return "end", share


def a_handler_reads_what_its_lane_had_bound(n):
    y = n * 10 + 5
    try:
        if n > 0:
            y = 2
            y += 6 // (n - 2)
        z = 6 // n
        y = 3
    except ZeroDivisionError:
        z = y
    return z


def finally_inside_finally(n):
    log = []
    try:
        try:
            log.append(12 // n)
            if n > 2:
                return log
        finally:
            try:
                log.append([7, 8][n])
            except IndexError:
                log.append(9)
            else:
                log.append(10)
    except ZeroDivisionError:
        log.append(11)
    finally:
        log.append(12)
    return log


def else_that_returns(n):
    for i in range(3):
        try:
            x = 12 // (n - i)
        except ZeroDivisionError:
            x = -1
        else:
            if x > 5:
                return i, x
            if x < -3:
                continue
        finally:
            n += 1
    return n, x


def raises_in_a_loop_of_a_helper(n):
    total = 0
    for i in range(4):
        try:
            total += checked(n, i)
        except ValueError as error:
            total += error.args[0] * 10
    return total


def checked(n, i):
    for k in range(n + 2):
        if k * i == 3:
            raise ValueError(k)
        if k + i > 4:
            return k
    return i


@pytest.mark.parametrize(
    "f",
    [
        leaves_through_finally,
        finally_inside_finally,
        else_that_returns,
        raises_in_a_loop_of_a_helper,
        returns_before_others_raise,
        a_handler_reads_what_its_lane_had_bound,
    ],
)
@pytest.mark.parametrize("chosen", [slice(None), slice(None, None, -1), slice(1, 2), slice(3, 4), slice(0, 3, 2)])
def test_ways_out(f, chosen):
    equals_loop(f, NUMBERS[chosen])


def test_gradients_through_what_was_tried():
    def f(x, w):
        try:
            y = x[2] * w
        except IndexError:
            y = (x * w).sum() ** 2
        finally:
            w = w * 2
        return y * w

    every_way_equals_loop(f, ragged(3, 1, 4, 2), w=0.7)
    equals_loop(f, ragged(3, 1, 4, 2), w=0.7)


JUMP_OUT_OF_FINALLY = """
def f(n):
    for i in range(3):
        try:
            n = 6 // (n - i)
        finally:
            continue
    return n
"""


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of Python 3.14 and later
def test_a_jump_out_of_finally_is_the_loops(tmp_path):
    (tmp_path / "jumps.py").write_text(JUMP_OUT_OF_FINALLY, encoding="utf-8")
    equals_loop(runpy.run_path(str(tmp_path / "jumps.py"))["f"], NUMBERS, falls_back=True)
