"""`SparseRows`, also while its rows are not repeated yet; gather and scatter."""

import pickle

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError
from tests import naive

RANDOM = np.random.default_rng(13)


def make(shape, dtype=np.float64):
    return RANDOM.standard_normal(shape).astype(dtype)


def pairs(dtype=np.float64, trailing=(3,)):
    """The same gradient with its rows and before they are repeated; with factors and without."""
    ids, of = np.array([4, 1, 4, 0, 1]), np.array([1, 0, 0, 2, 2])
    wide = np.float32 if dtype == np.float16 else dtype
    for factors in (None, make(5, wide)):
        sources = make((3, *trailing), wide)
        rows = sources[of] if factors is None else sources[of] * factors.reshape(-1, *(1,) * len(trailing))
        spread = ab.SparseRows.spread(ids, sources, of, factors, 6, dtype)
        yield spread, ab.SparseRows(ids, rows.astype(dtype), 6)


@pytest.mark.parametrize("trailing", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_that_are_not_repeated_behave_as_if_they_were(dtype, trailing):
    tolerance = 1e-2 if dtype == np.float16 else 1e-5
    others = list(pairs(dtype, trailing))
    for use in [
        lambda g: g.to_dense(),
        lambda g: g.rows,
        lambda g: g.coalesce().rows,
        lambda g: (g + g).to_dense(),
        lambda g: sum([g, g, g]).coalesce().rows,
        lambda g: (g * 2.0).to_dense(),
        lambda g: (-g / 4.0).rows,
        lambda g: g + np.ones(g.shape, dtype),
        lambda g: pickle.loads(pickle.dumps(g)).to_dense(),
        lambda g: ab.SparseRows.combine([g, others[0][0], others[1][1]]).to_dense(),
        lambda g: ab.SparseRows.combine([g, others[1][0]]).coalesce().rows,
    ]:
        for spread, plain in pairs(dtype, trailing):
            assert spread.shape == plain.shape == (6, *trailing)
            assert spread.dtype == plain.dtype == dtype
            assert spread.ndim == plain.ndim
            found, expected = use(spread), use(plain)
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, tolerance, tolerance)


def test_rows_once_read_are_the_gradient():
    for spread, _ in pairs():
        spread.rows *= 2.0
        np.testing.assert_array_equal(spread.to_dense(), naive.scatter_add(spread.rows, spread.ids, 6))
        spread.rows[:] = 1.0
        assert spread.to_dense()[4].tolist() == [2, 2, 2]


def test_float16_rows_are_added_up_in_float32():
    rows = np.full((4096, 1), 1.0, np.float16)
    assert ab.SparseRows(np.zeros(4096, int), rows, 1).coalesce().rows[0] == 4096
    assert ab.SparseRows(np.zeros(4096, int), rows, 1).to_dense()[0] == 4096


@pytest.mark.parametrize(("n", "high"), [(0, 3), (1, 1), (50, 5), (300, 1000)])
def test_coalescing_in_the_order_of_first_occurrence(n, high):
    ids, rows = RANDOM.integers(0, high, n), make((n, 4), np.float32)
    found = ab.SparseRows(ids, rows, high).coalesce()
    names, sums = naive.coalesce(ids, rows)
    assert found.ids.tolist() == names
    np.testing.assert_array_equal(found.rows, np.array(sums, np.float32).reshape(len(names), 4))  # bit for bit


def test_a_gradient_shares_no_memory_with_another():
    def loss(params):
        out = ab.segment_sum(params["t"], lengths=[2, 1], ids=[0, 1, 0]) + params["b"]
        return (out * out).sum()

    params = {"t": ab.EmbeddingTable(make((3, 2))), "b": make((2, 2))}
    expected = ab.grad(loss)(params)["t"].to_dense()
    for name in ("b", "t"):
        grads = ab.grad(loss)({name: params[name], **params})
        grads["b"] *= 0.0
        np.testing.assert_array_equal(grads["t"].to_dense(), expected)


DATA = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])


def test_s3_10_gather_is_a_look_up():
    np.testing.assert_array_equal(ab.gather(DATA, [[3, 0], [0, 0]]), DATA[[[3, 0], [0, 0]]])
    assert isinstance(ab.grad(lambda t: ab.gather(t, [1, 1]).sum())(ab.EmbeddingTable(DATA)), ab.SparseRows)
    assert ab.gather(np.arange(3), []).shape == (0,)


def test_s3_11_scatter_assign_replaces_rows():
    before = DATA.copy()
    found = ab.scatter_assign(DATA, [2, 0, 2], np.array([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]]))
    assert found.tolist() == [[8, 8], [3, 4], [7, 7], [7, 8]]  # of repeated ids the last
    np.testing.assert_array_equal(DATA, before)
    table = ab.EmbeddingTable(DATA.copy())
    assert ab.scatter_assign(table, [1], [[0.0, 0.0]], out=table) is table
    assert table.weights[1].tolist() == [0, 0]
    out = np.empty_like(DATA)
    assert ab.scatter_assign(DATA, [2, 0, 2], [[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]], out=out) is out
    np.testing.assert_array_equal(out, found)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_scatter_add(dtype):
    data, rows, ids = (make((5, 2)) * 9).astype(dtype), (make((7, 2)) * 9).astype(dtype), RANDOM.integers(0, 5, 7)
    expected = data + naive.scatter_add(rows, ids, 5)
    found = ab.scatter_add(data, ids, rows)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, 1e-2 if dtype == np.float16 else 1e-5)
    ab.scatter_add(data, ids, rows, out=data)
    np.testing.assert_array_equal(data, found)
    many = ab.scatter_add(np.zeros(1, np.float16), np.zeros(4096, int), np.ones(4096, np.float16))
    assert many.tolist() == [4096]


def test_s3_23_scatter_weighted_sum():
    ids, first, second = np.array([1, 3, 1]), make((3, 2)), make((3, 2))
    expected = DATA.copy()
    for at in ids:  # an id that repeats is scaled each time
        expected[at] *= 0.5
    expected += naive.scatter_add(2.0 * first - second, ids, 4)
    found = ab.scatter_weighted_sum(DATA, 0.5, ids, first, 2.0, second, -1.0)
    np.testing.assert_allclose(found, expected)
    data = DATA.copy()
    assert ab.scatter_weighted_sum(data, 0.5, ids, first, 2.0, second, -1.0, out=data) is data
    np.testing.assert_allclose(data, expected)


@pytest.mark.parametrize("weight", [0.5, 0.0])
def test_gradients_of_scatters(weight):
    ids, rows, ct = np.array([1, 3, 1]), make((3, 2)), make((4, 2))
    for f in (
        lambda data, rows, w: (ab.scatter_assign(data, ids, rows) * ct).sum(),
        lambda data, rows, w: (ab.scatter_add(data, ids, rows) ** 2 * ct).sum(),
        lambda data, rows, w: (ab.scatter_weighted_sum(data, w, ids, rows, 2.0, rows * rows, w) ** 2 * ct).sum(),
    ):
        found = ab.grad(f, (0, 1, 2))(DATA, rows, weight)
        for i, x in enumerate((DATA, rows, weight)):
            expected = naive.numeric_gradient(
                lambda x, i=i, f=f: f(*(DATA, rows, weight)[:i], x, *(DATA, rows, weight)[i + 1 :]), x
            )
            np.testing.assert_allclose(found[i], expected, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: ab.scatter_add(DATA, [4], [[1.0, 1.0]]), BadIdError, "id 4 at position 0 is outside a table of 4"),
        (lambda: ab.scatter_assign(DATA, [-1], [[1.0, 1.0]]), BadIdError, "a table has no negative ids"),
        (lambda: ab.scatter_add(DATA, [0], [1.0, 1.0]), ShapeError, r"rows have shape \(2,\); expected .* \(1, 2\)"),
        (lambda: ab.scatter_add(DATA, [[0]], [[1.0, 1.0]]), ShapeError, r"ids have shape \(1, 1\)"),
        (lambda: ab.scatter_add(3.0, [0], [1.0]), ShapeError, "data is a single number"),
        (lambda: ab.scatter_add(3.0, [0], ab.MaskedBatch([[1.0]])), ShapeError, "data is a single number"),
        (lambda: ab.scatter_assign(3.0, ab.MaskedBatch([[0]]), [1.0]), ShapeError, "data is a single number"),
        (lambda: ab.lengths_to_segment_ids(ab.MaskedBatch([1, 2])), ShapeError, r"lengths have shape \(\)"),
        (lambda: ab.scatter_add(DATA, [0.5], [[1.0, 1.0]]), DTypeError, "ids have dtype float64"),
        (lambda: ab.scatter_add(np.arange(3), [0], [1.5]), DTypeError, "rows have dtype float64, which int64"),
        (lambda: ab.scatter_add(DATA, [0], [[1.0, 1.0]], out=np.ones(3)), ShapeError, r"out is float64 of shape"),
        (lambda: ab.scatter_weighted_sum(DATA, 1.0, [0], [[1.0, 1.0]]), ShapeError, "1 arguments after ids"),
        (lambda: ab.gather(DATA, [4]), BadIdError, "id 4 at position 0"),
        (lambda: ab.gather(3.0, [0]), ShapeError, "data is a single number"),
        (lambda: ab.grad(lambda x: ab.scatter_add(x, [0], DATA[:1], out=x).sum())(DATA), UnsupportedError, "out= with"),
    ],
)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_rows_are_no_array_until_it_is_asked_for():
    sparse = ab.SparseRows([3, 0], np.ones((2, 2)), 1_000_000)
    with pytest.raises(ab.errors.UnsupportedError, match=r"as an array of shape \(1000000, 2\): write .to_dense\(\)"):
        np.asarray(sparse)


def dense_arrays():
    """What `add_to` must refuse, each beside memory that it must not reach."""
    good = np.zeros((6, 2), np.float32)
    yield good[:3], ValueError, r"shape \(3, 2\); expected an array of shape \(6, 2\)"
    yield good[:, :1], ValueError, r"shape \(6, 1\); expected"
    yield good.ravel(), ValueError, r"shape \(12,\); expected"
    yield good.tolist(), ValueError, "a list; expected"
    yield None, ValueError, "a NoneType; expected"
    yield good.astype(np.int64), TypeError, "rows of float32 into an array of int64"
    frozen = good.copy()
    frozen.flags.writeable = False
    yield frozen, TypeError, "read-only"


@pytest.mark.parametrize("spread", [False, True])
def test_adding_to_an_array_that_does_not_fit(spread):
    grad = of_bags() if spread else ab.SparseRows([5, 0], np.ones((2, 2), np.float32), 6)
    for dense, error, match in dense_arrays():
        with pytest.raises(error, match=match):
            grad.add_to(dense)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ">f4", np.float64, np.complex64])
@pytest.mark.parametrize("spread", [False, True])
def test_adding_to_an_array_of_any_layout(spread, dtype):
    grad = of_bags() if spread else ab.SparseRows([5, 0], np.ones((2, 2), np.float32), 6)
    for dense in (np.ones((6, 2), dtype), np.ones((12, 4), dtype)[::2, ::2], np.ones((2, 6), dtype).T):
        grad.add_to(dense)
        np.testing.assert_array_equal(dense, 1 + grad.to_dense())


def of_bags():
    """A gradient whose rows are not made yet."""
    table = ab.EmbeddingTable(np.zeros((6, 2), np.float32))
    return ab.grad(lambda table: ab.embedding_bag([5, 0, 5], table, [0, 1], mode="sum").sum())(table)


@pytest.mark.parametrize("bad", [6, -1, 10**12])
@pytest.mark.parametrize("spread", [False, True])
def test_ids_that_were_changed_after_they_were_checked(spread, bad):
    """Whatever reads or writes a row by its id looks at the ids as they are then."""
    table, optimizer = ab.EmbeddingTable(np.zeros((6, 2), np.float32)), ab.optim.Adam(0.1)
    uses = [
        lambda grad: grad.coalesce(),
        lambda grad: grad.to_dense(),
        lambda grad: grad.add_to(np.zeros((6, 2), np.float32)),
        lambda grad: optimizer.update(table, grad, optimizer.init(table)),
    ]
    for use in uses:
        grad = of_bags() if spread else ab.SparseRows(np.array([5, 0, 5]), np.ones((3, 2), np.float32), 6)
        grad.ids = grad.ids.copy()
        grad.ids[1] = bad
        with pytest.raises(IndexError, match=rf"id {bad} at position 1 is outside a table of 6 rows"):
            use(grad)
        grad.ids = [1.5]
        with pytest.raises((TypeError, ValueError), match="ids"):
            use(grad)
        grad.ids = [1]
        with pytest.raises(ValueError, match=r"ids of shape \(1,\)"):
            use(grad)
    assert not table.weights.any()


@pytest.mark.parametrize("ids", [[0.5], [[1]], "ab", None])
def test_an_indexer_takes_integers_of_one_dimension(ids):
    with pytest.raises((TypeError, ValueError), match="ids"):
        ab.optim.Indexer()(ids)
    with pytest.raises(ValueError, match="capacity=-1; expected at least 0"):
        ab.optim.Indexer(-1)
