"""Hostile calls: public functions with arguments that nobody should pass, beside memory that nobody may touch.

    python -m tests.hostile --seed 5000 --count 1000

A call is a valid one with an argument or two spoiled (`hostile_recipes`), so that it comes past the first check. Calls
run in processes of their own, with compiled kernels; each array ends or begins where its memory does, so that a read or
write beyond it ends the process, and what lies on its other side is looked at afterwards, as is what is not to be
written to. A call is wrong if it changes that, or anything where it raises, if it ends its process, takes too long, or
raises what is neither an error of ours nor one that NumPy and Python have for wrong arguments.
"""

import copy
import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.errors import CheckpointError
from tests.fuzz import Fuzzer, main
from tests.hostile_recipes import RECIPES, spoiled

# those of ours are of these; NumPy says OverflowError of an axis beyond the numbers of C
DOCUMENTED = (ValueError, IndexError, TypeError, MemoryError, OverflowError, CheckpointError)
LEAKS = ("TypingError", "NumbaError", "LoweringError", "UnsupportedBytecodeError", "SystemError")
_SECONDS_A_CALL = 60  # of a processor: kernels are compiled meanwhile, on a machine that may be busy
_WAITING = 3600  # by the clock, for one that waits for ever
_PER_PROCESS = 5000
_MEMORY = 6 << 30  # bytes, of which an argument may ask for more
_LIBC = ctypes.CDLL(None, use_errno=True)
_MARK = 0xA5


class Guarded:
    """A copy of an array between two pages that cannot be read.

    Attributes:
        array: the copy, which ends where the memory does, or begins where it does.
    """

    def __init__(self, array: np.ndarray, at_end: bool) -> None:
        page = mmap.PAGESIZE
        pages = -(-max(array.nbytes, 1) // page)
        self._memory = memory = mmap.mmap(-1, (pages + 2) * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._bytes = np.frombuffer(memory, np.uint8, pages * page, page)
        self._bytes[...] = _MARK
        for edge in (start, start + (pages + 1) * page):
            if _LIBC.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._from = pages * page - array.nbytes if at_end else 0
        self.array: np.ndarray = np.frombuffer(memory, array.dtype, array.size, page + self._from).reshape(array.shape)
        self.array[...] = array
        self.array.flags.writeable = array.flags.writeable
        self._was = array.tobytes()

    def fault(self, written: bool) -> str | None:
        """What has changed that may not; `written`: the array itself may."""
        end = self._from + len(self._was)
        if (self._bytes[: self._from] != _MARK).any() or (self._bytes[end:] != _MARK).any():
            return "wrote beside an array"
        return None if written or self.array.tobytes() == self._was else "wrote into an argument"


def guarded(rng: np.random.Generator, value: Any, kept: list[Guarded]) -> Any:
    """An argument with its arrays, where they are plain ones, in guarded memory; others as they are."""
    if type(value) is np.ndarray and not value.dtype.hasobject and value.flags.c_contiguous and value.flags.aligned:
        kept.append(Guarded(value, bool(rng.integers(4))))
        return kept[-1].array
    if type(value) is list:
        return [guarded(rng, each, kept) for each in value]
    if type(value) is dict:
        return {key: guarded(rng, each, kept) for key, each in value.items()}
    if type(value) is ab.EmbeddingTable:
        return ab.EmbeddingTable(guarded(rng, np.asarray(value), kept))
    return value


def call_once(seed: int) -> str | None:
    """What is wrong with the call of a seed, None for nothing."""
    rng = np.random.default_rng(seed)
    name = sorted(RECIPES)[int(rng.integers(len(RECIPES)))]
    call = RECIPES[name](rng)
    arguments = dict(call.arguments)
    for key in rng.choice(list(arguments), min(int(rng.integers(0, 3)), len(arguments)), replace=False):
        arguments[str(key)] = spoiled(rng, arguments[str(key)])
    kept: dict[str, list[Guarded]] = {key: [] for key in arguments}
    given = {key: guarded(rng, value, kept[key]) for key, value in arguments.items()}
    shown = ", ".join(f"{key}={value!r:.70}" for key, value in copy.copy(given).items()).replace("\n", " ")
    said = f"seed {seed}: {name} {getattr(call.run, '__name__', '')}({shown})"
    os.write(2, f"seed {seed}: {name}\n".encode())  # what is last there is what ended the process
    faulthandler.dump_traceback_later(_WAITING, exit=True)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS_A_CALL)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            call.run(**given)
    except Exception as error:
        leaks = type(error).__name__ in LEAKS or type(error).__module__.startswith(("numba", "llvmlite"))
        changed = next((key for key, arrays in kept.items() for each in arrays if each.fault(False)), None)
        if changed is not None:
            return f"{said} changed {changed} and raised {type(error).__name__}: {str(error)[:120]}".replace("\n", " ")
        if leaks or not isinstance(error, DOCUMENTED):
            return f"{said} raised {type(error).__name__}: {str(error)[:120]}".replace("\n", " ")
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
    for key, arrays in kept.items():
        for each in arrays:
            found = each.fault(key in call.writes)
            if found is not None:
                return f"{said} {found}, {key}"
    return None


def in_processes(seeds: range, module: str = "tests.hostile") -> str:
    """The `call_once` of a module for the seeds, so many in a process; after one that ends its process others go on."""
    wrong, at = [], seeds.start
    while at < seeds.stop:
        stop = min(at + _PER_PROCESS, seeds.stop)
        code = f"import {module}; from tests.hostile import run_range; run_range({at}, {stop}, {module}.call_once)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        found = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.startswith("seed ")]
            if not last:
                raise AssertionError(done.stderr[-2000:])
            found.append(f"{last[-1]} ended its process, status {done.returncode}")
            stop = int(last[-1].split(":")[0].split()[1]) + 1
        for line in found:
            print(line, flush=True)
        wrong += found
        at = stop
        print(f"{at - seeds.start} of {len(seeds)} calls, {len(wrong)} wrong", file=sys.stderr, flush=True)
    assert not wrong, f"{len(wrong)} of {len(seeds)} calls:\n" + "\n".join(wrong)
    return f"{len(seeds)} calls without a crash, a changed byte, a hang or a leaked exception"


def run_range(start: int, stop: int, call: Callable[[int], str | None]) -> None:
    """What one process does."""
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # says where a call is that takes too long, and ends the process
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    for seed in range(start, stop):
        found = call(seed)
        if found is not None:
            print(found, flush=True)


FUZZERS: dict[str, Fuzzer] = {"hostile": in_processes}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
