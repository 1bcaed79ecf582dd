"""The command `autobatch`: what it prints, its exit statuses, and that errors are of one line."""

import dataclasses
import inspect
import os
import subprocess
import sys
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.blocks.kernel_cache import SUFFIX
from autobatch.cli import doctor, small_demo
from autobatch.cli.commands import main
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
    assert capsys.readouterr().out == f"{ab.__version__}\n"  # not that of a distribution named autobatch
    with pytest.raises(SystemExit, match="2"):
        main(["--nonsense"])
    shown = capsys.readouterr().err
    assert "--nonsense" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("command", ["", "demo", "check", "bench", "explain", "source", "cache", "doctor"])
def test_help_fits_the_terminal_and_keeps_its_lines(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"] if command else ["--help"])
    lines = capsys.readouterr().out.splitlines()
    if not command:
        main([])
        lines += capsys.readouterr().out.splitlines()
        assert "  autobatch doctor                 what is slow on this machine, and why" in lines
    assert [line for line in lines if len(line) > 80] == []


def test_it_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "autobatch"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("autobatch")


def test_a_reader_that_leaves_early_is_no_error():
    """As `| head` does; here before the first line."""
    with subprocess.Popen([sys.executable, "-m", "autobatch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 0


@pytest.mark.parametrize("form", ["", "blocks", "rewritten"])
def test_the_source_of_a_function_is_printed(capsys, form):
    assert main(["source", "examples.tree:logits", *([f"--{form}"] if form else [])]) == 0
    assert capsys.readouterr().out.rstrip("\n") == ab.source(tree.logits, **({form: True} if form else {}))


MODEL = """
import numpy as np
def model(x, w):
    return np.tanh(x * w).sum()
examples = [np.ones(2), np.ones(3)]
def weights():
    return 2.0
"""


@pytest.mark.chosen
@pytest.mark.parametrize("examples", ["a_model:examples", "xs.npy", "xs.npz", "xs.json"])
def test_a_function_is_explained(capsys, tmp_path, monkeypatch, examples):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "a_model", raising=False)
    (tmp_path / "a_model.py").write_text(MODEL)
    np.save("xs.npy", np.ones((4, 3)))
    np.savez("xs.npz", np.ones(2), np.ones(3))
    (tmp_path / "xs.json").write_text("[1.0, 2.0]")
    given = ["--examples", examples, "--shared", "w=a_model:weights", "--html", "out.html", "--trace", "out.json"]
    assert main(["explain", "a_model.py:model", *given]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith({"xs.npy": "4 examples: "}.get(examples, "2 examples: "))
    assert "return np.tanh(x * w).sum()" in shown
    assert "return np.tanh(x * w).sum()" in (tmp_path / "out.html").read_text()
    assert "traceEvents" in (tmp_path / "out.json").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["examples.tree:nothing", "--examples", "xs.npy"], "has no attribute 'nothing'"),
        (["examples.tree:logit", "--examples", "xs.npy"], "has no attribute 'logit'; did you mean logits?"),
        (["exmples.tree:logits", "--examples", "xs.npy"], "No module named 'exmples'; did you mean examples?"),
        (["examples.tre:logits", "--examples", "xs.npy"], "No module named 'examples.tre'; did you mean tree?"),
        (["examples.tree:logits", "--examples", "xs.npy"], "xs.npy does not exist; expected MODULE:NAME"),
        (["examples.tree:logits", "--examples", "sys:path", "--shared", "params"], "expected NAME=VALUE"),
        (["examples.tree:logits", "--examples", "sys:path", "params=sys:path"], "(NAME=VALUE goes to --shared)"),
        (["builtins:abs", "--examples", "sys:path"], "bad operand type for abs(): 'str'; raised for example 0"),
    ],
)
@pytest.mark.chosen
def test_what_cannot_be_explained_is_an_error_of_one_line(capsys, given, message):
    before = list(sys.path)
    assert main(["explain", *given]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
    assert message in shown
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("examples.tree:nothing", "has no attribute 'nothing'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("examples.tree", "expected MODULE:NAME"),
        ("math:sin", "is not a function written in Python"),
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


def test_a_module_is_named_by_its_file_too(capsys, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "by_file.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "broken_file.py").write_text("\ndef f(:\n")
    monkeypatch.chdir(tmp_path)
    for name in ("sub/by_file.py", "./sub/by_file.py", str(tmp_path / "sub" / "by_file.py"), "sub.by_file"):
        assert main(["source", f"{name}:f"]) == 0
        assert "return x" in capsys.readouterr().out
    assert main(["source", "broken_file.py:f"]) == 1
    assert capsys.readouterr().err.endswith("(broken_file.py, line 2)\n")
    monkeypatch.chdir(tmp_path / "sub")
    assert main(["source", "../broken_file.py:f"]) == 1
    assert "../broken_file.py is outside the current folder" in capsys.readouterr().err


MODELS = """
import numpy as np
w = np.array([1.0, 2.0])
xs = [np.ones((2, 2)), np.ones((1, 2))]
def examples():
    return xs
def f(x, w):
    return (x @ w).mean(0)
def right(padded, mask, w):
    return np.where(mask, padded @ w, 0).sum(1) / mask.sum(1)
def wrong(padded, mask, w):
    return (padded @ w).mean(1)
def total(x):
    return x.sum()
def pair(x, y):
    return x.sum() + y
class Model:
    def __init__(self):
        self.w = w
    def __call__(self, x):
        return f(x, self.w)
model = Model()
def apply(x, model):
    return model(x)
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["expalin", "models:f"], "did you mean explain?"),
        (["version"], "did you mean --version?"),
        (["check", "models:f", "--examples", "models:xs", "--shard", "w=models:w"], "did you mean --shared?"),
        (
            ["check", "models:f"],
            "required: --examples EXAMPLES; write autobatch check models:loss --examples models:words models",
        ),
        (
            ["check", "models:f", "--examples", "models:xs", "--way", "fly"],
            "--way fly; see autobatch --help",
        ),
        (["doctor", "--fast"], "unrecognized arguments: --fast; see autobatch --help"),
    ],
)
def test_a_mistyped_word_is_told_what_was_meant(arguments, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "shown"),
    [
        (["f", "--examples", "models:xs", "--shared", "w=models:w"], 0, "ab.map: equal"),
        (["f", "--examples", "models:examples", "--shared", "w=models:w", "--no-grad"], 0, "(grad=False)"),
        (["f", "--examples", "models:xs", "--shared", "w=models:w", "--errors", "raise"], 0, "ab.map: equal"),
        (["f", "--batched", "models:right", "--examples", "models:xs", "--errors", "raise"], 2, "with --batched"),
        (["f", "--batched", "models:right", "--examples", "models:xs", "--shared", "w=models:w"], 0, "shuffled: equal"),
        (
            ["f", "--batched", "models:wrong", "--examples", "models:xs", "--shared", "w=models:w"],
            1,
            "as padded.mean(1)",
        ),
        (["total", "--examples", "xs.json"], 0, "3 examples"),
        (["total", "--examples", "xs.jsonl"], 0, "2 examples"),
        (["total", "--examples", "xs.npy"], 0, "4 examples"),
        (["pair", "--examples", "models:xs", "--examples", "models:w"], 0, "2 examples"),
        (["apply", "--examples", "models:xs", "--shared", "model=models:model"], 0, "ab.map: equal"),
        (["apply", "--examples", "models:xs", "--shared", "model=models:Model"], 0, "ab.map: equal"),
        (["f", "--examples", "models:xs"], 2, "missing a required argument: 'w'"),
        (["f", "--examples", "models:xs"], 2, "give --shared w=MODULE:NAME"),
        (["f", "--examples", "models:xs", "--shared", "weight=models:w"], 2, "did you mean --shared w=... in place"),
        (["nothing", "--examples", "models:xs"], 2, "has no attribute 'nothing'"),
        (["f", "--examples", "xs"], 2, "expected MODULE:NAME"),
        (["f", "--examples", "none.json"], 2, "none.json does not exist"),
        (["f", "--examples", "models:xs", "--shared", "w"], 2, "expected NAME=VALUE"),
    ],
)
def test_a_function_is_checked(arguments, status, shown, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "models", raising=False)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "xs.json").write_text("[[1, 2], [3], [4, 5, 6]]")
    (tmp_path / "xs.jsonl").write_text("[1, 2]\n[3]\n")
    np.save(tmp_path / "xs.npy", np.ones((4, 3)))
    before = list(sys.path)
    assert main(["check", f"models:{arguments[0]}", *arguments[1:]]) == status
    out = capsys.readouterr()
    assert shown in (out.err if status == 2 else out.out)
    assert sys.path == before


BENCHED = """
import numpy as np

def norm(x, w):
    return np.tanh(x @ w).sum()

def two(x, y):
    return (x * 2.0).sum() + y

def examples():
    return [np.ones((n, 4)) for n in (1, 5, 3)]

xs, ys = [np.ones(2), np.ones(3)], [1.0, 2.0]
w = np.ones((4, 3))

def fails(x, w):
    return x @ w[:3]

nothing = []
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "cli_model.py").write_text(BENCHED)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("cli_model", None)


ON_MODEL = ["--examples", "cli_model:examples", "--shared", "w=cli_model:w"]


@pytest.mark.usefixtures("model")
def test_bench_times_every_way(capsys):
    assert main(["bench", "cli_model:norm", *ON_MODEL, "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    for way in ("the loop", "lock-step", "tracing", "compiled"):
        assert any(row.startswith(way) for row in out.splitlines())
    assert main(["bench", "cli_model:two", "--examples", "cli_model:xs", "cli_model:ys", "--seconds", "0"]) == 0


def test_what_bench_says_has_its_place_and_fits(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delitem(sys.modules, "long_model", raising=False)
    (tmp_path / "long_model.py").write_text(
        "def f(x):\n    return [x.sum() * x.max() + x.min(), f'{x.mean() - x.std()} of it']\n"
    )
    np.save("xs.npy", np.ones((3, 2)))
    assert main(["bench", "long_model:f", "--examples", "xs.npy", "--seconds", "0"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert any(row.startswith("compiled     long_model.py:2: `") for row in rows)
    assert max(map(len, rows)) <= 80


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cli_model:fails", *ON_MODEL], "cli_model.py:17"),
        (["cli_model:norm", "--examples", "cli_model:examples"], "missing 1 required positional argument: 'w'"),
        (["cli_model:norm", "--examples", "cli_model:nothing"], "expected one number for all, at least 1"),
        (["cli_model:two", "--examples", "cli_model:xs", "cli_model:examples"], "the arguments have [2, 3] examples"),
        (["cli_model:norm", "--examples", "math:pi"], "'float' object is not iterable"),
        (["cli_model:norm", "--examples", "cli_model:examples", "--shared", "w"], "expected NAME=VALUE"),
    ],
)
def test_what_cannot_be_timed_is_an_error_of_one_line(arguments, message, capsys):
    assert main(["bench", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
    assert message in shown


def test_the_cache_is_listed_measured_and_cleared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AUTOBATCH_CACHE_DIR", str(tmp_path))
    names = [f"kernel_{number:032x}{SUFFIX}" for number in (1, 2)]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 2000)
    (tmp_path / f"mine{SUFFIX}").write_bytes(b"not a kernel's")
    os.utime(tmp_path / names[0], (0, 0))
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"2 kernels, 4.0 kB, in {tmp_path}\n"
    assert main(["cache", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in listed[:-1]] == [names[1], names[0]]
    assert main(["cache", "clear", "--older", "10"]) == 0
    assert capsys.readouterr().out == f"removed 1 kernels, 2.0 kB, in {tmp_path}\n"
    for days in ("-1", "nan", "x"):  # a slip removes nothing
        with pytest.raises(SystemExit, match="2"):
            main(["cache", "clear", "--older", days])
        assert "--older" in capsys.readouterr().err
        assert len(list(tmp_path.iterdir())) == 2
    assert main(["cache", "clear"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"mine{SUFFIX}"]
    monkeypatch.setenv("AUTOBATCH_CACHE_DIR", str(tmp_path / "missing"))
    assert main(["cache", "list"]) == 0


def test_the_doctor_looks_at_everything(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(doctor, "_importing", lambda: doctor.Finding("import", "1 s"))
    monkeypatch.setattr(doctor, "_compiler", lambda: iter([doctor.Finding("compiler", "there")]))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for about in ("python", "versions", "machine", "threads", "BLAS", "cache", "lock-step", "tracing"):
        assert any(row[2:].startswith(about) for row in shown.splitlines())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOBATCH_CACHE_DIR", str(tmp_path / "file"))
    assert main(["doctor"]) == 1
    assert "AUTOBATCH_CACHE_DIR" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "verdict"), [(0.0, ""), (50.0, "slow")])
def test_the_doctor_says_that_compiling_is_slow(monkeypatch, seconds, verdict):
    times = iter([0.0, seconds])
    kernel = types.SimpleNamespace(poll=lambda: True, failed=False, entry=print)
    monkeypatch.setattr(doctor.kernel_cache, "kernel_of", lambda text: kernel)
    monkeypatch.setattr(doctor.kernel_cache, "forget_on_disk", lambda kernel: None)
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: next(times))
    (found,) = doctor._compiler()
    assert found.verdict == verdict
    assert f"{seconds:.1f} s" in found.found


@pytest.mark.slow  # starts the process that compiles
def test_the_doctor_has_a_kernel_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOBATCH_CACHE_DIR", str(tmp_path))
    run = subprocess.run([sys.executable, "-m", "autobatch", "doctor"], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "in its own process: a kernel after" in run.stdout
    assert not list(tmp_path.glob(f"*{SUFFIX}"))  # it leaves none


def test_a_small_demo_learns():
    lines = []
    assert not small_demo.run(lines.append, sentences=40, epochs=1)
    assert any("values and gradients equal the loop's" in line for line in lines)
    assert sum("held-out accuracy" in line for line in lines) == 1
    assert lines[1].strip("\n") == inspect.getsource(small_demo.logits).strip("\n")  # it shows what it runs


def test_numbers_of_a_json_file_are_pythons(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "kinds", raising=False)
    (tmp_path / "kinds.py").write_text("def f(n):\n    return {int: 7, float: 0.5, bool: 1}[type(n)] // n\n")
    (tmp_path / "xs.json").write_text(f"[2, 0.5, {10**30}, true]")
    assert main(["check", "kinds:f", "--examples", "xs.json"]) == 0, capsys.readouterr()
