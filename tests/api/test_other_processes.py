"""Functions of `__main__`, of notebook cells and within functions go to other processes, by whatever sends them."""

import os
import pathlib
import pickle
import subprocess
import sys

import pytest

import autobatch as ab
from tests.law import assert_same

ROOT = pathlib.Path(ab.__file__).resolve().parent.parent

SCRIPT = """
import linecache, multiprocessing, pickle, subprocess, sys, warnings
import numpy as np
import autobatch as ab

warnings.simplefilter("error")
W = np.arange(3.0)

def helper(x):
    return np.tanh(x)

@ab.batch(strict=True)
def f(x):
    h = 0.0
    for row in x:
        h = helper(h + row @ W)
    return h

class Model:
    def __init__(self):
        self.w = np.ones(3)

    @ab.batch(strict=True)
    def __call__(self, x):
        return (x @ self.w).sum()

def within(k):
    @ab.batch(strict=True)
    def g(x):
        return (helper(x) * k).sum()
    return g

xs = [np.ones((n, 3)) for n in (2, 1)]
batch = ab.PackedBatch.from_examples(xs)

def same(found, expected):
    found, expected = [x.examples() if isinstance(x, ab.MaskedBatch) else x for x in (found, expected)]
    np.testing.assert_allclose(np.stack(found), np.stack(expected))
"""

JOBLIB = """
if __name__ == "__main__":
    from joblib import Parallel, delayed
    functions = [f, within(2.0), ab.batch(lambda x: x.sum() * 3, strict=True), Model()]
    for found, function in zip(Parallel(n_jobs=2)(delayed(each)(batch) for each in functions), functions):
        same(found, function(batch))
    gradients = [ab.grad(lambda x: f(x)), ab.grad(f)]
    for found, function in zip(Parallel(n_jobs=2)(delayed(each)(xs[0]) for each in gradients), gradients):
        same(found, function(xs[0]))
    print("sent")
"""

CELL = '''
import cloudpickle
CODE = """
def of_another_cell(x):
    return np.tanh(x)

@ab.batch(strict=True)
def cell(x):
    h = 0.0
    for row in x:
        if h < 5:
            h = of_another_cell(h + row.sum())
    return h
"""
linecache.cache["<cell 7>"] = (len(CODE), None, CODE.splitlines(True), "<cell 7>")
exec(compile(CODE, "<cell 7>", "exec"), globals())
again = cloudpickle.loads(cloudpickle.dumps(cell))
same(again(batch), cell(batch))
there = "import pickle, sys; f, batch = pickle.load(sys.stdin.buffer); print(repr(f), f(batch).data.tolist())"
sent = cloudpickle.dumps((cell, batch))
run = subprocess.run([sys.executable, "-W", "error", "-c", there], input=sent, capture_output=True)
assert run.stdout.decode().split(" ", 3)[:3] == ["<batch", "function", "cell>"], run.stderr.decode()
same(eval(run.stdout.decode().split(" ", 3)[3]), cell(batch).data)
print("sent")
'''


KERNELS = """
from autobatch.blocks import kernel_cache

@ab.batch
def steps(x):
    n = 0
    while x > 1.0:
        x = x / 2.0
        n += 1
    return n

def closed_over(k):
    def g(x):
        total = 0.0
        for i in range(int(x)):
            total += k * i
        return total
    return g

def there(function, xs):
    asked = []
    kernel_cache._compiler.ask = lambda kernel: asked.append(kernel) or False
    with ab.options(way="compiled"):
        found = ab.map(function, xs)
    return found, len(asked)

def are_found(functions, send):
    numbers = [3.0, 100.0, 7.5]
    for function in functions:
        with ab.options(way="compiled"):
            ab.map(function, numbers)
    assert kernel_cache.wait_for_kernels()
    for (found, asked), function in zip(send(functions, numbers), functions):
        assert found == [function(x) for x in numbers], found
        assert asked == 0, "a kernel that is on disk was compiled again"
"""

SPAWN = (
    KERNELS
    + """
if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(f)) is f
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        same(pool.map(f, xs), [f(x) for x in xs])
        same(pool.apply(f, (batch,)), f(batch))
        same(pool.map(Model(), xs), [Model()(x) for x in xs])
        are_found([steps], lambda functions, numbers: [pool.apply(there, (each, numbers)) for each in functions])
    print("sent")
"""
)

KERNELS_BY_JOBLIB = (
    KERNELS
    + """
if __name__ == "__main__":
    from joblib import Parallel, delayed
    functions = [steps, closed_over(2.0)]
    are_found(functions, lambda given, numbers: Parallel(n_jobs=2)(delayed(there)(each, numbers) for each in given))
    print("sent")
"""
)


@pytest.mark.parametrize(
    ("script", "needs"),
    [
        (SPAWN, "multiprocessing"),
        (JOBLIB, "joblib"),
        (CELL, "cloudpickle"),
        pytest.param(KERNELS_BY_JOBLIB, "joblib", marks=pytest.mark.slow),
    ],
    ids=["spawn", "joblib", "cell", "kernels by joblib"],
)
def test_functions_of_a_script(script, needs, tmp_path):
    pytest.importorskip(needs)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + script)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment, timeout=240)
    assert run.stdout.strip() == "sent", run.stderr[-2000:]


@ab.batch
def of_a_module(x):
    return x * 2


def plain(x):
    return x * 3


of_another_name = ab.batch(plain, strict=True)


def test_functions_of_modules_go_by_name():
    assert pickle.loads(pickle.dumps(of_a_module)) is of_a_module
    again = pickle.loads(pickle.dumps(of_another_name))
    assert type(again) is type(of_another_name)
    assert (again.__wrapped__, again.strict) == (plain, True)
    assert_same(again(ab.collate([1.0])).examples(), [3.0])


def test_a_function_within_a_function_has_no_name_to_go_by():
    within = ab.batch(lambda x: x)
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"local|lookup|pickle"):
        pickle.dumps(within)
