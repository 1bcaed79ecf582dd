"""A few hostile calls; `python -m tests.hostile` makes as many as wanted."""

import subprocess
import sys

import pytest

from tests.hostile import in_processes

pytestmark = pytest.mark.fuzz


def test_hostile_calls_neither_crash_nor_leak():
    in_processes(range(150))


def test_a_read_past_the_end_is_noticed():
    code = "import numpy as np; from tests.hostile import guarded; import ctypes; a = guarded(np.zeros(3)); "
    code += "ctypes.string_at(a.ctypes.data + a.nbytes, 1)"
    assert run(code) < 0
    assert run(code.replace("+ a.nbytes", "+ a.nbytes - 1")) == 0


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
