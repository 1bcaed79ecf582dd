"""What the optimisers share: state of the parameters' structure, clipping, schedules, and an update in place."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core import pytree
from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.threads import thread_count
from autobatch.errors import DTypeError, ShapeError, StructureError
from autobatch.optim.leaves import is_parameter, like_leaves, paired, state_like, step_of
from autobatch.optim.steps import Running, run_steps, squares
from autobatch.tables.sparse import Indexer

__all__ = ["Optimizer", "Schedule", "check"]

Schedule = float | Callable[[int], float]


def check(name: str, value: Any, *, below: float = math.inf) -> None:
    """Refuse a number that is negative, NaN or not below a bound; schedules pass."""
    if callable(value):
        return
    if not 0 <= value < below:
        raise ValueError(f"{name}={value}; expected at least 0{f' and below {below:g}' if below < math.inf else ''}")


@dataclasses.dataclass(kw_only=True)
class Optimizer(abc.ABC):
    """What the optimisers share: state of the parameters' structure, and an update in place.

    Parameters are a tree (dict, list, tuple, namedtuple, dataclass) of float arrays, `EmbeddingTable`s and float
    numbers; other leaves are left alone. A gradient is dense, `SparseRows` or None (no update). Of a table only the
    rows that a `SparseRows` names change, and only their state; repeated ids are added up first, row by row as the step
    is taken, so that no gradient is made of the table's size or of one row for each id.

    Args:
        lr: the learning rate; or a schedule, called with the number of steps taken before, 0 first.
        weight_decay: times the parameter, added to its gradient; in a table of the named rows only.
        clip_value: gradients are cut to [-clip_value, clip_value], element by element, after repeated ids are added up.
        clip_norm: gradients are scaled down so that their norm, over all parameters together, is at most this
            (`torch.nn.utils.clip_grad_norm_`); before `clip_value`.
        state_dtype: the dtype of the state; None: the parameter's, float32 for float16.

    Raises:
        ValueError: a negative number among these. DTypeError: a state dtype that is no float.

    >>> from autobatch.optim import SGD
    >>> optimizer, params = SGD(lr=lambda step: 0.1 / (1 + step), clip_value=1.0), [np.ones(2)]
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     params, state = optimizer.update(params, [np.array([8.0, 0.5])], state)
    >>> params[0].round(4), state["step"]
    (array([0.85 , 0.925]), 2)
    """

    clip_value: float | None = None
    clip_norm: float | None = None
    state_dtype: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                check(field.name, value)
        if self.state_dtype is not None and np.dtype(self.state_dtype).kind != "f":
            raise DTypeError(f"state_dtype={np.dtype(self.state_dtype)}; expected a float dtype")

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the state's trees."""
        return ()

    @property
    def by_row(self) -> bool:
        """Whether the state has one number for each row."""
        return False

    def init(self, params: Any) -> dict[str, Any]:
        """The state before the first step: the number of steps and, for each slot, a tree of arrays. It pickles."""
        return {"step": 0} | {slot: pytree.map_tree(self._initial, params) for slot in self.slots}

    def _initial(self, value: Any) -> Any:
        return state_like(value, self._fill(), self.state_dtype, self.by_row)

    def _fill(self) -> float:
        return 0.0

    def update(
        self,
        params: Any,
        grads: Any,
        state: dict[str, Any],
        *,
        indexers: Any = None,
        threads: int | None = None,
        num_splits: int | None = None,
        scratch: Sequence[np.ndarray] | None = None,
        nontemporal: bool = False,
    ) -> tuple[Any, dict[str, Any]]:
        """Take one step, `p -= ...`.

        Arrays, tables and the state's arrays are written in place; numbers cannot be, so use what is returned.
        Everything is checked before anything is written. All parameters' rows are updated together, in threads where
        there is enough to do.

        Args:
            indexers: memory kept from step to step, a tree like the parameters with an `Indexer` for each table
                (None elsewhere).
            threads: how many at most; None: as many as there are cores, where there is enough to do.
            num_splits: into how many parts the rows of each parameter are cut, for threads to share out; None: by size.
            scratch: memory for the partial sums of a row, kept from step to step: a list with an array for each thread
                (`scratch(params)` makes one), of the longest row at least and of the parameters' dtype.
            nontemporal: store the weights of tables straight to memory, past the cache, where rows are whole multiples
                of 16 bytes and the optimiser is SGD without momentum; the others read and write state beside the
                weights, which is what fills the cache. It pays where a table is much larger than the cache and a
                step's rows are not read again soon; the seed of this keyword has it on, here it is slower on most
                machines, since a row was just read and is in the cache already.

            Results are the same to the bit whatever these four are.

        Raises:
            StructureError: parameters, gradients and state that differ in structure.
            ShapeError, DTypeError: a gradient of another shape or dtype than its parameter; the message names it.

        >>> params = {"w": np.array([1.0, 2.0])}
        >>> opt = ab.optim.SGD(lr=0.5)
        >>> params, state = opt.update(params, {"w": np.array([1.0, 0.0])}, opt.init(params))
        >>> params
        {'w': array([0.5, 2. ])}
        """
        if not isinstance(state, dict) or state.keys() != {"step", *self.slots}:
            found = list(state) if isinstance(state, dict) else type(state).__name__
            raise StructureError(f"the state has {found}; expected that of {type(self).__name__}.init(params)")
        for name, value in (("threads", threads), ("num_splits", num_splits)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}; expected at least 1")
        how = Running(threads, num_splits, _checked_scratch(scratch), nontemporal)
        leaves, structure = paired(params, grads, [state[slot] for slot in self.slots], self.by_row)
        memory = self._memory(structure, indexers, len(leaves))
        before = state["step"]
        kernel, numbers = self._step(before + 1, self._rate(before))
        steps, results = [], []
        for leaf, indexer in zip(leaves, memory, strict=True):
            if leaf.grad is None:
                results.append(leaf.value)
                continue
            step, result = step_of(leaf, self.by_row, indexer)
            results.append(result)
            if step is not None:
                step.arrays = self._arrays(step.arrays)
                steps.append(step)
        scale = 1.0
        if self.clip_norm is not None:
            norm = math.sqrt(math.fsum(map(squares, steps)))
            scale = min(1.0, self.clip_norm / (norm + 1e-6)) if norm == norm else norm
        limit = -1.0 if self.clip_value is None else self.clip_value
        run_steps(steps, kernel, self._streaming(), numbers, scale, limit, how)
        given = [leaf.grad is not None for leaf in leaves]
        new = [result() if moved else result for result, moved in zip(results, given, strict=True)]
        if any(value is not leaf.value for value, leaf in zip(new, leaves, strict=True)):
            params = pytree.unflatten(structure, new)
        return params, state | {"step": before + 1}

    def scratch(self, params: Any, threads: int | None = None) -> list[np.ndarray]:
        """Memory for `update(scratch=...)`: an array of the longest row for each of so many threads (None: all cores).

        >>> [space.shape for space in ab.optim.SGD(0.1).scratch(ab.EmbeddingTable(np.zeros((4, 3))), threads=2)]
        [(3,), (3,)]
        """
        tables = [leaf for leaf in pytree.leaves(params) if is_parameter(leaf) and len(shape_of(leaf)) == 2]
        width = max((shape_of(leaf)[1] for leaf in tables), default=0)
        dtype = np.result_type(np.float32, *(dtype_of(leaf) for leaf in tables))
        return [np.empty(width, dtype) for _ in range(threads or thread_count())]

    def _streaming(self) -> Callable[..., None] | None:
        """The kernel of the same step that stores past the cache, if there is one."""
        return None

    def _arrays(self, arrays: list[Any]) -> list[Any]:
        """Weights and state as the kernel takes them."""
        return arrays

    def _memory(self, structure: Any, indexers: Any, count: int) -> list[Indexer | None]:
        if indexers is None:
            return [None] * count
        found = list(like_leaves(structure, indexers, "indexers"))
        for indexer in found:
            if indexer is not None and not isinstance(indexer, Indexer):
                raise StructureError(f"indexers hold a {type(indexer).__name__}; expected ab.optim.Indexer() or None")
        own = [indexer for indexer in found if indexer is not None]
        if len(set(map(id, own))) != len(own):
            raise StructureError(
                "one Indexer stands for two parameters; each needs its own: [Indexer() for _ in tables]"
            )
        return found

    def _rate(self, step: int) -> float:
        lr: Any = self.lr  # type: ignore[attr-defined]
        if not callable(lr):
            return lr
        rate = float(lr(step))
        check(f"lr({step})", rate)
        return rate

    @abc.abstractmethod
    def _step(self, step: int, lr: float) -> tuple[Callable[..., None], Callable[[Any], Sequence[Any]]]:
        """The kernel of the step number `step` (from 1), and its numbers, made with a dtype's constructor."""


def _checked_scratch(scratch: Any) -> Sequence[np.ndarray] | None:
    """Spaces of one dimension, none of them twice."""
    if scratch is None:
        return None
    for i, space in enumerate(scratch):
        if not isinstance(space, np.ndarray) or space.ndim != 1 or not space.flags.carray:
            raise ShapeError(f"scratch[{i}] is no contiguous array of one dimension; opt.scratch(params) makes them")
        if any(np.may_share_memory(space, other) for other in scratch[:i]):
            raise ShapeError(f"scratch[{i}] shares memory with another; each thread needs its own")
    return scratch
