"""Which results lie in another order than C, and so of which a reshape is a copy: as in NumPy, whatever the way."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from tests import memory_chains

MADE = {
    "elementwise": lambda x: np.tanh(x.T),
    "two_operands": lambda x: x.T + x.T * 2,
    "broadcast": lambda x: x.T + x[:, 0],
    "np_copy": lambda x: np.copy(x.T),
    "method_copy": lambda x: (x.T * 2).copy(),
    "copy_in_fortran_order": lambda x: x.copy(order="F"),
    "astype": lambda x: x.T.astype(np.float32),
    "zeros_like": lambda x: np.zeros_like(x.T),
    "zeros_in_fortran_order": lambda x: np.zeros((len(x), 2), order="F") + x[:, :2] * 0,
    "columns_picked": lambda x: x[:, np.array([0, 1])],
    "rows_picked": lambda x: x[np.array([0, 1])],
    "einsum": lambda x: np.einsum("ij,ij->ji", x, x),
    "concatenated": lambda x: np.concatenate([x.T, x.T]),
    "reduced": lambda x: np.stack([x, x]).T.sum(axis=0),
    "accumulated": lambda x: np.cumsum(x.T, axis=0),
    "product": lambda x: x.T @ x,
    "argwhere": lambda x: np.argwhere(x > 0) * 1.0,
    "contiguous": lambda x: np.ascontiguousarray(x.T),
}
EXAMPLES = [np.random.default_rng(i).standard_normal((3, 4)) for i in range(3)]
RAGGED = [np.random.default_rng(i).standard_normal((2 + i, 4)) for i in range(3)]


def written_below(x, made):
    y = made(x)
    z = y.reshape(-1)
    y[0, 0] = 5.0
    return y, z


def written_through(x, made):
    y = made(x)
    z = y.ravel()
    z[0] = 5.0
    return x, y, z


@pytest.mark.parametrize("f", [written_below, written_through])
@pytest.mark.parametrize("examples", [EXAMPLES, RAGGED])
@pytest.mark.parametrize("made", MADE)
def test_a_write_reaches_what_it_reaches_in_numpy(f, examples, made):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(f, examples, grad=False, made=MADE[made])


def only_name(x):
    z = np.tanh(x.T).reshape(-1)
    z[0] = 5.0
    y = (x.T * 2).copy()
    y.reshape(-1)[1] = 3.0
    return y, z


def test_what_nobody_else_can_see_stays_batched():
    with ab.options(strict=True):
        lanes = ab.examples(ab.batch(only_name)(ab.MaskedBatch.from_examples(EXAMPLES)))
        for mine, theirs in zip(ab.map(only_name, EXAMPLES), lanes, strict=True):
            np.testing.assert_array_equal(mine[0], theirs[0])
    ab.testing.assert_equivalent(only_name, EXAMPLES, grad=False)


def asked(x):
    y = x.T * 1
    part = y[1:]
    flags = y.flags.c_contiguous, (x * 1).flags["C_CONTIGUOUS"], hasattr(x, "flags")
    shared = np.shares_memory(y, part), np.may_share_memory(y, x * 1), part.base is y
    return flags, shared, y.strides, part.strides, y


def views_by_einsum(x):
    x = x * 1.0
    np.einsum("ii->i", x[:2, :2])[...] = 1.0
    np.einsum("ij->ji", x)[2] = 4.0
    x.T.flat[1] = 3.0
    return x


def written_through_a_view(x):
    import numpy as np  # noqa: PLC0415  (a function that is not known beforehand gets values)

    y = x * 0.7
    y.T[0] = 1.0
    z = np.array(y, order="A")
    return np.array(y).flags["F_CONTIGUOUS"], z.flags.c_contiguous, z.strides


@pytest.mark.parametrize("f", [asked, views_by_einsum, written_through_a_view])
def test_what_is_asked_of_the_memory_is_no_lie(f):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(f, EXAMPLES, grad=False)


@pytest.fixture
def module_of(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def imported(source, name):
        (tmp_path / f"{name}.py").write_text(source)
        return __import__(name)

    return imported


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 40))])
def test_random_chains(seed):
    memory_chains.check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "seed", [*range(40, 46), 3005, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(46, 55))]
)
def test_gradients_of_random_chains(seed):
    memory_chains.check(seed, grad=True)


def whole_examples(x):
    z = x.reshape(-1)
    z[0] = 5.0
    return x, z, x.flags.c_contiguous


def test_examples_of_a_batch_have_no_gaps():
    examples = [np.random.default_rng(i).standard_normal((2 + i, 3 + i)) for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(whole_examples, examples, grad=False)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.take(x, [1, 0], axis=1),
        lambda x: np.take(x, 1, axis=1),
        lambda x: x.take([1, 0, 3], axis=-1),
        lambda x: np.compress([True, False, True, True], x, axis=1),
        lambda x: np.repeat(x, 2, axis=1),
        lambda x: np.delete(x, 1, axis=1),
        lambda x: np.roll(x, 1, axis=1),
        lambda x: np.roll(x.T, 1, axis=0),
        lambda x: np.pad(x, 1, mode="edge"),
        lambda x: np.pad(x.T, 1, mode="wrap"),
        lambda x: np.tile(x, (2, 2)),
    ],
)
def test_what_functions_pick_along_an_axis_lies_as_numpy_has_it(f):
    """A write into a flat view of the result reaches the result, on a tape too."""

    def through_a_flat_view(x):
        picked = f(x * 2.0)
        picked.reshape(-1)[0] = 7.0
        return (picked * picked).sum() + picked[..., 0].sum()

    examples = [np.random.default_rng(n).normal(size=(3, 4)) for n in range(3)]
    for x in examples:
        assert ab.value_and_grad(through_a_flat_view)(x)[0] == pytest.approx(through_a_flat_view(x))
    ab.testing.assert_equivalent(through_a_flat_view, examples)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.swapaxes(0, 1) @ np.ones((3, 2)),
        lambda x: np.matmul(x.transpose(1, 0, 2, 3), x.swapaxes(-1, -2).swapaxes(0, 1)),
        lambda x: x @ np.ones((3, 2)),
    ],
)
def test_a_product_of_stacks_of_stacks_lies_as_its_operands(f):
    examples = [np.random.default_rng(n).normal(size=(2, 3, 2, 3)) for n in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(lambda x: f(x).ravel(order="K"), examples, grad=False)
        ab.testing.assert_equivalent(lambda x: written_through(x, f), examples, grad=False)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.asarray(x),
        lambda x: np.asarray(x[1:]),
        lambda x: np.asarray(x)[1:],
        lambda x: np.asarray(x).T,
        lambda x: np.array(x),
        lambda x: np.asarray(x, np.float32),
    ],
)
def test_which_arrays_share_memory(f):
    def shared(x, w):
        y = x * w
        z = f(y)
        return np.shares_memory(y, z), np.may_share_memory(z, y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(shared, EXAMPLES, grad=False, w=0.7)


def plain_part_then_a_write(x, w):
    y = x * w
    z = np.asarray(y[1:])
    y[1] = 5.0
    return y, z


def plain_part_written(x, w):
    y = x * w
    z = np.asarray(y[1:])
    z[0] = 5.0
    return y, z


def plain_whole_then_writes_of_views(x, w):
    y = x * w
    v, z = y[1:], np.asarray(y)
    v[0] = 5.0
    z[2] = 3.0
    return y, z, v


@pytest.mark.parametrize("f", [plain_part_then_a_write, plain_part_written, plain_whole_then_writes_of_views])
def test_writes_reach_what_asarray_gave(f):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(f, EXAMPLES, grad=False, w=0.7)


LAID_OUT = {
    "first_repeats": lambda y: np.broadcast_to(y, (2, *y.shape)),
    "middle_repeats": lambda y: np.broadcast_to(y[:, None], (y.shape[0], 5, y.shape[1])),
    "rows_repeat": lambda y: np.broadcast_to(y[0], y.shape),
    "columns_repeat": lambda y: np.broadcast_to(y[:, :1], y.shape),
    "transposed_repeats": lambda y: np.broadcast_to(y.T, (2, *y.T.shape)),
    "stacks_swapped": lambda y: np.stack([y, y * 2]).transpose(1, 0, 2),
    "transposed_backwards": lambda y: y[::-1].T,
    "columns_picked": lambda y: y[:, np.array([2, 0, 1])],
}
DONE_TO = {
    "nothing": lambda b: b,
    "view": lambda b: b[..., ::-1],
    "part": lambda b: b[:, 1:],
    "new_axis": lambda b: b[None],
    "method_copy": lambda b: b.copy(),
    "copy_in_k_order": lambda b: b.copy(order="K"),
    "np_copy": lambda b: np.copy(b),
    "np_array": lambda b: np.array(b),
    "array_in_order_a": lambda b: np.array(b, order="A"),
    "copied_part": lambda b: np.copy(b[:, 1:]),
    "astype": lambda b: b.astype(np.float32),
    "elementwise": lambda b: np.tanh(b) + 1.0,
    "sum_of_two_orders": lambda b: np.zeros_like(b) + b,
    "full_like": lambda b: np.full_like(b, 2.0) * b,
    "full_like_of_rows": lambda b: np.full_like(b, b[0]),
    "full_like_of_a_number": lambda b: np.full_like(b, b[0].sum()),
    "joined": lambda b: np.concatenate([b, b]),
    "stacked": lambda b: np.stack([b, b], axis=-1),
    "sorted": lambda b: np.sort(b, axis=0),
    "rolled": lambda b: np.roll(b, 1, axis=0),
    "nan_to_num": lambda b: np.nan_to_num(b),
    "fft": lambda b: np.fft.fft(b),
    "taken": lambda b: b[[0, 1]],
    "mean": lambda b: b.mean(axis=0),
    "without_a_rule": lambda b: np.partition(b, 1),
    "repeated_again": lambda b: np.copy(np.broadcast_to(b, (2, *b.shape))),
    "where": lambda b: np.where(b > 0, b, 0.0),
}


@pytest.mark.parametrize(
    "laid_out",
    [pytest.param([*LAID_OUT], id="all"), *(pytest.param([x], id=x, marks=pytest.mark.slow) for x in LAID_OUT)],
)
@pytest.mark.parametrize("done", DONE_TO)
def test_elements_lie_in_numpys_order(done, laid_out):
    def raveled(x, w):
        out = [DONE_TO[done](LAID_OUT[each](x * w)) for each in laid_out]
        return [(each.ravel("K"), each.flatten("K")) for each in out]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(raveled, EXAMPLES, grad=False, w=0.7)


@pytest.mark.parametrize("laid_out", LAID_OUT)
def test_what_runs_example_by_example_lies_in_numpys_order(laid_out):
    def raveled(x, w):
        return np.partition(LAID_OUT[laid_out](x * w), 1).ravel("K")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(raveled, RAGGED, grad=False, w=0.7)


def written_in_place(x, w):
    y = x.T * w
    y[...] = x[0, 0]
    y[1] = x[:, 1]
    return (y + 1).ravel("K")


def test_a_write_leaves_the_order_to_what_follows():
    ab.testing.assert_equivalent(written_in_place, EXAMPLES, grad=False, w=0.7)


@pytest.mark.parametrize("condition", [lambda x: x > 0, lambda x: x[0] > 0])
def test_places_lie_as_numpys(condition):
    def asked(x):
        rows = np.nonzero(condition(x * 1.0))[0]
        return rows, rows.flags.c_contiguous, rows.strides

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(asked, EXAMPLES, grad=False)


OWN = {
    "block": lambda x: np.block(x),
    "meshgrid": lambda x: np.meshgrid(x)[0],
    "meshgrid_of_two": lambda x: np.meshgrid(x[0], x[1])[1],
    "vander": lambda x: np.vander(x[0]),
    "qr": lambda x: np.linalg.qr(x[:, :3])[1],
    "eigenvectors": lambda x: np.linalg.eigh(x @ x.T)[1],
    "singular_vectors": lambda x: np.linalg.svd(np.stack([x, x + 1.0])[..., :3])[2],
    "histogram": lambda x: np.histogram2d(x[0], x[1], 3)[0],
}


@pytest.mark.parametrize("made", OWN)
def test_results_are_contiguous_arrays_of_their_own(made):
    def written(x, w):
        y = x * w
        z = OWN[made](y)
        flat = z.reshape(-1)
        flat[:1] = 5.0
        return y, z, flat

    def asked(x, w):
        z = OWN[made](x * w)
        return z.flags.c_contiguous, z.ravel("K")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(written, EXAMPLES, grad=False, w=0.7)
        ab.testing.assert_equivalent(asked, EXAMPLES, grad=False, w=0.7)


def part_then_raveled(x, w):
    part = np.split(x * w, 2, axis=1)[1]
    total = float(part.sum())
    flat = part.ravel()
    flat[0] = total
    return part, flat


def column_then_raveled(x, w):
    column = (x * w)[:, 1]
    strides = column.strides
    flat = column.ravel()
    flat[0] = 9.0
    return column, flat, strides


def reversed_then_reshaped(x, w):
    rows = (x * w)[::-1]
    is_contiguous = rows.flags.c_contiguous
    flat = rows.reshape(-1)
    flat[0] = 9.0
    return rows, flat, is_contiguous


def picked_then_branched(x, w):
    columns = (x * w)[:, ::2]
    flat = columns.ravel() if columns[0, 1] > 0 else columns.T.ravel()
    flat[1] = 4.0
    return columns, flat


PARTS = [part_then_raveled, column_then_raveled, reversed_then_reshaped, picked_then_branched]


@pytest.mark.parametrize("f", PARTS)
def test_a_part_of_an_array_without_a_name_is_no_contiguous_one(f):
    assert len({bool(x[0, 2] > 0) for x in EXAMPLES}) == 2  # lanes diverge
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(f, EXAMPLES, grad=False, w=0.7)


@pytest.mark.parametrize("row", [lambda x: x.T[0], lambda x: x.T[:1], lambda x: x.T[:, :1]], ids=["0", "row", "column"])
def test_a_value_that_fills_an_array_in_fortran_order(row):
    def filled(x):
        out = np.full_like(x.T, row(x))
        return out, out.ravel(), out.flags.f_contiguous

    ab.testing.assert_equivalent(filled, [np.arange(6.0).reshape(2, 3) + k for k in range(3)])
