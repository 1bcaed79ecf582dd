"""`Optimizer`: the base class, which pairs parameters with gradients and state, checks, clips and updates in place."""

import abc
import dataclasses
import functools
import math
import numbers
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.lib.array_utils import byte_bounds

from autobatch.core import parameter_trees, pytree
from autobatch.core.abstract_eval import check_own_dtype, check_plain, dtype_of, shape_of
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import DTypeLike, few_rows, public_names
from autobatch.core.memory import overlap
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.core.threads import thread_count, with_locks
from autobatch.errors import DTypeError, ShapeError, StructureError, UnsupportedError
from autobatch.facts.other_libraries import OPTIMIZER, Spelled, missing
from autobatch.ops.rules.ragged_checks import whole_number
from autobatch.optim.row_steps import RowStep, RunOptions, keyed_steps, make_step, run_steps, squares
from autobatch.tables.sparse import Indexer, SparseRows
from autobatch.tables.table import EmbeddingTable


class State(dict[str, Any]):
    """The state of an optimiser: a dict that prints a few rows of each array."""

    _ab_tree: ClassVar[type] = dict  # what its structure, and what is saved of it, says that it is
    _of: Callable[[], Any] = staticmethod(lambda: None)  # a weak reference to the first array that it was made for

    def of(self, values: Sequence[Any]) -> "State":
        """This state, with a note of the parameters that have these leaves; copies and pickles are without it."""
        self._of = next((weakref.ref(value) for value in values if type(value) is np.ndarray), self._of)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (dict(self),)

    def __repr__(self) -> str:
        return few_rows(self, *pytree.leaves(self))


@dataclasses.dataclass(slots=True)
class Leaf:
    """A parameter, its gradient (None: no update), and its state: one array, or reference, for each slot."""

    path: str
    value: Any
    grad: Any
    state: list[Any]


def is_parameter(value: Any) -> bool:
    """True for a float array, table or number of at most 64 bits; other leaves of a parameter tree are not updated."""
    if isinstance(value, np.ndarray | np.generic) or is_table(value):
        return value.dtype.kind == "f" and value.dtype.itemsize <= 8
    return isinstance(value, float)


def is_table(value: object) -> bool:
    """True for an `EmbeddingTable`, and for any object with `read(ids)` and `write(ids, rows)`."""
    return isinstance(value, EmbeddingTable) or (hasattr(value, "read") and hasattr(value, "write"))


def is_keyed(value: object) -> bool:
    """True for a table of keys, which stores the optimiser state of its rows itself."""
    return hasattr(value, "add_slot")


def state_like(value: Any, fill: float = 0.0, dtype: Any = None, by_row: bool = False, name: str = "") -> Any:
    """The initial state of one parameter: an array of its shape and dtype (float32 for float16); None for other leaves.

    Args:
        dtype: override the dtype. by_row: one number for each index of the first dimension.
        name: the slot's name, under which a table of keys stores it.
    """
    check_plain(value, "a parameter")
    if not is_parameter(value):
        return None
    if dtype is None:
        dtype = np.dtype(np.float32) if dtype_of(value) == np.float16 else dtype_of(value)
    if is_keyed(value):
        return value.add_slot(name, fill, dtype, by_row)
    return np.full(tuple(shape_of(value))[: 1 if by_row else None], fill, dtype)


def _check(leaf: Leaf, by_row: bool) -> None:
    value, grad, path = leaf.value, leaf.grad, leaf.path
    if is_boxed(grad) and rank_of(grad) == BATCH_RANK:
        raise UnsupportedError(f"the gradient of params{path} is a batch; take that of one number: ab.mean(losses)")
    if is_boxed(value) or is_boxed(grad) or (isinstance(grad, SparseRows) and grad.boxed):
        raise UnsupportedError(f"params{path} or its gradient is recorded; call update outside of ab.grad and ab.lazy")
    if isinstance(value, SparseRows):
        raise UnsupportedError(f"params{path} is a gradient, SparseRows; write opt.update(params, grads, state)")
    if grad is None:
        return
    check_plain(value, f"params{path}")
    check_plain(grad, f"grads{path}")
    if not is_parameter(value):
        check_own_dtype(dtype_of(value), f"params{path}")
        described = f"of dtype {value.dtype}" if hasattr(value, "dtype") else f"a {type(value).__name__}"
        raise DTypeError(f"grads{path} is given, but params{path} is {described}; only floats are updated")
    if is_keyed(value):
        _check_keys(value, grad, path)
    elif shape_of(grad) != shape_of(value):
        raise ShapeError(f"grads{path} has shape {shape_of(grad)}; expected that of the parameter, {shape_of(value)}")
    if dtype_of(grad) != (own := dtype_of(value)):
        raise DTypeError(f"grads{path} has dtype {dtype_of(grad)}; expected the parameter's: write .astype(np.{own})")
    if not getattr(value, "trainable", True):
        raise UnsupportedError(f"params{path} is a {type(value).__name__} for look-ups only; it takes no gradient")
    for state in leaf.state:
        if is_keyed(value):
            value.slot_array(state, by_row)
        else:
            _check_state(state, path, tuple(shape_of(value))[: 1 if by_row else None])
    if not (value.flags.writeable if isinstance(value, np.ndarray) else getattr(value, "writeable", True)):
        raise UnsupportedError(f"params{path} is read-only, and updates write in place; pass a copy")


def _refuse_whole_numbers(params: object) -> None:
    """Raise for a leaf that `ab.grad` refuses: integers would silently stay as they are."""
    values, structure = parameter_trees.flatten(params)
    for value, path, own in zip(values, pytree.paths(structure), pytree.in_dataclass(structure), strict=True):
        of_arrays = parameter_trees.is_array_like(value) and not is_keyed(value)
        if isinstance(value, bool) or not (isinstance(value, int | complex) or of_arrays):
            continue
        setting = own and isinstance(value, int | np.integer)
        if not setting and getattr(value, "trainable", True) and dtype_of(value).kind != "f":
            check_own_dtype(dtype_of(value), f"params{path}")
            raise DTypeError(
                f"params{path} is {type(value).__name__} of dtype {dtype_of(value)}, which has no gradient; make it a "
                "float, or keep it outside of the parameters"
            )


def _check_keys(value: Any, grad: Any, path: str) -> None:
    """Check the gradient of a table of keys: `SparseRows` of keys, with rows of the right shape."""
    if not isinstance(grad, SparseRows) or grad.num_rows is not None:
        raise ShapeError(f"grads{path} is not the gradient of a table of keys; expected SparseRows(keys, rows, None)")
    if grad.shape[1:] != value.shape[1:]:
        raise ShapeError(f"grads{path} has rows of shape {grad.shape[1:]}; expected {value.shape[1:]}")


def _check_state(state: object, path: str, shape: tuple[int, ...]) -> None:
    check_plain(state, f"the state of params{path}")
    if shape_of(state) != shape:
        raise ShapeError(f"the state of params{path} has shape {shape_of(state)}; expected {shape}: call init(params)")
    if not (isinstance(state, np.ndarray) and is_parameter(state) and state.flags.writeable):
        given = f"{type(state).__name__} of {dtype_of(state)}"
        raise DTypeError(f"the state of params{path} is {given}; expected writable floats of at most 64 bits")


def _memory(value: object) -> Any:
    """The array that a parameter lies in; the object itself for other tables, None for numbers."""
    weights = value.weights if isinstance(value, EmbeddingTable) else value
    return weights if isinstance(weights, np.ndarray) or is_table(weights) else None


def _memory_key(value: object) -> Any:
    """A hashable key, equal for two parameters that have the same elements, in any order of axes; None for numbers."""
    memory = _memory(value)
    if not isinstance(memory, np.ndarray):
        return None if memory is None else id(memory)
    axes = tuple(sorted(zip(memory.strides, memory.shape, strict=True)))
    return (memory.__array_interface__["data"][0], memory.dtype, axes) if memory.size else None


def _in_axes_of(one: Any, other: Any, values: Any) -> Any:
    """`values`, in the axes of parameter `other`, in those of `one`: the same elements, whose axes may be permuted."""
    one, other = _memory(one), _memory(other)
    if not isinstance(one, np.ndarray) or (one.strides, one.shape) == (other.strides, other.shape):
        return values
    dense = values.to_dense() if isinstance(values, SparseRows) else values
    return dense.transpose([axis for _, axis in sorted(zip(_by_stride(one), _by_stride(other), strict=True))])


def _by_stride(array: np.ndarray) -> list[int]:
    return sorted(range(array.ndim), key=lambda axis: (array.strides[axis], array.shape[axis]))


def _add_up_shared(leaves: Sequence[Leaf]) -> None:
    """If an array or table occurs at several places, move the sum of its gradients to the first place.

    Raises:
        UnsupportedError: two parameters have some of their elements in common; each would lose the other's update.
    """
    first: dict[Any, Leaf] = {}
    for leaf in leaves:
        key = _memory_key(leaf.value)
        one = leaf if key is None else first.setdefault(key, leaf)
        if one is not leaf and leaf.grad is not None:
            grad, leaf.grad = _in_axes_of(one.value, leaf.value, leaf.grad), None
            one.grad = grad if one.grad is None else one.grad + grad
    owners = [(leaf.path, _memory(leaf.value)) for leaf in first.values() if leaf.grad is not None]
    arrays = [(path, memory) for path, memory in owners if isinstance(memory, np.ndarray)]
    if all(memory.base is None for _, memory in arrays):  # each has memory of its own
        return
    open_ranges: list[tuple[int, str, np.ndarray]] = []
    for low, high, path, memory in sorted(((*byte_bounds(m), path, m) for path, m in arrays), key=lambda each: each[0]):
        open_ranges = [each for each in open_ranges if each[0] > low]
        for _, other, shared in open_ranges:
            if overlap(shared, memory):
                raise UnsupportedError(
                    f"params{other} and params{path} share a part of their memory, so an update of one changes the "
                    f"other; take the parts of one parameter in the function, or copy one: params{path}.copy()"
                )
        open_ranges.append((high, path, memory))


def leaf_step(leaf: Leaf, by_row: bool, indexer: Indexer | None) -> tuple[list[RowStep], Callable[[], Any]]:
    """The kernel step for one leaf (none if no row changes), and a function that returns the updated leaf.

    Arrays and tables are written in place; for a number, a new number is returned.
    """
    value = leaf.value
    weights = value.weights if isinstance(value, EmbeddingTable) else value
    if isinstance(weights, np.ndarray) or is_table(weights):
        step = make_step(weights, leaf.state, leaf.grad, by_row, indexer)
        return [step] if step else [], lambda: value
    dtype = dtype_of(value)
    cell = np.array(value, dtype)
    step = make_step(cell, leaf.state, np.asarray(leaf.grad, dtype), by_row, None)
    number = isinstance(value, float) and not isinstance(value, np.generic)
    return [step] if step else [], lambda: float(cell) if number else dtype.type(cell)


Schedule = float | Callable[[int], float]
Params = TypeVar("Params")


PARAMETERS = "parameters go to opt.init(params) and opt.update(params, grads, state)"


def check(name: str, value: object, *, below: float = math.inf) -> None:
    """Check that an option is a real number with 0 <= value < below.

    Raises:
        DTypeError: it is not a number. ValueError: it is out of bounds, or NaN.
    """
    number: Any = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    kinds: Any = numbers.Real
    if isinstance(number, bool) or not isinstance(number, kinds):
        own = name == "lr" and isinstance(value, list | tuple | dict | np.ndarray)
        given, more = (name, f": {PARAMETERS}") if own else (f"{name}={value!r:.60}", "")
        raise DTypeError(f"{given} is of type {type(value).__name__}; expected a number, at least 0{more}")
    try:
        fits = 0 <= float(number) < below  # kernels take a float
    except OverflowError:
        fits = False
    if not fits:
        bound = f"below {below:g}" if below < math.inf else "finite"
        raise ValueError(f"{name}={value!r:.60}; expected at least 0 and {bound}")


@dataclasses.dataclass(kw_only=True)
class Optimizer(metaclass=Spelled):
    """The base class of the optimisers: the state has the structure of the parameters, and updates are in place.

    Parameters are a tree (dict, list, tuple, namedtuple, dataclass) of float arrays, tables and float numbers; other
    leaves are not changed. A gradient is dense, `SparseRows` or None (no update). In a table, `SparseRows` update only
    the rows that they name, and only their state. The rows of repeated ids are summed while each row is updated, so
    no gradient of the table's size, nor one with a row for each id, is ever allocated.

    An array or table at several places, also transposed (`{"emb": W, "out": W.T}`), takes one step, with the sum of its
    gradients and the state of the first place.

    Args:
        lr: the learning rate; or a schedule, a function of the number of steps taken before (0 at the first step).
        weight_decay: the parameter times this is added to its gradient; in a table only for the named rows.
        clip_value: clip the elements of gradients to [-clip_value, clip_value], after repeated ids are summed.
        clip_norm: scale gradients so that their norm over all parameters together is at most this, as
            `torch.nn.utils.clip_grad_norm_` does; applied before `clip_value`.
        state_dtype: the dtype of the state; None: the parameter's, but float32 for float16.

    Raises:
        ValueError: one of these is negative, infinite or NaN, or a beta is not below 1; also when an attribute is
            assigned later. DTypeError: an option is not a number, or `state_dtype` is not a float dtype.

    >>> from autobatch.optim import SGD
    >>> optimizer, params = SGD(lr=lambda step: 0.1 / (1 + step), clip_value=1.0), [np.ones(2)]
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     params, state = optimizer.update(params, [np.array([8.0, 0.5])], state)
    >>> params[0].round(4), state["step"]
    (array([0.85 , 0.925]), 2)
    """

    # Without an annotation these are the class's, and not fields.
    _ab_advice, _ab_own_names = (PARAMETERS,), "by_row slots"
    __dir__ = public_names

    clip_value: float | None = None
    clip_norm: float | None = None
    state_dtype: DTypeLike | None = None

    def __post_init__(self) -> None:
        """Check combinations of fields; each single field is checked in `__setattr__`."""

    def __setattr__(self, name: str, value: object) -> None:  # called by __init__, and when a training loop sets lr
        field = type(self).__dataclass_fields__.get(name)
        if field is not None:
            self._check_option(name, field.default, value)
        object.__setattr__(self, name, value)

    def _check_option(self, name: str, default: Any, value: Any) -> None:
        """Raise if a value is out of bounds or not of the kind of the field's default."""
        if name == "state_dtype":
            _check_state_dtype(value)
        elif isinstance(default, bool):
            if not isinstance(value, bool | np.bool_):
                raise DTypeError(f"{name}={value!r}; expected True or False")
        elif name == "betas":
            if not isinstance(value, list | tuple) or len(value) != len(default):
                raise DTypeError(f"betas={value!r}; expected {len(default)} numbers, each at least 0 and below 1")
            for i, beta in enumerate(value):
                check(f"betas[{i}]", beta, below=1.0)
        elif name == "lr" and callable(value):
            return
        elif name == "lr" or isinstance(default, numbers.Real) or (value is not None and name[:5] == "clip_"):
            check(name, value)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the state's slots; each is a tree like the parameters."""
        return ()

    @property
    def by_row(self) -> bool:
        """True if the state has one number for each row instead of each element."""
        return False

    if not TYPE_CHECKING:  # else each attribute would have the type Any

        @hiding_frames
        def __getattr__(self, name: str) -> Any:
            raise missing(f"{type(self).__name__!r} object", name, OPTIMIZER)

    @hiding_frames
    def init(self, params: object) -> dict[str, Any]:
        """The state before the first step, a dict that can be pickled.

        Args:
            params: a tree of parameters.

        Returns:
            "step": the number of steps; and for each of `slots` a tree like the parameters: an array of the
            parameter's shape (one number for each row if `by_row`), None for other leaves.

        Raises:
            UnsupportedError: parameters are in a container that is not a tree node, such as a deque.
            DTypeError: a leaf that is an integer or complex number or array, as for `ab.grad`; in a dataclass a whole
                number is a setting.
        """
        _refuse_whole_numbers(params)
        state = State({"step": 0} | {slot: self._initial(params, slot) for slot in self.slots})
        return state.of(parameter_trees.flatten(params)[0])

    def _initial(self, params: object, slot: str) -> Any:
        """The initial tree of one slot; a parameter that occurs at several places has one state."""
        values, structure = parameter_trees.flatten(params)
        known: dict[Any, Any] = {}
        out = []
        for value in values:
            key = _memory_key(value)
            one, state = known.get(key, (value, None))
            if state is None or (self.by_row and shape_of(one) != shape_of(value)):
                state = state_like(value, self._fill(slot), self.state_dtype, self.by_row, slot)
            elif not self.by_row:
                state = _in_axes_of(value, one, state)
            if key is not None:
                known.setdefault(key, (value, state))
            out.append(state)
        return pytree.unflatten(parameter_trees.as_dicts(structure), out)

    def _fill(self, slot: str) -> float:
        """The initial value of a slot."""
        return 0.0

    @hiding_frames
    def update(
        self,
        params: Params,
        grads: object,
        state: dict[str, Any],
        *,
        indexers: object = None,
        threads: int | None = None,
        num_splits: int | None = None,
        scratch: Sequence[np.ndarray] | None = None,
        nontemporal: bool = False,
    ) -> tuple[Params, dict[str, Any]]:
        """Take one step, `p -= ...`.

        Arrays, tables and the state's arrays are written in place; numbers cannot be, so use the returned parameters.
        Everything is checked, and all memory allocated, before anything is written. If an exception or an interrupt
        occurs, arrays, tables and state (with the number of steps) are either all unchanged or all updated. The rows
        of all parameters are updated together, in several threads if there is enough work.

        Args:
            params: a tree of parameters, written in place.
            grads: a tree of the same structure; each leaf has its parameter's shape and dtype, or is None.
            state: the result of `init` or of the last `update`; written in place.
            indexers: working memory to reuse from step to step: a tree like the parameters with an `Indexer` for each
                table (None elsewhere).
            threads: the number of threads; None: up to the number of cores, depending on the work.
            num_splits: the number of parts to split each parameter's rows into, for threads; None: depends on size.
            scratch: memory for a row's partial sums, to reuse from step to step: a list with one array for each thread,
                at least as long as the longest row and of the parameters' dtype (`scratch(params)` makes it).
            nontemporal: write table rows with non-temporal stores (bypassing the cache), if rows are multiples of 16
                bytes. This can help if a table is much larger than the cache and its rows are not read again soon.
                The project that this keyword comes from has it on; here, a step takes about twice as long with it,
                since the row was just read and is in the cache.

        Returns:
            (params, state) for the next step; the five keywords do not affect the result.

        Raises:
            StructureError: parameters, gradients and state differ in structure.
            ShapeError, DTypeError: a gradient differs from its parameter in shape or dtype; the message names it.
            UnsupportedError: two parameters share a part of their memory, but not the same elements.

        >>> params = {"w": np.array([1.0, 2.0])}
        >>> opt = ab.optim.SGD(lr=0.5)
        >>> params, state = opt.update(params, {"w": np.array([1.0, 0.0])}, opt.init(params))
        >>> params
        {'w': array([0.5, 2. ])}
        """
        for name, value in (("threads", threads), ("num_splits", num_splits)):
            if value is not None:
                whole_number(value, name, 1)
        how = RunOptions(threads, num_splits, _checked_scratch(scratch), nontemporal)
        leaves, structure = self._paired(params, grads, state)
        memory = self._checked_indexers(structure, indexers, len(leaves))
        tables = {id(leaf.value): leaf.value for leaf in leaves if leaf.grad is not None and is_keyed(leaf.value)}
        step = functools.partial(self._take_step, leaves, memory, how, state)
        new = with_locks([lock for key in sorted(tables) for lock in tables[key].locks], step)
        if any(value is not leaf.value for value, leaf in zip(new, leaves, strict=True)):
            params = pytree.unflatten(structure, new)
        return params, State(state).of(new)

    def _paired(self, params: Any, grads: Any, state: dict[str, Any]) -> tuple[list[Leaf], pytree.TreeDef]:
        """Pair each leaf of the parameters with its gradient and state, and check them; returns also the structure.

        Raises:
            StructureError, ShapeError, DTypeError, UnsupportedError: names the first leaf that is wrong.
        """
        if not isinstance(state, dict) or state.keys() != {"step", *self.slots}:
            found = list(state) if isinstance(state, dict) else type(state).__name__
            order = ", and opt.update(params, grads, state) in this order" if isinstance(grads, State) else ""
            raise StructureError(f"the state has {found}; expected that of {type(self).__name__}.init(params){order}")
        values, structure = parameter_trees.flatten(params)
        columns = [list(parameter_trees.like_leaves(structure, state[slot], "state")) for slot in self.slots]
        given = parameter_trees.like_leaves(structure, grads, "grads")
        rows = zip(pytree.paths(structure), values, given, *columns, strict=True)
        leaves = [Leaf(path, value, grad, slots) for path, value, grad, *slots in rows]
        for leaf in leaves:
            _check(leaf, self.by_row)
        own = state._of() if isinstance(state, State) else None
        if any(leaf.grad is own is not None for leaf in leaves) and not any(leaf.value is own for leaf in leaves):
            raise UnsupportedError("params and grads are exchanged; write opt.update(params, grads, state)")
        _add_up_shared(leaves)
        return leaves, structure

    def _take_step(
        self, leaves: Sequence[Leaf], memory: Sequence[Indexer | None], how: RunOptions, state: dict[str, Any]
    ) -> list[Any]:
        """Take a step on checked parameters; the caller holds the locks of all tables of keys."""
        before = whole_number(state["step"], "state['step']")
        kernel, constants = self._step(before + 1, self._rate(before))
        steps = []
        updated: dict[int, Callable[[], Any]] = {}
        ends: list[Callable[[], None]] = []
        for at, (leaf, indexer) in enumerate(zip(leaves, memory, strict=True)):
            if leaf.grad is None:
                continue
            if is_keyed(leaf.value):
                own, without_rows = keyed_steps(leaf.value, leaf.state, leaf.grad, self.by_row, indexer)
                ends += without_rows
            else:
                own, updated[at] = leaf_step(leaf, self.by_row, indexer)
            for step in own:
                step.arrays = self._kernel_arrays(step.arrays)
                steps.append(step)
        scale = 1.0
        if self.clip_norm is not None:
            norm = math.sqrt(sum(map(squares, steps)))  # overflows to infinity
            scale = min(1.0, self.clip_norm / (norm + 1e-6)) if norm == norm else norm
        limit = -1.0 if self.clip_value is None else self.clip_value
        ends.append(functools.partial(operator.setitem, state, "step", before + 1))
        run_steps(steps, kernel, constants, scale, limit, how, ends)
        return [updated[at]() if at in updated else leaf.value for at, leaf in enumerate(leaves)]

    def scratch(self, params: object, threads: int | None = None) -> list[np.ndarray]:
        """Memory for `update(scratch=...)`.

        Args:
            params: a tree of parameters.
            threads: the number of threads; None: the number of cores.

        Returns:
            For each thread an array (longest row,), of float32 or the widest dtype of the tables.

        >>> [space.shape for space in ab.optim.SGD(0.1).scratch(ab.EmbeddingTable(np.zeros((4, 3))), threads=2)]
        [(3,), (3,)]
        """
        found = parameter_trees.flatten(params)[0]
        tables = [leaf for leaf in found if is_parameter(leaf) and len(shape_of(leaf)) == 2]
        width = max((shape_of(leaf)[1] for leaf in tables), default=0)
        dtype = np.result_type(np.float32, *(dtype_of(leaf) for leaf in tables))
        return [np.empty(width, dtype) for _ in range(whole_number(threads or thread_count(), "threads", 1))]

    def _kernel_arrays(self, arrays: list[Any]) -> list[Any]:
        """Arrange weights and state as the kernel's arguments."""
        return arrays

    def _checked_indexers(self, structure: Any, indexers: Any, count: int) -> list[Indexer | None]:
        if indexers is None:
            return [None] * count
        found = list(parameter_trees.like_leaves(structure, indexers, "indexers"))
        for indexer in found:
            if indexer is not None and not isinstance(indexer, Indexer):
                raise StructureError(f"indexers hold a {type(indexer).__name__}; expected ab.optim.Indexer() or None")
        own = [indexer for indexer in found if indexer is not None]
        if len(set(map(id, own))) != len(own):
            raise StructureError("one Indexer is used for two parameters; write [Indexer() for _ in tables]")
        return found

    def _rate(self, step: int) -> float:
        lr: Any = self.lr  # type: ignore[attr-defined]
        if not callable(lr):
            return lr
        rate = lr(step)
        check(f"lr({step})", rate)
        return float(rate)

    @abc.abstractmethod
    def _step(self, step: int, lr: float) -> tuple[Callable[..., None], Callable[[Any], Sequence[Any]]]:
        """The kernel for step number `step` (from 1), and a function: dtype constructor -> its hyperparameters."""


def _check_state_dtype(given: Any) -> None:
    try:
        dtype = None if given is None else np.dtype(given)
    except (TypeError, ValueError):
        raise DTypeError(f"state_dtype={given!r}; expected a float dtype, such as np.float32, or None") from None
    if dtype is not None and dtype.kind != "f":
        raise DTypeError(f"state_dtype={dtype}; expected a float dtype")


def _checked_scratch(scratch: Any) -> Sequence[np.ndarray] | None:
    """Check that scratch arrays are contiguous, one-dimensional and share no memory."""
    if scratch is None:
        return None
    for i, space in enumerate(scratch):
        if not isinstance(space, np.ndarray) or space.ndim != 1 or not space.flags.carray:
            raise ShapeError(f"scratch[{i}] is not a contiguous array of one dimension; opt.scratch(params) makes them")
        if any(np.may_share_memory(space, other) for other in scratch[:i]):
            raise ShapeError(f"scratch[{i}] shares memory with another; each thread needs its own")
    return scratch
