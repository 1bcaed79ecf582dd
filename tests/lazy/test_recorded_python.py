"""What recorders leave to Python: sugar, containers, functions and arrays of an example's own, beside recorded arrays.

To see these tests fail: let `LineWriter.meet` take the first arm always, or leave `ValueWriter.poured`'s refusal out.
"""

import bisect
import heapq
import math

import numpy as np
import pytest

import autobatch as ab
from autobatch.lazy.recorders.generated_recorders import forget_recorders
from tests.inspect import map_with_stats
from tests.law import assert_same, normal

W = normal(3, 3, seed=1)


@pytest.fixture(autouse=True)
def _fresh():
    forget_recorders()


def examples(count, seed=0):
    """Numbers, a vector, and words."""
    rng = np.random.default_rng(seed)
    return [
        ([int(n) for n in rng.integers(-3, 9, size=1 + i % 4)], normal(3, seed=i + seed), "abcab"[: 2 + i % 3])
        for i in range(count)
    ]


def step(x, w):
    return np.tanh(x @ w + 1)


def chained_comparisons(each, w):
    ns, x, _ = each
    h = step(x, w)
    total = 0.0
    for n in ns:
        if -2 < n <= 3 < len(ns) + 2 and (n or len(ns) > 1):
            h = step(h, w)
        total += 1.0 if 0 <= n < 2 else 0.25 if n < 5 else 0.0
    return h, total, (ns and ns[0]) or "none"


def calls_on_one_side(each, w):
    ns, x, _ = each

    def size(n):
        return n * 2 if n > 1 else 1

    return step(x, w), [n for n in ns if (n > 0 and size(n) > 3) or n == -1], not ns or size(ns[0]) == 1


def loops_with_an_else(each, w):
    ns, x, _ = each
    h = step(x, w)
    for n in ns:
        if n > 6:
            found = n
            break
    else:
        found = -1
        h = step(h, w)
    left = len(ns)
    while left:
        left -= 1
        if ns[left] == 2:
            break
    else:
        h = h * 2 + found
    while True:
        left += 1
        if left > 3:
            break
        h = step(h, w)
    return h, found, left


def bound_while_tested(each, w):
    ns, x, _ = each
    h, stack = step(x, w), list(ns)
    last = 0
    while stack and (last := stack.pop()) < 5:
        h = step(h, w) * last
    return h, last, len(stack)


def lists_and_dicts(each, w):
    ns, x, word = each
    kept, seen = [0] * 2, {}
    kept += ns
    kept.insert(1, len(word))
    kept.extend([n + 1 for n in ns])
    for letter in word:
        seen[letter] = seen.get(letter, 0) + 1
    kept[0] += 5
    del kept[-1]
    kept.reverse()
    states = {letter: step(x, w) for letter in word}
    return sum(states.values()), kept, kept.count(1), seen, {n: n * n for n in ns}


def heaps(each, w):
    ns, x, _ = each
    heap, ordered = [], []
    for place, n in enumerate(ns):
        heapq.heappush(heap, (n, place))
        bisect.insort(ordered, n)
    first = heapq.heappop(heap)
    return step(x, w) * first[0], first, ordered, math.sqrt(abs(ns[0])), sorted(ns)


def searches(each, w):
    ns, x, word = each
    h = step(x, w)
    if any(n > 3 for n in ns if n != 4):
        h = step(h, w)
    return h, all(n for n in ns), next((place for place, c in enumerate(word) if c == "b"), None)


def orders(each, w):
    ns, x, _ = each

    def far(n):
        return abs(n - 2), n

    found = [(n, place) for place, n in enumerate(ns)]
    found.sort(key=lambda pair: -pair[0])
    return step(x, w), sorted([n + 1 for n in ns], key=far), max(found, key=lambda pair: pair[1]), found


def several(h, *rest, w, scale=2):
    for each in rest:
        h = h + each * scale
    return step(h, w)


def any_number_of_arguments(each, w):
    ns, x, _ = each
    left, right = (several(h, h, ns[0], w=w) for h in (step(x, w), step(x + 1, w)))
    twice = lambda h: h + h
    return twice(left), several(right, w=w, scale=ns[0])


def arrays_of_its_own(each, w):
    ns, x, _ = each
    y = np.sort(x)
    if x.sum() > 0:
        y = np.abs(y)
    return step(x, w) * float(y.max()), y, y[1:], x, np.exp(ns[0]), np.arange(len(ns)).mean()


def from_a_state_of_its_own(each, w):
    ns, h, _ = each
    for n in ns:
        h = np.tanh(h @ w + n)
    return h if ns[0] else h * 2


def empty_as_yet(each, w):
    ns, x, _ = each
    h, seen = step(x, w), {}
    for n in ns:
        h = h + seen.get(n, 0)
    return step(h, w), ns[0]


def bound_on_some_paths(each, w):
    ns, x, word = each
    h = step(x, w)
    for n in ns:
        if n > 2:
            found, times = h * n, n
        elif n < 0:
            times = n
        if n > 2 or (n > 0 and max(ns) > 2 and ns.index(max(ns)) < ns.index(n)):
            h = h + found
    best = h if word.endswith("b") else None
    if best is None:
        best = (h, 1)
        h = h + best[0]
    return h, times if min(ns) < 0 else 0


def tries(each, w):
    ns, x, word = each
    log, h = [], step(x, w)
    for n in ns:
        try:
            share = 60 // (n - 8)
            if word[share % len(word)] == "c":
                h = step(h * share, w)
        except ZeroDivisionError:
            log.append("zero")
        except IndexError as error:
            log.append(str(error))
        else:
            log.append(share)
        finally:
            h = h + 1
    return h, log


def matches(each, w):
    ns, x, word = each
    h, log = step(x, w), 0
    match word, ns:
        case "ab", [n, *rest] if n > 0:
            h, log = h * n, len(rest)
        case ("aba" | "ab") as found, [_, second, *_]:
            h, log = h + second, found
        case _, [int(n)] | [_, int(n), _, _]:
            h = step(h - n, w)
    for n in ns:
        match n % 4, h:
            case 0 | 1, _:
                continue
            case 2, g:
                h = g + 1
            case k, _ if k > len(ns):
                log = k
    match (h, 2.0):
        case [g, float(k)]:
            h = g * k
    return h, log


def orders_by_lists(each, w):
    ns, x, _ = each
    found = [(n % 2, [n, place], x * n) for place, n in enumerate(ns)]
    first = sorted(found, key=lambda one: (one[0], one[1]))[0]
    return step(first[2], w), first[1]


FUNCTIONS = [
    chained_comparisons, calls_on_one_side, loops_with_an_else, bound_while_tested, lists_and_dicts, heaps, searches,
    orders, any_number_of_arguments, arrays_of_its_own, from_a_state_of_its_own, empty_as_yet, bound_on_some_paths,
    tries, matches, orders_by_lists,
]  # fmt: skip


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_examples_are_recorded(f):
    for seed in range(3):
        xs = examples(16, seed)
        found, stats = map_with_stats(f, xs, w=W)
        assert_same(found, [f(x, w=W) for x in xs], precision=4)
        assert stats.looped is None
    assert stats.recorded > 8, ab.testing.forms(f, xs, w=W)["fly"]


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients(f):
    xs = examples(8)

    def loss(w):
        return sum(np.sum(each[0]) for each in ab.map(f, xs, w=w))

    for _ in range(2):
        found = ab.grad(loss)(W)
    total = np.zeros_like(W)
    for x in xs:
        total += ab.grad(lambda w, x=x: np.sum(f(x, w)[0]))(W)
    assert_same(found, total, precision=4)


def of_numbers_and_an_array(each, w):
    numbers = [*each[0]]
    numbers.append(step(each[1], w).sum())
    copied = list(each[0])
    copied.append(numbers[-1])
    return numbers[0] * 2 + numbers[-1], copied


def through_numbers_and_an_array(each, w):
    h = step(each[1], w)
    total = h
    for part in (h, each[0][0]):
        total = total + part * 2
    return step(total, w)


def sorted_beside_an_array(each, w):
    chosen = sorted(each[0]) if len(each[0]) > 1 else [step(each[1], w)]
    first = iter(each[0]) if len(each[0]) > 1 else iter([step(each[1], w)])
    return chosen[0] * 2 + 1, next(first) * 2 + 1


def slices_by_a_computed_number(each, w):
    end = (step(each[1], w) > -2).sum()
    return step(each[1], w), [*each[0], 1, 2, 3][:end], len([1, 2, 3, 4, 5][end:])


@pytest.mark.parametrize(
    "f",
    [
        of_numbers_and_an_array, through_numbers_and_an_array, sorted_beside_an_array, slices_by_a_computed_number,
    ],
)  # fmt: skip
def test_numbers_are_no_arrays_where_both_may_be(f):
    for seed in range(2):
        xs = [(ns, x, "") for (ns, x, _) in examples(12, seed)]
        found, _ = map_with_stats(f, xs, w=W)
        assert_same(found, [f(x, w=W) for x in xs], precision=4)


def test_an_array_that_is_returned_is_the_examples_own():
    xs = examples(8)
    for _ in range(2):
        found = ab.map(arrays_of_its_own, xs, w=W)
        assert all(out[3] is x[1] for out, x in zip(found, xs, strict=True))
        assert all(np.shares_memory(out[2], out[1]) for out in found)


def reads_or_writes(each, w):
    ns, x, _ = each
    if ns[0] < 0:
        x[0] = ns[0]
    return step(x, w), x.max()


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_an_array_that_an_example_writes_and_another_one_reads():
    for seed in range(3):
        shared, again = normal(3, seed=7), normal(3, seed=7)
        rows = [[n] for n in np.random.default_rng(seed).integers(-2, 5, size=12).tolist()]
        found = ab.map(reads_or_writes, [(n, shared, "") for n in rows], w=W)
        assert_same(found, [reads_or_writes((n, again, ""), W) for n in rows], precision=4)
        assert_same(shared, again)


def takes_logarithms(each, w):
    ns, x, _ = each
    return step(x, w) if np.log(ns[0]) > 1 else step(x + 1, w)


def test_an_example_whose_own_arrays_warn_runs_as_python():
    xs = [([i % 6], normal(3, seed=i), "") for i in range(1, 13)]
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            found, stats = map_with_stats(takes_logarithms, xs, w=W)
    assert stats.recorded == 10
    with np.errstate(all="ignore"):
        assert_same(found, [takes_logarithms(x, W) for x in xs], precision=4)


def captured_between_writes(each, w):
    own, seen = np.zeros(3), []
    for i, n in enumerate(each[0][:3]):
        own[i] = n
        seen.append(step(own, w))
    return seen, own


def written_by_a_helper(each, w):
    own = each[1].copy()

    def add(n):
        own[0] = n
        return own[0]

    return own[0] * 2 + add(each[0][0]) + own[0], step(own, w)


def under_two_names(each, w):
    own = np.zeros((2, 3))
    row = own[1]
    own[1] = each[1]
    row += 1
    own[:, 0] = each[0][0]
    own[own > 2] = 0.5
    return own, row, step(own[0], w), own.sum()


def counts(each, w):
    found = np.zeros(9, int)
    for n in each[0]:
        found[n] += 1
    return found, step(each[1], w)


def sorts_a_copy(each, w):
    x = each[1].copy()
    for end in range(len(x) - 1, 0, -1):
        for i in range(end):
            if x[i] > x[i + 1]:
                x[i], x[i + 1] = x[i + 1], x[i]
    return x, each[0][0]


def waits_between_writes(each, w):
    own, h = np.zeros(3, np.float32), step(each[1], w)
    for i in range(3):
        own[i] = float(h[0])
        h = step(h, w) + own
        if h.sum() > 1.0:
            own[2] -= 1
    return h, own


def copied_and_captured(each, w):
    own, seen = each[1].copy(), []
    for i, n in enumerate(each[0][:3]):
        own[i] = n
        seen.append(step(own, w))
    return seen, own


def added_between_writes(each, w):
    own, h, seen = np.zeros(3, np.float32), step(each[1], w), []
    for i, n in enumerate(each[0][:3]):
        own[i] = n
        seen.append(h + own)
    return seen, own


@pytest.mark.parametrize("f", [copied_and_captured, added_between_writes])
def test_what_is_recorded_of_an_array_is_what_it_was(f):
    for seed in range(3):
        xs = examples(12, seed)
        found, stats = map_with_stats(f, xs, w=W)
        assert_same(found, [f(x, W) for x in xs], precision=4)
    assert stats.recorded >= 10


def changes_and_warns(each, w):
    own = np.asarray(each[1])
    own[0] += 1.0
    return step(each[1], w) if np.log(each[0][0]) > 0 else own


@pytest.mark.filterwarnings("ignore")
def test_an_example_that_runs_again_changes_what_it_is_given_once():
    for _ in range(3):
        xs, again = [[([i % 3], normal(3, seed=i), "") for i in range(12)] for _ in range(2)]
        assert_same(ab.map(changes_and_warns, xs, w=W), [changes_and_warns(x, W) for x in again], precision=4)
        assert_same([x for _, x, _ in xs], [x for _, x, _ in again])


@pytest.mark.parametrize(
    "f", [captured_between_writes, written_by_a_helper, under_two_names, counts, sorts_a_copy, waits_between_writes]
)
def test_arrays_that_a_function_makes_and_writes_into(f):
    for seed in range(3):
        xs = examples(12, seed)
        found, stats = map_with_stats(f, xs, w=W)
        assert_same(found, [f(x, W) for x in xs], precision=4)
    assert stats.recorded >= 10


def writes_into_what_is_given(each, w):
    own = np.asarray(each[1])
    if each[0][0] > 2:
        own[0] = 1.0
    other = each[1].copy()
    other[0] = 5.0
    return step(other, w), own


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_an_array_that_is_given_is_none_that_the_function_made():
    for seed in range(3):
        xs, again = examples(12, seed), examples(12, seed)
        assert_same(
            ab.map(writes_into_what_is_given, xs, w=W), [writes_into_what_is_given(x, W) for x in again], precision=4
        )
        assert_same([x for _, x, _ in xs], [x for _, x, _ in again])


def reads_what_may_be_unbound(each, w):
    ns, x, _ = each
    h = step(x, w)
    for n in ns:
        if n > 0:
            found = h * n
    return h * found.shape[0]


def test_a_variable_that_some_example_has_not_bound():
    ns, xs = [[1], [2, 3], [-1, 4]] * 4, [normal(3, seed=i) for i in range(12)]
    given = [(n, x, "") for n, x in zip(ns, xs, strict=True)]
    for _ in range(3):
        found, stats = map_with_stats(reads_what_may_be_unbound, given, w=W)
        assert_same(found, [reads_what_may_be_unbound(each, W) for each in given], precision=4)
    assert stats.recorded > 8, ab.testing.forms(reads_what_may_be_unbound, given, w=W)["fly"]
    with pytest.raises(UnboundLocalError, match="'found'"):
        map_with_stats(reads_what_may_be_unbound, [*given, ([-1], xs[0], "")], w=W)
