"""Sums over the parts of a batch, added in the order of one fixed binary tree, whichever worker has which parts.

Parts 0 and 1 are added, 2 and 3, then these two sums, and so on. A worker makes the sums that lie within its own parts,
the owner of the gradient the others. So a sum's bits depend on the parts alone, not on the number of workers.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.tables.sparse import SparseRows

Values = dict[Any, Any]  # by name: an array, or SparseRows of distinct ids
Block = tuple[int, int, Values]  # (level, place, sum of the parts place * 2**level to (place + 1) * 2**level - 1)


class TreeSum:
    """Sums blocks in the order of the tree, whatever the order in which they arrive.

    >>> total = TreeSum()
    >>> for part in (2, 0, 1):
    ...     total.add(0, part, {"x": np.array([10.0**part])})
    >>> [(level, place) for level, place, _ in total.blocks()], total.whole()["x"]
    ([(0, 2), (1, 0)], array([111.]))
    """

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], Values] = {}

    def add(self, level: int, place: int, values: Values) -> None:
        """Add a block, and merge it with its sibling if that is here already."""
        while (beside := self._blocks.pop((level, place ^ 1), None)) is not None:
            values = _merged(beside, values) if place & 1 else _merged(values, beside)
            level, place = level + 1, place >> 1
        self._blocks[level, place] = values

    def blocks(self) -> Iterator[Block]:
        """The blocks that could not be merged, since their siblings are not here."""
        return ((level, place, values) for (level, place), values in sorted(self._blocks.items()))

    def whole(self) -> Values:
        """The sum of all parts; a block without a sibling moves up the tree unchanged."""
        while len(self._blocks) > 1:
            level, place = min(self._blocks)
            self.add(level + 1, place >> 1, self._blocks.pop((level, place)))
        return next(iter(self._blocks.values()), {})


def _merged(left: Values, right: Values) -> Values:
    out = dict(left)
    for name, value in right.items():
        out[name] = add(out[name], value) if name in out else value
    return out


def add(x: Any, y: Any) -> Any:
    """The sum of two gradients of one parameter; SparseRows are coalesced, adding the rows of `y` to those of `x`."""
    if isinstance(x, SparseRows) and isinstance(y, SparseRows):
        return SparseRows.combine([x, y]).coalesce()
    dense = [each.to_dense() if isinstance(each, SparseRows) else each for each in (x, y)]
    return dense[0] + dense[1]


def share(count: int, parts: int, part: int) -> slice:
    """One of `parts` consecutive slices of `range(count)`, of sizes as equal as possible.

    >>> [share(10, 4, part) for part in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    return slice(count * part // parts, count * (part + 1) // parts)


def without_negative_zeros(rows: np.ndarray) -> np.ndarray:
    """The same numbers with 0.0 for -0.0, so that adding zero to them does not change their bits."""
    return rows + rows.dtype.type(0)
