"""`ab.ray.train`: synchronous data-parallel training; restarts from a checkpoint when a process is lost.

The calling process has the workers take the steps to the next checkpoint. Then no message is in flight: the shards
save, and the rest is saved last. When a process is lost, all restart from the last checkpoint. A step's result depends
only on the parameters and the batch, so the final parameters are those of a training in which nothing was lost.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

from autobatch.checkpoint.checkpoints import Checkpoints
from autobatch.core import parameter_trees, pytree
from autobatch.core.config import current
from autobatch.errors import CheckpointError, OptionError, UnsupportedError
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.optim.base import Optimizer
from autobatch.ray.communicator import LocalCommunicator
from autobatch.ray.hosts import LocalTraining, RayTraining, Start
from autobatch.ray.ray_session import ProcessesLostError
from autobatch.ray.sharded_checkpoints import checkpoints_of, commit
from autobatch.ray.table_mapper import path_name
from autobatch.ray.training_worker import TrainingPlan
from autobatch.tables.keyed.keyed_table import KeyedTable
from autobatch.tables.keyed.partitioned import PartitionedVariable


def train(
    loss: Callable[[Any, Any], Any],
    params: object,
    data: object,
    optimizer: object,
    *,
    steps: int,
    workers: int | None = None,
    checkpoints: object = None,
    staleness: int = 0,
    shards: int | None = None,
    parts: int | None = None,
    every: int = 100,
    keys: Callable[[Any], dict[str, Any]] | None = None,
    state: object = None,
    repeatable: bool = True,
    retries: int = 3,
    log: Callable[[int, float], Any] | None = None,
    communicator: LocalCommunicator | None = None,
) -> tuple[Any, Any]:
    """Train on several processes or machines, with the same result whatever their number.

    Each batch is cut into `parts`, which are divided among the workers; each worker computes the gradient of `loss` on
    its parts, batched as anywhere else. The gradients of arrays are summed in the order of a fixed
    tree over the parts, and every worker updates its copy. An `ab.EmbeddingVariable` among the parameters is split into
    shards by a hash of its keys: only the rows of a batch's keys travel, their gradients are summed before they are
    sent, and the owner updates the rows. So any number of workers and shards gives the same bits.

    Args:
        loss: `loss(params, batch)`: the mean of a loss over the examples of a batch, as for `ab.value_and_grad`.
            It can look keys up in a variable, but not use the whole variable or its length.
        params: a tree of parameters; it is not written to.
        data: the batches, as `ab.minibatches(...)` or a list, repeated from the first after the last; or a function
            `data(step)`, step from 0. A batch is a tree of the library's batches, or a list of examples. It is the
            whole batch of a step: each worker takes its parts of it by itself.
        optimizer: one of `ab.optim`; without `clip_norm` if there are variables.
        steps: the step at which to end, counted from the beginning of the training, restored steps included.
        workers: their number; None: one for each CPU of the Ray cluster.
        checkpoints: `ab.Checkpoints(folder)`, or a folder that all machines see. Training resumes from its last one.
        staleness: how many updates old the parameters of a step may be; a higher number means less waiting.
        shards: the number of owners of variables; None: as many as workers.
        parts: the number of parts of a batch, which decides rounding; None: 8, or a power of two for more workers.
        every: the steps between checkpoints; also how often `log` is called, and staleness begins again at 0.
        keys: `keys(batch)` gives the keys that the loss will look up, a dict by the variable's place in the parameters
            ("users", or "tables/users"); their rows are then pulled a step ahead. None: learned from the first batches,
            if the keys stand in the batch as they are. It affects only speed.
        state: the optimiser's state to continue from; None: `optimizer.init(params)`.
        repeatable: True: the loss runs in lock-step unless the option `way` pins another mode, without the option
            `kernels`, so two runs have the same bits if NumPy's BLAS has the same number of threads (in a Ray worker
            one: `OMP_NUM_THREADS=1`). False: as the options in force say, equal up to rounding.
        retries: how many times in a row, without a new checkpoint in between, lost processes are replaced.
        log: called with (step, loss) for each step, once `every` of them are done.
        communicator: an `ab.ray.LocalCommunicator`: the workers are threads of this process, without Ray.

    Returns:
        (params, state): as from `optimizer.update`; a partitioned variable comes back in the same number of parts.

    Raises:
        OptionError: an invalid argument. CheckpointError: checkpoints of other variables, or damaged ones.
        RuntimeError: processes were lost more than `retries` times in a row. Also the errors of `loss` and `data`.

    Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (2014); the tree of parts is
    that of reproducible summation (Demmel and Nguyen, 2013).

    >>> def loss(params, batch):
    ...     return ab.mean((params["users"][batch["user"]] @ params["w"] - batch["y"]) ** 2)
    >>> params = {"users": ab.EmbeddingVariable(2), "w": np.ones(2, np.float32)}
    >>> data = ab.minibatches({"user": np.arange(8) % 3, "y": np.ones(8, np.float32)}, 4)
    >>> group = ab.ray.LocalCommunicator(2)
    >>> params, state = ab.ray.train(loss, params, data, ab.optim.SGD(0.5), steps=40, communicator=group)
    >>> len(params["users"]), state["step"]
    (3, 40)
    >>> bool((abs(params["users"][np.arange(3)] @ params["w"] - 1) < 1e-3).all())
    True
    """
    for name, value, least in (("steps", steps, 0), ("staleness", staleness, 0), ("every", every, 1)):
        whole_option(value, name, least)
    if not isinstance(optimizer, Optimizer):
        raise OptionError(f"optimizer={optimizer!r}; expected one of ab.optim")
    if communicator is not None and workers not in (None, communicator.workers):
        raise OptionError(f"workers={workers} with a communicator of {communicator.workers}; pass only one of them")
    host = LocalTraining(communicator) if communicator is not None else RayTraining(workers, shards)
    whole = _SplitParams(params, optimizer, state)
    count = host.workers
    parts = max(8, 1 << (count - 1).bit_length()) if parts is None else whole_option(parts, "parts")
    if count > parts:
        raise OptionError(f"{count} workers for parts={parts}; expected at least a part for each")
    plan = TrainingPlan(
        loss, batches_of(data), optimizer, whole.structure, whole.dense_places, whole.places, whole.like, parts,
        staleness, keys, _settings(repeatable),
    )  # fmt: skip
    saver = checkpoints_of(checkpoints)
    try:
        return _coordinate(host, plan, whole, saver, steps, every, retries, log)
    finally:
        host.stop()
        if saver is not None:
            saver.close()


def _coordinate(
    host: LocalTraining | RayTraining,
    plan: TrainingPlan,
    whole: "_SplitParams",
    saver: Checkpoints | None,
    steps: int,
    every: int,
    retries: int,
    log: Callable[[int, float], Any] | None,
) -> tuple[Any, Any]:
    failures, reported = 0, 0
    while True:
        try:
            start = whole.start(saver, host.shards)
            step = start.step
            host.start(plan, start)
            while step < steps:
                end = min(steps, step - step % every + every)
                losses = host.run(step, end)
                if saver is not None:
                    host.save(saver.folder, saver.steps(), saver.keep)
                    commit(saver, end, *host.dense(), host.shards, list(plan.variables))
                    failures = 0
                if log is not None:
                    for at, value in enumerate(losses, step):
                        if at >= reported:
                            log(at, value)
                step = end
                reported = max(reported, step)
            return whole.rebuild(host.dense(), host.variables())
        except ProcessesLostError as error:
            failures += 1
            if failures > retries:
                raise RuntimeError(
                    f"processes of the training were lost {failures} times in a row, the last time: {error}; "
                    f"retries={retries}"
                ) from error


class _SplitParams:
    """The given parameters, split into variables and dense leaves (all other leaves)."""

    def __init__(self, params: Any, optimizer: Any, state: Any) -> None:
        self.optimizer, self._state = optimizer, state
        leaves, self.structure = parameter_trees.flatten(params)
        found = [
            (path_name(path, "/", "params"), leaf)
            for path, leaf in zip(pytree.paths(self.structure), leaves, strict=True)
        ]
        self.dense_places = tuple(i for i, (_, leaf) in enumerate(found) if not isinstance(leaf, KeyedTable))
        self._dense = [leaves[i] for i in self.dense_places]
        first: dict[int, str] = {}
        self.places: dict[str, tuple[int, ...]] = {}
        self._given: dict[str, Any] = {}
        for i, (name, leaf) in enumerate(found):
            if isinstance(leaf, KeyedTable):
                own = first.setdefault(id(leaf), name)
                self.places[own] = (*self.places.get(own, ()), i)
                self._given[own] = leaf
        if self.places and optimizer.clip_norm is not None:
            raise UnsupportedError(
                "clip_norm needs the norm over all shards before any of them may update; use clip_value, or no variable"
            )
        self.like = {name: _empty(table) for name, table in self._given.items()}

    def start(self, saver: Checkpoints | None, shards: int) -> Start:
        """The state of the last checkpoint, or, if there is none, the given one."""
        if saver is not None and saver.steps():
            restored = saver.restore()
            if restored.extra is None or restored.extra.get("variables") != list(self.places):
                raise CheckpointError(
                    f"the checkpoints in {saver.folder} are not of this training: they have the variables "
                    f"{(restored.extra or {}).get('variables')}; expected {list(self.places)}"
                )
            dense, state, step = restored
            return Start(step, dense, state, None, None, saver.folder, restored.extra["shards"])
        variables = {name: table.partition(shards) for name, table in self._given.items()}
        dense = copy.deepcopy(self._dense)
        if self._state is None:
            return Start(0, dense, self.optimizer.init(dense), variables, self.optimizer.init([*variables.values()]))
        state, slots = self._split_state(self._state)
        return Start(0, dense, copy.deepcopy(state), variables, slots)

    def _split_state(self, state: Any) -> tuple[Any, Any]:
        """The optimiser's state, split into that of the list of dense leaves and that of the list of variables."""
        own, slots = {"step": state["step"]}, {"step": state["step"]}
        for slot in self.optimizer.slots:
            leaves = list(parameter_trees.like_leaves(self.structure, state[slot], "state"))
            own[slot] = [leaves[i] for i in self.dense_places]
            slots[slot] = [leaves[places[0]] for places in self.places.values()]
        return own, slots

    def rebuild(self, dense: tuple[list[Any], Any], variables: tuple[dict[str, list[Any]], Any]) -> tuple[Any, Any]:
        """The parameters and the optimiser's state, in the structure of the given parameters."""
        (values, state), (parts, slots) = dense, variables
        tables = {}
        for name, given in self._given.items():
            joined = PartitionedVariable(parts[name]).join()
            tables[name] = joined.partition(len(given.parts)) if isinstance(given, PartitionedVariable) else joined
        params = pytree.unflatten(self.structure, self._leaves(values, list(tables.values())))
        out = {"step": state["step"]}
        for slot in self.optimizer.slots:
            found = self._leaves(state[slot], slots[slot] if self.places else [])
            out[slot] = pytree.unflatten(parameter_trees.as_dicts(self.structure), found)
        return params, out

    def _leaves(self, dense: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
        out: list[Any] = [None] * self.structure.num_leaves
        for place, value in zip(self.dense_places, dense, strict=True):
            out[place] = value
        for places, value in zip(self.places.values(), variables, strict=True):
            for place in places:
                out[place] = value
        return out


def _empty(table: Any) -> Any:
    """A variable with the same settings, without rows and slots."""
    one = table.parts[0] if isinstance(table, PartitionedVariable) else table
    return type(one).from_settings(one._arguments() | {"slots": []})


def batches_of(data: object) -> Callable[[int], Any]:
    """A function `data(step)`, from any `data` that `train` takes."""
    if callable(data):
        return data
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise OptionError(
            f"data is a {type(data).__name__}; expected ab.minibatches(...), a list of batches, or a function "
            "data(step): a training that starts again has to find its place"
        )
    if not len(data):
        raise OptionError("data has no batches")
    return functools.partial(_repeated, data)


def _repeated(batches: Any, step: int) -> Any:
    """The batch of a step, of batches that are repeated from the first after the last."""
    return batches[step % len(batches)]


def _settings(repeatable: bool) -> dict[str, Any]:
    """The options in force here, for the workers; `repeatable` replaces two of them."""
    found = {field.name: getattr(current(), field.name) for field in dataclasses.fields(current())}
    if repeatable:
        found |= {"kernels": False, "way": "lockstep" if found["way"] == "auto" else found["way"]}
    return found
