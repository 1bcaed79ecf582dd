"""Compiled kernels: made by a process of their own, kept on disk, used once they are there.

A kernel is known by a name that says all that decides what it is compiled to: its text, versions, the CPU. Asking for
one that is not there has another process compile it; nothing waits for it. What that process makes comes back through a
pipe and is kept in the user's cache folder (`AUTOBATCH_CACHE_DIR` names another), so the disk may be full, foreign or
absent: that costs a compilation. What is read there is run, so it is read only where nobody else could have put it, and
loaded only if its checksum is right; whatever is wrong with it, it is compiled again. Where no process may be started,
there are no kernels, and no error.
"""

import atexit
import collections
import contextlib
import faulthandler
import hashlib
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import numba
from numba.core import compiler, config, serialize
from numba.core.compiler_lock import global_compiler_lock

from autobatch.core.current_region import check_time
from autobatch.kernels import jit
from autobatch.kernels.disk_cache import (
    SUFFIX,
    is_own,
    keep,
    read_own,
    ready_to_load,
    say_once,
    sealed,
    stamp,
    unsealed,
)

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_INTERVAL = 0.05  # seconds between two looks at what the other process has compiled
_RETRY = 0.5  # seconds before a kernel is asked for again whose process has died
_TRIES = 3
_SECONDS = 120  # that a kernel may take to compile, and that the process waits for another one
_BYTES = 8 << 30  # of memory that the process may map
_AHEAD = 32 << 10  # bytes that are sent before they are answered: less than any pipe holds, so that nobody waits


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


def name_of(text: str) -> str:
    """The name of a kernel: two that are compiled differently have two."""
    return "kernel_" + hashlib.sha256((stamp() + text).encode()).hexdigest()[:32]


class CachedKernel:
    """One kernel, there or not yet.

    Attributes:
        entry: what calls it without asking for the types of its arguments; None as long as it is not there.
        lanes: what it takes first.
        failed: this process will not have it.
    """

    __slots__ = ("_asked", "_made", "_next_look", "_tries", "entry", "failed", "lanes", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.entry: Callable[..., Any] | None = None
        self.lanes: tuple[Any, ...] = ()
        self.failed = bool(config.DISABLE_JIT)
        self._asked = False
        self._made: bytes | None = None
        self._next_look = 0.0
        self._tries = 0

    def look(self, wait: bool = True) -> bool:
        """Whether it is there by now; asks for it if it is not. Looks every so often only.

        Args:
            wait: until it is loaded from the disk; else that is done behind the work, as compiling is. The first one
                that is loaded brings most of Numba with it.
        """
        if self.entry is not None or self.failed:
            return self.entry is not None
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _INTERVAL
        if self._asked:
            return False
        check_time()
        self._asked = True
        try:
            with contextlib.suppress(RuntimeError):  # no thread is allowed: it is loaded here
                if not wait:
                    threading.Thread(target=self._find, name="autobatch loads", daemon=True).start()
                    return False
            jit.uninterrupted(self._find)
        except KeyboardInterrupt:  # asked for or not: it is asked for again
            self._asked = False
            raise
        return self.entry is not None

    def _find(self) -> None:
        """Load what is kept; where that is nothing, or whatever is wrong with it, have it compiled."""
        found, self._made = self._made, None
        try:
            name = name_of(self.text)
            found = found or _read(name)
            if found is not None:
                with contextlib.suppress(Exception), global_compiler_lock:
                    self.lanes, self.entry = _load(name, self.text, found)
            self._asked = self.entry is None
            if self._asked:
                self._tries += 1
                self.failed = self._tries > _TRIES or not _compiler.ask(self)
        except Exception:  # no source of what it is written in, or no process: no kernel
            self.failed = True

    def answered(self, made: bytes | None) -> None:
        """It was compiled to this, or to nothing; None if the process died before it said."""
        self._made = made
        self.failed = made == b""
        if made is None:
            self._next_look = time.monotonic() + _RETRY
        self._asked = False


_known: dict[str, CachedKernel] = {}
_lock = threading.Lock()


def kernel_of(text: str) -> CachedKernel:
    """The kernel for this source, shared by all programs that have it."""
    with _lock:
        return _known.setdefault(text, CachedKernel(text))


def are_kernels_pending() -> bool:
    """Whether the other process has something to compile that was asked for."""
    return bool(_compiler.sent or _compiler.waiting)


def wait_for_kernels(seconds: float = 240.0) -> bool:
    """Wait until every kernel that has a use is there or failed, for tests and benchmarks; whether that is so."""
    end = time.monotonic() + seconds
    while True:
        if all(kernel.look() or kernel.failed for kernel in list(_known.values())):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_INTERVAL)


# --- on disk


def usable_folder() -> pathlib.Path | None:
    """The cache folder; None if there is none that may be trusted."""
    try:
        folder = cache_folder().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = is_own(folder.stat())
    except (OSError, RuntimeError):  # nothing can be written there; no home
        return None
    if not own:
        say_once(
            f"{folder} is not used for compiled kernels: other users can write to it, and what is there is run. "
            f"Expected a folder of your own: chmod 700 it, or name another one in AUTOBATCH_CACHE_DIR"
        )
        return None
    return folder


def _read(name: str) -> bytes | None:
    """What is kept under a name, unless it is not this user's."""
    folder = usable_folder()
    return None if folder is None else read_own(folder / (name + SUFFIX))


def forget_on_disk(kernel: CachedKernel) -> None:
    """Remove what is kept of a kernel."""
    folder = usable_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            (folder / (name_of(kernel.text) + SUFFIX)).unlink(missing_ok=True)


# --- from text to machine code and back


def _module(name: str, text: str) -> Any:
    module = types.ModuleType(f"autobatch_{name}")
    sys.modules[module.__name__] = module  # where Numba looks for what it once compiled
    exec(compile(text, f"<{module.__name__}>", "exec"), module.__dict__)
    return module


def _compile(name: str, text: str) -> bytes:
    """The kernel as it is kept: a checksum, and Numba's compiled code."""
    module = _module(name, text)
    dispatcher = numba.njit(**jit.OPTIONS)(module.kernel.py_func)
    dispatcher.compile(module.SIGNATURE)
    made = dispatcher.overloads[module.SIGNATURE.args]
    if made.library.has_dynamic_globals:
        raise TypeError("it holds addresses of this process")
    return sealed(name, serialize.dumps(made._reduce()))


def _load(name: str, text: str, kept: bytes) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    """The lanes and the entry of a kernel.

    Raises:
        ValueError: it is not what was kept under this name.
    """
    content = unsealed(name, kept)
    module = _module(name, text)
    dispatcher = numba.njit(**jit.OPTIONS)(module.kernel.py_func)
    ready_to_load(dispatcher.targetctx)
    dispatcher.add_overload(compiler.CompileResult._rebuild(dispatcher.targetctx, *pickle.loads(content)))
    return module.LANES, dispatcher.overloads[module.SIGNATURE.args].entry_point


# --- the process that compiles


def _send(descriptor: int, message: bytes) -> None:
    message = len(message).to_bytes(8, "big") + message
    while message:
        message = message[os.write(descriptor, message) :]


def _receive(descriptor: int) -> bytes | None:
    """The next message; None if there will be none."""

    def exactly(count: int) -> bytes | None:
        got = b""
        while len(got) < count:
            more = os.read(descriptor, min(count - len(got), 1 << 20))
            if not more:
                return None
            got += more
        return got

    size = exactly(8)
    return None if size is None else exactly(int.from_bytes(size, "big"))


def _python() -> str | None:
    """A Python that can be started: not an application that Python is frozen into or embedded in."""
    name = os.path.basename(sys.executable or "").lower()
    frozen = getattr(sys, "frozen", False) or not name.startswith(("python", "pypy"))
    return None if frozen or not os.access(sys.executable, os.X_OK) else sys.executable


_CODE = """
import json, os, sys
answers = os.dup(1)
os.dup2(2, 1)
sys.path[:] = json.loads(sys.argv[1])
from autobatch.blocks.kernel_cache import main
main(0, answers)
"""


class _Compiler:
    """The process that compiles, started when it is needed and ended when it is not; each process has its own.

    Attributes:
        waiting, sent: the kernels that it has not been asked for yet, and those that it has, with what is sent.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """It is the process of the one that forked, and so are the locks."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        self.waiting: collections.deque[tuple[CachedKernel, bytes]] = collections.deque()
        self.sent: collections.deque[tuple[CachedKernel, bytes]] = collections.deque()

    def ask(self, kernel: CachedKernel) -> bool:
        """Have a kernel compiled; False if that cannot be."""
        with self._lock:
            if self._process is None:
                self._process = self._start()
            if self._process is None:
                return False
            folder = usable_folder()
            request = json.dumps([folder and str(folder), name_of(kernel.text), kernel.text]).encode()
            self.waiting.append((kernel, request))
            self._send_some(self._process)
            return True

    def _send_some(self, process: "subprocess.Popen[bytes]") -> None:
        """As much as the pipe surely holds."""
        ahead = sum(len(request) for _, request in self.sent)
        while self.waiting and (not self.sent or ahead + len(self.waiting[0][1]) < _AHEAD):
            self.sent.append(self.waiting.popleft())
            ahead += len(self.sent[-1][1])
            with contextlib.suppress(OSError):  # it has died, of which `_listen` hears
                assert process.stdin is not None
                _send(process.stdin.fileno(), self.sent[-1][1])

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        """Hand out its answers, and reap it."""
        assert process.stdout is not None
        while (made := _receive(process.stdout.fileno())) is not None:
            with self._lock:
                self.sent.popleft()[0].answered(made)
                self._send_some(process)
        with self._lock:
            self._process = None
            lost = [*self.sent, *self.waiting]
            self.sent.clear()
            self.waiting.clear()
        process.kill()
        process.wait()
        for kernel, _ in lost:
            kernel.answered(None)

    def _start(self) -> "subprocess.Popen[bytes] | None":
        python = _python()
        if python is None:
            return None
        try:
            process = subprocess.Popen(
                [python, "-P", "-c", _CODE, json.dumps([entry or os.getcwd() for entry in sys.path])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # no locks that a thread could hold at the end
                start_new_session=True,  # an interrupt typed at the keyboard is not for it
            )
        except OSError:  # no process is allowed, or there is no memory for one
            return None
        try:
            threading.Thread(target=self._listen, args=(process,), name="autobatch kernels", daemon=True).start()
        except RuntimeError:  # no thread is allowed
            process.kill()
            process.wait()
            return None
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


def main(requests: int, answers: int) -> None:
    """Compile requested kernels, at a low priority.

    Args:
        requests, answers: file descriptors. An answer is what is kept, or empty for what does not compile.
    """
    if hasattr(os, "nice"):
        os.nice(10)
    if resource is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    while True:
        faulthandler.dump_traceback_later(_SECONDS, exit=True)  # also out of machine code, unlike a signal
        request = _receive(requests)
        if request is None:
            return
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        folder, name, text = json.loads(request)
        try:
            made = _compile(name, text)
        except MemoryError:
            raise
        except Exception:
            made = b""
        if made and folder:
            keep(pathlib.Path(folder, name + SUFFIX), made)
        with contextlib.suppress(OSError):  # who asked has ended
            _send(answers, made)
