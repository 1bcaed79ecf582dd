"""What the choice of the way costs and gains: thirty calls of a function on new examples, beside the plain loop.

`python -m benchmarks.choosing [NAME ...]` prints for each function, size of batch and kind of call the time of thirty
calls, and of those from the tenth on, as parts of the loop's, with the way that ran last. Calls and loops take turns on
the same examples, results are compared first, and every row begins in a process that knows nothing, on processor time;
as with `timeit` the garbage collector rests, and the function has run once before: what NumPy loads then is nobody's.
A row is run `--runs` times, and the run whose figure for all calls is the median is printed.
`--afterwards N` makes N more calls once what is compiled behind the work is there, and adds what the last ten took.
"""

import argparse
import dataclasses
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.api.run_record import NAMES, ran_ways
from autobatch.blocks.kernel_cache import wait_for_kernels
from autobatch.testing.compare import compare

CALLS, FROM = 30, 9
FIRST, LATER = 1.25, 1.05  # parts of the loop's time: of all calls, and of those from the tenth on
FIXED = 20e-6  # seconds that a call may take beside that, whatever it does
BATCHES = (1, 4, 64, 512)
_ROOT = Path(__file__).resolve().parent.parent
_WIDTH = 32


def longest_run(x: np.ndarray, params: Any) -> int:
    best = run = 0
    for i in range(len(x)):
        run = run + 1 if x[i] > 0 else 0
        best = max(best, run)
    return best


def dtw(a: np.ndarray, b: np.ndarray, params: Any) -> float:
    n, m = len(a), len(b)
    d = np.full((n + 1, m + 1), np.inf)
    d[0, 0] = 0.0
    for i in range(n):
        for j in range(m):
            d[i + 1, j + 1] = abs(a[i] - b[j]) + min(d[i, j + 1], d[i + 1, j], d[i, j])
    return d[n, m]


def rnn(x: np.ndarray, params: Any) -> np.ndarray:
    h = np.zeros(_WIDTH)
    for v in x:
        h = np.tanh(v * params["w"] + h @ params["u"])
    return h


def attention(x: np.ndarray, params: Any) -> np.ndarray:
    rows = x[:, None] * params["w"]
    scores = (rows @ params["u"]) @ rows.T
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ rows).sum(axis=0)


def statistics_of(x: np.ndarray, params: Any) -> tuple[Any, Any]:
    centred = x - x.mean()
    return (centred * centred).mean(), np.abs(x).max()


def tree(node: Any, params: Any) -> np.ndarray:
    if not isinstance(node, tuple):
        return np.tanh(node * params["w"])
    return np.tanh((tree(node[0], params) + tree(node[1], params)) @ params["u"])


def _sequence(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=rng.integers(8, 17))


def _tree(rng: np.random.Generator, leaves: int = 12) -> Any:
    if leaves == 1:
        return float(rng.normal())
    left = int(rng.integers(1, leaves))
    return _tree(rng, left), _tree(rng, leaves - left)


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of the table.

    Attributes:
        run: it; columns: what makes one example of each of its arguments; batched: whether batches hold them.
    """

    run: Callable[..., Any]
    columns: Sequence[Callable[[np.random.Generator], Any]]
    batched: bool = True


FUNCTIONS = {
    "longest run": Function(longest_run, [_sequence]),
    "DTW": Function(dtw, [_sequence, _sequence]),
    "RNN": Function(rnn, [_sequence]),
    "attention": Function(attention, [_sequence]),
    "statistics": Function(statistics_of, [_sequence]),
    "trees": Function(tree, [_tree], batched=False),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """Thirty calls of one function: what they took of the loop's time, and the way of the last one."""

    name: str
    call: str
    batch: int
    loop: float
    all_calls: float
    later_calls: float
    afterwards: float
    way: str

    @property
    def holds(self) -> bool:
        fixed = FIXED / self.loop  # of the loop's time
        return self.all_calls <= FIRST + fixed and self.later_calls <= LATER + fixed


def measure(name: str, call: str, batch: int, afterwards: int = 0, calls: int = CALLS) -> Row:
    """The calls of one row, in this process; so many more when nothing is being compiled any more."""
    function, rng = FUNCTIONS[name], np.random.default_rng(batch)
    params = {"w": rng.normal(size=_WIDTH), "u": rng.normal(size=(_WIDTH, _WIDTH)) / _WIDTH}
    decorated = ab.batch(function.run)
    took: list[float] = []
    looped: list[float] = []

    def looping(columns: Any) -> Any:
        start = time.thread_time()
        out = [function.run(*values, params) for values in zip(*columns, strict=True)]
        looped.append(time.thread_time() - start)
        return out

    def calling(columns: Any) -> Any:
        given = columns if call == "map" else [ab.MaskedBatch.from_examples(column) for column in columns]
        start = time.thread_time()
        out = ab.map(function.run, *given, ab.shared(params)) if call == "map" else decorated(*given, params)
        took.append(time.thread_time() - start)
        return out if call == "map" else ab.examples(out)

    function.run(*[make(rng) for make in function.columns], params)
    gc.collect()
    gc.disable()
    for number in range(calls + afterwards):
        if number == calls:
            wait_for_kernels(60.0)
        columns = [[make(rng) for _ in range(batch)] for make in function.columns]
        both = [looping, calling] if number % 2 else [calling, looping]
        results = {run: run(columns) for run in both}
        wrong = compare(results[looping], results[calling])
        if wrong:
            raise AssertionError(f"{name}, {call} of {batch}: {wrong[0]}")
    with ran_ways() as ran:
        calling(columns)
    seconds = {way: cost.seconds for way, cost in ran[-1].costs.items() if cost.runs > 1 and cost.seconds is not None}
    way = NAMES[min(seconds, key=seconds.__getitem__)] if seconds else NAMES[ran[-1].way]
    part, later = (sum(took[each]) / sum(looped[each]) for each in (slice(calls), slice(FROM, calls)))
    last = sum(took[calls:-1][-10:]) / sum(looped[calls:][-10:]) if afterwards else 0.0
    return Row(name, call, batch, sum(looped[:calls]) / calls, part, later, last, way)


def main(arguments: list[str] | None = None) -> int:
    """Print the table, a process for each row; 0 where the bound holds in all rows."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.choosing", description=__doc__)
    options.add_argument("names", nargs="*", help=f"of {', '.join(FUNCTIONS)}; all by default")
    options.add_argument("--row", nargs=3, help="one row, in this process: its name, map or call, and the batch")
    options.add_argument("--afterwards", type=int, default=0, metavar="N", help="calls with all that is compiled")
    options.add_argument("--runs", type=int, default=3, help="of a row, of which the median counts")
    options.add_argument("--batch", type=int, action="append", help="sizes; all by default")
    given = options.parse_args(arguments)
    if given.row:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = measure(given.row[0], given.row[1], int(given.row[2]), given.afterwards)
            print(json.dumps(dataclasses.asdict(row)))
        return 0
    rows = []
    for name in given.names or FUNCTIONS:
        for call in ("call", "map") if FUNCTIONS[name].batched else ("map",):
            for batch in given.batch or BATCHES:
                command = [sys.executable, "-m", "benchmarks.choosing", "--row", name, call, str(batch)]
                command += ["--afterwards", str(given.afterwards)]
                runs = [
                    Row(**json.loads(subprocess.run(command, cwd=_ROOT, capture_output=True, check=True).stdout))
                    for _ in range(given.runs)
                ]
                row = sorted(runs, key=lambda each: each.all_calls)[given.runs // 2]
                rows.append(row)
                print(
                    f"{row.name:<12} {row.call:<5} {row.batch:>4}  loop {row.loop * 1e3:8.3f} ms"
                    f"  all {row.all_calls:6.2f}  later {row.later_calls:6.2f}"
                    + (f"  afterwards {row.afterwards:6.3f}" if given.afterwards else "")
                    + f"  {row.way}"
                    + ("" if row.holds else "  over"),
                    flush=True,
                )
    bound = f"{FIRST} and {LATER} of the loop's time and {FIXED * 1e6:.0f} us a call"
    print(f"{sum(row.holds for row in rows)} of {len(rows)} rows within {bound}")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
