"""Large functions of the library that kernels call are compiled once, as object code that is cached on disk."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from numba import config
from numba.core.runtime import _nrt_python, rtsys

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
import sys
from autobatch.blocks import kernel_cache
{before}
sys.stdout.buffer.write(kernel_cache._compile(kernel_cache.name_of(sys.argv[1]), sys.argv[1]))
"""


def compiled(text: str, folder: pathlib.Path, before: str = "") -> bytes:
    """The kernel, compiled in a process of its own: what this one compiles later would ask for parts of it."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", COMPILE.format(before=before), text]
    return subprocess.run(command, capture_output=True, check=True, env=environment).stdout


def files(folder: pathlib.Path) -> dict[pathlib.Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.kernel")}


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
    kept = files(tmp_path)
    assert any(path.name.startswith("products.add_product-") for path in kept)
    second = compiled(two, tmp_path)
    assert files(tmp_path) == kept  # read, not written again
    check(one, first, 1.0)
    check(two, second, 2.0)


INNER = """
from autobatch.kernels.jit import jit

def adder(number):
    @jit
    def inner(x):
        return x + number
    return inner

adds_one, adds_two = adder(1.0), adder(2.0)

@jit
def one(x):
    return adds_one(x)

@jit
def two(x):
    return adds_two(x)
"""
CALLS = """
from numba import float64
from autobatch.kernels.jit import jit
from parts_of_a_test import one, two

LANES = ()

@jit
def kernel(x):
    return {result}

SIGNATURE = float64(float64)
"""


def test_parts_of_two_processes_may_have_inner_functions_of_the_same_name(tmp_path, monkeypatch):
    """Numba numbers functions anew in each process; without `internal`, both parts would add the same number."""
    (tmp_path / "parts_of_a_test.py").write_text(INNER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    for name in ("one", "two"):
        compiled(CALLS.format(result=f"{name}(x)"), tmp_path)
    text = CALLS.format(result="10.0 * one(x) + two(x)")
    lanes, entry = kernel_cache._load(kernel_cache.name_of(text), text, compiled(text, tmp_path))
    assert entry(*lanes, 3.0) == 45.0


def test_damaged_object_code_is_compiled_again(tmp_path):
    text = TEXT.format(number=3.0)
    compiled(text, tmp_path)
    for path in files(tmp_path):
        whole = path.read_bytes()
        damaged = whole[:-1] + bytes([whole[-1] ^ 1])
        path.write_bytes(damaged)
        check(text, compiled(text, tmp_path), 3.0)
        if path.read_bytes() == damaged:  # a function that nobody asked for, as its caller is there
            path.unlink()
    kept = files(tmp_path)
    assert any(path.name.startswith("products.product_22-") for path in kept)
    for path in kept:
        assert kernel_cache.disk_cache.verified_content(path.name, path.read_bytes())


def test_without_a_folder_nothing_is_cached_and_the_kernel_is_the_same(tmp_path):
    nowhere = "from autobatch.kernels import jit\njit.MachineCodeCache = lambda *given: open('/nowhere/at all')"
    check(text := TEXT.format(number=4.0), compiled(text, tmp_path, nowhere), 4.0)
    assert not files(tmp_path)


GUARDED = """
import numpy as np
from numba import float64, types
from autobatch.kernels.jit import jit

LANES = ()

@jit
def kernel(x, y):
    a, b, c, d, e = x + 1.0, x + 2.0, x + 3.0, x + 4.0, x + 5.0
    if y.size < 2:
        return np.zeros(0, np.float64)
    f = a * b
    if y[1] == 0.0:
        return np.zeros(1, np.float64)
    return a + b + c + d + e + f + y

vector = types.Array(float64, 1, "C")
SIGNATURE = vector(vector, vector)
"""


def test_arrays_are_freed_wherever_a_function_returns(tmp_path):
    """Where it returns early, they are released by calls that are not inlined."""
    lanes, entry = kernel_cache._load(kernel_cache.name_of(GUARDED), GUARDED, compiled(GUARDED, tmp_path))
    _nrt_python.memsys_enable_stats()
    x, before = np.arange(3.0), rtsys.get_allocation_stats()
    for y, size in ((np.ones(1), 0), (np.zeros(2), 1), (np.ones(3), 3)):
        assert entry(*lanes, x, y).size == size
    after = rtsys.get_allocation_stats()
    _nrt_python.memsys_disable_stats()
    assert after.alloc - before.alloc == after.free - before.free > 10
