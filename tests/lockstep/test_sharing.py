"""Variables that several scopes bind, and `match`: per lane, whoever binds them and wherever lanes are."""

import dataclasses

import numpy as np
import pytest

from autobatch import batch
from tests.law import batch_of, every_way_equals_loop, ragged
from tests.law import equals_loop_either_way as equals_loop

NUMBERS = [3, -1, 2, 0, -4]
CHOSEN = [slice(None), slice(None, None, -1), slice(1, 2), slice(3, 4), slice(0, 3, 2)]


def counts_where_it_is_even(n):
    count, best = 0, None

    def step(k):
        nonlocal count, best
        if k % 2:
            return k
        count += k
        if best is None or k > best:
            best = k
        return count

    out = []
    for i in range(n + 5):
        if i < n:
            out.append(step(i + n))
        elif i == 4:
            break
    else:
        count = count * 100
    return count, best, out


def visits(n):
    total, deepest = 0, 0

    def visit(depth):
        nonlocal total, deepest
        total += 1
        if depth > deepest:
            deepest = depth
        if depth > 1:
            visit(depth - 1)
            if depth % 2 == 0:
                visit(depth - 2)

    visit(n)
    return total, deepest


def two_levels(n):
    a = n

    def outer():
        b = 0

        def inner(k):
            nonlocal a, b
            a, b = a + k, b - k
            return a * b

        for i in range(3):
            if i != n:
                inner(i)
        return b

    return outer(), a


def counters_of_a_factory(n):
    def counter():
        count = 0

        def step():
            nonlocal count
            count += 1 if n > 0 else 2
            return count

        return step

    one, two = counter(), counter()
    while n > -3:
        one()
        if n % 2:
            two()
        n -= 1
    return one(), two()


def writes_into_an_array(n):
    state = np.ones(3) * 2

    def put(k):
        nonlocal state
        state[k % 3] = k
        state = state * 0.5 + n

    for i in range(4):
        put(i)
    return state


def a_method_of_the_same_name(n):
    total = 0

    class Counter:
        def total(self, k):
            return k * 2 if k > 0 else k

    def add(k):
        nonlocal total
        total += k

    for i in range(n):
        add(Counter().total(i))
    return total


def every_target(n):
    x = y = z = 0

    def sets():
        nonlocal x, y, z
        if n > 0:
            x, (y, *z) = n, [n + 1, n + 2, n + 3]
        for x in range(n):  # noqa: B007
            y += 1
        x = y = x + 1
        x *= 2

    sets()
    return x, y, len(z) if n > 0 else z


def caught_and_counted(n):
    calls = 0

    def risky():
        nonlocal calls
        calls += 1
        return 6 // n

    for _ in range(3):
        try:
            risky()
        except ZeroDivisionError:
            calls += 100
    return calls


def walrus_everywhere(n):
    a = n
    if n > 0 and (m := n * 2) > 3:
        a = m + 1
    b = (q := n + 1) if n % 2 else -1
    c = (r := a) if 0 < (s := n) < 3 else (r := b)
    kept = [y for k in range(n + 4) if (y := k * n) > -4]
    while a < 9 and (t := a * 2) != 8:
        a += 1
        if (u := t) > 12 or (u := a) == n:
            b += u
            break
    return a, b, c, r, s, q if n % 2 else None, kept


def deleted(n):
    kept, seen = n, []

    def drop():
        nonlocal kept
        if n > 0:
            kept += 5
        kept = kept * 2
        seen.append(kept)
        del kept
        kept = n - 1  # noqa: F841

    drop()
    return kept, seen


@pytest.mark.parametrize(
    "f",
    [
        counts_where_it_is_even, visits, two_levels, counters_of_a_factory,
        a_method_of_the_same_name, every_target, caught_and_counted,
        writes_into_an_array, walrus_everywhere, deleted,
    ],
)  # fmt: skip
@pytest.mark.parametrize("chosen", CHOSEN)
def test_variables_that_other_scopes_bind(f, chosen):
    equals_loop(f, NUMBERS[chosen])


def test_gradients_through_a_closures_state():
    def f(xs, w):
        h = 0.0

        def step(x):
            nonlocal h
            h = np.tanh(h * w + x) if x > 0 else h * x

        for x in xs:
            step(x)
        return h

    xs = ragged(3, 1, 4, 2)
    equals_loop(f, xs, w=0.7)
    every_way_equals_loop(f, xs, w=0.7)


def test_a_variable_that_some_lanes_have_not_bound():
    def f(n):
        def bind():
            nonlocal late
            late = n

        if n > 0:
            bind()
        if n > 2:
            late = 1
        return late

    equals_loop(f, [3, 1, 2])
    with pytest.raises(UnboundLocalError, match="'late'") as caught:
        batch(f)(batch_of([3, 0, 2]))
    assert caught.value.__notes__ == ["raised for example 1"]


@dataclasses.dataclass
class Pair:
    x: object
    y: object


class Colour:
    RED = 2


def literals_and_captures(n):
    match n:
        case 0:
            return "zero"
        case (2 | 3) as k if k > 2:
            out = ("three", k)
        case Colour.RED:
            out = "red"
        case int(v) if v < -2:
            out = v
        case _:
            out = None
    return out


def every_pattern(n):
    out = []
    subjects = (
        [n, 1], [1, 2, n], (n,), [], {"k": n, "z": 1}, {"k": -1}, "text", n, n * 1.0, None, True, Pair(n, 2),
        Pair(1, n), n > 0,
    )  # fmt: skip
    for subject in subjects:
        match subject:
            case [x]:
                score = x + 1
            case [1, *middle, y]:
                score = y * 2 + len(middle)
            case [3 | 2 as a, b]:
                score = a * 10 + b
            case [*everything]:
                score = len(everything)
            case {"k": -1 | 3 as k, **others}:
                score = k * 100 + len(others)
            case {"k": _}:
                score = -7
            case str(text):
                score = len(text)
            case None:
                score = 8
            case True:
                score = 9
            case False:
                score = 10
            case float():
                score = 11
            case Pair(3 | 2 as p, y=q):
                score = p * 1000 + q
            case Pair(x=0):
                score = -5
            case Pair(_, w):
                score = w
            case int():
                score = 12
        out.append(score * 1.0)
    return out


def jumps_out_of_cases(n):
    total = 0
    while True:
        match (n % 3, n > 2):
            case (0, True):
                n -= 2
                continue
            case (0, False) if n <= 0:
                break
            case (r, big):
                total += r + big
                n -= 1
    return total, n


def words(text):
    match text.split():
        case ["go", ("north" | "south") as way]:
            return way
        case ["take", *things]:
            return ",".join(things)
        case []:
            return "nothing"


@pytest.mark.parametrize("f", [literals_and_captures, every_pattern, jumps_out_of_cases])
@pytest.mark.parametrize("chosen", CHOSEN)
def test_match(f, chosen):
    equals_loop(f, NUMBERS[chosen])


def test_match_of_text():
    equals_loop(words, ["go north", "take a b", "", "go up", "take"])


def test_a_case_is_not_entered_by_other_lanes():
    def f(x, w):
        match len(x):
            case 0:
                return w * 0
            case 1:
                return np.log(w * x[0] ** 2)
            case _ if x[1] > 0:
                return np.tanh(x * w).sum()
        return w / x[1]

    xs = ragged(3, 1, 0, 4, seed=2)
    equals_loop(f, xs, w=0.7)
    every_way_equals_loop(f, [x for x in xs if len(x)], w=0.7)


def test_arrays_are_no_sequences():
    def f(x):
        match x:
            case [a, *_]:
                return a
            case np.ndarray(shape=(n,)):
                return n

    equals_loop(f, ragged(3, 1, 0))
