"""NumPy on batches is NumPy on each example, in every layout and with any padding; the rest is a loop."""

import operator

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch, PackedBatch, options
from autobatch.batches.any_batch import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.stacking import lanes_of
from autobatch.core import current_region
from autobatch.errors import FallbackWarning, NeedsLoop, ShapeError, UnsupportedError
from tests.inspect import Op, forget_warnings
from tests.law import assert_same

W = np.random.default_rng(0).normal(size=(3, 2))
LENGTHS = {"mixed": [4, 0, 2], "one": [3], "equal": [3, 3, 3], "none": [0, 0], "no examples": []}


def arrays(lengths, seed=0, width=3, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.5, 2, size=(n, width)).astype(dtype) for n in lengths]


def masked(examples, padding=np.nan, extra=1, width=3):
    """Padded further than the longest example needs, with poison."""
    longest = max((len(x) for x in examples), default=0) + extra
    data = np.full((len(examples), longest, width), padding)
    for row, x in zip(data, examples, strict=True):
        row[: len(x)] = x
    return MaskedBatch(data, lengths=[len(x) for x in examples])


def packed(examples):
    values = np.concatenate([*examples, np.zeros((0, 3))])
    return PackedBatch.from_lengths(values, [len(x) for x in examples])


FUNCTIONS = {
    "affine": lambda x: x * 2 + 1,
    "ufuncs": lambda x: np.log(x) / np.exp(-x),
    "compare": lambda x: x > 1.0,
    "equal": lambda x: x == x,
    "row vector": lambda x: x - np.array([1.0, 2.0, 3.0]),
    "float32": lambda x: x.astype(np.float32),
    "product": lambda x: x @ W,
    "product with a vector": lambda x: x @ W[:, 0],
    "gram": lambda x: x @ x.T,
    "sum": lambda x: x.sum(axis=0),
    "sum of columns": lambda x: np.sum(x, axis=1),
    "total": lambda x: x.sum(),
    "transpose": lambda x: x.T,
    "column": lambda x: x[:, 1],
    "reversed": lambda x: x[::-1],
    "outer": lambda x: x[:, None] * x[None],
    "where": lambda x: np.where(x > 1, x, 0),
    "count": lambda x: x.shape[0] * x.shape[1] + 1,
    "mean by hand": lambda x: x.sum(axis=0) / max(1, 2 * 3),
    "concatenate": lambda x: np.concatenate([x, x * 2]),
    "stack": lambda x: np.stack([x, x]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(
    "make", [masked, packed, lambda xs: masked(xs, -1e300, 3)], ids=["masked", "packed", "poisoned"]
)
def test_numpy_on_a_batch_is_numpy_on_each_example(name, lengths, make):
    function, examples = FUNCTIONS[name], arrays(lengths)
    got = function(make(examples))
    assert isinstance(got, Batch)
    expected = [function(x) for x in examples]
    assert len(got.examples()) == len(expected)
    for a, b in zip(got.examples(), expected, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=1e-12, strict=True)


ON_PACKED_VALUES = ["affine", "ufuncs", "compare", "equal", "row vector", "product", "product with a vector"]


@pytest.mark.parametrize("name", ON_PACKED_VALUES)
def test_packed_values_stay_packed(name):
    batch = packed(arrays([2, 0, 3]))
    out = FUNCTIONS[name](batch)
    assert isinstance(out, PackedBatch)
    assert out.offsets is batch.offsets


@pytest.mark.parametrize("swap", [False, True])
def test_two_layouts_together(swap):
    examples = arrays([2, 0, 3])
    scale = [np.array([1.0, 2.0, 3.0]), np.zeros(3), np.full(3, -1.0)]
    x, per_example = packed(examples), MaskedBatch(np.stack(scale))
    got = per_example * x if swap else x * per_example
    assert isinstance(got, PackedBatch)
    for a, e, s in zip(got.examples(), examples, scale, strict=True):
        np.testing.assert_array_equal(a, e * s)
    got = masked(examples) + x if swap else x + masked(examples)
    for a, e in zip(got.examples(), examples, strict=True):
        np.testing.assert_array_equal(a, e + e)
    got = x * MaskedBatch(np.array([2.0, 3.0, 4.0])) + x
    for a, e, s in zip(got.examples(), examples, [2.0, 3.0, 4.0], strict=True):
        np.testing.assert_array_equal(a, e * s + e)


def test_packed_batches_of_other_lengths_broadcast_as_their_examples_do():
    x, y = packed(arrays([2, 3])), packed(arrays([1, 3], seed=1))
    for a, e, f in zip((x + y).examples(), x.examples(), y.examples(), strict=True):
        np.testing.assert_array_equal(a, e + f)
    with pytest.raises(ShapeError, match="lengths 2 and 3 in example 0"):
        x + packed(arrays([3, 3]))


def test_batches_of_other_sizes_are_refused():
    for a, b in [(masked, masked), (packed, packed), (masked, packed), (packed, masked)]:
        with pytest.raises(ShapeError, match="batches of 1 and 2 examples were used together"):
            a(arrays([2])) + b(arrays([2, 2]))
    with pytest.raises(ShapeError, match="batches of 2 and 1 examples"):
        MaskedBatch([1.0, 2.0]) + ObjectBatch([1])


def no_rule():
    return Op("double", lambda x, y: 2 * x + y)


@pytest.mark.parametrize("make", [masked, packed])
def test_an_op_without_a_rule_is_a_loop_that_warns_once(make):
    op, examples = no_rule(), arrays([2, 0, 1])
    forget_warnings()

    def run():
        return op(make(examples), 1.0)

    with pytest.warns(FallbackWarning, match="double has no batching rule; it runs as a loop over the examples"):
        got = run()
    run()
    for a, e in zip(got.examples(), examples, strict=True):
        np.testing.assert_array_equal(a, 2 * e + 1)
    with options(strict=True), pytest.raises(UnsupportedError, match="strict=True allows no loop"):
        run()


@pytest.mark.parametrize("make", [masked, packed])
def test_a_function_without_a_rule_is_a_loop(make):
    examples = [x.T @ x + np.eye(3) for x in arrays([2, 1])]
    with options(warn=False):
        got = make(arrays([2, 1]))._ab_unsupported(np.linalg.cond, (make(examples),), {}, "no rule")
    np.testing.assert_array_equal(got.examples(), [np.linalg.cond(x) for x in examples])


def test_an_error_in_the_loop_names_its_example():
    def fail(x):
        if x.shape[0] == 0:
            raise ValueError("empty")
        return x

    with options(warn=False), pytest.raises(ValueError, match="empty") as caught:
        Op("fail", fail)(masked(arrays([1, 0, 0])))
    assert caught.value.__notes__ == ["raised for example 1"]


def test_results_of_the_loop_that_differ_in_rank_are_objects():
    with options(warn=False):
        got = Op("odd", lambda x: x if len(x) > 1 else x.sum())(masked(arrays([1, 2])))
    assert isinstance(got, ObjectBatch)
    assert [np.ndim(x) for x in got.examples()] == [0, 2]


@pytest.mark.parametrize("make", [masked, packed])
def test_writes_are_those_of_each_example(make):
    examples = arrays([2, 1])
    batch = make(examples)
    view = batch[0]
    batch[0] = 7.0
    batch *= 2
    for x in examples:
        x[0] = 7.0
        x *= 2
    for a, e in zip(batch.examples(), examples, strict=True):
        np.testing.assert_array_equal(a, e)
    for a, e in zip(view.examples(), examples, strict=True):
        np.testing.assert_array_equal(a, e[0])


def test_items_as_python_scalars():
    batch = MaskedBatch(np.array([1.5, 2.5], np.float32))
    assert batch.item().examples() == [1.5, 2.5]
    assert batch.item().scalar is float
    assert lanes_of(masked(arrays([1, 1])).tolist(), 2) == [x.tolist() for x in arrays([1, 1])]
    assert lanes_of(PackedBatch([1, 2, 3], [0, 1, 3]).tolist(), 2) == [[1], [2, 3]]


class Half:
    """A region of the first two lanes."""

    def narrow(self, batch):
        return batch._prefix(2, {})


def test_operands_are_narrowed_to_the_region():
    examples = arrays([2, 0, 1])
    for make in (masked, packed):
        batch = make(examples)
        other = MaskedBatch(np.array([1.0, 2.0, 3.0]))
        objects = ObjectBatch(["a", "b", "c"])
        count = batch.shape[0]
        with current_region.region(Half()):
            got = batch + other
            assert got.batch_size == 2
            assert (got + batch).batch_size == 2
            assert batch.shape[0].batch_size == 3
            assert (count + 1).examples() == [3, 1]
            assert objects.upper().examples() == ["A", "B"]
            with options(warn=False):
                assert no_rule()(batch, 1.0).batch_size == 2
        for a, e, s in zip(got.examples(), examples, [1.0, 2.0], strict=False):
            np.testing.assert_array_equal(a, e + s)


def test_a_write_for_some_of_the_lanes_asks_for_the_loop():
    batch = masked(arrays([2, 1, 3]))
    with current_region.region(Half()), pytest.raises(UnsupportedError, match="written for some of them"):
        batch[0] = 1.0
    np.testing.assert_array_equal(batch.examples()[0], arrays([2, 1, 3])[0])


@pytest.mark.parametrize(
    ("use", "batch", "outside", "inside"),
    [
        (
            bool,
            MaskedBatch([0.0, 1.0]),
            r"decorated with ab\.batch, bool\(\) is one",
            r"^bool\(\) of a value that differs by",
        ),
        (
            bool,
            ObjectBatch(["", "a"]),
            r"decorated with ab\.batch, bool\(\) is one",
            r"^bool\(\) of a value that differs by",
        ),
        (
            iter,
            masked(arrays([2, 1])),
            r"decorate the function .* with @ab\.batch",
            "^iteration over .* differs by example$",
        ),
        (
            iter,
            packed(arrays([2, 1])),
            r"decorate the function .* with @ab\.batch",
            "^iteration over .* differs by example$",
        ),
        (
            iter,
            ObjectBatch(["", "a"]),
            r"decorate the function .* with @ab\.batch",
            "^iteration over .* differ by example$",
        ),
        (
            np.asarray,
            masked(arrays([2, 1])),
            r"\.examples\(\) lists arrays",
            r"write np\.stack\(\[\.\.\.\]",
        ),
        (np.asarray, ObjectBatch(["", "a"]), r"\.examples\(\) gives the object", "plain array .* differ by example$"),
        (len, packed(arrays([2, 1])), r"write \.batch_size", "differs by example$"),
        (len, ObjectBatch(["", "a"]), r"write \.batch_size", "differ by example$"),
    ],
)
def test_what_one_value_cannot_say_is_an_error_with_advice_and_in_lock_step_asks_for_the_loop(
    use, batch, outside, inside
):
    with pytest.raises(UnsupportedError, match=outside):
        use(batch)
    with current_region.region(Half()), pytest.raises(NeedsLoop, match=inside):
        use(batch)


SAME = {
    "int": lambda: ab.collate([1, 1]),
    "one example": lambda: ab.collate([1]),
    "NumPy's int": lambda: MaskedBatch(np.array([1, 1])),
    "vector": lambda: MaskedBatch([[1], [1]]),
    "ragged": lambda: MaskedBatch([[1], [1]], lengths=[1, 1]),
    "packed": lambda: PackedBatch.from_examples([[1], [1]]),
    "objects": lambda: ObjectBatch([[1], [1]]),
    "numbers": lambda: MaskedBatch.from_examples([1, 1.0]),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
@pytest.mark.parametrize("convert", [bool, int, float, complex, operator.index, lambda x: 1 in x, list, len, sorted])
def test_a_batch_is_no_one_value_even_if_its_examples_agree(make, convert):
    batch = make()
    before = repr(batch)
    with pytest.raises(UnsupportedError, match=r"\.examples\(\)|\.batch_size"):
        convert(batch)
    assert repr(batch) == before
    assert (batch == batch).examples()


def test_in_converted_code_examples_that_agree_are_one_value():
    @ab.batch(strict=True)
    def f(x):
        n = len(x)
        return [bool(n), int(x[0]), float(n), complex(n), "abcd"[n], 1 in x, [v + 1 for v in x]]

    for xs in ([np.array([1, 2])] * 2, [np.array([1, 2]), np.array([3])]):
        assert_same(ab.examples(f(MaskedBatch.from_examples(xs))), [f(x) for x in xs])


def test_items_of_a_batch_outside_are_those_of_each_example():
    for make in (MaskedBatch, PackedBatch):
        batch = make.from_examples([np.array([1, 2, 3]), np.array([4, 5])])
        assert_same(batch[0].examples(), [np.int64(1), np.int64(4)])
        assert_same(batch[-1].examples(), [np.int64(3), np.int64(5)])
        assert_same(batch[1:].examples(), [np.array([2, 3]), np.array([5])])
        with pytest.raises(IndexError, match="in example 1"):
            batch[2]
        batch[0] = 7
        batch[1:] = -1
        assert_same(batch.examples(), [np.array([7, -1, -1]), np.array([7, -1])])
