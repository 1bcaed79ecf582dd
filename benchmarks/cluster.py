"""What several processes cost and gain: two workers by Ray beside one process, and a simulation of more of them.

`python -m benchmarks.cluster` measures, on this machine: a map over ragged Parquet and the training of a model like
DLRM, by two workers and by one process that does the same, results compared first, turns alternating; what travels; and
what a call of an actor costs. With these it simulates 2 to 256 workers (`benchmarks/cluster_simulation.py`). It writes
`benchmarks/cluster.json` and the plot `docs/cluster.svg`, from which docs/cluster.md has its figures.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import machine
from benchmarks.cluster_simulation import Network, Shape, simulate

__all__ = ["Model", "main"]

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_BANDWIDTH = 1.25e9  # bytes a second: a network of 10 Gbit/s, which is assumed


@ab.batch
def click(numbers: Any, keys: Any, label: Any, params: Any) -> Any:
    """The loss of one example: numbers through layers, products of all pairs of rows, layers."""
    x = np.maximum(numbers @ params["w0"] + params["b0"], 0)
    x = np.maximum(x @ params["w1"] + params["b1"], 0)
    rows = np.concatenate([params["rows"][keys], x.reshape(1, -1)])
    pairs = (rows @ rows.T).reshape(-1)
    z = np.maximum(pairs @ params["w2"] + params["b2"], 0)
    score = z @ params["w3"]
    return np.logaddexp(np.float32(0), score) - label * score


def loss(params: Any, batch: Any) -> Any:
    return ab.mean(click(batch["numbers"], batch["keys"], batch["label"], params))


class Model:
    """A model like DLRM (Naumov et al., 2019): 13 numbers and 26 keys an example, rows of 16."""

    def __init__(self, batch: int) -> None:
        self.batch, self.features, self.dim, self.keys = batch, 26, 16, 10**6

    def params(self) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        n = self.features + 1
        shapes = {"w0": (13, 64), "w1": (64, self.dim), "w2": (n * n, 128), "w3": (128,)}
        out: dict[str, Any] = {
            name: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32) for name, shape in shapes.items()
        }
        out |= {"b0": np.zeros(64, np.float32), "b1": np.zeros(self.dim, np.float32), "b2": np.zeros(128, np.float32)}
        return out | {"rows": ab.EmbeddingVariable(self.dim, seed=1)}

    def data(self, step: int) -> Any:
        rng = np.random.default_rng(step % 8)
        keys = (rng.zipf(1.2, (self.batch, self.features)) % self.keys) * self.features + np.arange(self.features)
        return {
            "numbers": ab.MaskedBatch(rng.normal(size=(self.batch, 13)).astype(np.float32)),
            "keys": ab.MaskedBatch(keys),
            "label": ab.MaskedBatch(rng.integers(0, 2, self.batch).astype(np.float32)),
        }


def training(batch: int, segments: int, steps: int = 4) -> dict[str, Any]:
    """Seconds of a step: by one process, and by two workers and two shards."""
    model, optimizer = Model(batch), ab.optim.Adagrad(0.05)
    data = [model.data(step) for step in range(8)]
    marks: list[float] = []

    def one() -> tuple[list[float], Any]:
        params = model.params()
        state = optimizer.init(params)
        gradient = ab.value_and_grad(loss)
        times = []
        with ab.options(way="lockstep", kernels=False, threads=1):
            for step in range(segments * steps):
                begin = time.perf_counter()
                _, grads = gradient(params, data[step % 8])
                params, state = optimizer.update(params, grads, state)
                times.append(time.perf_counter() - begin)
        return times, params

    def two() -> tuple[list[float], Any]:
        marks.clear()
        params, _ = ab.ray.train(
            loss, model.params(), data, optimizer, steps=segments * steps, workers=2, parts=2, every=steps,
            keys=lambda batch: {"rows": batch["keys"]}, log=lambda step, value: marks.append(time.perf_counter()),
        )  # fmt: skip
        ends = marks[steps - 1 :: steps]
        return [(b - a) / steps for a, b in itertools.pairwise(ends)], params

    alone, expected = one()
    together, found = two()
    np.testing.assert_allclose(found["w2"], expected["w2"], rtol=1e-2, atol=1e-4)
    alone = min(alone, one()[0], key=min)
    group = ab.ray.LocalCommunicator(2)
    ab.ray.train(
        loss, model.params(), data, optimizer, steps=steps, parts=2, communicator=group,
        keys=lambda batch: {"rows": batch["keys"]},
    )  # fmt: skip
    halves = [
        len(np.unique(np.asarray(each["keys"].data)[share]))
        for each in data[:steps]
        for share in (slice(0, batch // 2), slice(batch // 2, None))
    ]
    least = 2 * sum(halves) * (model.dim * 4 + 8)
    moved = sum(sum(member.traffic.values()) for member in group.members)
    dense = sum(leaf.nbytes for name, leaf in model.params().items() if name != "rows")
    return {
        "batch": batch, "one process": min(alone), "two workers": min(together),
        "ratio": min(alone) / min(together), "bytes moved": moved, "unique keys x (row + key), there and back": least,
        "moved over that": moved / least, "of dense parameters": 2 * 2 * steps * dense / least,
    }  # fmt: skip


def total(ids: Any, weight: Any) -> Any:
    """What is mapped: of one row."""
    return np.tanh(ids * weight).sum() + np.sqrt(ids * ids + 1).sum()


def mapping(rows: int, turns: int) -> dict[str, Any]:
    """Seconds of a map over ragged rows: by one process, by two workers, both warm."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 60, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 1000, offsets[-1])))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "in.parquet")
        pq.write_table(pa.table({"ids": ids, "weight": rng.normal(size=rows)}), path, row_group_size=rows // 32)
        count = iter(range(1000))

        def run(workers: int) -> tuple[float, Any]:
            out = pathlib.Path(folder, f"out-{next(count)}")
            begin = time.perf_counter()
            ab.ray.map(total, path, columns=["ids", "weight"], out=out, workers=workers)
            return time.perf_counter() - begin, pq.read_table(out)

        small = pathlib.Path(folder, "small.parquet")
        pq.write_table(pq.read_table(path).slice(0, rows // 16), small, row_group_size=rows // 32)

        def start(workers: int) -> float:
            begin = time.perf_counter()
            out = pathlib.Path(folder, f"out-{next(count)}")
            ab.ray.map(total, small, columns=["ids", "weight"], out=out, workers=workers)
            return time.perf_counter() - begin

        found: dict[int, list[float]] = {0: [], 2: []}
        starts: dict[int, list[float]] = {0: [], 2: []}
        for turn in range(turns + 1):
            for workers in (0, 2):
                starts[workers].append(start(workers))
                seconds, table = run(workers)
                found[workers].append(seconds)
                if turn == 0 and workers == 0:
                    expected = table
                np.testing.assert_allclose(table["result"].to_numpy(), expected["result"].to_numpy(), rtol=1e-6)
        one, two = (min(found[workers][1:]) - min(starts[workers][1:]) for workers in (0, 2))
    return {"rows": rows, "one process": one, "two workers": two, "ratio": one / two, "start": min(starts[2][1:])}


def calls() -> dict[str, float]:
    """Seconds that a call of an actor takes, here."""
    ray = ab.ray.ray_session.ray_session(2)
    actor = ray.remote(num_cpus=0)(_Echo).remote()

    def least(size: int, number: int = 100) -> float:
        message = np.zeros(size // 8)
        best = np.inf
        for _ in range(3):
            begin = time.perf_counter()
            for _ in range(number):
                ray.get(actor.take.remote(message))
            best = min(best, (time.perf_counter() - begin) / number)
        return best

    least(8)
    begin = time.thread_time()
    for _ in range(300):
        actor.take.remote(None)
    submit = (time.thread_time() - begin) / 300
    small, large = least(8), least(8_000_000, 5)
    ray.kill(actor)
    return {"round trip": small, "submit": submit, "bandwidth": 8_000_000 / max(large - small, 1e-6)}


class _Echo:
    def take(self, message: Any) -> None:
        return None


def simulations(model: Model, gradient: float, measured: dict[str, float], sizes: tuple[int, ...]) -> list[Any]:
    """Weak scaling: each worker has as many examples, however many there are."""
    dense = sum(leaf.size for name, leaf in model.params().items() if name != "rows")
    shape = Shape(model.batch, model.features, model.dim, dense, 10**9, gradient)
    latency = max(0.0, measured["round trip"] / 2 - measured["submit"])
    network = Network(measured["submit"], measured["submit"] / 2, latency, _BANDWIDTH)
    out = []
    for workers in sizes:
        variants: list[Callable[[], Any]] = [lambda w=workers: simulate(w, w, 0, shape, network, 2)]  # type: ignore[misc]
        if workers >= 16:
            variants.append(lambda w=workers: simulate(w, w // 8, 0, shape, network, 2))  # type: ignore[misc]
        for variant in variants:
            found = variant()
            out.append(dataclasses.asdict(found))
            print(found, flush=True)
    return out


def plot(found: dict[str, Any], path: pathlib.Path) -> None:
    """Efficiency by the number of workers."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("svg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    results = found["simulated"]
    base = results[0]["seconds"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for name, pick in (
        ("a shard for each worker", lambda each: each["shards"] == each["workers"]),
        ("a shard for 8 workers", lambda each: each["shards"] < each["workers"]),
    ):
        own = [each for each in results if pick(each)]
        x = [each["workers"] for each in own]
        axes[0].plot(x, [100 * base / each["seconds"] for each in own], marker="o", label=name)
        axes[1].plot(x, [100 * each["shard"] for each in own], marker="o", label=f"busiest shard, {name}")
        axes[1].plot(x, [100 * each["network"] for each in own], marker="x", ls=":", label=f"busiest network, {name}")
    for axis, label in zip(axes, ("efficiency, %", "part of a step, %"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("workers (simulated)")
        axis.set_ylabel(label)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--sizes", type=int, nargs="*", default=list(_SIZES), help="numbers of simulated workers")
    options.add_argument("--only", nargs="*", default=["calls", "map", "training", "simulated"])
    given = options.parse_args()
    where = _ROOT / "benchmarks" / "cluster.json"
    found: dict[str, Any] = json.loads(where.read_text()) if where.exists() else {}
    found["machine"] = machine.describe()
    batch = 512 if given.quick else 4096
    if "calls" in given.only:
        found["calls"] = calls()
    if "map" in given.only:
        found["map"] = mapping(20_000 if given.quick else 400_000, 1 if given.quick else 3)
    if "training" in given.only:
        found["training"] = training(batch, 3 if given.quick else 5)
    for name in ("calls", "map", "training"):
        sys.stdout.write(f"{name}: {found.get(name)}\n")
    if "simulated" in given.only:
        model = Model(batch // 2)
        found["simulated"] = simulations(
            model, found["training"]["one process"] / 2, found["calls"], tuple(given.sizes)
        )
        plot(found, _ROOT / "docs" / "cluster.svg")
    where.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
