"""Factorisations and Fourier transforms: value, batch and gradient of each; of some, the gradient of the gradient."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import check
from tests.ops.test_nested_gradients import check_second

rng = np.random.default_rng(0)
SQUARE, TALL, STACK = rng.normal(size=(4, 4)), rng.normal(size=(5, 3)), rng.normal(size=(2, 4, 4))
WIDE = TALL.T.copy()
POSITIVE = SQUARE @ SQUARE.T + np.eye(4)
STEEP = STACK + 3 * np.eye(4)
SIGNAL, IMAGE = rng.normal(size=6), rng.normal(size=(4, 6))


def parts(z):
    return z.real, z.imag


CASES = {
    "cholesky": (np.linalg.cholesky, POSITIVE),
    "cholesky_stack": (np.linalg.cholesky, STACK @ STACK.swapaxes(1, 2) + np.eye(4)),
    "cholesky_upper": (lambda x: np.linalg.cholesky(x, upper=True), POSITIVE),
    "qr": (np.linalg.qr, TALL),
    "qr_square": (np.linalg.qr, SQUARE),
    "qr_wide": (np.linalg.qr, WIDE),
    "qr_stack": (np.linalg.qr, STACK),
    "qr_r": (lambda x: np.linalg.qr(x, "r"), TALL),
    "eigh": (np.linalg.eigh, POSITIVE),
    "eigh_upper": (lambda x: np.linalg.eigh(x, "U"), SQUARE),
    "eigh_stack": (np.linalg.eigh, STACK),
    "eigvalsh": (np.linalg.eigvalsh, SQUARE),
    "svd": (np.linalg.svd, SQUARE),
    "svd_tall": (lambda x: np.linalg.svd(x, full_matrices=False), TALL),
    "svd_wide": (lambda x: np.linalg.svd(x, full_matrices=False), WIDE),
    "svd_stack": (np.linalg.svd, STACK),
    "svd_values": (lambda x: np.linalg.svd(x, compute_uv=False), TALL),
    "svdvals": (np.linalg.svdvals, STACK),
    "pinv": (np.linalg.pinv, TALL),
    "pinv_wide": (lambda x: np.linalg.pinv(x, rcond=1e-10), WIDE),
    "cond": (np.linalg.cond, SQUARE),
    "norm_two": (lambda x: np.linalg.norm(x, 2), TALL),
    "norm_nuclear": (lambda x: np.linalg.norm(x, "nuc"), TALL),
    "norm_smallest": (lambda x: np.linalg.norm(x, -2, axis=(1, 2)), STACK),
    "norm_columns": (lambda x: np.linalg.norm(x, 1), TALL),
    "norm_rows": (lambda x: np.linalg.norm(x, -np.inf, axis=(0, 2), keepdims=True), STACK),
    "solve_stack": (lambda x: np.linalg.solve(x, STACK), STEEP),
    "solve_shared": (lambda x: np.linalg.solve(x, SQUARE), STEEP),
    "solve_vector": (lambda x: np.linalg.solve(x, SIGNAL[:4]), STEEP),
    "fft": (lambda x: parts(np.fft.fft(x)), SIGNAL),
    "fft_cropped": (lambda x: parts(np.fft.fft(x, 4, norm="ortho")), SIGNAL),
    "fft_padded": (lambda x: parts(np.fft.ifft(x, 9, norm="forward")), SIGNAL),
    "fft_axis": (lambda x: parts(np.fft.fft(x, axis=0)), IMAGE),
    "rfft": (lambda x: parts(np.fft.rfft(x)), SIGNAL),
    "rfft_cropped": (lambda x: parts(np.fft.rfft(x, 5)), SIGNAL),
    "rfft_padded": (lambda x: parts(np.fft.rfft(x, 9, norm="forward")), SIGNAL),
    "irfft": (lambda x: np.fft.irfft(x * (1 - 2j)), SIGNAL),
    "irfft_real": (np.fft.irfft, SIGNAL),
    "irfft_odd": (lambda x: np.fft.irfft(x * (1 + 2j), 7), SIGNAL),
    "irfft_cropped": (lambda x: np.fft.irfft(x * (1 - 2j), 4, norm="ortho"), SIGNAL),
    "irfft_padded": (lambda x: np.fft.irfft(x * 1j, 14, norm="forward"), SIGNAL),
    "hfft": (lambda x: np.fft.hfft(x * (1 + 1j), 5, norm="forward"), SIGNAL),
    "ihfft": (lambda x: parts(np.fft.ihfft(x, 4, norm="ortho")), SIGNAL),
    "fft2": (lambda x: (*parts(np.fft.fft2(x)), *parts(np.fft.ifft2(x))), IMAGE),
    "rfft2": (lambda x: (*parts(np.fft.rfft2(x)), np.fft.irfft2(x * (1 + 1j))), IMAGE),
    "fftn": (lambda x: (*parts(np.fft.fftn(x, (3, 5), (0, 1))), *parts(np.fft.ifftn(x, axes=(1, 0)))), IMAGE),
    "rfftn": (lambda x: (*parts(np.fft.rfftn(x, axes=(0,))), np.fft.irfftn(x * 1j, (4, -1), (0, 1))), IMAGE),
    "shifts": (lambda x: (np.fft.fftshift(x) * IMAGE, np.fft.ifftshift(x, axes=1) * IMAGE), IMAGE),
    "spectrum": (lambda x: np.abs(np.fft.rfft(x)) ** 2, SIGNAL),
    "convolution": (lambda x: np.fft.irfft(np.fft.rfft(x) * np.fft.rfft(x[::-1]), 6), SIGNAL),
}


ONE_OF_EACH = {
    "cholesky", "qr", "eigh_stack", "svd", "svd_values", "pinv_wide", "norm_two", "solve_stack",
    "fft_padded", "rfft", "irfft", "hfft", "rfft2", "fftn", "shifts",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_law(name):
    f, x = CASES[name]
    ab.testing.check_grads(f, x)
    ab.testing.assert_equivalent(f, [x, x + 0.01])


@pytest.mark.parametrize(
    "name", [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_single_precision(name):
    f, x = CASES[name]
    ab.testing.assert_equivalent(f, [x.astype(np.float32), (x + 0.01).astype(np.float32)])


RAGGED = {
    "cholesky": lambda x: np.linalg.cholesky(x @ x.T),
    "eigh": lambda x: tuple(np.linalg.eigh(x @ x.T)),
    "svdvals": lambda x: np.linalg.svd(x, compute_uv=False),
    "pinv": lambda x: np.linalg.pinv(x),
    "fft": lambda x: np.abs(np.fft.fft(x)),
}


@pytest.mark.parametrize("name", RAGGED)
def test_matrices_of_different_sizes(name):
    check(RAGGED[name], [rng.normal(size=shape) for shape in ((3, 4), (2, 2), (3, 4), (1, 5))])


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: np.linalg.cholesky(x @ x.T + np.eye(3)), WIDE),
        (lambda x: np.linalg.eigvalsh(x), SQUARE),
        (lambda x: np.linalg.svdvals(x), TALL),
        (lambda x: np.linalg.qr(x, "r"), TALL),
        (lambda x: np.abs(np.fft.rfft(x)), SIGNAL),
        (lambda x: np.fft.irfft(x * x), SIGNAL),
    ],
)
def test_gradients_of_gradients(f, x):
    check_second(f, x)


def test_equal_eigenvalues_leave_the_sum_of_them_its_gradient():
    same = np.eye(3)
    np.testing.assert_allclose(ab.grad(lambda x: np.linalg.eigh(x).eigenvalues.sum())(same), np.eye(3))
    np.testing.assert_allclose(ab.grad(lambda x: np.linalg.svd(x).S.sum())(same), np.eye(3))


def test_what_a_matrix_does_not_determine_has_no_gradient():
    with pytest.raises(ab.errors.UnsupportedError, match="write full_matrices=False"):
        ab.grad(lambda x: np.linalg.svd(x)[0].sum())(TALL)


def test_an_example_that_cannot_be_factorised():
    matrices = [POSITIVE, -POSITIVE]
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite") as caught:
        ab.map(np.linalg.cholesky, matrices)
    assert caught.value.__notes__ == ["raised for example 1"]
