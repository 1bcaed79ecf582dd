"""`python -m autobatch` says what is installed and what can be set."""

import dataclasses
import subprocess
import sys

import pytest

from autobatch.cli.main import main
from autobatch.core.config import Config


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
