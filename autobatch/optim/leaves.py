"""Pairing parameters with their gradients, checked before anything is written; and a step on one leaf."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.core import pytree
from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.errors import DTypeError, ShapeError, StructureError, UnsupportedError
from autobatch.optim.steps import RowStep, make_step
from autobatch.tables.sparse import Indexer, SparseRows
from autobatch.tables.table import EmbeddingTable

__all__ = ["Leaf", "is_parameter", "like_leaves", "paired", "state_like", "step_of"]


@dataclasses.dataclass(slots=True)
class Leaf:
    """A parameter, its gradient (None: leave it as it is) and its state, one array for each slot."""

    path: str
    value: Any
    grad: Any
    state: list[Any]


def is_parameter(value: Any) -> bool:
    """A float array, table or float number; anything else in a tree of parameters is left alone."""
    if isinstance(value, np.ndarray | np.generic) or is_table(value):
        return value.dtype.kind == "f"
    return isinstance(value, float)


def is_table(value: Any) -> bool:
    """A table of rows: the weights of an `EmbeddingTable`, or whatever reads and writes the rows that ids name."""
    return isinstance(value, EmbeddingTable) or (hasattr(value, "read") and hasattr(value, "write"))


def state_like(value: Any, fill: float = 0.0, dtype: Any = None, by_row: bool = False) -> np.ndarray | None:
    """The state of one parameter: an array of its shape and dtype (float32 for float16); None for other leaves.

    Args:
        dtype: another dtype for it. by_row: one number for each row of a parameter of two or more dimensions.
    """
    if not is_parameter(value):
        return None
    if dtype is None:
        dtype = np.dtype(np.float32) if dtype_of(value) == np.float16 else dtype_of(value)
    return np.full(state_shape(value, by_row), fill, dtype)


def state_shape(value: Any, by_row: bool) -> tuple[int, ...]:
    """The shape of the state of a parameter."""
    shape = tuple(shape_of(value))
    return shape[:1] if by_row else shape


def like_leaves(structure: pytree.TreeDef, tree: Any, what: str, path: str = "") -> Iterator[Any]:
    """The parts of `tree` that stand where `structure` has leaves; a part may itself be a container.

    Raises:
        StructureError: names the first place where the two differ.
    """
    kind = structure.kind
    if kind is None:
        yield tree
        return
    if issubclass(kind, dict):
        ok = isinstance(tree, dict) and tree.keys() == set(structure.keys)
        parts = [tree[key] for key in structure.keys] if ok else []
    elif issubclass(kind, list | tuple):
        ok = isinstance(tree, list | tuple) and len(tree) == len(structure.keys)
        parts = list(tree) if ok else []
    else:
        ok = all(hasattr(tree, key) for key in structure.keys)
        parts = [getattr(tree, key) for key in structure.keys] if ok else []
    if not ok:
        keys = (
            f" with {list(tree)}" if isinstance(tree, dict) else f" of {len(tree)}" if hasattr(tree, "__len__") else ""
        )
        raise StructureError(
            f"{what}{path} is a {type(tree).__name__}{keys}; expected what the parameters have there, "
            f"a {kind.__name__} with {list(structure.keys)}"
        )
    for key, child, part in zip(structure.keys, structure.children, parts, strict=True):
        yield from like_leaves(child, part, what, f"{path}[{key!r}]")


def paired(params: Any, grads: Any, slots: Sequence[Any], by_row: bool = False) -> tuple[list[Leaf], pytree.TreeDef]:
    """Each leaf of the parameters with its gradient and state.

    Raises:
        StructureError, ShapeError, DTypeError, UnsupportedError: names the first leaf that does not fit.
    """
    values, structure = pytree.flatten(params)
    columns = [list(like_leaves(structure, slot, "state")) for slot in slots]
    found = like_leaves(structure, grads, "grads")
    out = []
    for path, value, grad, *state in zip(pytree.paths(structure), values, found, *columns, strict=True):
        leaf = Leaf(path, value, grad, state)
        _check(leaf, by_row)
        out.append(leaf)
    return out, structure


def _check(leaf: Leaf, by_row: bool) -> None:
    value, grad, path = leaf.value, leaf.grad, leaf.path
    if is_boxed(value) or is_boxed(grad) or (isinstance(grad, SparseRows) and grad.boxed):
        raise UnsupportedError(
            f"params{path} or its gradient is on a tape or recorded; call update outside of ab.grad and ab.lazy"
        )
    if grad is None:
        return
    if not is_parameter(value):
        raise DTypeError(f"grads{path} is given, but params{path} is {_described(value)}; only floats are updated")
    if shape_of(grad) != shape_of(value):
        raise ShapeError(f"grads{path} has shape {shape_of(grad)}; expected that of the parameter, {shape_of(value)}")
    if dtype_of(grad) != dtype_of(value):
        raise DTypeError(
            f"grads{path} has dtype {dtype_of(grad)}; expected the parameter's: write .astype(np.{dtype_of(value)})"
        )
    for state in leaf.state:
        if shape_of(state) != state_shape(value, by_row):
            expected = state_shape(value, by_row)
            raise ShapeError(
                f"the state of params{path} has shape {shape_of(state)}; expected {expected}: call init(params)"
            )
    if not getattr(value, "trainable", True):
        raise UnsupportedError(f"params{path} is a {type(value).__name__} for look-ups only; it takes no gradient")
    writeable = value.flags.writeable if isinstance(value, np.ndarray) else getattr(value, "writeable", True)
    if not writeable:
        raise UnsupportedError(f"params{path} is read-only, and updates write in place; pass a copy")


def _described(value: Any) -> str:
    return f"of dtype {value.dtype}" if hasattr(value, "dtype") else f"a {type(value).__name__}"


def step_of(leaf: Leaf, by_row: bool, indexer: Indexer | None) -> tuple[RowStep | None, Callable[[], Any]]:
    """What a kernel has to do for one leaf, and what then gives the updated leaf.

    Arrays and tables are written in place; a number is returned anew.
    """
    value = leaf.value
    weights = value.weights if isinstance(value, EmbeddingTable) else value
    if isinstance(weights, np.ndarray) or is_table(weights):
        return make_step(weights, leaf.state, leaf.grad, by_row, indexer), lambda: value
    dtype = dtype_of(value)
    cell = np.array(value, dtype)
    step = make_step(cell, leaf.state, np.asarray(leaf.grad, dtype), by_row, None)
    number = isinstance(value, float) and not isinstance(value, np.generic)
    return step, lambda: float(cell) if number else dtype.type(cell)
