"""Functions of one example that NumPy or Python raises an error for, in all examples or in one of them."""

import numpy as np

from tests.law import ragged
from tests.numpy_functions.conversion_cases import COUNTS, RAGGED, RAGGED32, REALS, TABLES, WHOLE, case


@case([np.array([1, 2]), np.array([3]), np.array([1, 0, 2])])
def integer_division_by_zero(x):
    return 10 // x, 10 % x, x / 0


@case([np.array([1, 2]), np.array([3]), np.array([1, 0, 2])])
def integer_division_by_zero_raises(x):
    with np.errstate(all="raise"):
        return 10 // x


@case([3, 1, 0, 2])
def python_division_by_zero(n):
    return 10 // n


@case([np.array([1, 2]), np.array([-1]), np.array([1, 0, 2])])
def integer_to_a_negative_power(x):
    return 2**x


@case(COUNTS)
def shift_by_a_negative(n):
    return 8 >> (n - 2)


@case(WHOLE, RAGGED)
def shift_by_floats(i, x):
    return i << x


@case(RAGGED)
def bitwise_of_floats(x):
    return x & 1


@case(RAGGED)
def invert_of_floats(x):
    return ~x


@case([np.array([True, False]), np.array([True])])
def negative_of_bools(x):
    return -x


@case([np.array([True, False]), np.array([True])])
def subtract_of_bools(x):
    return x - x


@case(RAGGED)
def casting_of_a_ufunc(x):
    return np.add(x, 1, dtype=int)


@case(RAGGED)
def casting_of_a_ufunc_as_named(x):
    return np.add(x, x, dtype=np.float32, casting="safe")


@case(WHOLE)
def casting_no(x):
    return np.add(x, 1.5, casting="no")


@case(RAGGED)
def casting_by_a_bad_name(x):
    return np.add(x, 1, casting="sometimes")


@case(RAGGED)
def casting_unsafe(x):
    return (
        np.add(x, 1, dtype=int, casting="unsafe"),
        np.add(x, x, dtype=np.float32),
        np.multiply(x, x, signature="dd->d"),
    )


@case(RAGGED)
def astype_casting(x):
    return x.astype(int, casting="safe")


@case(RAGGED)
def raise_on_underflow_or_division(x):
    with np.errstate(all="raise"):
        return np.log(x * 0)


@case([np.array([1.0, 2.0]), np.array([3.0]), np.array([1.0, -4.0, 2.0])])
def invalid_in_one_raises(x):
    with np.errstate(invalid="raise"):
        return np.sqrt(x)


@case([np.array([1.0, 2.0]), np.array([3.0]), np.array([800.0, -4.0, 2.0])])
def overflow_in_one_raises(x):
    with np.errstate(over="raise"):
        return np.exp(x)


@case([np.array([1.0, 2.0]), np.array([3.0]), np.array([0.0, -4.0, 2.0])])
def division_in_one_raises(x):
    with np.errstate(all="raise"):
        y = 1 / x
        y /= x
        return y


@case(WHOLE)
def in_place_add_of_a_float(x):
    y = x.copy()
    y += 0.5
    return y


@case(WHOLE, RAGGED)
def in_place_add_of_floats(i, x):
    y = i * 1
    y *= x
    return y


@case(WHOLE)
def in_place_true_divide(x):
    y = x + 0
    y /= 2
    return y


@case(RAGGED32, RAGGED)
def in_place_narrowing(x, y):
    z = x.copy()
    z += y
    z *= 0.1
    return z


@case([x > 0 for x in RAGGED])
def in_place_of_bools(x):
    y = x.copy()
    y += 1
    return y


@case(WHOLE)
def in_place_by_complex(x):
    y = x.astype(float)
    y *= 1j
    return y


@case(RAGGED)
def add_of_another_shape(x):
    return x + np.zeros(3)


@case(RAGGED, ragged(3, 1, 5, 2))
def add_of_another_shape_in_one(x, y):
    return x + y


@case(RAGGED, ragged(3, 1, 5, 2))
def in_place_add_of_another_shape_in_one(x, y):
    z = x.copy()
    z += y
    return z


@case(RAGGED, ragged(3, 1, 5, 2))
def dot_of_another_shape_in_one(x, y):
    return x @ y


@case(RAGGED, ragged(3, 1, 5, 2))
def where_of_another_shape_in_one(x, y):
    return np.where(x > 0, x, y)


@case(TABLES, ragged(3, 1, 5, 2, width=3))
def stack_of_another_shape_in_one(x, y):
    return np.stack([x, y])


@case(TABLES, ragged(3, 1, 5, 2, width=3))
def concatenate_of_another_shape_in_one(x, y):
    return np.concatenate([x, y], axis=1)


@case(TABLES, RAGGED)
def concatenate_of_another_rank(x, y):
    return np.concatenate([x, y])


@case(RAGGED)
def concatenate_of_numbers(x):
    return np.concatenate([x[0], x[0]])


@case(RAGGED)
def bad_axis(x):
    return x.sum(axis=1)


@case(RAGGED)
def bad_axis_of_functions(x):
    return np.sort(x, axis=3)


@case(TABLES)
def repeated_axis(x):
    return np.sum(x, axis=(0, 0))


@case(TABLES)
def bad_axis_of_stack(x):
    return np.stack([x, x], axis=5)


@case(TABLES)
def bad_axis_of_concatenate(x):
    return np.concatenate([x, x], axis=2)


@case(TABLES)
def bad_transpose(x):
    return np.transpose(x, (0, 0))


@case(TABLES)
def bad_squeeze(x):
    return np.squeeze(x, axis=1)


@case(TABLES)
def bad_expand_dims(x):
    return np.expand_dims(x, 7)


@case(REALS)
def accumulate_of_a_number(r):
    return np.add.accumulate(np.array(r))


@case(REALS)
def accumulate_of_a_scalar(r):
    return np.multiply.accumulate(np.float64(r) * 2)


@case(RAGGED)
def positions_in_a_list(x):
    return np.take_along_axis(x, [0], 0)


@case(RAGGED)
def bad_dtype(x):
    return x.astype("flat32")


@case(RAGGED)
def bad_dtype_of_sum(x):
    return np.sum(x, dtype="flat32")


@case(COUNTS)
def bad_dtype_of_zeros(n):
    return np.zeros(n, dtype="flat32")


@case(RAGGED)
def bad_reshape(x):
    return x.reshape(2, 2)


@case(RAGGED)
def bad_index(x):
    return x[2]


@case(RAGGED)
def bad_take(x):
    return np.take(x, 2)


@case([3, 0, -1, 2])
def negative_shape(n):
    return np.zeros(n)


@case(REALS)
def shape_as_a_float(r):
    return np.zeros(r)


@case(RAGGED)
def empty_max(x):
    return np.max(x[1:])


@case(RAGGED)
def empty_argmax(x):
    return np.argmax(x[1:])


@case([np.eye(2), np.zeros((2, 2)), np.ones((2, 2))])
def inverse_of_singular(m):
    return np.linalg.inv(m)


@case([np.eye(3), np.eye(2), np.ones((2, 2)), np.eye(1)])
def solve_of_singular(m):
    return np.linalg.solve(m, np.ones(len(m)))


@case([np.eye(3), np.eye(2), -np.eye(2), np.eye(1)])
def cholesky_of_negative(m):
    return np.linalg.cholesky(m)


@case(TABLES)
def inverse_of_oblong(x):
    return np.linalg.inv(x), np.linalg.det(x)


@case(RAGGED)
def determinant_of_a_vector(x):
    return np.linalg.det(x)


@case(RAGGED)
def truth_of_an_array(x):
    return 1 if x > 0 else 2


@case(RAGGED)
def float_of_an_array(x):
    return float(x)


@case(RAGGED)
def unknown_option(x):
    return np.sum(x, axes=0)


@case(RAGGED)
def too_many_operands(x):
    return np.add(x)


@case(RAGGED)
def split_unequally(x):
    return np.split(x, 2)


@case(RAGGED)
def write_of_another_shape(x):
    y = x.copy()
    y[:] = np.zeros(3)
    return y
