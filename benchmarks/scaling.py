"""How numeric code scales with examples and with cores: beside the loop and an `@njit` loop over the same data.

`python -m benchmarks.scaling [NAME ...] --plot scaling.svg` runs the programs of the workload `numeric` over 100 to
1,000,000 examples, compiled in one thread and in one for each core, prints what an example takes, and draws it. Results
are compared first, on the fewest examples. The loop runs as far as it takes a few seconds; times are the clock's, the
least of a few turns, since threads share the work.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import autobatch as ab
from autobatch.core.threads import thread_count
from autobatch.testing.compare import compare
from benchmarks.declare import Case, Runner
from benchmarks.workloads import numeric

COUNTS = (100, 1_000, 10_000, 100_000, 1_000_000)
PROGRAMS = ("dtw", "longest_run", "decision_tree")
_TURNS, _LONG = 3, 4.0  # turns of each way; seconds after which it runs with no more examples, nor once more


def _threads() -> list[int]:
    """How many threads are tried: 1, 2, 4 and so on up to one for each core."""
    most = thread_count()
    return [*(n for n in (1 << i for i in range(16)) if n < most), most]


def _ways(name: str) -> dict[str, tuple[int, Callable[[Case], Runner]]]:
    """By name: threads, and what makes it ready."""
    ours = {f"compiled, {n} thread{'s' * (n > 1)}": (n, numeric.ours) for n in _threads()}
    return {"loop": (1, numeric.loop), "njit loop": (1, numeric.hand_written), **ours}


def measure(name: str, counts: tuple[int, ...] = COUNTS) -> dict[str, list[tuple[int, float]]]:
    """By way: (examples, seconds of all of them)."""
    found: dict[str, list[tuple[int, float]]] = {}
    expected: Any = None
    for way, (threads, prepare) in _ways(name).items():
        rows = found[way] = []
        for count in counts:
            if rows and rows[-1][1] * count / rows[-1][0] > (_LONG if way == "loop" else 60.0):
                break
            with ab.options(threads=threads):
                runner = prepare(Case(f"{name} {count}", {"name": name, "count": count}))
                result = runner.run()
                if count == counts[0]:
                    expected = runner.result(result) if expected is None else expected
                    wrong = compare(expected, runner.result(result))
                    if wrong:
                        raise AssertionError(f"{name}, {way}: {wrong[0]}")
                best = float("inf")
                for _ in range(_TURNS):
                    begun = time.perf_counter()
                    runner.run()
                    best = min(best, time.perf_counter() - begun)
                    if best > _LONG:
                        break
            rows.append((count, best))
            print(f"{name:<14} {way:<20} {count:>9,}  {best / count * 1e6:10.3f} us an example", flush=True)
    return found


def draw(measured: dict[str, dict[str, list[tuple[int, float]]]], path: str) -> None:
    """One picture of all programs, side by side."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  (an extra: who measures need not have it)

    figure, axes = plt.subplots(1, len(measured), figsize=(4.2 * len(measured), 3.6), squeeze=False)
    for axis, (name, ways) in zip(axes[0], measured.items(), strict=True):
        for way, rows in ways.items():
            axis.plot([n for n, _ in rows], [t / n * 1e6 for n, t in rows], marker="o", markersize=3.5, label=way)
        axis.set(title=name, xscale="log", yscale="log", xlabel="examples")
        axis.grid(True, alpha=0.3)
    axes[0][0].set_ylabel("µs for one example")
    axes[0][-1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and draw where a file is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS), help="programs of the workload numeric")
    parser.add_argument("--plot", metavar="FILE", help="a picture: .svg or .png")
    parser.add_argument("--most", type=int, default=COUNTS[-1], help="examples (default: a million)")
    options = parser.parse_args(arguments)
    if options.plot and not os.path.isdir(os.path.dirname(os.path.abspath(options.plot))):
        parser.error(f"no folder for {options.plot}")
    warnings.simplefilter("ignore")
    counts = tuple(count for count in COUNTS if count <= options.most) or (options.most,)
    measured = {name: measure(name, counts) for name in options.names}
    if options.plot:
        draw(measured, options.plot)
        print(options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
