"""Loops that lanes leave one by one, recursion, and gradients through both, against the loop over the examples."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch, batch, examples
from tests.law import equals_loop_either_way as equals_loop
from tests.law import ragged

NUMBERS = [3, 7, 0, 5, 1, 4]
XS = ragged(3, 1, 0, 4, 2, 6)


def countdown(n):
    steps = 0
    while n > 0:
        n -= 1
        steps += 1
    return steps, n


def collatz(n):
    steps = 0
    n = n + 1
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps = steps + 1
    return steps


def while_else(n):
    i = 0
    while i < n:
        if i == 4:
            break
        i += 1
    else:
        i = -i
    return i


def while_true(n):
    out = []
    while True:
        if n <= 0:
            return out
        n -= 2
        if n == 1:
            continue
        out.append(n)


def nested_whiles(n):
    total = 0
    while n > 0:
        k = n
        while k > 0:
            if k == 3:
                break
            total += k
            k -= 1
        else:
            total += 100
        n -= 1
    return total, n


def breaks_in_a_shared_range(n):
    for i in range(10):
        if i == n:
            break
    else:
        i = -1
    return i


def skips_in_a_ragged_range(n):
    total = 0
    for i in range(n):
        if i % 2:
            continue
        for j in range(i):
            if j == 2:
                break
            total += j + 1
    return total


def returns_from_two_loops(n):
    for i in range(3):
        for j in range(n):
            if i * j == 4:
                return i, j
    return None


def loop_in_a_branch(n):
    total = 0
    if n > 2:
        for i in range(n):
            total += i
        while total > 8:
            total -= 3
    else:
        total = n
    return total


def fibonacci(n):
    if n < 2:
        return 1
    return fibonacci(n - 1) + fibonacci(n - 2)


def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def is_odd(n):
    return False if n == 0 else is_even(n - 1)


def sum_to(n, total=0):
    return total if n == 0 else sum_to(n - 1, total + n)


def gcd(n):
    a, b = n + 1, 4
    while a != b:
        if a < b:
            a, b = b, a
        a -= b
    return a


def recursion_in_a_while(n):
    out = 0
    while n > 0:
        out += fibonacci(n)
        n -= 2
    return out


def item_kept_at_each_place(n):
    y = np.zeros(8)
    i = 0
    while i < n:
        y[i] = i * n
        i += 1
    return y


def array_state(n):
    h = np.ones((2, 3))
    while n > 0:
        h = np.tanh(h * n)
        if h.sum() < 5.5:
            h = h + 0.5
        n -= 1
    return h


def deletes(n):
    a = b = n
    while n > 2:
        n -= 1
        t = n * 2
        if t > 6:
            continue
        b += t
        del t
    return a, b


OF_NUMBERS = [
    countdown, collatz, while_else, while_true, nested_whiles, breaks_in_a_shared_range, skips_in_a_ragged_range,
    returns_from_two_loops, loop_in_a_branch, fibonacci, is_even, sum_to, gcd, recursion_in_a_while,
    item_kept_at_each_place, array_state, deletes,
]  # fmt: skip


@pytest.mark.parametrize("f", OF_NUMBERS)
@pytest.mark.parametrize("chosen", [slice(None), slice(None, None, -1), slice(1, 2), slice(0, 2)])
def test_numbers(f, chosen):
    equals_loop(f, NUMBERS[chosen])


def first_positive(xs):
    for i, x in enumerate(xs):
        if x > 0:
            return i, x
    return -1, None


def found_or_else(xs):
    found = None
    for x in xs:
        if x > 1:
            found = float(x)
            break
    else:
        found = -1.0
    return found


def skips_negatives(xs):
    total = np.float64(0)
    for x in xs:
        if x < 0:
            continue
        total += x
    return total


def longest_run(xs):
    best = run = 0
    for x in reversed(xs):
        run = run + 1 if x > 0 else 0
        best = max(best, run)
        if best == 3:
            break
    return best, run


def pairs(xs):
    kept = []
    for i, (a, b) in enumerate(zip(xs, xs[1:])):  # noqa: B905, RUF007
        if a > b:
            kept.append((i, a))
        elif i > 2:
            break
    return kept


def over_its_kept(xs):
    kept = [x for x in xs if x > 0]
    total = 0.0
    for k in kept:
        if k > 1:
            break
        total = total + k
    return total, len(kept)


def last_of_while_in_for(xs):
    total = 0.0
    for x in xs:
        k = x
        while k > 0.1:
            k = k * 0.5
            total += k
            if total > 2:
                return total
    return -total


OF_ARRAYS = [
    first_positive, found_or_else, skips_negatives, longest_run, pairs, over_its_kept, last_of_while_in_for,
]  # fmt: skip


@pytest.mark.parametrize("f", OF_ARRAYS)
@pytest.mark.parametrize("chosen", [slice(None), slice(None, None, -1), slice(3, 4), slice(3, 6)])
def test_ragged_arrays(f, chosen):
    equals_loop(f, XS[chosen])


def test_lanes_as_many_as_steps_as_columns():
    equals_loop(first_positive, ragged(3, 3, 3, seed=5))
    equals_loop(array_state, [2, 3])


@pytest.mark.parametrize("f", [countdown, fibonacci, while_true])
def test_no_examples(f):
    assert examples(batch(f)(MaskedBatch(np.zeros((0,), int)))) == []


def newton(a, start):
    x = start
    for _ in range(30):
        step = (x * x - a) / (2 * x)
        x = x - step
        if abs(step) < 1e-6:
            break
    return x


def guarded_root(x, w):
    y = x * w
    if y > 0:
        return np.sqrt(y)
    return y * 0.0


def unrolled(xs, w):
    h = np.zeros(2)
    for x in xs:
        h = np.tanh(h * w + x)
        if h.sum() > 1.2:
            h = h * 0.5
            break
        while h[0] > 0.3:
            h = h * w
    return h


def test_gradients_through_divergent_code():
    a = [np.float64(v) for v in (2.0, 9.0, 0.25, 100.0)]
    ab.testing.assert_equivalent(newton, a, grad=True, start=np.float64(1.0))
    ab.testing.assert_equivalent(guarded_root, [np.float64(v) for v in (-1.0, 0.0, 4.0)], grad=True, w=np.float64(0.5))
    ab.testing.assert_equivalent(unrolled, XS, grad=True, w=np.float64(0.7))


def test_jumps_out_of_with_and_match():
    def f(n):
        while n > 0:
            with np.errstate(all="ignore"):
                n -= 1
                if n == 3:
                    return "three"
                if n == 2:
                    break
        for i in range(n):
            match i:
                case 1:
                    return i
                case _:
                    continue
        return n

    equals_loop(f, NUMBERS)
