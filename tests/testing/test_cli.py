"""`python -m autobatch` says what is installed and what can be set."""

import dataclasses
import subprocess
import sys

import pytest

import autobatch as ab
from autobatch.cli import main
from autobatch.core.config import Config
from examples import tree


def test_every_option_is_shown_with_its_meaning(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    for field in dataclasses.fields(Config):
        assert f"{field.name} = {field.default!r}\n      " in out
    assert "numpy" in out
    assert "ab.map" in out


def test_version_and_wrong_arguments(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    with pytest.raises(SystemExit, match="2"):
        main(["--nonsense"])
    assert "--nonsense" in capsys.readouterr().err


def test_it_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "autobatch"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("autobatch")


@pytest.mark.parametrize("blocks", [False, True])
def test_the_source_of_a_function_is_printed(capsys, blocks):
    assert main(["source", "examples.tree:logits", *["--blocks"][:blocks]]) == 0
    assert capsys.readouterr().out.rstrip("\n") == ab.source(tree.logits, blocks=blocks)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("examples.tree:nothing", "has no attribute 'nothing'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("examples.tree", "expected MODULE:FUNCTION"),
        ("math:sin", "is no function written in Python"),
    ],
)
def test_a_function_without_a_source_is_an_error_of_one_line(capsys, name, message):
    before = list(sys.path)
    assert main(["source", name]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
    assert message in shown
    assert sys.path == before
