"""Compiled kernels: compiled in a separate process, cached on disk, used as soon as they are available.

A kernel's name is a hash of everything that decides its machine code: source, versions, CPU. A request for a missing
kernel makes another process compile it; nothing waits for it. The result comes back through a pipe and is kept in the
user's cache folder (`AUTOBATCH_CACHE_DIR` names another), so a full, foreign or missing disk only costs a compilation.
Cached files are executed, so they are read only where no other user could have put them, and loaded only if their
checksum is right; if anything is wrong, the kernel is compiled again. Where no process may be started, there are no
kernels, and no error.
"""

import atexit
import collections
import contextlib
import faulthandler
import gc
import hashlib
import itertools
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import numba
from llvmlite.binding.object_file import ObjectFileRef
from numba.core import config, registry, serialize
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from autobatch.blocks.library_code import compiled_whole
from autobatch.core.current_region import check_time
from autobatch.core.threads import leave_core_free
from autobatch.kernels import disk_cache, jit
from autobatch.kernels.disk_cache import SUFFIX

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_INTERVAL = 0.05  # seconds between two checks for kernels that the other process has compiled
_RETRY = 0.5  # seconds before a kernel is requested again after its process has died
_TRIES = 3  # after which the kernel itself is taken for the cause
_SECONDS = 120  # time limit for compiling a kernel, and for waiting for the next request
_BYTES = 8 << 30  # of memory that the compiling process may map
_KERNELS = 100  # compiled before the process starts afresh: Numba keeps some 2 MB of each
_AHEAD = 32 << 10  # bytes of requests sent before an answer: fewer than any pipe holds, so that sending never blocks


def cache_folder() -> pathlib.Path:
    """The folder in which kernels are cached."""
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
    """The name of a kernel; kernels that are compiled differently have different names."""
    return "kernel_" + hashlib.sha256((disk_cache.environment_digest() + text).encode()).hexdigest()[:32]


class CachedKernel:
    """One kernel, which may not be available yet.

    Attributes:
        entry: calls it without checking the types of its arguments; None until it is available.
        lanes: its first arguments, the vector layouts.
        failed: this process will never have it.
    """

    __slots__ = ("__weakref__", "_asked", "_made", "_next_look", "_tries", "entry", "failed", "lanes", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.entry: Callable[..., Any] | None = None
        self.lanes: tuple[Any, ...] = ()
        self.failed = bool(config.DISABLE_JIT)
        self._asked = False
        self._made: bytes | None = None
        self._next_look = 0.0
        self._tries = 0

    def poll(self, wait: bool = True) -> bool:
        """True if the kernel is available; requests it if not. Checks at most once per interval.

        Args:
            wait: load it from disk now; else in a background thread. The first load imports most of Numba.
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
            with contextlib.suppress(RuntimeError):  # no thread can be started: load it here
                if not wait:
                    _loading.add(self)
                    threading.Thread(target=self._find, name="autobatch loads", daemon=True).start()
                    return False
            jit.uninterrupted(self._find)
        except KeyboardInterrupt:  # whether or not it was requested: request it again
            self._asked = False
            raise
        return self.entry is not None

    def _find(self) -> None:
        """Load the cached kernel; if there is none, or anything is wrong with it, have it compiled."""
        found, self._made = self._made, None
        try:
            name = name_of(self.text)
            found = found or _read(name)
            if found is not None:
                with contextlib.suppress(Exception), global_compiler_lock:
                    self.lanes, self.entry = _load(name, self.text, found)
                    weakref.finalize(self, sys.modules.pop, f"autobatch_{name}", None).atexit = False
            self._asked = self.entry is None
            if self._asked:
                self._tries += 1
                self.failed = self._tries > _TRIES or not _compiler.ask(self)
        except Exception:  # no source of its dependencies, or no process: no kernel
            self.failed = True
        finally:
            _loading.discard(self)

    def on_compiled(self, made: bytes | None) -> None:
        """Take the compiled kernel; b"" if it does not compile, None if the process died before it answered."""
        self._made = made
        self.failed = made == b""
        if made is None:
            self._next_look = time.monotonic() + _RETRY
        self._asked = False


_known: weakref.WeakValueDictionary[str, CachedKernel] = weakref.WeakValueDictionary()  # those of forms in use
_loading: set[CachedKernel] = set()  # in background threads
_lock = threading.Lock()


def kernel_of(text: str) -> CachedKernel:
    """The kernel for this source, shared by all programs that use it."""
    with _lock:
        return _known.setdefault(text, CachedKernel(text))


def pending_kernels() -> int:
    """How many kernels were requested that are not loaded, or not compiled by the other process, yet."""
    return len(_compiler.sent) + len(_compiler.waiting) + len(_loading)


def wait_for_kernels(seconds: float = 240.0) -> bool:
    """Wait until every kernel in use is available or failed (for tests and benchmarks); False if time runs out."""
    end = time.monotonic() + seconds
    while True:
        if all(kernel.poll() or kernel.failed for kernel in list(_known.values())):
            return True
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(_INTERVAL, left))


# --- on disk


def usable_folder() -> pathlib.Path | None:
    """The cache folder; None if there is none that can be trusted."""
    try:
        folder = cache_folder().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = disk_cache.is_trusted(folder.stat())
    except (OSError, RuntimeError):  # no permission to write, or no home folder
        return None
    if not own:
        disk_cache.warn_once(
            f"{folder} is not used for compiled kernels: other users can write to it, and what is there is run. "
            f"Expected a folder of your own: chmod 700 it, or name another one in AUTOBATCH_CACHE_DIR"
        )
        return None
    return folder


def _read(name: str) -> bytes | None:
    """The cached file of a name; None if it is not this user's."""
    folder = usable_folder()
    return None if folder is None else disk_cache.read_trusted(folder / (name + SUFFIX))


def forget_on_disk(kernel: CachedKernel) -> None:
    """Remove a kernel's cached file."""
    folder = usable_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            (folder / (name_of(kernel.text) + SUFFIX)).unlink(missing_ok=True)


# --- from text to machine code and back


def _module(name: str, text: str) -> Any:
    module = types.ModuleType(f"autobatch_{name}")
    sys.modules[module.__name__] = module  # where Numba looks up code that it compiled before
    exec(compile(text, f"<{module.__name__}>", "exec"), module.__dict__)
    return module


def _compile(name: str, text: str) -> bytes:
    """The kernel as it is cached: a checksum, Numba's compiled code, and that of functions of the library it calls."""
    module = _module(name, text)
    dispatcher = numba.njit(**jit.OPTIONS)(module.kernel.py_func)
    made, library = compiled_whole(dispatcher, module.SIGNATURE)
    (_, _, (code, _)), function, environment, *_, start, environments = made._reduce()
    return disk_cache.with_checksum(name, serialize.dumps((code, function, environment, start, environments, library)))


def _load(name: str, text: str, kept: bytes) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    """The lanes and the entry point of a cached kernel.

    The machine code is in an LLVM engine of its own, freed with the entry point: Numba's engine frees none.

    Raises:
        ValueError: the bytes are not what was cached under this name.
    """
    content = disk_cache.verified_content(name, kept)
    module, context, codegen = _module(name, text), registry.cpu_target.target_context, JITCPUCodegen(name)
    disk_cache.prepare_loading(context)
    code, function, environment, start, environments, library = pickle.loads(content)
    for each in start:
        each()
    for part in (code, *library.values()):
        codegen._engine._ee.add_object_file(ObjectFileRef.from_data(part))
    codegen._engine.finalize_object()
    for each in environments:
        codegen.set_env(each.env_name, each)
    address = codegen._engine.get_function_address
    library = types.SimpleNamespace(codegen=codegen, get_pointer_to_function=address, environments=environments)
    return module.LANES, context.get_executable(library, function, environment)


# --- the process that compiles


def _send(descriptor: int, message: bytes) -> None:
    message = len(message).to_bytes(8, "big") + message
    while message:
        message = message[os.write(descriptor, message) :]


def _receive(descriptor: int) -> bytes | None:
    """The next message; None at the end of the stream."""

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


_CODE = """
import json, os, sys
answers = os.dup(1)
os.dup2(2, 1)
sys.path[:] = json.loads(sys.argv[1])
from autobatch.blocks.kernel_cache import main
main(0, answers)
"""


class _Compiler:
    """The process that compiles, started on first use; a forked child starts its own.

    Attributes:
        waiting, sent: (kernel, request) pairs not yet sent to the process, and those sent but not answered.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Start afresh: after a fork, the process and the locks belong to the parent."""
        leave_core_free(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        self.waiting: collections.deque[tuple[CachedKernel, bytes]] = collections.deque()
        self.sent: collections.deque[tuple[CachedKernel, bytes]] = collections.deque()

    def ask(self, kernel: CachedKernel) -> bool:
        """Have a kernel compiled; False if no process can be started."""
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
        """Send requests, no more than the pipe surely holds."""
        ahead = sum(len(request) for _, request in self.sent)
        while self.waiting and (not self.sent or ahead + len(self.waiting[0][1]) < _AHEAD):
            self.sent.append(self.waiting.popleft())
            ahead += len(self.sent[-1][1])
            with contextlib.suppress(OSError):  # the process has died, which `_listen` notices
                assert process.stdin is not None
                _send(process.stdin.fileno(), self.sent[-1][1])
        leave_core_free(bool(self.sent))

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        """Receive the answers of the process, pass them on, and reap it at the end."""
        assert process.stdout is not None
        while (made := _receive(process.stdout.fileno())) is not None:
            with self._lock:
                self.sent.popleft()[0].on_compiled(made)
                self._send_some(process)
        with self._lock:
            self._process = None
            lost = [*self.sent, *self.waiting]
            self.sent.clear()
            self.waiting.clear()
            leave_core_free(False)
        process.kill()
        process.wait()
        for kernel, _ in lost:
            kernel.on_compiled(None)

    def _start(self) -> "subprocess.Popen[bytes] | None":
        name = os.path.basename(sys.executable or "").lower()
        frozen = getattr(sys, "frozen", False) or not name.startswith(("python", "pypy"))  # or Python is embedded
        if frozen or not os.access(sys.executable, os.X_OK):
            return None
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, json.dumps([entry or os.getcwd() for entry in sys.path])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # no locks that a thread could hold at exit
                start_new_session=True,  # a keyboard interrupt does not reach it
            )
        except OSError:  # not allowed, or out of memory
            return None
        try:
            threading.Thread(target=self._listen, args=(process,), name="autobatch kernels", daemon=True).start()
        except RuntimeError:  # no thread can be started
            process.kill()
            process.wait()
            return None
        atexit.register(_close_at_exit, process)
        return process


def _close_at_exit(process: "subprocess.Popen[bytes]") -> None:
    """At exit: let the process finish its requests, without waiting for it."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.returncode = process.returncode or 0  # of a process that still runs, about which Popen would warn


_compiler = _Compiler()


def main(requests: int, answers: int) -> None:
    """Compile requested kernels, at a low priority.

    Args:
        requests, answers: file descriptors. An answer is the kernel as it is cached, or empty if it does not compile.
    """
    if hasattr(os, "nice") and not sys.argv[2:]:
        os.nice(10)
    if resource is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    gc.disable()  # a tenth of the time
    for _ in range(_KERNELS) if resource is not None else itertools.count():
        faulthandler.dump_traceback_later(_SECONDS, exit=True)  # also stops machine code, unlike a signal
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
            disk_cache.write_atomically(pathlib.Path(folder, name + SUFFIX), made)
        with contextlib.suppress(OSError):  # the process that asked has ended
            _send(answers, made)
        gc.collect()
    os.dup2(answers, 1)
    os.execv(sys.executable, [*sys.orig_argv[:5], "again"])  # what was not read yet stays in the pipe
