"""Elementwise arithmetic on vector values, against NumPy: in ulps where it is approximated, else to the bit."""

import math

import numpy as np
import pytest

from autobatch.kernels import vector_math
from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import VectorLayout, load, put

F4, F8, U1 = np.float32, np.float64, np.uint8


def unary(function):
    @jit
    def apply(lanes, x, out):
        source, target = x.ctypes.data, out.ctypes.data
        for j in range(0, x.size, 16):
            put(target, j, function(load(lanes, source, j, 0)))

    return apply


def sigmoid(x):
    return np.reciprocal(np.exp(-x) + np.float32(1))


def every_kind_of_float32(step):
    """All exponents of both signs, denormals, infinities and NaN among them."""
    bits = np.arange(0, 1 << 32, step, dtype=np.int64).astype(np.uint32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 88.72284, -87.33655, -103.97208, 1e-45, 0.625], F4)
    x = np.concatenate([bits.view(F4), special, np.linspace(-110, 110, 1 << 15, dtype=F4)])
    return x[: len(x) - len(x) % 16]


def ulps(a, b):
    a, b = (x.view(np.int32).astype(np.int64) for x in (a, b))
    a, b = (np.where(x < 0, -(x & 0x7FFFFFFF), x) for x in (a, b))
    return np.abs(a - b)


def normal_cdf(x):
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.tolist()], F4)


OWN = {"sigmoid": sigmoid, "normal_cdf": normal_cdf}


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "normal_cdf"])
def test_float32_is_within_4_ulp_of_numpy(name):
    x = every_kind_of_float32(4099)
    out = np.empty_like(x)
    unary(getattr(vector_math, name))(VectorLayout("f4", 16), x, out)
    with np.errstate(all="ignore"):
        want = OWN[name](x) if name in OWN else getattr(np, name)(x)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(want))
    known = ~np.isnan(want)
    assert ulps(out[known], want[known]).max() <= 4
    np.testing.assert_array_equal(np.signbit(out[known]), np.signbit(want[known]))


@pytest.mark.parametrize(("dtype", "format"), [(F4, "f4"), (F8, "f8")])
def test_the_rest_is_numpy_s_to_the_bit(dtype, format):
    vm = vector_math

    @jit
    def apply(lanes, masks, x, y, s, out, flags):
        n = x.size // 8
        p, q, r, f = x.ctypes.data, y.ctypes.data, out.ctypes.data, flags.ctypes.data
        bad = 0
        for j in range(0, x.size, 8):
            a, b = load(lanes, p, j, 0), load(lanes, q, j, 0)
            put(r, j, vm.subtract(a, b))
            put(r, j + 8 * n, vm.multiply(a, b))
            put(r, j + 16 * n, vm.divide(a, b))
            put(r, j + 24 * n, vm.negative(a))
            put(r, j + 32 * n, vm.absolute(a))
            put(r, j + 40 * n, vm.sqrt(a))
            mask = vm.logical_or(vm.logical_and(vm.less(a, b), vm.not_equal(a, b)), vm.equal(a, b))
            put(r, j + 48 * n, vm.choose(mask, a, vm.fill(lanes, s)))
            put(f, j, vm.inverse(vm.less_equal(a, b)))
            bad |= vm.any_nonfinite(a)
        return bad

    special = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-310], dtype)
    x, y = (grid.ravel().copy() for grid in np.meshgrid(special, special))
    out, flags = np.empty((7, x.size), dtype), np.empty(x.size, bool)
    lanes = VectorLayout(format, 8), VectorLayout("u1", 8)
    assert apply(*lanes, x, y, 0.1, out, flags.view(U1)) == 1
    assert apply(*lanes, np.ones(8, dtype), np.ones(8, dtype), 0.1, np.empty((7, 8), dtype), np.empty(8, U1)) == 0
    with np.errstate(all="ignore"):
        chosen = np.where((x < y) | (x == y), x, dtype(0.1))
        want = np.stack([x - y, x * y, x / y, -x, np.abs(x), np.sqrt(x), chosen])
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(np.signbit(out[:4]), np.signbit(np.where(np.isnan(want[:4]), out[:4], want[:4])))
        np.testing.assert_array_equal(flags, ~(x <= y))
