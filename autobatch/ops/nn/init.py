"""`ab.nn.init`: initialisers of parameters, by counter-based random numbers.

Row k of a matrix, or the row of key k of a table with keys, is computed from the seed and k alone by a hash, so it does
not depend on the order of creation, the batch or the number of threads. So `normal()((n, dim), seed)` equals the rows
of the keys 0 to n - 1 of an `EmbeddingVariable` with this initialiser and seed.
"""

import dataclasses
import math
import operator
from typing import Any, ClassVar

import numpy as np

from autobatch.core.current_region import random_key
from autobatch.core.formatting import DTypeLike
from autobatch.errors import DTypeError, OptionError, ShapeError
from autobatch.kernels.random_rows import normal_rows, uniform_rows

__all__ = [
    "Initializer",
    "constant",
    "from_settings",
    "kaiming_normal",
    "normal",
    "ones",
    "orthogonal",
    "uniform",
    "xavier_uniform",
    "zeros",
]
__dir__ = __all__.copy


@dataclasses.dataclass(frozen=True)
class Initializer:
    """An initialiser: `init(shape)` returns an array of parameters; a table with keys calls `rows`.

    A subclass defines `rows`, or `array` if values depend on the whole shape. `settings` describes it in JSON types.

    >>> zeros()((2, 3))
    array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    >>> bool((normal()((5, 2), seed=1)[3] == normal().rows(1, np.array([3]), 2, np.float32)[0]).all())
    True
    """

    by_row: ClassVar[bool] = True  # a row depends on the seed and its key only

    def __call__(self, shape: Any, seed: int = 0, dtype: DTypeLike = np.float32) -> np.ndarray:
        """An array of this shape, made row by row along its first dimension.

        Raises:
            DTypeError: the dtype is not a float dtype.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if (found := np.dtype(dtype)).kind != "f":
            raise DTypeError(f"parameters of dtype {found}; expected floats: np.float32")
        return self.array(shape, operator.index(seed), found)

    def array(self, shape: tuple[int, ...], seed: int, dtype: np.dtype) -> np.ndarray:
        """The array of this shape; in a vector, each element is a row."""
        keys = np.arange(shape[0] if shape else 1)
        return self.rows(seed, keys, math.prod(shape[1:]), dtype).reshape(shape)

    def rows(self, seed: int, keys: np.ndarray, dim: int, dtype: DTypeLike) -> np.ndarray:
        """(n, dim): the row of each of (n,) keys."""
        raise ShapeError(f"{type(self).__name__} depends on the number of rows; for a table of keys: normal or uniform")

    @property
    def settings(self) -> dict[str, Any]:
        """The kind's name and its arguments, from which `from_settings` restores the initialiser."""
        return {"kind": type(self).__name__} | dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class normal(Initializer):  # noqa: N801 - called like a function
    """Normally distributed numbers.

    Args:
        std: the standard deviation. mean: the mean.

    >>> x = normal(std=2.0)((1000, 10))
    >>> round(float(x.std()), 1), x.dtype
    (2.0, dtype('float32'))
    """

    std: float = 0.01
    mean: float = 0.0

    def rows(self, seed: int, keys: np.ndarray, dim: int, dtype: DTypeLike) -> np.ndarray:
        """(n, dim) of normal numbers."""
        return _drawn(normal_rows, seed, keys, (float(self.mean), float(self.std)), dim, dtype)


@dataclasses.dataclass(frozen=True)
class uniform(Initializer):  # noqa: N801
    """Uniformly distributed numbers in [low, high).

    Args:
        low, high: the bounds.

    >>> x = uniform(-1.0, 1.0)((100, 2))
    >>> bool(((x >= -1) & (x <= 1)).all())
    True
    """

    low: float = -0.05
    high: float = 0.05

    def rows(self, seed: int, keys: np.ndarray, dim: int, dtype: DTypeLike) -> np.ndarray:
        """(n, dim) of uniform numbers."""
        return _drawn(uniform_rows, seed, keys, (float(self.low), float(self.high)), dim, dtype)


@dataclasses.dataclass(frozen=True)
class constant(Initializer):  # noqa: N801
    """The same number everywhere.

    Args:
        value: the number.

    >>> constant(3.0)(2)
    array([3., 3.], dtype=float32)
    """

    value: float = 0.0

    def rows(self, seed: int, keys: np.ndarray, dim: int, dtype: DTypeLike) -> np.ndarray:
        """(n, dim) full of the value."""
        return np.full((len(keys), dim), self.value, dtype)


def zeros() -> constant:
    """Zeros.

    >>> zeros().settings
    {'kind': 'constant', 'value': 0.0}
    """
    return constant(0.0)


def ones() -> constant:
    """Ones.

    >>> ones()(1)
    array([1.], dtype=float32)
    """
    return constant(1.0)


@dataclasses.dataclass(frozen=True)
class xavier_uniform(Initializer):  # noqa: N801
    """Uniform within ± gain · √(6 / (inputs + outputs)) (Glorot and Bengio 2010), for a matrix (inputs, outputs).

    >>> bool(np.abs(xavier_uniform()((2, 4))).max() <= 1)
    True
    """

    gain: float = 1.0
    by_row: ClassVar[bool] = False

    def array(self, shape: tuple[int, ...], seed: int, dtype: np.dtype) -> np.ndarray:
        """A matrix, or an array of more dimensions whose last two are one."""
        inputs, outputs = _fans(shape)
        bound = self.gain * math.sqrt(6 / (inputs + outputs))
        return uniform(-bound, bound).array(shape, seed, dtype)


@dataclasses.dataclass(frozen=True)
class kaiming_normal(Initializer):  # noqa: N801
    """Normal with standard deviation gain / √inputs (He et al. 2015), for a matrix (inputs, outputs) before a relu.

    >>> round(float(kaiming_normal()((200, 300)).std()), 2)
    0.1
    """

    gain: float = math.sqrt(2.0)
    by_row: ClassVar[bool] = False

    def array(self, shape: tuple[int, ...], seed: int, dtype: np.dtype) -> np.ndarray:
        """A matrix, or an array of more dimensions whose last two are one."""
        return normal(self.gain / math.sqrt(_fans(shape)[0])).array(shape, seed, dtype)


@dataclasses.dataclass(frozen=True)
class orthogonal(Initializer):  # noqa: N801
    """A matrix whose rows (or columns, if fewer) are orthogonal and have length `gain` (Saxe et al. 2014).

    >>> q = orthogonal()((3, 5))
    >>> bool(np.allclose(q @ q.T, np.eye(3), atol=1e-6))
    True
    """

    gain: float = 1.0
    by_row: ClassVar[bool] = False

    def array(self, shape: tuple[int, ...], seed: int, dtype: np.dtype) -> np.ndarray:
        """A matrix; with more or fewer than two dimensions, all but the first are flattened into its columns."""
        rows, columns = (_fans(shape)[0], shape[-1]) if len(shape) == 2 else (shape[0], math.prod(shape[1:]))
        drawn = normal(1.0).array((max(rows, columns), min(rows, columns)), seed, np.dtype(np.float64))
        q, r = np.linalg.qr(drawn)
        q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)  # makes q unique and uniformly (Haar) distributed
        return (self.gain * (q if rows >= columns else q.T)).astype(dtype).reshape(shape)


_KINDS: Any = {each.__name__: each for each in (normal, uniform, constant, xavier_uniform, kaiming_normal, orthogonal)}


def from_settings(settings: dict[str, Any]) -> Initializer:
    """The initialiser with these `settings`.

    Raises:
        OptionError: the kind is unknown.

    >>> from_settings(normal(std=0.5).settings)
    normal(std=0.5, mean=0.0)
    """
    given = dict(settings) if isinstance(settings, dict) else {}
    if (cls := _KINDS.get(given.pop("kind", None))) is None:
        raise OptionError(f"initializer settings {settings}; expected a kind among {', '.join(_KINDS)}")
    return cls(**given)


def _drawn(kernel: Any, seed: int, keys: np.ndarray, numbers: tuple[float, float], dim: int, dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    out = np.empty((len(keys), dim), np.float64 if dtype == np.float64 else np.float32)
    kernel(np.atleast_1d(random_key(seed, keys, 0)), *numbers, out)
    return out.astype(dtype, copy=False)


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        raise ShapeError(f"an array of shape {shape}; expected a matrix, (inputs, outputs)")
    return shape[-2], shape[-1]
