"""`TrainingWorker`: one worker's steps: pull rows, compute the gradients of its parts of a batch, sum them, update.

Before a worker computes the gradient of step s, it requests the rows of step s + `staleness` + 1. Then it pushes the
gradient, and the step ends when the update of step s - `staleness` is done. A step reads the parameters exactly as they
were `staleness` updates before its own, so nothing depends on the workers' speeds.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.api.transforms import value_and_grad
from autobatch.batches.data.example_sequence import Examples
from autobatch.core import parameter_trees, pytree
from autobatch.core.config import current, options
from autobatch.errors import DTypeError, ShapeError
from autobatch.ray.communicator import Communicator
from autobatch.ray.gradient_sums import Block, TreeSum, Values, share, without_negative_zeros
from autobatch.ray.pulled_rows import KeyColumns, PulledTable
from autobatch.ray.shard import Pull, Push, owners_of, split_rows
from autobatch.tables.sparse import SparseRows, first_seen


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """The plan of a training, the same on all workers.

    Attributes:
        loss: `loss(params, batch)`. data: `data(step)` returns the whole batch of a step.
        structure: of the parameters. dense: the leaf numbers of those that are not variables.
        variables: the leaf numbers of each variable, by name; a variable may occur several times.
        like: for each variable an empty one with its settings.
        parts: the number of parts of a batch. keys: the argument of `KeyColumns`.
        settings: the library's options in the workers.
    """

    loss: Callable[[Any, Any], Any]
    data: Callable[[int], Any]
    optimizer: Any
    structure: pytree.TreeDef
    dense: tuple[int, ...]
    variables: dict[str, tuple[int, ...]]
    like: dict[str, Any]
    parts: int
    staleness: int
    keys: Callable[[Any], dict[str, Any]] | None
    settings: dict[str, Any]


@dataclasses.dataclass(slots=True)
class _Position:
    """A worker's position: the number of updates that the rows of the step that it computes include."""

    version: int = 0

    def pull(self, communicator: Communicator, name: str, keys: np.ndarray) -> np.ndarray:
        """Pull rows that were not predicted."""
        return communicator.pull(name, keys, self.version)


class TrainingWorker:
    """One worker of a training.

    Args:
        plan: the same on all workers. communicator: the connection to the others.
        dense: the parameters' leaves that are not variables. state: the optimiser's state for the list of them.
    """

    def __init__(self, plan: TrainingPlan, communicator: Communicator, dense: list[Any], state: object) -> None:
        self.plan, self.communicator = plan, communicator
        self.dense, self.state = dense, state
        self._position = _Position()
        self._columns = KeyColumns(plan.keys)
        self._gradient = value_and_grad(plan.loss)
        pull = self._position.pull
        self._tables = {
            name: PulledTable(like, functools.partial(pull, communicator, name)) for name, like in plan.like.items()
        }
        self._dtypes = {name: like.key_dtype for name, like in plan.like.items() if like.insert_on == "update"}
        self._batches: dict[int, list[Any]] = {}
        self._sizes: dict[int, int] = {}
        self._coming: dict[int, tuple[dict[str, np.ndarray], list[int]]] = {}  # requested keys, and the requests
        self._pushed: dict[int, list[int]] = {}

    def run(self, first: int, last: int) -> list[float]:
        """Take the steps from `first` to before `last`; returns the losses. Afterwards no message is in flight."""
        with options(**self.plan.settings):
            losses = list(self._steps(first, last))
        self._batches.clear()
        return losses

    def _steps(self, first: int, last: int) -> Iterator[float]:
        staleness = self.plan.staleness
        for step in range(first, last):
            self._position.version = max(first, step - staleness)
            if step == first:  # the first batch may show which keys the next ones need
                self._pull(first, first)
                blocks = self._blocks(first)
                for early in range(first + 1, min(first + staleness + 1, last)):
                    self._pull(early, first)
            if step + staleness + 1 < last:
                self._pull(step + staleness + 1, step + 1)
            if step != first:
                blocks = self._blocks(step)
            self._push(step, blocks)
            if step - staleness >= first:
                yield self._finish(step - staleness)
        for step in range(max(first, last - staleness), last):
            yield self._finish(step)

    # Data.

    def _parts(self, step: int) -> list[Any]:
        """(number, size, batch) of each part of a step's batch that is this worker's and not empty."""
        if step not in self._batches:
            batch = self.plan.data(step)
            examples: Any = batch if isinstance(batch, list) else Examples(batch)
            size = self._sizes[step] = len(examples)
            if not size:
                raise ShapeError(f"the batch of step {step} has no examples; data(step) has to give at least one")
            mine = share(self.plan.parts, self.communicator.workers, self.communicator.rank)
            cuts = [(part, share(size, self.plan.parts, part)) for part in range(self.plan.parts)[mine]]
            self._batches[step] = [
                (part, cut.stop - cut.start, examples[cut] if isinstance(batch, list) else examples[cut].batch)
                for part, cut in cuts
                if cut.stop > cut.start
            ]
        return self._batches[step]

    # Rows.

    def _pull(self, step: int, version: int) -> None:
        """Request the rows of a step, as they are after `version` updates."""
        if not self._tables:
            return
        found: dict[str, list[np.ndarray]] = {}
        for _, _, batch in self._parts(step):
            for name, keys in self._columns.predicted(batch, self._dtypes).items():
                found.setdefault(name, []).append(keys)
        asked: list[dict[str, np.ndarray]] = [{} for _ in range(self.communicator.shards)]
        coming = {}
        for name, parts in found.items():
            keys = first_seen(np.concatenate(parts))[0]
            places = owners_of(keys, len(asked))
            own = [keys[places == shard] for shard in range(len(asked))]
            coming[name] = np.concatenate(own)
            for shard, each in enumerate(own):
                if len(each):
                    asked[shard][name] = each
        requests = [self.communicator.post(shard, Pull(version, keys)) for shard, keys in enumerate(asked) if keys]
        self._coming[step] = coming, requests

    def _fill(self, step: int) -> None:
        """Wait for the rows of a step, and put them into the tables."""
        keys, requests = self._coming.pop(step)
        answers = self.communicator.wait(requests)
        for name, table in self._tables.items():
            rows = [each[name] for each in answers if name in each]
            if rows:
                table.fill(keys[name], np.concatenate(rows))
            else:
                table.fill(np.empty(0, table.key_dtype), np.empty((0, table.dim), table.dtype))

    # Gradients.

    def _blocks(self, step: int) -> list[Block]:
        """The gradients of this worker's parts of the batch, summed into blocks."""
        if self._tables:
            self._fill(step)
        params = self._params()
        total = TreeSum()
        for part, size, batch in self._parts(step):
            before = {name: (len(table.asked), table.pulled_late) for name, table in self._tables.items()}
            total.add(0, part, self._gradient_of(params, batch, step, part, size / self._sizes[step]))
            for name, table in self._tables.items():
                if table.pulled_late > before[name][1]:
                    self._columns.learn(name, batch, table.asked[before[name][0] :])
        del self._batches[step], self._sizes[step]
        return list(total.blocks())

    def _params(self) -> Any:
        leaves: list[Any] = [None] * (len(self.plan.dense) + sum(map(len, self.plan.variables.values())))
        for place, leaf in zip(self.plan.dense, self.dense, strict=True):
            leaves[place] = leaf
        for name, places in self.plan.variables.items():
            for place in places:
                leaves[place] = self._tables[name]
        return pytree.unflatten(self.plan.structure, leaves)

    def _gradient_of(self, params: object, batch: object, step: int, part: int, weight: float) -> Values:
        """A part's gradient times its share of the batch, by "loss", a dense leaf's number or a variable's name."""
        seed = current().seed
        with options(seed=None if seed is None else (*(seed if isinstance(seed, tuple) else (seed,)), step, part)):
            value, grads = self._gradient(params, batch)
        found = list(parameter_trees.like_leaves(self.plan.structure, grads, "the gradient"))
        out: Values = {"loss": np.array([float(value) * weight])}
        for place in self.plan.dense:
            if found[place] is not None:
                out[place] = _weighted(found[place], weight)
        for name, places in self.plan.variables.items():
            rows = [found[place] for place in places if found[place] is not None]
            if rows:
                out[name] = _weighted(SparseRows.combine(rows) if len(rows) > 1 else rows[0], weight)
        return out

    def _push(self, step: int, blocks: list[Block]) -> None:
        shards = self.communicator.shards
        shares: list[list[Block]] = [[] for _ in range(shards)]
        for level, place, values in blocks:
            split = self._split(values)
            for shard in range(shards):
                shares[shard].append((level, place, split[shard]))
        self._pushed[step] = [self.communicator.post(shard, Push(step, shares[shard])) for shard in range(shards)]

    def _split(self, values: Values) -> list[Values]:
        """The values that each shard sums: rows of its keys; dense leaves whole on one shard, or a piece on each."""
        shards = self.communicator.shards
        out: list[Values] = [{} for _ in range(shards)]
        for name, value in values.items():
            if name in self.plan.variables:
                for shard, own in enumerate(split_rows(value, shards)):
                    out[shard][name] = own
            elif self._is_split(name, value):
                for shard in range(shards):
                    out[shard][name] = value.reshape(-1)[share(value.size, shards, shard)]
            else:
                out[0 if name == "loss" else name % shards][name] = value
        return out

    def _is_split(self, name: object, value: object) -> bool:
        """True if each shard sums a piece of a large leaf's gradient; not if that may be SparseRows."""
        leaf = None if name == "loss" else self.dense[self.plan.dense.index(name)]
        # Each shard sums a piece of a dense gradient of so many bytes or more.
        return isinstance(leaf, np.ndarray) and self.communicator.shards > 1 and leaf.nbytes >= 1 << 16

    def _finish(self, step: int) -> float:
        """Wait for the sums of a step, and update the dense leaves, as every worker does; returns the loss."""
        found: dict[Any, list[Any]] = {}
        for sums in self.communicator.wait(self._pushed.pop(step)):
            for name, value in sums.items():
                found.setdefault(name, []).append(value)
        grads = [self._concatenate(place, found.get(place)) for place in self.plan.dense]
        self.dense, self.state = self.plan.optimizer.update(self.dense, grads, self.state)
        return float(found["loss"][0][0])

    def _concatenate(self, place: int, pieces: list[Any] | None) -> Any:
        if pieces is None:
            return None
        leaf = self.dense[self.plan.dense.index(place)]
        if isinstance(pieces[0], SparseRows):
            return pieces[0]
        return (np.concatenate(pieces) if len(pieces) > 1 else pieces[0]).reshape(np.shape(leaf))


def _weighted(grad: object, weight: float) -> Any:
    """A gradient times a number, in its dtype; SparseRows are coalesced, with 0.0 for -0.0."""
    if isinstance(grad, SparseRows):
        grad = grad.coalesce()
        rows = grad.rows if weight == 1 else grad.rows * grad.dtype.type(weight)
        return SparseRows.trusted(grad.ids, without_negative_zeros(rows), grad.num_rows)
    grad = np.asarray(grad)
    if grad.dtype.kind != "f":
        raise DTypeError(f"a gradient of {grad.dtype}; expected floats")
    return grad if weight == 1 else grad * grad.dtype.type(weight)
