"""Models as a new user writes them first, beside the same models batched by hand: `python -m benchmarks.first_form`.

Each row is one training step (loss and gradient) on examples that were never seen before, by the library's choice and
on one core, in a process of its own. The peers, in `benchmarks.peers.first_form_torch` and `..._jax`, have the same
weights, and are padded, packed or cut into levels by hand; batches are made inside of the time that is measured,
for all. Losses and gradients are compared before anything is timed. Steps of all take turns, and the medians of the
last `STEPS` count, after `SETTLING` others. `--write` puts the table into docs/figures.md, the rows of `SHOWN` into
README.md, and draws the curve beside them.
"""

import argparse
import dataclasses
import functools
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import autobatch as ab
from benchmarks.common import total
from benchmarks.first_form_models import MODELS, Model, Params
from benchmarks.summary import between

SETTLING, STEPS = 60, 30
LOADING = 2.0  # seconds in which code on disk is loaded, Numba with it; sixty steps of a small model take a thirtieth
SIZES = (16, 64)
CURVE = (4, 16, 64, 256)
ROOT = Path(__file__).resolve().parent.parent
SHOWN = ("bag", "recurrent", "tagger", "encoder", "trees", "parser")  # in README.md, which is short
MARKERS = ("<!-- first form -->\n", "<!-- end of first form -->\n")
PICTURE = ROOT / "docs" / "assets" / "first_form.svg"


def flat(gradient: Any) -> dict[str, np.ndarray]:
    """Arrays by name, of nested dicts and lists; those of tables dense."""
    leaves: dict[str, np.ndarray] = {}
    for name, part in gradient.items() if isinstance(gradient, dict) else enumerate(gradient):
        if isinstance(part, dict | list):
            leaves |= {f"{name}.{rest}": leaf for rest, leaf in flat(part).items()}
        else:
            leaves[str(name)] = part.to_dense() if isinstance(part, ab.SparseRows) else np.asarray(part)
    return leaves


def ours(model: Model, params: Params) -> Callable[[Any], Any]:
    """A step as the README writes it: `ab.batch` and `ab.collate`, or `ab.map` where examples are objects."""
    loss = ab.batch(model.loss)

    def mapped(columns: Any) -> Any:
        return ab.value_and_grad(lambda p: sum(ab.map(model.loss, *columns, params=p)) / len(columns[0]))(params)

    def batched(columns: Any) -> Any:
        batches = [ab.collate(column) for column in columns]
        return ab.value_and_grad(lambda p: ab.mean(loss(*batches, p)))(params)

    return mapped if model.mapped else batched


def the_loop(model: Model, params: Params) -> Callable[[Any], Any]:
    """The gradient of one example after the other."""
    step = ab.value_and_grad(lambda p, example: model.loss(*example, p))

    def run(columns: Any) -> Any:
        values, gradients = zip(*(step(params, example) for example in zip(*columns, strict=True)), strict=True)
        return np.mean(values), _mean(gradients)

    return run


def _mean(gradients: Sequence[Any]) -> Any:
    first = gradients[0]
    if isinstance(first, dict):
        return {name: _mean([each[name] for each in gradients]) for name in first}
    if isinstance(first, list):
        return [_mean(each) for each in zip(*gradients, strict=True)]
    return total(gradients) / len(gradients)


@dataclasses.dataclass(frozen=True)
class Row:
    """Seconds of a step, by way."""

    model: str
    examples: int
    hidden: int
    seconds: dict[str, float]

    @property
    def best(self) -> str:
        """The fastest peer."""
        return min((way for way in self.seconds if way not in ("autobatch", "loop")), key=self.seconds.__getitem__)

    @property
    def gain(self) -> float:
        """How many times as long as ours the fastest peer's step takes."""
        return self.seconds[self.best] / self.seconds["autobatch"]


def measure(name: str, examples: int, hidden: int, steps: int = STEPS, settling: int = SETTLING) -> Row:
    """One row, in this process."""
    model, rng = MODELS[name], np.random.default_rng(7)
    params = model.params(rng, hidden)
    held = params | ({"emb": ab.EmbeddingTable(params["emb"])} if "emb" in params else {})
    ways = {"autobatch": ours(model, held), "loop": the_loop(model, held)}
    for peer in model.peers:
        if importlib.util.find_spec(peer) is not None:
            ways |= getattr(importlib.import_module(f"benchmarks.peers.first_form_{peer}"), name)(params)

    def columns() -> list[list[Any]]:
        return [list(column) for column in zip(*(model.example(rng) for _ in range(examples)), strict=True)]

    same = columns()
    value, gradient = ways["loop"](same)
    for way, run in ways.items():
        got, slopes = run(same)
        np.testing.assert_allclose(float(got), value, rtol=1e-4, err_msg=f"{name}: {way}")
        for key, wanted in flat(gradient).items():
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(flat(slopes)[key], wanted, atol=2e-3 * scale, err_msg=f"{name}: {way} {key}")
    took: dict[str, list[float]] = {way: [] for way in ways}
    begun, left = time.perf_counter(), steps
    for number in itertools.count():
        if number >= settling and time.perf_counter() - begun > LOADING:
            left -= 1
        if left < 0:
            break
        given = columns()
        for way, run in sorted(ways.items(), reverse=bool(number % 2)):
            if way == "loop" and left > 5:
                continue  # it has nothing to settle, and takes long
            start = time.perf_counter()
            run(given)
            took[way].append(time.perf_counter() - start)
    return Row(name, examples, hidden, {way: statistics.median(times[-steps:]) for way, times in took.items()})


def in_a_process(name: str, examples: int, hidden: int) -> Row:
    """One row, in a process of its own that uses one thread."""
    one = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    one |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    command = [sys.executable, "-m", "benchmarks.first_form", "--row", name, str(examples), str(hidden)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **one}, stdout=subprocess.PIPE, check=True)
    return Row(**json.loads(done.stdout))


def table(rows: Sequence[Row], shown: Collection[str] = MODELS) -> str:
    """A row for each model, at each number of examples our time and the best peer's; and the means of all.

    Args:
        shown: the models that get a row.
    """
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    counts = [row.examples for row in next(iter(by_model.values()))]
    lines = [
        f"| model | {' | '.join(f'{n} examples: autobatch | loop | by hand' for n in counts)} |",
        f"| --- |{' ---: |' * 3 * len(counts)}",
    ]
    for name in [name for name in by_model if name in shown]:
        found = by_model[name]
        cells = (cell for row in found for cell in _cells(row))
        lines.append(f"| {MODELS[name].about} | {' | '.join(cells)} |")
    for n in counts:
        mean = statistics.geometric_mean(row.gain for row in rows if row.examples == n)
        lines += [
            "",
            f"For {n} examples, the time by hand is {mean:.2f} of ours (geometric mean, {len(by_model)} models).",
        ]
    return "\n".join([*lines, ""])


def _cells(row: Row) -> tuple[str, str, str]:
    own, loop, best = (f"{1e3 * row.seconds[way]:.3g}" for way in ("autobatch", "loop", row.best))
    return own, loop, f"{best} {row.best} ({row.gain:.2f})"


def draw(rows: Sequence[Row]) -> None:
    """Examples in a second over the examples in a batch, of the recurrent classifier."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - only for the picture

    plt.rcParams["svg.hashsalt"] = "first form"
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    figure.patch.set_facecolor("white")
    counts = [row.examples for row in rows]
    for way in sorted(rows[-1].seconds, key=rows[-1].seconds.__getitem__):  # the legend in the order of the lines' ends
        speeds = [row.examples / row.seconds[way] for row in rows]
        axes.plot(counts, speeds, marker="o", lw=2.8 if way == "autobatch" else 1.3, label=way)
    axes.set(xscale="log", yscale="log", xlabel="examples in a batch", ylabel="examples trained in a second")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.grid(alpha=0.3)
    axes.set_title(f"{MODELS[rows[0].model].about}, {rows[0].hidden} units, one core", fontsize=10)
    figure.savefig(PICTURE, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_form", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--row", nargs=3, metavar=("NAME", "EXAMPLES", "SIZE"), help="one row, in this process")
    parser.add_argument("--hidden", type=int, default=64, help="size of the states (default: 64)")
    parser.add_argument("--write", action="store_true", help="into README.md and docs/figures.md, with the curve")
    given = parser.parse_args(arguments)
    if given.row:
        with warnings.catch_warnings(), ab.options(threads=1):
            warnings.simplefilter("ignore")
            print(json.dumps(dataclasses.asdict(measure(given.row[0], int(given.row[1]), int(given.row[2])))))
        return 0
    run = functools.partial(in_a_process, hidden=given.hidden)
    rows = [run(name, examples) for name in given.names or MODELS for examples in SIZES]
    text = table(rows)
    print(text)
    if given.write:
        readme, page = ROOT / "README.md", ROOT / "docs" / "figures.md"
        readme.write_text(between(readme.read_text(encoding="utf-8"), table(rows, SHOWN)), encoding="utf-8")
        page.write_text(between(page.read_text(encoding="utf-8"), text, MARKERS), encoding="utf-8")
        draw([run("recurrent", examples) for examples in CURVE])
    return 0


if __name__ == "__main__":
    sys.exit(main())
