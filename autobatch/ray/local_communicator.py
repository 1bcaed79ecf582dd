"""`LocalCommunicator`: workers and shards in one process; every message arrives, at once and in order.

Workers are threads of which one runs at a time. Which one, and what happens to messages, is decided in `_step` alone:
tests have a network that loses, repeats and reorders them, benchmarks one with a clock.
"""

import asyncio
import contextvars
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.errors import OptionError
from autobatch.ray.communicator import Communicator
from autobatch.ray.shard import Reply, Shard, ShardRequest


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
