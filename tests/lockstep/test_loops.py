"""`for` loops over ragged data: every iterable, every way out, and the variables that they carry."""

# ruff: noqa: B905, B007 (the programs are what people write)

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch, batch
from tests.law import batch_of, equals_loop, ragged

LENGTHS = [(3, 5, 0, 2, 5), (4, 4, 4, 4), (5, 3, 2), (1, 2, 3, 3), (2,), (0, 0), (0, 3)]


def rnn(xs, w):
    h = np.zeros(4)
    for x in xs:
        h = np.tanh(x @ w + h)
    return h


def counters(xs):
    n = 0
    last = None
    for i, x in enumerate(xs):
        n += 1
        last = i, x
    return n, last


def two_targets(xs):
    total = np.zeros(2)
    for a, b in xs:
        total = total + np.stack([a, b])
    return total


def reversed_sum(xs):
    h = np.zeros(4)
    for x in reversed(xs):
        h = h * 0.5 + x
    return h


def reversed_in_step(xs):
    out = np.zeros(4)
    for i, (x, y) in enumerate(zip(xs, reversed(xs))):
        out = out + i * x * y
    return out


def nested(xs):
    total = 0.0
    for i, x in enumerate(xs):
        for j in range(i):
            total = total + x[0] * xs[j][1]
    return total


def carried_tuple(xs):
    state = (np.zeros(4), np.ones(4))
    for x in xs:
        h, c = state
        state = (np.tanh(h + x), c * 0.9)
    return state


def carried_dict(xs):
    state = {"h": np.zeros(4), "n": 0}
    for x in xs:
        state = {"h": state["h"] + x, "n": state["n"] + 1}
    return state


def becomes_a_float(xs):
    total = 0
    for x in xs:
        total = total + float(x[0])
    return total


def grows(xs):
    seen = np.zeros((1, 4))
    for x in xs:
        seen = np.concatenate([seen, x[None]])
    return seen


def loop_else(xs):
    out = np.float64(0)
    for x in xs:
        out = out + x.sum()
    else:
        out = out * 2
    return out


def uses_an_outer_value(xs):
    mean = xs.sum(0)
    h = np.zeros(4)
    for x in xs:
        h = h + np.tanh(x - mean)
    return h + mean


def two_loops(xs):
    a = np.zeros(4)
    for x in xs:
        a = a + x
    b = a
    for x in xs:
        b = np.maximum(b, x * a)
    return a, b


def continues(xs):
    out = np.zeros(4)
    for i, x in enumerate(xs):
        if i % 2:
            continue
        out = out + x
    return out


def loop_in_while(xs):
    k, out = 2, np.zeros(4)
    while k:
        for x in xs:
            out = out + k * x
        k -= 1
    return out


def early_values_by_slice(xs):
    h = np.zeros(4)
    for t in range(len(xs)):
        h = h + xs[: t + 1].sum(0)
    return h


PROGRAMS = [
    counters,
    reversed_sum,
    reversed_in_step,
    nested,
    carried_tuple,
    carried_dict,
    becomes_a_float,
    grows,
    loop_else,
    uses_an_outer_value,
    two_loops,
    continues,
    loop_in_while,
    early_values_by_slice,
]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("f", PROGRAMS)
def test_a_ragged_loop_equals_the_loop_over_examples(f, lengths):
    equals_loop(f, ragged(*lengths, width=4))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_rnn(lengths):
    equals_loop(rnn, ragged(*lengths, width=3), w=np.ones((3, 4)) * 0.1)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_packed(lengths):
    equals_loop(rnn, ragged(*lengths, width=3), packed=True, w=np.ones((3, 4)) * 0.1)


def test_tuple_targets_unpack_rows():
    equals_loop(two_targets, ragged(3, 1, 0, 2, width=2))


def test_batch_length_and_width_alike():
    equals_loop(rnn, ragged(3, 3, 3, width=3), w=np.eye(3, 4))


def test_zip_of_different_lengths_stopst_the_shorter_of_each_example():
    def f(xs, ys):
        total, n = 0.0, 0
        for n, (x, y) in enumerate(zip(xs, ys)):
            total = total + x * y
        return total, n

    equals_loop(f, ragged(3, 1, 0, 4), ragged(1, 2, 3, 4, seed=1))


def test_zip_with_a_shared_list():
    def f(xs, names):
        out = 0.0
        for x, weight in zip(xs, names):
            out = out + weight * x
        return out

    equals_loop(f, ragged(3, 1, 0, 4), names=[1.0, 2.0, 3.0])


@pytest.mark.parametrize("bounds", [(0, 1), (1, 2), (3, -1)])
def test_range_of_per_example_bounds(bounds):
    start, step = bounds

    def g(n, k):
        total = 0
        for i in range(start * k, n, step):
            total = total * 2 + i
        return total

    equals_loop(g, [3, 0, 7, 4], [1, 2, 0, 1])


def test_the_counter_after_the_loop_is_each_examples_own():
    def f(xs):
        for i, _ in enumerate(xs):
            pass
        return i

    equals_loop(f, ragged(3, 1, 5))


def test_plain_iterables_are_shared():
    def f(x, table, names):
        out = x
        for name in names:
            out = out + table[name]
        for key, value in table.items():
            out = out * value
        for _ in range(3):
            out = out + 1
        return out

    equals_loop(f, ragged(3, 1, 5), table={"a": 2.0, "b": 3.0}, names=["b", "a"])


def test_a_break_that_all_take_together():
    def f(xs):
        out = 0.0
        for i, x in enumerate(xs):
            if i == 2:
                break
            out = out + x
        return out, i

    equals_loop(f, ragged(3, 1, 5, 4, 2))


def test_a_return_inside_a_loop_that_all_are_in():
    def f(xs):
        h = 0.0
        for i, x in enumerate(xs):
            h = h + x
            if i == 1:
                return h, i
        return h, -1

    equals_loop(f, ragged(3, 2, 5, 4, 2))


def test_a_return_that_only_some_reach():
    def f(xs):
        for i, x in enumerate(xs):
            if i == 1:
                return x
        return -1.0

    equals_loop(f, ragged(3, 1, 5, 4, 2))


def test_a_break_beside_exhausted_lanes_and_an_else():
    def f(xs):
        for i, _ in enumerate(xs):
            if i == 2:
                break
        else:
            return "short"
        return "long"

    equals_loop(f, ragged(3, 1, 5, 4, 2))


def test_a_variable_of_the_body_that_some_never_bind():
    def f(xs):
        for x in xs:
            y = x
        return y

    equals_loop(f, ragged(3, 1, 5))
    with pytest.raises(UnboundLocalError, match="y") as caught:
        batch(f)(batch_of(ragged(3, 0, 5)))
    assert "raised for example 1" in caught.value.__notes__


def test_writes_into_a_fresh_array():
    def f(xs):
        out = np.zeros(8)
        for t, x in enumerate(xs):
            out[t] = x
            out[t + 1] += 2 * x
        return out

    equals_loop(f, ragged(3, 1, 0, 5))


def test_updates_in_place():
    def f(xs):
        h = np.zeros(4)
        n = 0
        for x in xs:
            h += x
            h *= 0.5
            n += len(x)
        return h, n

    equals_loop(f, ragged(3, 1, 0, 5, width=4))


def test_sized_by_the_example():
    def f(xs):
        out = np.zeros(len(xs))
        for t in range(len(xs)):
            out[t] = xs[: t + 1].sum()
        return out

    equals_loop(f, ragged(3, 1, 0, 5))


def test_an_array_with_two_names_is_not_torn_apart():
    def f(xs):
        out = np.zeros(3)
        other = out
        for x in xs:
            out += x
        return other

    equals_loop(f, ragged(3, 1, 0, 5), falls_back=True)


def test_the_names_of_a_comprehension_are_its_own():
    def f(n):
        total = 0
        for i in range(n):
            total += i
        return total, [i * i for i in range(n)], {i: i for i in range(2)}

    equals_loop(f, [3, 0, 2])


def test_a_comprehension_over_its_own_name_reads_it():
    def f(x):
        i = [7.0]
        for v in x:
            i = [v, v]
        return [2 * i for i in i]

    equals_loop(f, ragged(3, 1, 2), falls_back=True)
    equals_loop(f, ragged(2, 2))


def test_results_that_are_one_object_say_how_many_there_are():
    with ab.options(warn=False):
        out = batch(lambda x: {len(x)})(MaskedBatch(np.zeros((2, 3)), lengths=[2, 2]))
    assert out.examples() == [{2}, {2}]


def bound_by_a_loop(xs, n):
    for i in range(n):
        x = i * 2
        for y in xs[:i]:
            last = y
    return (x, i) if n else -1, last if n > 1 and len(xs) else None


def bound_in_an_inner_loop(xs, n):
    for i in range(n):
        for x in xs[:i]:
            last = x
        if i:
            after = last * 2
    return after if n > 1 else 0.0


@pytest.mark.parametrize("f", [bound_by_a_loop, bound_in_an_inner_loop])
def test_what_a_loop_binds_is_read_by_the_lanes_that_came_through_it(f):
    equals_loop(f, ragged(3, 1, 2, 4, 2), [3, 1, 0, 4, 2])


def test_who_did_not_come_through_the_loop_has_no_variable():
    def f(n):
        for i in range(n):
            pass
        return i

    with pytest.raises(UnboundLocalError, match="'i'") as raised:
        batch(f)(batch_of([3, 0, 1]))
    assert raised.value.__notes__ == ["raised for example 1"]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: any(row > 0.5 for row in x),
        lambda x: all(row > -0.5 for row in x),
        lambda x: [all(y > row for row in x) for y in (-9.0, 0.0)],
    ],
)
def test_any_and_all_ask_each_example_until_it_knows(f):
    equals_loop(f, ragged(3, 1, 0, 4))


def test_any_and_all_of_what_all_lanes_share():
    def f(x, layers):
        if any(each is None for each in layers) or not all(len(each) > 1 for each in layers):
            return x
        return x.sum() + sum(layers)

    equals_loop(f, ragged(3, 1, 0, 4), layers=[np.ones(2), np.ones(2)])


def test_another_function_of_that_name_is_itself():
    equals_loop(lambda x: (lambda all: all(row > 0 for row in x))(sum), ragged(3, 1, 0, 4), falls_back=True)
