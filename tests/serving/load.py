"""Load on a server: clients on the loopback, some of which leave, while parameters are swapped.

    python -m tests.serving.load                          1 to 256 clients, batched and one at a time
    python -m tests.serving.load --soak 100000            so many requests under swaps and disconnects

The server is a process of its own (uvicorn), and so is each group of clients, so that none waits for another's Python.
Every answer is compared with that of the plain function under the version of the parameters that it says it had.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import autobatch as ab
from tests.serving import models

EXAMPLES = 64
ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {"tagger": models.tagger, "deep": models.deep_tagger, "tree": models.tree_lstm}


def examples_of(model: str) -> list[Any]:
    """The examples that clients send, as Python has them."""
    rng = np.random.default_rng(1)
    if model != "tree":
        return [rng.integers(0, 50, size) for size in rng.integers(5, 40, EXAMPLES)]
    return [models.random_tree(rng, int(size)) for size in rng.integers(5, 20, EXAMPLES)]


def weights_of(model: str, version: int, dim: int) -> dict[str, Any]:
    """The parameters of a version: those of its number as the seed."""
    return models.weights(version, dim, layers=2 if model == "deep" else 0)


def body_of(example: Any) -> bytes:
    """An example as JSON."""
    return json.dumps(example.tolist() if isinstance(example, np.ndarray) else _tree(example)).encode()


def _tree(tree: models.Tree) -> dict[str, Any]:
    return {"word": tree.word, "children": [_tree(child) for child in tree.children]}


def is_answer(found: Any, expected: Any) -> bool:
    """Whether an answer is the plain function's, to the rounding of sums."""
    if isinstance(expected, dict):
        return bool(found["tags"] == expected["tags"].tolist()) and is_answer(found["last"], expected["last"])
    return bool(np.allclose(np.asarray(found, np.float32), expected, rtol=1e-4, atol=1e-5))


# The server.


@dataclasses.dataclass
class Server:
    """A server that runs.

    Attributes:
        model, dim: what it serves. port: of the loopback. checkpoints: the folder that it takes parameters from.
    """

    model: str
    dim: int
    port: int
    checkpoints: pathlib.Path
    process: "subprocess.Popen[bytes]"

    def metrics(self) -> dict[str, float]:
        """What it counts."""
        text = asyncio.run(_get(self.port, "/metrics")).decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def cpu(self) -> float:
        """Seconds of the processor that it has taken, where the system says it."""
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        """Have it shut down as an operator does; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        return 0 if status == -signal.SIGTERM else status  # uvicorn ends as the signal would have ended it


@contextlib.contextmanager
def served_process(model: str, folder: pathlib.Path, dim: int = 128, **options: Any) -> Iterator[Server]:
    """A server in a process of its own, which is ready."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "tests.serving.load", "--serve", model, "--dim", str(dim), "--port", str(port)]
    command += ["--checkpoints", str(folder), "--options", json.dumps(options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError, ValueError):
                if asyncio.run(_get(port, "/ready")):
                    break
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            time.sleep(0.1)
        yield Server(model, dim, port, folder, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _serve(options: argparse.Namespace) -> None:
    import uvicorn  # noqa: PLC0415

    more = json.loads(options.options)
    with ab.options(way=more.pop("way", "auto")):
        params, folder = weights_of(options.serve, 1, options.dim), options.checkpoints
        app = ab.serve(ab.batch(MODELS[options.serve]), checkpoints=folder, poll=0.05, params=params, **more)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


# The clients.


async def _get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(head.decode())
    return body


@dataclasses.dataclass(frozen=True)
class Load:
    """How much, and what goes wrong.

    Attributes:
        clients: at once, each with one request at a time. requests: of all of them.
        leaving: the share of requests whose client closes the connection before the answer.
        swapping: seconds between two versions of the parameters; 0: none.
    """

    clients: int
    requests: int
    leaving: float = 0.0
    swapping: float = 0.0


@dataclasses.dataclass
class LoadReport:
    """What came of it.

    Attributes:
        answered: with status 200. wrong: of these, not the plain function's under the version that was said.
        left: whose client went away. lost: without any answer. errors: with another status.
        seconds: of all; latencies: of each answer. versions: that were seen.
    """

    answered: int = 0
    wrong: int = 0
    left: int = 0
    lost: int = 0
    errors: int = 0
    seconds: float = 0.0
    latencies: list[float] = dataclasses.field(default_factory=list)
    versions: dict[int, int] = dataclasses.field(default_factory=dict)

    def percentile(self, share: float) -> float:
        """Of the latencies."""
        return float(np.quantile(self.latencies, share)) if self.latencies else float("nan")


class _Answers:
    """What the plain function gives for each example and version; version v has the weights of seed v."""

    def __init__(self, server: Server, examples: list[Any]) -> None:
        self._model, self._dim, self._examples = server.model, server.dim, examples
        self._function = MODELS[server.model]
        self._known: dict[tuple[int, int], Any] = {}

    def right(self, index: int, version: int, answer: bytes) -> bool:
        key = index, version
        if key not in self._known:
            self._known[key] = self._function(self._examples[index], weights_of(self._model, version, self._dim))
        return is_answer(json.loads(answer), self._known[key])


async def _client(
    port: int, bodies: list[bytes], numbers: Iterator[int], load: Load, seed: int, found: list[Any]
) -> None:
    rng = np.random.default_rng(seed)
    connection: Any = None
    for number in numbers:
        index = number % len(bodies)
        if connection is None:
            connection = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = connection
        body = bodies[index]
        begun = time.perf_counter()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        if rng.random() < load.leaving:
            await asyncio.sleep(0.01 * rng.random())
            writer.close()
            connection = None
            found.append((index, None, 0, b"", 0.0))
            continue
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            answer = await reader.readexactly(int(fields[b"content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError):
            found.append((index, 0, 0, b"", 0.0))
            connection = None
            continue
        status, version = int(head[9:12]), int(fields.get(b"autobatch-version", b"0"))
        found.append((index, status, version, answer, time.perf_counter() - begun))
    if connection is not None:
        connection[1].close()


async def _swap(server: Server, load: Load) -> None:
    with ab.Checkpoints(server.checkpoints) as checkpoints:
        step = max(checkpoints.steps(), default=1)
        while True:
            await asyncio.sleep(load.swapping)
            step += 1
            await asyncio.to_thread(checkpoints.save, step, weights_of(server.model, step, server.dim))


def run_load(server: Server, load: Load) -> LoadReport:
    """Put a load on a server; answers are looked at when all have come."""
    examples = examples_of(server.model)
    bodies = [body_of(each) for each in examples]
    found: list[Any] = []
    report = LoadReport()

    async def run() -> None:
        numbers = iter(range(load.requests))
        swapping = asyncio.ensure_future(_swap(server, load)) if load.swapping else None
        begun = time.perf_counter()
        clients = [_client(server.port, bodies, numbers, load, seed, found) for seed in range(load.clients)]
        await asyncio.gather(*clients)
        report.seconds = time.perf_counter() - begun
        if swapping is not None:
            swapping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await swapping

    asyncio.run(run())
    answers = _Answers(server, examples)
    for index, status, version, answer, seconds in found:
        if status is None:
            report.left += 1
        elif status == 0:
            report.lost += 1
        elif status != 200:
            report.errors += 1
        else:
            report.answered += 1
            report.latencies.append(seconds)
            report.versions[version] = report.versions.get(version, 0) + 1
            report.wrong += not answers.right(index, version, answer)
    report.lost += load.requests - len(found)
    return report


# The command.


def _compare(model: str, dim: int, clients: list[int], seconds: float, way: str) -> None:
    """Throughput and latency for numbers of clients, of a batching server and of one that runs one at a time.

    The server's own time of the processor is what a busy machine leaves as it is.
    """
    print(f"{model}, H={dim}, {way}: one at a time | batched: requests/s, ms of latency (median, p99), ms of processor")
    with (
        tempfile.TemporaryDirectory() as folder,
        served_process(model, pathlib.Path(folder, "one"), dim, way="loop", max_batch=1) as plain,
        served_process(model, pathlib.Path(folder, "other"), dim, way=way) as batching,
    ):
        for count in clients:
            reports = []
            for server in (plain, batching):
                warm = run_load(server, Load(count, 4 * count + 50))
                for _ in range(8):  # the ways are tried
                    run_load(server, Load(count, 2 * count))
                rate = warm.answered / warm.seconds
                runs = []
                for _ in range(3):
                    before = server.cpu()
                    report = run_load(server, Load(count, max(3 * count, int(seconds * rate))))
                    assert (report.wrong, report.lost, report.errors) == (0, 0, 0), report
                    runs.append((report.answered / report.seconds, report, (server.cpu() - before) / report.answered))
                rate, best, _ = max(runs, key=lambda each: each[0])
                reports.append((rate, best, min(each[2] for each in runs)))
            shown = []
            for rate, report, cpu in reports:
                median, late = 1e3 * report.percentile(0.5), 1e3 * report.percentile(0.99)
                shown.append(f"{rate:6.0f}/s {median:7.1f} {late:7.1f} {1e3 * cpu:6.2f}")
            of_rate, of_cpu = reports[1][0] / reports[0][0], reports[0][2] / reports[1][2]
            shown.append(f"ratio {of_rate:5.2f}, of processor {of_cpu:5.2f}")
            print(f"{count:4d} clients: {' | '.join(shown)}", flush=True)


def _soak(model: str, dim: int, requests: int) -> int:
    """Many requests, while parameters are swapped and clients leave; returns how many were lost or wrong."""
    with tempfile.TemporaryDirectory() as folder, served_process(model, pathlib.Path(folder), dim) as server:
        total, wanted = LoadReport(), requests
        begun = time.perf_counter()
        while wanted:
            part = min(wanted, 5_000)
            report = run_load(server, Load(64, part, leaving=0.05, swapping=0.2))
            wanted -= part
            for name in ("answered", "wrong", "left", "lost", "errors"):
                setattr(total, name, getattr(total, name) + getattr(report, name))
            total.versions |= report.versions
            total.seconds += report.seconds
        metrics = server.metrics()
        print(
            f"{model}, H={dim}: {requests} requests of 64 clients in {time.perf_counter() - begun:.0f} s: "
            f"{total.answered} answered, {total.left} left, {len(total.versions)} versions; "
            f"lost {total.lost}, wrong {total.wrong}, other statuses {total.errors}; "
            f"queue {metrics['autobatch_queue_length']:.0f}, running {metrics['autobatch_running']:.0f}; "
            f"exit status {server.stop()}"
        )
        return total.lost + total.wrong + total.errors


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.serving.load", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--models", nargs="*", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--dim", type=int, default=128, help="of the hidden states")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement, about")
    parser.add_argument("--way", default="auto", help="that the batching server is to take")
    parser.add_argument("--soak", type=int, metavar="REQUESTS", help="so many, under swaps and disconnects")
    parser.add_argument("--serve", choices=sorted(MODELS), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoints", help=argparse.SUPPRESS)
    parser.add_argument("--options", default="{}", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        _serve(options)
        return 0
    if options.soak:
        return min(1, sum(_soak(model, options.dim, options.soak) for model in options.models))
    for model in options.models:
        _compare(model, options.dim, options.clients, options.seconds, options.way)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
