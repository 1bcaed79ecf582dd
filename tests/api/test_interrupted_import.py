"""A first import that is left early: the next one, in the same process, begins anew, or is whole already."""

import subprocess
import sys

import pytest

_CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what runs behind
import autobatch as ab

if "{how}" == "Ctrl-C":
    def leave():
        signal.raise_signal(signal.SIGINT)
else:
    def leave():
        raise KeyboardInterrupt

class Leaving:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(self)
            leave()

sys.meta_path.insert(0, Leaving())
try:
    ab.map
except KeyboardInterrupt:
    print("left")
import numpy as np
print(ab.map(lambda x: (x * 2).sum(), [np.ones(3)])[0], ab.lookup(np.ones((3, 1)), np.array([1]))[0, 0])
import numba, numba.extending
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""

MODULES = ("autobatch.kernels.jit", "numba.core.types", "numba.core.typing.templates", "llvmlite.binding.ffi")


def run_left_at(module, how):
    code = _CODE.format(module=module, how=how)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.split() or done.stderr


@pytest.mark.parametrize("how", ["Ctrl-C", "exception"])
def test_an_import_after_one_that_was_left(how):
    assert run_left_at("numba.extending", how) == ["left", "6.0", "1.0", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("how", ["Ctrl-C", "exception"])
def test_an_import_left_anywhere(module, how):
    assert run_left_at(module, how) == ["left", "6.0", "1.0", "True"]
