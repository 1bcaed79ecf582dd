"""One number of all examples: NumPy's of their elements, one after the other; and what the padded `.data` says."""

import functools
import warnings

import numpy as np
import pytest

import autobatch as ab
from tests import inspect, law

RNG = np.random.default_rng(0)
SHAPES = {
    "ragged": [(3,), (0,), (5,)],
    "no empty one": [(3,), (1,), (5,)],
    "two ragged": [(2, 3), (1, 4), (3, 1)],
    "static": [(4,), (4,)],
    "scalars": [(), (), ()],
    "one": [(2, 2)],
    "all empty": [(0,), (0,)],
}
DTYPES = [np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_, np.complex64]
FUNCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def poisoned(xs, scale=1):
    """The padded batch of these examples, with the most conspicuous padding that the dtype has."""
    batch = ab.MaskedBatch.from_examples(xs)
    data = np.full(batch.data.shape, 1 if xs[0].dtype.kind in "b" else 77 if xs[0].dtype.kind in "iu" else np.nan)
    data = data.astype(xs[0].dtype)
    inside = np.broadcast_to(batch.mask, data.shape)
    data[inside] = batch.data[inside]
    return ab.MaskedBatch(data, mask=batch.mask, dims=batch.dims)


def layouts(xs):
    yield "masked", poisoned(xs)
    yield "objects", ab.batch(lambda x: x)(poisoned(xs)) if xs[0].ndim else ab.MaskedBatch.from_examples(xs)
    yield "list", list(xs)
    if xs[0].ndim and len({x.shape[1:] for x in xs}) == 1:
        yield "packed", ab.PackedBatch.from_examples(xs)
        yield "nested", ab.PackedBatch.from_lengths(ab.PackedBatch.from_examples(xs), [1, len(xs) - 1])


def outcome(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return function()
        except ValueError:
            return "ValueError"


def same(got, want):
    assert type(got) is type(want)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_each_reduction_is_numpys_of_the_elements(shapes, dtype):
    xs = [(RNG.standard_normal(shape) * 50).astype(dtype) for shape in map(tuple, shapes)]
    xs = [np.asarray(x, dtype) for x in xs]
    elements = np.concatenate([x.ravel() for x in xs])
    for layout, batch in layouts(xs):
        assert ab.count(batch) == elements.size
        for name, numpy in FUNCTIONS.items():
            reduce = functools.partial(getattr(ab, name), batch)
            same(outcome(reduce), outcome(lambda f=numpy: f(elements)))
            if layout == "nested" or dtype is np.float16:  # NumPy rounds in another order along an axis
                continue
            assert ab.count(batch, by="example") == len(xs)
            got = outcome(functools.partial(reduce, by="example"))
            want = outcome(lambda f=numpy: f(np.stack([f(x) for x in xs])))
            assert type(got) is type(want)
            np.testing.assert_allclose(got, want, rtol=1e-5) if not isinstance(want, str) else None


@pytest.mark.parametrize("by", ["element", "example"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("layout", ["masked", "packed", "list"])
def test_gradients_are_those_of_the_loop(layout, name, by):
    xs = [RNG.standard_normal(n) for n in (3, 1, 5)]
    batch = {"masked": poisoned(xs), "packed": ab.PackedBatch.from_examples(xs), "list": xs}[layout]

    def scaled(x, w):
        return x * w + w

    run = ab.batch(scaled) if layout != "list" else lambda xs, w: ab.map(scaled, xs, w=w)
    reduce, numpy = getattr(ab, name), FUNCTIONS[name]

    def plain(w):
        parts = [scaled(x, w) for x in xs]
        return numpy(np.concatenate(parts)) if by == "element" else numpy(np.stack([numpy(x) for x in parts]))

    got, want = (ab.value_and_grad(f)(1.5) for f in (lambda w: reduce(run(batch, w), by=by), plain))
    np.testing.assert_allclose(got, want)


def test_inside_of_a_batched_function_it_is_of_one_example():
    def f(x):
        return ab.mean(x) * ab.count(x) + ab.max(x) - ab.mean([x[0], x[-1]])

    xs = [RNG.standard_normal(n) for n in (3, 1, 5)]
    got = ab.batch(f)(ab.MaskedBatch.from_examples(xs))
    np.testing.assert_allclose(got.data, [f(x) for x in xs])
    np.testing.assert_allclose(ab.map(f, xs), [f(x) for x in xs])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_list_of_no_examples_is_a_batch_of_none(name):
    for by in ("element", "example"):
        got = outcome(functools.partial(getattr(ab, name), [], by=by))
        same(got, outcome(lambda: FUNCTIONS[name](np.zeros(0))))
        same(got, outcome(functools.partial(getattr(ab, name), ab.MaskedBatch(np.zeros((0, 3))), by=by)))


def test_what_is_no_batch_is_refused():
    with pytest.raises(ab.errors.UnsupportedError, match=r"a dict is neither a batch nor a list: write ab\.mean"):
        ab.mean({"loss": ab.MaskedBatch([1.0])})
    with pytest.raises(ab.errors.UnsupportedError, match="by='lane'; expected 'element' or 'example'"):
        ab.mean(ab.MaskedBatch([1.0]), by="lane")


X = ab.MaskedBatch([[1.0, 2.0], [3.0, 77.0]], lengths=[2, 1])
FEATURES = ab.MaskedBatch(np.ones((2, 3, 4)), lengths=[3, 1])
COUNTS_PADDING = {
    "method": lambda x: x.data.mean(),
    "function": lambda x: np.sum(x.data),
    "ufunc": lambda x: np.maximum.reduce(x.data, axis=1),
    "along the ragged axis": lambda x: x.data.max(axis=1),
    "over the examples": lambda x: np.mean(x.data, axis=0),
    "negative axis": lambda x: np.add.reduce(x.data, axis=-x.data.ndim),
    "several": lambda x: x.data.sum(axis=(0, 1)),
    "spread": lambda x: np.std(x.data),
}


@pytest.mark.parametrize("reduce", COUNTS_PADDING.values(), ids=COUNTS_PADDING)
@pytest.mark.parametrize("x", [X, X * 2, ab.batch(lambda x: x + 1)(X), FEATURES], ids=["given", "op", "call", "rank 2"])
def test_a_reduction_of_padded_data_warns_and_is_what_numpy_gives(x, reduce):
    with pytest.warns(UserWarning, match=r"padded \.data of a ragged batch.*write") as caught:
        got = reduce(x)
    assert caught[0].filename == __file__
    same(got, reduce(type("Plain", (), {"data": np.asarray(x.data)})))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "var"])
def test_a_reduction_of_padded_data_that_carries_gradients_warns(name):
    with pytest.warns(UserWarning, match=f"{name} of the padded .data"):
        ab.grad(lambda w: getattr((X * w).data, name)())(2.0)
    with pytest.warns(UserWarning, match=f"{name} of the padded .data"):
        ab.grad(lambda w: getattr(np, name)(ab.batch(lambda x, w: x * w)(X, w).data))(2.0)


def test_padded_data_that_carries_gradients_says_its_shape_and_dtype():
    said = []

    def loss(w):
        data = (X.astype(np.float32) * w).data
        said.append((data.shape, data.ndim, data.size, data.dtype, len(data)))
        return (data * X.mask).sum()

    ab.grad(loss)(np.float32(2.0))
    assert said == [((2, 2), 2, 4, np.float32, 2)]


def test_what_does_not_count_padding_is_silent():
    assert X.data.sum(where=X.mask) == 6.0
    assert (X.data * X.mask).sum() == 6.0
    assert FEATURES.data.mean(axis=-1).shape == (2, 3)
    assert ab.MaskedBatch([[1.0], [2.0]]).data.mean() == 1.5
    assert ab.MaskedBatch([[1.0], [2.0]], lengths=[1, 1]).data.mean() == 1.5  # ragged, and nothing is padding
    assert np.asarray(X.data).max() == 77.0
    assert ab.grad(lambda w: ((X * w).data * X.mask).sum())(2.0) == 6.0
    assert type(X.data + 1) is type(X.data[0]) is type(np.exp(X.data)) is np.ndarray


def test_the_data_is_the_batchs_own_memory():
    x = ab.MaskedBatch([[1.0, 2.0], [3.0, 0.0]], lengths=[2, 1])
    x.data[0, 0] = 9.0
    x.data[1] += 1.0
    assert [part.tolist() for part in x.examples()] == [[9.0, 2.0], [4.0]]
    assert isinstance(x.data, np.ndarray)
    assert (ab.MaskedBatch(x.data, x.lengths) + 1).examples()[1].tolist() == [5.0]


@pytest.mark.parametrize("xs", [[np.arange(3.0), np.arange(5.0)], [np.arange(3.0), np.ones(3)]], ids=["ragged", "even"])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_a_reduction_takes_few_calls(xs, name):
    batch = ab.MaskedBatch.from_examples(xs)
    reduce = getattr(batch, name)
    law.assert_same(reduce().examples(), [getattr(x, name)() for x in xs])
    assert inspect.python_calls(reduce) <= (15 if name == "sum" else 20)
