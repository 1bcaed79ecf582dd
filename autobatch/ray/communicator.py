"""`Communicator`: one worker's connection to the other workers and the shards; subclasses transport its messages."""

import abc
import collections
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from autobatch.ray.gradient_sums import Block, Values
from autobatch.ray.shard import Pull, Push, Reply, ShardRequest, Sum, nbytes, owners_of, split_rows
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
        self._unanswered: dict[int, tuple[int, ShardRequest]] = {}
        self._answers: dict[int, Any] = {}

    # The transport of messages, and the bookkeeping of requests and replies.

    @abc.abstractmethod
    def _send(self, shard: int, request: ShardRequest) -> None:
        """Start sending a request; it does no harm if the request is lost (see `send_again`) or arrives repeatedly."""

    @abc.abstractmethod
    def _wait_for(self, numbers: Sequence[int]) -> None:
        """Return when `_take` has been called with the replies to all of these requests."""

    def post(self, shard: int, body: Pull | Sum) -> int:
        """Send a request; returns its number, for `wait`."""
        number, self._number = self._number, self._number + 1
        request = ShardRequest(self.rank, number, min(self._unanswered, default=number), body)
        self._unanswered[number] = shard, request
        self.traffic[f"{type(body).__name__} sent"] += nbytes(body)
        self._send(shard, request)
        return number

    def send_again(self) -> None:
        """Send all unanswered requests once more, for transports that may lose messages."""
        for shard, request in list(self._unanswered.values()):
            self._send(shard, request)

    def _take(self, reply: Reply) -> None:
        """Accept a reply that arrived; a repeated reply is dropped."""
        asked = self._unanswered.pop(reply.number, None)
        if asked is not None:
            self.traffic[f"{type(asked[1].body).__name__} received"] += nbytes(reply.body)
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
