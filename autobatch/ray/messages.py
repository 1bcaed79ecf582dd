"""The messages between workers and shards: requests and answers; `nbytes` is the size of the arrays in a message."""

import dataclasses
import itertools

import numpy as np

from autobatch.core.pytree import leaves
from autobatch.ray.gradient_sums import Block, Values
from autobatch.tables.sparse import SparseRows


@dataclasses.dataclass(frozen=True, slots=True)
class Pull:
    """A request for rows.

    Attributes:
        version: read them as after this many updates, and wait for these; None: as they are now.
        keys: (n,) distinct keys, by the name of the variable.
    """

    version: int | None
    keys: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Push:
    """A worker's share of a step's gradients for one shard: blocks (`gradient_sums.py`) that it could not merge."""

    step: int
    blocks: list[Block]


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """A worker's share of a sum that updates no variable; `turn` counts the worker's sums."""

    turn: int
    blocks: list[Block]


@dataclasses.dataclass(frozen=True, slots=True)
class ShardRequest:
    """A message to a shard, which may arrive more than once.

    Attributes:
        sender: the worker's rank. number: counts its requests. answered: it has all answers to requests below this.
    """

    sender: int
    number: int
    answered: int
    body: Pull | Push | Sum


@dataclasses.dataclass(frozen=True, slots=True)
class PulledRows:
    """The answer to `Pull`: the rows of the keys, by variable."""

    rows: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The answer to `Push` and `Sum`, when those of all workers have arrived: sums of values that are no variable's."""

    sums: Values


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The answer if a shard failed to handle a request."""

    error: Exception


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """A shard's answer to a worker; `sender` and `number` are those of the request."""

    sender: int
    number: int
    body: PulledRows | Done | Failed


def nbytes(message: object) -> int:
    """The bytes of the arrays in a message.

    >>> nbytes(Pull(0, {"users": np.arange(3)}))
    24
    """
    parts = ((x.ids, x.rows) if isinstance(x, SparseRows) else (x,) for x in leaves(message))
    return sum(x.nbytes for x in itertools.chain.from_iterable(parts) if isinstance(x, np.ndarray))
