"""Reductions, statistics and scans over ragged, static and empty dimensions, in every dtype."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch
from tests.inspect import Tape
from tests.law import Shared, as_operands, check, check_grads, padded, ragged

DTYPES = ("f2", "f4", "f8", "i1", "u2", "i8", "?", "c16")
SHAPES = {
    "ragged": [(3,), (5,), (1,)],
    "ragged rows": [(3, 2), (5, 2), (1, 2)],
    "ragged columns": [(2, 3), (2, 1), (2, 4)],
    "two ragged": [(3, 1), (2, 4), (1, 1)],
    "square": [(3, 3), (2, 2), (1, 1)],
    "three": [(2, 3, 2), (1, 3, 4), (3, 3, 1)],
    "static": [(2, 3), (2, 3)],
    "with empty": [(3, 2), (0, 2), (1, 2)],
    "empty columns": [(2, 0), (2, 3)],
    "scalars": [(), (), ()],
}
REDUCTIONS = (
    "sum",
    "prod",
    "max",
    "min",
    "any",
    "all",
    "mean",
    "var",
    "std",
    "argmax",
    "argmin",
    "nansum",
    "ptp",
    "nanprod",
)
SCANS = ("cumsum", "cumprod", "sort", "argsort")


def sample(shapes, dtype, seed=0):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return [rng.integers(0, 2, size=shape).astype(bool) for shape in shapes]
    if dtype.kind in "iu":
        return [rng.integers(0, 5, size=shape).astype(dtype) for shape in shapes]
    if dtype.kind == "c":
        return [rng.normal(size=shape) + 1j * rng.normal(size=shape) for shape in shapes]
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def axes_of(rank):
    yield None
    yield from range(-1, rank)
    if rank > 1:
        yield (0, -1)
        yield ()


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pairs", "whole"])
def test_reduction(name, case, whole):
    """Each dtype along each axis, with and without `keepdims`; the `whole` product, or each pair of two of these."""
    f = getattr(np, name)
    rank = len(SHAPES[case][0])
    for d, dtype in enumerate(DTYPES):
        if dtype == "?" and name == "ptp":
            continue  # NumPy does not subtract bools
        if dtype == "c16" and name in ("ptp", "nanprod"):
            continue  # NumPy orders complex numbers, but their differences mean nothing
        x = sample(SHAPES[case], dtype)
        for a, axis in enumerate(axes_of(rank)):
            if name.startswith("arg") and isinstance(axis, tuple):
                continue
            for keepdims in (False, True) if whole else ((a + d) % 2 == 0,):
                try:
                    check(lambda a, axis=axis, keepdims=keepdims: f(a, axis=axis, keepdims=keepdims), x)
                except AssertionError as error:
                    raise AssertionError(f"{name} {dtype} axis={axis} keepdims={keepdims}") from error


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("case", SHAPES)
def test_scan(name, case):
    f = getattr(np, name)
    for dtype in DTYPES:
        x = sample(SHAPES[case], dtype)
        for axis in (None, *range(-1, len(SHAPES[case][0]))):
            try:
                check(lambda a, axis=axis: f(a, axis=axis), x)
            except AssertionError as error:
                raise AssertionError(f"{name} {dtype} axis={axis}") from error


@pytest.mark.parametrize(
    "name", ["sum", "prod", "max", "min", "mean", "var", "std", "cumsum", "cumprod", "sort", "nansum", "ptp"]
)
@pytest.mark.parametrize("case", SHAPES)
def test_gradients(name, case):
    f = getattr(np, name)
    x = sample(SHAPES[case], "f8")
    rank = len(SHAPES[case][0])
    if name in ("max", "min", "mean", "var", "std", "ptp"):
        x = [e if e.size else np.ones((1,) * rank) for e in x]
        if len({e.ndim for e in x}) > 1 or (name == "std" and rank == 0):
            return
    scan = name in ("cumsum", "cumprod", "sort")
    for axis in (None, *range(rank)) if scan else axes_of(rank):
        if (name == "std" and _degenerate(x, axis)) or (rank == 0 and axis is not None):
            continue
        try:
            check_grads(lambda a, axis=axis: f(a, axis=axis), x, rtol=1e-4)
        except (AssertionError, Warning) as error:
            raise AssertionError(f"{name} axis={axis}") from error


def _degenerate(x, axis):
    """A deviation of one element is 0, where the root has no derivative."""
    with np.errstate(all="ignore"):
        return any((np.var(e, axis=axis) < 1e-9).any() for e in x)


def test_prod_and_cumprod_gradients_with_zeros():
    x = [np.array([2.0, 0.0, 3.0]), np.array([0.0, 4.0, 0.0, 1.0]), np.array([5.0])]
    check_grads(np.prod, x)
    check_grads(np.cumprod, x)


def test_gradient_of_ties_goes_to_the_first():
    tape = Tape()
    leaf = tape.leaf(np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [np.nan, 1.0, np.nan]]))
    got = tape.backward([np.max(leaf, axis=1)], [np.ones(3)], [leaf._ab_index])[0]
    assert got.tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]
    got = tape.backward([np.max(leaf[:2])], [np.array(1.0)], [leaf._ab_index])[0]
    got = got.to_dense() if hasattr(got, "to_dense") else got
    assert got.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_sign_of_zero_is_that_of_the_example(name, zero):  # of both signs, NumPy gives another on each processor
    x = [np.array(each) for each in ([zero, zero], [zero], [], [1.0, zero, zero], [-1.0, zero])]
    lanes = getattr(np, name)(MaskedBatch.of(padded(x)), initial=zero)
    want = [getattr(np, name)(each, initial=zero) for each in x]
    np.testing.assert_array_equal(np.signbit(lanes.data), np.signbit(want))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_initial_and_dtype(name):
    f = getattr(np, name)
    x = sample(SHAPES["with empty"], "f4")
    check(lambda a: f(a, axis=0, initial=0.5), x)
    check(lambda a: f(a, initial=2), sample(SHAPES["with empty"], "i8"))
    if name in ("sum", "prod"):
        check(lambda a: f(a, axis=0, dtype="f8"), x)
        check(lambda a: f(a, axis=0, dtype="i4"), sample(SHAPES["ragged rows"], "i1"))


def test_statistics_options():
    x = sample(SHAPES["ragged rows"], "f4")
    check(lambda a: np.var(a, axis=0, ddof=1), x)
    check(lambda a: np.std(a, correction=1), x)
    check(lambda a: np.mean(a, axis=0, dtype="f8"), x)
    check(lambda a: np.var(a, axis=0, dtype="f8"), x)
    check(lambda a: np.count_nonzero(a > 0, axis=0), x)
    check(lambda a: np.average(a, axis=1), x, looped=True)
    with pytest.raises(ValueError, match="ddof and correction"):
        np.var(as_operands((x,))[0], ddof=1, correction=1)


@pytest.mark.filterwarnings("ignore:overflow|invalid:RuntimeWarning")
@pytest.mark.parametrize("f", [np.var, np.std, lambda x: np.var(x, where=x > -1), lambda x: np.var(x, dtype="f4")])
def test_a_variance_of_float16_is_computed_in_float16(f):
    """Squares of 300 overflow there, and so does a sum of 60000s, though not in a mean; counts above 2048 do not."""
    columns = [300, -300, 0, 0, 0], [60000, 60000], [1, 2.5, 3], [0.1, 0.2, 0.7, 1.5], 7 + np.arange(2501) % 3
    xs = [np.array(each, np.float16) for each in columns]
    with ab.options(way="lockstep", warn=False):
        found = ab.map(f, xs)
    assert [(each.dtype, str(each)) for each in found] == [(f(x).dtype, str(f(x))) for x in xs]


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "sum", "mean", "sort", "argsort"])
def test_special_values(name):
    f = getattr(np, name)
    x = [
        np.array([np.inf, -np.inf, np.nan]),
        np.array([-np.inf]),
        np.array([np.inf, np.inf, 1, 2]),
        np.array([np.nan] * 2),
    ]
    check(f, x)
    limits = np.iinfo(np.int64)
    check(f, [np.array([limits.min] * 3), np.array([limits.max]), np.array([limits.max, limits.min])])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max", "zero-size array to reduction operation maximum which has no identity"),
        ("argmin", "attempt to get argmin of an empty sequence"),
    ],
)
def test_nothing_to_reduce(name, message):
    x = as_operands(([np.ones(2), np.ones(0)],))[0]
    with pytest.raises(ValueError, match=message) as caught:
        getattr(np, name)(x)
    assert "example 1" in caught.value.__notes__[0]


def test_empty_lanes_warn_as_numpy_does():
    x = as_operands(([np.ones(2), np.ones(0)],))[0]
    for f, message in ((np.mean, "Mean of empty slice"), (np.var, "Degrees of freedom <= 0 for slice")):
        with pytest.warns(RuntimeWarning, match="invalid value"), pytest.warns(RuntimeWarning, match=message):
            assert np.isnan(f(x).examples()[1])


def test_axis_out_of_bounds():
    x = as_operands(([np.ones(2), np.ones(3)],))[0]
    for f in (np.sum, np.mean, np.argmax, np.cumsum, np.sort):
        with pytest.raises(np.exceptions.AxisError, match="axis 1 is out of bounds for array of dimension 1"):
            f(x, axis=1)


@pytest.mark.parametrize("kind", [None, "stable"])
def test_argsort_ties_are_those_of_the_lone_example(kind):
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 4, size=n).astype(dtype) for n in (40, 17, 0, 100) for dtype in ("i8",)]
    check(lambda a: np.argsort(a, kind=kind), x)
    check(lambda a: np.argsort(a.astype("f4"), kind=kind), x)
    check(lambda a: np.argsort(a, stable=True), x)


def test_weak_lanes_and_no_lanes():
    check(np.sum, [3, 4])
    check(np.mean, [0.5, 2.0])
    none = MaskedBatch(np.zeros((0, 4, 3)), lengths=np.zeros(0, int))
    for f in (np.sum, np.mean, np.max, np.argmax, np.var, np.cumsum, np.sort, np.argsort, np.any):
        assert f(none, axis=0).batch_size == 0
        assert f(none, axis=None).batch_size == 0


def test_shared_operand_in_a_sum():
    x = sample(SHAPES["with empty"], "f8")
    check_grads(lambda a, w: np.sum(a * w, axis=0), x, Shared(np.array([2.0, 3.0])))
    check_grads(lambda a, w: np.sum(np.cumsum(a + w, axis=0) ** 2), x, Shared(np.array([2.0, 3.0])))


OF_UFUNCS = (np.logaddexp, np.logaddexp2, np.hypot, np.fmax, np.fmin)


@pytest.mark.parametrize("ufunc", OF_UFUNCS, ids=lambda ufunc: ufunc.__name__)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_reductions_by_a_ufunc_of_its_own(ufunc, axis, keepdims):
    def f(x):
        return ufunc.reduce(x, axis=axis, keepdims=keepdims)

    for dtype in ("f8", "f4", "f2", "i8", "i1", "?"):
        check(f, ragged(3, 1, 4, width=3, dtype=dtype))
        check(f, ragged(3, 0, 4, width=3, dtype=dtype))
    check(f, ragged(3, 0, 4, width=0))
    check_grads(f, ragged(3, 1, 4, width=3))
    holes = [np.where(x > 0.4, np.nan, x) for x in ragged(3, 1, 4, width=3)]
    check(f, holes)


@pytest.mark.parametrize("ufunc", OF_UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_reductions_by_a_ufunc_with_options(ufunc):
    for call in (
        lambda x: ufunc.reduce(x, axis=None),
        lambda x: ufunc.reduce(x, initial=0.5),
        lambda x: ufunc.reduce(x, 0, np.float32),
        lambda x: ufunc.reduce(np.stack([x, x]), axis=(0, 1)),  # what NumPy refuses is refused
    ):
        check(call, ragged(3, 1, 4))
        check(call, ragged(3, 0, 4))


def test_logaddexp_reduce_of_what_has_no_mass():
    """Every term at minus infinity: its slope is zero, not NaN."""
    x = np.array([[-np.inf, -np.inf], [-np.inf, 0.0]])
    slopes = ab.grad(lambda x: np.logaddexp.reduce(x, axis=1)[1] + 0 * np.exp(np.logaddexp.reduce(x, axis=1)).sum())(x)
    np.testing.assert_array_equal(slopes, [[0, 0], [0, 1]])


MASKED = {
    "sum": {},
    "prod": {},
    "any": {},
    "all": {},
    "mean": {},
    "var": {},
    "std": {},
    "max": {"initial": 0.25},
    "min": {"initial": 0.5},
}


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("case", ["ragged", "two ragged", "static", "with empty"])
@pytest.mark.parametrize("name", MASKED)
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value", "ignore:Degrees of freedom")
def test_reductions_of_what_a_mask_leaves(name, case, axis):
    function, options = getattr(np, name), MASKED[name]
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=shape) for shape in SHAPES[case]]
    whole = {**options, "initial": 3} if options else {}
    check(lambda x: function(x, axis=axis, where=x > 0, **options), xs)
    check(lambda x: function(x, axis=axis, keepdims=True, where=x > 0, **options), xs)
    check(lambda x: function(np.round(9 * x).astype(int), axis=axis, where=x > 0, **whole), xs)
    if name not in ("any", "all", "mean", "var", "std"):  # the gradients of these are in the next test
        check_grads(lambda x: function(x, axis=axis, where=x > 0, **options), xs)


@pytest.mark.filterwarnings("ignore:Degrees of freedom", "ignore:invalid value", "ignore:divide")
def test_masks_that_are_broadcast_and_ufuncs_with_masks():
    rows, weights = [np.arange(6.0).reshape(2, 3) + k for k in range(3)], [np.array([1.0, -1.0, 2.0])] * 3
    check(lambda x, w: np.sum(x, axis=1, where=w > 0), rows, weights)
    check(lambda x, w: np.mean(x, where=w > 0), rows, weights)
    check_grads(lambda x, w: np.mean(x * w, where=w > 0), rows, weights)
    check(lambda x, w: np.var(x, axis=0, ddof=1, where=x > 1), [x[: 1 - k] for k, x in enumerate(rows)], weights)
    check(lambda x, w: np.std(x * 1j + x, 1, where=w > 0), rows, weights)
    check_grads(lambda x, w: np.var(x * w, axis=1, where=x > 0.5), rows, weights)
    check_grads(lambda x, w: np.std(x * w, axis=1, ddof=1, where=w > 0), rows, weights)
    check_grads(lambda x, w: np.var(np.where(w > 0, x * w, np.nan), where=w > 0), rows, weights)
    check(lambda x, w: np.sum(x, 0, where=[True, False, True]), rows, weights)
    check(lambda x, w: np.add.reduce(x, axis=1, where=x > 2), rows, weights)
    check(lambda x, w: np.maximum.reduce(x, axis=1, where=x > 2, initial=-1.0), rows, weights)
    check(lambda x, w: np.logaddexp.reduce(x, axis=None, where=x > 2), rows, weights)
    check(lambda x, w: np.max(x, where=x > 2), rows, weights)  # an error, as there is no value for no elements
    check(lambda x, w: np.sum(x[0], where=x > 2), rows, weights, looped=True)
