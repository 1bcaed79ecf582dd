"""Hostile calls: public functions with arguments that nobody should pass, beside memory that nobody may touch.

    python -m tests.hostile --seed 5000 --count 1000

A batch of calls runs in a process of its own, with compiled kernels; each array ends where its memory does, so that a
read or write behind it ends the process. A call is wrong if it does that, takes too long, or raises what is neither an
error of ours nor one that NumPy and Python have for wrong arguments.
"""

import ctypes
import faulthandler
import mmap
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from tests.fuzz import Fuzzer, main

__all__ = ["FUZZERS"]

DOCUMENTED = (ValueError, IndexError, TypeError, MemoryError)  # those of ours are of these, and are looked at by class
LEAKS = ("TypingError", "NumbaError", "LoweringError", "UnsupportedBytecodeError", "SystemError")
_SECONDS_A_CALL = 10
_PER_PROCESS = 200
_LIBC = ctypes.CDLL(None, use_errno=True)
_KEPT: list[Any] = []


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last before a page that cannot be read."""
    pages = -(-max(array.nbytes, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _LIBC.mprotect(ctypes.c_void_p(start + pages * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    _KEPT.append(memory)
    offset = pages * mmap.PAGESIZE - array.nbytes
    out: np.ndarray = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    out[...] = array
    return out


def names() -> dict[str, Callable[..., Any]]:
    """What is called: every public function over tables, bags, segments and representations, and `ab.nn`."""
    start = ("segment", "lengths", "offsets", "padded", "sparse_to", "sort", "scatter", "gather", "lookup", "embedding")
    found = {name: getattr(ab, name) for name in ab.__all__ if name.startswith((*start, "maplookup"))}
    found |= {f"nn.{name}": getattr(ab.nn, name) for name in ab.nn.__all__}
    kinds = ("EmbeddingTable", "SplitTable", "QuantizedTable", "SparseRows", "MaskedBatch", "PackedBatch")
    found |= {name: getattr(ab, name) for name in kinds}
    return found | {"Indexer": ab.optim.Indexer(), "add_to": _add_to, "update": _update}


def _add_to(ids: Any, rows: Any, num_rows: Any, dense: Any = None) -> Any:
    return ab.SparseRows(ids, rows, num_rows).add_to(dense)


def _update(params: Any, grads: Any, changed: Any = None) -> Any:
    grad = ab.SparseRows(np.array([0, 1]), grads, len(params))
    grad.ids = changed
    optimizer = ab.optim.Adam(0.1)
    return optimizer.update(params, grad, optimizer.init(params))


def argument(rng: np.random.Generator) -> Any:
    """One argument: sound, or wrong in one of many ways."""
    kind = int(rng.integers(12))
    if kind < 2:
        return guarded(rng.standard_normal((int(rng.integers(0, 6)), 4)).astype(rng.choice(["f4", "f8"])))
    if kind < 5:
        ids = np.sort(rng.integers(0, 5, int(rng.integers(0, 7)))).astype(rng.choice(["i4", "i8", "u1"]))
        ids[:1] *= int(rng.integers(2))
        return guarded(ids)
    if kind == 5:
        ids = rng.integers(0, 5, 4)
        ids[int(rng.integers(4))] = rng.choice([-1, 6, 2**31, 2**62, -(2**63)])
        return guarded(ids)
    if kind == 6:
        array = guarded(rng.standard_normal((6, 8)).astype("f4"))[::2, ::2]
        array.flags.writeable = bool(rng.integers(2))
        return array
    if kind == 7:
        dtype = rng.choice(["?", "f2", ">f4", ">i8", "c8", "u8", "M8[s]", "U3", "V4"])
        return guarded(np.zeros((4,) * int(rng.integers(3)), dtype))
    odd = [None, "sum", "max", "", 2**63, -1, 0, 3, float("nan"), float("inf"), 1e300, True, {}, (), [], object(), b"x"]
    odd += [[[1], [1, 2]], [None], ["a"], np.array([None, 1], object), np.float32("nan"), [2**70], np.uint64(2**63)]
    return odd[int(rng.integers(len(odd)))]


def call_once(seed: int) -> str | None:
    """What is wrong with the call of a seed, None for nothing."""
    rng = np.random.default_rng(seed)
    public = names()
    name = sorted(public)[int(rng.integers(len(public)))]
    arguments = [argument(rng) for _ in range(int(rng.integers(1, 4)))]
    keywords = ("lengths", "offsets", "segment_ids", "ids", "weights", "num_segments", "mode", "out", "axis", "k")
    named = {str(key): argument(rng) for key in rng.choice(keywords, int(rng.integers(3)), replace=False)}
    print(f"seed {seed}: {name}", file=sys.stderr, flush=True)  # what is last there is what ended the process
    faulthandler.dump_traceback_later(_SECONDS_A_CALL, exit=True)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            public[name](*arguments, **named)
    except Exception as error:
        leaks = type(error).__name__ in LEAKS or type(error).__module__.startswith(("numba", "llvmlite"))
        if leaks or not isinstance(error, DOCUMENTED):
            given = ", ".join([f"{x!r:.60}" for x in arguments] + [f"{k}={x!r:.60}" for k, x in named.items()])
            return f"seed {seed}: {name}({given}) raised {type(error).__name__}: {str(error)[:120]}".replace("\n", " ")
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None


def in_processes(seeds: range) -> str:
    """The calls of the seeds, so many in a process; after one that ends its process the next ones go on."""
    wrong, at = [], seeds.start
    while at < seeds.stop:
        stop = min(at + _PER_PROCESS, seeds.stop)
        code = f"from tests.hostile import run_range; run_range({at}, {stop})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        wrong += [line for line in done.stdout.splitlines() if line.startswith("seed ")]
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.startswith("seed ")]
            if not last:
                raise AssertionError(done.stderr[-2000:])
            wrong.append(f"{last[-1]} ended its process, status {done.returncode}")
            stop = int(last[-1].split(":")[0].split()[1]) + 1
        at = stop
    assert not wrong, f"{len(wrong)} of {len(seeds)} calls:\n" + "\n".join(wrong)
    return f"{len(seeds)} calls without a crash, a hang or a leaked exception"


def run_range(start: int, stop: int) -> None:
    """What one process does."""
    faulthandler.enable()
    for seed in range(start, stop):
        found = call_once(seed)
        if found is not None:
            print(found, flush=True)
        _KEPT.clear()


FUZZERS: dict[str, Fuzzer] = {"hostile": in_processes}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
