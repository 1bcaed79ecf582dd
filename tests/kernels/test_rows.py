"""Row kernels against slow oracles; run compiled, and as plain Python with NUMBA_DISABLE_JIT=1."""

import os
import subprocess
import sys

import numpy as np
import pytest

from autobatch.kernels import rows

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("ids", "expected"), [([], -1), ([0, 2, 1], -1), ([0, 3, -1], 1), ([2, -1], 1)])
def test_first_bad_id(ids, expected):
    assert rows.first_bad_id(np.array(ids, np.int64), 3) == expected


@pytest.mark.parametrize(("offsets", "expected"), [([], -1), ([0, 2, 2, 5], -1), ([0, 3, 2], 2), ([0, 6], 1)])
def test_first_bad_offset(offsets, expected):
    assert rows.first_bad_offset(np.array(offsets, np.int64), 5) == expected


@pytest.mark.parametrize("high", [1, 3, 50, 2**62])
@pytest.mark.parametrize("n", [0, 1, 40])
def test_unique_in_order_of_first_occurrence(n, high):
    ids = RANDOM.integers(0, high, n)
    slots, inverse, unique = np.full(128, -1), np.empty(n, np.int64), np.empty(n, np.int64)
    count = rows.unique_first_seen(ids, slots, inverse, unique)
    assert unique[:count].tolist() == list(dict.fromkeys(ids.tolist()))
    np.testing.assert_array_equal(unique[inverse], ids)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled at all")
def test_importing_compiles_nothing_and_gives_numba_nothing():
    code = (
        "import autobatch.public, sys\n"
        "from autobatch.kernels.jit import Kernel\n"
        "modules = [m for name, m in sys.modules.items() if name.startswith('autobatch.')]\n"
        "kernels = [value for module in modules for value in vars(module).values() if isinstance(value, Kernel)]\n"
        "assert len(kernels) > 40\n"
        "assert not any('dispatcher' in vars(kernel) for kernel in kernels)\n"
        "assert not any(kernel.signatures for kernel in kernels)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled at all")
def test_a_kernel_is_the_function_that_it_was_made_of():
    kernel = rows.first_bad_id
    assert kernel.__name__ == "first_bad_id"
    assert kernel.__doc__ == kernel.py_func.__doc__
    assert kernel(np.array([2]), 3) == -1
    assert len(kernel.signatures) >= 1
