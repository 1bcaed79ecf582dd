"""How `maplookup` goes over its tables. Every strategy gives the same numbers, to the bit.

>>> import autobatch as ab
>>> tables = [np.array([[1, 1], [2, 2]]), np.array([[10], [20]])]
>>> ab.tables.maplookup(tables, [[0, 1], [1, 1]], ab.tables.strategies.Preallocation(prepend_rows=1))
array([[ 0,  1,  1, 20],
       [ 0,  2,  2, 20]])
"""

import dataclasses

from autobatch.errors import ShapeError

__all__ = ["Default", "Preallocation", "SimpleParallel", "Strategy"]
__dir__ = __all__.copy


@dataclasses.dataclass(frozen=True, slots=True)
class Strategy:
    """The type of `maplookup`'s `strategy`.

    >>> isinstance(Default(), Strategy)
    True
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Default(Strategy):
    """One table after the other, in one thread: a list of results.

    >>> import autobatch as ab
    >>> ab.tables.maplookup([np.array([[1], [2]])], [[1, 1]], Default())
    [array([[2],
           [2]])]
    """


@dataclasses.dataclass(frozen=True, slots=True)
class SimpleParallel(Strategy):
    """Tables divided among all threads, one thread to a table: a list of results.

    >>> import autobatch as ab
    >>> ab.tables.maplookup([np.array([[1], [2]])], [[1, 1]], SimpleParallel())
    [array([[2],
           [2]])]
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Preallocation(Strategy):
    """All results side by side in one matrix, allocated first; threads work within a table.

    Args:
        prepend_rows: features of each result row, before those of the tables, that are left free (zero in a new
            matrix, as they were in a given one). With examples as rows these are columns of the matrix; the name is
            that of the strategy's source, where features are rows.

    Raises:
        ShapeError: not a number of columns.

    >>> import autobatch as ab
    >>> ab.tables.maplookup([np.array([[1], [2]])], [[1, 1]], Preallocation(prepend_rows=1))
    array([[0, 2],
           [0, 2]])
    """

    prepend_rows: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.prepend_rows, bool) or not isinstance(self.prepend_rows, int) or self.prepend_rows < 0:
            raise ShapeError(f"prepend_rows={self.prepend_rows!r}; expected an integer, 0 or greater")
