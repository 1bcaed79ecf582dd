"""What a cluster would do: the training's own code, its messages and their sizes, over a network that is a model.

Workers, shards and messages are those of `ab.ray.train`; only time is not. A worker's and a shard's own work takes the
processor time that it takes here, measured as it runs (the median of work of its kind); the gradient takes what it was
measured to take; a message takes what `Network` says. So how many messages there are, how large they are, who waits for
whom and what of it overlaps is found by running the code, and how long a message takes is assumed.
"""

import collections
import dataclasses
import heapq
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.ray import training
from autobatch.ray.communicator import LocalCommunicator
from autobatch.ray.hosts import LocalTraining
from autobatch.ray.shard import Reply, ShardRequest, nbytes


@dataclasses.dataclass(frozen=True)
class Network:
    """How long a message takes.

    Attributes:
        call: seconds of the sender's processor for a call. receive: of the receiver's. latency: seconds on the way.
        bandwidth: bytes a second, in and out of each machine, which a worker and a shard share.
    """

    call: float
    receive: float
    latency: float
    bandwidth: float


@dataclasses.dataclass(frozen=True)
class Shape:
    """A training like DLRM's.

    Attributes:
        batch: examples of a worker's share of a step. features: keys of an example, each of its own kind.
        dim: of a row. dense: elements of all that is no table. keys: how many there could be.
        gradient: seconds that the gradient of a worker's share takes.
    """

    batch: int
    features: int
    dim: int
    dense: int
    keys: int
    gradient: float


@dataclasses.dataclass(frozen=True)
class Result:
    """A simulated step.

    Attributes:
        seconds: of a step. waiting: the share of it in which a worker waits. shard: the share in which the busiest
            shard works. network: the share in which the busiest machine sends or receives. calls: that a worker makes
            in a step. moved: bytes that a worker sends and receives, over unique keys times a key and a row, twice.
    """

    workers: int
    shards: int
    staleness: int
    seconds: float
    waiting: float
    shard: float
    network: float
    calls: float
    moved: float


class Simulated(LocalCommunicator):
    """A local communicator in which things happen in the order of a clock that is simulated."""

    def __init__(self, n: int, shards: int, network: Network) -> None:
        super().__init__(n, shards=shards)
        self.network = network
        self.clock = [0.0] * n  # of the workers
        self.waited = [0.0] * n
        self.calls = 0
        self._busy = [0.0] * shards
        self.worked = [0.0] * shards
        machines = max(n, shards)
        self._line: dict[str, list[float]] = {"in": [0.0] * machines, "out": [0.0] * machines}
        self.sent = {"in": [0.0] * machines, "out": [0.0] * machines}
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._began = 0.0
        self._runs: int | None = None
        self._taken: dict[str, collections.deque[float]] = collections.defaultdict(
            lambda: collections.deque(maxlen=201)
        )

    def spend(self, seconds: float) -> None:
        """The worker that runs computes for so long."""
        if self._runs is not None:
            self.clock[self._runs] += seconds

    def _work(self, own: Any, work: Any) -> None:
        def timed(member: Any) -> Any:
            self._began = time.thread_time()  # which every thread has of its own
            return work(member)

        super()._work(own, timed)

    def _usual(self, kind: str, seconds: float) -> float:
        """What work of a kind takes, the median so far: of which some is disturbed, as this machine has others too."""
        self._taken[kind].append(seconds)
        return float(np.median(self._taken[kind]))

    def _now(self, rank: int, kind: str) -> float:
        """The worker's clock, with what it has done since it went on."""
        own = time.thread_time()
        self.clock[rank] += self._usual(kind, own - self._began)
        self._began = own
        return self.clock[rank]

    def _travel(self, size: int, start: float, sender: int, receiver: int) -> float:
        """When a message arrives."""
        taken = size / self.network.bandwidth
        for way, machine in (("out", sender), ("in", receiver)):
            line = self._line[way]
            start = line[machine] = max(start, line[machine]) + taken
            self.sent[way][machine] += taken
        return start + self.network.latency

    def _step(self, threads: Sequence[Any]) -> None:
        for shard, request in self.in_flight:
            raise AssertionError((shard, request))
        ready = [each for each in threads if not each.ended and not each.member.is_waiting]
        if ready:
            for each in ready:
                self._let_go_on(each)
            return
        at, _, message = heapq.heappop(self._events)
        if isinstance(message, Reply):
            member: Any = self._members[message.sender]
            member._take(message)
            if not member.is_waiting:
                self.waited[message.sender] += max(0.0, at - self.clock[message.sender])
                self.clock[message.sender] = max(self.clock[message.sender], at)
            self.clock[message.sender] += self.network.receive
            return
        shard, request = message
        begin = time.thread_time()
        replies = self.shard_objects[shard].receive(request)
        taken = self._usual(type(request.body).__name__ + str(bool(replies)), time.thread_time() - begin)
        taken += self.network.receive + self.network.call * len(replies)
        self.worked[shard] += taken
        self._busy[shard] = max(at, self._busy[shard]) + taken
        for reply in replies:
            arrives = self._travel(nbytes(reply.body), self._busy[shard], shard, reply.sender)
            heapq.heappush(self._events, (arrives, next(self._order), reply))

    def _let_go_on(self, own: Any) -> None:
        self._runs = own.member.rank
        own.member.resume.release()
        self._turn.acquire()
        self._runs = None
        for shard, request, at in self._posted:
            arrives = self._travel(nbytes(request.body), at, request.sender, shard)
            heapq.heappush(self._events, (arrives, next(self._order), (shard, request)))
        self._posted.clear()

    _posted: list[tuple[int, ShardRequest, float]]

    def begin(self, shards: list[Any]) -> None:
        """Start anew, with other shards."""
        super().begin(shards)
        self._posted = []
        for member in self._members:
            self._time(member)

    def _time(self, member: Any) -> None:
        """Have a member's calls note when they were made."""

        def send(shard: int, request: ShardRequest) -> None:
            self.calls += 1
            at = self._now(request.sender, f"before {type(request.body).__name__} {shard > 0}") + self.network.call
            self._posted.append((shard, request, at))
            self.clock[request.sender] += self.network.call

        wait = member._wait_for

        def wait_for(numbers: Sequence[int]) -> None:
            self._now(member.rank, f"before a wait for {len(numbers)}")
            wait(numbers)
            self._began = time.thread_time()

        member._send, member._wait_for = send, wait_for


def simulate(workers: int, shards: int, staleness: int, shape: Shape, network: Network, steps: int = 4) -> Result:
    """A few steps of a training, the first of which is not counted."""
    group = Simulated(workers, shards, network)
    unique = [0]

    def keys_of(step: int, part: int) -> np.ndarray:
        rng = np.random.default_rng((step % steps, part))
        ranks = rng.zipf(1.1, (shape.batch, shape.features)) % shape.keys
        return ranks * np.int64(shape.features) + np.arange(shape.features)  # a kind's keys are no other's

    def data(step: int) -> Any:
        return _Parts(step, workers, keys_of)

    def gradient(worker: Any) -> Any:
        def of(params: Any, keys: np.ndarray) -> Any:
            begin = time.thread_time()
            found = np.unique(keys)
            rows = params["rows"].read(found)
            unique[0] += len(found)
            group._began += time.thread_time() - begin  # part of what the gradient was measured to take
            group.spend(shape.gradient)
            return 0.0, {"rows": ab.SparseRows(found, rows, None), "dense": params["dense"]}

        return of

    params = {"rows": ab.EmbeddingVariable(shape.dim), "dense": np.zeros(shape.dense, np.float32)}
    host = LocalTraining(group)
    marks: list[list[float]] = []
    real = host.start

    def start(plan: Any, begin: Any) -> None:
        real(plan, begin)
        for worker in host._workers:
            worker._gradient = gradient(worker)
            worker._parts = _own_part(worker)  # type: ignore[method-assign]

    host.start = start  # type: ignore[assignment, method-assign]

    def log(step: int, loss: float) -> None:
        marks.append([max(group.clock), sum(group.waited), max(group.worked), _busiest(group), group.calls])

    kept = vars(training)["LocalTraining"]
    vars(training)["LocalTraining"] = lambda _: host
    try:
        ab.ray.train(
            lambda params, batch: 0.0, params, data, ab.optim.SGD(0.0), steps=2 * steps, every=steps, parts=workers,
            staleness=staleness, communicator=group, log=log, keys=lambda keys: {"rows": np.unique(keys)},
        )  # fmt: skip
    finally:
        vars(training)["LocalTraining"] = kept
    before, after = marks[0], marks[-1]
    seconds, waited, worked, network_time, calls = (b - a for a, b in zip(before, after, strict=True))
    moved = sum(sum(member.traffic.values()) for member in group.members)
    return Result(
        workers, shards, staleness, seconds / steps, waited / workers / seconds, worked / seconds,
        network_time / seconds, calls / workers / steps, moved / (2 * unique[0] * (4 * shape.dim + 8)),
    )  # fmt: skip


def _busiest(group: Simulated) -> float:
    return max(map(max, group.sent.values()))


@dataclasses.dataclass(frozen=True)
class _Parts:
    step: int
    count: int
    keys_of: Any


def _own_part(worker: Any) -> Any:
    """A worker's share of a batch alone is drawn: the others' are theirs."""
    rank = worker.communicator.rank

    def parts(step: int) -> list[Any]:
        if step not in worker._batches:
            batch = worker.plan.data(step)
            worker._sizes[step] = batch.count
            worker._batches[step] = [(rank, 1, batch.keys_of(step, rank))]
        return worker._batches[step]

    return parts
