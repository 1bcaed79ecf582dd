"""Branches and recursion on values that differ between examples."""

import numpy as np

from tests.programs.registry import program

SCALARS = [np.float32(v) for v in (-2.0, 0.0, 0.5, 3.0)]
COUNTS = [3, 7, 0, 5]


@program(COUNTS)
def fibonacci(n):
    if n < 2:
        return 1
    return fibonacci(n - 1) + fibonacci(n - 2)


@program(COUNTS)
def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def is_odd(n):
    return False if n == 0 else is_even(n - 1)


@program(COUNTS)
def sum_to(n, total=0):
    return total if n == 0 else sum_to(n - 1, total + n)


@program([12, 7, 5, 9], [8, 21, 5, 6])
def gcd(a, b):
    if a == b:
        return a
    if a < b:
        a, b = b, a
    return gcd(a - b, b)


@program(SCALARS, grad=True)
def one_armed(x):
    y = x
    if x > 0:
        y = x * x
    return y


@program(SCALARS, [np.float32(v) for v in (1.0, -1.0, 2.0, -3.0)], grad=True)
def nested_on_two_variables(x, y):
    if x > 0:
        if y > 0:
            z = x * y
        else:
            z = x - y
    elif y > 1:
        z = y * y
    else:
        z = x + 2 * y
    return z


@program(SCALARS, grad=True)
def both_arms_assign_the_tested_variable(x):
    if x > 0:
        x = -x
    else:
        x = x + 10
    return x


@program(SCALARS, grad=True)
def absolute_by_return(x):
    if x < 0:
        return -x
    return x


@program(SCALARS, grad=True)
def guarded_reciprocal(x):
    return 1 / x if x else x * 0


@program(SCALARS)
def guarded_by_and(x):
    return bool(x != 0 and 1 / x > 1)


@program(SCALARS, mode="sparse", flag=True)
def options_beside_conditions(x, mode, flag):
    if mode == "dense":
        raise ValueError("never")
    scale = 2 if flag else 3
    return x * scale if x > 0 else x


@program(SCALARS)
def arms_of_different_shape(x):
    return np.zeros(2) if x > 0 else np.zeros((3, 1))


@program([np.array([3, 1, 2]), np.array([5]), np.array([2, 2, 2, 8])])
def expansions(leaves):
    unconnected = leaves.astype(np.float64)
    expansions = np.zeros_like(unconnected)
    while (unconnected > 1).any():
        unconnected /= 2.5
        expansions += np.ceil(unconnected)
    return np.clip(expansions, 1, None).astype(np.int64)


@program(SCALARS)
def raises_for_some(x):
    assert x < 3, "too large"
    return x


@program([3, -1, 2])
def caught_for_some(n):
    try:
        if n < 0:
            raise ValueError(n)
        return n
    except ValueError:
        return 0
