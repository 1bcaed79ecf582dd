"""Sparse cotangents, and the accumulation of the contributions to one cotangent.

A vjp may return an array or a `SparseCotangent`, which knows how to add itself into a dense buffer. Dense contributions
are added into one buffer as they come; sparse ones are collected and combined once, so reading T rows of one buffer
costs T rows in the backward pass, not T buffers.
"""

import cmath
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.op import is_boxed


def unbroadcast(ct: Any, like: Any) -> Any:
    """Sum a cotangent over the axes along which its operand was broadcast, and give it the operand's dtype.

    Args:
        ct: the cotangent of a result that the operand was broadcast to.
        like: the operand, an array or anything with a shape and a dtype.

    Returns:
        A cotangent of the operand's shape and dtype.

    >>> unbroadcast(np.ones((3, 2)), like=np.zeros((1, 2), np.float32))
    array([[3., 3.]], dtype=float32)
    """
    cls = type(ct)
    if cls is type(like) and (
        (ct.dtype == like.dtype and ct.shape == like.shape) if cls is np.ndarray else issubclass(cls, np.floating)
    ):
        return ct  # nearly always
    shape, ct_shape = shape_of(like), shape_of(ct)
    if ct_shape != shape:
        extra = len(ct_shape) - len(shape)
        axes = (*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1 and ct_shape[extra + i] != 1))
        ct = np.reshape(np.sum(ct, axis=axes), shape)
    dtype = dtype_of(like)
    if dtype_of(ct) == dtype:
        return ct
    if dtype_of(ct).kind == "c" and dtype.kind != "c":
        ct = np.real(ct)
    return ct.astype(dtype)


class SparseCotangent:
    """Base class: the cotangent of an array of which only some elements were read.

    Attributes:
        shape: the shape of the whole array.
        dtype: its dtype.

    A subclass implements how to add itself to a dense array:

    >>> class First(SparseCotangent):
    ...     shape, dtype = (3,), np.dtype(float)
    ...     def add_to(self, dense):
    ...         dense[0] += 1
    >>> First().to_dense()
    array([1., 0., 0.])
    """

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def boxed(self) -> bool:
        """True if the values belong to an outer tape or trace, so that in-place addition is not possible."""
        return False

    def add_to(self, dense: np.ndarray) -> None:
        """Add into a plain dense array of `shape`, in place; only if not `boxed`."""
        raise TypeError(f"{type(self).__name__} does not say how it adds up")

    def to_dense(self) -> Any:
        """The whole array, zeros where nothing was read."""
        out = np.zeros(self.shape, self.dtype)
        self.add_to(out)
        return out

    @staticmethod
    @hiding_frames
    def combine(parts: Sequence[Any]) -> Any:
        """The sum of several cotangents of this class; by default dense."""
        parts = parts[0].gathered(parts)
        return _add_all(parts[0].to_dense(), parts[1:], owned=True)

    @staticmethod
    def gathered(parts: Sequence[Any]) -> Sequence[Any]:
        """Merge cotangents of this class into fewer ones if their sum is faster; by default unchanged."""
        return parts


class Product(SparseCotangent):
    """The cotangent `left.T @ right` of a matrix, not computed yet; given by the vjp of a product with few rows.

    A matrix used by many small products (a recurrent weight) then gets one tall product over all their rows, instead
    of one small product and one matrix-sized sum for each.

    Args:
        left: (n, k), plain.
        right: (n, m), plain, of the same dtype.

    >>> Product(np.ones((2, 1)), np.ones((2, 3))).to_dense()
    array([[2., 2., 2.]])
    """

    __slots__ = ("dtype", "left", "right", "shape")

    def __init__(self, left: np.ndarray, right: np.ndarray) -> None:
        self.left = left
        self.right = right
        self.shape = (left.shape[1], right.shape[1])
        self.dtype = left.dtype

    def to_dense(self) -> np.ndarray:
        return np.matmul(self.left.T, self.right)

    def add_to(self, dense: np.ndarray) -> None:
        dense += self.to_dense()

    @staticmethod
    def gathered(parts: Sequence[Any]) -> Sequence[Any]:
        factors = [part.left for part in parts], [part.right for part in parts]
        return [Product(*map(np.concatenate, factors))] if len(parts) > 1 else parts


class Contributions:
    """Accumulates the contributions to one cotangent.

    Adds in place only into a buffer made here (`owned`), since a contribution may be an array in use elsewhere.
    """

    __slots__ = ("dense", "owned", "sparse")

    def __init__(self, *parts: Any) -> None:
        self.dense: Any = None
        self.owned = False
        self.sparse: list[Any] = []
        for part in parts:
            self.add(part)

    def add(self, part: Any) -> None:
        if isinstance(part, SparseCotangent):
            self.sparse.append(part)
        elif self.dense is None:
            self.dense = part
        elif self.owned and not hasattr(part, "_ab_rank"):
            np.add(self.dense, part, out=self.dense)
        else:
            self.dense = self.dense + part
            self.owned = type(self.dense) is np.ndarray

    def total(self) -> Any:
        """The sum: dense if any part is dense or their classes differ, else whatever the class's `combine` gives."""
        if not (sparse := self.sparse):
            return self.dense
        if self.dense is None:
            kinds: set[Any] = set(map(type, sparse))
            if len(kinds) == 1:
                return kinds.pop().combine(sparse[::-1])  # in the order of the reads
            sparse = _gathered(sparse)
            return _add_all(sparse[0].to_dense(), sparse[1:], owned=True)
        return _add_all(self.dense, _gathered(sparse), owned=self.owned)


def are_finite(cts: Sequence[Any]) -> bool:
    """False if something in plain cotangents is NaN or infinite."""
    waiting = [*cts]
    for ct in waiting:  # the list grows during the loop
        if type(ct) is np.ndarray and ct.dtype.kind in "fc":
            flat = ct.reshape(-1)  # a product takes one pass, and warns of nothing; it may have overflowed, though
            if not (cmath.isfinite(flat.dot(flat)) or np.isfinite(ct).all()):
                return False
        elif isinstance(ct, SparseCotangent):
            waiting += map(ct.__getattribute__, type(ct).__slots__)
        elif isinstance(ct, np.ndarray | np.floating) and ct.dtype.kind in "fc" and not np.isfinite(ct).all():
            return False
    return True


def total(parts: Sequence[Any]) -> Any:
    """The sum of one or more cotangent contributions.

    >>> total([np.ones((1, 2)), Product(np.ones((3, 1)), np.ones((3, 2)))])
    array([[4., 4.]])
    """
    return parts[0] if len(parts) == 1 else Contributions(*parts).total()


def _gathered(sparse: Sequence[Any]) -> list[Any]:
    """Group cotangents by class, and merge each class by its `gathered`."""
    kinds: dict[type, list[Any]] = {}
    for part in sparse:
        kinds.setdefault(type(part), []).append(part)
    return [part for cls, parts in kinds.items() for part in cls.gathered(parts)]  # type: ignore[attr-defined]


def _add_all(dense: object, sparse: Sequence[Any], *, owned: bool) -> Any:
    for part in sparse:
        if part.boxed or is_boxed(dense):
            dense, owned = dense + part.to_dense(), False
            continue
        if not owned or type(dense) is not np.ndarray:
            dense, owned = np.array(dense), True
        part.add_to(dense)
    return dense
