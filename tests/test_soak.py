"""The long runs of `python -m tests.soak`, at a small scale."""

import gc
import sys

import pytest

from autobatch.program.bounded_caches import BoundedDict
from tests.soak import SOAKS, defined_and_dropped


@pytest.mark.parametrize("name", SOAKS)
def test_a_short_form(name):
    assert SOAKS[name](0.001 if name == "threads" else 0.004)


def test_functions_that_are_gone_are_let_go_of(monkeypatch):
    """Broken once: any of the dicts that know functions by their code, made to hold all."""
    defined_and_dropped(0)  # all modules are there
    modules = [module for name, module in sys.modules.items() if name.startswith("autobatch.")]
    for each in [each for module in modules for each in vars(module).values() if type(each) is BoundedDict]:
        monkeypatch.setattr(each, "most", 4)
    codes = [defined_and_dropped(number) for number in range(24)]
    gc.collect()
    assert sum(code() is not None for code in codes) <= 8
