"""Large functions of the library that kernels call are compiled once, as object code that is cached on disk."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from numba import config

from autobatch.blocks import kernel_cache

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")

TEXT = """
from numba import float64, types
from autobatch.kernels.compiled_code.products import *
from autobatch.kernels.jit import jit

LANES = ()

@jit
def kernel(x, y):
    return product_22(x, y, float64(0)) + {number}

matrix = types.Array(float64, 2, "C")
SIGNATURE = matrix(matrix, matrix)
"""

COMPILE = """
import pathlib, sys
from autobatch.blocks import kernel_cache
folder, text = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.stdout.buffer.write(kernel_cache._compile(kernel_cache.name_of(text), text, folder))
"""


def compiled(text: str, folder: pathlib.Path) -> bytes:
    """The kernel, compiled in a process of its own: what this one compiles later would ask for parts of it."""
    run = subprocess.run([sys.executable, "-c", COMPILE, str(folder), text], capture_output=True, check=True)
    return run.stdout


def check(text: str, kernel: bytes, added: float) -> None:
    """The loaded kernel, with its object code, computes products as NumPy does."""
    lanes, entry = kernel_cache._load(kernel_cache.name_of(text), text, kernel)
    rng = np.random.default_rng(0)
    for shape in ((0, 3, 2), (1, 1, 1), (5, 7, 4), (4, 4, 4), (33, 64, 17)):
        x, y = rng.normal(size=shape[:2]), rng.normal(size=shape[1:])
        np.testing.assert_allclose(entry(*lanes, x, y), x @ y + added, rtol=1e-12, atol=1e-12)


def test_object_code_is_compiled_once_and_shared_by_kernels(tmp_path):
    one, two = TEXT.format(number=1.0), TEXT.format(number=2.0)
    first = compiled(one, tmp_path)
    objects = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert objects
    assert all(path.name.startswith("autobatch_") for path in objects)
    second = compiled(two, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == objects  # read, not written again
    check(one, first, 1.0)
    check(two, second, 2.0)


def test_damaged_object_code_is_compiled_again(tmp_path):
    text = TEXT.format(number=3.0)
    compiled(text, tmp_path)
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    damaged = whole[:-1] + bytes([whole[-1] ^ 1])
    path.write_bytes(damaged)
    check(text, compiled(text, tmp_path), 3.0)
    assert path.read_bytes() != damaged  # nor need it be the former: Numba's numbers of functions stand in names
    assert kernel_cache.disk_cache.verified_content(path.stem, path.read_bytes())


def test_without_a_folder_nothing_is_cached_and_the_kernel_is_the_same():
    text = TEXT.format(number=4.0)
    without = COMPILE.replace("text, folder))", "text, None))")
    run = subprocess.run([sys.executable, "-c", without, "", text], capture_output=True, check=True)
    check(text, run.stdout, 4.0)
