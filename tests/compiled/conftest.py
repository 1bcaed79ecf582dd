"""The tests of the compiled way have the process that compiles, which the others do without."""

import pytest

from autobatch.blocks import kernel_cache


@pytest.fixture(autouse=True)
def _compiler(monkeypatch):
    monkeypatch.setattr(kernel_cache, "_compiler", _own)


_own = kernel_cache._Compiler()
