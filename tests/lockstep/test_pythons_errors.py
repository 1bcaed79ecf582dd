"""Handlers of what Python itself raises: an attribute or a name that is not there, an operation on plain values."""

import re
import types

import numpy as np
import pytest

import autobatch as ab
from tests.law import equals_loop_either_way as equals_loop
from tests.law import ragged

XS = ragged(3, 1, 0, 4)
SETTINGS = types.SimpleNamespace(scale=2.0)


def misses_an_attribute(x):
    try:
        return x * (SETTINGS.scale if len(x) > 2 else SETTINGS.shift)
    except AttributeError as error:
        return str(error), x


def misses_a_name(x):
    try:
        return undefined if len(x) > 2 else x
    except NameError as error:
        return error.name


def adds_nothing(x):
    before = None
    for i in range(3):
        try:
            before = before + i
        except TypeError as error:
            before = len(str(error)) if len(x) > 1 else 0
    return before


def has_no_length(x):
    kept = []
    for each in (3, (1, 2), SETTINGS):
        try:
            kept.append(len(each))
        except TypeError:
            kept.append(-len(x))
        finally:
            kept.append(0)
    return kept


def of_an_object_made_here(x):
    class Node:
        pass

    node = Node()
    node.value = x * 2
    try:
        return node.left
    except AttributeError:
        return node.value


CAUGHT = [misses_an_attribute, misses_a_name, adds_nothing, has_no_length, of_an_object_made_here]


@pytest.mark.parametrize("f", CAUGHT, ids=[f.__name__ for f in CAUGHT])
def test_what_the_example_alone_would_raise_is_caught_in_lock_step(f):
    equals_loop(f, XS)
    equals_loop(f, XS[:1])


def of_an_array(x):
    try:
        return x.nothing
    except AttributeError as error:
        return str(error)


def of_arrays(x):
    try:
        return x + None
    except TypeError as error:
        return str(error)


def of_what_some_have(x):
    if len(x) > 2:
        y = np.tanh(x)
    try:
        return y
    except UnboundLocalError as error:
        return str(error)


@pytest.mark.parametrize("f", [of_an_array, of_arrays, of_what_some_have])
def test_what_a_batch_raises_is_the_loops(f):
    equals_loop(f, ragged(3, 1, 4), falls_back=True)


def a_large_item(x):
    out = np.zeros(2, np.int8)
    out[0] = len(x) * 100
    return out


def a_large_sum(x):
    out = np.zeros(2, np.int8)
    out[1] += (np.round(x) * 0).astype(int).sum() + len(x) * 100
    return out


def a_large_row(x):
    out = np.zeros((2, 2), np.uint8)
    out[0] = 1 - len(x)
    return out


def a_large_part(x):
    out = np.zeros(3, np.int16)
    out[:2] = [len(x) * 20000, 1]
    return out


def infinity(x):
    out = np.zeros(2, int)
    out[0] = np.sum(x * 0) + np.inf
    return out


def no_number(x):
    out = np.zeros(2, int)
    out[1] = np.sum(x * 0) * np.nan
    return out


def made_of_a_number(x):
    return np.full(2, len(x) * 100, np.int8)


def made_of_a_list(x):
    return np.array([len(x) * 100, 1], dtype=np.int8)


def made_of_a_comprehension(x):
    return np.array([i * 100 for i in range(len(x))], dtype=np.int8)


def made_of_one(x):
    return np.array(len(x) * 100, np.int8)


def an_array_in_one_element(x):
    out = np.zeros(3)
    out[1] = x[:2]
    return out


def up_to_a_sum(x):
    return x[: np.sum(x)]


def from_the_middle(x):
    return x[len(x) / 2 :]


def up_to_a_comparison(x):
    out = x * 2
    out[: np.sum(x) > 0] = 0
    return out


WRONG = [
    a_large_item, a_large_sum, a_large_row, a_large_part, infinity, no_number, made_of_a_number, made_of_a_list,
    made_of_a_comprehension, made_of_one, an_array_in_one_element, up_to_a_sum, from_the_middle, up_to_a_comparison,
]  # fmt: skip


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled"])
@pytest.mark.parametrize("f", WRONG)
def test_a_number_that_does_not_fit_is_the_loops_error(f, way):
    xs = ragged(3, 2, 4)
    with pytest.raises((OverflowError, ValueError, TypeError)) as expected:
        [f(x) for x in xs]
    with ab.options(way=way, warn=False):
        for run in (lambda: ab.batch(f)(ab.MaskedBatch.from_examples(xs)), lambda: ab.map(f, xs)):
            with pytest.raises(expected.type, match=re.escape(str(expected.value))):
                run()


def fits(x):
    out, made = np.zeros(3, np.int8), np.full(2, len(x), np.uint8)
    out[0], out[1:] = len(x) * 30, np.sum(x * 0) - 128.0
    return out, made, np.array([len(x), 2.5], np.int16), np.array(len(x), np.int8)


def test_a_number_that_fits_stays_in_lock_step():
    equals_loop(fits, ragged(3, 2, 4), falls_back=False)
