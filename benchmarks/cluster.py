"""What several processes cost and gain: two workers by Ray beside one process, and a simulation of more of them.

`python -m benchmarks.cluster` measures, on this machine: a map over ragged Parquet and the training of a model like
DLRM, by two workers and by one process that does the same, results compared first, turns alternating; what travels; and
what a call of an actor costs. With these it simulates 2 to 256 workers (`benchmarks/cluster_simulation.py`). It writes
`benchmarks/cluster.json` and the plot `docs/cluster.svg`, from which docs/cluster.md has its figures.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.core import pytree
from benchmarks import machine
from benchmarks.cluster_simulation import Network, Shape, simulate
from tests.ray.kills import processes_below

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_BANDWIDTH = 1.25e9  # bytes a second: a network of 10 Gbit/s, which is assumed
_PART = 2048  # examples: what a gradient of so many computes stays in the caches


@ab.batch
def click(numbers: Any, keys: Any, label: Any, params: Any) -> Any:
    """The loss of one example: numbers through layers, products of all pairs of rows, layers."""
    x = layers(numbers, params["below"])
    rows = np.concatenate([params["rows"][keys], x.reshape(1, -1)])
    pairs = (rows @ rows.T).reshape(-1)
    score = layers(pairs, params["above"]) @ params["last"]
    return np.logaddexp(np.float32(0), score) - label * score


def layers(x: Any, params: Any) -> Any:
    """A multi-layer perceptron."""
    for w, b in params:
        x = np.maximum(x @ w + b, 0)
    return x


def loss(params: Any, batch: Any) -> Any:
    return ab.mean(click(batch["numbers"], batch["keys"], batch["label"], params))


class Model:
    """DLRM as of Naumov et al. (2019) for Criteo: 13 numbers and 26 keys an example, rows of 16, their layers."""

    def __init__(self, batch: int) -> None:
        self.batch, self.features, self.dim, self.keys = batch, 26, 16, 10**6

    def params(self) -> dict[str, Any]:
        rng = np.random.default_rng(0)

        def drawn(*sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
            return [
                ((rng.normal(size=(n, m)) / np.sqrt(n)).astype(np.float32), np.zeros(m, np.float32))
                for n, m in itertools.pairwise(sizes)
            ]

        return {
            "below": drawn(13, 512, 256, 64, self.dim), "above": drawn((self.features + 1) ** 2, 512, 256),
            "last": (rng.normal(size=256) / 16).astype(np.float32), "rows": ab.EmbeddingVariable(self.dim, seed=1),
        }  # fmt: skip

    @property
    def dense(self) -> int:
        """Numbers in arrays, which are no table."""
        return sum(leaf.size for leaf in pytree.leaves(self.params()) if isinstance(leaf, np.ndarray))

    def data(self, step: int) -> Any:
        rng = np.random.default_rng(step % 8)
        keys = (rng.zipf(1.2, (self.batch, self.features)) % self.keys) * self.features + np.arange(self.features)
        return {
            "numbers": ab.MaskedBatch(rng.normal(size=(self.batch, 13)).astype(np.float32)),
            "keys": ab.MaskedBatch(keys),
            "label": ab.MaskedBatch(rng.integers(0, 2, self.batch).astype(np.float32)),
        }


class Clock:
    """Seconds of the clock, and of the processors: this process's and those of the Ray processes below it."""

    def __init__(self) -> None:
        self._ended: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(1.0):  # of a process that ends, what it had last counts; a look takes 10 ms
            self._look()

    def _look(self) -> None:
        for pid, name in processes_below(os.getpid()).items():
            if name.startswith("ray::") and "Agent" not in name:
                with contextlib.suppress(OSError):
                    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self._ended[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def now(self) -> np.ndarray:
        """(clock, this process, processes of Ray)."""
        self._look()
        return np.array([time.perf_counter(), time.process_time(), sum(self._ended.values())])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def compared(one: np.ndarray, two: np.ndarray) -> dict[str, Any]:
    """Two measurements: by the clock, and what the processors did, which a busy machine changes little.

    Two workers would take half of what they and their shards and leader work together, if nobody waited: that is the
    ratio that processors allow.
    """
    return {
        "one process": one[0], "two workers": two[0], "ratio": one[0] / two[0],
        "processor, one process": one[1], "processor, two workers": two[1] + two[2],
        "ratio that processors allow": 2 * one[1] / (two[1] + two[2]),
    }  # fmt: skip


def training(batch: int, segments: int, steps: int = 4) -> dict[str, Any]:
    """Seconds of a step: by one process, and by two workers and two shards."""
    model, optimizer, parts = Model(batch), ab.optim.Adagrad(0.05), max(2, batch // _PART)
    data = [model.data(step) for step in range(8)]
    clock = Clock()
    marks: list[np.ndarray] = []

    def one() -> list[np.ndarray]:
        params = model.params()
        state = optimizer.init(params)
        gradient = ab.value_and_grad(loss)
        times = [clock.now()]
        with ab.options(way="lockstep", kernels=False, threads=1):
            for step in range(segments * steps):
                _, grads = gradient(params, data[step % 8])
                params, state = optimizer.update(params, grads, state)
                if step % steps == steps - 1:
                    times.append(clock.now())
        return times

    def note(step: int, value: float) -> None:
        if step % steps == steps - 1:
            marks.append(clock.now())

    def two() -> tuple[list[np.ndarray], Any]:
        marks.clear()
        params, _ = ab.ray.train(
            loss, model.params(), data, optimizer, steps=segments * steps, workers=2, parts=parts, every=steps,
            keys=lambda batch: {"rows": batch["keys"]}, log=note,
        )  # fmt: skip
        return list(marks), params

    def least(times: list[np.ndarray]) -> np.ndarray:
        """Of a step; the first segments warm up."""
        return np.min([(b - a) / steps for a, b in itertools.pairwise(times[1:])], axis=0)

    together, found = two()
    expected, _ = ab.ray.train(
        loss, model.params(), data, optimizer, steps=segments * steps, parts=parts, every=steps,
        communicator=ab.ray.LocalCommunicator(1),
    )  # fmt: skip
    np.testing.assert_array_equal(found["last"], expected["last"])  # the bits of one worker
    alone = min(one(), one(), key=lambda times: least(times)[0])
    clock.close()
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
    rows = 2 * sum(halves) * (model.dim * 4 + 8)
    moved = sum(sum(member.traffic.values()) for member in group.members)
    dense = 4 * model.dense
    return {
        "batch": batch, **compared(least(alone), least(together)), "bytes moved": moved,
        "unique keys x (row + key), there and back": rows, "of arrays": 2 * 2 * steps * dense,
        "moved without arrays, over that": (moved - 2 * 2 * steps * dense) / rows,
    }  # fmt: skip


def total(ids: Any, weight: Any) -> Any:
    """What is mapped: of one row."""
    return np.tanh(ids * weight).sum() + np.sqrt(ids * ids + 1).sum()


def mapping(rows: int, files: int, turns: int) -> dict[str, Any]:
    """Seconds of a map over files of so many ragged rows each: by one process, by two workers, both warm."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 60, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 1000, offsets[-1], np.int32)))
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"ids": ids, "weight": rng.normal(size=rows)})
        for file in range(files):
            pq.write_table(table, pathlib.Path(folder, f"in-{file}.parquet"), row_group_size=rows // 32)
        clock = Clock()
        results: list[np.ndarray] = []
        taken: dict[int, list[np.ndarray]] = {0: [], 2: []}
        for turn in range(turns + 1):
            for workers in (0, 2):
                out = pathlib.Path(folder, f"out-{turn}-{workers}")
                begin = clock.now()
                ab.ray.map(total, f"{folder}/in-*.parquet", columns=["ids", "weight"], out=out, workers=workers)
                if turn:  # the first one starts processes and compiles
                    taken[workers].append(clock.now() - begin)
                results.append(pq.read_table(out)["result"].to_numpy())
                np.testing.assert_allclose(results[-1], results[0], rtol=1e-6)
        clock.close()
    one, two = (np.min(taken[workers], axis=0) for workers in (0, 2))
    return {"rows": files * rows, **compared(one, two)}


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


def gradient_seconds(model: Model) -> float:
    """What the gradient of a worker's share takes of a processor, here."""
    params, batch, gradient = model.params(), model.data(0), ab.value_and_grad(loss)
    best = np.inf
    with ab.options(way="lockstep", kernels=False, threads=1):
        for _ in range(6):
            begin = time.thread_time()
            gradient(params, batch)
            best = min(best, time.thread_time() - begin)
    return best


def simulations(
    model: Model, gradient: float, measured: dict[str, float], sizes: tuple[int, ...], keep: Callable[[Any], Any]
) -> list[Any]:
    """Weak scaling: each worker has as many examples, however many there are."""
    shape = Shape(model.batch, model.features, model.dim, model.dense, 10**9, gradient)
    latency = max(0.0, measured["round trip"] / 2 - measured["submit"])
    network = Network(measured["submit"], measured["submit"] / 2, latency, _BANDWIDTH)
    # A step that may be stale waits at the end of a stretch only, so more of them are run, and fewer sizes.
    runs = [(n, 0, 2) for n in sizes if n <= 64] + [(n, 1, 5) for n in sizes if n in (1, 4, 16, 64)]
    out = []
    for workers, staleness, steps in [*runs, *((n, 0, 2) for n in sizes if n > 64)]:
        found = simulate(workers, workers, staleness, shape, network, steps)
        out.append(dataclasses.asdict(found))
        sys.stdout.write(f"{found}\n")
        sys.stdout.flush()
        keep(out)
    return out


def plot(found: dict[str, Any], path: pathlib.Path) -> None:
    """Efficiency by the number of workers."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("svg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for staleness in (0, 1):
        own = [each for each in found["simulated"] if each["staleness"] == staleness]
        own.sort(key=lambda each: each["workers"])
        x, base, name = [each["workers"] for each in own], own[0]["seconds"], f"staleness {staleness}"
        axes[0].plot(x, [100 * base / each["seconds"] for each in own], marker="o", label=name)
        axes[1].plot(x, [100 * each["waiting"] for each in own], marker="o", label=f"a worker waits, {name}")
        axes[1].plot(x, [100 * each["shard"] for each in own], marker="x", label=f"the busiest shard works, {name}")
        axes[1].plot(x, [100 * each["network"] for each in own], ls=":", label=f"the busiest network, {name}")
    for axis, label in zip(axes, ("efficiency, %", "part of a step, %"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("workers (simulated)")
        axis.set_ylabel(label)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def say(name: str, found: dict[str, Any]) -> None:
    sys.stdout.write(f"{name}: {found[name]}\n")
    sys.stdout.flush()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--sizes", type=int, nargs="*", default=list(_SIZES), help="numbers of simulated workers")
    options.add_argument("--only", nargs="*", default=["calls", "map", "training", "simulated"])
    given = options.parse_args()
    where = _ROOT / "benchmarks" / "cluster.json"
    found: dict[str, Any] = json.loads(where.read_text()) if where.exists() else {}
    found["machine"] = machine.describe()
    batch = 2048 if given.quick else 16_384
    if "calls" in given.only:
        found["calls"] = calls()
        say("calls", found)
    if "map" in given.only:
        found["map"] = mapping(100_000 if given.quick else 1_600_000, 1, 1 if given.quick else 3)
        found["larger map"] = mapping(100_000 if given.quick else 1_600_000, 4, 1 if given.quick else 3)
        say("map", found)
        say("larger map", found)
    if "training" in given.only:
        found["training"] = training(batch, 4)
        found["larger training"] = training(2 * batch, 4)
        say("training", found)
        say("larger training", found)
    if "simulated" in given.only:
        model = Model(2048)

        def keep(simulated: list[Any]) -> None:
            where.write_text(json.dumps(found | {"simulated": simulated}, indent=1) + "\n")

        found["gradient"] = gradient_seconds(model)
        say("gradient", found)
        found["simulated"] = simulations(model, found["gradient"], found["calls"], tuple(given.sizes), keep)
        plot(found, _ROOT / "docs" / "cluster.svg")
    where.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # as Ray's workers have it: sums of products have other bits with more
        # Workers of Ray's have a lower priority than other processes, unless told: the one process is measured beside.
        os.execve(sys.executable, sys.orig_argv, os.environ | {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"})
    sys.exit(main())
