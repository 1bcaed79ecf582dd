"""The first thirty calls of new functions by the library's choice, beside the plain loop.

`python -m benchmarks.first_calls [NAME ...]` takes each function of `benchmarks.new_functions` from a new source file,
with new examples in each call, as `ab.map` and as a decorated call on a batch. Calls and loops take turns on the same
examples; results are compared. Both have run once before, the loop on the function and the library on another one: the
processor's caches cost 25 us in a loop's first call, 60 us in the library's. What a decorated call needs to slice the
batch and to stack the results counts as ours: the loop gets lists, and returns one. It prints by which factor the
loop's time exceeds ours (above 1 we are faster), by the calling thread's processor time and by the clock on the wall:
the geometric means, and the rows that do worst.

A run is one process, in which functions come in an order drawn by chance; the median of `--runs` counts. With `--alone`
each function gets a process of its own, in which the import of the engines is part of the first call. What is compiled
goes to a folder that begins empty. `--calls 300` measures what comes of it: then the last third of the calls counts.
"""

import argparse
import gc
import importlib.util
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.testing.compare import compare
from benchmarks import new_functions

CALLS = 30
SCALE = 25  # of the examples: a call of 4 then takes the loop 7 us to 80 ms, 0.5 ms in the median
BATCHES = (4, 64)
LONGER = 1e-4  # seconds: in shorter loops the fixed 10 to 100 us of a call of ours count most
LEAST = {4: 0.9, 64: 0.95}  # geometric means that are promised
_ROOT = Path(__file__).resolve().parent.parent


def _renewed(folder: Path, name: str) -> Any:
    """The functions, from a source file that this process has not seen."""
    path = folder / f"new_{name}_{time.time_ns()}.py"
    path.write_text(re.sub(rf"\b{name}\b", f"{name}_", Path(new_functions.__file__).read_text()))
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(folder: Path, name: str, call: str, batch: int, calls: int = CALLS, scale: int = SCALE) -> dict[str, float]:
    """The loop's time over ours, for the calls of one function: of the thread ("cpu") and on the wall."""
    module = _renewed(folder, name)
    module.SCALE = scale
    function = module.functions()[f"{name}_"]
    rng = np.random.default_rng(batch)
    params = module._params(rng)
    decorated = ab.batch(function.run)
    takes_params = None in function.columns
    makers = [make for make in function.columns if make is not None]

    def looping(columns: Any) -> Any:
        if takes_params:
            return [function.run(*values, params) for values in zip(*columns, strict=True)]
        if len(columns) == 1:
            return [function.run(x) for x in columns[0]]
        return [function.run(*values) for values in zip(*columns, strict=True)]

    def mapping(columns: Any, run: Any = function.run) -> Any:
        return ab.map(run, *columns, params=params) if takes_params else ab.map(run, *columns)

    def calling(columns: Any, run: Any = decorated) -> Any:
        return run(*columns, params) if takes_params else run(*columns)

    ours = mapping if call == "map" else calling
    spent: dict[Any, list[tuple[float, float]]] = {looping: [], ours: []}
    function.run(*[make(rng) for make in makers], *([params] if takes_params else []))
    gc.collect()
    gc.disable()
    columns = [[make(rng) for _ in range(batch)] for make in makers]
    looping(columns)
    ours(columns if call == "map" else [*map(_batch_of, columns)], _first if call == "map" else ab.batch(_first))
    for number in range(calls):
        columns = [[make(rng) for _ in range(batch)] for make in makers]
        given = columns if call == "map" else [_batch_of(column) for column in columns]
        results = {}
        for run in [looping, ours] if number % 2 else [ours, looping]:
            values = columns if run is looping else given
            wall, cpu = time.perf_counter(), time.thread_time()
            results[run] = run(values)
            spent[run].append((time.thread_time() - cpu, time.perf_counter() - wall))
        found = results[ours] if call == "map" else ab.examples(results[ours])
        wrong = compare(results[looping], found)
        if wrong:
            raise AssertionError(f"{name}, {call} of {batch}: {wrong[0]}")
    gc.enable()
    counted = slice(0 if calls == CALLS else 2 * calls // 3, calls)
    (loop_cpu, loop_wall), (cpu, wall) = (map(sum, zip(*spent[run][counted], strict=True)) for run in (looping, ours))
    return {"cpu": loop_cpu / cpu, "wall": loop_wall / wall, "loop": loop_cpu / (counted.stop - counted.start)}


def _first(*values: Any, params: Any = None) -> Any:
    return values[0]


def _batch_of(column: list[Any]) -> Any:
    return ab.MaskedBatch.from_examples(column) if isinstance(column[0], np.ndarray) else ab.collate(column)


def _process(names: list[str], call: str, batch: int, calls: int, seed: int, scale: int) -> dict[str, dict[str, float]]:
    """The figures of some functions, measured in one new process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.first_calls", *names, "--here", folder, call]
        command += ["--batch", str(batch), "--calls", str(calls), "--seed", str(seed), "--scale", str(scale)]
        out = subprocess.run(
            command, cwd=_ROOT, stdout=subprocess.PIPE, check=True, env={**os.environ, "XDG_CACHE_HOME": folder}
        )
        return json.loads(out.stdout)


def _here(folder: Path, names: list[str], call: str, batch: int, calls: int, seed: int, scale: int) -> dict[str, Any]:
    if len(names) > 1:  # the engines are loaded
        ab.map(lambda x: x, list(range(1000)))
        random.Random(seed).shuffle(names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: measure(folder, name, call, batch, calls, scale) for name in names}


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; 0 where all geometric means are as promised."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.first_calls", description=__doc__)
    known = new_functions.functions()
    options.add_argument("names", nargs="*", help="functions; all by default")
    options.add_argument("--batch", type=int, action="append", help=f"sizes; {BATCHES} by default")
    options.add_argument("--runs", type=int, default=3, help="processes, of which the median counts")
    options.add_argument("--calls", type=int, default=CALLS)
    options.add_argument("--worst", type=int, default=8, help="rows to print")
    options.add_argument("--alone", action="store_true", help="a process for each function")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--scale", type=int, default=SCALE, help=f"of the examples' lengths (default: {SCALE})")
    options.add_argument("--here", nargs=2, metavar=("FOLDER", "CALL"), help="measure in this process; print JSON")
    given = options.parse_args(arguments)
    names = given.names or list(known)
    if given.here:
        folder, call = given.here
        print(json.dumps(_here(Path(folder), names, call, given.batch[0], given.calls, given.seed, given.scale)))
        return 0
    holds = True
    for batch in given.batch or BATCHES:
        for call in ("map", "call"):
            rows = [name for name in names if call == "map" or known[name].batched]
            found: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
            for seed in range(given.runs):
                for part in [[name] for name in rows] if given.alone else [rows]:
                    for name, figures in _process(part, call, batch, given.calls, seed, given.scale).items():
                        found[name].append(figures)
            median = {
                name: {kind: statistics.median(run[kind] for run in runs) for kind in runs[0]}
                for name, runs in found.items()
            }
            cpu, wall = (math.exp(statistics.fmean(math.log(r[k]) for r in median.values())) for k in ("cpu", "wall"))
            slower = sum(row["cpu"] < 1 for row in median.values())
            print(f"\n{call} of {batch}: loop/ours {cpu:.3f} (wall {wall:.3f}), {slower} of {len(rows)} slower")
            longer = [row["cpu"] for row in median.values() if row["loop"] >= LONGER]
            if longer:
                print(f"  {len(longer)} with loops of {LONGER * 1e3} ms on: {statistics.geometric_mean(longer):.3f}")
            worst = sorted(median.items(), key=lambda item: item[1]["cpu"])
            for name, row in worst[: given.worst]:
                print(
                    f"  {name:<20} loop {row['loop'] * 1e6:8.0f} us a call  {row['cpu']:6.3f}  wall {row['wall']:6.3f}"
                )
            sys.stdout.flush()
            holds &= cpu >= LEAST.get(batch, 0.95)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
