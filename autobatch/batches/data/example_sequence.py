"""`ab.Examples`: the examples of a batch, or of a tree of batches, as a sequence."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.batches.any_batch import FORMS, batch_size_of, example_number, lane, register_form
from autobatch.batches.data.columns import take_examples
from autobatch.batches.stacking import lanes_of
from autobatch.core.diagnostics import hiding_frames
from autobatch.errors import ShapeError, UnsupportedError


@register_form("examples")
class Examples:
    """The examples of a batch as a sequence: index it for one example, or for some of them as a smaller batch.

    Args:
        data: a batch, or a tree of batches of which every other leaf is shared by all examples; or data that
            `ab.collate` takes.

    Attributes:
        batch: the batch, or the tree.
        shape: (number of examples,), which lets scikit-learn index it: it serves as `X` there.

    `x[3]` is one example, a view; `x[ids]`, `x[2:5]` and `x[mask]` are `Examples` of a copy of those rows, so they do
    not keep the rest alive.

    Raises:
        ShapeError: batches that differ in size. UnsupportedError: data that `ab.collate` does not take.

    >>> x = Examples([[1, 2, 3], [4], [5, 6]])
    >>> len(x), x[1], x[[2, 0]].batch.lengths
    (3, array([4]), array([2, 3]))
    """

    __slots__ = ("_count", "batch")

    batch: Any

    @hiding_frames
    def __init__(self, data: Any) -> None:
        if isinstance(data, Examples):
            data = data.batch
        count = batch_size_of(data)
        if count is None:
            data = FORMS["collate"](data)
            count = batch_size_of(data)
        self.batch, self._count = data, count or 0

    @property
    def shape(self) -> tuple[int]:
        """(number of examples,)."""
        return (self._count,)

    def __len__(self) -> int:
        return self._count

    @hiding_frames
    def __getitem__(self, index: Any) -> Any:
        if type(index) is tuple and len(index) == 2 and index[1] is Ellipsis:  # as scikit-learn writes it
            index = index[0]
        found = read_index(index, self._count)
        return lane(self.batch, found) if isinstance(found, int) else Examples(take_examples(self.batch, found))

    def __iter__(self) -> Iterator[Any]:
        return iter(lanes_of(self.batch, self._count))

    def __reduce__(self) -> Any:
        return Examples, (self.batch,)

    def __repr__(self) -> str:
        return f"Examples({self.batch!r})"


def read_index(index: object, count: int) -> Any:
    """An index of examples: an int, or (n,) int64, all of them from 0 and in range.

    Raises:
        IndexError: an example that there is not. ShapeError: a mask of another length. UnsupportedError: no index.
    """
    if isinstance(index, slice):
        start, stop, step = index.indices(count)
        return np.arange(start, stop, step)
    if hasattr(index, "__index__") and not isinstance(index, bool):
        with contextlib.suppress(TypeError):  # an array of several
            return example_number(index, count)
    found = np.asarray(index)
    if found.dtype == np.bool_ and found.ndim == 1:
        if len(found) != count:
            raise ShapeError(f"a mask of {len(found)} for {count} examples")
        return np.flatnonzero(found)
    if found.ndim == 1 and not found.size:
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise UnsupportedError(
            f"index {index!r}; expected the number of an example, a slice, a list of numbers or a mask"
        )
    if int(found.max()) >= count or int(found.min()) < -count:
        example_number(found[np.argmax((found >= count) | (found < -count))], count)  # raises
    found = found.astype(np.int64, copy=False)
    return np.where(found < 0, found + count, found) if (found < 0).any() else found
