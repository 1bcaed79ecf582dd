"""What each way is good for: five kinds of work, over the number of examples and over the size of the cell.

`python -m benchmarks.curves` measures them, each way pinned beside the loop in the same run, results compared first,
and keeps the figures in `benchmarks/curves.json`; `--draw` makes the documentation's pictures of them, and no more.
Times are the processor's, the least of several turns that alternate between the ways. On the fly is of examples that
are new; what is kept of those that came before is switched off.
"""

import argparse
import dataclasses
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.api.run_record import ran_ways
from autobatch.blocks.kernel_cache import wait_for_kernels
from autobatch.core.config import WayName
from autobatch.testing.compare import compare

KEPT = Path(__file__).resolve().parent / "curves.json"
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "assets"
BATCHES, CELLS = (1, 4, 16, 64, 256, 1024), (8, 16, 32, 64, 128, 256)
BATCH, CELL = 64, 64  # what stays while the other one varies
COLOURS = {"loop": "#777777", "lockstep": "#1565c0", "fly": "#2e7d32", "compiled": "#c62828"}
NAMES = {"loop": "the loop", "lockstep": "lock-step", "fly": "tracing", "compiled": "compiled"}
_TURNS, _LONG = 5, 2.0  # turns of each way; seconds after which a way has no more of them


def recurrent(words: np.ndarray, params: Any) -> np.ndarray:
    h = np.zeros(params["u"].shape[0], np.float32)
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return h


def bag(words: np.ndarray, params: Any) -> np.ndarray:
    pooled: np.ndarray = params["emb"][words].sum(0) @ params["w"]
    return pooled


def tree(node: Any, params: Any) -> np.ndarray:
    if isinstance(node, int):
        leaf: np.ndarray = params["emb"][node]
        return leaf
    left, right = tree(node[0], params), tree(node[1], params)
    joined: np.ndarray = np.tanh(left @ params["w"] + right @ params["u"])
    return joined


def warped(a: np.ndarray, b: np.ndarray, params: Any) -> float:
    d = np.full((len(a) + 1, len(b) + 1), np.inf)
    d[0, 0] = 0.0
    for i in range(len(a)):
        for j in range(len(b)):
            d[i + 1, j + 1] = abs(a[i] - b[j]) + min(d[i, j + 1], d[i + 1, j], d[i, j])
    return d[len(a), len(b)]


def _words(rng: np.random.Generator, cell: int) -> np.ndarray:
    return rng.integers(0, 1000, rng.integers(5, 31))


def _tree(rng: np.random.Generator, cell: int, leaves: int | None = None) -> Any:
    leaves = int(rng.integers(5, 21)) if leaves is None else leaves
    if leaves == 1:
        return int(rng.integers(0, 1000))
    left = int(rng.integers(1, leaves))
    return _tree(rng, cell, left), _tree(rng, cell, leaves - left)


def _series(rng: np.random.Generator, cell: int) -> np.ndarray:
    return rng.normal(size=rng.integers(max(1, cell // 2), cell + 1))


@dataclasses.dataclass(frozen=True)
class Work:
    """A row of the pictures.

    Attributes:
        title: what is done; cell: what its size is; run: the function of one example.
        columns: what makes each argument of one example; ways: the ways beside the loop.
        trains: the sum of all results and its gradient, not the results.
    """

    title: str
    cell: str
    run: Callable[..., Any]
    columns: Sequence[Callable[..., Any]]
    ways: tuple[WayName, ...]
    trains: bool = False


WORK = {
    "recurrent": Work("RNN over 5-30 words", "size of the state", recurrent, [_words], ("lockstep", "fly")),
    "bag": Work("bag of 5-30 words, one layer", "size of a row", bag, [_words], ("lockstep", "fly")),
    "tree": Work("recursion over trees of 5-20 leaves", "size of the state", tree, [_tree], ("fly",)),
    "tree_training": Work("the same trees, with gradients", "size of the state", tree, [_tree], ("fly",), trains=True),
    "warped": Work(
        "time warping, loops over numbers", "length of a series", warped, [_series, _series], ("lockstep", "compiled")
    ),
}


def measure(name: str, batch: int, cell: int) -> dict[WayName, float]:
    """{way: seconds of one call}, the loop's first."""
    work, rng = WORK[name], np.random.default_rng(batch * 1000 + cell)
    shapes = {"emb": (1000, cell), "w": (cell, cell), "u": (cell, cell)}
    params = {key: rng.normal(0, cell**-0.5, shape).astype(np.float32) for key, shape in shapes.items()}
    columns = [[make(rng, cell) for _ in range(batch)] for make in work.columns]
    decorated = ab.batch(work.run)
    in_batches = all(isinstance(example, np.ndarray) for column in columns for example in column)
    batches = [ab.MaskedBatch.from_examples(column) for column in columns] if in_batches else []

    def results(way: WayName, params: Any) -> Any:
        if way == "loop":
            return [work.run(*values, params) for values in zip(*columns, strict=True)]
        if way == "fly":
            return ab.map(work.run, *columns, ab.shared(params))
        return decorated(*batches, params)

    def total(params: Any, way: WayName) -> Any:
        return sum(each.sum() for each in results(way, params))

    def call(way: WayName) -> Any:
        with ab.options(way=way):
            return ab.value_and_grad(total)(params, way) if work.trains else results(way, params)

    expected = call("loop")
    times: dict[WayName, float] = {"loop": float("inf"), **dict.fromkeys(work.ways, float("inf"))}
    for way in work.ways:
        for _ in range(6):  # until its kernels are asked for
            call(way)
            wait_for_kernels(30)
        with ran_ways() as ran:
            result = call(way)
        if ran[-1].way != way:
            raise AssertionError(f"{name}: asked for {way}, ran {ran[-1].way}: {ran[-1].why}")
        given = result if way == "fly" else ab.examples(result)
        wrong = compare([expected], [given]) if work.trains else compare(expected, given)
        if wrong:
            raise AssertionError(f"{name}, {way}, {batch} examples: {wrong[0]}")
    for turn in range(_TURNS):
        for way, best in list(times.items()):
            if turn and best > _LONG:
                continue
            number = max(1, int(0.02 / best)) if turn else 1
            start = time.process_time()
            for _ in range(number):
                call(way)
            times[way] = min(best, (time.process_time() - start) / number)
    return times


def draw(measured: dict[str, Any]) -> None:
    """One picture for each kind of work: over the number of examples, and over the size of the cell."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  (an extra: who measures need not have it)

    plt.rcParams["svg.hashsalt"] = "autobatch"  # the same figures give the same file
    for name, work in WORK.items():
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
        for axis, kind, label in zip(axes, ("batch", "cell"), ("examples in a call", work.cell), strict=True):
            rows = measured["curves"][name][kind]
            for way in ("loop", *work.ways):
                sizes = [row["size"] for row in rows]
                each = [row["times"][way] / row["examples"] * 1e6 for row in rows]
                axis.plot(sizes, each, marker="o", markersize=3.5, color=COLOURS[way], label=NAMES[way])
            axis.set(xscale="log", yscale="log", xlabel=label, xticks=[row["size"] for row in rows])
            axis.set_xticklabels([str(row["size"]) for row in rows])
            axis.minorticks_off()
            axis.grid(True, alpha=0.3)
        fixed = {kind: measured["curves"][name][kind][0] for kind in ("batch", "cell")}
        axes[0].set_title(f"{work.cell}: {fixed['batch']['cell']}", fontsize=10)
        axes[1].set_title(f"{fixed['cell']['examples']} examples in a call", fontsize=10)
        axes[0].set_ylabel("µs for one example")
        axes[0].legend(frameon=False)
        figure.suptitle(work.title)
        figure.savefig(PICTURES / f"curve_{name}.svg", metadata={"Date": None})
        plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Measure and keep, then draw; or only draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WORK)}; all by default")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    options = parser.parse_args(arguments)
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"curves": {}}
    if not options.draw:
        warnings.simplefilter("ignore")
        for name in options.names or WORK:
            curves: dict[str, list[dict[str, Any]]] = {"batch": [], "cell": []}
            cell = 32 if name == "warped" else CELL
            for kind, sizes in (("batch", BATCHES), ("cell", CELLS)):
                for size in sizes[:-1] if (name, kind) == ("warped", "cell") else sizes:  # the last takes minutes
                    examples, width = (size, cell) if kind == "batch" else (BATCH, size)
                    times = measure(name, examples, width)
                    curves[kind].append({"size": size, "examples": examples, "cell": width, "times": times})
                    shown = "  ".join(f"{way} {seconds / examples * 1e6:.1f}" for way, seconds in times.items())
                    print(f"{name:<10} {kind:<6} {size:>5}  µs for one example: {shown}", flush=True)
            kept["curves"][name] = curves
            KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    draw(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
