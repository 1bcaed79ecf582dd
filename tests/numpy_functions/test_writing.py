"""Item assignment: the op against NumPy, with gradients; and the aliases that a write reaches."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch
from autobatch.ops.numpy import creation
from tests.inspect import Tape
from tests.law import Shared, check, check_grads, equals_loop
from tests.numpy_functions.cases import BOTH, ROWS, STATIC, VECTORS, VECTORS2, normals


def write(place):
    def f(x, *values):
        y = x * 1.0
        for value in values:  # so that the target is of the interpreter of every operand
            y = y + 0.0 * np.sum(value)
        place(y, *values)
        return y

    return f


def put(index):
    def place(y, v):
        y[index] = v

    return write(place)


def at(y, i, v):
    y[i] = v


def columns(y, i, v):
    y[:, i] = v


def mask_set(y, v):
    y[y > 0] = v


def mask_each(y, v):
    y[y > 0] = v[y > 0]


def mask_rows(y, v):
    y[y[:, 0] > 0] = v


def list_of_values(y, v):
    y[0] = [v, 1.0, 2 * v, 0.0]


def span(y, a, v):
    y[a:] = v


def add_at(y, i, v):
    np.add.at(y, i, v)


def fill(y):
    y.fill(2.5)


def copyto(y, v):
    np.copyto(y, v)


def copyto_where(y, v):
    np.copyto(y, v, where=y > 0)


def diagonal(y):
    np.fill_diagonal(y, 7.0)


def along(y, v):
    np.put_along_axis(y, np.argmax(y, axis=0, keepdims=True), v, axis=0)


def put_flat(y):
    np.put(y, [0, 0], [1.0, 2.0])


def flat_all(y, v):
    y.flat = v


def flat_slice(y, v):
    y.flat[1:3] = v


def flat_mask(y, v):
    y.flat[y.ravel() > 0] = v


def diagonal_each(y, v):
    np.fill_diagonal(y, v)


def sort(y):
    y.sort(axis=0)


SCALARS = [np.array(1.5), np.array(-2.0), np.array(3.0)]
ROW = Shared(np.array([1.0, 2.0, 3.0, 4.0]))
ROW_EACH = normals((4,), (4,), (4,))
IDS = [np.array([0, 2, 0]), np.array([0]), np.array([4, -1])]
LIKE_IDS = normals((3, 4), (1, 4), (2, 4))
WRITES = {
    "row": (put(0), ROWS, ROW),
    "row_each": (put(0), ROWS, ROW_EACH),
    "last_row": (put(-1), ROWS, ROW_EACH),
    "column": (put((slice(None), 1)), ROWS, [x[:, 0] for x in ROWS]),
    "column_scalar": (put((slice(None), 1)), ROWS, SCALARS),
    "column_shared": (put((slice(None), 1)), ROWS, Shared(np.array(9.0))),
    "all": (put(...), ROWS, ROW),
    "all_each": (put(slice(None)), ROWS, [2 * x for x in ROWS]),
    "tail": (put(slice(1, None)), ROWS, ROW_EACH),
    "head": (put(slice(None, -1)), ROWS, ROW),
    "reversed": (put(slice(None, None, -1)), ROWS, [x + 1 for x in ROWS]),
    "list": (put([0, -1]), ROWS, ROW),
    "list_each": (put([0, 0]), ROWS, normals((2, 4), (2, 4), (2, 4))),
    "leading_ones": (put(0), ROWS, Shared(np.ones((1, 1, 4)))),
    "leading_one_each": (put(0), ROWS, [row[None] for row in ROW_EACH]),
    "lane_int": (write(at), ROWS, [2, 0, -1], ROW_EACH),
    "lane_ids": (write(at), ROWS, IDS, LIKE_IDS),
    "lane_ids_scalar": (write(at), ROWS, IDS, SCALARS),
    "lane_columns": (write(columns), ROWS, [1, 0, -1], [x[:, 0] for x in ROWS]),
    "lane_span": (write(span), ROWS, [1, 0, -2], ROW),
    "mask": (write(mask_set), ROWS, Shared(np.array(0.5))),
    "mask_each": (write(mask_set), ROWS, SCALARS),
    "mask_values": (write(mask_each), ROWS, [x[::-1] for x in ROWS]),
    "mask_rows": (write(mask_rows), ROWS, ROW_EACH),
    "list_of_values": (write(list_of_values), ROWS, SCALARS),
    "mask_both": (write(mask_set), BOTH, SCALARS),
    "static_row": (put(1), STATIC, ROW_EACH[:2]),
    "static_cell": (put((1, 2)), STATIC, SCALARS[:2]),
    "add_at": (write(add_at), ROWS, IDS, LIKE_IDS),
    "fill": (write(fill), ROWS),
    "copyto": (write(copyto), ROWS, ROW),
    "copyto_where": (write(copyto_where), ROWS, [-x for x in ROWS]),
    "diagonal": (write(diagonal), BOTH),
    "along": (write(along), ROWS, Shared(np.array(-5.0))),
    "put": (write(put_flat), ROWS),
    "sort": (write(sort), ROWS),
    "flat_fewer": (write(flat_all), ROWS, normals((2,), (3,), (1,))),  # repeated: as np.flatiter writes
    "flat_more": (write(flat_slice), ROWS, normals((4,), (7,), (2,))),  # cut
    "flat_as_many": (write(flat_slice), ROWS, normals((2,), (2,), (2,))),
    "flat_matrix": (write(flat_all), ROWS, [x.T for x in ROWS]),
    "flat_mask": (write(flat_mask), ROWS, normals((2,), (3,), (1,))),
    "flat_nothing": (write(flat_slice), ROWS, Shared(np.zeros(0))),
    "diagonal_fewer": (write(diagonal_each), BOTH, normals((1,), (2,), (3,))),
    "diagonal_more": (write(diagonal_each), BOTH, BOTH),
}


@pytest.mark.parametrize("name", WRITES)
def test_write(name):
    f, *operands = WRITES[name]
    check(f, *operands)


@pytest.mark.parametrize("name", WRITES)
def test_write_grads(name):
    f, *operands = WRITES[name]
    check_grads(f, *operands)


def test_a_flat_write_of_nothing_in_some_examples():
    def f(x, v):
        y = x * 1.0
        y.flat = v
        return y

    equals_loop(f, ROWS, normals((2,), (0,), (1,)), falls_back=True)


def test_the_value_is_cast_as_numpy_does():
    check(lambda x, v: put(1)(x, v).astype(np.int64), [np.arange(3), np.arange(4)], [np.array(2.7), np.array(-2.7)])
    x = MaskedBatch.from_examples([np.arange(3), np.arange(4)])
    x[0] = 2.7
    assert x.dtype == np.int64
    assert x.data[:, 0].tolist() == [2, 2]


def aliases_down(x):
    y = x + 0
    row = y[0]
    y[0, 1] = 5.0
    return row


def aliases_up(x):
    y = x + 0
    row = y[-1]
    row[:2] = 9.0
    return y


def aliases_sideways(x):
    y = x + 0
    one, two = y[0], y.T
    one += 100.0
    return two


def aliases_deep(x):
    y = x + 0
    y.T[1][0:1] -= 3.0
    return y


def aliases_reshaped(x):
    y = x + 0
    flat = y.reshape(-1)
    flat[0] = -8.0
    again = y.ravel()
    y *= 2
    return flat + again


def transposed_reshape_copies(x):
    y = x + 0
    flat = y.T.reshape(-1)
    flat[:] = 0
    return y


def fancy_copies(x):
    y = x + 0
    z = y[[0, 0]]
    z += 1
    return y


def scalars_are_values(x):
    s = x.sum()
    t = s
    s += 1
    return t


def names_share(x):
    y = x + 0
    z = y
    y += 1
    return z


def flipped(x):
    y = x + 0
    back = y[::-1]
    back[0] = 1.0
    return y


def squeezed(x):
    y = x[None] + 0
    z = np.squeeze(y, 0)
    z[0] = 3.0
    w = np.expand_dims(z, 1)
    w[0, 0, 1] = 4.0
    return y


def split_parts(x):
    y = x + 0
    left, _ = np.hsplit(y, [2])
    left[...] = 0.0
    return y


def swap_rows(x):
    y = x + 0
    y[[0, -1]] = y[[-1, 0]]
    return y


def loop_of_writes(x):
    y = np.zeros_like(x)
    for i in range(4):
        y[:, i] = x[:, 3 - i] + (y[:, i - 1] if i else 0)
    return y


ALIASES = [
    aliases_down,
    aliases_up,
    aliases_sideways,
    aliases_deep,
    aliases_reshaped,
    transposed_reshape_copies,
    fancy_copies,
    scalars_are_values,
    names_share,
    flipped,
    squeezed,
    split_parts,
    swap_rows,
    loop_of_writes,
]


@pytest.mark.parametrize("data", ["rows", "static"])
@pytest.mark.parametrize("f", ALIASES)
def test_aliases(f, data):
    examples = {"rows": ROWS[::2], "static": STATIC}[data]  # no single row: its transpose is contiguous
    check(f, examples)
    check_grads(f, examples)


OPERATORS = {
    "+=": lambda x, y: x.__iadd__(y),
    "-=": lambda x, y: x.__isub__(y),
    "*=": lambda x, y: x.__imul__(y),
    "/=": lambda x, y: x.__itruediv__(y),
    "//=": lambda x, y: x.__ifloordiv__(y),
    "%=": lambda x, y: x.__imod__(y),
    "**=": lambda x, y: x.__ipow__(y),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_inplace_operators_keep_object_and_dtype(name):
    def f(x, y):
        z = np.abs(x.astype(np.float32)) + np.float32(1)
        same = z
        out = OPERATORS[name](z, np.abs(y) + 1)
        assert out is z
        return same

    check(f, VECTORS, VECTORS2)


def test_inplace_errors():
    x = MaskedBatch.from_examples([np.arange(3), np.arange(2)])
    with pytest.raises(np._core._exceptions.UFuncTypeError, match="Cannot cast ufunc 'add' output"):
        x += 0.5
    with pytest.raises(ValueError, match="non-broadcastable output operand"):
        x += np.ones((2, 1), int)


def test_out_and_where_of_ufuncs():
    def f(x, y):
        z = np.zeros_like(x + y)
        np.divide(x, y, out=z, where=y > 0.25)
        np.add(z, 1, out=z)
        return z

    check(f, VECTORS, [np.where(y > 0.5, y, 0.0) for y in VECTORS2])
    check_grads(f, VECTORS, [np.where(y > 0.5, y, 0.0) for y in VECTORS2])


def test_tape_writes_keep_the_leaf():
    value = np.ones(3)
    tape = Tape()
    x = tape.leaf(value)
    y = x[:2]
    y *= 3
    assert value.tolist() == [1, 1, 1]
    assert x._ab_value.tolist() == [3, 3, 1]


def test_creation_then_writes():
    def f(x):
        y = creation.zeros((x.shape[0] + 1, 2)) + 0.0 * x.sum()
        y[0] = 1.0
        y[1:, 0] = x[:, 0]
        return y

    check(f, ROWS)
    check_grads(f, ROWS)


@pytest.mark.parametrize("values", [0.0, -0.0, 1.0])
def test_what_is_added_at_a_place_leaves_the_zeros_of_others(values):
    def f(i, x):
        y = x * 1.0
        np.add.at(y, i, values)
        return y

    ids, xs = [np.array([0, 1]), np.array([2, 2, 0])], [np.array([-0.0, 0.0, -0.0, 1.0]), np.array([-0.0, -0.0, -1.0])]
    for way in ("lockstep", "fly"):
        with ab.options(way=way):
            for found, *row in zip(ab.map(f, ids, xs), ids, xs, strict=True):
                want = f(*row)
                np.testing.assert_array_equal(found, want)
                np.testing.assert_array_equal(np.signbit(found), np.signbit(want))


@pytest.mark.parametrize("ufunc", [np.add, np.subtract], ids=["add", "subtract"])
@pytest.mark.parametrize("values", [np.float64, np.float32, np.int8, np.uint8, np.bool_, np.complex128])
@pytest.mark.parametrize("target", [np.float64, np.float32, np.int64, np.int8, np.complex64])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_what_is_added_is_cast_as_numpy_does(ufunc, values, target):
    """Unsigned numbers are not negated before they are wide enough; fractions are cut off one sum at a time."""

    def f(x):
        y = (9 * x).astype(target)
        ufunc.at(y, [0, 0, 1], np.array([1.37, 3.9, 2.0]).astype(values))
        return y

    xs = [np.array([-0.9, 0.3, 0.7]), np.array([0.2, -0.6])]
    equals_loop(f, xs, falls_back=None)
