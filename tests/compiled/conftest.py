"""The tests of the compiled way have the process that compiles, which the others do without."""

import contextlib

import pytest

from autobatch.blocks import kernel_cache
from tests.compiled.interpreted import interpreted


@pytest.fixture(autouse=True)
def _compiler(monkeypatch):
    monkeypatch.setattr(kernel_cache, "_compiler", _own)


_own = kernel_cache._Compiler()


@pytest.fixture(params=["text", pytest.param("compiled", marks=pytest.mark.slow)])
def text_or_compiled(request):
    """Python runs the text that is compiled; under `slow`, the same is compiled."""
    with interpreted() if request.param == "text" else contextlib.nullcontext():
        yield
