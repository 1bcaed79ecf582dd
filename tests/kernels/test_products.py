"""Products of small matrices: every remainder of rows, terms and columns, and how the operands may lie."""

import numpy as np
import pytest
from numba.core import config

from autobatch.kernels.compiled_code.products import add_product, product_12, product_21, product_22

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
_SIZES = (0, 1, 3, 4, 5, 9)
_COLUMNS = (0, 1, 5, 15, 16, 17, 64, 70, 133)


def _operands(dtype, rows, terms, columns):
    rng = np.random.default_rng(rows + 10 * terms + 100 * columns)
    return (3 * rng.normal(size=(rows, terms))).astype(dtype), (3 * rng.normal(size=(terms, columns))).astype(dtype)


@pytest.mark.parametrize("layout", ["rows", "columns of b", "columns of a", "gaps"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_a_product_is_numpys(dtype, layout):
    for rows in _SIZES:
        for terms in _SIZES:
            for columns in _COLUMNS:
                a, b = _operands(dtype, rows, terms, columns)
                if layout == "columns of b":
                    b = np.asfortranarray(b)
                if layout == "columns of a":
                    a = np.asfortranarray(a)
                if layout == "gaps":
                    a, b = np.repeat(a, 2, 1)[:, ::2], np.repeat(b, 2, 1)[:, ::2]
                got = product_22(a, b, dtype(0))
                assert got.dtype == dtype
                np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-4, err_msg=f"{rows}, {terms}, {columns}")


def test_nothing_beside_the_result_is_written():
    for rows in _SIZES:
        for columns in _COLUMNS:
            a, b = _operands(np.float32, rows, 6, columns)
            around = np.full((rows + 2, columns + 2), 7, np.float32)
            out = around[1:-1, 1:-1]
            out[:] = 1
            add_product(a, b, out)
            np.testing.assert_allclose(out, 1 + a @ b, rtol=1e-5, atol=1e-4)
            out[:] = 7
            np.testing.assert_array_equal(around, 7)


def test_products_with_vectors_are_numpys():
    for terms in (0, 1, 7, 64):
        for columns in _COLUMNS:
            a, b = _operands(np.float32, 1, terms, columns)
            y = np.linspace(-1, 1, columns, dtype=np.float32)
            np.testing.assert_allclose(product_12(a[0], b, np.float32(0)), a[0] @ b, rtol=1e-5, atol=1e-4)
            np.testing.assert_allclose(product_21(b, y, np.float32(0)), b @ y, rtol=1e-5, atol=1e-4)


def test_a_nan_stays_in_its_row_and_column():
    a, b = _operands(np.float32, 5, 6, 70)
    a[1, 2], b[3, 66] = np.nan, np.inf
    np.testing.assert_array_equal(np.isnan(product_22(a, b, np.float32(0))), np.isnan(a @ b))
