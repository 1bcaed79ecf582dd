"""A few hostile calls; `python -m tests.hostile` makes as many as wanted."""

import ast
import inspect
import subprocess
import sys

import numpy as np
import pytest

import autobatch as ab
from tests import hostile_recipes
from tests.hostile import in_processes
from tests.hostile_recipes import FAMILY, FUNCTIONS_OF_NN, LAYERS, RECIPES

pytestmark = pytest.mark.fuzz
# Public names that no recipe calls, and why.
ELSEWHERE = {
    "Context": "an enumeration",
    "Table": "its kinds are called; what a kind of the user's may do wrong: tests/tables/test_protocol.py",
    "extend": "for who writes ops: rules are trusted with their operands",
    "tables": "its functions and classes are called",
    "jax_function": "JAX checks what it hands over: tests/bridges",
    "torch_function": "torch checks what it hands over: tests/bridges",
    "ray": "starts processes: tests/ray sends what is lost, repeated and wrong",
    "serve": "bytes from anywhere are what tests/serving sends it",
    "optim.Optimizer": "the base of those that are called",
}


def test_every_public_name_is_in_a_recipe_or_has_a_reason():
    called = {ast.unparse(node) for node in ast.walk(ast.parse(inspect.getsource(hostile_recipes)))}
    called |= {f"ab.{name}" for name in FAMILY} | {f"ab.nn.{name}" for name in (*LAYERS, *FUNCTIONS_OF_NN)}
    names = {
        *ab.__all__,
        *ab.segments.__all__,
        *ab.tables.__all__,
        *(f"nn.{name}" for name in ab.nn.__all__),
        *(f"optim.{name}" for name in ab.optim.__all__),
    }
    assert {name for name in names if f"ab.{name}" not in called} == ELSEWHERE.keys()


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 300), marks=pytest.mark.slow)], ids=str)
def test_hostile_calls_neither_crash_nor_leak(seeds):
    in_processes(seeds)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_valid_call(name):
    call = RECIPES[name](np.random.default_rng(0))
    call.run(**call.arguments)


READS = [(True, "+ a.nbytes"), (False, "- 1")]
WRITES = [("a.ctypes.data - 1, 0, 1", "wrote beside an array"), ("a.ctypes.data, 1, 1", "wrote into an argument")]
EACH_IN_A_PROCESS = """
import ctypes, os, sys
import numpy as np
from tests.hostile import Guarded

for code in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            exec(code)
        except BaseException as error:
            print(code, repr(error), sep=": ", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def read(at_end, past):
    return f"g = Guarded(np.zeros(3), {at_end}); a = g.array; ctypes.string_at(a.ctypes.data {past}, 1)"


def write(change, said):
    return f"g = Guarded(np.zeros(3), True); a = g.array; ctypes.memset({change}); assert g.fault(False) == {said!r}"


@pytest.fixture(scope="module")
def status_of():
    """By code, how a process ends that runs it: the child of one that has imported what all of them need."""
    codes = [read(at_end, place) for at_end, past in READS for place in (past, "")] + [write(*each) for each in WRITES]
    command = [sys.executable, "-c", EACH_IN_A_PROCESS, *codes]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(codes, map(int, run.stdout.split()), strict=True))


@pytest.mark.parametrize(("at_end", "past"), READS)
def test_a_read_past_the_end_is_noticed(status_of, at_end, past):
    assert status_of[read(at_end, past)] < 0
    assert status_of[read(at_end, "")] == 0


@pytest.mark.parametrize(("change", "said"), WRITES)
def test_a_write_is_noticed(status_of, change, said):
    assert status_of[write(change, said)] == 0
