"""Every test program, plain, in lock-step and on the fly: the law of the library on whole programs."""

import importlib

import pytest

import autobatch as ab
from tests.programs.registry import PROGRAMS

for _kind in ("sequences", "branches", "loops", "shapes", "trees"):
    importlib.import_module(f"tests.programs.{_kind}")


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_batch_equals_loop(name):
    program = PROGRAMS[name]
    report = ab.testing.assert_equivalent(program.f, *program.examples, grad=program.grad, **program.shared)
    assert report is not None


def test_the_register_is_not_empty():
    assert len(PROGRAMS) > 50
