"""What several files of tests watch."""

import pytest

from autobatch.lockstep import blocks, scans


@pytest.fixture
def step_by_step(monkeypatch):
    """Every step of a loop is a launch of its own."""
    monkeypatch.setattr(scans, "_MOST_TRIES", 0)


@pytest.fixture
def products(monkeypatch):
    """The row counts of the products in launches, those of the items first."""
    seen = []

    def counting(launch):
        def counted(program, *operands):
            out = launch(program, *operands)
            for step in program.steps:
                if step.op.name == "matmul":
                    seen.append((program.avals[step.args[0]].shape[-1], out[0].shape[0]))
            return out

        return counted

    for name in ("launch", "launch_rows"):
        monkeypatch.setattr(blocks, name, counting(getattr(blocks, name)))
    return seen
