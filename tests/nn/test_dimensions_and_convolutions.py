"""What batches are made like and cut into, and convolutions in NumPy's own words, of one example as of a batch."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import OptionError
from tests.law import assert_same

RANDOM = np.random.default_rng(3)
SEQUENCES = [RANDOM.standard_normal((n, 6)) for n in (4, 0, 6, 1)]


def heads(x):
    """Attention's: (T, D) to (N, T, D / N) to N * T rows, and back."""
    cut = np.moveaxis(ab.nn.split_dim(x, -1, 2), -1, 0)
    rows = ab.nn.join_dims(cut, 0, 1) * 2.0
    return np.moveaxis(rows.reshape(2, x.shape[0], 3), 0, -1)


CUT = {
    "zeros and ones like an example": lambda x: np.zeros_like(x) + 2 * np.ones_like(x) * x,
    "zeros and ones of its sizes": lambda x: x + np.ones(x.shape) - np.zeros(x.shape[-1]) + np.full_like(x, 0.5),
    "a dimension as two": lambda x: ab.nn.split_dim(x, 1, 3) * np.arange(3.0),
    "the first dimension as two": lambda x: ab.nn.split_dim(x.T, 0, 2).sum(1),
    "two dimensions as one": lambda x: ab.nn.join_dims(np.stack([x, -x]), 0, 1) * 2.0,
    "two that are apart": lambda x: ab.nn.join_dims(ab.nn.split_dim(x, -1, 2), -1, 0) * 2.0,
    "heads": heads,
}


@pytest.mark.parametrize("name", CUT)
def test_zeros_ones_split_and_joined_dimensions_for_an_example_and_a_batch_alike(name):
    ab.testing.assert_equivalent(CUT[name], SEQUENCES)
    with ab.options(strict=True):
        batched = ab.examples(ab.batch(CUT[name])(ab.collate(SEQUENCES)))
    for found, x in zip(batched, SEQUENCES, strict=True):
        assert_same(found, CUT[name](x))


@pytest.mark.parametrize("make", [np.zeros_like, np.ones_like])
def test_zeros_and_ones_like_a_batch_are_a_batch(make):
    found = make(ab.MaskedBatch.from_examples(SEQUENCES))
    for one, x in zip(found.examples(), SEQUENCES, strict=True):
        assert_same(one, make(x))


def test_split_and_join_are_each_others_inverse():
    x = RANDOM.random((4, 6, 5))
    for axis in (0, 1, -2):
        assert_same(ab.nn.join_dims(ab.nn.split_dim(x, axis, 2), axis % 3, axis % 3 + 1), x)
    with pytest.raises(ValueError, match="reshape"):
        ab.nn.split_dim(x, 2, 2)
    with pytest.raises(OptionError, match="dimension 3 of an array of 3"):
        ab.nn.split_dim(x, 3, 1)
    with pytest.raises(OptionError, match="parts of at least one element"):
        ab.nn.split_dim(x, 2, 0)
    with pytest.raises(OptionError, match="expected two dimensions"):
        ab.nn.join_dims(x, 1, -2)


# Convolutions, as a user writes them; in one dimension `tests/numpy_functions/test_convolutions.py` has them.


def convolved(image, kernel, mode):
    """`scipy.signal.convolve2d` for a kernel no larger than the image."""
    i, j = kernel.shape
    beside = {"valid": ((0, 0), (0, 0)), "full": ((i - 1, i - 1), (j - 1, j - 1))}
    beside["same"] = ((i // 2, (i - 1) // 2), (j // 2, (j - 1) // 2))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, beside[mode]), (i, j))
    return np.einsum("xyij,ij->xy", windows, kernel[::-1, ::-1])


IMAGES = [RANDOM.standard_normal(shape) for shape in ((4, 5), (3, 2), (6, 3), (5, 5), (3, 7))]


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("kernel", [(3, 2), (1, 2)])
def test_convolutions_in_two_dimensions_over_ragged_images(mode, kernel):
    kernel = RANDOM.standard_normal(kernel)
    ab.testing.assert_equivalent(lambda x, k: convolved(x, k, mode), IMAGES, k=kernel)
    signal = pytest.importorskip("scipy.signal")
    for image in IMAGES:
        np.testing.assert_allclose(convolved(image, kernel, mode), signal.convolve2d(image, kernel, mode))
