"""Sums over the parts of a batch, added up in the order of one fixed binary tree, whoever has which parts.

Part 0 and part 1 are added, 2 and 3, then these two sums, and so on: a worker adds what lies within its own parts, the
owner of the gradient the rest. So the bits of a sum depend on the parts alone, not on how many workers share them out.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.tables.sparse import SparseRows

Values = dict[Any, Any]  # by name: an array, or SparseRows of distinct ids
Block = tuple[int, int, Values]  # the sum of the parts place * 2**level to (place + 1) * 2**level - 1


class TreeSum:
    """Adds blocks as they come, in any order.

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
        """Add a block, and merge it with its sibling where that is there."""
        while (beside := self._blocks.pop((level, place ^ 1), None)) is not None:
            values = _merged(beside, values) if place & 1 else _merged(values, beside)
            level, place = level + 1, place >> 1
        self._blocks[level, place] = values

    def blocks(self) -> Iterator[Block]:
        """The sums that nothing here can be added to."""
        return ((level, place, values) for (level, place), values in sorted(self._blocks.items()))

    def whole(self) -> Values:
        """The sum of all parts; a block without a sibling goes up the tree unchanged."""
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
    """The sum of two gradients of one parameter; of rows, those of one id are added, the first one's first."""
    if isinstance(x, SparseRows) and isinstance(y, SparseRows):
        return SparseRows.combine([x, y]).coalesce()
    dense = [each.to_dense() if isinstance(each, SparseRows) else each for each in (x, y)]
    return dense[0] + dense[1]


def share(count: int, parts: int, part: int) -> slice:
    """One of `parts` consecutive slices of `range(count)`, as equal as can be.

    >>> [share(10, 4, part) for part in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    return slice(count * part // parts, count * (part + 1) // parts)


def without_negative_zeros(rows: np.ndarray) -> np.ndarray:
    """The same numbers; a sum then has the same bits with a zero added as without."""
    return rows + rows.dtype.type(0)
