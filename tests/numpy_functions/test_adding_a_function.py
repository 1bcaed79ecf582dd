"""A ufunc is one line of declaration, a NumPy function one function: taken out, and added again as users would."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.extend import elementwise, implements
from autobatch.ops.rules.dispatch import FUNCTIONS, UFUNCS
from tests.law import equals_loop, every_way_equals_loop, ragged

XS = ragged(3, 0, 1, 4)


def sine(x):
    return np.sin(x) * 2


def jumps(x):
    return np.ediff1d(x * x, to_end=0.5)


def test_a_ufunc(monkeypatch):
    called = []

    def vjp(ct, out, x):
        called.append(np.shape(x))
        return ct * np.cos(x)

    monkeypatch.setitem(UFUNCS, np.sin, elementwise(np.sin, vjp))
    equals_loop(sine, XS)
    every_way_equals_loop(sine, XS)
    assert (4, 4) in called  # once for all examples


@pytest.fixture
def without_ediff1d(monkeypatch):
    monkeypatch.setitem(FUNCTIONS, np.ediff1d, FUNCTIONS[np.ediff1d])  # so that it is put back
    del FUNCTIONS[np.ediff1d]


def test_a_function(without_ediff1d):
    equals_loop(jumps, XS, falls_back=True)

    @implements(np.ediff1d)
    def ediff1d(ary, to_end=None):
        inner = np.diff(np.reshape(ary, (-1,)))
        return inner if to_end is None else np.concatenate([inner, np.reshape(to_end, (-1,))])

    equals_loop(jumps, XS)
    every_way_equals_loop(jumps, XS)
    equals_loop(lambda x: np.ediff1d(x, to_begin=1.0), XS, falls_back=True)  # what it does not name is declined


def test_ab_extend_has_what_that_takes():
    assert {"elementwise", "implements", "Declined", "Op", "reduction"} <= set(ab.extend.__all__)
