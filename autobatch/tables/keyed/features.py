"""Features to keys: `Vocabulary` numbers strings, `hash_keys` hashes them, `multi_hash` combines rows of two tables.

A vocabulary is an open-addressing table of hashes plus the concatenated strings, so different strings always get
different ids. `hash_keys` stores nothing: among n different strings, two get the same 64-bit key with a probability of
about n² / 2⁶⁵: 3 in 10⁸ for a million strings, 1 in 37 for a thousand million.
"""

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.errors import DTypeError, OptionError, ShapeError, StructureError, UnsupportedError
from autobatch.kernels import hash_functions as kernels
from autobatch.ops.rules.ragged_checks import as_ids, whole_option
from autobatch.tables.lookup import index_table

_WAYS = ("add", "multiply", "concatenate")


def hash_keys(strings: Any, seed: int = 0) -> np.ndarray:
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
    if isinstance(given, np.ndarray):
        return given.ravel().tolist(), given.shape
    if isinstance(given, list | tuple):
        if not any(isinstance(each, list | tuple | np.ndarray) for each in given):
            return list(given), (len(given),)
        array = np.array(given, object)
        return array.ravel().tolist(), array.shape
    if hasattr(given, "to_pylist"):  # of Arrow
        return given.to_pylist(), (len(given),)
    if hasattr(given, "__array__"):  # of pandas or polars
        return _strings(np.asarray(given))
    raise DTypeError(f"a {type(given).__name__} for strings; expected a string or bytes, or a list or array of them")


def _bytes_of(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """(bytes of all strings concatenated, offsets (n + 1,))."""
    try:
        parts = [value.encode() if isinstance(value, str) else memoryview(value) for value in values]
    except (TypeError, AttributeError):
        wrong = next(value for value in values if not isinstance(value, str | bytes))
        raise DTypeError(f"{wrong!r} is a {type(wrong).__name__}; expected a string or bytes") from None
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return np.frombuffer(b"".join(parts), np.uint8), offsets


class Vocabulary:
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

    __slots__ = ("_memory", "grow")

    def __init__(self, strings: Any = (), *, grow: bool = True) -> None:
        index, hashes, offsets = np.full(128, -1, np.int64), np.empty(64, np.uint64), np.zeros(65, np.int64)
        self._memory = index, hashes, offsets, np.empty(1 << 10, np.uint8), np.zeros(1, np.int64)  # replaced as one
        self.grow = True
        if np.size(np.asarray(strings, object)):
            self[strings]
        self.grow = bool(grow)

    def __len__(self) -> int:
        return int(self._memory[-1][0])

    def __getitem__(self, strings: Any) -> Any:
        return self._numbers(strings, self.grow)

    def _numbers(self, strings: Any, grow: bool) -> Any:
        values, shape = _strings(strings)
        data, offsets = _bytes_of(values)
        hashes, out = np.empty(len(values), np.uint64), np.empty(len(values), np.int64)
        kernels.hash_strings(data, offsets, np.uint64(0), hashes)
        if grow:
            self._make_room(len(values), len(data))
        kernels.number_strings(data, offsets, hashes, self._memory, grow, out)
        return out.reshape(shape)[()]

    def _make_room(self, strings: int, size: int) -> None:
        """Allocate memory for further strings of `size` bytes in total, before any of it replaces the old memory."""
        index, hashes, offsets, data, total = self._memory
        count = len(self) + strings
        needed = int(offsets[len(self)]) + size
        if count > len(hashes):
            hashes = np.resize(hashes, max(count, 2 * len(hashes)))
            offsets = np.resize(offsets, len(hashes) + 1)
        if needed > len(data):
            data = np.resize(data, max(needed, 2 * len(data)))
        if 2 * count > len(index):
            index = np.full(1 << (4 * count).bit_length(), -1, np.int64)
            kernels.insert_hashes(hashes, len(self), index)
        self._memory = index, hashes, offsets, data, total

    def __contains__(self, string: Any) -> bool:
        return bool(self.find(string) >= 0)

    def find(self, strings: Any) -> Any:
        """The ids of strings, -1 for unknown ones; the vocabulary does not change.

        Args:
            strings: as for `vocabulary[strings]`.

        Returns:
            int64, of the shape of the strings.
        """
        return self._numbers(strings, False)

    def strings(self, ids: Any = None) -> list[Any]:
        """The strings with these ids.

        Args:
            ids: (n,) integers; None: all ids, in order.

        Returns:
            A list of strings; entries that are not valid UTF-8 are bytes.

        Raises:
            IndexError: an id is unknown.
        """
        wanted = range(len(self)) if ids is None else as_ids(ids).tolist()
        return [self._string(number) for number in wanted]

    def _string(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(f"id {number} in a vocabulary of {len(self)}")
        _, _, offsets, data, _ = self._memory
        raw = data[offsets[number] : offsets[number + 1]].tobytes()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw

    def __iter__(self) -> Iterator[Any]:
        return (self._string(number) for number in range(len(self)))

    def arrays(self, since: int = 0) -> dict[str, np.ndarray]:
        """The vocabulary as arrays, for saving: `Vocabulary.from_arrays` reads them.

        Args:
            since: leave out the first `since` strings, which were saved before.

        Returns:
            "bytes" (uint8), the strings concatenated, and "offsets" (int64), the start of each and the end.
        """
        _, _, offsets, data, _ = self._memory
        if not 0 <= operator.index(since) <= len(self):
            raise OptionError(f"since={since} of a vocabulary of {len(self)}; expected from 0 to that")
        offsets = offsets[since : len(self) + 1]
        return {"bytes": data[offsets[0] : offsets[-1]].copy(), "offsets": offsets - offsets[0]}

    @classmethod
    def from_arrays(cls, *parts: dict[str, np.ndarray]) -> "Vocabulary":
        """Restore a vocabulary from results of `arrays`.

        Args:
            parts: one result, or the results of successive increments, in order.

        Returns:
            The vocabulary, in which every string has its former id.
        """
        out = cls()
        for part in parts:
            if not (isinstance(part, dict) and part.keys() >= {"offsets", "bytes"}):
                raise StructureError(f"from_arrays of {part!r:.60}; expected results of Vocabulary.arrays()")
            bounds, data = part["offsets"].tolist(), part["bytes"].tobytes()
            out[[data[start:end] for start, end in itertools.pairwise(bounds)]]
        return out

    @property
    def nbytes(self) -> int:
        """The number of bytes of strings, offsets, hashes and the index."""
        return sum(part.nbytes for part in self._memory)

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return all(np.array_equal(x, y) for x, y in zip(self.arrays().values(), other.arrays().values(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return restored_vocabulary, (self.arrays(), self.grow)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} strings)"


def restored_vocabulary(arrays: dict[str, np.ndarray], grow: bool) -> Vocabulary:
    """Restore a vocabulary from its `arrays()` and `grow`."""
    out = Vocabulary.from_arrays(arrays)
    out.grow = grow
    return out


def multi_hash(keys: Any, quotients: Any, remainders: Any, buckets: int, combine: str = "add") -> Any:
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
            raise UnsupportedError(f"key {int(keys.min())}; quotients and remainders are of keys that are not negative")
    elif dtype_of(keys).kind in "iu" and dtype_of(keys).itemsize < 8:  # its dtype may be too small for `buckets`
        keys = keys.astype(np.int64)
    left = _rows(quotients, keys // buckets)
    right = _rows(remainders, keys % buckets)
    if combine == "concatenate":
        return np.concatenate([left, right], axis=-1)
    return left + right if combine == "add" else left * right


def _rows(table: Any, ids: Any) -> Any:
    return index_table(table, ids, lambda index: table[index])
