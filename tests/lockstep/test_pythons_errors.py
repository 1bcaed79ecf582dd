"""Handlers of what Python itself raises: an attribute or a name that is not there, an operation on plain values."""

import types

import numpy as np
import pytest

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
