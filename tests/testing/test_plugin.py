"""The pytest plugin: a user's test is one line, and a project that does not use it does not pay for it."""

import pathlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def run_pytest(folder, *args):
    """pytest with the plugin loaded, in another process, in a project of its own; whether it is installed or not."""
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); "
        "from importlib.metadata import entry_points; "
        "installed = any(e.name == 'autobatch' for e in entry_points(group='pytest11')); "
        "import pytest; sys.exit(pytest.main(sys.argv[1:] + ([] if installed else ['-p', '_autobatch_pytest'])))"
    )
    command = [sys.executable, "-c", program, str(ROOT), "-q", "-p", "no:cacheprovider", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.fixture
def project(tmp_path):
    return project_in(tmp_path)


def project_in(folder):
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return folder


PROVED = """
import numpy as np

calls = []
ragged = [np.ones((2, 3)), np.ones((4, 3))]

def model(x, w):
    return (x * w).sum()

def counts(x):
    calls.append(0)
    return x + len(calls)

def test_model(equivalent):
    equivalent(model, [np.ones(2), np.ones(3)], w=np.float64(2))

def test_wrong_model(equivalent):
    equivalent(counts, [np.ones(2), np.ones(3)])

def test_right(same):
    same(lambda x: x.sum(0), lambda padded: padded.sum(1), ragged)

def test_wrong(same):
    same(lambda x: x.mean(0), lambda padded: padded.mean(1), ragged)
"""


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    """What pytest said of two right models and two wrong ones: all, of each wrong one, and the report in XML."""
    folder = project_in(tmp_path_factory.mktemp("proved"))
    (folder / "test_model.py").write_text(PROVED)
    run = run_pytest(folder, "--junit-xml=report.xml")
    assert run.returncode == 1, run.stdout + run.stderr
    said = dict(re.findall(r"^_+ (test_\w+) _+$(.*?)(?=^[_=]{9})", run.stdout, re.MULTILINE | re.DOTALL))
    return run.stdout, said, (folder / "report.xml").read_text()


def test_one_line_proves_a_model(proved):
    out, said, report = proved
    assert "2 failed, 2 passed" in out
    assert said.keys() == {"test_wrong_model", "test_wrong"}
    assert "lock-step on MaskedBatch: equal" in report


def test_a_wrong_model_fails_with_its_message(proved):
    _, said, _ = proved
    assert "differs from the loop over the examples" in said["test_wrong_model"]
    assert "called again with this example" in said["test_wrong_model"]
    assert "check_equivalence" not in said["test_wrong_model"]  # none of the library's own frames


def test_one_line_proves_a_batched_function_of_ones_own(proved):
    _, said, _ = proved
    assert "it divides by the padded length" in said["test_wrong"]
    assert "def _check" not in said["test_wrong"]  # none of the library's own frames


def test_a_project_that_does_not_use_it_imports_nothing(project):
    (project / "test_other.py").write_text(
        "import sys\n"
        "def test_nothing_was_imported():\n"
        "    assert '_autobatch_pytest' in sys.modules\n"
        "    assert not {'autobatch', 'numpy', 'numba'} & set(sys.modules)\n"
    )
    others = {each.name for each in entry_points(group="pytest11")} - {"autobatch"}  # which may import NumPy
    run = run_pytest(project, *(word for name in others for word in ("-p", f"no:{name}")))
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_plugin_is_an_entry_point():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["entry-points"]["pytest11"] == {"autobatch": "_autobatch_pytest"}
    assert "_autobatch_pytest" in settings["tool"]["setuptools"]["py-modules"]


EXPLAINED = """
import numpy as np
import autobatch as ab

def model(x, w):
    y = np.tanh(x * w)
    return y.sum()

def test_calls():
    assert len(ab.map(model, [np.ones(2), np.ones(3)], w=2.0)) == 2
    ab.batch(model)(ab.MaskedBatch.from_examples([np.ones(2), np.ones(3)]), 2.0)

def test_no_call():
    assert model(np.ones(2), 1.0) > 0
"""


def test_calls_are_explained_on_request(project):
    (project / "test_model.py").write_text(EXPLAINED)
    run = run_pytest(project, "--autobatch-explain")
    assert run.returncode == 0, run.stdout + run.stderr
    _, _, explained = run.stdout.partition("autobatch explain")
    assert "test_model.py::test_calls\n1 call by tracing, 1 call in lock-step; " in explained
    assert "where the time goes:\n" in explained
    assert "  test_model.py:" in explained
    assert "test_no_call" not in explained
