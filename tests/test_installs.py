"""Other ways to run the package than from its checkout: optimised, from a zip file, as byte code, from a wheel."""

import compileall
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

import autobatch

pytestmark = pytest.mark.timeout(1800)  # kernels are compiled anew in each place, on a machine that may be busy
PACKAGE = pathlib.Path(autobatch.__file__).parent
PATIENCE = 800  # seconds for one process
SMOKE = """
import pathlib, sys
import numpy as np
import autobatch as ab

def score(ids, table, w):
    h = np.zeros(w.shape[1])
    for row in table[ids]:
        h = np.tanh(row @ w + 0.5 * h)
        if h.sum() > 2.0:
            break
    return h.sum()

rng = np.random.default_rng(0)
table, w = rng.standard_normal((20, 4)), rng.standard_normal((4, 3))
examples = [rng.integers(0, 20, n).astype(np.int32) for n in (5, 0, 1, 9)]
want = [score(x, table, w) for x in examples]
for way in ("lockstep", "fly", "loop", "auto"):
    with ab.options(way=way):
        np.testing.assert_allclose(ab.map(score, examples, table=table, w=w), want)
        np.testing.assert_allclose(ab.examples(ab.batch(score)(ab.collate(examples), table, w)), want)
loss = lambda p: sum(ab.map(score, examples, table=p["table"], w=p["w"]))
params = {"table": ab.EmbeddingTable(table.copy()), "w": w.copy()}
slopes = ab.grad(loss)(params)
step = 1e-6
moved = {"table": table, "w": w + step * np.eye(4, 3)}
drop = sum(score(x, **moved) for x in examples) - sum(want)
np.testing.assert_allclose(np.trace(slopes["w"]), drop / step, rtol=1e-3)
optimizer = ab.optim.Adam(0.1)
optimizer.update(params, slopes, optimizer.init(params))
assert not np.array_equal(params["w"], w) or sys.flags.optimize
bags = ab.embedding_bag(np.concatenate(examples), table, np.array([0, 5, 5, 6]), mode="sum")
np.testing.assert_allclose(bags, [table[x].sum(0) for x in examples])
users = ab.EmbeddingVariable(4)
assert users[[7, -7]].shape == (2, 4)
print(ab.__file__)
"""


def run(*options, path, cwd, script=SMOKE, **env):
    """Run the script by another interpreter, with `path` before everything else; what it printed."""
    file = cwd / "smoke.py"
    file.write_text(script, encoding="utf-8")
    settings = {**os.environ, "PYTHONPATH": str(path), "AUTOBATCH_CACHE_DIR": str(cwd / "kernels"), **env}
    done = subprocess.run(
        [sys.executable, *options, str(file)], cwd=cwd, env=settings, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, done.stderr
    return done.stdout.strip()


OPTIONS = ("-O", "-OO", "-I", "-X dev", "-W error")  # no asserts, no docstrings, apart from all else, more checks
SLOW = OPTIONS[1:4]


@pytest.mark.parametrize(
    "options", [pytest.param(each, marks=pytest.mark.slow if each in SLOW else ()) for each in OPTIONS]
)
def test_by_an_interpreter_with_other_options(options, tmp_path):
    script = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{SMOKE}"
    run(*options.split(), path=PACKAGE.parent, cwd=tmp_path, script=script)


def test_without_the_compiler(tmp_path):
    run(path=PACKAGE.parent, cwd=tmp_path, NUMBA_DISABLE_JIT="1")


@pytest.mark.slow  # Numba keeps nothing of what it compiled from there
def test_from_a_zip_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for path in PACKAGE.rglob("*.py"):
            archive.write(path, path.relative_to(PACKAGE.parent))
    assert "package.zip" in run(path=tmp_path / "package.zip", cwd=tmp_path)


@pytest.mark.slow  # all kernels are compiled anew
def test_as_byte_code_alone(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "lib/autobatch", ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(tmp_path / "lib", legacy=True, quiet=2)
    for path in (tmp_path / "lib").rglob("*.py"):
        path.unlink()
    assert run(path=tmp_path / "lib", cwd=tmp_path).endswith("__init__.pyc")


PLACES = """
import errno, os, sys

def refuse(event, args):
    path = str(args[0]) if args else ""
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if KIND == "no process" and event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    if KIND == "no thread" and event == "_thread.start_new_thread":
        raise RuntimeError("can't start new thread")
    if KIND == "a read-only disk" and (event == "os.mkdir" or writes) and not path.startswith("/dev/"):
        raise OSError(errno.EROFS, "Read-only file system", path)
    if KIND == "no shared memory" and (event == "_posixshmem.shm_open" or path.startswith("/dev/shm")):
        raise OSError(errno.ENOSPC, "No space left on device", path)

sys.addaudithook(refuse)
if KIND == "few addresses":
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
if KIND == "no home":
    import pwd
    pwd.getpwuid = {}.__getitem__
    for name in ("HOME", "XDG_CACHE_HOME", "AUTOBATCH_CACHE_DIR"):
        os.environ.pop(name, None)
"""
LITTLE = """
import numpy as np
import autobatch as ab

def score(x):
    h = 0.0
    for v in x:
        h = np.tanh(0.5 * h + v)
    return h

examples = [np.arange(n) / 8.0 for n in (3, 0, 5, 1)]
want = list(map(score, examples))
for way in ("lockstep", "fly", "compiled", "auto"):
    with ab.options(way=way):
        for _ in range(9):
            np.testing.assert_allclose(ab.map(score, examples), want)
            np.testing.assert_allclose(ab.examples(ab.batch(score)(ab.collate(examples))), want)
ids, table = np.array([0, 2, 2]), np.ones((3, 4), np.float32)
np.testing.assert_array_equal(ab.embedding_bag(ids, table, [0, 1], mode="sum"), [[1.0] * 4, [2.0] * 4])
users = [ab.EmbeddingVariable(4) for _ in range(3)]
for each in users:
    each.insert([7])
    assert 7 in each and each.export()[0].tolist() == [7]
np.empty(1 << 30, np.uint8)  # a table of keys reserves addresses, and leaves some
"""


@pytest.mark.skipif(sys.platform == "win32", reason="refuses what POSIX systems are asked for")
@pytest.mark.parametrize(
    "kind", ["no process", "no thread", "a read-only disk", "no shared memory", "few addresses", "no home"]
)
def test_what_is_missing_costs_speed_only(kind, tmp_path):
    """In this process and in the one that compiles, which has the same `sitecustomize`."""
    (tmp_path / "sitecustomize.py").write_text(f"KIND = {kind!r}\n{PLACES}", encoding="utf-8")
    run(path=f"{tmp_path}{os.pathsep}{PACKAGE.parent}", cwd=tmp_path, script=LITTLE)


@pytest.mark.slow  # it asks the package registry for what builds it
def test_wheel_and_source_distribution_in_an_empty_environment(tmp_path):
    shutil.copytree(
        PACKAGE.parent, tmp_path / "source", ignore=shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build")
    )
    python = tmp_path / "env/bin/python"
    for line in (
        f"{sys.executable} -m venv {tmp_path}/env",
        f"{python} -m pip install --quiet build",
        f"{python} -m build --outdir {tmp_path}/dist {tmp_path}/source",  # the wheel is made from the sdist
        f"{python} -m pip install --quiet --find-links {tmp_path}/dist autobatch-numpy=={autobatch.__version__}",
    ):
        subprocess.run(line.split(), cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE)
    file = tmp_path / "smoke.py"
    file.write_text(SMOKE, encoding="utf-8")
    command = [str(python), "-I", str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert str(tmp_path / "env") in done.stdout
