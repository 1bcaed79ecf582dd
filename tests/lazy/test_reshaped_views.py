"""Reshaping gives a view where NumPy's strides allow one, else a copy: writes reach what they reach in NumPy."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning
from tests import naive
from tests.law import assert_same, map_equals_loop

A = np.random.default_rng(0).standard_normal((4, 6))
RESHAPED = {
    "some_rows": lambda x: x[::2].reshape(-1),
    "rows_ravelled": lambda x: x[::2].ravel(),
    "rows_cut": lambda x: x[::2].reshape(2, 2, 3),
    "rows_of_a_new_axis": lambda x: x[::2, None].reshape(2, 6),
    "one_row": lambda x: x[1:2, :].reshape(6),
    "one_row_transposed": lambda x: x[:1].T.reshape(-1),
    "one_column": lambda x: x[:, :1].reshape(-1),
    "columns_with_an_axis": lambda x: x[:, ::2].reshape(4, 3, 1),
    "columns_cut": lambda x: x[:, ::2].reshape(2, 2, 3),
    "reversed": lambda x: x[::-1].reshape(-1),
    "transposed": lambda x: x.T.reshape(-1),
    "transposed_twice": lambda x: x.T.T.reshape(-1),
    "transposed_by_columns": lambda x: x.T.reshape(-1, order="F"),
    "ravelled_by_columns": lambda x: x.T.ravel("F"),
    "ravelled_as_it_lies": lambda x: x.T.ravel("K"),
    "ravelled_by_either": lambda x: x.T.ravel("A"),
    "axes_exchanged": lambda x: np.swapaxes(x.reshape(2, 2, 6), 0, 1).reshape(4, 6),
    "diagonal": lambda x: np.diagonal(x).reshape(-1),
}


@pytest.fixture(params=RESHAPED)
def reshaped(request):
    return RESHAPED[request.param]


def written(x, reshaped):
    x = x * 1.0
    y = reshaped(x)
    try:
        y[0] = 100.0
    except ValueError as error:
        return x, str(error)
    return x, y


def written_below(x, reshaped):
    x = x * 1.0
    y = reshaped(x)
    x[:1] = x[:1] * 2
    return x, y


@pytest.mark.parametrize("f", [written, written_below])
@pytest.mark.parametrize("blocks", [True, False])
def test_on_the_fly(f, reshaped, blocks):
    with ab.options(blocks=blocks, strict=True):
        assert_same(ab.map(f, [A, -A], reshaped=reshaped), [f(A, reshaped), f(-A, reshaped)])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("f", [written, written_below])
def test_under_a_gradient(f, reshaped, order):
    def loss(x):
        below, above = f(x, reshaped)
        above = 0.0 if isinstance(above, str) else (above * above).sum()
        return (below * below * np.arange(24.0).reshape(4, 6)).sum() + above

    want = naive.numeric_gradient(lambda x: loss(np.array(x, order=order)), A)
    np.testing.assert_allclose(ab.grad(loss)(np.array(A, order=order)), want, rtol=1e-4, atol=1e-4)


def test_arguments_in_other_orders():
    def f(x):
        y = x.T.reshape(-1)
        y[0] = 100.0
        z = x.ravel("K")
        z[2] = 9.0
        return x, y, z, x[:, 1:].reshape(-1)

    def examples():
        return [np.asfortranarray(A), np.array(A), A.repeat(2, 0)[::2]]

    got = examples()
    want = examples()
    assert_same(ab.map(f, got), [f(x) for x in want])
    assert_same(got, want)


def test_reshapes_met_before_are_views_as_the_first_was():
    """Each reshape is met several times: of a fresh array, a part, a transposed one, a row, with what is written."""

    def f(x, p):
        out = []
        for _ in range(3):
            y = x * 2.0
            flat = y.reshape(6)
            flat[1] = 50.0
            turned = y.T.reshape(6)
            turned[2] = 60.0
            part = y[1:].reshape(3, 1)
            part += 1.0
            wide = flat.reshape(3, 2)
            wide[0] = -1.0
            out += [y, flat, turned, part, wide, p["rows"][1].reshape(2, 2) * y[0, 0], y.reshape((3, 2)), y.reshape(-1)]
        return out

    xs = list(np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32))
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    map_equals_loop(f, xs, p={"rows": rows})
    ab.testing.assert_equivalent(f, xs, p={"rows": rows}, grad=False)


def test_a_reshaped_row_of_what_is_shared_is_not_written_to():
    def f(i, p):
        first = p["rows"][i].reshape(2, 2) * 1.0
        square = p["rows"][i].reshape(2, 2)
        square[0] = 5.0
        return first, p["rows"][i] * 1.0

    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = [f(i, {"rows": kept}) for kept in [rows.copy()] for i in (0, 1, 0)]
    with pytest.warns(FallbackWarning, match="a write into a view of a plain array that is shared"):
        found = ab.map(f, [0, 1, 0], p={"rows": rows.copy()})
    assert_same(found, expected)
