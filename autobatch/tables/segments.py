"""Segment reductions: rows of data reduced by the segment they belong to.

One function for each reduction over all representations of the segments: an id for each row (in any order), lengths, or
offsets; of the rows as they are or, with `ids=`, of the rows of a table that they name; weighted or not. Each is an op:
called on one example's data in code that runs batched, it runs once for all examples.
"""

import inspect
from typing import Any, Protocol

from autobatch.tables.segment_call import Segments, reduce
from autobatch.tables.segment_values import ROWWISE

__all__ = [
    "segment_all",
    "segment_any",
    "segment_count",
    "segment_logmeanexp",
    "segment_logsumexp",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sqrtn",
    "segment_std",
    "segment_sum",
    "segment_var",
]


class SegmentFunction(Protocol):
    """The arguments of every segment function; those of `segment_sum` say what they are."""

    __name__: str

    def __call__(
        self,
        data: Any,
        segment_ids: Any = None,
        *,
        lengths: Any = None,
        offsets: Any = None,
        ids: Any = None,
        weights: Any = None,
        num_segments: Any = None,
        empty: Any = None,
        sorted: bool = False,
    ) -> Any: ...


def segment_function(mode: str, doc: str, module: str = __name__) -> SegmentFunction:
    """The public function `segment_<mode>`, without `empty=` where the result has a row for each row of the data."""

    def call(
        data: Any,
        segment_ids: Any = None,
        *,
        lengths: Any = None,
        offsets: Any = None,
        ids: Any = None,
        weights: Any = None,
        num_segments: Any = None,
        empty: Any = None,
        sorted: bool = False,
    ) -> Any:
        how = Segments(segment_ids, lengths, offsets, ids, weights, num_segments, sorted)
        return reduce(mode, data, how, empty)

    call.__name__ = call.__qualname__ = f"segment_{mode}"
    call.__module__, call.__doc__ = module, doc
    if mode in ROWWISE:
        arguments = inspect.signature(call)
        taken = [argument for argument in arguments.parameters.values() if argument.name != "empty"]
        call.__signature__ = arguments.replace(parameters=taken)  # type: ignore[attr-defined]
    return call


segment_sum = segment_function(
    "sum",
    """The sum of the rows of each segment.

Args:
    data: (n, ...) rows; with `ids`, a table of which row i is `data[ids[i]]`, never gathered where that can be
        avoided, and whose gradient is `SparseRows`.
    segment_ids: (n,) the segment of each row, in any order. Or `lengths`, (segments,), or `offsets`,
        (segments + 1,) from 0 to n, of segments that follow each other. Exactly one of the three.
    weights: (n,) a factor for each row, taken in the dtype of float rows.
    num_segments: how many segments there are; None: up to the greatest id.
    empty: the value of a segment without rows; None is 0.
    sorted: the segment ids are said not to fall, and that is checked.

Returns:
    (segments, ...), of the dtype that `np.sum` gives: that of float data, int64 for smaller integers. float16 is
    added up in float32.

Raises:
    BadIdError: a segment id outside `num_segments` or that falls, an id outside the table, offsets that fall.
    ShapeError: shapes that do not fit together, or not exactly one description of the segments.
    DTypeError: ids that are not integers.

Source: Caffe2's sparse operations (`SortedSegmentSum`, `UnsortedSegmentSum`, their `Sparse*` and `*Weighted*`).

>>> segment_sum(np.array([[1, 2], [11, 5], [3, 3], [11, 9]]), [0, 0, 1, 1])
array([[12,  7],
       [14, 12]])
""",
)

segment_mean = segment_function(
    "mean",
    """The mean of the rows of each segment; with weights Σwx/Σw.

Arguments, shapes and errors as for `segment_sum`.
The mean of integers is float64, as NumPy's. Where the weights of a segment with rows sum to 0, IEEE decides.

>>> segment_mean(np.array([1.0, 3.0, 5.0]), lengths=[2, 0, 1])
array([2., 0., 5.])
""",
)

segment_sqrtn = segment_function(
    "sqrtn",
    """The sum of the rows of each segment over √n; with weights Σwx/√Σw².

Arguments, shapes and errors as for `segment_sum`.

>>> segment_sqrtn(np.array([1.0, 3.0, 4.0, 4.0, 5.0]), lengths=[4, 1])
array([6., 5.])
""",
)

segment_max = segment_function(
    "max",
    """The greatest of each column of a segment; NaN if there is one.

Arguments, shapes and errors as for `segment_sum`.
Its gradient goes to the first of equal rows. With weights, of the rows times their weights.

>>> segment_max(np.array([1.0, 3.0, -5.0]), [1, 1, 0])
array([-5.,  3.])
""",
)

segment_min = segment_function(
    "min",
    """The least of each column of a segment; NaN if there is one.

Arguments, shapes and errors as for `segment_sum`.
Its gradient goes to the first of equal rows. With weights, of the rows times their weights.

>>> segment_min(np.array([1.0, 3.0, -5.0]), [1, 1, 0])
array([-5.,  1.])
""",
)

segment_prod = segment_function(
    "prod",
    """The product of the rows of each segment, 1 for an empty one.

Arguments, shapes and errors as for `segment_sum`.
Its gradient is right where rows are zero. With weights, of the rows times their weights.

>>> segment_prod(np.array([2, 3, 5]), lengths=[2, 0, 1])
array([6, 1, 5])
""",
)

segment_logsumexp = segment_function(
    "logsumexp",
    """log Σ exp(x) over the rows of each segment; with weights log Σ w·exp(x).

Arguments, shapes and errors as for `segment_sum`.
It does not overflow: the greatest of each segment is taken out first.
Source: Caffe2's `SortedSegmentRangeLogSumExp`.

>>> segment_logsumexp(np.log([1.0, 3.0, 5.0]), lengths=[2, 1]).round(3)
array([1.386, 1.609])
""",
)

segment_logmeanexp = segment_function(
    "logmeanexp",
    """The log of the mean of exp(x) over the rows of each segment; with weights log(Σ w·exp(x) / Σw).

Arguments, shapes and errors as for `segment_sum`. Source: Caffe2's `SortedSegmentRangeLogMeanExp`.

>>> segment_logmeanexp(np.log([1.0, 3.0, 5.0]), lengths=[2, 1]).round(3)
array([0.693, 1.609])
""",
)

segment_var = segment_function(
    "var",
    """The variance of the rows of each segment about their mean; with weights Σw(x - mean)²/Σw.

Arguments, shapes and errors as for `segment_sum`. As `np.var`, it divides by the number of rows.

>>> segment_var(np.array([1.0, 3.0, 5.0]), lengths=[2, 1])
array([1., 0.])
""",
)

segment_std = segment_function(
    "std",
    """The standard deviation, the root of `segment_var`.

Arguments, shapes and errors as for `segment_sum`. Where it is 0 its gradient is NaN, as that of `np.std`.

>>> segment_std(np.array([1.0, 3.0, 5.0]), lengths=[2, 1])
array([1., 0.])
""",
)

segment_any = segment_function(
    "any",
    """Whether any row of each segment is not zero; of none it is False.

Arguments, shapes and errors as for `segment_sum`.

>>> segment_any(np.array([0, 3, 0]), [0, 0, 1])
array([ True, False])
""",
)

segment_all = segment_function(
    "all",
    """Whether every row of each segment is not zero; of none it is True.

Arguments, shapes and errors as for `segment_sum`.

>>> segment_all(np.array([2, 3, 0]), [0, 0, 1])
array([ True, False])
""",
)

segment_count = segment_function(
    "count",
    """(segments,): the number of rows of each segment; with weights their sum.

Arguments, shapes and errors as for `segment_sum`.

>>> segment_count(np.array([2, 3, 0]), [0, 0, 2])
array([2, 0, 1])
""",
)
