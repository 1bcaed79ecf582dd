"""A type checker accepts the right calls of decorated functions and finds the wrong ones."""

import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

pytest.importorskip("mypy")


def test_mypy_finds_exactly_the_wrong_calls():
    snippets = HERE / "calls.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(snippets)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    found = set(re.findall(rf"{snippets.name}:(\d+): error: .*\[([\w-]+)\]$", run.stdout, re.MULTILINE))
    lines = enumerate(snippets.read_text(encoding="utf-8").splitlines(), 1)
    wanted = {(str(number), code[1]) for number, line in lines if (code := re.search(r"# wrong: ([\w-]+)$", line))}
    assert len(wanted) > 10
    assert found == wanted, run.stdout + run.stderr
