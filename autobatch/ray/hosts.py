"""Where the workers and shards of a training are: in this process (`LocalTraining`), or Ray's actors (`RayTraining`).

`Start` is the state from which they begin.
"""

import asyncio
import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.checkpoint.checkpoints import Checkpoints
from autobatch.core.config import options
from autobatch.core.pytree import map_tree
from autobatch.errors import OptionError
from autobatch.ray.communicator import Communicator, LocalCommunicator
from autobatch.ray.ray_session import ray_session, translated_errors
from autobatch.ray.shard import Reply, Shard, ShardRequest
from autobatch.ray.sharded_checkpoints import restored_shard, shard_folder
from autobatch.ray.training_worker import TrainingPlan, TrainingWorker
from autobatch.tables.keyed.partitioned import PartitionedVariable
from autobatch.tables.sparse import SparseRows

_AT_ONCE = 100_000  # requests that may wait in a shard at a time
_PATIENCE = 20.0  # seconds in which a running step must end when all start again; then its worker is replaced


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

    def parts(self, shard: int) -> dict[str, Any] | None:
        """A shard's part of each variable, by name; None: it reads them from the checkpoint."""
        return None if self.variables is None else {name: each.parts[shard] for name, each in self.variables.items()}


def make_shard(plan: TrainingPlan, start: Start, index: int, shards: int, workers: int, parts: Any) -> Shard:
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
            shards.append(make_shard(plan, start, i, self.shards, self.workers, start.parts(i)))
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


class RayCommunicator(Communicator):
    """A worker's communicator in Ray: a request is a call of the shard's actor, and the call's result is the reply.

    Args:
        actors: those of the shards. attempt: the number of the start of the training that this belongs to.
    """

    def __init__(self, rank: int, workers: int, actors: Sequence[Any], attempt: int) -> None:
        super().__init__(rank, workers, len(actors))
        self._actors, self._attempt = actors, attempt
        self._results: dict[int, Any] = {}

    def _send(self, shard: int, request: ShardRequest) -> None:
        self._results[request.number] = self._actors[shard].receive.remote(self._attempt, request)

    def _wait_for(self, numbers: Sequence[int]) -> None:
        import ray  # noqa: PLC0415

        for reply in ray.get([self._results.pop(number) for number in numbers if number in self._results]):
            self._take(writeable(reply))


class ShardActor:
    """A shard in a process of its own; it can begin again with each start of the training."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], asyncio.Future[Reply]] = {}
        self._attempt = 0
        self._shard: Shard | None = None
        self._saver: Checkpoints | None = None

    async def begin(
        self, attempt: int, plan: TrainingPlan, start: Start, index: int, shards: int, workers: int, parts: object
    ) -> None:
        """Become the shard with which a training starts; requests that wait from an earlier start get an error."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_stale_attempt(self._attempt))
        if self._saver is not None:
            self._saver.close()
        self._waiting, self._saver, self._place = {}, None, (shards, index)
        self._shard, self._attempt = make_shard(plan, start, index, shards, workers, parts), attempt

    async def receive(self, attempt: int, request: ShardRequest) -> Reply:
        """The reply to a request, once the shard has one."""
        if attempt != self._attempt or self._shard is None:
            raise _stale_attempt(attempt)
        key = request.sender, request.number
        future = self._waiting[key] = asyncio.get_running_loop().create_future()
        with options(threads=1):
            replies = self._shard.receive(writeable(request))
        for reply in replies:
            self._waiting.pop((reply.sender, reply.number)).set_result(reply)
        return await future

    async def save(self, folder: str, committed: Sequence[int], keep: int) -> None:
        """Save the shard's part of the variables."""
        assert self._shard is not None
        if self._saver is None:
            self._saver = Checkpoints(shard_folder(folder, *self._place))
        self._shard.save(self._saver, committed, keep)

    async def variables(self) -> tuple[dict[str, Any], Any]:
        """The shard's tables by name, and the optimiser's state for them."""
        assert self._shard is not None
        return self._shard.tables, self._shard.state


def _stale_attempt(attempt: int) -> ConnectionError:
    return ConnectionError(f"start {attempt} of the training is over: processes were lost, and all begin again")


class WorkerActor:
    """A worker in a process of its own; it can begin again with each start of the training."""

    def begin(
        self, attempt: int, plan: TrainingPlan, start: Start, rank: int, workers: int, actors: Sequence[Any]
    ) -> None:
        """Become a worker in the state from which a training starts."""
        dense, state = copy.deepcopy((start.dense, start.state))
        self._worker = TrainingWorker(plan, RayCommunicator(rank, workers, actors, attempt), dense, state)

    def run(self, first: int, last: int) -> list[float]:
        """Take the steps from `first` to before `last`; returns the loss of each."""
        return self._worker.run(first, last)

    def dense(self) -> tuple[list[Any], Any]:
        """The leaves that are not variables, and the optimiser's state for them."""
        return self._worker.dense, self._worker.state


class RayTraining:
    """A training whose workers and shards are Ray actors.

    Args:
        workers: their number; None: one for each CPU. shards: their number; None: as many as workers.
    """

    def __init__(self, workers: int | None, shards: int | None) -> None:
        ray_session(workers)
        import ray  # noqa: PLC0415

        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.workers = cpus if workers is None else workers
        self.shards = self.workers if shards is None else shards
        if self.workers < 1 or self.shards < 1:
            raise OptionError(f"workers={workers}, shards={shards}; expected at least one of each")
        self._shards: list[Any] = [None] * self.shards
        self._workers: list[Any] = [None] * self.workers
        self._attempt = 0

    def start(self, plan: TrainingPlan, start: Start) -> None:
        """Have all actors begin: those that are alive, and new ones in place of lost ones."""
        ray_session(self.workers)
        import ray  # noqa: PLC0415

        self._attempt += 1
        with translated_errors():
            told = ray.put(dataclasses.replace(plan, settings=plan.settings | {"threads": 1}))
            common = self._attempt, told, ray.put(dataclasses.replace(start, variables=None))
            make = ray.remote(num_cpus=0, max_concurrency=_AT_ONCE)(ShardActor).remote
            begun = self._begin(self._shards, make, lambda i: (*common, i, self.shards, self.workers, start.parts(i)))
            make = ray.remote(num_cpus=1)(WorkerActor).remote
            begun += self._begin(self._workers, make, lambda rank: (*common, rank, self.workers, self._shards))
            self._get(begun)

    def _begin(
        self, actors: list[Any], make: Callable[[], Any], arguments: Callable[[int], tuple[Any, ...]]
    ) -> list[Any]:
        """Call `begin` of all actors; one that is lost, or still busy after `_PATIENCE`, is replaced.

        Returns:
            The results of `begin` of the new actors, still to be waited for.
        """
        import ray  # noqa: PLC0415

        known = {i: actor.begin.remote(*arguments(i)) for i, actor in enumerate(actors) if actor is not None}
        if known:
            ray.wait(list(known.values()), num_returns=len(known), timeout=_PATIENCE)
        begun = []
        for i, actor in enumerate(actors):
            if actor is not None:
                try:
                    ray.get(known[i], timeout=0)
                    continue
                except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                    ray.kill(actor)
            actors[i] = make()
            begun.append(actors[i].begin.remote(*arguments(i)))
        return begun

    def _get(self, results: Any) -> Any:
        """The results of actor calls; the first failure is raised, since the others may wait for it."""
        import ray  # noqa: PLC0415

        with translated_errors():
            waiting = list(results)
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1)
                ray.get(done)
            return ray.get(results)

    def run(self, first: int, last: int) -> list[float]:
        """Have the workers take the steps from `first` to before `last`; returns the loss of each."""
        return self._get([worker.run.remote(first, last) for worker in self._workers])[0]

    def save(self, folder: str, committed: Sequence[int], keep: int) -> None:
        """Have every shard save."""
        self._get([shard.save.remote(folder, list(committed), keep) for shard in self._shards])

    def dense(self) -> tuple[list[Any], Any]:
        """The first worker's dense leaves, and the optimiser's state for them."""
        return writeable(self._get([self._workers[0].dense.remote()])[0])

    def variables(self) -> tuple[dict[str, list[Any]], Any]:
        """The shards' parts of each variable, by name, and the optimiser's state of one shard."""
        found = self._get([shard.variables.remote() for shard in self._shards])
        return {name: [tables[name] for tables, _ in found] for name in found[0][0]}, found[0][1]

    def stop(self) -> None:
        """Kill the actors."""
        import ray  # noqa: PLC0415

        for actors in (self._workers, self._shards):
            for i, actor in enumerate(actors):
                if actor is not None and ray.is_initialized():
                    ray.kill(actor)
                actors[i] = None


def writeable(message: object) -> Any:
    """The same tree with copies of read-only arrays: Ray's arrays lie in memory that all processes share."""

    def own(leaf: object) -> Any:
        if isinstance(leaf, SparseRows):
            return leaf.map_arrays(own)
        return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.writeable else leaf

    return map_tree(own, message)
