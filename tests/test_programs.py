"""Every test program, plain, in lock-step and on the fly: the law of the library on whole programs."""

import importlib

import pytest

import autobatch as ab
from autobatch.core.fallback import noted_fallbacks
from tests.lockstep.law import batch_of
from tests.programs.registry import PROGRAMS

for _kind in ("sequences", "branches", "control", "loops", "shapes", "syntax", "trees"):
    importlib.import_module(f"tests.programs.{_kind}")

# What lock-step runs as a loop over the examples: objects that change, and what no batch of arrays has.
LOOPS = {"least_squares", "model_driven_parser", "graph_network", "beam_search"}
RAISES = {"raises_for_some", "maximum_of_perhaps_nothing", "lengths_that_disagree"}


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_batch_equals_loop(name):
    program = PROGRAMS[name]
    report = ab.testing.assert_equivalent(program.f, *program.examples, grad=program.grad, **program.shared)
    assert report is not None


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - RAISES))
def test_lock_step_falls_back_only_where_it_is_known_to(name):
    program = PROGRAMS[name]
    with noted_fallbacks() as found:
        ab.batch(program.f)(*map(batch_of, program.examples), **program.shared)
    assert bool(found) == (name in LOOPS), found


def test_the_register_is_not_empty():
    assert len(PROGRAMS) > 60
