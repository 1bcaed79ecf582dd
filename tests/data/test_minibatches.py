"""`ab.minibatches`: which examples, in which order, of which lengths; and that the batches hold them."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import OptionError
from tests.law import assert_same

LENGTHS = np.random.default_rng(0).integers(0, 30, 103)
DATA = [np.full(n, i) for i, n in enumerate(LENGTHS)]


@pytest.mark.parametrize("bucket", [None, 1, 3, 100])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("count", "size"), [(103, 10), (100, 10), (3, 10), (0, 10), (5, 1)])
def test_every_example_once(count, size, shuffle, drop_last, bucket):
    data = {"x": ab.PackedBatch(np.arange(count), np.arange(count + 1)), "y": ab.collate(np.arange(count))}
    found = ab.minibatches(data, size, shuffle=shuffle, seed=1, bucket=bucket, drop_last=drop_last)
    batches = list(found)
    assert len(found) == len(batches) == (count // size if drop_last else -(-count // size))
    for batch, ids in zip(batches, found.ids, strict=True):
        assert_same(batch["x"].values, ids)
        assert_same(batch["y"].data, ids)
    sizes = [len(ids) for ids in found.ids]
    assert sorted(sizes, reverse=True) == [size] * (count // size) + (
        [] if drop_last or not count % size else [count % size]
    )
    numbers = np.concatenate([*found.ids, np.zeros(0, int)])
    assert len(set(numbers)) == len(numbers) == (count - count % size if drop_last else count)


def test_a_slice_is_a_part():
    found = ab.minibatches(DATA, 10, shuffle=True)
    part = found[2:5]
    assert_same(part.ids, found.ids[2:5])
    assert_same([batch.examples() for batch in part], [found[i].examples() for i in (2, 3, 4)])


def test_without_shuffling_the_order_is_that_of_the_data():
    assert_same(np.concatenate(ab.minibatches(DATA, 10).ids), np.arange(103))


def test_a_seed_is_an_order():
    def order(seed, **options):
        return np.concatenate(ab.minibatches(DATA, 10, shuffle=True, seed=seed, **options).ids).tolist()

    for options in ({}, {"bucket": 4}):
        assert order(1, **options) == order(1, **options)
        assert order(1, **options) != order(2, **options)
        assert order((1, 0), **options) != order((1, 1), **options)
    again = ab.minibatches(DATA, 10, shuffle=True)
    assert_same([b.values for b in again], [b.values for b in again])


def test_the_order_is_numpys_permutation():
    found = np.concatenate(ab.minibatches(DATA, 10, shuffle=True, seed=5).ids)
    assert_same(found, np.random.default_rng(5).permutation(103))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_pools_are_sorted_by_length(shuffle, drop_last):
    size, bucket = 4, 5
    found = ab.minibatches(DATA, size, shuffle=shuffle, seed=3, bucket=bucket, drop_last=drop_last)
    order = np.random.default_rng(3).permutation(103) if shuffle else np.arange(103)
    order = order[:100] if drop_last else order
    at = 0
    for pool in (order[start : start + size * bucket] for start in range(0, len(order), size * bucket)):
        parts = found.ids[at : at + -(-len(pool) // size)]
        at += len(parts)
        assert sorted(np.concatenate(parts)) == sorted(pool)
        by_length = sorted(pool, key=lambda i: LENGTHS[i])  # stable, as the order of the pool was
        expected = [by_length[start : start + size] for start in range(0, len(by_length), size)]
        found_lists = [ids.tolist() for ids in parts]
        assert found_lists == expected if not shuffle else sorted(found_lists) == sorted(map(list, expected))
    assert at == len(found)


def test_mini_batches_of_a_pool_come_in_a_drawn_order():
    longest = [LENGTHS[ids].max() for ids in ab.minibatches(DATA, 4, shuffle=True, bucket=100).ids]
    assert longest != sorted(longest)


def test_the_length_of_a_tree_is_that_of_its_longest_part():
    nested = [[[1] * n, [1]] for n in (5, 1, 3)]
    for data, expected in (
        ({"a": [[1], [1, 2], []], "b": [[], [1], [1, 2, 3]]}, [0, 1, 2]),
        ({"a": ab.MaskedBatch.from_examples([[1, 2], [1], []])}, [2, 1, 0]),
        (nested, [1, 2, 0]),
        ({"a": np.zeros((3, 4))}, [0, 1, 2]),
    ):
        assert np.concatenate(ab.minibatches(data, 1, bucket=10).ids).tolist() == expected


def test_padding_is_less_where_lengths_are_alike():
    def padded(**options):
        return sum(b.to_masked().data.size for b in ab.minibatches(DATA, 8, shuffle=True, **options))

    assert padded(bucket=50) < 0.7 * padded()


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 2.0}, {"size": True}, {"size": 2, "bucket": 0}])
def test_sizes_are_positive_integers(options):
    with pytest.raises(OptionError, match=r"expected (a whole number, )?at least 1"):
        ab.minibatches(DATA, **options)


def test_training_on_mini_batches_equals_the_loop():
    rng = np.random.default_rng(0)
    xs, w = [rng.normal(size=(n, 3)) for n in (2, 4, 1, 3, 3)], rng.normal(size=3)
    score = ab.batch(lambda x, w: np.tanh(x @ w).sum())
    for batch in ab.minibatches(xs, 2, shuffle=True, bucket=2):
        loop = sum(ab.grad(lambda w, x=x: score.__wrapped__(x, w))(w) for x in batch.examples())
        assert_same(ab.grad(lambda w, b=batch: ab.sum(score(b, w)))(w), loop)
