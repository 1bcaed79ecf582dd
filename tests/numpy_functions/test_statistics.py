"""Order statistics and the functions that leave NaN out."""

import numpy as np
import pytest

from tests.numpy_functions.cases import ROWS, VECTORS, rng
from tests.ops_a.law import check, check_grads

HOLES = [np.where(rng.random(x.shape) < 0.3, np.nan, x) for x in ROWS]
for _x in HOLES:
    _x[0] = 1.0
    _x[:, 1] = 2.0

STATISTICS = {
    "median": lambda x: np.median(x),
    "median_rows": lambda x: np.median(x, axis=1),
    "median_columns": lambda x: np.median(x, axis=0, keepdims=True),
    "quantile": lambda x: np.quantile(x, 0.3),
    "quantile_columns": lambda x: np.quantile(x, 0.75, axis=0),
    "percentile": lambda x: np.percentile(x, 10, axis=1),
    "cumulative_sum": lambda x: np.cumulative_sum(x, axis=0),
    "cumulative_prod": lambda x: np.cumulative_prod(x, axis=1),
}
WITH_NAN = {
    "nanmax": lambda x: np.nanmax(x, axis=0),
    "nanmin": lambda x: np.nanmin(x),
    "nanmean": lambda x: np.nanmean(x, axis=1),
    "nanvar": lambda x: np.nanvar(x, axis=0),
    "nanstd": lambda x: np.nanstd(x),
    "nancumsum": lambda x: np.nancumsum(x, axis=0),
    "nancumprod": lambda x: np.nancumprod(x),
    "median_of_nan": lambda x: np.median(x, axis=0),
    "apply_over_axes": lambda x: np.apply_over_axes(np.nansum, x, [0, 1]),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics(name):
    check(STATISTICS[name], ROWS)
    check_grads(STATISTICS[name], ROWS)


@pytest.mark.parametrize("name", WITH_NAN)
def test_with_nan(name):
    check(WITH_NAN[name], HOLES)


@pytest.mark.parametrize("name", ["nanmax", "nanmean", "nancumsum"])
def test_with_nan_grads(name):
    check_grads(WITH_NAN[name], ROWS)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_dtypes(dtype):
    check(lambda x: np.median(x), [(9 * x).astype(dtype) for x in VECTORS])
    check(lambda x: np.nanmean(x), [(9 * x).astype(dtype) for x in VECTORS])
