"""What the figures were measured on."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import Any

_PACKAGES = ("numpy", "numba", "scipy", "torch", "dyNET38", "jax", "greenlet")


def describe() -> dict[str, Any]:
    """The processor, its cores and how busy they are, the system, and the versions of what was compared."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def peak_memory() -> int | None:
    """The most bytes that this process held so far; None where the system does not say."""
    try:
        import resource  # noqa: PLC0415 - not everywhere
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        found = []
    return found[0] if found else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(cores: int) -> dict[str, str]:
    """The environment of a process in which every library uses so many threads."""
    count = str(cores)
    threads = ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM")
    one = " --xla_cpu_multi_thread_eigen=false" if cores == 1 else ""
    return {
        **os.environ,
        **{f"{name}_NUM_THREADS": count for name in threads},
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + one,
        "JAX_PLATFORMS": "cpu",
    }


@contextlib.contextmanager
def pinned(cores: int) -> Iterator[None]:
    """Processes that are started meanwhile stay on so many cores, where the system allows that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-cores:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
