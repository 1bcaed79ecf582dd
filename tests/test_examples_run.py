"""The examples run as a person runs them: another process, another folder of sources, warnings as errors."""

import asyncio
import importlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")
SOURCES = pathlib.Path(asyncio.__file__).parent  # a small part of the standard library


def run_demo(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "examples.demo", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("name", MODULES)
def test_an_example_can_be_imported_and_says_what_it_is(name):
    assert importlib.import_module(f"examples.{name}").__doc__


@pytest.mark.slow  # its parts are held by tests/examples, in this process
def test_the_demo_runs_on_another_folder():
    run = run_demo(str(SOURCES), "--quick")
    assert run.returncode == 0, run.stderr[-3000:]
    for model in ("bag of words", "bidirectional GRU", "Tree-LSTM"):
        assert f"\n{model[0].upper()}{model[1:]}\n  training  " in run.stdout
    assert run.stdout.count("  proof     values and gradients of 6 functions equal") == 3
    assert "held-out" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_the_demo_says_what_is_wrong_with_a_folder(tmp_path):
    run = run_demo(str(tmp_path / "missing"))
    assert run.returncode == 2
    assert "missing" in run.stderr
