"""Every segment function in every combination of representation, ids, weights and shape, against plain Python."""

import tracemalloc

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import autobatch as ab
from tests import naive

RANDOM = np.random.default_rng(8)
MODES = [
    *["sum", "mean", "sqrtn", "max", "min", "prod", "logsumexp", "logmeanexp", "var", "std", "any", "all", "count"],
    *["softmax", "log_softmax", "cumsum", "sort", "argmax", "argmin", "first", "last", "topk"],
]
SMOOTH = [mode for mode in MODES if mode not in ("any", "all", "count", "argmax", "argmin")]
COUNT = 5
FLOAT_RESULT = ("mean", "sqrtn", "logsumexp", "logmeanexp", "var", "std", "softmax", "log_softmax")


def call(mode, data, *args, **kwargs):
    return getattr(ab, f"segment_{mode}")(data, *args, **kwargs, **({"k": 2} if mode == "topk" else {}))


def cases(n):
    """The same segments in each form; the first entry names it."""
    ids = np.sort(RANDOM.integers(0, COUNT, n))
    lengths = np.bincount(ids, minlength=COUNT)
    yield "sorted ids", ids, {"segment_ids": ids, "num_segments": COUNT}
    yield "ids said to be sorted", ids, {"segment_ids": ids, "num_segments": COUNT, "sorted": True}
    yield "lengths", ids, {"lengths": lengths}
    yield "offsets", ids, {"offsets": np.cumsum([0, *lengths])}
    order = RANDOM.permutation(n)
    yield "unsorted ids", ids[order], {"segment_ids": ids[order].astype(np.uint8), "num_segments": COUNT}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (0,), pytest.param((2, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
def test_s3_12_the_whole_product(mode, shape, fused, weighted):  # S3.12, S3.15-S3.20, S3.22
    for n in (0, 1, 9):
        data = RANDOM.standard_normal((11 if fused else n, *shape))
        ids = RANDOM.integers(0, 11, n) if fused else None
        weights = RANDOM.random(n) + 0.5 if weighted else None
        rows = data if ids is None else data[ids]
        for name, of, how in cases(n):
            found = call(mode, data, **how, ids=ids, weights=weights)
            expected = naive.segment(rows, of, COUNT, mode, weights, k=2)
            for left, right in zip(*map(_parts, (found, expected)), strict=True):
                assert left.shape == right.shape, name
                np.testing.assert_allclose(left, right, 1e-9, 1e-9, err_msg=name)


def _parts(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint8, np.int32, np.uint64, np.bool_])
@pytest.mark.parametrize("mode", MODES)
def test_dtypes_are_those_of_numpy(mode, dtype):
    data = (RANDOM.random((9, 2)) * 5).astype(dtype)
    ids = RANDOM.integers(0, COUNT, 9)
    found = _parts(call(mode, data, ids, num_segments=COUNT))[0]
    expected = _parts(naive.segment(data, ids, COUNT, mode, k=2))[0]
    tolerance = 5e-3 if dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found.astype(float), expected.astype(float), tolerance, tolerance)
    if mode in ("sum", "prod", "cumsum", "any", "all", "argmax", "argmin"):
        assert found.dtype == getattr(np, mode)(data, axis=0).dtype
    elif mode == "count":
        assert found.dtype == np.int64
    elif mode in FLOAT_RESULT:
        assert found.dtype == np.mean(data, axis=0).dtype
    else:
        assert found.dtype == dtype


def test_float16_is_added_up_in_float32():
    data = np.full(4096, 1.0, np.float16)  # in float16 the sum stays at 2048
    assert ab.segment_sum(data, lengths=[4096]) == 4096
    assert ab.segment_cumsum(data, lengths=[4096])[-1] == 4096


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("mode", SMOOTH)
def test_gradients_are_the_differences(mode, fused, weighted):
    segment_ids, ids = np.array([2, 0, 2, 2, 0, 4]), np.array([5, 1, 0, 5, 3, 2]) if fused else None
    data, weights = RANDOM.standard_normal((6, 2)), RANDOM.random(6) + 0.5
    weights = weights if weighted else None
    shape = np.shape(_parts(call(mode, data, segment_ids, ids=ids, num_segments=COUNT))[0])
    ct = RANDOM.standard_normal(shape)
    if mode == "std":
        ct[4] = 0  # one row: its deviation is 0, where the root has no derivative
        data = data + 0.0

    def loss(data, weights):
        out = _parts(call(mode, data, segment_ids, ids=ids, weights=weights, num_segments=COUNT))[0]
        return (out[:4] * ct[:4]).sum() if mode == "std" else (out * ct).sum()

    found = ab.grad(loss)(ab.EmbeddingTable(data) if fused else data, weights)
    found = found.to_dense() if fused else found
    expected = naive.numeric_gradient(lambda data: loss(data, weights), data)
    kept = ~np.isnan(found) if mode == "std" else np.ones(found.shape, bool)
    np.testing.assert_allclose(found[kept], expected[kept], 1e-5, 1e-6)
    if weighted:
        found = ab.grad(loss, 1)(data, weights)
        expected = naive.numeric_gradient(lambda weights: loss(data, weights), weights)
        kept = ~np.isnan(found)
        assert kept.sum() >= 5
        np.testing.assert_allclose(found[kept], expected[kept], 1e-5, 1e-6)


@pytest.mark.parametrize("mode", [mode for mode in SMOOTH if mode != "std"])
def test_gradients_of_gradients(mode):
    segment_ids = np.array([2, 0, 2, 2, 0])
    x, w = RANDOM.standard_normal((5, 2)), RANDOM.standard_normal((5, 2))

    def slope(x):
        def loss(x):
            out = _parts(call(mode, x, segment_ids, num_segments=3))[0]
            return (out * out * out).sum()

        return (ab.grad(loss)(x) * w).sum()

    np.testing.assert_allclose(ab.grad(slope)(x), naive.numeric_gradient(slope, x), 1e-4, 1e-4)


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_gradients_of_any_order_of_a_product(zeros):
    x, of = RANDOM.standard_normal((6, 2)), [1, 0, 1, 1, 0, 1]
    x[:zeros, 0] = 0
    one, two, three = RANDOM.standard_normal((3, 6, 2))

    def first(x):
        return (ab.grad(lambda x: (ab.segment_prod(x, of) ** 2).sum())(x) * one).sum()

    def second(x):
        return (ab.grad(first)(x) * two).sum()

    def third(x):
        return (ab.grad(second)(x) * three).sum()

    np.testing.assert_allclose(ab.grad(second)(x), naive.numeric_gradient(second, x), 1e-5, 1e-5)
    np.testing.assert_allclose(ab.grad(third)(x), naive.numeric_gradient(third, x), 1e-4, 1e-4)


def test_the_gradient_of_a_product_where_rows_are_zero():
    x = np.array([2.0, 0.0, 3.0, 0.0, 0.0, 5.0])
    found = ab.grad(lambda x: ab.segment_prod(x, lengths=[3, 2, 1]).sum())(x)
    assert found.tolist() == [0, 6, 0, 0, 0, 1]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_gradient_goes_to_the_first_of_ties_and_to_the_first_nan(mode):
    x = np.array([3.0, 3.0, 3.0, np.nan, 1.0, np.nan])
    found = ab.grad(lambda x: call(mode, x, [1, 0, 1, 2, 2, 2]).sum())(x)
    assert found.tolist() == [1, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("mode", [m for m in MODES if m not in ("softmax", "log_softmax", "cumsum", "sort", "topk")])
def test_empty_segments(mode):
    x = np.array([[1.0, 2.0]])
    found = call(mode, x, [1], num_segments=3)
    bare = {"prod": 1, "all": 1, "argmax": -1, "argmin": -1}.get(mode, 0)
    assert (np.asarray(found)[[0, 2]] == bare).all()
    found = call(mode, x, [1], num_segments=3, empty=7)
    assert (np.asarray(found)[[0, 2]] == np.asarray(7, found.dtype)).all()
    np.testing.assert_array_equal(found[1], call(mode, x, [1])[1])
    rows = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    picked, segment_ids = [5, 0, 5, 2], np.array([0, 0, 2, 2])
    looked_up = call(mode, rows, segment_ids, ids=picked, num_segments=4, empty=7)
    np.testing.assert_allclose(looked_up, call(mode, rows[picked], segment_ids, num_segments=4, empty=7), rtol=1e-6)
    assert (looked_up[[1, 3]] == np.asarray(7, looked_up.dtype)).all()


def test_top_k_of_few_rows_and_ties():
    values, at = ab.segment_topk(np.array([1.0, 4.0, 4.0, np.nan]), [2, 0, 0, 0], k=2, empty=-np.inf)
    np.testing.assert_array_equal(values, [[np.nan, 4], [-np.inf, -np.inf], [1, -np.inf]])
    assert at.tolist() == [[3, 1], [-1, -1], [0, -1]]
    assert ab.segment_topk(np.zeros((0, 2)), [], k=3, num_segments=1)[0].shape == (1, 3, 2)


def test_infinities():
    x = np.array([-np.inf, -np.inf, np.inf, 0.0, 1000.0, 1000.0])
    lengths = [2, 2, 2]
    np.testing.assert_allclose(ab.segment_logsumexp(x, lengths=lengths), [-np.inf, np.inf, 1000 + np.log(2)])
    np.testing.assert_allclose(ab.segment_softmax(x[4:], lengths=[2]), [0.5, 0.5])


def test_where_weights_sum_to_nothing_ieee_decides():
    x = np.array([1.0, 2.0])
    assert np.isnan(ab.segment_mean(x, [0, 0], weights=[0.0, 0.0])).all()
    assert np.isinf(ab.segment_mean(x, [0, 0], weights=[1.0, -1.0])).all()


@hypothesis.settings(max_examples=120, deadline=None)
@hypothesis.given(st.data())
def test_grid(data):
    """No columns, one, less than a vector, one, many; empty segments, repeated ids, zero rows and columns."""
    mode = data.draw(st.sampled_from(MODES))
    n, dim = data.draw(st.integers(0, 30)), data.draw(st.sampled_from([0, 1, 3, 257]))
    count, fused = data.draw(st.integers(1, 12)), data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    table = random.integers(-4, 5, (7 if fused else n, dim)).astype(np.float32)
    ids = random.integers(0, 7, n) if fused else None
    of = random.integers(0, count, n)
    weights = (random.integers(1, 4, n) / 2).astype(np.float32) if data.draw(st.booleans()) else None
    found = call(mode, table, of, ids=ids, weights=weights, num_segments=count)
    rows = table if ids is None else table[ids]
    for left, right in zip(*map(_parts, (found, naive.segment(rows, of, count, mode, weights, k=2))), strict=True):
        np.testing.assert_allclose(left, right, 2e-4, 2e-4)


@pytest.mark.parametrize("name", ["segment_logsumexp", "segment_logmeanexp"])
@pytest.mark.parametrize("lengths", [[200] * 500, [0, 0, 99990, 0, 10, 0], [100000], [0, 50000, 0, 50000]])
def test_rows_that_ids_name_are_looked_up_a_part_at_a_time(name, lengths):
    rng = np.random.default_rng(0)
    table, ids = rng.standard_normal((50, 64)).astype(np.float32), rng.integers(0, 50, 100_000)
    function = getattr(ab, name)
    np.testing.assert_array_equal(function(table, ids=ids, lengths=lengths), function(table[ids], lengths=lengths))
    if len(lengths) == 500:
        tracemalloc.start()
        function(table, ids=ids, lengths=lengths)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < ids.size * 64 * 4  # less than the rows take
