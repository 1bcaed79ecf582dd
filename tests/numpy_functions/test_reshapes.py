"""Reshapes of ragged examples: each size static, ragged, inferred or computed from the example; and those that fail."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import check, equals_loop, padded, ragged
from tests.numpy_functions.cases import BOTH, COLUMNS, ROWS, STATIC, VECTORS, WITH_EMPTY

ANY = {
    "flat": lambda x: x.reshape(-1),
    "a row": lambda x: x.reshape(1, -1),
    "a column": lambda x: x.reshape(-1, 1),
    "its own shape": lambda x: x.reshape(x.shape),
    "its own size": lambda x: x.reshape(x.size),
    "pairs of twice": lambda x: np.stack([x, x]).reshape(-1, 2),
    "twice its length": lambda x: np.stack([x, x], axis=1).reshape(2 * x.shape[0], *x.shape[1:]),
    "there and back": lambda x: x.reshape(-1).reshape(x.shape) * 2,
}
OF_SOME = {  # of examples that are not empty
    "its length, inferred": lambda x: x.reshape(x.shape[0], -1),
    "inferred, its length": lambda x: x.reshape(-1, x.shape[0]),
    "with a length between": lambda x: np.stack([x, x]).reshape(2, x.shape[0], -1),
}
DATA = {"vectors": VECTORS, "with_empty": WITH_EMPTY, "rows": ROWS, "columns": COLUMNS, "both": BOTH, "static": STATIC}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", [*ANY, *OF_SOME])
def test_a_size_of_the_result_is_the_examples(name, data):
    f = {**ANY, **OF_SOME}[name]
    out = check(f, DATA[data])
    if out is None:  # NumPy cannot infer a size of no elements
        assert name in OF_SOME
        assert data == "with_empty"
        return
    want = [f(x).shape for x in DATA[data]]
    for axis in range(out.ndim):
        size = out.shape[axis]
        assert np.broadcast_to(np.asarray(getattr(size, "data", size)), len(want)).tolist() == [w[axis] for w in want]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.reshape(-1, 2),
        lambda x: x.reshape(3),
        lambda x: x.reshape(x.shape[0] + 1),
        lambda x: x.reshape(x.shape[0] - 1, -1),
        lambda x: x.reshape(-1, -1),
        lambda x: x.reshape(0, -1),
    ],
)
def test_a_size_that_does_not_fit_is_the_error_of_the_example(f):
    examples = ragged(4, 2, 3, 1)
    check(f, examples)
    check(f, ragged(3, 3))


def test_the_error_names_the_example_that_does_not_fit():
    batch = ab.MaskedBatch.from_examples(ragged(4, 2, 3, 6))
    with pytest.raises(ValueError, match=r"cannot reshape array of size 3 into shape \(-1, 2\) in example 2"):
        batch.reshape(-1, 2)


def test_padding_that_is_wider_than_the_longest_example_is_not_reshaped():
    batch = ab.MaskedBatch.of(padded(ragged(4, 0, 2, width=3), wider=5))
    for found, x in zip(batch.reshape(-1, 1).examples(), batch.examples(), strict=True):
        np.testing.assert_array_equal(found, x.reshape(-1, 1))


def test_sizes_computed_by_each_example():
    def halves(x):
        n = len(x) // 2
        return x[: 2 * n].reshape(2, n).sum(axis=0), x[: 2 * n].reshape(n, 2).sum(axis=1)

    equals_loop(halves, ragged(5, 2, 8, 1, 0))


NUMBERS = {
    **{f"reshape {size}": lambda x, size=size: x.reshape(size) for size in (-(2**70), -(2**63), -5, 2**63 - 1, 2**70)},
    **{
        f"round {decimals!r}": lambda x, decimals=decimals: np.round(x, decimals)
        for decimals in (np.uint64(2**63), 2**31, -(2**31) - 1, 1.0, None, 400, -400, np.int8(1), True)
    },
}


@pytest.mark.parametrize("way", ["lockstep", "fly"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i8"])
@pytest.mark.parametrize("name", NUMBERS)
def test_arguments_at_the_ends_of_what_integers_hold(name, dtype, way):
    xs = [np.arange(n).astype(dtype) / np.asarray(3, dtype) for n in (4, 6)]

    def f(x):
        return NUMBERS[name](x * 2)

    def outcome(call):
        try:
            return [(x.dtype, x.tolist() if not np.isnan(x).any() else str(x)) for x in call()]
        except Exception as error:
            return type(error), str(error)

    with ab.options(way=way, warn=False), np.errstate(all="ignore"):
        assert outcome(lambda: ab.map(f, xs)) == outcome(lambda: [f(x) for x in xs])


@pytest.mark.parametrize("shape", [(1,), (2,), (2, 1)])
def test_no_broadcast_makes_a_dimension_shorter(shape):
    xs = ab.MaskedBatch.from_examples([np.ones(3), np.ones(4)])
    with pytest.raises(ValueError, match="broadcast"):
        np.broadcast_to(xs, shape)
    with pytest.raises(ValueError, match="broadcast"):
        ab.batch(lambda x: np.broadcast_to(x, shape))(xs)
