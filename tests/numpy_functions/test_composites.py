"""Sizes that differ between examples, mixtures of per-example and shared operands, sets, and linear algebra."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch, options
from autobatch.errors import ShapeError
from autobatch.ops.numpy import creation
from tests.law import Shared, check, check_grads, equals_loop, map_equals_loop
from tests.numpy_functions.cases import BOTH, COLUMNS, CUBES, ROWS, SQUARES, STATIC, VECTORS, VECTORS2, normals

N = [3, 0, 2]
M = [1, 4, 2]
HALVES = [0.5, 1.5, -2.0]
TWO = Shared(np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]))

CREATED = {
    "zeros": (lambda n: np.zeros(n), lambda n: creation.zeros(n), N),
    "zeros_pair": (
        lambda n, m: np.zeros((n, 2, m), np.float32),
        lambda n, m: creation.zeros((n, 2, m), np.float32),
        N,
        M,
    ),
    "ones": (lambda n: np.ones((2, n), int), lambda n: creation.ones((2, n), int), N),
    "full": (lambda n, v: np.full(n, v), lambda n, v: creation.full(n, v), N, HALVES),
    "full_int": (lambda n: np.full((n, 1), 7), lambda n: creation.full((n, 1), 7), N),
    "arange": (lambda n: np.arange(n), lambda n: creation.arange(n), N),
    "arange_span": (lambda n, m: np.arange(n, m), lambda n, m: creation.arange(n, m), N, M),
    "arange_step": (lambda n, m: np.arange(n, 9, m), lambda n, m: creation.arange(n, 9, m), N, M),
    "arange_back": (lambda n: np.arange(n, -1, -1), lambda n: creation.arange(n, -1, -1), N),
    "arange_float": (lambda n: np.arange(0.5, n), lambda n: creation.arange(0.5, n), N),
    "arange_dtype": (lambda n: np.arange(n, dtype=np.float32), lambda n: creation.arange(n, dtype=np.float32), N),
    "arange_lane_float": (lambda x: np.arange(x, 3), lambda x: creation.arange(x, 3), HALVES),
    "eye": (lambda n: np.eye(n), lambda n: creation.eye(n), N),
    "eye_wide": (lambda n, m: np.eye(n, m, 1), lambda n, m: creation.eye(n, m, 1), N, M),
    "identity": (lambda n: np.identity(n), lambda n: creation.identity(n), N),
    "tri": (lambda n: np.tri(n), lambda n: creation.CREATION[np.tri](n), N),
    "linspace": (lambda a, n: np.linspace(a, 2.0, n), lambda a, n: creation.linspace(a, 2.0, n), HALVES, [5, 1, 3]),
    "linspace_open": (
        lambda n: np.linspace(0.0, 2.0, n, endpoint=False),
        lambda n: creation.linspace(0.0, 2.0, n, endpoint=False),
        [5, 1, 3],
    ),
    "array": (lambda x: np.array([x[0], x[1]]), lambda x: creation.array([x[0], x[1]]), STATIC),
    "array_nested": (
        lambda a, b: np.array([[a, 1.0], [b, a]]),
        lambda a, b: creation.array([[a, 1.0], [b, a]]),
        HALVES,
        HALVES[::-1],
    ),
}


@pytest.mark.parametrize("name", CREATED)
def test_creation(name):
    plain, ours, *operands = CREATED[name]
    check(lambda *args: (ours if any(isinstance(a, MaskedBatch) for a in args) else plain)(*args), *operands)


def test_the_gradient_flows_through_a_fill_value():
    check_grads(lambda x: creation.full((x.shape[0], 2), x[0, 0]), ROWS)
    check_grads(lambda x: creation.linspace(x[0], x[1], 4), normals((2,), (2,)))


LANE_SIZES = {
    "reshape": (lambda x, n: x.reshape(n, -1), [np.arange(6.0), np.arange(4.0), np.arange(8.0)], [2, 4, 1]),
    "reshape_two": (lambda x, n, m: x.reshape(n, m), [np.arange(6.0), np.arange(4.0)], [2, 4], [3, 1]),
    "broadcast": (lambda x, n: np.broadcast_to(x, (n, x.shape[0])), VECTORS[:3], N),
    "broadcast_scalar": (lambda x, n: np.broadcast_to(x[0], n), VECTORS[:3], N),
    "repeat": (lambda x, n: np.repeat(x, n, axis=0), ROWS, N),
    "repeat_each": (lambda x, n: np.repeat(x, n), VECTORS[:3], [np.array([2, 0, 1]), np.array([2]), np.arange(5)]),
    "repeat_shared": (lambda x, n: np.repeat(x, n, axis=1), ROWS, Shared(np.array([2, 0, 1, 1]))),
    "tile": (lambda x, n: np.tile(x, n), VECTORS[:3], N),
    "tile_rows": (lambda x, n: np.tile(x, (n, 2)), ROWS, N),
    "pad": (lambda x, n, m: np.pad(x, (n, m)), VECTORS[:3], N, M),
    "pad_value": (lambda x, n, v: np.pad(x, (n, 1), constant_values=v), VECTORS[:3], N, HALVES),
    "pad_rows": (lambda x, n: np.pad(x, ((n, 0), (0, 1)), mode="edge"), ROWS, N),
    "roll": (lambda x, n: np.roll(x, n, axis=0), ROWS, N),
    "roll_flat": (lambda x, n: np.roll(x, -n), ROWS, N),
    "swap": (lambda x: x.reshape(x.shape[1], x.shape[0]), BOTH),
    "merge": (lambda x: x.reshape(2, -1, 2), CUBES),
    "merge_inner": (lambda x: x.reshape(2, -1), CUBES),
    "split_inner": (lambda x: x.reshape(2, x.shape[1], 1, 2), CUBES),
    "flatten_both": (lambda x: x.reshape(-1), BOTH),
    "rows_of_two": (lambda x: x.reshape(-1, 2), ROWS),
    "resize": (lambda x, n: np.resize(x, (n, 2)), ROWS, N),
}


@pytest.mark.parametrize("name", LANE_SIZES)
def test_lane_sizes(name):
    f, *operands = LANE_SIZES[name]
    check(f, *operands)


@pytest.mark.parametrize("name", sorted(set(LANE_SIZES) - {"pad_value"}))  # a plain array hands nothing on to us
def test_lane_sizes_grads(name):
    f, *operands = LANE_SIZES[name]
    check_grads(f, *operands)


JOINED = {
    "rows_shared_first": (lambda x, w: np.concatenate([w, x]), ROWS, TWO),
    "rows_shared_last": (lambda x, w: np.concatenate([x, w]), ROWS, TWO),
    "rows_shared_between": (lambda x, w, y: np.concatenate([x, w, y, x]), ROWS, TWO, [2 * x for x in ROWS]),
    "columns": (lambda x, y: np.concatenate([x, y], axis=1), ROWS, [2 * x for x in ROWS]),
    "columns_ragged": (lambda x, y: np.concatenate([x, y, x], axis=-1), COLUMNS, [x[:, :1] for x in COLUMNS]),
    "both": (lambda x, y: np.concatenate([x, y], axis=0), BOTH, [2 * x for x in BOTH]),
    "stack": (lambda x, y: np.stack([x, y], axis=1), ROWS, [2 * x for x in ROWS]),
    "stack_shared": (lambda x, w: np.stack([x, w]), normals((2, 4), (2, 4)), TWO),
    "stack_promotes": (lambda x, y: np.stack([x, y]), VECTORS, [np.arange(len(x)) for x in VECTORS]),
    "promotes": (
        lambda x, y: np.concatenate([x.astype(np.float32), y]),
        VECTORS,
        [np.arange(len(x), dtype=np.int16) for x in VECTORS2],
    ),
    "dtype": (lambda x: np.concatenate([x, x], dtype=np.float32), VECTORS),
    "hstack": (lambda x, y: np.hstack([x, y]), VECTORS, VECTORS2),
    "column_stack": (lambda x, y: np.column_stack([x, y]), VECTORS, VECTORS2),
    "append": (lambda x, v: np.append(x, v), VECTORS[:3], HALVES),
    "split_points": (lambda x, n: np.split(x, [1, n])[1], VECTORS[:3], [2, 1, 4]),
    "array_split": (lambda x: np.array_split(x, 3)[1], VECTORS),
    "where_shared": (lambda x, w: np.where(x > 0, x, w[0]), ROWS, TWO),
    "where_both": (lambda x, y: np.where(x > y, x, y), VECTORS, VECTORS2),
    "meshgrid": (lambda x, y: np.meshgrid(x, y, indexing="ij")[0], VECTORS, VECTORS2[::-1]),
}


@pytest.mark.parametrize("name", JOINED)
def test_joined(name):
    f, *operands = JOINED[name]
    check(f, *operands)


@pytest.mark.parametrize("name", sorted(set(JOINED) - {"dtype", "promotes"}))
def test_joined_grads(name):
    f, *operands = JOINED[name]
    check_grads(f, *operands)


COUNTS = [np.array(x) for x in ([3, 1, 1, 0], [2], [0, 5, 5])]
NUMBERS = {
    "unique_all": (lambda x: np.unique(x, return_index=True, return_inverse=True, return_counts=True), COUNTS),
    "bincount": (lambda x: np.bincount(x), COUNTS),
    "bincount_weights": (lambda x, w: np.bincount(x, w, 4), COUNTS, [x * 0.5 for x in COUNTS]),
    "isin": (lambda x, y: np.isin(x, y), COUNTS, COUNTS[::-1]),
    "setdiff": (lambda x, y: np.setdiff1d(x, y), COUNTS, COUNTS[::-1]),
    "intersect": (lambda x, y: np.intersect1d(x, y), COUNTS, COUNTS[::-1]),
    "searchsorted": (lambda x, y: np.searchsorted(np.sort(x), y, side="right"), COUNTS, COUNTS[::-1]),
    "digitize": (lambda x: np.digitize(x, [0.5, 2.0, 4.0]), COUNTS),
    "digitize_down": (lambda x: np.digitize(x, [4.0, 2.0, 0.5], right=True), COUNTS),
    "lexsort": (lambda x, y: np.lexsort((x, y)), COUNTS, [x % 2 for x in COUNTS]),
    "histogram": (lambda x: np.histogram(x, 3, (0, 5))[0], COUNTS),
    "nonzero": (lambda x: np.nonzero(x), COUNTS),
    "argwhere": (lambda x: np.argwhere(x > 0), BOTH),
    "isclose": (lambda x, y: np.isclose(x, y), VECTORS, [x + 1e-9 for x in VECTORS]),
    "allclose": (lambda x, y: np.allclose(x, y) | np.bool_(False), VECTORS, VECTORS2),
    "array_equal": (lambda x, y: np.array_equal(x, y) | np.bool_(False), VECTORS, [VECTORS[0], *VECTORS2[:3]]),
    "nan_to_num": (lambda x: np.nan_to_num(1 / (x * 0 + 0.0), nan=3.0), [x * np.inf for x in VECTORS]),
    "angle": (lambda x: np.angle(x + 1j), VECTORS),
    "real": (lambda x: np.real(x * 1j) + np.imag(x * 2j), VECTORS),
    "convolve": (lambda x, y: np.convolve(x, y), VECTORS, VECTORS2[::-1]),
    "polyval": (lambda p, x: np.polyval(p, x), normals((3,), (3,), (3,), (3,)), VECTORS),
    "interp": (lambda x: np.interp(x, [-1.0, 0.0, 2.0], [3.0, 1.0, 4.0]), VECTORS),
    "gradient": (lambda x: np.gradient(x, 0.5), normals((4,), (2,), (3,))),
    "gradient_axis": (lambda x: np.gradient(x, axis=1), normals((4, 3), (2, 3), (3, 3))),
    "trapezoid": (lambda y, x: np.trapezoid(y, x), VECTORS, [np.sort(x) for x in VECTORS2]),
    "cross": (lambda x, y: np.cross(x, y), normals((2, 3), (1, 3)), normals((2, 3), (1, 3))),
    "corrcoef": (lambda x: np.corrcoef(x), normals((2, 5), (3, 5), (2, 5))),
    "sliding": (lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, axis=1), ROWS),
    "piecewise": (lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * v]), VECTORS),
    "piecewise_table": (
        lambda x: np.piecewise(x, np.stack([x < -0.5, x > 0.5]), [3.0, lambda v: v * v, lambda v: -v]),
        VECTORS,
    ),
    "piecewise_numbers": (lambda x: np.piecewise(x, [(x < 0) * 1], [lambda v: -v, lambda v: v * v]), VECTORS),
    "piecewise_list": (lambda x: np.piecewise(x, [True, False], [lambda v: v * v, 3.0]), normals((2,), (2,))),
    "piecewise_nowhere": (lambda x: np.piecewise(x, [x > 99], [lambda v: v / v.max(), lambda v: v * v]), VECTORS),
    "diff_around": (lambda x: np.diff(x, prepend=0.0, append=1.0), VECTORS),
    "choose_lanes": (lambda i, x: np.choose(i, [x, -x, 2 * x]), [np.array([0, 2, 1]), np.array([1])], VECTORS[:2]),
    "take_along": (
        lambda x, i: np.take_along_axis(x, i[:, None], 1),
        ROWS,
        [np.array([0, 1, 3]), np.array([2]), np.arange(5) % 4],
    ),
    "result_type": (lambda x: x.astype(np.result_type(x, np.float32, 1)), [x.astype(np.float32) for x in VECTORS]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    f, *operands = NUMBERS[name]
    check(f, *operands, looped=name == "lexsort")


SMOOTH = [
    "bincount_weights",
    "angle",
    "convolve",
    "polyval",
    "interp",
    "gradient",
    "gradient_axis",
    "trapezoid",
    "cross",
    "sliding",
    "diff_around",
    "choose_lanes",
    "take_along",
    "piecewise",
    "piecewise_table",
    "piecewise_numbers",
    "piecewise_list",
    "piecewise_nowhere",
]


@pytest.mark.parametrize("name", SMOOTH)
def test_numbers_grads(name):
    f, *operands = NUMBERS[name]
    check_grads(f, *operands)


GOOD = [x @ x.T + np.eye(len(x)) for x in SQUARES]
LINALG = {
    "inv": (lambda a: np.linalg.inv(a), GOOD),
    "det": (lambda a: np.linalg.det(a), GOOD),
    "slogdet": (lambda a: np.linalg.slogdet(a)[1], GOOD),
    "solve": (lambda a, b: np.linalg.solve(a, b), GOOD, [x[:, 0] for x in SQUARES]),
    "solve_matrix": (lambda a, b: np.linalg.solve(a, b), GOOD, SQUARES),
    "norm": (lambda a: np.linalg.norm(a), GOOD),
    "norm_axis": (lambda a: np.linalg.norm(a, axis=0, keepdims=True), GOOD),
    "norm_inf": (lambda a: np.linalg.norm(a, np.inf, axis=1), GOOD),
    "norm_three": (lambda a: np.linalg.norm(a, 3, axis=1), GOOD),
    "matrix_norm": (lambda a: np.linalg.matrix_norm(a), GOOD),
    "vector_norm": (lambda a: np.linalg.vector_norm(a), GOOD),
    "power": (lambda a: np.linalg.matrix_power(a, 3), GOOD),
    "power_back": (lambda a: np.linalg.matrix_power(a, -2), GOOD),
    "multi_dot": (lambda a: np.linalg.multi_dot([a, a.T, a]), SQUARES),
    "transpose": (lambda a: np.linalg.matrix_transpose(a), COLUMNS),
    "diagonal": (lambda a: np.linalg.diagonal(a), COLUMNS),
    "trace": (lambda a: np.linalg.trace(a), COLUMNS),
    "vecdot": (lambda a: np.linalg.vecdot(a, a, axis=0), COLUMNS),
    "outer": (lambda a: np.linalg.outer(a, 2 * a), VECTORS),
}


@pytest.mark.parametrize("name", LINALG)
def test_linalg(name):
    f, *operands = LINALG[name]
    check(f, *operands)
    check_grads(f, *operands, rtol=1e-4)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: x.reshape(3, -1), "cannot reshape array of size 4 into shape .* in example 1"),
        (lambda x: np.concatenate([x, x[:1]], axis=1), "in example 0"),
        (lambda x: np.stack([x, x[:-1]]), "all input arrays must have the same shape.* in example 0"),
        (lambda x: np.squeeze(x, 0), "size not equal to one in example 0"),
        (lambda x: x.reshape(-1, -1), "can only specify one unknown dimension"),
    ],
)
def test_errors_name_the_example(f, message):
    with pytest.raises(ValueError, match=message):
        f(MaskedBatch.from_examples(ROWS))


def test_shape_errors_are_value_errors():
    assert issubclass(ShapeError, ValueError)


@pytest.mark.parametrize("count", [0, 1])
def test_small_batches(count):
    x = MaskedBatch(np.zeros((count, 3, 4)), lengths=np.full(count, 2))
    for f in (
        lambda x: x.reshape(-1),
        lambda x: x.T.ravel(),
        lambda x: np.concatenate([x, x]),
        lambda x: np.stack([x, x]),
        lambda x: np.pad(x, 1),
        lambda x: np.roll(x, 1, 0),
        lambda x: np.tril(x),
        lambda x: np.repeat(x, 2, 0),
        lambda x: np.unique(x),
        lambda x: x[x > 0],
        lambda x: np.tile(x, 2),
        lambda x: np.diff(x, axis=0),
        lambda x: np.where(x > 0, x, 0),
        lambda x: creation.zeros((x.shape[0], 2)),
        lambda x: creation.arange(x.shape[0]),
    ):
        out = f(x)
        assert out.batch_size == count
        assert out.ndim == f(np.zeros((2, 4))).ndim


@pytest.mark.parametrize("f", [np.allclose, np.array_equal])
def test_comparisons_of_whole_arrays_are_pythons_bools(f):
    def same(x):
        return f(x, x[:1])

    got = same(MaskedBatch.from_examples(VECTORS)).examples()
    assert got == [same(x) for x in VECTORS]
    assert all(type(x) is bool for x in got)


def test_a_convolution_of_nothing():
    x = MaskedBatch.from_examples([np.ones(2), np.ones(0)])
    with pytest.raises(ValueError, match="a cannot be empty"):
        np.convolve(x, [1.0, 2.0])
    with pytest.raises(ValueError, match="v cannot be empty"):
        np.convolve([1.0, 2.0], x)


def test_bools_that_are_squared_or_rounded():
    bools = [np.array([True, False]), np.array([True])]
    x = MaskedBatch.from_examples(bools)
    for got, each in zip((x**2).examples(), bools, strict=True):
        assert got.dtype == (each**2).dtype
        assert got.tolist() == (each**2).tolist()
    with options(warn=False), pytest.raises(TypeError, match="multiply") as caught:
        np.round(x, 1)
    assert "raised for example 0" in caught.value.__notes__


EXTREMES = [np.array([127, 126, -128, 100], np.int8), np.array([127], np.int8), np.array([127, 125], np.int8)]
EXTREME_RULES = {
    "median": (np.median, EXTREMES),
    "median of bools": (np.median, [np.array([True, True]), np.array([False, True, True])]),
    "median of halves": (np.median, [np.float16([60000, 65000]), np.float16([1, 2, 3, 4])]),
    "polyval": (lambda x: np.polyval([1, 2], x), EXTREMES),
    "linspace": (lambda x: np.linspace(x[0], x[-1], 4), [np.uint8([255, 3]), np.uint8([0, 7, 9])]),
    "linspace of halves": (lambda x: np.linspace(x[0], x[-1], 4), [np.float16([1, 3]), np.float16([2])]),
    "convolve": (lambda x: np.convolve(x, [1.0, 2.0]), [np.array([np.inf, 1.0, 2.0]), np.array([1.0, np.nan])]),
    "convolve of halves": (lambda x: np.convolve(x, x), [np.float16([200, 100, -100]), np.float16([3])]),
}


@pytest.mark.parametrize("name", EXTREME_RULES)
def test_extremes_neither_overflow_nor_spread(name):
    f, examples = EXTREME_RULES[name]
    check(f, examples)


OF_SCALARS = {
    "imag": lambda s, x: (np.imag(s), np.imag(np.asarray(s))),
    "interp": lambda s, x: (np.interp(s, [0.0, 1.0], [1.0, 2.0]), np.interp(np.asarray(s), x, x)),
    "isin": lambda s, x: (np.isin(s, x), np.isin(s, x, invert=True)),
    "nan_to_num": lambda s, x: (np.nan_to_num(s), np.nan_to_num(np.asarray(s))),
    "select": lambda s, x: np.select([s > 1.0], [s], 0.0),
    "views": lambda s, x: (s.T, s.squeeze(), s.transpose(), np.reshape(s, ()), np.broadcast_to(s, ())),
    "views of 0-d": lambda s, x: (np.asarray(s).T, np.squeeze(x[:1]), np.reshape(x[:1], ()), x[:1].reshape(())),
    "products": lambda s, x: (np.tensordot(x, x, 1), np.dot(x, x), np.inner(x, x), np.einsum("i,i", x, x)),
}


@pytest.mark.parametrize("name", OF_SCALARS)
def test_scalars_and_arrays_of_no_dimensions_are_told_apart(name):
    f, xs = OF_SCALARS[name], [np.arange(n) * 0.25 + 0.1 for n in (3, 5, 2)]
    equals_loop(lambda x: f(x.sum(), x), xs)
    map_equals_loop(lambda x: f(x.sum(), x), xs)


ARRAYS_IN_CONTAINERS = {
    "a list of one": lambda x: np.array_split(x * 2.0, 1),
    "a list of two": lambda x: np.array_split(x * 2.0, 2),
    "a tuple of one": lambda x: np.ix_(x.astype(np.int64) + 1),
    "a tuple with a constant": lambda x: np.broadcast_arrays(x * 2.0, 1.0),
    "a list that is read": lambda x: [each + 1.0 for each in np.array_split(x * 2.0, 1)],
}


@pytest.mark.parametrize("name", ARRAYS_IN_CONTAINERS)
def test_what_a_function_gives_in_a_list_or_a_tuple_stays_in_it(name):
    xs = [np.arange(n) * 0.5 for n in (4, 6, 4)]
    equals_loop(ARRAYS_IN_CONTAINERS[name], xs)
    map_equals_loop(ARRAYS_IN_CONTAINERS[name], xs)


LISTS = {
    "array_equal": lambda x: np.array_equal([x, x], [x, x]),
    "array_equal_by_keyword": lambda x: np.array_equal(a1=[x, x], a2=(x, x + 0.0)),
    "array_equiv": lambda x: np.array_equiv(a1=[x, x], a2=[x]),
    "dimensions_of_a_histogram": lambda x: np.histogramdd([x[0]], 3)[0] * 1,
    "sums": lambda x: np.sum(a=[x, x * 2], axis=0),
    "weights": lambda x: np.average(x, axis=0, weights=[x[0, 0] ** 2, 1.0, 2.0]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_values_are_what_the_function_makes_of_lists(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examples = [np.random.default_rng(i).standard_normal((3, 4)) for i in range(3)]
        ab.testing.assert_equivalent(LISTS[name], examples, grad=False)


def test_dtypes_that_numpy_refuses_or_keeps():
    singles, flags = [x.astype(np.float32) for x in VECTORS], [x > 0 for x in VECTORS]
    check(lambda x, flag: np.select([x > 0.5, flag], [x, flag]), singles, flags)
    check(lambda x, flag: np.select([x > 0.5], [x], 7.5), singles, flags)
    check(lambda x, flag: np.select([x > 0.5], [x], flag), singles, flags)
    check(lambda n, x: np.select([x > 0.5], [2], n), [np.arange(len(x), dtype=np.uint8) for x in VECTORS], VECTORS)
    check(lambda x, c: np.bincount(np.zeros(len(x), int), weights=c), VECTORS, [x * 1j for x in VECTORS])
    with pytest.raises(TypeError, match="Cannot cast"):
        ab.map(lambda x: np.digitize(x, np.sort(x * (1 + 0j))), VECTORS)
