"""What is an array for some lanes, a list, a tuple, a dict or None for others: each lane's own in all that is done."""

from collections.abc import Hashable, Sized

import numpy as np
import pytest

import autobatch as ab
from autobatch.testing import assert_equivalent
from tests.law import equals_loop_either_way as equals_loop
from tests.law import ragged

XS = ragged(4, 2, 1, 6, 3)
NUMBERS = [3, 0, 2, 5, 1]


def of_a_kind(xs, n):
    if n > 4:
        return xs
    if n > 2:
        return [xs, n]
    if n > 1:
        return {"a": xs, "n": n}
    return (xs, [n]) if n else None


def returned(xs, n):
    kept = [x for x in xs if x > 0]
    if n > 3:
        return n
    if n > 2:
        return xs, kept
    return (kept, n, n) if n else kept


def asked_what_it_is(xs, n):
    v = of_a_kind(xs, n)
    return isinstance(v, list), isinstance(v, np.ndarray), isinstance(v, dict | tuple), v is None, hasattr(v, "shape")


def test_is_of_a_bool_that_differs():
    def f(x):
        some, many = bool((x > 0).any()), len(x) > 2
        return some is True, many is False, some is not None, x is None, (some is True) + 1

    xs = [np.array(each) for each in ([1.0, -1.0, 2.0], [-1.0], [3.0, 1.0], [-2.0, -1.0, -3.0])]
    equals_loop(f, xs)
    assert ab.batch(f, strict=True)(ab.MaskedBatch.from_examples(xs)) is not None  # without a loop


def read(xs, n):
    v = of_a_kind(xs, n)
    if isinstance(v, np.ndarray):
        return v.sum()
    if isinstance(v, dict):
        return v["a"][0], list(v)
    return (len(v), v[0] * 2) if v else "nothing"


def stored_and_given(xs, n):
    v = of_a_kind(xs, n)
    kept = [v, n]
    return {"v": v, "kept": kept}, (v,), kept[0] is v, (lambda w, k: (w, k))(v, n)


def changed(xs, n):
    v = [n] if n > 2 else {n: 1} if n else None
    if isinstance(v, list):
        v.append(9)
    elif v is not None:
        v[7] = 8
    w = v
    if isinstance(w, list):
        w += [5]
    return v, w, w is v


def terms(xs, n):
    term = ("leaf", xs) if n < 2 else ("neg", ("leaf", xs)) if n < 3 else ("add", ("leaf", xs), ("neg", ("leaf", xs)))

    def value(term):
        if term[0] == "leaf":
            return term[1]
        if term[0] == "neg":
            return -value(term[1])
        return value(term[1]) + 2 * value(term[2])

    return value(term)


def linked(xs, n):
    node, length = None, 0
    for i in range(n):
        node = (xs[0] * i, node) if i % 2 else [i, node]
    while node is not None:
        length += 1
        node = node[1]
    return length


def perhaps_a_list(xs, n):
    v, h = None, xs
    if n > 2:
        v = [xs * 2]
    elif n > 0:
        v = np.tanh(xs)
    if v is not None:
        h = h + (v[0] if isinstance(v, list) else v)
    return h, v


PROGRAMS = [
    returned, asked_what_it_is, read, stored_and_given, changed, terms, linked, perhaps_a_list,
]  # fmt: skip


@pytest.mark.parametrize("f", PROGRAMS)
def test_values_of_different_kinds(f):
    equals_loop(f, XS, NUMBERS)


@pytest.mark.parametrize("f", [read, terms, perhaps_a_list])
def test_gradients_through_values_of_different_kinds(f):
    report = assert_equivalent(f, XS, NUMBERS)
    assert "gradients" not in report.skipped


def an_array_of_two_names(xs, n):
    a = xs.copy()
    v = a if n > 2 else [1.0, n]
    v[0] = 9.0
    b = v
    b *= 2
    return a, v, b is v


def an_array_written_by_each_name(xs, n):
    v = np.zeros(3) if n > 2 else [0.0, 0.0, 0.0]
    w = v
    w[n % 3] = n
    v[0] += 1
    return v, w


@pytest.mark.parametrize("f", [an_array_of_two_names, an_array_written_by_each_name])
def test_writes_reach_every_name(f):
    assert_equivalent(f, XS, NUMBERS, grad=False)


def test_a_scalar_is_compared_with_none_and_text_as_numpys():
    def f(x):
        total = x.sum()
        return total == None, total != None, total == "a", np.array(total) == None, x[0] != None  # noqa: E711

    assert_equivalent(f, [np.arange(n) + 1.0 for n in (3, 2, 4)])


def test_lanes_have_the_classes_and_attributes_of_their_values():
    def f(x):
        m, items = x.mean(), [x.sum()]
        asked = [isinstance(v, Sized | Hashable) for v in (x, m)] + [hasattr(v, "__iter__") for v in (x, m)]
        named = [items.__class__.__name__, np.array(m).__class__.__name__, m.__class__.__name__]
        return asked, named, getattr(m, "__len__", None) is None, hasattr(m, "is_integer"), m * 2

    equals_loop(f, ragged(3, 2, 4))
