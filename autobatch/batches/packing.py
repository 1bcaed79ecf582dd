"""Converts a Python sequence of examples to arrays of one rank and dtype, with a fast path for lists of numbers."""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import check_plain
from autobatch.core.op import is_boxed
from autobatch.errors import DTypeError, ShapeError

KINDS = "biufcmM"  # dtype kinds that a batch of arrays may have
SCALAR_DTYPES: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
_FLOAT64 = np.dtype(np.float64)
_DTYPE, _NDIM = operator.attrgetter("dtype"), operator.attrgetter("ndim")


def as_arrays(examples: Sequence[Any], path: str = "") -> list[Any]:
    """Each example as an array, all of one rank and dtype.

    An empty example without a dtype of its own (an empty list, `np.array([])`) takes the dtype of the others.

    Args:
        examples: arrays, nested lists, numbers, or tensors of other libraries.
        path: where in the data they are, for error messages.

    Raises:
        ShapeError: no examples, an example that is not an array, or ranks that differ.
        DTypeError: a dtype that is not numeric, or dtypes that differ. The messages name the first wrong example.
    """
    if not len(examples):
        raise ShapeError(
            "an empty sequence of examples has no rank and no dtype; "
            "give MaskedBatch(data of shape (0, ...)) for a batch without examples"
        )
    if set(map(type, examples)) == {np.ndarray}:
        arrays = list(examples)
    else:
        arrays = [
            x if type(x) is np.ndarray or is_boxed(x) else plain_array(x, i, path) for i, x in enumerate(examples)
        ]
    if len(set(map(_DTYPE, arrays))) > 1:
        _fix_empty_dtypes(examples, arrays)
    first = arrays[0]
    if len(set(map(_DTYPE, arrays))) > 1 or len(set(map(_NDIM, arrays))) > 1 or first.dtype.kind not in KINDS:
        _raise_mismatch(arrays, path)
    return arrays


def _fix_empty_dtypes(examples: Sequence[Any], arrays: list[Any]) -> None:
    """Give empty arrays whose dtype is only NumPy's default the dtype of the others, in place in `arrays`."""
    bare = [
        i
        for i, x in enumerate(arrays)
        if x.size == 0 and (isinstance(examples[i], list | tuple) or (x.dtype == _FLOAT64 and x.shape == (0,)))
    ]
    without = set(bare)
    typed = next((x for i, x in enumerate(arrays) if i not in without), None)
    for i in bare if typed is not None else ():
        arrays[i] = arrays[i].astype(typed.dtype)  # type: ignore[union-attr]


_OBJECTS = (
    "a batch of arrays holds numbers; ab.map takes any objects, ab.collate(examples) takes records, and with nulls= "
    "also examples that are or contain None"
)
_WORDS = "a batch of arrays holds numbers: ab.Vocabulary or ab.hash_keys makes them of words; ab.map takes strings"
_INSTEAD = {"U": _WORDS, "S": _WORDS, "T": _WORDS}


def check_numbers(dtype: np.dtype, what: str, given: Any = None) -> None:
    """Raise DTypeError if this is not a dtype of numbers or dates; `what` names the array in the message."""
    if dtype.kind not in KINDS:
        one = given.item() if isinstance(given, np.ndarray) and given.size == 1 else given  # a record, a date
        shown = dtype if one is None or dtype.kind != "O" else f"a {type(one).__name__}"
        raise DTypeError(f"{what} is {shown}; {_INSTEAD.get(dtype.kind, _OBJECTS)}")


def _raise_mismatch(arrays: Sequence[Any], path: str) -> None:
    """Raise for the first array that is not numeric or differs from array 0 in rank or dtype."""
    first = arrays[0]
    for i, x in enumerate(arrays):
        check_numbers(x.dtype, label(i, path), x)
        if x.ndim != first.ndim:
            raise ShapeError(
                f"{label(i, path)} has {x.ndim} dimensions (shape {x.shape}), example 0 has {first.ndim} "
                f"(shape {first.shape}); all examples of a batch need the same number of dimensions"
            )
        if x.dtype != first.dtype:
            raise DTypeError(
                f"{label(i, path)} is {x.dtype}, example 0 is {first.dtype}; convert them first, "
                f"for instance [np.asarray(x, {str(np.result_type(x.dtype, first.dtype))!r}) for x in examples]"
            )


def label(index: int, path: str) -> str:
    """The name of an example, or of a part of it, in messages.

    >>> label(3, ""), label(3, "['ids']")
    ('example 3', "example 3 at ['ids']")
    """
    return f"example {index} at {path}" if path else f"example {index}"


def plain_array(x: object, index: int, path: str = "") -> np.ndarray:
    """One example as a plain array; tensors of other libraries are converted by NumPy's protocols.

    Raises:
        ShapeError: nested lists of different lengths. DTypeError: no NumPy equivalent, or a gradient would be lost.
    """
    check_plain(x, label(index, path))
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ShapeError(
            f"{label(index, path)} is not one array ({error}); a batch holds one array per example: ab.map takes any "
            "objects, and PackedBatch.from_examples(examples, depth=2) packs lists of arrays"
        ) from None
    except RuntimeError as error:  # torch raises this for a tensor that requires a gradient
        raise DTypeError(f"{label(index, path)} does not become an array: {error}") from None


def flat_numbers(examples: Sequence[Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """The concatenated numbers of lists of numbers, and the length of each list; None if they are not such lists.

    Several times faster than one array per list. All numbers must be of one type, which determines the dtype.

    >>> flat_numbers([[1, 2], [], [3]])
    (array([1, 2, 3]), array([2, 0, 1]))
    """
    if not set(map(type, examples)) <= {list, tuple}:
        return None
    kinds = set(map(type, itertools.chain.from_iterable(examples)))
    if len(kinds) != 1:
        return None
    cls = kinds.pop()
    dtype = SCALAR_DTYPES.get(cls, cls if issubclass(cls, np.generic) else None)
    if dtype is None or np.dtype(dtype).kind not in "biufc":
        return None
    lengths = np.fromiter(map(len, examples), np.int64, len(examples))
    try:
        return np.fromiter(itertools.chain.from_iterable(examples), dtype, int(lengths.sum())), lengths
    except OverflowError:  # an int beyond int64
        return None
