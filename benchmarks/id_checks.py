"""What it costs that kernels check segment ids while they read them, beside the same kernels without the checks.

`python -m benchmarks.id_checks` takes `autobatch.kernels.segment_reductions` twice, once as it is and once without the
lines that check, and calls both in turn, by processor time: (time with checks) / (without), of the least times and as
the median of neighbouring calls, of which the smaller counts. A million ids in a hundred thousand segments are not
judged: most of that time is waiting for memory, and differs by a fifth from call to call.
"""

import functools
import importlib.util
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autobatch.kernels import segment_reductions

MOST = 1.05
_CHECK = re.compile(r"^ +if segment >= .*:\n +return False\n", re.MULTILINE)


def _trusting(folder: str) -> Any:
    """The module without its checks."""
    text, checks = _CHECK.subn("", Path(segment_reductions.__file__).read_text())
    assert checks >= 4
    path = Path(folder) / "trusting_reductions.py"
    path.write_text(text)
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def seconds(calls: Sequence[Callable[[], Any]], repeats: int, times: int) -> list[list[float]]:
    """The processor seconds of each call, taken in turn."""
    taken: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for turn in range(repeats):
        for at in range(len(calls))[:: 1 if turn % 2 else -1]:
            begun = time.thread_time()
            for _ in range(times):
                calls[at]()
            taken[at].append((time.thread_time() - begun) / times)
    return taken


def rows(checked: Any, trusting: Any, n: int, segments: int) -> dict[str, tuple[float, float]]:
    """By reduction: the least seconds, and the factor."""
    rng = np.random.default_rng(0)
    ids, weights = rng.integers(0, segments, n), rng.random(n)
    operands: dict[str, tuple[str, tuple[Any, ...]]] = {
        "count": ("segment_count", (ids, np.zeros(segments, np.int64))),
        "sum": ("segment_sum", (weights.reshape(-1, 1), None, None, ids, np.zeros((segments, 1)))),
        "weighted sum": ("segment_sum", (weights.reshape(-1, 1), None, weights, ids, np.zeros((segments, 1)))),
        "sum of 8": ("segment_sum", (rng.random((n, 8)), None, None, ids, np.zeros((segments, 8)))),
    }
    found = {}
    for what, (name, args) in operands.items():
        calls = [functools.partial(getattr(module, name), *args) for module in (checked, trusting)]
        one, two = seconds(calls, max(40, min(400, 3_000_000 // n)), max(1, 20_000 // n))
        factor = statistics.median(a / b for a, b in zip(one, two, strict=True))
        found[what] = min(one), min(factor, min(one) / min(two))
    return found


def main() -> int:
    """Print the table; 0 where no check costs more than is promised."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        trusting = _trusting(folder)
        for n in (1_000, 3_000, 10_000, 100_000, 1_000_000):
            for segments in (10, 100, 1_000, 100_000):
                if segments > n:
                    continue
                found = rows(segment_reductions, trusting, n, segments)
                shown = "  ".join(
                    f"{what} {least * 1e6:7.1f} us {factor:.3f}" for what, (least, factor) in found.items()
                )
                print(f"{n:9,} ids, {segments:7,} segments: {shown}", flush=True)
                if n < 1_000_000 or segments < 100_000:
                    worst = max(worst, *(factor for _, factor in found.values()))
    print(f"at most {worst:.3f}; {MOST} is promised")
    return 0 if worst <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
