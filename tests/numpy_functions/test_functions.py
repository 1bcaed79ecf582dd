"""Functions that move data: a batch equals the loop, in value and gradient, under every kind of raggedness."""

import numpy as np
import pytest

from tests.law import check, check_grads
from tests.numpy_functions.cases import BOTH, COLUMNS, EVERY, MATRIX, ROWS, SQUARES, STATIC, UNARY

NO_GRADIENT = {"fix", "round", "norm", "astype"}  # steps, and the norm where it may be zero; float32 has too few digits
NO_EMPTY = {"by_order", "masked_rows", "compress", "choose"}  # NumPy refuses these there
MATRICES = {"rows": ROWS, "columns": COLUMNS, "both": BOTH, "squares": SQUARES, "static": STATIC}


@pytest.mark.parametrize("data", EVERY)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, data):
    check(UNARY[name], EVERY[data])


@pytest.mark.parametrize("data", ["with_empty", "rows", "columns"])
@pytest.mark.parametrize("name", sorted(set(UNARY) - NO_GRADIENT))
def test_unary_grads(name, data):
    if data == "with_empty" and name in NO_EMPTY:
        pytest.skip("NumPy raises for an empty example")
    check_grads(UNARY[name], EVERY[data])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8, np.bool_, np.complex64])
@pytest.mark.parametrize("name", ["ravel", "transposed_ravel", "roll", "concat_self", "stack", "pad", "where", "tile"])
def test_dtypes(name, dtype):
    f = UNARY[name]
    if dtype in (np.bool_, np.complex64) and name == "where":
        f = lambda x: np.where(x != 0, x, x)
    check(f, [x.astype(dtype) for x in ROWS])


@pytest.mark.parametrize("data", MATRICES)
@pytest.mark.parametrize("name", MATRIX)
def test_matrix(name, data):
    check(MATRIX[name], MATRICES[data], looped=name == "cov")


@pytest.mark.parametrize("data", ["rows", "both"])
@pytest.mark.parametrize("name", sorted(MATRIX))
def test_matrix_grads(name, data):
    check_grads(MATRIX[name], MATRICES[data], looped=name == "cov")
