"""Functions of one example for NumPy's conversions: dtypes, `out=`, `where=`, ranges, quantiles, shapes, axes."""

import numpy as np

from tests.law import normal, ragged

RAGGED = ragged(3, 1, 4, 2)
RAGGED32 = ragged(3, 1, 4, 2, dtype=np.float32)
WHOLE = [np.arange(n) - 1 for n in (3, 1, 4, 2)]
WHOLE8 = [x.astype(np.int8) for x in WHOLE]
TABLES = ragged(3, 1, 4, 2, width=3)
TABLES32 = ragged(3, 1, 4, 2, width=3, dtype=np.float32)
EVEN = list(normal(4, 6, dtype=np.float64))
EVEN32 = list(normal(4, 6))
SQUARES = list(normal(4, 3, 3, dtype=np.float64))
COUNTS = [3, 1, 4, 2]
REALS = [2.5, 1.0, 4.25, 0.5]
COMPLEX = [x + 1j * x[::-1] for x in ragged(3, 2, 4, 2)]


CASES = {}
"""Each function by its name, with the columns of its examples."""


def case(*columns):
    """Register a function of one example, and the columns that it runs on."""

    def register(f):
        CASES[f.__name__] = (f, columns)
        return f

    return register


# Weak scalars.


@case(RAGGED32)
def outer_with_a_float(x):
    return np.outer(x, 0.1), np.outer(2, x), np.outer(x, [1, 2]), np.outer([0.5, 2.0], x)


@case(RAGGED32)
def ufunc_outer_with_numbers(x):
    return np.multiply.outer(x, 0.1), np.add.outer(1, x), np.add.outer(x, [1, 2]), np.multiply.outer([0.1], x)


@case(WHOLE8)
def ufunc_outer_of_small_ints(x):
    return np.multiply.outer(x, 3), np.add.outer(0.5, x), np.add.outer(x, [1, 2])


@case(WHOLE8)
def outer_with_a_number_too_large(x):
    return np.multiply.outer(x, 300)


@case(WHOLE8)
def add_a_number_too_large(x):
    return x + 300


@case(WHOLE8, [1, 2, 300, 4])
def add_a_number_too_large_in_one(x, n):
    return x + n


@case(WHOLE8, [1, 2, 300, 4])
def maximum_with_a_number_too_large_in_one(x, n):
    return np.maximum(x, n)


@case(WHOLE8)
def compare_with_a_number_too_large(x):
    return x < 300, x == 300, x > -1000


@case(WHOLE8, [1, 2, 300, 4])
def write_a_number_too_large(x, n):
    y = x.copy()
    y[0] = n
    return y


@case(RAGGED32, REALS)
def outer_with_own_float(x, r):
    return np.outer(x, r), np.multiply.outer(x, r), np.add.outer(r, x)


@case(RAGGED32, COUNTS)
def where_clip_full_with_own_numbers(x, n):
    return np.where(x > 0, x, n), np.clip(x, -1, n), np.full(2, n), np.full_like(x, n), np.minimum(x, n)


@case(WHOLE8)
def clip_beyond_the_dtype(x):
    return np.clip(x, 0, 300)


# Into `out=`.


@case(TABLES32)
def sum_into_float64(x):
    out = np.zeros(3)
    r = np.sum(x, axis=0, out=out)
    return out, r


@case(TABLES32)
def sum_into_float64_of_everything(x):
    out = np.zeros(())
    np.sum(x, out=out)
    return out


@case(TABLES)
def sum_into_float32(x):
    out = np.zeros(3, np.float32)
    x.sum(0, out=out)
    return out


@case(TABLES)
def sum_into_ints(x):
    out = np.zeros(3, int)
    np.sum(x, 0, out=out)
    return out


@case(TABLES)
def mean_into_ints(x):
    out = np.zeros(3, int)
    np.mean(x, 0, out=out)
    return out


@case(TABLES32)
def mean_into_float64(x):
    out = np.zeros(3)
    np.mean(x, 0, out=out)
    return out


@case(WHOLE8)
def sum_of_small_ints_into_small_ints(x):
    out = np.zeros((), np.int8)
    np.sum(x, out=out)
    return out


@case(WHOLE)
def sum_of_ints_into_floats(x):
    out = np.zeros(())
    np.sum(x, out=out)
    big = np.zeros((), np.float32)
    np.prod(x, out=big)
    return out, big


@case(TABLES32)
def sum_with_dtype_into_out(x):
    out = np.zeros(3, np.float32)
    np.sum(x, 0, dtype=np.float64, out=out)
    return out


@case(TABLES32)
def std_var_max_into_float64(x):
    a, b, c, d = np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3)
    np.std(x, 0, out=a)
    np.var(x, 0, out=b)
    np.max(x, 0, out=c)
    np.min(x, 0, out=d)
    return a, b, c, d


@case(TABLES)
def max_into_ints(x):
    out = np.zeros(3, int)
    np.max(x, 0, out=out)
    return out


@case(RAGGED32)
def cumsum_into_float64(x):
    out = np.zeros(len(x))
    np.cumsum(x, out=out)
    return out


@case(TABLES)
def argmax_into_floats(x):
    out = np.zeros(3)
    np.argmax(x, 0, out=out)
    return out


@case(TABLES)
def all_any_into(x):
    a, b = np.zeros(3, bool), np.zeros(3)
    np.all(x > 0, axis=0, out=a)
    np.any(x, axis=0, out=b)
    return a, b


@case(TABLES)
def sum_into_wrong_shape(x):
    out = np.zeros(4)
    np.sum(x, 0, out=out)
    return out


@case(RAGGED32)
def ufunc_into_float64(x):
    out = np.zeros(len(x))
    np.multiply(x, 0.1, out=out)
    return out


@case(RAGGED)
def ufunc_into_ints(x):
    out = np.zeros(len(x), int)
    np.multiply(x, 2, out=out)
    return out


@case(RAGGED)
def ufunc_into_ints_unsafe(x):
    out = np.zeros(len(x), int)
    np.multiply(x, 20, out=out, casting="unsafe")
    return out


@case(RAGGED)
def ufunc_into_wider_shape(x):
    out = np.zeros((2, len(x)))
    np.add(x, 1, out=out)
    return out


@case(RAGGED)
def ufunc_into_wrong_shape(x):
    out = np.zeros(3)
    np.add(x, 1, out=out)
    return out


@case(RAGGED)
def several_outputs(x):
    a, b = np.zeros(len(x)), np.zeros(len(x))
    np.divmod(x, 0.3, out=(a, b))
    np.modf(x, a)
    return a, b


@case(WHOLE)
def true_divide_into_ints(x):
    y = x.copy()
    np.divide(x, 2, out=y)
    return y


@case(TABLES)
def functions_into_out(x):
    a, b, c = np.zeros(x.shape), np.zeros(x.shape, np.float32), np.zeros((len(x), len(x)))
    np.clip(x, -1, 1, out=a)
    np.round(x, 1, out=b)
    np.matmul(x, x.T, out=c)
    d = np.zeros(6 * len(x)).reshape(-1, 3)
    np.concatenate([x, x], out=d)
    e = np.zeros((2, *x.shape), np.float64)
    np.stack([x, x], out=e)
    return a, b, c, d, e


@case(TABLES)
def take_compress_dot_into_out(x):
    a, c = np.zeros((2, 3)), np.zeros(len(x))
    np.take(x, [0, 0], axis=0, out=a)
    np.dot(x, np.ones(3), out=c)
    return a, c


# `where=`.


@case(RAGGED)
def where_and_out(x):
    out = np.full(len(x), -7.0)
    np.log(x, out=out, where=x > 0)
    return out


@case(RAGGED32)
def where_and_wider_out(x):
    out = np.full(len(x), -7.0)
    np.divide(1, x, out=out, where=x > 0)
    return out


@case(TABLES)
def where_broadcasts(x):
    out = np.full(x.shape, -7.0)
    np.sqrt(x, out=out, where=np.array([True, False, True]))
    np.add(x, x, out=x, where=x > 0)
    return out, x


@case(TABLES)
def where_of_reductions(x):
    return (
        np.sum(x, axis=0, where=x > 0),
        np.mean(x, where=x > -9),
        np.max(x, axis=1, where=x > 0, initial=-1.0),
        np.any(x > 1, axis=0, where=[True, False, True]),
        np.std(x, axis=1, where=x > -9),
    )


@case(TABLES)
def max_where_without_initial(x):
    return np.max(x, where=x > 0)


@case(TABLES)
def reduction_where_and_out(x):
    out = np.full(3, 5.0)
    np.add.reduce(x, axis=0, where=x > 0, out=out)
    a = np.full(len(x), 5.0, np.float32)
    np.sum(x, axis=1, where=x > 0, out=a, initial=2)
    return out, a


@case(RAGGED)
def copyto_where(x):
    y = np.zeros(len(x), np.float32)
    np.copyto(y, x, where=x > 0)
    np.putmask(y, y > 1, 3)
    return y


@case(RAGGED)
def copyto_casting(x):
    y = np.zeros(len(x), int)
    np.copyto(y, x)
    return y


# Ranges.


@case(COUNTS)
def arange_of_counts(n):
    return np.arange(n), np.arange(1, n), np.arange(n, 0, -1), np.arange(0, n, 2), np.arange(n, 2), np.arange(float(n))


@case(COUNTS)
def arange_of_counts_with_float_steps(n):
    return np.arange(0, n, 0.3), np.arange(0.5, n), np.arange(n, dtype=np.float32), np.arange(n, -1, -0.75)


@case(REALS)
def arange_of_reals(r):
    return np.arange(r), np.arange(0, r, 0.5), np.arange(r, 0, -1), np.arange(1, r), np.arange(r, r + 3)


@case(COUNTS)
def arange_of_numpy_ints(n):
    m = np.int32(n)
    return np.arange(m), np.arange(np.float32(n)), np.arange(np.int8(0), m)


@case([np.int8(2), np.int8(0), np.int8(5)])
def arange_of_small_ints(n):
    return np.arange(n), np.arange(n, n + 3), np.arange(n, -2, -1), np.linspace(0, n, 3)


@case(COUNTS)
def arange_of_step_zero(n):
    return np.arange(0, 4, n - 1)


@case(COUNTS)
def range_of_counts(n):
    return (
        list(range(n)),
        [2 * i for i in range(n, 0, -1)],
        list(range(2, n)),
        len(range(0, n, 3)),
        sum(range(-n, n, 2)),
    )


@case(COUNTS)
def range_of_step_zero(n):
    return list(range(0, 4, n - 1))


@case(REALS)
def range_of_reals(r):
    return list(range(r))


@case(COUNTS)
def linspace_of_counts(n):
    return (
        np.linspace(0, 1, n),
        np.linspace(n, 0, 4),
        np.linspace(0, n, n, endpoint=False),
        np.linspace(0, n, 3, retstep=True),
    )


@case(COUNTS)
def linspace_to_ints(n):
    return np.linspace(0, n, 5, dtype=int), np.linspace(-n, n, n, retstep=True), np.linspace(-n, 1, 4, dtype=np.float32)


@case(COUNTS)
def arange_of_ints_by_float_steps(n):
    return (
        np.arange(0, n, 0.5, dtype=int),
        np.arange(0.7, n, 1.6, dtype=np.int8),
        np.arange(n, 0, -1.5, dtype=np.float32),
    )


@case([np.array([-6e4, 6e4], np.float16), np.array([1.0, 3.0, 4.0], np.float16)])
def quantile_beyond_float16(x):
    return np.quantile(x, 0.5), np.quantile(x, 0.3)


@case(REALS)
def eye_of_a_real(r):
    return np.eye(r)


@case(COUNTS)
def eye_of_counts(n):
    return np.eye(n), np.eye(n, 2), np.eye(2, n, 1, np.int8), np.identity(n)


@case([2, 0, -1, 3])
def linspace_of_a_negative_count(n):
    return np.linspace(0, 1, n)


@case(REALS)
def linspace_of_a_real_count(r):
    return np.linspace(0, 1, r)


@case(TABLES32)
def linspace_of_arrays(x):
    return np.linspace(x, 1, 3), np.linspace(0, x[0], 3, axis=-1), np.linspace(x[0], x[-1], len(x))


@case(REALS, COUNTS)
def geomspace_and_logspace(r, n):
    return np.logspace(0, r, 3), np.geomspace(1, r + 1, 4), np.logspace(0, 1, n)


# Interpolation.


@case([np.array([0.5, np.nan, np.inf]), np.array([-np.inf]), np.array([1.0, 2.5, -1.0, 9.0])])
def interp_of_special_numbers(x):
    return (
        np.interp(x, [0.0, 1.0, 2.0], [1.0, np.inf, -1.0]),
        np.interp(x, [0.0, 1.0, np.inf], [1.0, 2.0, 3.0], left=-5, right=7.0),
        np.interp(x, [0.0, 1.0, 2.0], [1.0, np.nan, 3.0]),
        np.interp(x, [-np.inf, 1.0, 2.0], [1.0, 2.0, 3.0]),
    )


@case([np.array([0.5, 370.0, -20.0]), np.array([200.0]), np.array([1.0, 2.5, -1.0, 9.0])])
def interp_with_period(x):
    return np.interp(x, [10, 350, 90], [1.0, 2.0, 4.0], period=360), np.interp(x, [10, 350], [1.0, 2j])


@case(RAGGED32)
def interp_of_float32(x):
    return np.interp(x, np.arange(3, dtype=np.float32), np.array([1, 2, 3], np.float32)), np.interp(
        0.5, np.arange(len(x)), x
    )


@case(RAGGED)
def interp_of_nothing(x):
    return np.interp(0.5, x[:0], x[:0])


@case(RAGGED)
def interp_of_unequal_lengths(x):
    return np.interp(0.5, np.arange(3), x)


# Quantiles.


@case([x.astype(np.float16) for x in ragged(3, 1, 4, 2)])
def quantiles_of_float16(x):
    return (
        np.quantile(x, 0.3),
        np.percentile(x, 30),
        np.median(x),
        np.quantile(x, [0.1, 0.5]),
        np.percentile(x, [10, 90]),
    )


@case(RAGGED32)
def quantiles_of_float32(x):
    return np.quantile(x, 0.3), np.percentile(x, 30), np.median(x), np.quantile(x, [0.1, 0.5]), np.percentile(x, 50)


@case(WHOLE)
def quantiles_of_ints(x):
    return np.quantile(x, 0.3), np.percentile(x, 30), np.median(x), np.quantile(x, [0.1, 0.5])


@case(WHOLE8)
def quantiles_of_small_ints(x):
    return np.quantile(x * 40, 0.3), np.percentile(x, 30), np.median(x * 40), np.quantile(x, [0.1, 0.5])


@case([x > 0 for x in RAGGED])
def median_of_bools(x):
    return np.median(x)


@case(TABLES32)
def quantiles_along_axes(x):
    return np.quantile(x, [0.2, 0.7], axis=1), np.median(x, axis=0, keepdims=True), np.quantile(x, 0.5, axis=(0, 1))


@case(RAGGED32)
def quantiles_by_method(x):
    return (
        np.quantile(x, 0.3, method="lower"),
        np.quantile(x, 0.3, method="nearest"),
        np.percentile(x, [25, 50], method="hazen"),
        np.quantile(x, 0.5, method="inverted_cdf"),
    )


@case(RAGGED32)
def quantile_of_numpy_numbers(x):
    return (
        np.quantile(x, np.float32(0.3)),
        np.quantile(x, np.float64(0.3)),
        np.quantile(x, np.array(0.3)),
        np.quantile(x, 1),
    )


@case(RAGGED32, [0.5, 0.25, 1.0, 0.0])
def quantile_of_own_q(x, q):
    return np.quantile(x, q), np.percentile(x, 100 * q)


@case(RAGGED, [0.5, 0.25, 1.5, 0.0])
def quantile_out_of_range_in_one(x, q):
    return np.quantile(x, q)


@case(RAGGED)
def quantile_out_of_range(x):
    return np.quantile(x, 1.5)


@case(RAGGED)
def percentile_out_of_range(x):
    return np.percentile(x, [-1, 50])


@case(RAGGED)
def quantile_of_bad_method(x):
    return np.quantile(x, 0.5, method="typical")


@case(COMPLEX)
def quantile_of_complex(x):
    return np.quantile(x, 0.5)


@case([np.array([1.0, np.nan, 2.0]), np.array([np.nan]), np.array([1.0, np.inf, -np.inf, 0.0])])
def quantiles_of_special_numbers(x):
    return np.quantile(x, 0.3), np.median(x), np.percentile(x, [0, 100]), np.nanmedian(x)


# Deviations.


@case(COMPLEX)
def deviations_of_complex(x):
    return np.std(x), np.var(x), np.var(x, ddof=1), np.var(x, keepdims=True), x.std(), x.mean()


@case(COMPLEX)
def deviations_of_complex64(x):
    y = x.astype(np.complex64)
    return np.std(y), np.var(y, ddof=1), np.var(y, mean=np.mean(y)), np.std(y, correction=1)


@case(TABLES32)
def deviations_by_options(x):
    m = np.mean(x, axis=1, keepdims=True)
    return (
        np.std(x, axis=1, ddof=1),
        np.var(x, axis=1, correction=1),
        np.var(x, axis=1, mean=m),
        np.std(x, axis=1, keepdims=True),
        np.var(x, dtype=np.float64),
        np.std(x, axis=(0, 1), ddof=0.5),
    )


@case(WHOLE8)
def deviations_of_ints(x):
    return np.std(x), np.var(x), np.var(x, dtype=np.float32), np.mean(x), np.mean(x, dtype=np.float32)


@case([x.astype(np.float16) for x in ragged(3, 2, 4, 2)])
def deviations_of_float16(x):
    return np.std(x), np.var(x), np.mean(x), np.sum(x), np.var(x, ddof=1)


@case(RAGGED)
def ddof_and_correction(x):
    return np.var(x, ddof=1, correction=1)


# Flags, shapes and axes.


@case(RAGGED)
def write_into_what_is_read_only(x):
    x.flags.writeable = False
    x[0] = 1
    return x


@case(RAGGED)
def write_into_new_read_only(x):
    y = x * 2
    y.flags.writeable = False
    y += 1
    return y


@case(RAGGED)
def read_flags(x):
    y = x * 2
    return y.flags.writeable, y.flags["C_CONTIGUOUS"], y.flags.owndata, y[::2].flags.c_contiguous


@case(RAGGED)
def set_flags_by_name(x):
    y = x * 2
    y.flags["WRITEABLE"] = False
    y[:] = 0
    return y


@case(RAGGED)
def setflags_and_write(x):
    y = x + 1
    y.setflags(write=False)
    y[0] = 3
    return y


@case(RAGGED)
def write_into_broadcast(x):
    y = np.broadcast_to(x, (2, len(x)))
    y[0] = 1
    return y


@case(EVEN)
def shapes_as_arrays(x):
    return (
        x.reshape(np.array([2, -1])),
        np.reshape(x, np.array([3, 2])),
        np.zeros(np.array([2, 3])),
        np.ones(np.array([2])),
        np.broadcast_to(x, np.array([2, 6])),
        np.full(np.int64(2), 1.0),
        np.empty_like(x, shape=np.array([2, 2])).shape,
    )


@case(TABLES)
def shapes_as_arrays_of_ragged(x):
    s = np.array(x.shape)
    return (
        x.reshape(np.array([-1])),
        np.zeros(s),
        np.ones(s[0]),
        np.broadcast_to(x, np.array([2, *x.shape])),
        x.reshape(s[::-1]),
    )


@case(TABLES)
def axes_as_numpy_ints(x):
    a = np.int64(0)
    return (
        x.sum(a),
        np.mean(x, axis=np.int8(1)),
        np.sum(x, axis=(np.int64(0), np.int32(1))),
        np.sort(x, axis=np.int16(0)),
        np.stack([x, x], axis=a),
        np.transpose(x, np.array([1, 0])),
        np.concatenate([x, x], axis=a),
        np.expand_dims(x, a),
        np.squeeze(x[:1], axis=a),
        np.cumsum(x, axis=a),
        np.argmax(x, axis=a),
        np.take(x, 0, axis=a),
        np.swapaxes(x, a, np.int64(1)),
        np.moveaxis(x, np.int64(0), np.int64(1)),
        np.flip(x, a),
        np.roll(x, np.int64(1), axis=a),
        np.repeat(x, np.int64(2), axis=a),
        np.linalg.norm(x, axis=np.int64(1)),
    )


@case(TABLES)
def axis_as_an_array(x):
    return np.sum(x, axis=np.array(0)), np.max(x, np.array(1))


@case(TABLES)
def axis_as_an_array_of_several(x):
    return np.sum(x, axis=np.array([0, 1]))


@case(TABLES)
def axis_as_a_float(x):
    return np.sum(x, axis=1.0)


@case(TABLES)
def axis_as_a_list(x):
    return np.sum(x, axis=[0, 1])


@case(SQUARES)
def non_contiguous(x):
    y = x.T[::-1, ::2]
    out = np.zeros((2, 3)).T
    np.add(y, 1, out=out)
    return y.sum(0, out=np.zeros(2, np.float64)), out, np.multiply.outer(y, 2), y.reshape(np.array([-1]))


@case([np.array(1.5), np.array(-2.0), np.array(0.0)])
def zero_dimensions(x):
    out = np.zeros(())
    np.add(x, 1, out=out)
    return (
        out,
        np.multiply.outer(x, [1, 2]),
        np.outer(x, 2),
        np.quantile(x, 0.5),
        np.median(x),
        np.var(x),
        np.sum(x, axis=0),
    )
