"""`Communicator`: one worker's connection to the other workers and the shards; subclasses transport its messages.

Every message arrives once, as a call of a Ray actor does: where one is lost, so is a process, and the training starts
again. In `LocalCommunicator` workers and shards are in one process. Workers are threads of which one runs at a time.
Which one, and what happens to messages, is decided in `_step` alone: tests have a network that delays and reorders
them, benchmarks one with a clock.
"""

import abc
import asyncio
import collections
import contextvars
import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from autobatch.errors import OptionError
from autobatch.ray.gradient_sums import Block, Values
from autobatch.ray.shard import Pull, Push, Reply, Shard, ShardRequest, Sum, nbytes, owners_of, split_rows
from autobatch.tables.sparse import SparseRows


class Communicator(abc.ABC):
    """One worker's connection to the other workers and to the shards, which own the variables' rows.

    All workers must make the same calls in the same order. The shard of a key is a hash of the key (`owners_of`).

    Args:
        rank: the number of this worker. workers: the number of workers. shards: the number of shards.

    Attributes:
        traffic: the bytes of arrays sent and received, by kind of message.

    >>> class Alone(ab.ray.Communicator):
    ...     def _send(self, shard, request):
    ...         print("to shard", shard, request.body)
    ...     def _wait_for(self, numbers):
    ...         raise ConnectionError("nobody answers")
    >>> Alone(0, 1, 1).all_reduce(2.5)
    Traceback (most recent call last):
      ...
    ConnectionError: nobody answers
    """

    def __init__(self, rank: int, workers: int, shards: int) -> None:
        self.rank, self.workers, self.shards = rank, workers, shards
        self.traffic: collections.Counter[str] = collections.Counter()
        self._number = self._sums = self._pushes = 0
        self._unanswered: dict[int, str] = {}  # the kind of each request
        self._answers: dict[int, Any] = {}

    # The transport of messages, and the bookkeeping of requests and replies.

    @abc.abstractmethod
    def _send(self, shard: int, request: ShardRequest) -> None:
        """Start sending a request, which must arrive once."""

    @abc.abstractmethod
    def _wait_for(self, numbers: Sequence[int]) -> None:
        """Return when `_take` has been called with the replies to all of these requests."""

    def post(self, shard: int, body: Pull | Sum) -> int:
        """Send a request; returns its number, for `wait`."""
        number, self._number = self._number, self._number + 1
        self._unanswered[number] = type(body).__name__
        self.traffic[f"{type(body).__name__} sent"] += nbytes(body)
        self._send(shard, ShardRequest(self.rank, number, body))
        return number

    def _take(self, reply: Reply) -> None:
        """Accept a reply that arrived."""
        self.traffic[f"{self._unanswered.pop(reply.number)} received"] += nbytes(reply.body)
        self._answers[reply.number] = reply.body

    def wait(self, numbers: Iterable[int]) -> list[Any]:
        """The answers to requests, in the order of `numbers`; each answer can be taken once.

        Raises:
            the error with which a shard failed.
        """
        numbers = list(numbers)
        if any(number in self._unanswered for number in numbers):
            self._wait_for(numbers)
        found = [self._answers.pop(number) for number in numbers]
        for body in found:
            if isinstance(body, Exception):
                raise body
        return found

    # The operations of a worker.

    def pull(self, table: str, keys: object, version: int | None = None) -> np.ndarray:
        """The rows of keys, as their owners have them now, or had them after some update.

        Args:
            table: the variable's name. keys: (n,) int64 or uint64, may repeat.
            version: read them as after this many updates, which the owners must still remember; None: as now.

        Returns:
            (n, dim); n must be at least 1.
        """
        keys = np.ascontiguousarray(keys)
        places = owners_of(keys, self.shards)
        shares = [np.flatnonzero(places == shard) for shard in range(self.shards)]
        asked = [shard for shard, share in enumerate(shares) if len(share)]
        numbers = [self.post(shard, Pull(version, {table: keys[shares[shard]]})) for shard in asked]
        found = [rows[table] for rows in self.wait(numbers)]
        out = np.empty((len(keys), found[0].shape[1]), found[0].dtype)
        for shard, rows in zip(asked, found, strict=True):
            out[shares[shard]] = rows
        return out

    def push(self, gradients: dict[str, SparseRows]) -> None:
        """Have the owners update rows with the sum of all workers' gradients; returns when that is done.

        Args:
            gradients: by the variable's name. All workers must give the same names.
        """
        grads = {name: grad.coalesce() for name, grad in gradients.items()}
        split = {name: split_rows(grad, self.shards) for name, grad in grads.items()}
        step, self._pushes = self._pushes, self._pushes + 1
        blocks: list[list[Block]] = [
            [(0, self.rank, {name: shares[shard] for name, shares in split.items()})] for shard in range(self.shards)
        ]
        self.wait([self.post(shard, Push(step, blocks[shard])) for shard in range(self.shards)])

    def all_reduce(self, value: object) -> Any:
        """The sum of all workers' values, arrays or numbers of one shape, in the order of a tree over the ranks."""
        turn, self._sums = self._sums, self._sums + 1
        values: Values = {} if value is None else {"sum": np.asarray(value)}
        (sums,) = self.wait([self.post(turn % self.shards, Sum(turn, [(0, self.rank, values)]))])
        return sums.get("sum")

    def barrier(self) -> None:
        """Return when all workers have called it."""
        self.all_reduce(None)


class _LocalMember(Communicator):
    """One worker's communicator in a `LocalCommunicator`."""

    def __init__(self, group: "LocalCommunicator", rank: int) -> None:
        super().__init__(rank, group.workers, group.shards)
        self._group = group
        self.awaited: Sequence[int] = ()
        self.resume = threading.Semaphore(0)

    def _send(self, shard: int, request: ShardRequest) -> None:
        self._group.in_flight.append((shard, request))

    def _wait_for(self, numbers: Sequence[int]) -> None:
        self.awaited = numbers
        self._group.suspend(self)

    @property
    def is_waiting(self) -> bool:
        return any(number in self._unanswered for number in self.awaited)


@dataclasses.dataclass(slots=True)
class _Thread:
    member: _LocalMember
    thread: threading.Thread = dataclasses.field(init=False)
    result: Any = None
    error: BaseException | None = None
    ended: bool = False


class LocalCommunicator:
    """The workers and shards of a training run in this process: for tests, and to see what a cluster would do.

    Args:
        n: the number of workers. shards: the number of shards, the owners of variables; None: as many as workers.
        tables: the variables that workers pull from and push to, by name; each is partitioned into shards here.
        optimizer: the `ab.optim` optimiser that updates them.

    Attributes:
        shard_objects: the `Shard`s.

    Raises:
        OptionError: no worker, or no shard.

    >>> group = LocalCommunicator(3)
    >>> group.run(lambda worker: worker.all_reduce(10.0**worker.rank))
    [np.float64(111.0), np.float64(111.0), np.float64(111.0)]
    """

    def __init__(
        self,
        n: int,
        *,
        shards: int | None = None,
        tables: dict[str, Any] | None = None,
        optimizer: object = None,
    ) -> None:
        self.workers, self.shards = n, n if shards is None else shards
        if self.workers < 1 or self.shards < 1:
            raise OptionError(f"{n} workers and {self.shards} shards; expected at least one of each")
        parts = {name: table.partition(self.shards).parts for name, table in (tables or {}).items()}
        self._turn = threading.Semaphore(0)
        own = [{name: shares[i] for name, shares in parts.items()} for i in range(self.shards)]
        self.begin([Shard(n, each, optimizer) for each in own])

    @property
    def members(self) -> Sequence[Communicator]:
        """The communicator of each worker, for use within `run`."""
        return self._members

    def begin(self, shards: list[Shard]) -> None:
        """Start again, with these shards and new communicators."""
        self.shard_objects = shards
        self.in_flight: list[Any] = []
        self._members = [_LocalMember(self, rank) for rank in range(self.workers)]
        self._stopping = False

    def run(self, work: Callable[[Communicator], Any]) -> list[Any]:
        """Run `work(communicator)` in each worker; returns the results by rank.

        Raises:
            the error of the first worker, by rank, that failed.
        """
        threads = []
        for member in self._members:
            own = _Thread(member)
            own.thread = threading.Thread(
                target=contextvars.copy_context().run, args=(self._work, own, work), name=f"worker {member.rank}"
            )
            threads.append(own)
            own.thread.start()
        try:
            while not all(each.ended for each in threads) and not self._stopping:
                self._step(threads)
        finally:
            self._stopping = True
            for each in threads:
                while not each.ended:
                    each.member.resume.release()
                    self._turn.acquire()
                each.thread.join()
            self._stopping = False
        for each in threads:
            if each.error is not None and not isinstance(each.error, asyncio.CancelledError):
                raise each.error
        return [each.result for each in threads]

    def _work(self, own: _Thread, work: Callable[[Communicator], Any]) -> None:
        own.member.resume.acquire()
        try:
            if not self._stopping:
                own.result = work(own.member)
        except BaseException as error:
            own.error = error
            if not isinstance(error, asyncio.CancelledError):
                self._stopping = True
        finally:
            own.ended = True
            self._turn.release()

    def suspend(self, member: _LocalMember) -> None:
        """Called in a worker's thread: suspend it until its answers have arrived."""
        if self._stopping:
            raise asyncio.CancelledError
        self._turn.release()
        member.resume.acquire()
        if self._stopping:
            raise asyncio.CancelledError

    def _step(self, threads: Sequence[_Thread]) -> None:
        """Do one thing: deliver a message, or let a worker continue."""
        if self.in_flight:
            self._deliver(self.in_flight.pop(0))
        else:
            self._resume(next(each for each in threads if not each.ended and not each.member.is_waiting))

    def _resume(self, own: _Thread) -> None:
        own.member.resume.release()
        self._turn.acquire()

    def _deliver(self, message: tuple[int, ShardRequest] | Reply) -> None:
        if isinstance(message, Reply):
            self._members[message.sender]._take(message)
        else:
            shard, request = message
            self.in_flight += self.shard_objects[shard].receive(request)
