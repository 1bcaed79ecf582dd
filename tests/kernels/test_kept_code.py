"""What Numba compiled is kept in files that are not trusted: whatever is wrong with one, it is compiled again.

Broken once by hand: without the comparison of checksums a flipped bit ends the process.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import threading
import warnings

import numba
import numpy as np
import pytest
from numba.core import config

from autobatch import kernels
from autobatch.kernels import disk_cache
from autobatch.kernels.jit import jit
from tests.blocks.test_kernel_cache import CHANGES, DAMAGES, FOREIGN, full, posix

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
SOURCE = """
from autobatch.kernels.jit import jit

@jit
def total(xs, more):
    out = more
    for x in xs:
        out += x
    return out

@jit
def other(xs, more):
    return more
"""
XS = np.arange(4.0)
XS_TYPE = numba.float64[::1]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    (tmp_path / "kernels.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))  # Numba reads it when it first compiles
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(disk_cache, "_warned", set())
    return tmp_path


def module(folder):
    """The kernels as a new process finds them."""
    spec = importlib.util.spec_from_file_location("kernels_of_a_test", folder / "kernels.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def used(folder, name="total"):
    """Whether its machine code came from a file; it does what it should."""
    kernel = getattr(module(folder), name)
    assert kernel(XS, 1.0) == kernel.py_func(XS, 1.0)
    return bool(kernel.dispatcher.stats.cache_hits)


def file_of(folder, name="total"):
    (file,) = (folder / "kept").rglob(f"*.{name}-*{disk_cache.SUFFIX}")
    return file


def test_what_was_compiled_once_is_found(folder):
    assert [used(folder) for _ in range(3)] == [False, True, True]
    file = file_of(folder)
    assert os.listdir(file.parent) == [file.name], "no index, nothing left over"
    if hasattr(os, "getuid"):
        assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_again(folder, damage):
    used(folder)
    used(folder, "other")
    file, other = file_of(folder), file_of(folder, "other")
    good = file.read_bytes()
    file.write_bytes(DAMAGES[damage](good, other.read_bytes()))
    assert not used(folder)
    assert used(folder), "what was wrong is replaced"
    assert file.read_bytes()[32:] != b""


@posix
@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_is_no_file_of_one_s_own_is_not_read(folder, foreign):
    used(folder)
    file = file_of(folder)
    good = file.read_bytes()
    file.unlink()
    FOREIGN[foreign](file, good)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert not used(folder)
    if foreign == "a link":
        assert file.with_name("elsewhere").read_bytes() == good


@posix
def test_another_users_file_is_said_once_and_not_read(folder, monkeypatch):
    used(folder)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [used(folder) for _ in range(2)] == [False, False]
    assert ["others can write to it" in str(each.message) for each in said] == [True]


@pytest.mark.parametrize("where", ["replace", "mkstemp", "makedirs"])
def test_a_full_disk_costs_a_compilation(folder, monkeypatch, where):
    kernel = module(folder).total
    assert kernel.dispatcher is not None  # there was room when it was made
    monkeypatch.setattr(
        *{"replace": (os, "replace"), "mkstemp": (disk_cache.tempfile, "mkstemp"), "makedirs": (os, "makedirs")}[where],
        full_of(where),
    )
    assert kernel(XS, 1.0) == 7.0
    assert list((folder / "kept").rglob("*.kernel")) == []


def full_of(where):
    return lambda *_, **__: full()


@pytest.mark.parametrize("change", CHANGES)
def test_an_upgrade_compiles_again(folder, monkeypatch, change):
    used(folder)
    with monkeypatch.context() as patch:
        if change == "the CPU":  # the one that compiles stays what it is
            patch.setattr(disk_cache, "environment_digest", lambda: "of another")
        else:
            patch.setattr(*CHANGES[change])
            disk_cache.environment_digest.cache_clear()
        try:
            assert not used(folder)
        finally:
            disk_cache.environment_digest.cache_clear() if change != "the CPU" else None
    disk_cache.environment_digest.cache_clear()


def test_what_kernels_are_compiled_from_is_every_kernels_source():
    for path in pathlib.Path(kernels.__file__).parent.rglob("[!_]*.py"):
        assert path.read_bytes() in disk_cache._sources()


def test_a_changed_source_compiles_again(folder):
    used(folder)
    (folder / "kernels.py").write_text(SOURCE.replace("out += x", "out += 2 * x"), encoding="utf-8")
    os.utime(folder / "kernels.py", (1, 1))
    assert not used(folder)


def test_many_threads_keep_the_same_at_once(folder):
    first, go = module(folder), threading.Barrier(4)

    def keep():
        go.wait(240)
        disk_cache.write_atomically(folder / "kept.kernel", b"x" * 100_000)

    threads = [threading.Thread(target=keep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "kept.kernel").read_bytes() == b"x" * 100_000
    assert set(os.listdir(folder)) - {"__pycache__"} == {"kept.kernel", "kernels.py"}
    assert first.total(XS, 1.0) == 7.0


class Interrupt(BaseException):
    """As a Ctrl-C."""


def interrupted(call, number):
    """Raise at the so-manieth Python function that a call calls; whether it came to that."""
    count = 0

    def on(frame, event, argument):
        nonlocal count
        if event == "call":
            count += 1
            if count == number:
                sys.setprofile(None)
                raise Interrupt

    before = sys.getprofile()
    sys.setprofile(on)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


def check_interrupted(numbers):
    """Leave the compilation of a kernel at some point; the next call compiles it, and the one after that another."""
    for number in numbers:

        @jit
        def inner(x):
            return x * 2.0

        @jit
        def kernel(xs):
            total = 0.0
            for x in xs:
                total += inner(x)
            return total

        reached = interrupted(lambda: kernel(XS), number)
        assert kernel(XS) == 12.0, f"after an interrupt at call {number}"
        assert kernel(XS.astype(np.float32)) == 12.0, f"after an interrupt at call {number}"
        if not reached:
            break
    return reached


@pytest.mark.parametrize("growth", [2.0, pytest.param(1.05, marks=pytest.mark.slow)])
def test_an_interrupted_compilation_leaves_the_kernel_usable(growth):
    assert not check_interrupted(sorted({int(growth**k) for k in range(400) if growth**k < 1e7}))
    assert numba.njit(lambda x: x + 1)(1) == 2


WHOLE = """
import numba
from autobatch.blocks.library_code import compiled_whole

matrix = numba.types.Array(numba.float64, 2, "C")
function = numba.njit(lambda x: (x + 1.0).reshape((-1,)))
made, _ = compiled_whole(function, numba.core.typing.signature(matrix.copy(ndim=1), matrix))
print(*(line for line in str(made.library._final_module).splitlines() if "call" in line or "atomic" in line), sep="\\n")
"""


def test_a_whole_has_what_numbas_run_time_does_for_arrays_inlined():
    # In a process of its own: what this one compiles later would ask for parts of it.
    done = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, check=True)
    assert "@NRT_MemInfo_call_dtor" in done.stdout  # it frees
    assert "@NRT_Allocate" in done.stdout  # it makes
    for name in ("atomicrmw", "@NRT_decref", "@NRT_MemInfo_alloc_aligned", "@numba_attempt_nocopy_reshape"):
        assert name not in done.stdout
