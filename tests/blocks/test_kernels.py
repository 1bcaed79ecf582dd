"""Kernels compiled by another process: asked for, used once they are there, and never in the way."""

import subprocess
import sys

import numpy as np
import pytest

import autobatch as ab
from autobatch.blocks import kernel_cache
from autobatch.blocks.launch import form_of, launch
from tests.blocks.forms import boxed, calls, close, differentiate, traced
from tests.law import assert_same_classes
from tests.ops.samples import special_numbers

RNG = np.random.default_rng(3)
BATCHED = [True, True, False, False]


def cell(x, c, w, b):
    i, f, g = np.split(x @ w + b, 3)
    c = ab.nn.sigmoid(i) * np.tanh(g) + ab.nn.sigmoid(f) * np.where(c > 0.5, c, 0.5 * c)
    return np.maximum(c, 0.0) * np.exp(-c * c), c > 0.25, c


def operands_of(size, width, dtype=np.float32):
    shapes = (size, width), (size, width), (width, 3 * width), (3 * width,)
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.fixture(scope="module")
def shared_compiler():
    own = kernel_cache._Compiler()
    yield own
    process = own._process
    if process is not None:
        process.stdin.close()
        process.wait(240)


@pytest.fixture
def compiler(monkeypatch, tmp_path, shared_compiler):
    """The process of this file's tests, and an empty folder."""
    monkeypatch.setenv("AUTOBATCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_known", {})
    monkeypatch.setattr(kernel_cache, "_compiler", shared_compiler)
    return shared_compiler


@pytest.fixture
def no_process_yet(monkeypatch, compiler):
    """No process was started."""
    own = kernel_cache._Compiler()
    monkeypatch.setattr(kernel_cache, "_compiler", own)
    yield own
    process = own._process
    if process is not None:
        process.kill()
        process.wait(240)


def run_some(program, operands, times=8):
    for _ in range(times):
        out = launch(program, boxed(operands, BATCHED))
    return out


def test_kernels_are_used_once_they_are_there(compiler, tmp_path):
    operands = operands_of(5, 21)
    program = traced(cell, operands, BATCHED)
    cts = [RNG.standard_normal((5, 21)).astype(np.float32), np.zeros((5, 21), bool), np.ones((5, 21), np.float32)]
    want = calls(program, boxed(operands, BATCHED))
    want_on_tape = differentiate(calls, program, operands, BATCHED, cts)
    close(run_some(program, operands), want, "while the kernel is compiled")
    for _ in range(8):
        differentiate(launch, program, operands, BATCHED, cts)
    assert kernel_cache.wait_for_kernels()
    close(run_some(program, operands), want, "with the kernel")
    outs, slopes = differentiate(launch, program, operands, BATCHED, cts)
    close(outs, want_on_tape[0], "outputs on a tape")
    close(slopes, want_on_tape[1], "gradients")
    for key in ((), (0, 1, 2, 3)):
        form = form_of(program, tuple(BATCHED), key)
        assert form.steps.run == form.steps._with_kernels
    assert form._backward.run == form._backward._with_kernels
    for size in (0, 1, 64):
        many = operands_of(size, 21)
        close(launch(program, boxed(many, BATCHED)), calls(program, boxed(many, BATCHED)), f"{size} examples")
    strided = [np.asfortranarray(x) for x in operands]
    close(launch(program, boxed(strided, BATCHED)), want, "operands in other orders")
    with ab.options(kernels=False):
        np.testing.assert_array_equal(launch(program, boxed(operands, BATCHED))[0], want[0])
    script = """
import sys
from autobatch.blocks import kernel_cache
from autobatch.blocks.launch import launch
from tests.blocks.test_kernels import BATCHED, boxed, cell, form_of, operands_of, run_some, traced
kernel_cache._compiler.ask = lambda kernel: sys.exit("it compiles again")
operands = operands_of(5, 21)
program = traced(cell, operands, BATCHED)
run_some(program, operands)
block = form_of(program, tuple(BATCHED), ()).steps
print(block.run == block._with_kernels)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert out.stdout == "True\n", "another process does not find the kernel"


def hard(x, y):
    """Outputs that differ by what a kernel could lose: the sign of a zero, a denormal, where NaN and infinities are."""
    return (
        *(x / y, x * y - y, np.maximum(x, y), np.minimum(x, y), np.exp(x), np.tanh(x) * y, ab.nn.sigmoid(x), -x),
        *(np.where(x < y, x, y - x), np.sqrt(np.abs(x)), ab.nn.relu(y), ab.nn.gelu(x), x == y, np.square(x) * 0.5),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_numbers_in_a_kernel(compiler, dtype):
    column = special_numbers(dtype)
    x, y = (np.ascontiguousarray(each) for each in np.broadcast_arrays(column, column[:, None]))
    with np.errstate(all="ignore"):
        program = traced(hard, [x, y], [True, True])
        for _ in range(8):
            launch(program, boxed([x, y], [True, True]))
        assert kernel_cache.wait_for_kernels()
        found = launch(program, boxed([x, y], [True, True]))
        form = form_of(program, (True, True), ())
        assert form.steps.run == form.steps._with_kernels
        for k, (one, other) in enumerate(zip(found, hard(x, y), strict=True)):
            assert_same_classes(one, other, f"output {k}")


def test_float64_is_exact(compiler):
    def body(x, y):
        return np.where(x > y, x * y, x - y) / (y * y + 2.0), np.sqrt(x * x)

    operands = [RNG.standard_normal((4, 11)), RNG.standard_normal((4, 11))]
    program = traced(body, operands, [True, True])
    for _ in range(8):
        launch(program, boxed(operands, [True, True]))
    assert kernel_cache.wait_for_kernels()
    for got, want in zip(launch(program, boxed(operands, [True, True])), body(*operands), strict=True):
        np.testing.assert_array_equal(got, want)
    block = form_of(program, (True, True), ()).steps
    assert block.run == block._with_kernels


def test_a_folder_that_cannot_be_written_to(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("AUTOBATCH_CACHE_DIR", str(file / "below"))
    monkeypatch.setattr(kernel_cache, "_known", {})
    operands = operands_of(3, 9)
    program = traced(cell, operands, BATCHED)
    close(run_some(program, operands), calls(program, boxed(operands, BATCHED)), "without kernels")
    block = form_of(program, tuple(BATCHED), ()).steps
    assert block.run == block._plain


def test_a_kernel_that_does_not_compile(compiler, tmp_path):
    kernel = kernel_cache.kernel_of("SIGNATURE = None\nLANES = ()\nkernel = None\n")
    assert not kernel.poll()
    assert kernel_cache.wait_for_kernels()
    assert kernel.failed


def test_without_a_python_to_start_there_are_no_kernels(no_process_yet, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    operands = operands_of(3, 9)
    program = traced(cell, operands, BATCHED)
    close(run_some(program, operands), calls(program, boxed(operands, BATCHED)), "without kernels")


def test_a_kernel_is_asked_for_only_after_some_runs(no_process_yet):
    operands = operands_of(3, 9)
    program = traced(cell, operands, BATCHED)
    run_some(program, operands, 2)
    assert program.forms == {(tuple(BATCHED), ()): 2}
    run_some(program, operands, 3)
    assert no_process_yet._process is None
    run_some(program, operands, 1)
    assert no_process_yet._process is not None


def test_the_cache_folder_is_the_user_s(monkeypatch, tmp_path):
    monkeypatch.delenv("AUTOBATCH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert kernel_cache.cache_folder() == tmp_path / "autobatch"
