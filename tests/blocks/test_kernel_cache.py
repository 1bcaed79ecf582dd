"""The cache of kernels: what is on disk is run, so nothing there is trusted, what is wrong is compiled again."""

import errno
import gc
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
import types
import warnings

import llvmlite
import numba
import numpy as np
import pytest
from numba.core import registry

from autobatch.blocks import kernel_cache
from autobatch.blocks.kernel_cache import SUFFIX, kernel_of, name_of, wait_for_kernels
from autobatch.core import threads
from autobatch.kernels import disk_cache
from autobatch.kernels.disk_cache import environment_digest
from tests.soak import resident_mb

TEXT = """
from numba import types
from autobatch.kernels.jit import jit
LANES = ()
SIGNATURE = types.int64(types.int64)

@jit
def kernel(n):
    return n + 1
"""
OTHER = TEXT.replace("n + 1", "n + 2")
posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="there are other rights on Windows")


class Evil:
    def __reduce__(self):
        return os.abort, ()


@pytest.fixture(scope="module")
def made():
    return {text: kernel_cache._compile(name_of(text), text) for text in (TEXT, OTHER)}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOBATCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(disk_cache, "_warned", set())
    monkeypatch.setattr(kernel_cache, "_RETRY", 0.0)
    return tmp_path


@pytest.fixture
def asked(monkeypatch, folder, made):
    """The kernels that were asked for: compiled at once, without a process."""
    found = []

    def ask(kernel):
        found.append(kernel.text)
        place = kernel_cache.usable_folder()
        if place is not None:
            disk_cache.write_atomically(place / (name_of(kernel.text) + SUFFIX), made[kernel.text])
        kernel.on_compiled(made[kernel.text])
        return True

    monkeypatch.setattr(kernel_cache, "_compiler", types.SimpleNamespace(ask=ask))
    return found


def there(monkeypatch, text=TEXT):
    """The kernel, as a new process finds it; it does what it should."""
    monkeypatch.setattr(kernel_cache, "_known", {})
    kernel = kernel_of(text)
    assert wait_for_kernels()
    assert not kernel.failed
    dispatcher = sys.modules[f"autobatch_{name_of(text)}"].kernel
    assert kernel.entry is not None
    assert dispatcher.py_func(4) == (5 if text == TEXT else 6)
    return kernel


def file_of(folder, text=TEXT):
    return folder / (name_of(text) + SUFFIX)


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGES = {
    "a flipped bit of the checksum": lambda good, other: flipped(good, 3),
    "a flipped bit": lambda good, other: flipped(good, len(good) // 2),
    "a flipped bit at the end": lambda good, other: flipped(good, len(good) - 1),
    "nothing": lambda good, other: b"",
    "half": lambda good, other: good[: len(good) // 2],
    "a checksum only": lambda good, other: good[:32],
    "more than was written": lambda good, other: good + b"0",
    "another kernel": lambda good, other: other,
    "a foreign file": lambda good, other: b"def kernel(): pass",
    "a pickle": lambda good, other: pickle.dumps(Evil()),
    "a pickle behind a checksum": lambda good, other: good[:32] + pickle.dumps(Evil()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_again(monkeypatch, folder, made, asked, damage):
    there(monkeypatch)
    there(monkeypatch)
    assert asked == [TEXT], "the second process finds what the first one has kept"
    file = file_of(folder)
    file.write_bytes(DAMAGES[damage](made[TEXT], made[OTHER]))
    there(monkeypatch)
    assert asked == [TEXT, TEXT]
    assert file.read_bytes() == made[TEXT], "what was wrong is replaced"
    assert os.listdir(folder) == [file.name]


def link(file, made):
    file.with_name("elsewhere").write_bytes(made)
    file.symlink_to(file.with_name("elsewhere"))


def writable(file, made):
    file.write_bytes(made)
    file.chmod(0o666)


FOREIGN = {
    "a link": link,
    "a file that others may write": writable,
    "a pipe": lambda file, made: os.mkfifo(file),
    "a folder": lambda file, made: file.mkdir(),
}


@posix
@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_is_no_file_of_one_s_own_is_not_read(monkeypatch, folder, made, asked, foreign):
    file = file_of(folder)
    FOREIGN[foreign](file, made[TEXT])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        there(monkeypatch)
    assert asked == [TEXT]
    if foreign == "a link":
        assert file.with_name("elsewhere").read_bytes() == made[TEXT]
    if foreign != "a folder":
        assert not file.is_symlink()
        assert file.read_bytes() == made[TEXT]


@posix
@pytest.mark.parametrize("whose", ["writable by all", "writable by the group", "another user's"])
def test_a_folder_that_is_not_one_s_own_is_neither_read_nor_written(monkeypatch, folder, made, asked, whose):
    file_of(folder).write_bytes(made[TEXT])
    if whose == "another user's":
        other = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: other)
    else:
        folder.chmod(0o777 if whose == "writable by all" else 0o770)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        there(monkeypatch)
        there(monkeypatch, OTHER)
    assert "other users can write to it" in str(said[0].message)
    assert len(said) == 1, "it is said once"
    assert asked == [TEXT, OTHER]
    assert os.listdir(folder) == [file_of(folder).name]


def test_names_of_temporaries_follow_no_links(monkeypatch, folder, made):
    victim = folder / "victim"
    victim.write_text("kept")
    names = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (names.append(old), replace(old, new)))
    for _ in range(3):
        disk_cache.write_atomically(file_of(folder), made[TEXT])
    assert len(set(names)) == 3
    assert victim.read_text() == "kept"
    assert file_of(folder).stat().st_mode & 0o077 == 0


def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def homeless():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("how", ["full", "read-only", "no home"])
def test_without_a_disk_a_kernel_is_compiled_for_each_process(monkeypatch, folder, asked, how):
    if how == "full":
        monkeypatch.setattr(os, "replace", full)
    elif how == "read-only":
        monkeypatch.setattr(disk_cache.tempfile, "mkstemp", lambda dir: full())
    else:
        monkeypatch.setattr(kernel_cache, "cache_folder", homeless)
    there(monkeypatch)
    there(monkeypatch)
    assert asked == [TEXT, TEXT]
    assert os.listdir(folder) == []


CHANGES = {
    "Python": (sys, "version", "4.0"),
    "NumPy": (np, "__version__", "3.0"),
    "Numba": (numba, "__version__", "1.0"),
    "llvmlite": (llvmlite, "__version__", "1.0"),
    "the CPU": (
        registry.cpu_target,
        "_toplevel_target_context",
        types.SimpleNamespace(codegen=lambda: types.SimpleNamespace(magic_tuple=lambda: ("x86", "other", "+sse"))),
    ),
    "this library": (disk_cache, "_sources", lambda: b"others"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_upgrade_gives_other_names(monkeypatch, change):
    before = name_of(TEXT)
    assert before != name_of(OTHER)
    environment_digest.cache_clear()
    try:
        assert name_of(TEXT) == before
        environment_digest.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(*CHANGES[change])
            assert name_of(TEXT) != before
    finally:
        environment_digest.cache_clear()


def test_machine_code_that_nobody_can_run_is_freed(made):
    """New source each time, as in a cell that is run again. Broken once: Numba's own engine, which keeps all of it."""

    def held_after(count):
        for _ in range(count):
            _, entry = kernel_cache._load(name_of(TEXT), TEXT, made[TEXT])
            assert entry(1) == 2
        gc.collect()
        return resident_mb()

    before = held_after(100)
    assert held_after(400) - before < 4


# --- the process


@pytest.fixture
def compilers(monkeypatch, folder):
    """Two processes that compile, as two programs have them."""
    monkeypatch.setattr(kernel_cache, "_known", {})
    own = [kernel_cache._Compiler(), kernel_cache._Compiler()]
    monkeypatch.setattr(kernel_cache, "_compiler", own[0])
    yield own
    for process in [compiler._process for compiler in own]:
        if process is not None:
            process.stdin.close()
            process.wait(240)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_kernel_may_be_loaded_behind_the_work(damaged, folder, asked, made):
    kept = made[TEXT][:-1] if damaged else made[TEXT]
    disk_cache.write_atomically(kernel_cache.usable_folder() / (name_of(TEXT) + SUFFIX), kept)
    kernel = kernel_cache.CachedKernel(TEXT)
    assert not kernel.poll(wait=False)
    end = time.monotonic() + 240
    while not kernel.poll(wait=False) and not kernel.failed and time.monotonic() < end:
        time.sleep(0.01)
    assert kernel.entry(1) == 2
    assert asked == ([TEXT] if damaged else [])


def test_two_processes_compile_the_same_at_once(monkeypatch, folder, compilers):
    kernels = [kernel_cache.CachedKernel(TEXT), kernel_cache.CachedKernel(TEXT)]
    for kernel, compiler in zip(kernels, compilers, strict=True):
        assert compiler.ask(kernel)
    end = time.monotonic() + 240
    while not all(kernel.poll() for kernel in kernels) and time.monotonic() < end:
        time.sleep(0.05)
    assert all(kernel.entry is not None for kernel in kernels)
    assert os.listdir(folder) == [file_of(folder).name]
    monkeypatch.setattr(kernel_cache, "_compiler", types.SimpleNamespace(ask=lambda kernel: pytest.fail("again")))
    there(monkeypatch)


def test_a_killed_compiler_is_started_again_and_reaped(folder, compilers):
    kernels = [kernel_of(TEXT), kernel_of(OTHER)]
    assert not any(kernel.poll() for kernel in kernels)
    first = compilers[0]._process
    os.kill(first.pid, signal.SIGTERM)
    assert wait_for_kernels()
    assert all(kernel.entry is not None for kernel in kernels)
    assert first.returncode == -signal.SIGTERM
    assert compilers[0]._process is not first


def test_the_process_starts_afresh_and_loses_nothing(monkeypatch, compilers, tmp_path):
    """What Numba keeps of each kernel would fill its memory. Broken once: it went on, and started once."""
    started = tmp_path / "started"
    noted = f"open({str(started)!r}, 'a').write(f'{{os.getpid()}} {{os.nice(0)}},')"
    first = f"{noted}\nmain.__globals__['_KERNELS'] = 2\nmain(0"
    monkeypatch.setattr(kernel_cache, "_CODE", kernel_cache._CODE.replace("main(0", first))
    monkeypatch.setattr(kernel_cache, "_TRIES", 1)
    kernels = [kernel_of(TEXT.replace("n + 1", f"n + {k}")) for k in range(5)]
    assert wait_for_kernels()
    assert [kernel.entry(1) for kernel in kernels] == [1, 2, 3, 4, 5]
    nice = os.nice(0)
    pid = compilers[0]._process.pid
    assert started.read_text() == f"{pid} {nice}," + f"{pid} {min(nice + 10, 19)}," * 2


def test_compiling_has_an_end(monkeypatch, compilers):
    monkeypatch.setattr(
        kernel_cache, "_CODE", kernel_cache._CODE.replace("main(0", "main.__globals__['_SECONDS'] = 1\nmain(0")
    )
    monkeypatch.setattr(kernel_cache, "_TRIES", 1)
    kernel = kernel_of("while True: pass")
    assert wait_for_kernels()
    assert kernel.failed


def test_compiling_takes_no_more_memory_than_it_may(monkeypatch, compilers):
    monkeypatch.setattr(kernel_cache, "_TRIES", 1)
    kernel = kernel_of(f"whole = bytearray({kernel_cache._BYTES})\n" + TEXT)
    assert wait_for_kernels()
    assert kernel.failed


@pytest.mark.parametrize("kind", ["frozen", "embedded", "none", "refused"])
def test_no_other_application_is_started(monkeypatch, compilers, kind):
    started = []

    def start(*args, **kwargs):
        started.append(args)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(kernel_cache.subprocess, "Popen", start)
    if kind == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif kind != "refused":
        shell = pathlib.Path("/bin/sh")
        monkeypatch.setattr(sys, "executable", str(shell) if kind == "embedded" else "")
    kernel = kernel_of(TEXT)
    assert not kernel.poll()
    assert kernel.failed
    assert len(started) == (kind == "refused")


CIRCLE = """
import numpy as np
from numba import types
from autobatch.kernels.compiled_code.checked_arithmetic import common_shape
from autobatch.kernels.jit import jit
LANES = ()
SIGNATURE = types.int64(types.int64)

@jit
def odd(n):
    return False if n == 0 else even(n - 1)

@jit
def even(n):
    return True if n == 0 else odd(n - 1)

@jit
def kernel(n):
    shape, fits = common_shape((n, 1), (1, 3))
    return even(n) * np.zeros(shape).size
"""


def test_a_kernel_and_what_it_calls_are_made_machine_code_once(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    code = (
        "import sys; from autobatch.blocks import kernel_cache;"
        "from numba.core.codegen import CPUCodeLibrary; from autobatch.kernels.disk_cache import _Whole\n"
        "count = []\n"
        "for each in (CPUCodeLibrary, _Whole):\n"
        "    def finalize(self, finalize=each._finalize_final_module):\n"
        "        count.append(self.name); finalize(self)\n"
        "    each._finalize_final_module = finalize\n"
        "made = kernel_cache._compile(sys.argv[1], sys.argv[2]);"
        "assert [name for name in count if 'nrt' not in name] == ['kernel_whole'], count; sys.stdout.buffer.write(made)"
    )
    name = name_of(CIRCLE)
    for _ in range(2):  # the second process finds what the first one has kept of `common_shape`
        done = subprocess.run([sys.executable, "-c", code, name, CIRCLE], env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        assert len(list(tmp_path.rglob(f"*.common_shape-*{SUFFIX}"))) == 1
        _, entry = kernel_cache._load(name, CIRCLE, done.stdout)
        assert [entry(n) for n in (3, 4)] == [0, 12]


@posix
def test_products_leave_a_core_to_the_process_that_compiles(monkeypatch, folder, made):
    count = [4]
    monkeypatch.setattr(threads, "thread_count", lambda: 4)
    monkeypatch.setattr(threads, "_blas_threads", lambda: (lambda: count[0], lambda most: count.__setitem__(0, most)))
    (stdin, requests), (answers, stdout) = os.pipe(), os.pipe()
    with (
        open(requests, "wb", 0) as asked,
        open(answers, "rb", 0) as answered,
        open(stdin),
        open(stdout, "wb", 0) as out,
    ):
        process = types.SimpleNamespace(stdin=asked, stdout=answered, kill=lambda: None, wait=lambda: None)
        compiler = kernel_cache._Compiler()
        monkeypatch.setattr(compiler, "_start", lambda: process)
        for text in (TEXT, OTHER):
            assert compiler.ask(kernel_cache.CachedKernel(text))
        assert count == [3]
        kernel_cache._send(out.fileno(), made[TEXT])
        kernel_cache._send(out.fileno(), b"")
        out.close()
        compiler._listen(process)
    assert count == [4]
    count[0] = 2  # the user's choice
    threads.leave_core_free(True)
    threads.leave_core_free(False)
    assert count == [2]
