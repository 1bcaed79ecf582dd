"""How tests of blocks compile: without waiting for a program to run a few times."""

import pytest

from autobatch.blocks import launch


@pytest.fixture
def compiled_at_once(monkeypatch):
    """Programs have their compiled form from the first run on, and kernels, where there are any."""
    monkeypatch.setattr(launch, "RUNS_BEFORE_A_FORM", 0)
    monkeypatch.setattr(launch, "RUNS_BEFORE_KERNELS", 0)
