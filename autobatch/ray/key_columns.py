"""Predicts which keys a batch will look up: the user's function says, or the look-ups of earlier batches showed it."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.core.pytree import flatten, paths
from autobatch.errors import OptionError
from autobatch.ray.shard import isin_keys
from autobatch.tables.sparse import first_seen


class KeyColumns:
    """Predicts the keys of batches, so that their rows are pulled before they are looked up.

    Predictions change no result: rows of other keys are pulled when they are looked up.

    Args:
        given: `keys(batch)` returns a dict of integers, arrays or batches of them, by variable name. None: once all
            integers of a column were looked up in a variable, that column is taken for the variable's keys.
    """

    __slots__ = ("_columns", "_given")

    def __init__(self, given: Callable[[Any], dict[str, Any]] | None = None) -> None:
        self._given = given
        self._columns: dict[str, dict[str, bool]] = {}

    def predicted(self, batch: object, dtypes: dict[str, np.dtype]) -> dict[str, np.ndarray]:
        """(n,) distinct predicted keys, by variable name; variables without a prediction are left out."""
        found: dict[str, list[np.ndarray]] = {name: [] for name in dtypes}
        if self._given is not None:
            for name, keys in self._given(batch).items():
                if name not in found:
                    raise OptionError(f"keys(batch) names {name!r}; the variables are {list(found)}")
                found[name] += [numbers for _, numbers in integer_leaves(keys)]
        elif self._columns:
            for path, numbers in integer_leaves(batch):
                for name, columns in self._columns.items():
                    if name in found and columns.get(path):
                        found[name].append(numbers)
        return {
            name: first_seen(np.concatenate([each.astype(dtypes[name], copy=False) for each in parts]))[0]
            for name, parts in found.items()
            if parts and sum(map(len, parts))
        }

    def learn(self, name: str, batch: object, asked: list[np.ndarray]) -> None:
        """Learn which columns hold a variable's keys, from the keys that a batch, predicted in part, looked up."""
        if self._given is not None:
            return
        columns = self._columns.setdefault(name, {})
        for path, numbers in integer_leaves(batch):
            if len(numbers) and columns.get(path, True):
                columns[path] = bool(isin_keys(numbers.astype(asked[0].dtype), asked).all())


def integer_leaves(tree: object) -> Iterator[tuple[str, np.ndarray]]:
    """(path, (n,) integers) of each array or batch of integers in a tree, or in a list of trees, joined by path."""
    found: dict[str, list[np.ndarray]] = {}
    for part in tree if isinstance(tree, list) else [tree]:
        leaves, structure = flatten(part)
        for path, leaf in zip(paths(structure), leaves, strict=True):
            numbers = _numbers(leaf)
            if numbers is not None:
                found.setdefault(path, []).append(numbers)
    for path, arrays in found.items():
        yield path, np.concatenate(arrays)


def _numbers(leaf: object) -> np.ndarray | None:
    """The integers of a leaf, flat and without padding; None if it holds anything else."""
    while isinstance(leaf, PackedBatch):
        leaf = leaf.values
    if isinstance(leaf, MaskedBatch):
        leaf = leaf.data[leaf.mask] if leaf.is_ragged else leaf.data
    if isinstance(leaf, Batch | bool):
        return None
    if isinstance(leaf, int):
        leaf = np.array(leaf) if -(2**63) <= leaf < 2**63 else None
    if not isinstance(leaf, np.ndarray | np.integer) or leaf.dtype.kind not in "iu":
        return None
    return np.asarray(leaf).reshape(-1)


_STEP = re.compile(r"\['?(.*?)'?\]|\.(\w+)")


def path_name(path: str, between: str, whole: str) -> str:
    """The name of a place in a tree, from its path in `pytree.paths`.

    Args:
        between: the separator between keys. whole: the name of the tree itself.

    >>> path_name("['tables'][0].users", "/", "params"), path_name("", ".", "result")
    ('tables/0/users', 'result')
    """
    return between.join(key or attribute for key, attribute in _STEP.findall(path)) or whole
