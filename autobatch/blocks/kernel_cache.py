"""Compiled kernels: made by a process of their own, kept on disk, used once they are there.

A kernel is a module named by what is in it, in the user's cache folder (`AUTOBATCH_CACHE_DIR` names another); what
Numba compiled lies beside it. Asking for a kernel that is not there starts the process that compiles; nothing waits for
it. Where the folder cannot be written to, or that process fails, there are no kernels, and no error.
"""

import atexit
import contextlib
import hashlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import llvmlite
import numba
from numba.core import config

import autobatch.kernels as kernels_package

__all__ = ["Kernel", "cache_folder", "load_compiled", "main", "wait_for_kernels"]

_INTERVAL = 0.05  # seconds between two looks for what the other process has compiled


def cache_folder() -> pathlib.Path:
    """Where kernels are kept."""
    named = os.environ.get("AUTOBATCH_CACHE_DIR")
    if named:
        return pathlib.Path(named)
    home = pathlib.Path.home()
    if sys.platform == "win32":
        base = pathlib.Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "autobatch"


def _stamp() -> str:
    """What, beside its own text, decides what a kernel is compiled to: the functions it is written in, and versions."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {sys.version}".encode())
    folder = pathlib.Path(kernels_package.__file__).parent
    for name in ("jit.py", "vectors.py", "vector_math.py"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


class Kernel:
    """One kernel, there or not yet.

    Attributes:
        entry: what calls it without asking for the types of its arguments; None as long as it is not there.
        lanes: what it takes first.
        failed: it will never be there.
    """

    __slots__ = ("_asked", "_next_look", "entry", "failed", "lanes", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.entry: Callable[..., Any] | None = None
        self.lanes: tuple[Any, ...] = ()
        self.failed = bool(config.DISABLE_JIT)
        self._asked = False
        self._next_look = 0.0

    def look(self) -> bool:
        """Whether it is there by now; asks for it if it is not. Looks at the disk every so often only."""
        if self.entry is not None or self.failed:
            return self.entry is not None
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _INTERVAL
        try:
            path = _write(self.text)
            found = load_compiled(path)
            if found is not None:
                self.lanes, self.entry = found
            elif path.with_suffix(".failed").exists():
                self.failed = True
            elif not self._asked:
                self._asked = True
                self.failed = not _compiler.ask(path)
        except Exception:  # a folder that cannot be written to, a cache of other versions: no kernel
            self.failed = True
        return self.entry is not None


_known: dict[str, Kernel] = {}
_stamped: list[str] = []
_lock = threading.Lock()


def kernel_of(text: str) -> Kernel:
    """The kernel of this text: one for all programs that share it."""
    with _lock:
        return _known.setdefault(text, Kernel(text))


def wait_for_kernels(seconds: float = 60.0) -> bool:
    """Wait until every kernel that has a use is there or failed, for tests and benchmarks; whether that is so."""
    end = time.monotonic() + seconds
    while True:
        if all(kernel.look() or kernel.failed for kernel in list(_known.values())):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_INTERVAL)


def _write(text: str) -> pathlib.Path:
    """The module of a kernel, written unless it is there."""
    if not _stamped:
        _stamped.append(_stamp())
    name = hashlib.sha256((_stamped[0] + text).encode()).hexdigest()[:32]
    folder = cache_folder()
    path = folder / f"kernel_{name}.py"
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user, who could put code there")
        temporary = folder / f"{path.name}.{os.getpid()}.{threading.get_ident()}"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    return path


def load_compiled(path: pathlib.Path, *, compile: bool = False) -> tuple[tuple[Any, ...], Callable[..., Any]] | None:
    """The lanes and the entry of a kernel that is on disk; None if it is not compiled there.

    Args:
        compile: compile it now instead, and leave it on disk.
    """
    spec = importlib.util.spec_from_file_location(f"autobatch_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where Numba looks for what it once compiled
    spec.loader.exec_module(module)
    dispatcher, signature = module.kernel.dispatcher, module.SIGNATURE
    if compile:
        dispatcher.compile(signature)
    else:
        found = dispatcher._cache.load_overload(signature, dispatcher.targetctx)
        if found is None:
            return None
        dispatcher.add_overload(found)
    return module.LANES, dispatcher.overloads[signature.args].entry_point


class _Compiler:
    """The process that compiles, started when it is first needed; each process has its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = -1
        self._lock = threading.Lock()

    def ask(self, path: pathlib.Path) -> bool:
        """Have a kernel compiled; False if that cannot be."""
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._process = self._start()
                self._owner = os.getpid()
            process = self._process
            if process is None or process.stdin is None or process.poll() is not None:
                return False
            process.stdin.write(f"{path}\n".encode())
            process.stdin.flush()
            return True

    @staticmethod
    def _start() -> "subprocess.Popen[bytes] | None":
        if not sys.executable:
            return None
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from autobatch.blocks.kernel_cache import main; main()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps([entry or os.getcwd() for entry in sys.path])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt typed at the keyboard is not for it
        )
        atexit.register(_let_go, process)
        return process


def _let_go(process: "subprocess.Popen[bytes]") -> None:
    """At the end: it finishes what it was asked for, and nobody waits for it."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.returncode is None:
        process.returncode = 0  # else Popen warns of a process that still runs


_compiler = _Compiler()


def main() -> None:
    """Compile what is asked for, behind everything else that runs on the machine."""
    if hasattr(os, "nice"):
        os.nice(10)
    for line in sys.stdin:
        path = pathlib.Path(line.rstrip("\n"))
        try:
            if load_compiled(path) is None:
                load_compiled(path, compile=True)
        except Exception as error:
            with contextlib.suppress(OSError):
                path.with_suffix(".failed").write_text(repr(error), encoding="utf-8")
