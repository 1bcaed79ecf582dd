"""The tests of the compiled way have the process that compiles, which the others do without.

A module that asks for `as_text` is run by Python from the text that is compiled, and compiled under `slow`; those of
its tests that are marked `machine_code`, for which the text cannot stand, both ways each time.
"""

import pytest

from autobatch.blocks import kernel_cache
from tests.compiled.interpreted import interpreted


def pytest_generate_tests(metafunc):
    if "as_text" in metafunc.fixturenames:
        marks = () if metafunc.definition.get_closest_marker("machine_code") else pytest.mark.slow
        ways = [pytest.param(True, id="text"), pytest.param(False, id="compiled", marks=marks)]
        metafunc.parametrize("as_text", ways, indirect=True)


@pytest.fixture
def as_text(request):
    if request.param:
        with interpreted():
            yield
    else:
        yield


@pytest.fixture(autouse=True)
def _compiler():
    with pytest.MonkeyPatch.context() as patch:  # of its own: what a test patches is taken back before `as_text` is
        patch.setattr(kernel_cache, "_compiler", _own)
        yield


_own = kernel_cache._Compiler()
