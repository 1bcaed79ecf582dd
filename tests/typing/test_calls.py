"""Type checkers accept the right calls of decorated functions, find the wrong ones, and see every public name."""

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import typing

import pytest

import autobatch as ab
from autobatch.core.config import Config, OptionValues

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SNIPPETS = HERE / "calls.py"


EARLIER = {name: namespace for namespace in (ab.segments, ab.tables) for name in namespace.__all__}


def wrong_calls():
    """(line, mypy's code) of each call that is marked as wrong."""
    lines = enumerate(SNIPPETS.read_text(encoding="utf-8").splitlines(), 1)
    found = {(number, code[1]) for number, line in lines if (code := re.search(r"# wrong: ([\w-]+)$", line))}
    assert len(found) > 10
    return found


@pytest.fixture(scope="module")
def all_names(tmp_path_factory):
    """A module that reads each public name."""
    names = [*ab.__all__, *EARLIER]
    names += [
        f"{module}.{name}"
        for module in ("nn", "nn.init", "optim", "testing", "segments", "tables")
        for name in _public(module)
    ]
    path = tmp_path_factory.mktemp("names") / "names.py"
    path.write_text("import autobatch as ab\n" + "".join(f"print(ab.{name})\n" for name in names))
    return path


def _public(module):
    out = ab
    for part in module.split("."):
        out = getattr(out, part)
    return getattr(out, "__all__", [name for name in dir(out) if not name.startswith("_")])


def test_mypy_finds_exactly_the_wrong_calls(all_names):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(SNIPPETS), str(all_names)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    found = re.findall(r"(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", run.stdout, re.MULTILINE)
    assert {(name, int(line), code) for name, line, code in found} == {
        (SNIPPETS.name, line, code) for line, code in wrong_calls()
    }, run.stdout + run.stderr


def test_pyright_finds_exactly_the_wrong_calls(all_names):
    pyright = shutil.which("pyright") or shutil.which("pyright", path=str(pathlib.Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("pyright is not installed")
    command = [pyright, "--pythonpath", sys.executable, "--outputjson", "examples", str(SNIPPETS), str(all_names)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    try:
        report = json.loads(run.stdout)
    except ValueError:  # it is first to download itself, from where nothing may be reached
        pytest.skip(f"pyright does not run here: {run.stderr[-200:]}")
    errors = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    found = {(pathlib.Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}
    assert found == {(SNIPPETS.name, line) for line, _ in wrong_calls()}, errors


def test_options_are_those_that_checkers_know():
    """The same names and types, of a dataclass and of a typed dict."""
    hints = typing.get_type_hints(Config)
    assert typing.get_type_hints(OptionValues) == {
        field.name: hints[field.name] for field in dataclasses.fields(Config)
    }


def test_what_people_complete_is_what_is_public():
    assert set(ab.__all__) <= set(dir(ab))
    assert len(dir(ab)) <= 60
    for namespace in (ab.nn, ab.segments, ab.tables, ab.optim, ab.testing, ab.ray):
        assert set(namespace.__all__) == set(dir(namespace))


def test_names_that_have_moved_to_a_namespace_are_still_importable():
    for name, namespace in EARLIER.items():
        assert getattr(ab, name) is getattr(namespace, name)
        assert name not in dir(ab)
        exec(f"from autobatch import {name}", {})
    assert {"segment_sum", "lengths_to_offsets", "scatter_add", "maps_to_packed", "maplookup", "Table"} <= set(EARLIER)


def test_an_editable_install_is_a_path():
    """Then checkers see it; setuptools makes it one where the folder of packages is said."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["setuptools"]["package-dir"] == {"": "."}
    assert (ROOT / "autobatch" / "py.typed").exists()
