"""A ufunc is one line, a NumPy function one function and, for compiled code, its source: taken out and added again, and
added from outside as users would, in every way of running."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.extend import elementwise, implements, source
from autobatch.ops.rules.dispatch import FUNCTIONS, SOURCES, UFUNCS
from tests.law import equals_loop, every_way_equals_loop, ragged, run_as_text

special = pytest.importorskip("scipy.special")  # which Numba needs, too

XS = ragged(3, 0, 1, 4)


def sine(x):
    return np.sin(x) * 2


def jumps(x):
    return np.ediff1d(x * x, to_end=0.5)


def squashed(x, w):
    total = w
    for v in x:
        total = total * 0.5 + special.expit(v * w)
    return total + np.sum(special.expit(x * w))


def closest(x, w):
    return np.nanmax(x * w) + w


REMOVED = (special.expit, np.sin, np.hypot, np.ediff1d, np.nanmax)


@pytest.fixture
def own_tables(monkeypatch):
    for table in (FUNCTIONS, SOURCES, UFUNCS):
        for function in REMOVED:
            if function in table:
                monkeypatch.setitem(table, function, table[function])  # so that it is put back
                del table[function]
    yield
    for table in (FUNCTIONS, SOURCES, UFUNCS):
        for function in REMOVED:
            table.pop(function, None)


def in_every_way(f, xs, w):
    """Values and gradients, plain and in each way, which is the way that ran."""
    gradient = ab.value_and_grad(f, argnums=1)
    plain = [gradient(x, w) for x in xs]
    eps = 1e-6
    for (value, slope), x in zip(plain, xs, strict=True):
        assert value == f(x, w)
        assert slope == pytest.approx((f(x, w + eps) - f(x, w - eps)) / (2 * eps), rel=1e-6)
    for way in ("loop", "fly", "compiled"):
        found, ran = run_as_text(way, lambda: ab.map(gradient, xs, [w] * len(xs)))
        assert ran == way
        np.testing.assert_allclose(found, plain, rtol=1e-12)
    equals_loop(f, xs, w=w)
    batch = ab.MaskedBatch.from_examples(xs)
    slope = ab.grad(lambda w: ab.sum(ab.batch(f, strict=True)(batch, w)))(w)
    assert slope == pytest.approx(sum(slope for _, slope in plain))


def test_a_ufunc_taken_out(own_tables):
    called = []

    def vjp(ct, out, x):
        called.append(np.shape(x))
        return ct * np.cos(x)

    elementwise(np.sin, vjp)
    equals_loop(sine, XS)
    every_way_equals_loop(sine, XS)
    assert (4, 4) in called  # once for all examples


def test_a_ufunc_in_every_way(own_tables):
    elementwise(special.expit, lambda ct, out, x: ct * out * (1 - out))
    in_every_way(squashed, XS, 1.3)


def lengths(x, w):
    return np.hypot.reduce(x * w) + np.hypot(w, x).sum()


def test_an_op_of_any_number_of_operands_has_a_reduction(own_tables):
    equals_loop(lambda x: np.hypot.reduce(x), XS, falls_back=True)
    called = []

    def each(ct, out, x):
        called.append(np.shape(x))
        return ct * x / np.where(out == 0, 1, out)

    elementwise(np.hypot, each=each, identity=0)
    equals_loop(lengths, XS, w=1.3)
    every_way_equals_loop(lengths, XS, w=np.float64(1.3))
    assert (4, 4) in called


def test_a_function_taken_out(own_tables):
    equals_loop(jumps, XS, falls_back=True)

    @implements(np.ediff1d)
    def ediff1d(ary, to_end=None):
        inner = np.diff(np.reshape(ary, (-1,)))
        return inner if to_end is None else np.concatenate([inner, np.reshape(to_end, (-1,))])

    equals_loop(jumps, XS)
    every_way_equals_loop(jumps, XS)
    equals_loop(lambda x: np.ediff1d(x, to_begin=1.0), XS, falls_back=True)  # what it does not name is declined


def test_a_function_in_every_way(own_tables):
    @implements(np.nanmax)
    def greatest(a):
        return np.max(a)

    @source(np.nanmax, of=(1,))
    def of_one(a):
        return np.max(np.asarray(a))

    in_every_way(closest, ragged(3, 1, 4), 1.3)


def test_a_derivative_that_asks_for_values_is_not_compiled(own_tables):
    elementwise(special.expit, lambda ct, out, x: ct * out * (1 - out) if np.all(x < 100) else ct * 0)
    _, ran = run_as_text("compiled", lambda: ab.map(ab.grad(squashed, argnums=1), XS, [1.3] * len(XS)))
    assert ran != "compiled"


def test_ab_extend_has_what_that_takes():
    assert {"elementwise", "implements", "source", "Declined", "Op", "reduction"} <= set(ab.extend.__all__)
