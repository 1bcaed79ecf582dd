"""Convolutions of examples of any length and size, in every mode, with their gradients."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import autobatch as ab
from tests.law import assert_same, check, check_grads, equals_loop, map_equals_loop, ragged

IMAGES = [np.random.default_rng(n).standard_normal(shape) for n, shape in enumerate([(5, 4), (3, 7), (4, 4), (3, 3)])]
KERNEL = np.random.default_rng(9).standard_normal((3, 2))
PADS = {"valid": (0, 0), "same": (1, 1), "full": (2, 1)}


def two_dimensional(x, kernel, mode="valid"):
    """As `scipy.signal.convolve2d`; "same" of a kernel of an even width has a column more."""
    down, right = PADS[mode]
    windows = sliding_window_view(np.pad(x, ((down, down), (right, right))), kernel.shape)
    return np.einsum("ijkl,kl->ij", windows, kernel[::-1, ::-1])


@pytest.mark.parametrize("mode", PADS)
def test_in_two_dimensions(mode):
    equals_loop(two_dimensional, IMAGES, kernel=KERNEL, mode=mode)
    map_equals_loop(two_dimensional, IMAGES, kernel=KERNEL, mode=mode)
    check_grads(lambda x: two_dimensional(x, KERNEL, mode), IMAGES)

    def loss(kernel):
        return sum(ab.map(lambda x: (two_dimensional(x, kernel, mode) ** 2).sum(), IMAGES))

    wanted = ab.grad(lambda kernel: sum((two_dimensional(x, kernel, mode) ** 2).sum() for x in IMAGES))(KERNEL)
    for way in ("lockstep", "fly"):
        with ab.options(way=way, strict=True):
            assert_same(ab.grad(loss)(KERNEL), wanted, way)


def test_a_kernel_that_an_image_has_no_room_for():
    with pytest.raises(ValueError, match="window shape cannot be larger"):
        ab.batch(two_dimensional)(ab.collate([*IMAGES, np.ones((2, 9))]), KERNEL)


@pytest.mark.parametrize("mode", PADS)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_in_one_dimension(mode, width):
    kernel = np.arange(1.0, width + 1)
    check(lambda x: np.convolve(x, kernel, mode), ragged(3, 1, 7, 2))
    check(lambda x: np.correlate(x, kernel, mode), ragged(*range(1, 9)))
    check(lambda x, y: np.correlate(x, y, mode), ragged(*range(1, 9)), ragged(4, 4, 3, 4, 5, 9, 1, 1))
    check(lambda x, y: np.convolve(x, y, mode), ragged(3, 1, 7, 2), ragged(2, 4, 1, 3, seed=1))
    check_grads(lambda x, y: np.convolve(x, y, mode), ragged(3, 1, 7), ragged(2, 4, 1, seed=1))
    check(lambda x: np.convolve(x, kernel, mode), ragged(3, 0))  # refused as NumPy refuses it


@pytest.mark.parametrize("axis", [None, (0, 1), (1, 0), (0, 0), 0, -1, (1,)])
def test_windows_along_any_axes(axis):
    shape = 2 if isinstance(axis, int) else (2,) if axis == (1,) else (2, 3)

    def f(x):
        return sliding_window_view(x, shape, axis)

    with ab.options(warn=False):  # twice along one axis: a loop
        check(f, IMAGES)
        check(f, [IMAGES[0], np.ones((1, 2))])


def sized_like_an_example(x):
    rows = x.reshape(x.shape[0], 2, 2)
    causal = np.tril(np.ones((len(x), len(x)), bool))
    return (
        np.zeros(x.shape[0]) + x[:, 0],
        np.ones((len(x), 2)).sum(0),
        rows.transpose(0, 2, 1),
        rows.reshape(-1, 2),
        rows.reshape(len(x), 4),
        np.where(causal, x @ x.T, -1.0),
    )


def test_arrays_made_split_and_joined_of_an_example_and_a_batch_alike():
    """What Matchbox has functions of its own for is NumPy's, of one example as of a batch."""
    equals_loop(sized_like_an_example, ragged(3, 1, 0, 5, width=4))
    equals_loop(sized_like_an_example, ragged(3, width=4))
    map_equals_loop(sized_like_an_example, ragged(3, 1, 0, 5, width=4))
