"""`Table`: the base class of tables; a subclass gives shape, dtype and row addresses, and inherits everything else."""

import abc
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.core.abstract_eval import check_plain
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.diagnostics import hide_frames
from autobatch.core.formatting import SHOWN_ROWS, html_table, public_names
from autobatch.core.op import is_boxed
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from autobatch.facts.call_effects import SHAPED_METHODS
from autobatch.facts.other_libraries import Spelled
from autobatch.ops.rules.ragged_checks import as_ids, check_ids, is_integer_index
from autobatch.tables.lookup import index_table
from autobatch.tables.row_access import LocatedRows, format_of, gather, locate, write_rows
from autobatch.tables.sparse import SparseRows


def _no_attribute(self: object) -> Any:
    raise AttributeError("a table for look-ups only has no gradient")


_NO_ATTRIBUTE = property(_no_attribute)


class Context(enum.Enum):
    """Why the addresses of rows are requested, so that a table can react to it.

    For example, a table in a file may mark the rows of an UPDATE as changed.

    >>> [context.value for context in Context]
    ['no context', 'look-up', 'update']
    """

    NO_CONTEXT = "no context"
    FORWARD = "look-up"
    UPDATE = "update"


class Table(np.lib.mixins.NDArrayOperatorsMixin, metaclass=Spelled):
    """A matrix whose rows may be anywhere in memory, in any order; each row must be contiguous.

    A subclass must define `shape`, `dtype` and `row_addresses`; look-ups, bags, gradients and the operations of a 2-D
    array then work, and any of them may be overridden. With `trainable = False` it is for look-ups, without a gradient.

    >>> class Reversed(Table):
    ...     def __init__(self, weights):
    ...         self.weights, self.shape, self.dtype = weights, weights.shape, weights.dtype
    ...     def row_addresses(self, ids, context=Context.NO_CONTEXT):
    ...         return self.weights.ctypes.data + self.weights.strides[0] * (len(self) - 1 - ids)
    >>> table = Reversed(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    >>> table[[0, 2]]
    array([[5., 6.],
           [1., 2.]])
    >>> (2 * table).sum()
    np.float64(42.0)
    """

    __slots__ = ()

    shape: tuple[int, int]
    dtype: np.dtype
    trainable = True
    __dir__ = public_names

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.trainable:
            cls._ab_gradient = _NO_ATTRIBUTE  # type: ignore[assignment]

    @abc.abstractmethod
    def row_addresses(self, ids: np.ndarray, context: Context = Context.NO_CONTEXT) -> np.ndarray:
        """The memory address of each named row.

        Args:
            ids: (n,) int64 or int32, already checked to be in range.
            context: `FORWARD` for a look-up, `UPDATE` before rows are written, `NO_CONTEXT` if neither is known.

        Returns:
            (n,) int64 addresses. Each points to `dim` elements of the table's dtype; the table keeps them alive.
        """

    @property
    def _ab_whole(self) -> np.ndarray | None:
        """The single array that holds all rows in order, or None if there is no such array."""
        return None

    def _ab_locate(self, ids: np.ndarray, context: Context | None) -> LocatedRows:
        """Where the rows of checked ids are in memory, in the form that kernels take."""
        context = context or Context.FORWARD
        addresses = np.asarray(self.row_addresses(ids, context))
        if addresses.shape != ids.shape or addresses.dtype.kind not in "iu":
            raise ShapeError(
                f"{type(self).__name__}.row_addresses gave {addresses.dtype} of shape {addresses.shape}; "
                f"expected one integer for each id, shape {ids.shape}"
            )
        addresses = np.ascontiguousarray(addresses, np.int64)
        dim, size = self.shape[1], self.dtype.itemsize
        total = self.shape[0] * dim * size
        return LocatedRows((0, 1), addresses, format_of(self.dtype), dim, False, dim * size, total, self)

    def read(self, ids: Any) -> np.ndarray:
        """The rows (n, dim) of ids (n,); raises BadIdError for an id out of range."""
        ids = as_ids(ids)
        check_ids(ids, self.shape[0])
        return gather(self, ids)

    def write(self, ids: Any, rows: Any) -> None:
        """Set row ids[i] to rows[i], for each i in order; if an id is repeated, the last row stays.

        Raises:
            UnsupportedError: the table is read-only or for look-ups only.
        """
        ids = as_ids(ids)
        check_ids(ids, self.shape[0])
        self._refuse_updates()
        rows = np.ascontiguousarray(np.broadcast_to(np.asarray(rows, self.dtype), (len(ids), self.shape[1])))
        write_rows(locate(self, ids, Context.UPDATE), rows)

    def destination(self, ids: Any) -> np.ndarray:
        """An uninitialised array for the result of `lookup(table, ids)`, to be passed as `out=`."""
        if np.ndim(ids) not in (1, 2):
            raise ShapeError(f"ids of shape {np.shape(ids)}; expected (n,) or (n, k), as lookup takes them")
        return np.empty((len(ids), self.shape[1]), self.dtype)

    def _ab_overlaps(self, out: np.ndarray) -> bool:
        """True if a row may share memory with the array `out`."""
        return True

    def _refuse_updates(self) -> None:
        if not self.trainable:
            raise UnsupportedError(f"a {type(self).__name__} is for look-ups only; train a table of floats")
        if not self.writeable:
            raise UnsupportedError(f"this {type(self).__name__} is read-only; make it of arrays that can be written to")

    @property
    def writeable(self) -> bool:
        """True if rows can be written in place; a subclass whose memory may be read-only overrides this."""
        return True

    @property
    def ndim(self) -> int:
        """2: a table is a matrix."""
        return 2

    @property
    def size(self) -> int:
        """The number of elements, rows · dim."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """The number of bytes that all rows take as one array of the table's dtype."""
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> np.ndarray:  # noqa: N802 - NumPy's name
        """The transposed matrix, as a plain array."""
        return np.asarray(self).T

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"a {type(self).__name__} as one array needs a copy")
        return gather(self, np.arange(self.shape[0])).astype(dtype or self.dtype, copy=False)

    def __getitem__(self, index: object) -> NDArray[Any]:
        try:
            rows = self._small_lookup(index)
            return index_table(self, index, self._basic_index) if rows is None else rows
        except Exception as error:
            hide_frames(error)
            raise

    def _small_lookup(self, index: object) -> Any:
        """A shortcut for one id or a few checked ids, where a subclass has one; None: use the general look-up."""
        return None

    def _basic_index(self, index: Any) -> Any:
        """NumPy indexing by something other than integer ids; where possible, only the named rows are read."""
        first, rest = _split_index(index)
        if first is None:
            return np.asarray(self)[index]
        rows = np.arange(self.shape[0])[first]
        block = gather(self, np.asarray(rows).reshape(-1)).reshape(*np.shape(rows), self.shape[1])
        return block[(*(slice(None),) * np.ndim(rows), *rest)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._refuse_updates()
        first, rest = _split_index([index] if isinstance(index, int) else index)
        if first is None:
            whole = np.asarray(self)
            whole[index] = value
            self.write(np.arange(len(self)), whole)
            return
        if is_integer_index(first):
            check_ids(np.asarray(first, np.int64), self.shape[0])
        rows = np.asarray(np.arange(self.shape[0])[first])
        block = gather(self, rows.reshape(-1)).reshape(*rows.shape, self.shape[1])
        block[(*(slice(None),) * rows.ndim, *rest)] = value
        self.write(rows.reshape(-1), block.reshape(-1, self.shape[1]))

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    __hash__ = object.__hash__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, out: Any = None, **kwargs: object) -> Any:
        if any(is_boxed(x) for x in inputs):
            return NotImplemented
        values = [np.asarray(x) if isinstance(x, Table) else x for x in inputs]
        target = out[0] if out else None
        if not isinstance(target, Table):
            return getattr(ufunc, method)(*values, **({"out": out} if out else {}), **kwargs)
        whole = np.array(target)
        getattr(ufunc, method)(*values, out=(whole,), **kwargs)
        target[:] = whole
        return target

    _ab_lookup = staticmethod(index_table)

    def _ab_gradient(self, ct: object, taken: set[int]) -> SparseRows:
        """Turn the cotangent into `SparseRows` whose rows own their memory; `taken` has the ids of arrays given out."""
        if ct is None:
            return SparseRows.trusted(np.empty(0, np.int64), np.empty((0, self.shape[1]), self.dtype), len(self))
        if isinstance(ct, SparseRows):
            ids, rows = ct.ids, ct.rows
        else:
            ids, rows = np.arange(len(self)), ct.to_dense() if isinstance(ct, SparseCotangent) else ct
        if type(rows) is np.ndarray:
            owner = rows if rows.base is None else rows.base
            if not rows.flags.writeable or id(owner) in taken:
                owner = rows = rows.copy()
            taken.add(id(owner))
        return SparseRows.trusted(ids, rows, len(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

    def _repr_html_(self) -> str:
        """HTML for notebooks, showing the first rows."""
        count, dim = self.shape
        # A table with more keys shows none in a notebook, since finding the first ones means sorting all.
        ids = np.arange(min(count, SHOWN_ROWS)) if count <= 100_000 or not hasattr(self, "keys") else np.arange(0)
        named = "key" if hasattr(self, "keys") else "id"
        if len(ids) and hasattr(self, "keys"):
            ids = self.keys()[: len(ids)]
        rows = zip(map(str, ids.tolist()), self[ids], strict=True)
        caption = f"{type(self).__name__}: {count} rows of {dim}, {self.dtype}"
        return html_table(caption, (named, "row"), rows, count)


def _split_index(index: object) -> tuple[Any, tuple[Any, ...]]:
    """Split an index into (its part for rows, a tuple of the rest); (None, ()) if it is not of this simple form."""
    first, *rest = index if isinstance(index, tuple) and index else (index,)
    if first is None or first is Ellipsis or isinstance(first, bool) or np.ndim(first) > 1:
        return None, ()
    if rest and (len(rest) > 1 or not isinstance(rest[0], int | slice) or isinstance(rest[0], bool)):
        return None, ()
    return first, tuple(rest)


def _method(name: str) -> Callable[..., Any]:
    def method(self: Table, *args: object, **kwargs: object) -> Any:
        return getattr(np.asarray(self), name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"`ndarray.{name}` of the rows as one array."
    return method


_FORWARDED = sorted(SHAPED_METHODS | {"argsort", "nonzero", "tolist"})
for _name in _FORWARDED:
    if _name not in vars(Table):
        setattr(Table, _name, _method(_name))


def checked_matrix(weights: object, what: str) -> np.ndarray:
    """Return the weights as a plain two-dimensional array of numbers; `what` is the class named in error messages.

    Raises:
        DTypeError: weights are recorded or on a tape, or Python objects. ShapeError: they are not two-dimensional.
    """
    if is_boxed(weights):
        raise DTypeError(f"{what}(...) of a recorded value: make the table outside of the function and pass it in")
    check_plain(weights, "the weights of a table")
    weights = np.asarray(weights)
    if weights.ndim != 2:
        new = "; new weights of two sizes are ab.nn.Embedding(num_rows, dim)" if not weights.ndim else ""
        raise ShapeError(f"{what} of weights of shape {weights.shape}; expected an array (num_rows, dim){new}")
    if weights.dtype.hasobject:
        raise DTypeError(f"{what} of Python objects (dtype {weights.dtype}); expected numbers")
    return weights
