"""`LocalTraining`: the workers and shards of a training in this process; also `Start`, the state they begin from."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from autobatch.checkpoint.checkpoints import Checkpoints
from autobatch.ray.local_communicator import LocalCommunicator
from autobatch.ray.shard import Shard
from autobatch.ray.sharded_checkpoints import restored_shard, shard_folder
from autobatch.ray.training_worker import TrainingPlan, TrainingWorker
from autobatch.tables.keyed.partitioned import PartitionedVariable


class ProcessesLostError(Exception):
    """Processes of a training died or cannot be reached."""


@dataclasses.dataclass(frozen=True)
class Start:
    """The state from which a training begins or resumes.

    Attributes:
        step: the next step. dense, state: the leaves that are not variables, and the optimiser's state for their list.
        variables: by name, partitioned with one part for each shard; None: shards read them from the checkpoint.
        slots: the optimiser's state for the list of variables.
        folder, saved_in: the checkpoint's folder, and the number of shards in which it was saved.
    """

    step: int
    dense: list[Any]
    state: Any
    variables: dict[str, PartitionedVariable] | None
    slots: Any
    folder: str | None = None
    saved_in: int = 0


def make_shard(plan: TrainingPlan, start: Start, index: int, shards: int, workers: int, parts: Any = None) -> Shard:
    """Make a shard in the state from which a training starts.

    Args:
        start: that state. parts: the shard's part of each variable, by name; None: read them from the checkpoint.
    """
    slots = start.slots
    if parts is None:
        assert start.folder is not None
        tables, slots = restored_shard(start.folder, start.step, start.saved_in, index, shards)
        parts = dict(zip(plan.variables, tables, strict=True))
    return Shard(workers, parts, plan.optimizer, copy.deepcopy(slots), start.step, plan.staleness)


class LocalTraining:
    """The workers and shards of a training, in this process.

    Args:
        group: the communicator that carries their messages.
    """

    def __init__(self, group: LocalCommunicator) -> None:
        self.group = group
        self.workers, self.shards = group.workers, group.shards
        self._workers: list[TrainingWorker] = []
        self._savers: list[Checkpoints] = []

    def start(self, plan: TrainingPlan, start: Start) -> None:
        """Make the workers and shards from a start state."""
        self.stop()
        shards = []
        for i in range(self.shards):
            parts = None if start.variables is None else {name: x.parts[i] for name, x in start.variables.items()}
            shards.append(make_shard(plan, start, i, self.shards, self.workers, parts))
        self.group.begin(shards)
        self._workers = [
            TrainingWorker(plan, member, *copy.deepcopy((start.dense, start.state))) for member in self.group.members
        ]

    def run(self, first: int, last: int) -> list[float]:
        """Have the workers take the steps from `first` to before `last`; returns the loss of each."""
        return self.group.run(lambda member: self._workers[member.rank].run(first, last))[0]

    def save(self, folder: str, committed: Sequence[int], keep: int) -> None:
        """Have every shard save."""
        if not self._savers:
            self._savers = [Checkpoints(shard_folder(folder, self.shards, i)) for i in range(self.shards)]
        for shard, saver in zip(self.group.shard_objects, self._savers, strict=True):
            shard.save(saver, committed, keep)

    def dense(self) -> tuple[list[Any], Any]:
        """The first worker's dense leaves, and the optimiser's state for them."""
        return self._workers[0].dense, self._workers[0].state

    def variables(self) -> tuple[dict[str, list[Any]], Any]:
        """The shards' parts of each variable, by name, and the optimiser's state of one shard."""
        shards = self.group.shard_objects
        return {name: [shard.tables[name] for shard in shards] for name in shards[0].tables}, shards[0].state

    def stop(self) -> None:
        """Release the checkpoint folders, and the variables' memory, without waiting for garbage collection."""
        for saver in self._savers:
            saver.close()
        self._savers, self._workers, self.group.shard_objects = [], [], []
