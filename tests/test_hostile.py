"""A few hostile calls; `python -m tests.hostile` makes as many as wanted."""

import subprocess
import sys

import numpy as np
import pytest

from tests.hostile import in_processes
from tests.hostile_recipes import RECIPES

pytestmark = pytest.mark.fuzz


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
