"""What workers ask of the owners of shards, and what these answer; `nbytes` says how much of it is data."""

import dataclasses
from typing import Any

import numpy as np

from autobatch.ray.gradient_sums import Block, Values
from autobatch.tables.sparse import SparseRows


@dataclasses.dataclass(frozen=True, slots=True)
class Pull:
    """A request for the rows of a step.

    Attributes:
        step: the step that reads them. version: after how many updates; None: as they are now.
        keys: (n,) distinct keys, by the name of the variable.
    """

    step: int
    version: int | None
    keys: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Push:
    """A worker's share of a step's gradients for one shard: its unmerged blocks of parts."""

    step: int
    blocks: list[Block]


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """A worker's part of a sum that changes nothing; `turn` counts the worker's sums."""

    turn: int
    blocks: list[Block]


@dataclasses.dataclass(frozen=True, slots=True)
class ShardRequest:
    """A message to a shard, perhaps sent more than once.

    Attributes:
        sender: the worker's rank. number: counts its requests. answered: it has the answers to all before this one.
    """

    sender: int
    number: int
    answered: int
    body: Pull | Push | Sum


@dataclasses.dataclass(frozen=True, slots=True)
class PulledRows:
    """The answer to `Pull`: for each variable which of the keys it is about (None: all), and their rows.

    The others are being updated; their rows come with the answer to the push which that update waits for.
    """

    rows: dict[str, tuple[np.ndarray | None, np.ndarray]]


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The answer to `Push` and `Sum`, when all workers' are there and the shard's update is made.

    Attributes:
        sums: of what is no variable's. late: for a step, of each variable the places among the keys that were pulled
            for it, and the rows there as they are now.
    """

    sums: Values
    late: dict[int, dict[str, tuple[np.ndarray, np.ndarray]]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The answer where a shard could not do what was asked."""

    error: Exception


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """A message back to a worker."""

    sender: int
    number: int
    body: PulledRows | Done | Failed


def nbytes(message: Any) -> int:
    """The bytes of the arrays in a message.

    >>> nbytes(Pull(0, 0, {"users": np.arange(3)}))
    24
    """
    if isinstance(message, np.ndarray):
        return message.nbytes
    if isinstance(message, SparseRows):
        return message.ids.nbytes + message.rows.nbytes
    if dataclasses.is_dataclass(message):
        return sum(nbytes(getattr(message, field.name)) for field in dataclasses.fields(message))
    if isinstance(message, dict):
        return sum(map(nbytes, message.values()))
    if isinstance(message, list | tuple):
        return sum(map(nbytes, message))
    return 0
