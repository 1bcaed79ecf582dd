"""Segment functions, scatters and conversions in code that runs batched: lock-step and on the fly equal the loop."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError, ShapeError
from tests import inspect
from tests.law import equals_loop
from tests.tables.test_segment_family import MODES, SMOOTH, call

RANDOM = np.random.default_rng(9)
LENGTHS = [np.array(x, np.int64) for x in ([2, 0, 1], [1, 1], [3, 2, 1, 0], [0], [4])]
SIZES = [int(x.sum()) for x in LENGTHS]
ROWS = [RANDOM.standard_normal((n, 3)) for n in SIZES]
WEIGHTS = [RANDOM.random(n) + 0.5 for n in SIZES]
SEGMENTS = [RANDOM.permutation(np.repeat(np.arange(len(x)), x)) for x in LENGTHS]
IDS = [RANDOM.integers(0, 6, n) for n in SIZES]
COUNTS = [len(x) for x in LENGTHS]


def table():
    return ab.EmbeddingTable(np.random.default_rng(1).standard_normal((6, 3)))


@pytest.mark.parametrize("mode", MODES)
def test_a_count_of_segments_for_each_example(mode):
    def counted(rows, segment_ids, count):
        return values(call(mode, rows, segment_ids, num_segments=count))

    equals_loop(counted, ROWS, SEGMENTS, COUNTS)


def values(found):
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("forms", ["in turn", pytest.param("each", marks=pytest.mark.slow)])
def test_s3_12_the_law_for_each_function(forms):
    """Each in one form, every second one fused with a look-up; or each in each form."""
    for number, mode in enumerate(MODES):
        smooth = mode in SMOOTH and mode != "std"  # whose root has no derivative at one row

        def by_ids(rows, segment_ids, mode=mode):
            return values(call(mode, rows, segment_ids, num_segments=4))

        def by_lengths(rows, lengths, mode=mode):
            return values(call(mode, rows, lengths=lengths))

        def greatest_id(rows, segment_ids, mode=mode):
            return values(call(mode, rows, segment_ids))

        def fused(ids, weights, segment_ids, table, mode=mode):
            return values(call(mode, table, segment_ids, ids=ids, weights=weights, num_segments=4))

        alone = [(by_ids, SEGMENTS), (by_lengths, LENGTHS), (greatest_id, SEGMENTS)]
        if forms == "in turn":
            alone = [alone[number // 2 % 3]] if number % 2 else []
        for function, described in alone:
            ab.testing.assert_equivalent(function, ROWS, described, grad=smooth)
        if not alone or forms == "each":
            ab.testing.assert_equivalent(fused, IDS, WEIGHTS, SEGMENTS, grad=smooth, table=table())


def programs():
    def offsets(rows, lengths):
        return ab.segment_mean(rows, offsets=ab.lengths_to_offsets(lengths))

    def ids_of_lengths(rows, lengths):
        return ab.segment_max(rows, ab.lengths_to_segment_ids(lengths), num_segments=lengths.shape[0])

    def attention(rows, lengths, weights):
        return ab.segment_sum(rows, lengths=lengths, weights=ab.segment_softmax(weights, lengths=lengths))

    def own_table(rows, ids):
        return ab.segment_sum(rows[:, :2], lengths=[len(ids)], ids=np.minimum(ids, 0)) if len(rows) else rows[:0, :2]

    def shared_rows(segment_ids):
        padded = np.concatenate([segment_ids, np.zeros(12, np.int64)])[:12]
        return ab.segment_sum(np.arange(24.0).reshape(12, 2), padded, num_segments=4)

    def lists(rows):
        return ab.segment_sum(np.stack([rows.sum(0), rows.sum(0) * 2, rows.sum(0)]), [0, 1, 0])

    def assigned(rows, segment_ids):
        return ab.scatter_assign(np.ones((5, 3)), segment_ids, rows)

    def added(rows, segment_ids):
        return ab.scatter_add(np.ones((5, 3)), segment_ids, rows)

    def into_own(rows, weights):
        ids = np.arange(rows.shape[0])
        return ab.scatter_add(rows, ids, rows * weights[:, None])

    def weighted(rows, segment_ids):
        return ab.scatter_weighted_sum(np.ones((5, 3)), 0.5, segment_ids, rows, 2.0, rows * rows, -1.0)

    def gathered(rows, segment_ids):
        return ab.gather(ab.segment_sum(rows, segment_ids, num_segments=4), segment_ids)

    return [
        (offsets, (ROWS, LENGTHS)),
        (ids_of_lengths, (ROWS, LENGTHS)),
        (attention, (ROWS, LENGTHS, WEIGHTS)),
        (own_table, (ROWS, IDS)),
        (shared_rows, (SEGMENTS,)),
        (lists, (ROWS,)),
        (assigned, (ROWS, SEGMENTS)),
        (added, (ROWS, SEGMENTS)),
        (into_own, (ROWS, WEIGHTS)),
        (weighted, (ROWS, SEGMENTS)),
        (gathered, (ROWS, SEGMENTS)),
    ]


@pytest.mark.parametrize(("program", "examples"), programs(), ids=lambda x: getattr(x, "__name__", ""))
def test_programs(program, examples):
    ab.testing.assert_equivalent(program, *examples)


@pytest.mark.parametrize("batch_size", [0, 1, 3])
def test_batches_of_any_size_and_uniform_ones(batch_size):
    rows = [RANDOM.standard_normal((3, 2)) for _ in range(batch_size)]
    segment_ids = [RANDOM.integers(0, 3, 3) for _ in range(batch_size)]

    def f(rows, segment_ids):
        return ab.segment_mean(rows, segment_ids, num_segments=3), ab.segment_cumsum(rows, segment_ids)

    data = np.array(rows).reshape(batch_size, 3, 2)
    ids = np.array(segment_ids, np.int64).reshape(batch_size, 3)
    found = ab.examples(ab.batch(f)(ab.MaskedBatch(data), ab.MaskedBatch(ids)))
    assert len(found) == batch_size
    for out, one, of in zip(found, rows, segment_ids, strict=True):
        for left, right in zip(out, f(one, of), strict=True):
            np.testing.assert_array_equal(left, right)


def test_rows_whose_trailing_dimension_varies():
    rows = [RANDOM.standard_normal(shape) for shape in [(3, 1), (1, 2), (0, 1)]]
    weights = [RANDOM.random(len(x)) + 0.5 for x in rows]

    def f(rows, weights):
        return ab.segment_sum(rows, np.zeros_like(weights).astype(np.int64), num_segments=2, weights=weights)

    ab.testing.assert_equivalent(f, rows, weights)


def names_of(run):
    with inspect.op_calls() as calls:
        run()
    return [call.op for call in calls]


def test_one_launch_for_all_examples():
    def f(rows, segment_ids):
        return ab.segment_logsumexp(rows, segment_ids, num_segments=4)

    masked = [ab.MaskedBatch.from_examples(x) for x in (ROWS, SEGMENTS)]
    with ab.options(strict=True):
        names = names_of(lambda: ab.batch(f)(*masked))
        assert names.count("segment") == 2  # the call, and the launch that it becomes
        names = names_of(lambda: ab.map(f, ROWS, SEGMENTS))
        assert names.count("segment") == len(ROWS) + 1


@pytest.mark.parametrize("form", ["masked", "packed", "map"])
def test_the_error_is_that_of_the_first_failing_example(form):
    def run(f, *examples):
        if form == "map":
            return ab.map(f, *examples)
        build = ab.MaskedBatch if form == "masked" else ab.PackedBatch
        return ab.batch(f)(*(build.from_examples(x) for x in examples))

    cases = [
        (lambda x, s: ab.segment_sum(x, s, num_segments=2), (ROWS[1:], SEGMENTS[1:]), BadIdError, "outside 2 seg", 1),
        (lambda x, s: ab.segment_sum(x, lengths=s), (ROWS, SEGMENTS), ShapeError, "lengths add up to 2", 0),
        (lambda x, w: ab.segment_sum(x, lengths=[2], weights=w), (ROWS, WEIGHTS), ShapeError, "add up to 2", 0),
        (lambda x, s: ab.segment_max(x, s, sorted=True), (ROWS[2:], [np.array([1, 0, 1, 1, 1, 1]), *SEGMENTS[3:]]),
         BadIdError, "segment_ids fall, from 1 to 0 at position 1", 0),
        (lambda i, s: ab.segment_sum(np.ones((4, 2)), s, ids=i), ([IDS[0] * 0, IDS[1] * 0 + 5], SEGMENTS[:2]),
         BadIdError, "id 5 at position 0 is outside a table of 4 rows", 1),
        (lambda x, s: ab.scatter_add(np.ones((2, 3)), s, x), (ROWS, SEGMENTS), BadIdError, "outside a table of 2", 0),
    ]  # fmt: skip
    for f, examples, error, match, index in cases:
        with pytest.raises(error, match=match) as alone:
            f(*(x[index] for x in examples))
        with pytest.raises(error, match=match) as caught:
            run(f, *examples)
        assert str(caught.value) == str(alone.value)
        assert f"raised for example {index}" in caught.value.__notes__


def test_gradients_on_the_fly_of_each_example():
    def slope(rows, lengths):
        return ab.grad(lambda x: (ab.segment_softmax(x, lengths=lengths) ** 2).sum())(rows)

    for found, rows, lengths in zip(ab.map(slope, ROWS, LENGTHS), ROWS, LENGTHS, strict=True):
        np.testing.assert_allclose(found, slope(rows, lengths), atol=1e-12)


def test_a_table_that_a_batch_reads_gets_sparse_rows():
    def loss(table):
        out = ab.batch(lambda ids, of, table: ab.segment_sum(table, of, ids=ids, num_segments=4))(
            ab.MaskedBatch.from_examples(IDS), ab.MaskedBatch.from_examples(SEGMENTS), table
        )
        return (out.data**2).sum()

    found = ab.grad(loss)(table())
    assert isinstance(found, ab.SparseRows)
    assert len(found.ids) == sum(SIZES)

    def alone(table):
        return sum(
            (ab.segment_sum(table, of, ids=i, num_segments=4) ** 2).sum() for i, of in zip(IDS, SEGMENTS, strict=True)
        )

    np.testing.assert_allclose(found.to_dense(), ab.grad(alone)(table()).to_dense(), atol=1e-12)
