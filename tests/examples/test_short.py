"""The short examples: below sixty lines, equal to the loop by every way, and as good as their docstrings say."""

import ast
import importlib
import pathlib

import numpy as np
import pytest

import autobatch as ab

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"
FOLDERS = ("recommend", "text", "series", "structures")
SHARED = {"sessions"}  # what two examples share
NAMES = [
    f"{folder}.{path.stem}"
    for folder in FOLDERS
    for path in sorted((ROOT / folder).glob("*.py"))
    if path.stem not in SHARED | {"__init__", "torch_batch"}
]


@pytest.mark.parametrize("name", NAMES)
def test_every_way_gives_what_the_loop_gives(name):
    """The loss of one example, its value and gradients, on three examples."""
    module, rng = importlib.import_module(f"examples.{name}"), np.random.default_rng(1)
    shared = {"params": module.init(rng)} if hasattr(module, "init") else {}
    columns = zip(*[module.sample(rng) for _ in range(3)], strict=True)
    assert ab.testing.assert_equivalent(module.loss, *columns, **shared).examples == 3


QUICK = {"recommend.din", "text.crf", "series.soft_dtw"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in NAMES])
def test_it_is_as_good_as_it_says(name):
    module = importlib.import_module(f"examples.{name}")
    assert module.run() >= module.BAR


def test_the_mistakes_of_a_torch_batch_are_found():
    pytest.importorskip("torch")
    found = importlib.import_module("examples.structures.torch_batch").run()
    assert found["careful"] == []
    assert len(found["careless"]) == len(found["half_careful"]) == 6  # two short examples, three batches
    assert any("poison" in each for each in found["careless"])


def test_there_are_twenty_and_they_are_short():
    paths = [ROOT / folder / f"{stem}.py" for folder, _, stem in (name.partition(".") for name in NAMES)]
    paths.append(ROOT / "structures" / "torch_batch.py")
    assert len(paths) >= 20 - 1  # and the demo, which is longer
    for path in paths:
        text = path.read_text(encoding="utf-8")
        docstring = len((ast.get_docstring(ast.parse(text)) or "").splitlines()) + 2
        lines = sum(bool(line.strip()) for line in text.splitlines()) - docstring
        assert lines < 60, f"{path.name} has {lines} lines of code"
