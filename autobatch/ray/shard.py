"""`Shard`: the owner of a part of every variable, and the messages for it; `owners_of` says which shard has a key.

It takes requests, each of which arrives once, and returns the replies that are due. The order in which requests arrive
changes no bit of an answer. Update number `step` is made when all workers have pushed their gradients for it.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.core.pytree import leaves
from autobatch.errors import OptionError
from autobatch.kernels.hash_table import assign_partitions
from autobatch.ray.gradient_sums import Block, TreeSum, Values
from autobatch.tables.sparse import SparseRows, first_seen


@dataclasses.dataclass(frozen=True, slots=True)
class Pull:
    """A request for rows, which are the answer.

    Attributes:
        version: read them as after this many updates, and wait for these; None: as they are now.
        keys: (n,) distinct keys, by the name of the variable.
    """

    version: int | None
    keys: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """A worker's share of a sum; the answer, once all workers' shares have arrived, is the whole of it.

    Attributes:
        turn: counts the worker's sums. blocks: those (`gradient_sums.py`) that it could not merge.
    """

    turn: int
    blocks: list[Block]


class Push(Sum):
    """A worker's share of a step's gradients: those of variables update their rows, the others are the answer."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ShardRequest:
    """A message to a shard.

    Attributes:
        sender: the worker's rank. number: counts its requests.
    """

    sender: int
    number: int
    body: Pull | Sum


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """A shard's answer to a worker.

    Attributes:
        sender, number: those of the request. body: rows or sums by name, or the exception with which the shard failed.
    """

    sender: int
    number: int
    body: Values | Exception


def nbytes(message: object) -> int:
    """The bytes of the arrays in a message.

    >>> nbytes(Pull(0, {"users": np.arange(3)}))
    24
    """
    parts = ((x.ids, x.rows) if isinstance(x, SparseRows) else (x,) for x in leaves(message))
    return sum(x.nbytes for x in itertools.chain.from_iterable(parts) if isinstance(x, np.ndarray))


class Shard:
    """One part of a training's variables; it also sums the pieces of dense gradients that workers push to it.

    Args:
        workers: their number. tables: the shard's part of each variable, by name.
        optimizer, state: the optimiser that updates the tables, and its state for the list of them.
        step: how many updates were made before. history: how many updates before the last a step may read.

    Attributes:
        step: how many updates have been made.
    """

    def __init__(
        self,
        workers: int,
        tables: dict[str, Any],
        optimizer: Any = None,
        state: Any = None,
        step: int = 0,
        history: int = 0,
    ) -> None:
        self.workers, self.tables, self.optimizer, self.step = workers, tables, optimizer, step
        self.state = state
        if state is None and optimizer is not None:
            self.state = optimizer.init(list(tables.values()))
        self._sums: dict[tuple[type, int], tuple[dict[int, int], TreeSum]] = {}  # with the waiting requests
        self._error: Exception | None = None
        self._early_pulls: list[tuple[int, int, Pull]] = []  # sender, number and request, which wait for an update
        self._before: collections.deque[tuple[int, dict[str, Any]]] = collections.deque(maxlen=history)

    def receive(self, request: ShardRequest) -> list[Reply]:
        """The replies to send now: the answer to this request, and to earlier ones that waited for it."""
        sender, number = request.sender, request.number
        try:
            return list(self._handle(sender, number, request.body))
        except Exception as error:  # no worker may wait for an answer that will not come
            self._error = error
            waiting = {(sender, number), *(each for numbers, _ in self._sums.values() for each in numbers.items())}
            waiting |= {early[:2] for early in self._early_pulls}
            self._sums.clear()
            self._early_pulls.clear()
            return [Reply(*each, error) for each in sorted(waiting)]

    def _handle(self, sender: int, number: int, body: Pull | Sum) -> Iterator[Reply]:
        if self._error is not None:
            raise self._error
        if isinstance(body, Pull):
            if (body.version or 0) > self.step:
                self._early_pulls.append((sender, number, body))
            else:
                yield self._rows(sender, number, body)
            return
        body_type, turn = type(body), body.turn
        numbers, total = self._sums.setdefault((body_type, turn), ({}, TreeSum()))
        numbers[sender] = number
        for block in body.blocks:  # without waiting for those of other workers
            total.add(*block)
        if body_type is Push:
            turn = self.step  # updates are made in the order of the steps
        while len(self._sums.get((body_type, turn), ((),))[0]) == self.workers:
            numbers, total = self._sums[body_type, turn]
            sums = total.whole()
            if body_type is Push:
                self._update(sums)
            del self._sums[body_type, turn]
            yield from (Reply(each, numbers[each], sums) for each in sorted(numbers))
            turn += 1
        for sender, number, early in self._early_pulls:
            if (early.version or 0) <= self.step:
                yield self._rows(sender, number, early)
        self._early_pulls = [each for each in self._early_pulls if (each[2].version or 0) > self.step]

    # Variables.

    def _rows(self, sender: int, number: int, body: Pull) -> Reply:
        rows = {}
        for name, keys in body.keys.items():
            if name not in self.tables:
                raise OptionError(f"no variable {name!r} here; there are {list(self.tables)}")
            rows[name] = self._at_version(body.version, name, keys, self.tables[name].read(keys))
        return Reply(sender, number, rows)

    def _at_version(self, version: int | None, name: str, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """`rows`, changed back to their state after `version` updates, at most `history` ago; None: as they are."""
        for step, changed in reversed(self._before):  # newest first: a key's oldest saved row comes last
            if version is not None and step >= version and name in changed:
                grad, old = changed[name]
                at = np.flatnonzero(isin_keys(keys, [grad]))
                order = np.argsort(grad, kind="stable")
                rows[at] = old[order[np.searchsorted(grad, keys[at], sorter=order)]]
        return rows

    def _update(self, total: Values) -> None:
        """Make the update of a step; removes the variables' gradients from the sums."""
        grads = [total.pop(name, None) for name in self.tables]
        if self._before.maxlen:
            changed = {
                name: (grad.ids, self.tables[name].read(grad.ids))
                for name, grad in zip(self.tables, grads, strict=True)
                if grad is not None
            }
            self._before.append((self.step, changed))
        if self.optimizer is not None:
            _, self.state = self.optimizer.update(list(self.tables.values()), grads, self.state)
        self.step += 1

    # Saving, which is done while no request is in flight.

    def save(self, saver: Any, committed: Sequence[int], keep: int) -> None:
        """Save the shard's part; `keep` counts committed checkpoints only, so uncommitted ones do not replace them.

        Args:
            saver: the shard's own `ab.Checkpoints`. committed: the steps of the training that can be restored.
        """
        saver.keep = keep + 1 + len(set(saver.steps()) - set(committed))
        saver.save(self.step, list(self.tables.values()), self.state)


def _bits(keys: np.ndarray) -> np.ndarray:
    """The bits of keys as int64: NumPy would promote uint64 with int64 to float64."""
    return np.ascontiguousarray(keys).view(np.int64)


def isin_keys(keys: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """(n,) bool: is each key among the others? int64 and uint64 keys with the same bits are equal.

    >>> isin_keys(np.array([4, 8, 5]), [np.array([5, 4]), np.array([9])])
    array([ True, False,  True])
    """
    places = first_seen(np.concatenate([_bits(each) for each in (*others, keys)]))[1]
    known = len(places) - len(keys)
    return places[known:] <= places[:known].max(initial=-1)


def owners_of(keys: np.ndarray, shards: int) -> np.ndarray:
    """(n,) int64: the shard that owns each of (n,) keys, by a hash of the key.

    >>> owners_of(np.array([1, 2, 3, 4]), 2)
    array([0, 0, 1, 0])
    """
    out = np.empty(len(keys), np.int64)
    assign_partitions(np.ascontiguousarray(keys).view(np.int64), shards, out)
    return out


def split_rows(grad: SparseRows, shards: int) -> list[SparseRows]:
    """The part of a gradient for each shard: the rows of the keys that it owns."""
    if shards == 1:
        return [grad]
    places = owners_of(grad.ids, shards)
    return [grad.where(places == shard) for shard in range(shards)]
