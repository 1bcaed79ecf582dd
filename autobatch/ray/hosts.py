"""Where the workers and shards of a training are, as what leads it sees them: `Training`, `Start`, `Lost`."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from autobatch.ray.training_worker import TrainingPlan
from autobatch.tables.keyed.partitioned import PartitionedVariable


class Lost(Exception):  # noqa: N818  # what happened, to be mended
    """Processes of a training are gone."""


@dataclasses.dataclass(frozen=True)
class Start:
    """What a training begins from, or goes on from.

    Attributes:
        step: the next. dense, state: of what is no variable.
        variables: by name, in parts, one for each shard; None: shards read them from the checkpoint.
        slots: the optimiser's state of the list of the variables.
        folder, saved_in: of the checkpoint, and in how many shards it is.
    """

    step: int
    dense: list[Any]
    state: Any
    variables: dict[str, PartitionedVariable] | None
    slots: Any
    folder: str | None = None
    saved_in: int = 0


class Training(Protocol):
    """Where workers and shards are."""

    workers: int
    shards: int

    def start(self, plan: TrainingPlan, start: Start) -> None:
        """Make workers and shards, in place of those that are there."""

    def run(self, first: int, last: int) -> list[float]:
        """Have the workers take steps; the losses. Raises `Lost`."""

    def save(self, folder: str, committed: Sequence[int], keep: int) -> None:
        """Have every shard save what it has. Raises `Lost`."""

    def dense(self) -> tuple[list[Any], Any]:
        """What every worker has: the leaves that are no variables, and their state. Raises `Lost`."""

    def variables(self) -> tuple[dict[str, list[Any]], Any]:
        """The shards' parts of each variable, and the state of one of them. Raises `Lost`."""

    def stop(self) -> None:
        """End all of it."""
