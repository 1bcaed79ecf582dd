"""Branches that lanes take differently: every form, alone and nested, equals the loop over the examples."""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from tests.law import equals_loop, ragged

SCALARS = [np.float64(v) for v in (-2.0, 0.0, 0.5, 3.0, 7.0)]
NUMBERS = [3, 7, 0, 5, 1]
XS = ragged(3, 1, 0, 4, 2)


def one_armed(x):
    y = x
    if x > 0:
        y = x * x
    return y


def changes_what_it_tested(x):
    if x > 0:  # noqa: SIM108
        x = -x
    else:
        x = x + 10
    return x


def elif_chain(x):
    if x < 0:
        out = "negative"
    elif x == 0:
        out = None
    elif x < 1:
        out = 0.5
    else:
        out = (x, "large")
    return out


def nested(x):
    a, b = 0, np.zeros(2)
    if x >= 0:
        a = a + 1
        if x > 1:
            b = b + x
            if x > 5:
                a = a + 10
        else:
            b = b - 1
        a = a * 2
    return a, b


def second_arm_sees_no_store_of_the_first(x):
    k = 1
    if x > 0:
        k = k + 1
        out = k * x
    else:
        k = k + 2
        out = k * x
    return out, k


def returns_in_both_arms(x):
    if x < 0:
        return -x
    return x


def returns_or_falls_off(x):
    if x > 0:
        if x > 5:
            return "big"
        y = x
    else:
        y = -1.0
    if y < 1:
        return y


def guarded_division(x):
    return 1 / x if x else 0.0


def ternaries(x):
    return (x if x > 0 else -x) + (1.0 if x > 1 else 2.0 if x > 0 else 3.0)


def guarded_by_and(x):
    return bool(x != 0 and 1 / x > 1), x > 1 or x == 0, not x, x and 5.0, x or "zero"


def chained(x):
    return 0 <= x < 1, -1 < x <= 0.5 < 2, (x > 0) == (x < 3)


def bound_in_one_arm(x):
    if x > 0:
        y = x * 2
    if x > 1:
        return y
    return x


def arms_of_other_shape(x):
    return np.zeros(2) if x > 0 else np.zeros((3, 1))


def arms_of_other_dtype(x):
    y = 1 if x > 0 else 1.5
    return y, y * 2


def walrus(x):
    if (y := x * 2) > 1:
        return y + 1
    return y


def asserts_what_holds(x):
    if x > 0:
        assert x > 0, "never"
        return x
    return 0.0


def raises_where_nobody_is(x):
    if x > 100:
        raise ValueError("never")
    return x


def closure(x):
    scale = 2.0

    def step(v):
        return v * scale if v > 1 else v + scale

    if x > 0:
        scale = 3.0
    return step(x)


def augmented(x):
    total = 1.0
    v = np.ones(2)
    if x > 0:
        total += x
        v += total
    else:
        total -= x
        v *= 2
    return total, v


def writes_into_an_array(x):
    y = np.zeros(3)
    z = y
    if x > 0:
        y[0] = x
        if x > 1:
            z[1] = 2 * x
    else:
        y[2] = 5
    return y, z


def writes_at_its_own_place(x):
    y = np.arange(4.0)
    k = int(x) % 3 if x >= 0 else 3
    if x != 0:
        y[k] = -1
    return y, y[k]


def conditional_append(x):
    kept = []
    if x > 0:
        kept.append(x)
    kept.append(1.0)
    if x > 1:
        kept.append(-x)
    return kept, len(kept)


def string_options(x):
    mode = "up" if x > 0 else "down"
    if mode == "up":
        return x + 1
    return x - 1


def look_up_by_key(x):
    table = {"a": 1.0, "b": 2.0}
    key = "a" if x > 0 else "b"
    return table[key] * x, [10, 20, 30][int(x > 0)]


def optional(x):
    state = None
    if x > 0:
        state = x * 2
    if state is None:
        state = x - 1
    return state


def containers(x):
    state = {"h": np.zeros(2), "n": 0}
    if x > 0:
        state = {"h": state["h"] + x, "n": 1}
    return state


def tuple_targets(x):
    a, b = x, x + 1
    if x > 1:
        a, b = b, a
    return a - b


@dataclasses.dataclass
class State:
    h: object
    count: int


def dataclass_state(x):
    state = State(x, 0)
    if x > 0:
        state = State(x * 2, 1)
    return state


def comprehension_condition(x):
    return [v * x for v in (1.0, 2.0, 3.0) if v < x], sum([v for v in (1.0, 2.0) if v > x])


def shared_flag(x, flag=True):
    if flag and x > 0:
        return x
    return -x


FUNCTIONS = [
    one_armed, changes_what_it_tested, elif_chain, nested, second_arm_sees_no_store_of_the_first, returns_in_both_arms,
    returns_or_falls_off, guarded_division, ternaries, guarded_by_and, chained, bound_in_one_arm, arms_of_other_shape,
    arms_of_other_dtype, walrus, asserts_what_holds, raises_where_nobody_is, closure, augmented, writes_into_an_array,
    writes_at_its_own_place, conditional_append, string_options, look_up_by_key, optional, containers, tuple_targets,
    dataclass_state, comprehension_condition, shared_flag,
]  # fmt: skip


ON_THE_FLY = (look_up_by_key, dataclass_state, comprehension_condition)


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("chosen", [slice(None), slice(None, None, -1), slice(0, 1), slice(3, 4), slice(1, 4)])
def test_branches_equal_the_loop(f, chosen):
    equals_loop(f, SCALARS[chosen], falls_back=None if f in ON_THE_FLY else False)


def test_an_optional_argument_that_is_packed_is_not_none():
    @ab.batch(strict=True)
    def f(x, order=None):
        return x[0] if order is None else x[order[0]] if order is not None else -1

    xs, orders = [[1, 2], [3, 4, 5]], [[1, 0], [2, 0, 1]]
    x, order = ab.PackedBatch.from_examples(xs), ab.PackedBatch.from_examples(orders)
    assert ab.examples(f(x)) == [1, 3]
    assert ab.examples(f(x, order)) == [2, 5]
