"""`embedding_bag`: every argument against a loop over the bags, and against torch where it is installed."""

import itertools
import tracemalloc
import types
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autobatch as ab
from autobatch.core.batched import Packed
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError
from autobatch.tables import bag_and_segment_op
from autobatch.tables.bag_and_segment_op import segment_p
from tests import inspect, naive

RANDOM = np.random.default_rng(13)
MODES = ("sum", "mean", "max", "min", "sqrtn")
WEIGHTED = ("sum", "mean", "sqrtn")


def make(shape, dtype=np.float64):
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("lengths", [[], [0], [3], [0, 2, 0, 5, 1, 0]])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bags_are_the_loop(dtype, mode, lengths):
    table, offsets = make((7, 3), dtype), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids = RANDOM.integers(0, 7, offsets[-1])
    expected = naive.bags(table, ids, offsets, mode)
    tolerance = 1e-2 if dtype == np.float16 else 1e-5
    for weight in (table, ab.EmbeddingTable(table), ab.EmbeddingTable(np.asfortranarray(table))):
        for out in (
            ab.embedding_bag(ids, weight, offsets[:-1], mode=mode),
            ab.embedding_bag(ids, weight, offsets, mode=mode, include_last_offset=True),
            ab.embedding_bag(types.SimpleNamespace(values=ids, offsets=offsets), weight, mode=mode),
        ):
            assert out.dtype == dtype
            np.testing.assert_allclose(out, expected, tolerance, tolerance)


@st.composite
def problems(draw):
    rows = draw(st.integers(1, 40))
    lengths = draw(st.lists(st.integers(0, 9), max_size=8))
    seed = draw(st.integers(0, 2**32 - 1))
    return rows, lengths, seed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("dtype", "dim"),  # nothing; a number; less than a vector, one; several and a rest; more than are held at a time
    [(np.float32, 0), (np.float32, 1), (np.float32, 3), (np.float64, 2), (np.float64, 33), (np.float32, 130)],
)
@settings(max_examples=5, deadline=None)
@given(problem=problems(), strided=st.booleans())
def test_s1_03_s1_11_any_dims_bags_and_repeated_ids(dtype, dim, mode, problem, strided):
    are_the_loop(dtype, dim, mode, problem, strided, [np.int64])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([np.float32, np.float64]), st.integers(0, 257), st.sampled_from(MODES), problems(), st.booleans()
)
def test_s1_03_s1_11_every_dim(dtype, dim, mode, problem, strided):
    """As above; each dim, and each dtype of ids, compiles kernels."""
    are_the_loop(dtype, dim, mode, problem, strided, [np.int32, np.int64])


def are_the_loop(dtype, dim, mode, problem, strided, of_ids):
    rows, lengths, seed = problem
    random = np.random.default_rng(seed)
    table = random.standard_normal((rows, dim)).astype(dtype)
    ids = random.integers(0, rows, sum(lengths)).astype(random.choice(of_ids))
    offsets = np.cumsum([0, *lengths]).astype(random.choice(of_ids))
    given_table = np.asfortranarray(table) if strided else table
    found = ab.embedding_bag(ids, given_table, offsets, mode=mode, include_last_offset=True)
    np.testing.assert_allclose(found, naive.bags(table, ids, offsets, mode), rtol=1e-4, atol=1e-5)
    assert (found.dtype, found.shape) == (dtype, (len(lengths), dim))


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("dim", [0, 3])
@pytest.mark.parametrize("mode", MODES)
def test_s1_11_no_rows_no_columns_no_ids(rows, dim, mode):
    table = make((rows, dim))
    np.testing.assert_array_equal(ab.embedding_bag([], table, [0, 0], mode=mode), np.zeros((2, dim)))
    assert ab.embedding_bag([], table, [], mode=mode).shape == (0, dim)
    assert ab.embedding_bag(np.zeros((2, 0), int), table, mode=mode).shape == (2, dim)
    if rows:
        assert ab.embedding_bag([1, 2], table, [0], mode=mode).shape == (1, dim)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", ">i8"])
def test_s1_04_ids_and_offsets_of_every_integer_dtype(dtype):
    table, ids, offsets = make((5, 3)), np.array([1, 4, 4, 0]), np.array([0, 1, 1])
    found = ab.embedding_bag(ids.astype(dtype), table, offsets.astype(dtype), mode="sum")
    np.testing.assert_array_equal(found, naive.bags(table, ids, [0, 1, 1, 4], "sum"))
    np.testing.assert_array_equal(ab.lookup(table, ids.astype(dtype)), table[ids])
    strided = np.repeat(ids.astype(dtype), 2)[::2]
    np.testing.assert_array_equal(ab.embedding_bag(strided, table, offsets, mode="sum"), found)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8, np.int16, np.uint32, np.int64])
def test_s0_07_s1_04_tables_of_any_number(dtype):
    table, ids, offsets = (20 * make((5, 5))).astype(dtype), np.array([1, 4, 4, 0]), np.array([0, 1, 1, 4])
    for mode in ("sum", "max", "min", "mean") if dtype == np.float16 else ("sum", "max", "min"):
        found = ab.embedding_bag(ids, table, offsets[:-1], mode=mode)
        expected = [
            getattr(table[ids[a:b]].astype(np.float64), mode)(0) if b > a else np.zeros(5)
            for a, b in itertools.pairwise(offsets)
        ]
        assert found.dtype == dtype
        if np.dtype(dtype).kind == "f":
            np.testing.assert_allclose(found, expected, rtol=1e-3)
        else:
            np.testing.assert_array_equal(found, np.asarray(expected).astype(np.int64).astype(dtype))


def test_float16_is_added_up_in_float32():
    table = np.ones((1, 3), np.float16)
    assert ab.embedding_bag(np.zeros(3000, int), table, [0], mode="sum").tolist() == [[3000] * 3]


@pytest.mark.parametrize("several", [("sum", "mean"), ("max", "sum", "min", "sqrtn", "mean"), ["max"]])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_several_modes_in_one_pass_are_the_single_ones(several, dtype):
    table, ids, offsets = make((6, 5), dtype), np.array([1, 4, 4, 0, 5]), [0, 2, 2]
    found = ab.embedding_bag(ids, table, offsets, mode=several)
    assert isinstance(found, tuple)
    for part, mode in zip(found, several, strict=True):
        assert part.tobytes() == ab.embedding_bag(ids, table, offsets, mode=mode).tobytes()


def test_the_gradient_of_several_modes_is_the_sum_of_theirs():
    table, ids, weights = make((6, 2)), np.array([1, 4, 4, 0, 5]), make(5) + 3
    cts = make((3, 3, 2))

    def loss(table, weights, modes):
        out = ab.embedding_bag(ids, table, [0, 2, 2], mode=modes, per_sample_weights=weights)
        return sum((x * ct).sum() for x, ct in zip(out, cts, strict=False))

    for modes, given_weights in ((("sum", "max", "mean"), None), (("sum", "mean", "sqrtn"), weights)):
        expected = naive.numeric_gradient(lambda t, w=given_weights, m=modes: loss(t, w, m), table)
        np.testing.assert_allclose(
            ab.grad(loss)(ab.EmbeddingTable(table), given_weights, modes).to_dense(), expected, atol=1e-7
        )
    expected = naive.numeric_gradient(lambda w: loss(table, w, modes), weights)
    np.testing.assert_allclose(ab.grad(loss, 1)(table, weights, modes), expected, atol=1e-6)


@pytest.mark.parametrize("mode", WEIGHTED)
def test_s1_14_positional_weights(mode):
    table, ids, offsets, weights = make((6, 3)), np.array([1, 4, 4, 0, 5]), [0, 2, 2], make(4) + 3
    each = weights[[0, 1, 0, 1, 2]]
    expected = ab.embedding_bag(ids, table, offsets, mode=mode, per_sample_weights=each)
    np.testing.assert_array_equal(
        ab.embedding_bag(ids, table, offsets, mode=mode, positional_weights=weights), expected
    )
    rows = ids[:4].reshape(2, 2)
    np.testing.assert_array_equal(
        ab.embedding_bag(rows, table, mode=mode, positional_weights=weights),
        ab.embedding_bag(rows, table, mode=mode, per_sample_weights=np.tile(weights[:2], (2, 1))),
    )

    def loss(weights):
        return ab.embedding_bag(ids, table, offsets, mode=mode, positional_weights=weights).sum()

    np.testing.assert_allclose(ab.grad(loss)(weights), naive.numeric_gradient(loss, weights), atol=1e-7)


SLOWER = [pytest.param(dim, length, marks=pytest.mark.slow) for dim, length in ((8, 4), (4, 50))]


@pytest.mark.parametrize(("dim", "length"), [(2, 4), (32, 4), (2, 50), (2, 1), *SLOWER])
def test_padding_idx_takes_little_memory(dim, length):
    """A bit of truth for each id; of the ids that stay a part at a time, never all."""
    table, ids = make((100, dim)).astype(np.float32), RANDOM.integers(0, 100, 400_000)
    offsets = np.arange(0, len(ids), length)

    def peak(**options):
        ab.embedding_bag(ids, table, offsets, mode="sum", **options)
        tracemalloc.start()
        ab.embedding_bag(ids, table, offsets, mode="sum", **options)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    out = len(offsets) * dim * table.itemsize
    assert peak(padding_idx=3) < peak() + len(ids) + 0.3 * (out + ids.nbytes)


def test_bags_of_which_padding_is_left_out_a_part_at_a_time():
    """Empty bags, bags longer than a part and one that is all padding, with weights, in one mode and in several."""
    table, ids = make((50, 3)), RANDOM.integers(0, 50, 150_000)
    lengths = np.array([0, 3, 70_000, 0, 0, 5, 33_000, 40_000, 6_992, 0])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids[offsets[5] : offsets[6]] = 7
    weights = RANDOM.random(len(ids))
    keep = ids != 7
    stays = np.concatenate([[0], np.cumsum(keep)])[offsets]
    for mode, factors in (("sum", weights), ("mean", None), (("max", "mean"), None)):
        own = None if factors is None else factors[keep]
        options = {"mode": mode, "include_last_offset": True, "empty": -1.0}
        found = ab.embedding_bag(ids, table, offsets, per_sample_weights=factors, padding_idx=7, **options)
        known = ab.embedding_bag(ids[keep], table, stays, per_sample_weights=own, **options)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(known))


@pytest.mark.parametrize("mode", MODES)
def test_s1_10_s1_16_padding_is_not_counted_and_has_no_gradient(mode):
    table, ids, offsets = make((5, 3)), np.array([1, 2, 2, 4, 2, 1]), [0, 3, 4, 5]
    kept = (np.array([1, 4, 1]), [0, 1, 2, 2])
    for padding in (2, -3):
        out = ab.embedding_bag(ids, table, offsets, mode=mode, padding_idx=padding)
        np.testing.assert_array_equal(out, ab.embedding_bag(*kept[:1], table, kept[1], mode=mode))
        found = ab.grad(lambda t, p=padding: ab.embedding_bag(ids, t, offsets, mode=mode, padding_idx=p).sum())(table)
        assert not found[2].any()
    factors = make(6)
    weighted = ab.embedding_bag(ids, table, offsets, mode="sum", padding_idx=2, per_sample_weights=factors)
    np.testing.assert_allclose(weighted, naive.bags(table, kept[0], [0, 1, 2, 2, 3], "sum", factors[[0, 3, 5]]))


def test_empty_bags_have_the_value_or_the_row_asked_for():
    table = make((3, 2))
    for mode in MODES:
        for empty, row in ((None, [0, 0]), (7, [7, 7]), (np.nan, [np.nan] * 2), ([1.5, 2.5], [1.5, 2.5])):
            out = ab.embedding_bag([0, 1], table, [0, 1, 1], mode=mode, empty=empty)
            np.testing.assert_array_equal(out, [table[0], row, table[1]])
    both = ab.embedding_bag([0], table, [0, 1], mode=("sum", "max"), empty=[1.0, 2.0])
    np.testing.assert_array_equal(both[1], [table[0], [1, 2]])
    found = ab.grad(lambda t: ab.embedding_bag([0], t, [0, 1], empty=9.0).sum())(table)
    np.testing.assert_array_equal(found[0], 1)


def test_ids_outside_the_table_are_skipped_and_counted():
    table, ids, offsets = make((4, 2)), np.array([1, -1, 3, 4, 2**40, 0]), [0, 3, 5]
    kept = ab.embedding_bag([1, 3, 0], table, [0, 2, 2], mode="mean")
    skipped = np.full(3, -1)
    found = ab.embedding_bag(ids, table, offsets, mode="mean", bad_ids="skip", skipped=skipped)
    np.testing.assert_array_equal(found, kept)
    assert skipped.tolist() == [1, 2, 0]
    np.testing.assert_array_equal(ab.embedding_bag(ids, table, offsets, bad_ids="skip"), kept)
    huge = np.array([1, 2**64 - 1, 3, 2**63, 5, 0], np.uint64)
    np.testing.assert_array_equal(ab.embedding_bag(huge, table, offsets, bad_ids="skip"), kept)
    ab.embedding_bag([0, 1], table, [0], bad_ids="skip", skipped=skipped[:1])
    assert skipped[0] == 0
    factors = make(6)
    weighted = ab.embedding_bag(ids, table, offsets, mode="sum", bad_ids="skip", per_sample_weights=factors)
    np.testing.assert_allclose(
        weighted, naive.bags(table, np.array([1, 3, 0]), [0, 2, 2, 3], "sum", factors[[0, 2, 5]])
    )


@pytest.mark.parametrize("make_table", [np.array, ab.EmbeddingTable, lambda w: ab.SplitTable.from_array(w, 2)])
def test_max_norm_scales_each_row_that_is_named_once(make_table):
    table = make_table(np.array([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]]))
    out = ab.embedding_bag([0, 0, 1], table, [0], mode="sum", max_norm=1.0)
    np.testing.assert_allclose(table, [[0.6, 0.8], [0.3, 0.4], [6.0, 8.0]], rtol=1e-6)
    np.testing.assert_allclose(out, [[1.5, 2.0]], rtol=1e-6)
    ab.embedding_bag([2], table, [0], mode="sum", max_norm=7.0, norm_type=1.0)
    np.testing.assert_allclose(table[2], [3.0, 4.0], rtol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"padding_idx": 9}, {"padding_idx": -4}, {"input": [0, 9]}, {"offsets": [0, 5]}, {"empty": "x"}]
)
def test_a_call_that_raises_scales_no_row_and_counts_nothing(wrong):
    table, skipped = np.array([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]]), np.array([7])
    before = table.copy()
    arguments = {"input": [0, 2], "offsets": [0], "skipped": skipped, "max_norm": 1.0, **wrong}
    with pytest.raises((IndexError, ValueError)):
        ab.embedding_bag(weight=table, **arguments)
    np.testing.assert_array_equal(table, before)
    assert skipped.tolist() == [7]


@pytest.mark.parametrize(("mode", "weighted"), [*((m, False) for m in MODES), *((m, True) for m in WEIGHTED)])
def test_gradients_are_the_differences(mode, weighted):
    table, ids, offsets, ct = make((5, 3)), np.array([1, 4, 4, 0, 2]), [0, 1, 1, 4], make((4, 3))
    weights = make(5) + 3 if weighted else None

    def loss(table, weights):
        out = ab.embedding_bag(ids, table, offsets, mode=mode, per_sample_weights=weights)
        return (out * ct).sum()

    expected = naive.numeric_gradient(lambda t: loss(t, weights), table)
    np.testing.assert_allclose(ab.grad(loss)(table, weights), expected, atol=1e-7)
    sparse = ab.grad(loss)(ab.EmbeddingTable(table), weights)
    assert isinstance(sparse, ab.SparseRows)
    assert sparse.ids.tolist() == ids.tolist()
    np.testing.assert_allclose(sparse.to_dense(), expected, atol=1e-7)
    if weighted:
        expected = naive.numeric_gradient(lambda w: loss(table, w), weights)
        np.testing.assert_allclose(ab.grad(loss, 1)(ab.EmbeddingTable(table), weights), expected, atol=1e-7)


@pytest.mark.parametrize("mode", WEIGHTED)
def test_the_gradient_is_divided_by_how_often_an_id_occurs(mode):
    table, ids, offsets = make((5, 2)), np.array([1, 4, 4, 0, 4]), [0, 2]
    plain, scaled = (
        ab.grad(lambda t, s=s: ab.embedding_bag(ids, t, offsets, mode=mode, scale_grad_by_freq=s).sum())(table)
        for s in (False, True)
    )
    np.testing.assert_allclose(scaled, plain / np.array([1, 1, 1, 1, 3])[:, None])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("step", [1, 2, -1])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_s1_19_y_plus_a_x(dtype, step, n):
    """S1.19: y += a * x for rows of any stride, one row too; float16 is added up in float32."""
    whole = RANDOM.standard_normal((6, 13)).astype(dtype)
    table = whole[:, ::step][:, :3]
    ids, factors = RANDOM.integers(0, 6, n), RANDOM.standard_normal(n).astype(dtype)
    found = ab.embedding_bag(ids, table, [0], mode="sum", per_sample_weights=factors)
    wide = np.float32 if dtype == np.float16 else dtype
    expected = naive.bags(table.astype(wide), ids, np.array([0, n]), "sum", factors.astype(wide)).astype(dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-3 if dtype == np.float16 else 1e-5, atol=1e-6)
    assert found.dtype == dtype


# Examples that call it, batched.

SENTENCES = [np.array(x, np.int64) for x in ([1, 4, 1], [0], [5, 5, 2, 3], [], [4, 4])]
CALLS = {
    "one bag": lambda words, t, v: ab.embedding_bag(words, t, [0], mode="sum")[0] @ v,
    "a row": lambda words, t, v: ab.embedding_bag(words[None], t, mode="mean", empty=2.0)[0] @ v,
    "rows": lambda words, t, v: np.tanh(ab.embedding_bag(words[:, None], t, mode="max")).sum() @ v.sum(),
    "closed": lambda words, t, v: (
        ab.embedding_bag(words, t, [0, len(words)], mode="sqrtn", include_last_offset=True)[0] @ v
    ),
    "several": lambda words, t, v: sum(
        x.sum() for x in ab.embedding_bag(words, t, [0, 0], mode=("sum", "min"), empty=1.0)
    ),
    "padding": lambda words, t, v: ab.embedding_bag(words, t, [0], mode="mean", padding_idx=-2)[0] @ v,
    "skip": lambda words, t, v: ab.embedding_bag(words + 2, t, [0], mode="sum", bad_ids="skip")[0] @ v,
    "weights": lambda words, t, v: ab.embedding_bag(words, t, [0], mode="sum", per_sample_weights=np.sin(words))[0] @ v,
    "positional": lambda words, t, v: (
        ab.embedding_bag(words, t, [0], mode="sum", positional_weights=np.arange(4.0))[0] @ v
    ),
    "own positions": lambda words, t, v: (
        ab.embedding_bag(words, t, [0], mode="sum", positional_weights=np.cos(np.arange(len(words) + 1.0)))[0] @ v
    ),
    "frequency": lambda words, t, v: ab.embedding_bag(words, t, [0], mode="sum", scale_grad_by_freq=True)[0] @ v,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_law(name):
    table = ab.EmbeddingTable(make((6, 3)))
    own = name == "frequency"  # of which the gradient is torch's, and not the slope
    ab.testing.assert_equivalent(CALLS[name], SENTENCES, t=table, v=make(3), central_differences=not own)


LOOKED_UP = {
    "rows": lambda words, t: t[words] * 2.0,
    "sum": lambda words, t: t[words].sum(axis=0),
    "mean": lambda words, t: t[words].mean(axis=0),
    "max": lambda words, t: t[words].max(axis=0),
    "min": lambda words, t: t[words].min(axis=0),
    "weighted": lambda words, t: (t[words] * np.sin(words)[:, None]).sum(axis=0),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_the_law_of_rows_that_are_reduced_where_they_are_looked_up(name):
    """Where a sentence is empty, NumPy's mean warns, and its extrema raise: of the fourth example, and of one alone."""
    full = [words for words in SENTENCES if len(words)]
    ab.testing.assert_equivalent(LOOKED_UP[name], full, t=ab.EmbeddingTable(make((6, 3))))
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of a mean of nothing
        for sentences in (SENTENCES, SENTENCES[:1], SENTENCES[3:4]):
            ab.testing.assert_equivalent(LOOKED_UP[name], sentences, t=make((6, 3)), grad=False)


def test_reductions_of_no_rows_are_numpys():
    """Of one example alone and of several: NumPy's warning and its error, which names the example."""
    table, ids = make((5, 3)), Packed(np.array([1]), np.array([0, 1, 1]))

    def several(mode):
        return segment_p.rule(segment_p, [table, ids], {"mode": mode, "form": "one", "empty": "numpy"}).data

    with pytest.warns(RuntimeWarning, match="Mean of empty slice"), np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(several("mean"), [table[1], [np.nan] * 3])
    with pytest.raises(ValueError, match="zero-size array") as caught:
        several("max")
    assert caught.value.__notes__ == ["raised for example 1"]
    with pytest.raises(ValueError, match="zero-size array"):
        segment_p(table, [], mode="max", form="one", empty="numpy")
    np.testing.assert_array_equal(several("sum")[1], 0)
    alone = segment_p(table, [4, 1], np.array([2.0, 3.0]), mode="sum", form="one", empty="numpy")
    np.testing.assert_allclose(alone, 2 * table[4] + 3 * table[1])


def own_offsets(example, t):
    return np.tanh(ab.embedding_bag(example["ids"], t, example["offsets"], mode="mean")).sum(axis=0)


def test_the_law_with_offsets_of_each_example():
    examples = [
        {"ids": np.array(ids, np.int64), "offsets": np.array(offsets, np.int64)}
        for ids, offsets in (([1, 2, 3], [0, 2]), ([4], [0, 0, 1]), ([], [0]), ([5, 5], [0, 1]))
    ]
    ab.testing.assert_equivalent(own_offsets, examples, t=ab.EmbeddingTable(make((6, 3))))


def test_a_batch_of_calls_is_one_launch():
    """What needs the ids of each example is traced, and launched together then."""
    table = ab.EmbeddingTable(make((6, 3)))
    runs = {
        lambda f: ab.batch(f, strict=True)(ab.PackedBatch.from_examples(SENTENCES), table, np.ones(3)): (
            "one bag",
            "weights",
        ),
        lambda f: ab.map(f, SENTENCES, t=table, v=np.ones(3)): ("one bag", "padding", "skip"),
    }
    for run, names in runs.items():
        for name in names:
            with inspect.watched(bag_and_segment_op, "pool") as launched:
                run(CALLS[name])
            assert len(launched) <= 2, name  # one, and what foresees the shape of the result


def test_a_bad_id_or_offset_in_a_batch_is_the_error_of_its_example():
    table, v = ab.EmbeddingTable(make((6, 3))), np.ones(3)
    bad = [*SENTENCES, np.array([0, 6])]
    for run in (
        lambda: ab.map(CALLS["one bag"], bad, t=table, v=v),
        lambda: ab.batch(CALLS["one bag"])(ab.MaskedBatch.from_examples(bad), table, v),
        lambda: ab.batch(CALLS["one bag"])(ab.PackedBatch.from_examples(bad), table, v),
    ):
        with pytest.raises(BadIdError, match="id 6 at position 1") as caught:
            run()
        assert any("example 5" in note for note in caught.value.__notes__)


TABLE = np.ones((4, 2))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        (([0, 4], TABLE, [0, 1]), {}, BadIdError, r"id 4 at position 1, in bag 1 is outside a table of 4 rows"),
        (([-1], TABLE, [0]), {}, BadIdError, r"a table has no negative ids"),
        (([0, 1], TABLE, [1]), {}, BadIdError, r"offsets\[0\] is 1; expected 0"),
        (([0, 1], TABLE, [0, 2, 1]), {}, BadIdError, r"offsets\[2\] is 1, below offsets\[1\] = 2"),
        (([0, 1], TABLE, [0, 3]), {}, BadIdError, r"offsets\[1\] is 3, above the number of values, 2"),
        (([0, 1], TABLE, [0, 1]), {"include_last_offset": True}, BadIdError, r"last of the offsets is 1"),
        (([0, 1], TABLE, []), {"include_last_offset": True}, BadIdError, r"offsets are empty"),
        (([0, 1], TABLE, [[0]]), {}, ShapeError, r"offsets have shape \(1, 1\)"),
        (([0, 1], TABLE), {}, ShapeError, r"offsets are needed"),
        (([[0, 1]], TABLE, [0]), {}, ShapeError, r"leave offsets out"),
        (([[[0]]], TABLE), {}, ShapeError, r"input has shape \(1, 1, 1\)"),
        ((TABLE, np.array([0]), [0]), {}, ShapeError, r"is it the second argument\?"),
        (([0.5], TABLE, [0]), {}, DTypeError, r"input have dtype float64"),
        (([0], TABLE, [0.0]), {}, DTypeError, r"offsets have dtype float64"),
        (([0], TABLE, [0]), {"mode": "median"}, UnsupportedError, r"mode='median'; expected one of sum, mean"),
        (([0], TABLE, [0]), {"mode": "avg"}, ValueError, r"mode='avg'; expected one of sum, mean"),
        (([0], TABLE, [0]), {"mode": None}, ValueError, r"mode=None; expected one of sum, mean"),
        (([0], TABLE, [0]), {"mode": ("sum", 3)}, ValueError, r"mode=3; expected one of sum, mean"),
        (([0], TABLE, [0]), {"bad_ids": "drop"}, ValueError, r"bad_ids='drop'; expected"),
        (([0], TABLE, [0]), {"scale_grad_by_freq": True, "mode": "max"}, UnsupportedError, r"freq=True with mode"),
        (([0], TABLE, [0]), {"bad_ids": "drop"}, UnsupportedError, r"bad_ids='drop'; expected 'raise' or 'skip'"),
        (([0], TABLE, [0]), {"sparse": True}, UnsupportedError, r"sparse=True with a plain array"),
        (([0], TABLE, [0]), {"mode": "max", "per_sample_weights": np.ones(1)}, UnsupportedError, r"with mode='max'"),
        (([0], TABLE, [0]), {"per_sample_weights": np.ones(2)}, ShapeError, r"per_sample_weights have shape \(2,\)"),
        (([0], TABLE, [0]), {"per_sample_weights": np.ones(1, int)}, DTypeError, r"expected floats"),
        (([0], TABLE.astype(int), [0]), {}, DTypeError, r"mode 'mean' of a table of int64"),
        (([0], TABLE.astype(bool), [0]), {"mode": "sum"}, DTypeError, r"a bag over a table of bool"),
        (([0], TABLE, [0]), {"mode": ()}, UnsupportedError, r"mode=\(\)"),
        (([0], TABLE, [0]), {"mode": ("sum", "median")}, UnsupportedError, r"mode='median'"),
        (([0], TABLE, [0]), {"max_norm": -1.0}, UnsupportedError, r"max_norm=-1.0"),
        (([0], TABLE, [0]), {"max_norm": np.nan}, UnsupportedError, r"max_norm=nan"),
        (([0], TABLE, [0]), {"max_norm": 10**400}, UnsupportedError, r"max_norm=10{30,60}; expected a number"),
        (([0], TABLE, [0]), {"max_norm": 1.0, "norm_type": "nuc"}, UnsupportedError, r"norm_type='nuc'; expected a"),
        (
            ([0], TABLE.astype(int), [0]),
            {"max_norm": 1.0, "mode": "sum"},
            DTypeError,
            r"max_norm= with a table of int64",
        ),
        (([0], TABLE, [0]), {"padding_idx": 1.5}, DTypeError, r"padding_idx=1.5; expected an integer"),
        (([0], TABLE, [0]), {"padding_idx": -5}, BadIdError, r"padding_idx=-5 is outside a table of 4 rows"),
        (
            ([0], TABLE, [0]),
            {"empty": [1.0]},
            ShapeError,
            r"empty has shape \(1,\); expected a number or a row, \(2,\)",
        ),
        (([0], TABLE, [0]), {"skipped": np.zeros(2, int)}, ShapeError, r"skipped has shape \(2,\)"),
        (([0, 1], TABLE, [0]), {"positional_weights": np.ones(1)}, ShapeError, r"positional_weights have shape \(1,\)"),
        (
            ([0], TABLE, [0]),
            {"positional_weights": np.ones(1), "per_sample_weights": np.ones(1)},
            UnsupportedError,
            r"give one of them",
        ),
        ((np.array([2**63], np.uint64), TABLE, [0]), {}, BadIdError, r"9223372036854775808"),
        (([0], TABLE, np.array([0, 2**63], np.uint64)), {}, BadIdError, r"offsets hold 9223372036854775808"),
        (([0, 1], TABLE, np.array([0, -1], np.int8)), {}, BadIdError, r"offsets\[1\] is -1"),
        ((np.array([3, -128], np.int8), TABLE, [0]), {}, BadIdError, r"id -128 at position 1, in bag 0"),
        (([True], TABLE, [0]), {}, DTypeError, r"bool"),
        (([0], TABLE.astype(complex), [0]), {"mode": "sum"}, DTypeError, r"a bag over a table of complex128"),
        (([0], TABLE.astype(">f8"), [0]), {"mode": "sum"}, DTypeError, r"a bag over a table of >f8"),
    ],
)
def test_bad_input(arguments, options, error, match):
    with pytest.raises(error, match=match):
        ab.embedding_bag(*arguments, **options)


@pytest.mark.parametrize("mode", ["sum", "mean", "max", ("sum", "min")])
def test_tables_of_different_dims_go_together(mode):
    """S1.02: each example has a table of its own; nothing is a loop over the examples."""
    random = np.random.default_rng(3)
    tables = [random.standard_normal(shape) for shape in ((4, 3), (5, 2), (3, 3))]
    ids = [np.array([0, 1, 2]), np.array([4, 0]), np.array([2, 2, 1, 0])]
    offsets = [np.array([0, 1]), np.array([0]), np.array([0, 2])]

    def bags(table, ids, offsets):
        return ab.embedding_bag(ids, table, offsets, mode=mode)

    batches = [ab.MaskedBatch.from_examples(part) for part in (tables, ids, offsets)]
    out = ab.examples(ab.batch(bags, strict=True)(*batches))
    for found, *example in zip(out, tables, ids, offsets, strict=True):
        np.testing.assert_allclose(found, bags(*example))
    ab.testing.assert_equivalent(bags, tables, ids, offsets)


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_a_row_for_empty_bags_of_tables_of_different_dims_is_refused_as_example_by_example():
    tables = ab.MaskedBatch.from_examples([np.ones((2, 2)), np.ones((2, 3))])
    ids = ab.MaskedBatch.from_examples([np.array([0]), np.array([1])])
    call = ab.batch(lambda i, t: ab.embedding_bag(i, t, np.array([0, 1]), empty=[7.0, 8.0]))
    with pytest.raises(ValueError, match="empty has shape"):
        call(ids, tables)
