"""`autobatch doctor`: reports what makes programs slow on this machine and installation, and what to do about it."""

import contextlib
import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numba
import numpy as np

from autobatch.api.batch import batch
from autobatch.api.transforms import map as map_examples
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.blocks import kernel_cache
from autobatch.cli.way_timing import least_seconds
from autobatch.core.config import options
from autobatch.core.formatting import shown_bytes
from autobatch.core.threads import thread_count

REQUIRED = ("numpy", "numba", "llvmlite", "networkx", "greenlet")
EXTRAS = (
    "pyarrow", "awkward", "polars", "pandas", "torch", "jax", "scikit-learn", "scipy", "rich", "tqdm", "safetensors",
    "ml_dtypes", "hypothesis", "ray",
)  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_SLOW = {"import": 2.5, "product": 10.0, "lockstep": 2e-3, "record": 40e-6, "compile": 10.0}  # s; product: GFLOP/s
_KERNEL = """
from numba import types
from autobatch.kernels.jit import jit
LANES = ()
SIGNATURE = types.int64(types.int64)

@jit
def kernel(n):
    return n + {number}
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        about: the thing that was examined; found: the text about it.
        verdict: "" if all is well, else "slow" or "wrong"; advice: what to do about it.
    """

    about: str
    found: str
    verdict: str = ""
    advice: str = ""


def _judged(about: str, found: str, bad: bool, advice: str, verdict: str = "slow") -> Finding:
    """A finding that has its verdict and advice only if something is bad."""
    return Finding(about, found, verdict, advice) if bad else Finding(about, found)


def findings() -> Iterator[Finding]:
    """Yield all findings, one after the other: some take a second to measure."""
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("versions", ", ".join(f"{name} {version_of(name)}" for name in REQUIRED))
    there = [f"{name} {version}" for name in EXTRAS if (version := version_of(name)) != MISSING]
    yield Finding("optional", ", ".join(there) or "none of the libraries of the extras")
    yield from _machine()
    yield from _blas()
    yield from _cache()
    yield from _compiler()
    yield _importing()
    yield from _calls()


class KernelFile(NamedTuple):
    """A compiled kernel on the disk: its file, the size in bytes, and its age in days."""

    path: pathlib.Path
    size: int
    days: float


def kernel_files() -> list[KernelFile]:
    """The kernels in the cache folder, the newest first; empty if there is no folder."""
    found = []
    for path in kernel_cache.cache_folder().glob(f"*{kernel_cache.SUFFIX}"):
        with contextlib.suppress(OSError):  # another process has removed it
            if re.fullmatch(r"kernel_[0-9a-f]{32}", path.stem):
                status = path.stat()
                found.append(KernelFile(path, status.st_size, (time.time() - status.st_mtime) / 86400))
    return sorted(found, key=lambda each: each.days)


MISSING = "(not installed)"


def version_of(package: str) -> str:
    """The version of an installed package, else `MISSING`.

    >>> version_of("no such package")
    '(not installed)'
    """
    own = getattr(sys.modules.get(package), "__version__", "")  # a distribution may have another name
    try:
        return own or importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    advice = "other programs are using the cores: timings taken now are too slow"
    yield _judged("machine", f"{cores} cores for this process, load {load:.1f}", load > cores, advice)
    named = {name: os.environ[name] for name in _THREADS if name in os.environ}
    found = f"look-ups, bags and updates use up to {thread_count()}"
    yield Finding("threads", found + "".join(f", {name}={value}" for name, value in named.items()))


def _blas() -> Iterator[Finding]:
    show: Any = np.show_config
    about = show(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    size = 512
    x = np.ones((size, size), np.float32)
    speed = 2 * size**3 / least_seconds(lambda: x @ x, 20) / 1e9
    found = f"{about.get('name', 'unknown')} {about.get('version', '')}: {speed:.0f} GFLOP/s in float32"
    advice = "products take most of a large model's time: install a NumPy with OpenBLAS, MKL or Accelerate"
    yield _judged("BLAS", found.replace(" :", ":"), speed < _SLOW["product"], advice)


def _cache() -> Iterator[Finding]:
    folder, kept = kernel_cache.cache_folder(), kernel_files()
    found = f"{folder}: {len(kept)} kernels, {shown_bytes(sum(each.size for each in kept))}"
    usable = kernel_cache.usable_folder()
    if usable is None or not os.access(usable, os.W_OK):
        advice = "every process compiles again: name a folder that only you can write to in AUTOBATCH_CACHE_DIR"
        yield Finding("cache", found, "wrong", advice)
        return
    free = shutil.disk_usage(usable).free
    advice = "the disk is full: kernels are not kept, and every process compiles again"
    yield _judged("cache", f"{found}, {shown_bytes(free)} free", free < 1 << 26, advice, "wrong")


def _compiler() -> Iterator[Finding]:
    if numba.config.DISABLE_JIT:
        advice = "unset it: nothing is compiled, and look-ups and bags run as Python"
        yield Finding("compiler", "NUMBA_DISABLE_JIT is set", "wrong", advice)
        return
    kernel = kernel_cache.kernel_of(_KERNEL.format(number=time.time_ns()))  # never compiled before
    start = time.perf_counter()
    while not kernel.poll() and not kernel.failed and time.perf_counter() - start < 60:
        time.sleep(0.02)
    seconds = time.perf_counter() - start
    if kernel.entry is None:
        advice = "blocks run as NumPy calls, numeric loops as Python: check that sys.executable can be started"
        yield Finding("compiler", "its process returns no kernels", "wrong", advice)
        return
    kernel_cache.forget_on_disk(kernel)
    advice = "the first seconds of a program run without kernels; keep its process alive, or the cache between runs"
    found = f"in its own process: a kernel after {seconds:.1f} s"
    yield _judged("compiler", found, seconds > _SLOW["compile"], advice)


def _importing() -> Finding:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import autobatch; autobatch.batch"], check=False, capture_output=True)
    seconds = time.perf_counter() - start
    advice = "most of it is Numba's: is the disk slow, or can no byte code be written (PYTHONDONTWRITEBYTECODE)?"
    return _judged("import", f"{seconds:.1f} s in a new process", seconds > _SLOW["import"], advice)


def _calls() -> Iterator[Finding]:
    """The time of a lock-step call, and of recording an operation: this library's Python overhead on this machine."""
    double = batch(lambda x: x * 2 + 1)
    xs = [np.ones(n, np.float32) for n in (1, 2, 3, 4)]
    given = MaskedBatch.from_examples(xs)
    with options(way="lockstep", warn=False):
        seconds = least_seconds(lambda: double(given), 20)
    advice = "a busy or slow processor: small batches stay with the loop"
    yield _judged("lock-step", f"{seconds * 1e6:.0f} µs for a call of one line", seconds > _SLOW["lockstep"], advice)

    def chain(x: Any) -> Any:
        for _ in range(100):
            x = np.tanh(x)
        return x

    with options(way="fly", warn=False):
        each = least_seconds(lambda: map_examples(chain, xs * 8)) / (100 * len(xs) * 8)
    yield _judged("tracing", f"{each * 1e6:.1f} µs for an operation", each > _SLOW["record"], advice)
