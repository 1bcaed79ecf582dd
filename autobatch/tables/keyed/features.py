"""Features to keys: `Vocabulary` numbers strings, `hash_keys` hashes them, `multi_hash` combines rows of two tables.

A vocabulary is a dict of the strings, so different strings always get different ids. `hash_keys` stores nothing: among
n different strings, two get the same 64-bit key with a probability of about n² / 2⁶⁵: 3 in 10⁸ for a million strings,
1 in 37 for a thousand million.
"""

import itertools
import operator
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike, public_names
from autobatch.core.op import is_boxed
from autobatch.errors import DTypeError, OptionError, ShapeError, StructureError, UnsupportedError
from autobatch.facts.other_libraries import Spelled
from autobatch.kernels import hash_functions as kernels
from autobatch.ops.rules.ragged_checks import as_ids, whole_option
from autobatch.tables.lookup import index_table

_WAYS = ("add", "multiply", "concatenate")


@hiding_frames
def hash_keys(strings: object, seed: int = 0) -> np.ndarray:
    """Hash strings to 64-bit keys for an `EmbeddingVariable`; the keys are the same on every machine and in every run.

    Among n different strings, two get the same key with a probability of about n² / 2⁶⁵: 3 in 10⁸ for a million. A
    string is hashed as UTF-8, so it has the same key as its bytes.

    Args:
        strings: a string or bytes, or a list, tuple or array of them, of any shape.
        seed: another seed gives other keys.

    Returns:
        int64, of the shape of the strings.

    Raises:
        DTypeError: something that is neither a string nor bytes.

    Source: xxHash's XXH64 (Collet, 2014).

    >>> hash_keys(["", "abc"], seed=0)
    array([-1205034819632174695,  4952883123889572249])
    >>> hash_keys("abc") == hash_keys(b"abc")
    np.True_
    """
    values, shape = _strings(strings)
    data, offsets = _bytes_of(values)
    out = np.empty(len(values), np.uint64)
    kernels.hash_strings(data, offsets, np.uint64(operator.index(seed) & (1 << 64) - 1), out)
    return out.view(np.int64).reshape(shape)[()]


def _strings(given: Any) -> tuple[list[Any], tuple[int, ...]]:
    """(list of the strings, their shape)."""
    if isinstance(given, str | bytes):
        return [given], ()
    if isinstance(given, list | tuple):
        if not any(isinstance(each, list | tuple | np.ndarray) for each in given):
            return list(given), (len(given),)
        given = np.array(given, object)
    if isinstance(given, np.ndarray):
        return given.ravel().tolist(), given.shape
    if hasattr(given, "to_pylist"):  # of Arrow
        return given.to_pylist(), (len(given),)
    if hasattr(given, "__array__"):  # of pandas or polars
        return _strings(np.asarray(given))
    raise DTypeError(f"got {type(given).__name__}; expected a string or bytes, or a list or array of them")


def _bytes_of(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """(bytes of all strings concatenated, offsets (n + 1,))."""
    try:
        parts = [value.encode() if isinstance(value, str) else memoryview(value) for value in values]
    except (TypeError, AttributeError):
        wrong = next(value for value in values if not isinstance(value, str | bytes))
        raise DTypeError(f"{wrong!r} is of type {type(wrong).__name__}; expected a string or bytes") from None
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return np.frombuffer(b"".join(parts), np.uint8), offsets


def _text_of(values: Sequence[Any]) -> Sequence[str | bytes]:
    """The strings, as keys of a dict: bytes that are valid UTF-8 as the string that they encode."""
    try:
        "".join(values).encode()  # all are strings, and have an encoding
        return values
    except TypeError:
        data, offsets = _bytes_of(values)
        raw = data.tobytes()
        return [_decoded(raw[start:end]) for start, end in itertools.pairwise(offsets.tolist())]


def _decoded(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


class Vocabulary(metaclass=Spelled):
    """A map from strings (or bytes) to ids 0, 1, 2 …, in the order of first occurrence; a look-up adds new strings.

    Args:
        strings: initial strings.
        grow: True: a new string gets the next id. False: it gets -1.

    A string and its UTF-8 bytes are the same entry, which `strings` returns as a string if it is valid UTF-8.

    Raises:
        DTypeError: something that is neither a string nor bytes.

    >>> words = Vocabulary()
    >>> words[["red", "blue", "red"]]
    array([0, 1, 0])
    >>> words["blue"], len(words), "green" in words
    (np.int64(1), 2, False)
    >>> words.strings([1, 0])
    ['blue', 'red']
    """

    __slots__ = ("_names", "_numbers", "grow")
    __dir__ = public_names
    _ab_own_names = "arrays from_arrays"

    def __init__(self, strings: Any = (), *, grow: bool = True) -> None:
        self._numbers: dict[str | bytes, int] = {}
        self._names: list[str | bytes] = []  # the keys of `_numbers`, as far as they have been asked for
        self.grow = True
        if np.size(np.asarray(strings, object)):
            self[strings]
        self.grow = bool(grow)

    def __len__(self) -> int:
        return len(self._numbers)

    @hiding_frames
    def __getitem__(self, strings: object) -> Any:
        return self._find(strings, self.grow)

    def _find(self, strings: object, grow: bool) -> Any:
        values, shape = _strings(strings)
        keys, known = _text_of(values), self._numbers
        if grow:
            new = [str(key) if isinstance(key, str) else key for key in dict.fromkeys(keys) if key not in known]
            # One step, so an interrupt adds all or none.
            known.update(zip(new, itertools.count(len(known)), strict=False))
        return np.fromiter(map(known.get, keys, itertools.repeat(-1)), np.int64, len(keys)).reshape(shape)[()]

    def __contains__(self, string: object) -> bool:
        return bool(self.find(string) >= 0)

    def find(self, strings: object) -> Any:
        """The ids of strings, -1 for unknown ones; the vocabulary does not change.

        Args:
            strings: as for `vocabulary[strings]`.

        Returns:
            int64, of the shape of the strings.
        """
        return self._find(strings, False)

    @hiding_frames
    def strings(self, ids: ArrayLike | None = None) -> list[Any]:
        """The strings with these ids.

        Args:
            ids: (n,) integers; None: all ids, in order.

        Returns:
            A list of strings; entries that are not valid UTF-8 are bytes.

        Raises:
            IndexError: an id is unknown.
        """
        known = self._listed()
        wanted = range(len(known)) if ids is None else as_ids(ids).tolist()
        if wrong := [number for number in wanted if not 0 <= number < len(known)]:
            raise IndexError(f"id {wrong[0]} in a vocabulary of {len(known)}")
        return [known[number] for number in wanted]

    def _listed(self) -> list[str | bytes]:
        if len(self._names) != len(self._numbers):
            self._names = list(self._numbers)
        return self._names

    def __iter__(self) -> Iterator[Any]:
        return iter(self._listed())

    def arrays(self) -> dict[str, np.ndarray]:
        """The vocabulary as arrays, for saving: `Vocabulary.from_arrays` reads them.

        Returns:
            "bytes" (uint8), the strings concatenated, and "offsets" (int64), the start of each and the end.
        """
        data, offsets = _bytes_of(self._listed())
        return {"bytes": data.copy(), "offsets": offsets}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], grow: bool = True) -> "Vocabulary":
        """Restore a vocabulary from its `arrays`; every string has its former id. `grow`: as for the class."""
        if not (isinstance(arrays, dict) and arrays.keys() >= {"offsets", "bytes"}):
            raise StructureError(f"from_arrays got {arrays!r:.60}; expected the result of Vocabulary.arrays()")
        bounds, data = arrays["offsets"].tolist(), arrays["bytes"].tobytes()
        return cls([data[start:end] for start, end in itertools.pairwise(bounds)], grow=grow)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the strings and of the dict that holds them."""
        return sys.getsizeof(self._numbers) + sum(map(sys.getsizeof, self._numbers))

    def __eq__(self, other: object) -> bool:
        return self._numbers == other._numbers if isinstance(other, Vocabulary) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Vocabulary.from_arrays, (self.arrays(), self.grow)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} strings)"


@hiding_frames
def multi_hash(keys: Any, quotients: object, remainders: object, buckets: int, combine: str = "add") -> np.ndarray:
    """A row for each key, combined from two small tables: row keys // buckets of one and row keys % buckets of another.

    Two different keys never share both rows, so tables of m and `buckets` rows represent m * buckets keys.

    Args:
        keys: integers of any rank, not negative.
        quotients, remainders: tables or arrays; the first is indexed by keys // buckets, the second by keys % buckets.
        buckets: the number of remainders; best is about the square root of the number of keys.
        combine: "add", "multiply" or "concatenate" the two rows.

    Returns:
        (*keys.shape, dim); with "concatenate", dim is the sum of both dims.

    Raises:
        OptionError: `combine` or `buckets` is not valid. ShapeError: dims differ, unless concatenated.
        UnsupportedError: a key is negative.

    Source: Shi et al., "Compositional embeddings using complementary partitions" (KDD 2020); DeepRec's
    `MultiHashVariable`.

    >>> q, r = np.array([[0.0], [10.0]]), np.array([[1.0], [2.0], [3.0]])
    >>> multi_hash([0, 4, 5], q, r, 3).ravel()
    array([ 1., 12., 13.])
    """
    if combine not in _WAYS:
        raise OptionError(f"combine={combine!r}; expected one of {', '.join(_WAYS)}")
    buckets = whole_option(buckets, "buckets")
    for table in (quotients, remainders):
        if len(shape_of(table)) != 2:
            raise ShapeError(f"a table of shape {shape_of(table)}; expected (num_rows, dim)")
    if combine != "concatenate" and shape_of(quotients)[1:] != shape_of(remainders)[1:]:
        raise ShapeError(
            f"rows of {shape_of(quotients)[1:]} and {shape_of(remainders)[1:]}; expected equal dims to {combine} them"
        )
    if not is_boxed(keys):
        keys = keys if getattr(keys, "dtype", None) == np.uint64 else as_ids(keys, "keys")
        if keys.size and int(keys.min()) < 0:
            raise UnsupportedError(f"key {int(keys.min())}; expected keys that are not negative")
    elif dtype_of(keys).kind in "iu" and dtype_of(keys).itemsize < 8:  # its dtype may be too small for `buckets`
        keys = keys.astype(np.int64)
    left = _rows(quotients, keys // buckets)
    right = _rows(remainders, keys % buckets)
    if combine == "concatenate":
        return np.concatenate([left, right], axis=-1)
    return left + right if combine == "add" else left * right


def _rows(table: Any, ids: ArrayLike) -> Any:
    return index_table(table, ids, lambda index: table[index])
