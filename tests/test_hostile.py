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
    "jax_function": "JAX checks what it hands over: tests/bridges",
    "torch_function": "torch checks what it hands over: tests/bridges",
    "ray": "starts processes: tests/ray sends what is lost, repeated and wrong",
    "serve": "bytes from anywhere are what tests/serving sends it",
    "optim.Optimizer": "the base of those that are called",
}


def test_every_public_name_is_in_a_recipe_or_has_a_reason():
    called = {ast.unparse(node) for node in ast.walk(ast.parse(inspect.getsource(hostile_recipes)))}
    called |= {f"ab.{name}" for name in FAMILY} | {f"ab.nn.{name}" for name in (*LAYERS, *FUNCTIONS_OF_NN)}
    names = {*ab.__all__, *(f"nn.{name}" for name in ab.nn.__all__), *(f"optim.{name}" for name in ab.optim.__all__)}
    assert {name for name in names if f"ab.{name}" not in called} == ELSEWHERE.keys()


def test_hostile_calls_neither_crash_nor_leak():
    in_processes(range(150))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_valid_call(name):
    call = RECIPES[name](np.random.default_rng(0))
    call.run(**call.arguments)


@pytest.mark.parametrize(("at_end", "past"), [(True, "+ a.nbytes"), (False, "- 1")])
def test_a_read_past_the_end_is_noticed(at_end, past):
    code = f"import numpy as np, ctypes; from tests.hostile import Guarded; g = Guarded(np.zeros(3), {at_end}); "
    code += f"a = g.array; ctypes.string_at(a.ctypes.data {past}, 1)"
    assert run(code) < 0
    assert run(code.replace(past, "")) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [("a.ctypes.data - 1, 0, 1", "wrote beside an array"), ("a.ctypes.data, 1, 1", "wrote into an argument")],
)
def test_a_write_is_noticed(change, said):
    code = (
        "import numpy as np, ctypes; from tests.hostile import Guarded; g = Guarded(np.zeros(3), True); a = g.array; "
    )
    code += f"ctypes.memset({change}); assert g.fault(False) == {said!r}"
    assert run(code) == 0


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
