"""Numbers of Python's have the attributes that Python gives them, and none of an array's."""

import numpy as np
import pytest

from tests.law import equals_loop

COLUMNS = {"int": [3, 1, 0], "float": [1.5, -2.0, 0.0], "complex": [1 + 2j, -1j, 0j], "bool": [True, False, True]}


def what_it_has(x):
    names = ("shape", "dtype", "T", "sum", "__len__", "real", "bit_length", "hex", "is_integer")
    return [hasattr(x, name) for name in names], getattr(x, "ndim", None)


def attributes_of_an_array(x):
    try:
        return x.shape
    except AttributeError:
        return x.__class__.__name__


def methods_of_an_array(x):
    try:
        return x.sum(), x.item()
    except AttributeError:
        return type(x) is x.__class__


def parts(x):
    return x.real, x.imag, x.conjugate()


def its_class(x):
    return x.__class__ is int, issubclass(x.__class__, float), np.shape(x), np.ndim(x)


@pytest.mark.parametrize("f", [what_it_has, parts, its_class])
@pytest.mark.parametrize("kind", COLUMNS)
def test_attributes_are_pythons(f, kind):
    equals_loop(f, COLUMNS[kind])


@pytest.mark.parametrize("f", [attributes_of_an_array, methods_of_an_array])
@pytest.mark.parametrize("kind", COLUMNS)
def test_an_attribute_that_is_missing_is_caught(f, kind):
    equals_loop(f, COLUMNS[kind], falls_back=True)


def test_a_number_has_no_items():
    def f(x):
        try:
            return x[()]
        except TypeError:
            return -1

    equals_loop(f, COLUMNS["int"], falls_back=True)


def test_an_array_says_its_class():
    def f(xs):
        return xs.__class__ is np.ndarray, xs.sum().__class__.__name__

    equals_loop(f, [np.ones(2), np.ones(0), np.ones(3)])
