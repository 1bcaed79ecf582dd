"""Segment functions that keep or pick rows: softmax, running sums, sorting, the position of the greatest.

Arguments are those of `segment_sum`; results that have a row for each row of the data take no `empty=`.
"""

from typing import Any

from autobatch.tables.segment_call import Segments, topk
from autobatch.tables.segments import segment_function

__all__ = [
    "segment_argmax",
    "segment_argmin",
    "segment_cumsum",
    "segment_first",
    "segment_last",
    "segment_log_softmax",
    "segment_softmax",
    "segment_sort",
    "segment_topk",
]


segment_softmax = segment_function(
    "softmax",
    """exp(x) over its sum within the segment, (n, ...); with weights w·exp(x) / Σ w·exp(x).

Arguments and errors as for `segment_sum`, without `empty`.

>>> segment_softmax(np.log([1.0, 3.0, 5.0]), lengths=[2, 1])
array([0.25, 0.75, 1.  ])
""",
    __name__,
)

segment_log_softmax = segment_function(
    "log_softmax",
    """The log of `segment_softmax`, (n, ...), computed without its overflow.

Arguments and errors as for `segment_sum`, without `empty`.

>>> np.exp(segment_log_softmax(np.log([1.0, 3.0, 5.0]), lengths=[2, 1]))
array([0.25, 0.75, 1.  ])
""",
    __name__,
)

segment_cumsum = segment_function(
    "cumsum",
    """The running sum within each segment, in the order of the rows, (n, ...); with weights of w·x.

Arguments and errors as for `segment_sum`, without `empty`.

>>> segment_cumsum(np.array([1, 2, 3, 4]), [0, 1, 0, 1])
array([1, 2, 4, 6])
""",
    __name__,
)

segment_sort = segment_function(
    "sort",
    """Each column of each segment in ascending order, (n, ...), NaN last; with weights of w·x.

The k-th least stands where the k-th row of the segment stood.
Arguments and errors as for `segment_sum`, without `empty`.

>>> segment_sort(np.array([3, 9, 1, 4]), [0, 1, 0, 1])
array([1, 4, 3, 9])
""",
    __name__,
)

segment_argmax = segment_function(
    "argmax",
    """The position among the n rows of the first greatest of each column of a segment; -1 for an empty one.

A NaN counts as the greatest, as in `np.argmax`. `empty=` changes the -1, which names no row.
Arguments, shapes and errors as for `segment_sum`.

>>> segment_argmax(np.array([1.0, 3.0, 3.0]), [0, 2, 2])
array([ 0, -1,  1])
""",
    __name__,
)

segment_argmin = segment_function(
    "argmin",
    """The position among the n rows of the first least of each column of a segment; -1 for an empty one.

A NaN counts as the least, as in `np.argmin`. `empty=` changes the -1, which names no row.
Arguments, shapes and errors as for `segment_sum`.

>>> segment_argmin(np.array([1.0, 3.0, 3.0]), [0, 2, 2])
array([ 0, -1,  1])
""",
    __name__,
)

segment_first = segment_function(
    "first",
    """The first row of each segment, 0 for an empty one; with weights of w·x.

Arguments, shapes and errors as for `segment_sum`.

>>> segment_first(np.array([5, 6, 7]), [2, 2, 0])
array([7, 0, 5])
""",
    __name__,
)

segment_last = segment_function(
    "last",
    """The last row of each segment, 0 for an empty one; with weights of w·x.

Arguments, shapes and errors as for `segment_sum`.

>>> segment_last(np.array([5, 6, 7]), [2, 2, 0])
array([7, 0, 6])
""",
    __name__,
)


def segment_topk(
    data: Any,
    segment_ids: Any = None,
    *,
    lengths: Any = None,
    offsets: Any = None,
    ids: Any = None,
    weights: Any = None,
    num_segments: Any = None,
    k: int,
    empty: Any = None,
    sorted: bool = False,
) -> Any:
    """The k greatest of each column of a segment, descending, and their positions among the n rows.

    Returns:
        (values, positions), both (segments, k, ...). NaN is the greatest; of equal rows the first comes first. Where a
        segment has fewer rows than k the values are 0 (or `empty`) and the positions -1.

    >>> segment_topk(np.array([1.0, 3.0, 2.0, 8.0]), [0, 0, 0, 1], k=2)
    (array([[3., 2.],
           [8., 0.]]), array([[ 1,  2],
           [ 3, -1]]))
    """
    how = Segments(segment_ids, lengths, offsets, ids, weights, num_segments, sorted)
    return topk(data, how, k, empty)
