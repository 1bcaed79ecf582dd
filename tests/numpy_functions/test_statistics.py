"""Order statistics and the functions that leave NaN out."""

import re

import numpy as np
import pytest

import autobatch as ab
from tests.law import check, check_grads
from tests.numpy_functions.cases import ROWS, VECTORS, rng

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
    "quantiles": lambda x: np.quantile(x, [0.25, 0.5], axis=1),
    "percentiles": lambda x: np.percentile(x, [10, 50, 90]),
    "average": lambda x: np.average(x, axis=1, weights=np.arange(1.0, 5.0)),
    "average_by_itself": lambda x: np.average(x, axis=0, weights=x * x + 1),
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


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("way", ["lockstep", "fly", "loop"])
@pytest.mark.parametrize("f", [lambda x: np.nanmax(x), lambda x: np.nanmin(x, axis=0)], ids=["max", "min"])
def test_an_example_of_nothing_but_nan_is_warned_of(f, way):
    xs = [np.array([np.nan, 1.0]), np.array([np.nan, np.nan]), np.array([np.nan]), np.array([2.0, 3.0])]
    for run in (lambda: ab.batch(f)(ab.MaskedBatch.from_examples(xs)).examples(), lambda: ab.map(f, xs)):
        with ab.options(way=way), pytest.warns(RuntimeWarning, match="All-NaN"):
            found = run()
        np.testing.assert_array_equal(found, [f(x) if np.isfinite(x).any() else np.nan for x in xs])


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_dtypes(dtype):
    check(lambda x: np.median(x), [(9 * x).astype(dtype) for x in VECTORS])
    check(lambda x: np.nanmean(x), [(9 * x).astype(dtype) for x in VECTORS])


def test_averages_and_percentiles_of_every_dtype():
    for a in (np.arange(6), np.arange(6.0, dtype=np.float32), np.arange(6.0).reshape(2, 3)):
        for weights in (np.arange(1, 1 + a.shape[-1]), np.ones(a.shape[-1], np.float16)):
            check(lambda x, w: np.average(x, axis=-1, weights=w), [a, a], [weights, weights])


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_a_list_of_percentiles_is_in_double_precision():
    xs = [x.astype(np.float32) for x in VECTORS]
    for got, x in zip(ab.map(lambda x: np.percentile(x, (5, 95)), xs), xs, strict=True):
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, np.percentile(x, (5, 95)))


def test_weights_that_sum_to_zero():
    with pytest.raises(ZeroDivisionError, match="sum to zero"):
        ab.map(lambda x: np.average(x, weights=x - x), VECTORS)


def test_positions_are_constant_in_pieces():
    x = np.array([3.0, 1.0, 2.0])
    found = ab.grad(lambda x: x[np.argpartition(x, 1)][0] + x[np.nanargmax(x)] * np.linalg.matrix_rank(np.diag(x)))(x)
    np.testing.assert_array_equal(found, [3, 1, 0])


@pytest.mark.parametrize("f", [
    lambda x: np.quantile(x, 1.5), lambda x: np.quantile(x, [0.5, -0.1]), lambda x: np.percentile(x, 150),
    lambda x: np.percentile(x, [50, -1]), lambda x: np.percentile(x, 200.0, axis=0),
])  # fmt: skip
def test_quantiles_out_of_range_are_numpys_errors(f):
    xs = [np.arange(3.0), np.arange(2.0)]
    with pytest.raises(ValueError, match="must be in the range") as expected:
        f(xs[0])
    for way in ("lockstep", "fly", "compiled"):
        with ab.options(way=way, warn=False), pytest.raises(ValueError, match=re.escape(str(expected.value))):
            ab.batch(f)(ab.MaskedBatch.from_examples(xs))
    with pytest.raises(ValueError, match=re.escape(str(expected.value))):
        ab.grad(f)(xs[0])
