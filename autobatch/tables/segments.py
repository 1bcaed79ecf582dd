"""The segment functions, such as `segment_sum`, reduce rows of data by the segment they belong to.

Each function takes the segments as an id for each row (in any order), as lengths, or as offsets. It reduces the rows of
`data`, or with `ids=` the rows data[ids]; with or without weights. In batched code, a call on one example's data runs
once for all examples.
"""

import contextlib
import inspect
from typing import Any, NamedTuple, Protocol, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from autobatch.core.abstract_eval import check_plain, dtype_of, ndim_of, shape_of
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import ShapeError
from autobatch.ops.rules.dispatch import top_box
from autobatch.ops.rules.ragged_checks import as_ids, id_bound, own_ids, segments_of, table_ids, whole_number
from autobatch.tables.bag_and_segment_op import empty_value, segment_p, segment_rows_p
from autobatch.tables.fast_paths import direct_bags, direct_segments
from autobatch.tables.reduction_modes import MODES

__all__ = [
    "segment_all",
    "segment_any",
    "segment_argmax",
    "segment_argmin",
    "segment_count",
    "segment_cumsum",
    "segment_first",
    "segment_last",
    "segment_log_softmax",
    "segment_logmeanexp",
    "segment_logsumexp",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_softmax",
    "segment_sort",
    "segment_sqrtn",
    "segment_std",
    "segment_sum",
    "segment_topk",
    "segment_var",
]


class Segments(NamedTuple):
    """The arguments that all segment functions share, besides the data."""

    segment_ids: Any
    lengths: Any
    offsets: Any
    ids: Any
    weights: Any
    num_segments: Any
    sorted: bool

    def description(self) -> tuple[str, Any]:
        """(form, value) of the given form: "segment_ids", "lengths" or "offsets"; ShapeError if not exactly one."""
        given = [form for form in ("segment_ids", "lengths", "offsets") if getattr(self, form) is not None]
        if len(given) != 1:
            raise ShapeError("the segments are given by exactly one of segment_ids, lengths= and offsets=")
        return given[0], _array(getattr(self, given[0]), given[0])


def _reduce(mode: str, data: object, how: Segments, empty: object = None, **params: object) -> Any:
    """Run the segment function `mode`; operands may be plain, batched or boxed."""
    op = segment_rows_p if MODES[mode].rowwise else segment_p
    form, described = how.description()
    if empty is None:
        out = None
        if how.ids is how.weights is None:
            out = direct_segments(mode, data, form, described, how.num_segments)
        elif form == "offsets" and how.num_segments is None and how.ids is not None:
            out = direct_bags(how.ids, data, described, mode, how.weights, True)
        if out is not None:
            return out
    data, weights = _array(data), how.weights if how.weights is None else _array(how.weights)
    ids = how.ids if how.ids is None else _array(how.ids, "ids")
    if empty is not None:
        if MODES[mode].rowwise:
            raise TypeError(f"segment_{mode} takes no empty=: its result has a row for each row of the data")
        if shape_of(empty) != ():
            raise ShapeError(f"empty has shape {shape_of(empty)}; expected one number")
        params["empty"] = empty
    params |= {"mode": mode} | ({"fused": True} if ids is not None else {})
    params |= {"weighted": True} if weights is not None else {}
    rest = [x for x in (ids, weights) if x is not None]
    if any(rank_of(x) == BATCH_RANK for x in (data, described, how.num_segments, *rest)):
        count = how.num_segments
        if rank_of(count) == BATCH_RANK:
            return op(data, described, *rest, count, form=form, in_order=how.sorted, counted=True, **params)
        return op(data, described, *rest, form=form, in_order=how.sorted, count=_number(count), **params)
    if not ndim_of(data):
        raise ShapeError("data is a single number; expected rows, (n, ...)")
    n = shape_of(data)[0]
    if ids is not None:
        ids = table_ids(data, np.asarray(ids))
        if ids.ndim != 1:
            raise ShapeError(f"ids have shape {ids.shape}; expected one dimension")
        ids = own_ids(ids, id_bound(data))
        n, rest[0] = ids.shape[0], ids
    if weights is not None and shape_of(weights) != (n,):
        raise ShapeError(f"weights have shape {shape_of(weights)}; expected one for each row, ({n},)")

    def run(own: bool) -> Any:
        given = np.asarray(described), _number(how.num_segments)
        segments, count, runs = segments_of(n, form, *given, in_order=how.sorted, own=own)
        return op(data, segments, *rest, count=count, **params, **({"runs": True} if runs else {}))

    if MODES[mode].checks and not how.sorted and not any(map(is_boxed, (data, *rest))):
        with contextlib.suppress(IndexError, ValueError, MemoryError):  # which the checks below find reasons for
            return run(own=False)
    return run(own=True)


def _array(x: object, integers: str = "") -> Any:
    """Convert an operand to an array. A list may hold boxed values; with `integers` (the name in errors), to ids."""
    check_plain(x, integers or "the data or weights")
    if hasattr(x, "dtype"):
        return x
    if isinstance(x, list | tuple) and top_box(x) is not None:
        return np.stack(list(x))
    if integers:
        return as_ids(x, integers)
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ShapeError("nested lists of different lengths; make them one list, and describe it by lengths") from error


def _number(count: object) -> int | None:
    if count is None:
        return None
    if is_boxed(count):
        count = np.asarray(count)
    return whole_number(count, "num_segments")


class SegmentFunction(Protocol):
    """The signature of the segment functions; the docstring of `segment_sum` describes the arguments."""

    __name__: str

    def __call__(
        self,
        data: ArrayLike,
        segment_ids: ArrayLike | None = None,
        *,
        lengths: ArrayLike | None = None,
        offsets: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        num_segments: SupportsIndex | None = None,
        empty: ArrayLike | None = None,
        sorted: bool = False,
    ) -> NDArray[Any]: ...


_DOC = """{what}

{notes}Args:
    data: (n, ...), the rows. With `ids`, (n,), it is a table: row i is `data[ids[i]]`. Where possible the rows are
        reduced without being gathered first; the table's gradient is `SparseRows`.
    segment_ids: (n,), the segment of each row, in any order. For contiguous segments, give instead `lengths`,
        (segments,), or `offsets`, (segments + 1,), from 0 to n. Exactly one of the three is required.
    weights: (n,), a factor for each row, converted to the dtype of `data` if that is float.
    num_segments: the number of segments; None: the greatest segment id + 1.
{empty}    sorted: True if the segment ids never decrease; this is checked.

Returns:
    {returns}

Raises:
    BadIdError: a segment id outside `num_segments`, or that decreases despite `sorted`; an id outside the table;
        offsets that decrease.
    ShapeError: shapes that do not match, or not exactly one of segment_ids, lengths and offsets.
    DTypeError: ids that are not integers.

Source: Caffe2's sparse operations ({source}).

>>> {example}
"""
_SORTED = "`SortedSegmentSum`, `UnsortedSegmentSum`, their `Sparse*` and `*Weighted*`"


def _function(mode: str, what: str, example: str, notes: str = "", source: str = _SORTED) -> SegmentFunction:
    """Make the public function `segment_<mode>`; it has no `empty=` if its result has a row for each row of data.

    Args:
        what: the first line of its docstring; notes: further text; example: the doctest's arguments and result.
    """
    how = MODES[mode]

    @hiding_frames
    def call(
        data: ArrayLike,
        segment_ids: ArrayLike | None = None,
        *,
        lengths: ArrayLike | None = None,
        offsets: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        num_segments: SupportsIndex | None = None,
        empty: ArrayLike | None = None,
        sorted: bool = False,
    ) -> NDArray[Any]:
        given = Segments(segment_ids, lengths, offsets, ids, weights, num_segments, sorted)
        return _reduce(mode, data, given, empty)

    call.__name__ = call.__qualname__ = f"segment_{mode}"
    call.__doc__ = _DOC.format(
        what=what,
        notes=notes and notes + "\n\n",
        empty="" if how.rowwise else f"    empty: the value of a segment without rows; None: {_BARE.get(mode, 0)}.\n",
        returns=_RETURNS.get(mode, "(n, ...)" if how.rowwise else "(segments, ...)"),
        source=source,
        example=f"segment_{mode}({example}",
    )
    if how.rowwise:
        arguments = inspect.signature(call)
        taken = [argument for argument in arguments.parameters.values() if argument.name != "empty"]
        call.__signature__ = arguments.replace(parameters=taken)  # type: ignore[attr-defined]
    return call


_RETURNS = {
    "sum": """(segments, ...), in the dtype of `np.sum`: the dtype of float data, 64 bits for integers and bool.
    float16 is accumulated in float32.""",
    "count": "(segments,)",
}
_BARE = {"prod": "1", "any": "False", "all": "True"} | dict.fromkeys(("argmax", "argmin"), "-1, not a row")
_OF_PRODUCTS = "With weights, rows are multiplied by their weights first."
_FIRST = f"The gradient goes to the first of equal rows. {_OF_PRODUCTS}"

segment_sum = _function(
    "sum",
    "The sum of the rows of each segment.",
    """np.array([[1, 2], [11, 5], [3, 3], [11, 9]]), [0, 0, 1, 1])
array([[12,  7],
       [14, 12]])""",
)
segment_mean = _function(
    "mean",
    "The mean of the rows of each segment; with weights Σwx/Σw.",
    "np.array([1.0, 3.0, 5.0]), lengths=[2, 0, 1])\narray([2., 0., 5.])",
    "The mean of integers is float64, as in NumPy. If the weights of a segment with rows sum to 0, it is inf or NaN.",
)
segment_sqrtn = _function(
    "sqrtn",
    "The sum of the rows of each segment, divided by √n; with weights Σwx/√Σw².",
    "np.array([1.0, 3.0, 4.0, 4.0, 5.0]), lengths=[4, 1])\narray([6., 5.])",
)
segment_max = _function(
    "max",
    "The maximum of each column of a segment; NaN if the column has one.",
    "np.array([1.0, 3.0, -5.0]), [1, 1, 0])\narray([-5.,  3.])",
    _FIRST,
)
segment_min = _function(
    "min",
    "The minimum of each column of a segment; NaN if the column has one.",
    "np.array([1.0, 3.0, -5.0]), [1, 1, 0])\narray([-5.,  1.])",
    _FIRST,
)
segment_prod = _function(
    "prod",
    "The product of the rows of each segment, 1 for an empty one.",
    "np.array([2, 3, 5]), lengths=[2, 0, 1])\narray([6, 1, 5])",
    f"The gradient is correct also if rows are zero. {_OF_PRODUCTS}",
)
segment_logsumexp = _function(
    "logsumexp",
    "log Σ exp(x) over the rows of each segment; with weights log Σ w·exp(x).",
    "np.log([1.0, 3.0, 5.0]), lengths=[2, 1]).round(3)\narray([1.386, 1.609])",
    "It does not overflow: the maximum of each segment is subtracted first.",
    "`SortedSegmentRangeLogSumExp`",
)
segment_logmeanexp = _function(
    "logmeanexp",
    "The log of the mean of exp(x) over the rows of each segment; with weights log(Σ w·exp(x) / Σw).",
    "np.log([1.0, 3.0, 5.0]), lengths=[2, 1]).round(3)\narray([0.693, 1.609])",
    source="`SortedSegmentRangeLogMeanExp`",
)
segment_var = _function(
    "var",
    "The variance of the rows of each segment about their mean; with weights Σw(x - mean)²/Σw.",
    "np.array([1.0, 3.0, 5.0]), lengths=[2, 1])\narray([1., 0.])",
    "Like `np.var`, it divides by the number of rows.",
)
segment_std = _function(
    "std",
    "The standard deviation: the square root of `segment_var`.",
    "np.array([1.0, 3.0, 5.0]), lengths=[2, 1])\narray([1., 0.])",
    "Where it is 0, its gradient is NaN, as for `np.std`.",
)
segment_any = _function(
    "any",
    "True if any row of the segment is nonzero; False for an empty segment.",
    "np.array([0, 3, 0]), [0, 0, 1])\narray([ True, False])",
)
segment_all = _function(
    "all",
    "True if all rows of the segment are nonzero; True for an empty segment.",
    "np.array([2, 3, 0]), [0, 0, 1])\narray([ True, False])",
)
segment_count = _function(
    "count",
    "The number of rows of each segment; with weights the sum of the weights.",
    "np.array([2, 3, 0]), [0, 0, 2])\narray([2, 0, 1])",
)
segment_softmax = _function(
    "softmax",
    "exp(x) / Σ exp(x) within each segment; with weights w·exp(x) / Σ w·exp(x).",
    "np.log([1.0, 3.0, 5.0]), lengths=[2, 1])\narray([0.25, 0.75, 1.  ])",
)
segment_log_softmax = _function(
    "log_softmax",
    "The log of `segment_softmax`, computed without overflow or underflow.",
    "np.zeros(3), lengths=[2, 1]).round(3)\narray([-0.693, -0.693,  0.   ])",
)
segment_cumsum = _function(
    "cumsum",
    "The cumulative sum within each segment, in the order of the rows; with weights of w·x.",
    "np.array([1, 2, 3, 4]), [0, 1, 0, 1])\narray([1, 2, 4, 6])",
)
segment_sort = _function(
    "sort",
    "Each column of each segment in ascending order, with NaN last; with weights of w·x.",
    "np.array([3, 9, 1, 4]), [0, 1, 0, 1])\narray([1, 4, 3, 9])",
    "The k-th smallest value is at the position of the segment's k-th row.",
)
segment_argmax = _function(
    "argmax",
    "The position among the n rows of the first maximum of each column of a segment; -1 for an empty one.",
    "np.array([1.0, 3.0, 3.0]), [0, 2, 2])\narray([ 0, -1,  1])",
    "NaN counts as the maximum, as in `np.argmax`.",
)
segment_argmin = _function(
    "argmin",
    "The position among the n rows of the first minimum of each column of a segment; -1 for an empty one.",
    "np.array([1.0, 3.0, 3.0]), [0, 2, 2])\narray([ 0, -1,  1])",
    "NaN counts as the minimum, as in `np.argmin`.",
)
segment_first = _function(
    "first",
    "The first row of each segment, 0 for an empty one; with weights of w·x.",
    "np.array([5, 6, 7]), [2, 2, 0])\narray([7, 0, 5])",
)
segment_last = _function(
    "last",
    "The last row of each segment, 0 for an empty one; with weights of w·x.",
    "np.array([5, 6, 7]), [2, 2, 0])\narray([7, 0, 6])",
)


@hiding_frames
def segment_topk(
    data: ArrayLike,
    segment_ids: ArrayLike | None = None,
    *,
    lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    ids: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    num_segments: SupportsIndex | None = None,
    k: SupportsIndex,
    empty: ArrayLike | None = None,
    sorted: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The k largest values of each column of a segment, in descending order, and their positions among the n rows.

    The other arguments, shapes and errors are those of `segment_sum`.

    Args:
        k: the number of values, at least 0.

    Returns:
        (values, positions), both (segments, k, ...). NaN counts as the largest; equal values keep the order of their
        rows. If a segment has fewer than k rows, the missing values are 0 (or `empty`) and their positions -1.

    >>> segment_topk(np.array([1.0, 3.0, 2.0, 8.0]), [0, 0, 0, 1], k=2)
    (array([[3., 2.],
           [8., 0.]]), array([[ 1,  2],
           [ 3, -1]]))
    """
    how, most = Segments(segment_ids, lengths, offsets, ids, weights, num_segments, sorted), whole_number(k, "k")
    positions = _reduce("argtopk", data, how, k=most)
    values = _reduce("topk", data, how, k=most)
    if empty is not None:
        values = np.where(positions < 0, empty_value(empty, dtype_of(values)), values)
    return values, positions
