"""Trees with batches in them: `examples` and `stack_results` are inverse, and lanes are taken without a trace."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from autobatch import MaskedBatch, PackedBatch, batch, examples, grad, options
from autobatch.batches.any_batch import batch_size_of, is_batched, lane
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.result_form import batched, normalised
from autobatch.batches.stacking import broadcast, lanes_of, prefix_lanes, stack_results, take_lanes
from autobatch.core.pytree import map_tree
from autobatch.errors import ShapeError, UnsupportedError
from tests.inspect import Tape

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass
class Model:
    weights: object
    name: object


def alike(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(map(repr, a)) == list(map(repr, b))  # 1 equals True
        for key in a:
            alike(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            alike(x, y)
    elif dataclasses.is_dataclass(a):
        alike(vars(a), vars(b))
    elif isinstance(a, np.ndarray | np.generic):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, strict=True)
    else:
        assert a == b


RESULTS = [
    [np.arange(3), np.arange(1)],
    [np.float32(1), np.float32(2)],
    [1, 2, 3],
    [1.5, 2.5],
    [True, False],
    [1, 2.0],
    [1, True],
    [2**70, 1],
    [1 + 2j, 0j],
    [(1, np.ones(2)), (2, np.ones(3))],
    [{"a": 1, "b": [np.zeros((0, 2))]}, {"a": 2, "b": [np.ones((1, 2))]}],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    [{1: 2}, {1.0: 2}, {True: 2}],
    [{(0.0, "a"): 1}, {(-0.0, "a"): 1}],
    [Pair(1, "u"), Pair(2, "v")],
    [Model(np.ones(2), "m"), Model(np.zeros(2), "m")],
    [[1], [1, 2]],
    [None, 3],
    ["a", "b"],
    [np.ones(2), np.ones((2, 2))],
    [np.ones(2, np.float32), np.ones(2)],
    [np.ones(2), 1.0],
    [np.array(["a", "bc"]), np.array(["d"])],
    [np.array([1, None], object), np.array([2, 3], object)],
    [(), ()],
]


@pytest.mark.parametrize("results", RESULTS)
def test_stacked_results_come_apart_again(results):
    tree = stack_results(results)
    got = lanes_of(tree, len(results))
    assert len(got) == len(results)
    for a, b in zip(got, results, strict=True):
        alike(a, b)


def test_what_stacks_to_what():
    assert isinstance(stack_results([np.ones(2), np.ones(3)]), MaskedBatch)
    assert stack_results([1, 2]).scalar is int
    assert stack_results([1.0, 2.0]).scalar is float
    assert stack_results([True, False]).scalar is bool
    assert isinstance(stack_results([1, 2.0]), ObjectBatch)
    assert isinstance(stack_results([2**70, 1]), ObjectBatch)
    assert isinstance(stack_results([[1], [1, 2]]), ObjectBatch)
    assert isinstance(stack_results([]), ObjectBatch)
    state, history = stack_results([(np.ones(2), [1]), (np.ones(2), [1, 2])])
    assert isinstance(state, MaskedBatch)
    assert isinstance(history, ObjectBatch)
    shared = object()
    assert stack_results([shared, shared]) is shared
    assert stack_results([None, None]) is None
    assert stack_results([("a", 1), ("a", 2)])[0] == "a"
    assert type(stack_results(["".join("ab"), "".join("ab")])) is str  # equal, and not one object


def parts_of(batch):
    """What a batch is, padding included."""
    if isinstance(batch, PackedBatch):
        return "packed", batch.values, batch.offsets
    return "masked", batch.unguarded(), batch.dims, batch.lengths


SIZES = {  # of a dimension of a result, from the lengths of two arguments
    "n": lambda n, m: n,
    "m": lambda n, m: m,
    "at most two": lambda n, m: min(n, 2),
    "at least two": lambda n, m: max(n, 2),
    "both": lambda n, m: n + m,
    "one": lambda n, m: 1,
    "three": lambda n, m: 3,
}


@pytest.mark.parametrize("form", ["packed", "masked", "both", "masked first"])
@pytest.mark.parametrize("lengths", [(3, 2, 5, 1), (2, 2, 2), (0, 3, 1), (1,), (0, 0), (3, 3)])
def test_a_result_of_any_dimensions_has_the_shape_that_the_loop_gives(lengths, form):
    xs, ys = [np.arange(n) for n in lengths], [np.arange(n) for n in reversed(lengths)]
    first = MaskedBatch if form.startswith("masked") else PackedBatch
    second = PackedBatch if form in ("packed", "masked first") else MaskedBatch
    batches = [first.from_examples(xs), second.from_examples(ys)]
    for rank, step in ((1, 1), (2, 1), (3, 19)):
        for sizes in itertools.islice(itertools.product(SIZES.values(), repeat=rank), 0, None, step):

            def made(x, y):
                shape = [size(len(x), len(y)) for size in sizes]  # noqa: B023
                return np.arange(np.prod(shape)).reshape(shape) + 7

            results = [made(*row) for row in zip(xs, ys, strict=True)]
            for given in (batches, batches[:1]):
                formed = normalised(stack_results(results), len(xs), given)
                for a, b in zip(examples(formed), results, strict=True):
                    alike(a, b)
                alike(parts_of(batched(results, given)), parts_of(formed))  # the short way


def test_examples_of_a_tree():
    tree = {
        "m": MaskedBatch.from_examples([[1, 2], [3]]),
        "p": (PackedBatch([5, 6], [0, 0, 2]), "shared"),
        "o": ObjectBatch(["x", None]),
    }
    first, second = examples(tree)
    alike(first, {"m": np.array([1, 2]), "p": (np.array([], np.int64), "shared"), "o": "x"})
    alike(second, {"m": np.array([3]), "p": (np.array([5, 6]), "shared"), "o": None})
    alike(lane(tree, 1), second)
    assert batch_size_of(tree) == 2
    assert examples(MaskedBatch(np.zeros((0, 2)))) == []


def test_examples_needs_a_batch_and_one_size():
    with pytest.raises(UnsupportedError, match=r"no batch in \{'a': 1\}"):
        examples({"a": 1})
    with pytest.raises(ShapeError, match="batches of 1 and 2 examples"):
        examples((MaskedBatch([1]), MaskedBatch([1, 2])))
    assert lanes_of({"a": 1}, 2) == [{"a": 1}, {"a": 1}]
    assert lanes_of("a", 2) == ["a", "a"]
    assert batch_size_of((1, [2])) is None


def test_a_lane_of_a_slice_and_of_an_ordinary_value():
    n = stack_results([1, 2])
    assert lane(slice(None, n), 1) == slice(None, 2)
    assert lane([n, {"k": n}], 0) == [1, {"k": 1}]
    assert lane("s", 0) == "s"
    assert is_batched(n)
    assert not is_batched(np.ones(2))


BATCHES = {
    "ragged": MaskedBatch(
        np.array([[1.0, 2, 3], [4, np.nan, np.nan], [np.nan] * 3, [7, 8, np.nan]]), lengths=[3, 1, 0, 2]
    ),
    "both": MaskedBatch(np.arange(36).reshape(4, 3, 3), lengths=[[1, 2], [3, 0], [2, 2], [0, 1]]),
    "static": MaskedBatch(np.arange(8).reshape(4, 2)),
    "weak": stack_results([4, 3, 2, 1]),
    "packed": PackedBatch([1, 2, 3, 4], [0, 0, 3, 3, 4]),
    "nested": PackedBatch(PackedBatch([1, 2, 3, 4], [0, 1, 3, 3, 4]), [0, 2, 2, 3, 4]),
    "objects": ObjectBatch(["a", [1], None, 2]),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("index", [[2, 0], [3, 3, 1], [], [0, 1, 2, 3]])
def test_taken_lanes(batch, index):
    taken = take_lanes(batch, np.array(index, np.int64))
    alike(taken.examples(), [batch.examples()[i] for i in index])
    assert taken.batch_size == len(index)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_a_prefix_of_the_lanes(batch, count):
    alike(prefix_lanes(batch, count).examples(), batch.examples()[:count])


def test_narrowing_shares_lengths_and_views_prefixes():
    x = BATCHES["ragged"]
    y = x + 1
    memo = {}
    assert take_lanes(x, [1, 3], memo).sizes[0] is take_lanes(y, [1, 3], memo).sizes[0]
    assert take_lanes(x, [1, 3]).data.shape == (2, 2)
    assert np.shares_memory(prefix_lanes(x, 2).data, x.data)


def test_broadcast_repeats_a_shared_value():
    tree = broadcast({"n": 3, "f": 0.5, "w": np.arange(2), "s": "a", "big": 2**80}, 3)
    alike(examples(tree), [{"n": 3, "f": 0.5, "w": np.arange(2), "s": "a", "big": 2**80}] * 3)
    x = MaskedBatch([1, 2])
    assert broadcast(x, 2) is x


@pytest.mark.parametrize("lengths", [(3, 1, 0), (2, 2, 2), (0, 0, 0), (1,)])
def test_gradients_reach_the_examples_that_were_stacked(lengths):
    tape = Tape()
    leaves = [tape.leaf(np.arange(float(n))) for n in lengths]
    batch = MaskedBatch.from_examples(leaves)
    out = [x * x for x in batch.examples()]
    assert [x.shape for x in out] == [(n,) for n in lengths]
    loss = sum(np.sum(x) for x in out)
    for ct, n in zip(tape.backward([loss], [np.float64(1)], [leaf._ab_index for leaf in leaves]), lengths, strict=True):
        np.testing.assert_array_equal(np.zeros(n) if ct is None else ct, 2 * np.arange(float(n)))


def test_gradients_reach_examples_that_vary_in_several_dimensions():
    tape = Tape()
    leaves = [tape.leaf(np.full(shape, 3.0)) for shape in [(2, 1), (1, 3)]]
    batch = stack_results(leaves)
    loss = sum(np.sum(x * x) for x in examples(batch))
    for ct, leaf in zip(
        tape.backward([loss], [np.float64(1)], [leaf._ab_index for leaf in leaves]), leaves, strict=True
    ):
        np.testing.assert_array_equal(ct, np.full(leaf.shape, 6.0))


def test_gradients_reach_examples_that_are_python_numbers():
    def halved(x):
        return float(x.sum()) * 0.5, float(x[0])

    def total(values, lengths):
        with options(way="lockstep"):
            pairs = examples(batch(halved)(MaskedBatch(values, lengths=lengths)))
        return sum(half * first for half, first in pairs)

    slope = grad(total)(np.array([[1.0, 2.0], [3.0, np.nan]]), lengths=[2, 1])
    np.testing.assert_array_equal(slope, [[2.0, 0.5], [3.0, 0.0]])


def test_a_cotangent_at_the_padding_reaches_no_example():
    for shapes in [[(3,), (1,), (0,)], [(2, 1), (1, 3)]]:
        tape = Tape()
        leaves = [tape.leaf(np.full(shape, 3.0)) for shape in shapes]
        data = MaskedBatch.from_examples(leaves).data
        poison = np.where(MaskedBatch.from_examples([np.ones(shape) for shape in shapes]).mask, 1.0, 1e9)
        for ct, shape in zip(tape.backward([data], [poison], [leaf._ab_index for leaf in leaves]), shapes, strict=True):
            np.testing.assert_array_equal(np.zeros(shape) if ct is None else ct, np.ones(shape))


def test_dicts_of_other_kinds_keep_what_they_are():
    lists = collections.defaultdict(list, a=[1])
    again = map_tree(lambda leaf: leaf + 1, lists)
    assert (type(again), again, again["b"]) == (collections.defaultdict, {"a": [2], "b": []}, [])
    counts = collections.Counter("aab")
    assert map_tree(lambda leaf: leaf, counts) == counts
    assert stack_results([counts, counts]).keys() == counts.keys()


def test_arrays_of_no_dimensions_stay_arrays():
    arrays = [np.array(1.0), np.array(2.0)]
    assert all(isinstance(x, np.ndarray) for x in stack_results(arrays).examples())
    assert not any(isinstance(x, np.ndarray) for x in stack_results([x[()] for x in arrays]).examples())
