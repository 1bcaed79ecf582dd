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
import heapq
import json
import os
import pathlib
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import autobatch as ab
from tests.serving import models

EXAMPLES = 64
MAX_WAIT = 0.002  # seconds: the library's own default
TIE = 1e-6  # between two scores in float32 that sums in another order may exchange
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCORES = {"tagger": models.deep_scores, "lstm": models.scores_of_words}
MODELS = {
    "tagger": models.deep_tagger, "lstm": models.tagger, "tree": models.binary_tree_lstm, "child-sum": models.tree_lstm,
}  # fmt: skip


def examples_of(model: str) -> list[Any]:
    """The examples that clients send, as Python has them."""
    rng = np.random.default_rng(1)
    if model in ("tagger", "lstm"):
        return [rng.integers(0, 50, size) for size in rng.integers(5, 40, EXAMPLES)]
    trees = [models.random_tree(rng, int(size)) for size in rng.integers(20, 41, EXAMPLES)]
    return trees if model == "child-sum" else [_pairs(tree) for tree in trees]


def weights_of(model: str, version: int, dim: int) -> dict[str, Any]:
    """The parameters of a version: those of its number as the seed."""
    return models.weights(version, dim, layers=2 if model == "tagger" else 0)


def body_of(example: Any) -> bytes:
    """An example as JSON."""
    return json.dumps(example, default=_plain).encode()


def _plain(example: Any) -> Any:
    return example.tolist() if isinstance(example, np.ndarray) else dataclasses.asdict(example)


def _pairs(tree: models.Tree) -> Any:
    return [_pairs(child) for child in tree.children] or tree.word


def is_answer(found: Any, expected: Any, scores: Callable[[], Any]) -> bool:
    """Whether an answer is the plain function's, to the rounding of sums: a tag may be another of the same score."""
    if not isinstance(expected, dict):
        return bool(np.allclose(np.asarray(found, np.float32), expected, rtol=1e-4, atol=1e-5))
    if len(found["tags"]) != len(expected["tags"]) or not is_answer(found["last"], expected["last"], scores):
        return False
    if found["tags"] == expected["tags"].tolist():
        return True
    of_tags = np.asarray(scores())
    taken = np.take_along_axis(of_tags, np.array(found["tags"])[:, None], axis=1)[:, 0]
    return bool((of_tags.max(axis=1) - taken <= TIE).all())


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
        app = ab.serve(ab.batch(MODELS[options.serve]), checkpoints=folder, params=params, **more)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


# The clients.

# The example, the status (None: the client left; 0: no answer), the version, the body and the seconds of a request.
Found = tuple[int, int | None, int, bytes, float]


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

        def scores() -> Any:
            params = weights_of(self._model, version, self._dim)
            return SCORES[self._model](self._examples[index], params)

        return is_answer(json.loads(answer), self._known[key], scores)


class _Client:
    """One client: it has one request at a time on a connection that it keeps.

    A load generator of asyncio streams takes a core at 2,500 requests a second; raw sockets, one select and requests
    made beforehand take a fifth of that, so what is measured is the server.

    Attributes:
        index: the body that it sent last. begun: when. received: of the answer. leaves: it goes before the answer.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.index, self.begun, self.received, self.leaves = 0, 0.0, b"", False

    def send(self, index: int, request: bytes, leaves: bool) -> None:
        """Begin the next request."""
        self.index, self.received, self.leaves = index, b"", leaves
        self.begun = time.perf_counter()
        self.connection.sendall(request)

    def receive(self) -> tuple[int, int, bytes] | None:
        """Status, version and body of the answer, once it is there; status 0: the server has closed."""
        try:
            part = self.connection.recv(1 << 16)
        except ConnectionError:
            part = b""
        if not part:
            return 0, 0, b""
        self.received += part
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end or len(body) < int(_field(head, b"content-length")):
            return None
        return int(head[9:12]), int(_field(head, b"autobatch-version")), body


def _field(head: bytes, name: bytes) -> bytes:
    """A field of the head of an answer; 0 where it has none."""
    return head.partition(b"\r\n" + name + b": ")[2].partition(b"\r\n")[0] or b"0"


def _drive(port: int, bodies: list[bytes], load: Load) -> list[Found]:
    """All requests of a load, and what came of each."""
    requests = [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body for body in bodies]
    choose, numbers, found = random.Random(0), iter(range(load.requests)), list[Found]()
    leaving: list[tuple[float, int, _Client]] = []  # when, and who leaves then
    with selectors.DefaultSelector() as selector:

        def next_request(client: _Client) -> None:
            number = next(numbers, None)
            if number is None:
                selector.unregister(client.connection)
                client.connection.close()
                return
            client.send(number % len(bodies), requests[number % len(bodies)], choose.random() < load.leaving)
            if client.leaves:
                heapq.heappush(leaving, (client.begun + 0.01 * choose.random(), number, client))

        def begin() -> None:
            client = _Client(port)
            selector.register(client.connection, selectors.EVENT_READ, client)
            next_request(client)

        def replace(client: _Client) -> None:
            selector.unregister(client.connection)
            client.connection.close()
            begin()

        for _ in range(load.clients):
            begin()
        while selector.get_map():
            ready = selector.select(max(0.0, leaving[0][0] - time.perf_counter()) if leaving else 60.0)
            assert ready or leaving, "no answer within a minute"
            for key, _ in ready:
                client = key.data
                if (answer := client.receive()) is None or client.leaves:
                    continue
                found.append((client.index, *answer, time.perf_counter() - client.begun))
                if answer[0]:
                    next_request(client)
                else:
                    replace(client)
            while leaving and leaving[0][0] <= time.perf_counter():
                client = heapq.heappop(leaving)[2]
                found.append((client.index, None, 0, b"", 0.0))
                replace(client)
    return found


def _swap(server: Server, load: Load, ended: threading.Event) -> None:
    with ab.Checkpoints(server.checkpoints) as checkpoints:
        step = max(checkpoints.steps(), default=1)
        while not ended.wait(load.swapping):
            step += 1
            checkpoints.save(step, weights_of(server.model, step, server.dim))


def run_load(server: Server, load: Load) -> LoadReport:
    """Put a load on a server; answers are looked at when all have come."""
    examples = examples_of(server.model)
    bodies = [body_of(each) for each in examples]
    report, ended = LoadReport(), threading.Event()
    swapping = threading.Thread(target=_swap, args=(server, load, ended)) if load.swapping else None
    if swapping is not None:
        swapping.start()
    begun = time.perf_counter()
    try:
        found = _drive(server.port, bodies, load)
        report.seconds = time.perf_counter() - begun
    finally:
        ended.set()
        if swapping is not None:
            swapping.join()
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
            if not answers.right(index, version, answer):
                report.wrong += 1
                print(f"wrong: example {index}, version {version}: {answer.decode()}", file=sys.stderr)
    report.lost += load.requests - len(found)
    return report


# The command.


def _compare(model: str, dim: int, clients: list[int], seconds: float, way: str) -> None:
    """Throughput and latency for numbers of clients, of a batching server and of one that runs one at a time.

    The server's own time of the processor is what a busy machine leaves as it is. A request waits at most `max_wait`,
    for the batch that runs, and for its own: beside the p99 is `max_wait` and two batches as long as the mean one.
    """
    print(
        f"{model}, H={dim}, {way}: one at a time | batched: requests/s, ms of latency (median, p99, wait and compute), "
        "ms of processor"
    )
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
                    before, metrics = server.cpu(), server.metrics()
                    report = run_load(server, Load(count, max(3 * count, int(seconds * rate))))
                    assert (report.wrong, report.lost, report.errors) == (0, 0, 0), report
                    cpu, after = (server.cpu() - before) / report.answered, server.metrics()
                    ran, count_of = (
                        after[f"autobatch_batch_seconds_{each}"] - metrics[f"autobatch_batch_seconds_{each}"]
                        for each in ("sum", "count")
                    )
                    runs.append((report.answered / report.seconds, report, cpu, MAX_WAIT + 2 * ran / count_of))
                rate, best, _, stated = max(runs, key=lambda each: each[0])
                reports.append((rate, best, min(each[2] for each in runs), stated))
            shown = []
            for rate, report, cpu, stated in reports:
                median, late = 1e3 * report.percentile(0.5), 1e3 * report.percentile(0.99)
                shown.append(f"{rate:6.0f}/s {median:7.1f} {late:7.1f} {1e3 * stated:7.1f} {1e3 * cpu:6.2f}")
            of_rate, of_cpu = reports[1][0] / reports[0][0], reports[0][2] / reports[1][2]
            shown.append(f"ratio {of_rate:5.2f}, of processor {of_cpu:5.2f}")
            print(f"{count:4d} clients: {' | '.join(shown)}", flush=True)


def _soak(model: str, dim: int, requests: int) -> int:
    """Many requests, while parameters are swapped and clients leave; returns how many were lost or wrong."""
    with tempfile.TemporaryDirectory() as folder, served_process(model, pathlib.Path(folder), dim, poll=0.05) as server:
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
