"""`ab.collate`: converts data of any kind to batches; all data from outside comes in through it."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import FORMS, Batch, register_form
from autobatch.batches.data.arrow import read_arrow
from autobatch.batches.data.awkward import read_awkward
from autobatch.batches.data.columns import Column, Columns, DataPlace, size_of
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.packing import SCALAR_DTYPES, as_arrays, flat_numbers
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import stack_numbers
from autobatch.core.abstract_eval import check_plain
from autobatch.core.diagnostics import hiding_frames, warn_user
from autobatch.core.op import is_boxed
from autobatch.core.pytree import attributes, children_of, is_node
from autobatch.errors import DTypeError, ShapeError, StructureError, UnsupportedError
from autobatch.ops.rules.padding import end_to_end
from autobatch.ops.rules.ragged_checks import offsets_from, read_csr


@register_form("collate")
@hiding_frames
def collate(data: Any, *, nulls: object = "raise") -> Any:
    """Make a batch from data of almost any kind, or a tree of batches from records.

    Args:
        data: a list, or any other sequence or iterable, of examples: numbers, arrays, lists, strings, or records
            (dicts, tuples, dataclasses). An array, whose first axis counts the examples. A dict, tuple or dataclass of
            columns. Or, without a copy where possible: anything with Arrow's interface (pyarrow, polars, DuckDB,
            Parquet), awkward arrays, pandas, a SciPy sparse matrix (a pair: the ids and the entries of each row),
            torch tensors (jagged ones too), JAX arrays and others with DLPack, Hugging Face datasets; arrays of h5py,
            zarr and xarray, read at once, and the variables of a dataset or group. Batches are returned as they are.
        nulls: what to do with missing values: "raise"; "drop" the element of a list, or the example with all of its
            columns; or a number that replaces each missing number (a missing list becomes empty).

    Returns:
        Numbers, and arrays of one shape, become a `MaskedBatch`; lists, and arrays that differ in their first dimension
        only, a `PackedBatch`, nested for lists of them; arrays that vary in more dimensions a `MaskedBatch`; records a
        tree of batches of the records' structure. Strings, numbers of several types and other objects become a batch
        of objects. A Python number stays a Python number.

    Raises:
        ShapeError, DTypeError, StructureError: no examples, examples that do not fit together, or a missing value;
            the message names the example and the place in it.
        UnsupportedError: data of an unknown kind.

    An empty example without a dtype of its own (`[]`, `np.array([])`) takes that of the others. A list of lists whose
    rows are equally long is a matrix. No other library is imported, except pyarrow for data with Arrow's interface; it
    must be installed for these.

    >>> collate([{"ids": [3, 1], "y": 0.5}, {"ids": [7], "y": 1.0}])["ids"].examples()
    [array([3, 1]), array([7])]
    >>> collate([[1, None], [2]], nulls="drop").examples()
    [array([1]), array([2])]
    """
    columns = _STRICT if type(nulls) is str and nulls == "raise" else Columns(nulls)
    out = columns.whole(_column(data, columns, _WHOLE))
    is_listed = type(data) is list and type(out) is ObjectBatch
    if is_listed and any(isinstance(x[0] if type(x) is list and x else x, str) for x in data):
        warn_user(
            f"ab.collate got strings in {len(data)} examples, and no operation on strings runs batched: turn words "
            "into numbers by ab.Vocabulary or ab.hash_keys, or write ab.map(f, strings)"
        )
    return out


def _column(data: Any, columns: Columns, place: DataPlace) -> Column:
    if isinstance(data, Batch):
        return Column(data)
    if isinstance(data, FORMS["examples"]):
        return Column(data.batch)
    if type(data) is list:
        return _sequence(data, columns, place)
    if isinstance(data, np.ndarray):
        return _array(data, columns, place)
    check_plain(data, f"the data{place}")
    read = _READERS.get(type(data).__module__.partition(".")[0])
    found = None if read is None else read(data, columns, place)
    if found is not None:
        return found
    if _reads_as_one_array(data):
        return _array(_tensor(data), columns, place)
    if hasattr(data, "__arrow_c_array__") or hasattr(data, "__arrow_c_stream__"):
        return read_arrow(data, columns)
    if is_node(data) and not isinstance(data, list):
        return _record(data, columns, place)
    if isinstance(data, Mapping):
        return _record(dict(data), columns, place)
    if is_boxed(data):
        return columns.numbers(data, None, place)
    if hasattr(data, "tocsr"):
        return _csr(data)
    if hasattr(data, "__dlpack__"):
        return columns.numbers(_tensor(data), None, place)
    if isinstance(data, set | frozenset):
        raise UnsupportedError(f"a {type(data).__name__}{place} has no order; write sorted(data)")
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | bytes):
            return _sequence([data[i] for i in range(len(data))], columns, place)
        advice = next((f": write .{name}() first" for name in ("collect", "compute") if hasattr(data, name)), "")
        raise UnsupportedError(
            f"got {type(data).__qualname__}{place}; expected a sequence of "
            f"examples, a dict of columns, or data of Arrow, awkward, a frame, SciPy, torch or JAX{advice}"
        )
    return _sequence(list(data), columns, place)


def _record(data: object, columns: Columns, place: DataPlace) -> Column:
    """A dict, tuple or dataclass whose parts are columns, or batches, of the same examples."""
    names, parts = children_of(data)
    found = {name: _column(part, columns, place.field(name)) for name, part in zip(names, parts, strict=True)}
    sizes = {name: size_of(column.tree) for name, column in found.items()}
    first = next(iter(sizes), None)
    for name, size in sizes.items():
        if size != sizes[first]:
            raise ShapeError(
                f"column {name!r}{place} has {size} examples, column {first!r} {sizes[first]}; expected as many in "
                "each. (A dict or tuple holds columns, a list examples.)"
            )
    return _rebuilt(data, columns.records(found, None, place))


def _rebuilt(example: object, column: Column) -> Column:
    """The dict of records' fields as records of the kind of this one."""
    cls: Any = type(example)
    parts = column.tree
    if isinstance(example, tuple):
        values = tuple(parts.values())
        return Column(cls(*values) if hasattr(cls, "_fields") else values, column.valid)
    if isinstance(example, Mapping):  # not rebuilt: a UserDict or a data set of xarray's may be made in any way
        return column
    out = object.__new__(cls)  # no __init__: what it checks are examples, not batches
    for name, value in parts.items():
        object.__setattr__(out, name, value)
    return Column(out, column.valid)


def _array(data: np.ndarray, columns: Columns, place: DataPlace) -> Column:
    check_plain(data, f"the data{place}")
    if data.dtype.names:
        fields = {name: _array(data[name], columns, place.field(name)) for name in data.dtype.names}
        return columns.records(fields, None, place)
    if data.dtype.kind in "OSUT":
        return _sequence(data.tolist() if data.dtype.kind != "O" else list(data), columns, place)
    return columns.numbers(data, None, place)


# Python's own sequences.


def _sequence(examples: list[Any], columns: Columns, place: DataPlace) -> Column:
    """Examples that are any objects, all of one kind."""
    if not examples:
        if place.path:
            return columns.numbers(np.zeros(0), None, place)
        raise ShapeError("no examples, so their rank and dtype are not known; give an array of shape (0, ...)")
    kinds = set(map(type, examples))
    if type(None) in kinds:
        valid = np.fromiter((x is not None for x in examples), np.bool_, len(examples))
        columns.missing(valid, place, "value")
        present = np.flatnonzero(valid)
        inner = DataPlace(place.path, lambda i: place.example_of(int(present[i])))
        return columns.optional(_sequence([x for x in examples if x is not None], columns, inner), valid, place)
    if kinds == {np.ndarray}:  # nearly always
        return _arrays(examples, place)
    first = examples[0]
    cls = type(first)
    numbers = stack_numbers(examples)
    if numbers is not None:
        return Column(numbers)
    if isinstance(first, list):
        return _lists(examples, columns, place)
    if isinstance(first, Mapping):
        return _dicts(examples, columns, place)
    if isinstance(first, tuple):
        return _tuples(examples, columns, place)
    if isinstance(first, Batch):
        raise UnsupportedError(f"example 0{place} is a {cls.__name__}; ab.concat makes one batch of several")
    if dataclasses.is_dataclass(first) and not _is_array(first):
        _check_all(examples, lambda x: type(x) is cls, place)
        return _fields(examples, attributes(first), getattr, columns, place)
    of_kinds = {type(x): x for x in examples}.values() if len(kinds) > 1 and cls in SCALAR_DTYPES else [first]
    if any(map(_is_array, of_kinds)):
        return _arrays([_tensor(x) for x in examples], place)
    if len(kinds) > 1 and any(issubclass(each, np.ndarray | list | dict | int | float) for each in kinds):
        _check_all(examples, lambda x: type(x) is cls, place)
    return columns.objects(examples, None, place)


def _is_array(x: object) -> bool:
    """True for arrays of any library and for scalars of NumPy's, of which strings are Python's, too."""
    return hasattr(x, "shape") and (hasattr(x, "dtype") or hasattr(x, "__array__")) and not isinstance(x, str | bytes)


def _reads_as_one_array(data: object) -> bool:
    """True for arrays that NumPy reads at once, of h5py, zarr and xarray too; not for frames, nor columns of Arrow."""
    if is_boxed(data) or not (hasattr(data, "__array__") and isinstance(getattr(data, "shape", None), tuple)):
        return False
    if hasattr(data, "columns"):
        return False
    return isinstance(getattr(data, "dtype", None), np.dtype) or not hasattr(data, "__arrow_c_stream__")


def _mismatch(examples: Sequence[Any], i: int, place: DataPlace) -> str:
    return (
        f"example {place.example_of(i)} has {type(examples[i]).__name__}{place}, example {place.example_of(0)} "
        f"{type(examples[0]).__name__}; expected one kind in a batch: ab.map(f, examples) takes any objects"
    )


def _check_all(examples: Sequence[Any], suits: Callable[[Any], bool], place: DataPlace) -> None:
    """Raise StructureError for the first example that does not suit."""
    wrong = next((i for i, x in enumerate(examples) if not suits(x)), None)
    if wrong is not None:
        raise StructureError(_mismatch(examples, wrong, place))


def _lists(examples: list[Any], columns: Columns, place: DataPlace) -> Column:
    """Examples that are lists: of numbers, of rows, or of anything that is itself a column."""
    numbers = flat_numbers(examples)
    if numbers is not None:
        return _packed(*numbers)
    _check_all(examples, lambda x: isinstance(x, list | tuple | np.ndarray), place)
    items = list(itertools.chain.from_iterable(examples))
    kinds = set(map(type, items))
    numeric = all(each in SCALAR_DTYPES or issubclass(each, np.generic) for each in kinds)
    if kinds <= {list, tuple} or (numeric and not any(issubclass(each, np.character) for each in kinds)):
        try:
            return _arrays(as_arrays(examples, place.path), place)
        except ShapeError:
            if not kinds <= {list, tuple}:
                raise
        except DTypeError:  # ints beyond int64 stay exact, and strings and other objects are not arrays
            objects = kinds == {int} or any(np.asarray(x).dtype.kind in "OSU" for x in examples)
            if not objects or not set(map(type, examples)) <= {list, tuple}:
                raise
    lengths = np.fromiter(map(len, examples), np.int64, len(examples))
    offsets = offsets_from(lengths)
    return columns.lists(_sequence(items, columns, place.items(offsets)), offsets, None, place)


def _dicts(examples: list[Any], columns: Columns, place: DataPlace) -> Column:
    first = examples[0]
    names = first.keys()
    for i, x in enumerate(examples):
        if not isinstance(x, Mapping):
            raise StructureError(_mismatch(examples, i, place))
        if x.keys() != names:
            other = sorted(map(repr, set(names) ^ set(x)))
            raise StructureError(
                f"example {place.example_of(i)}{place} and example {place.example_of(0)} differ in the keys "
                f"{', '.join(other)}; expected the same keys in each"
            )
    return _fields(examples, tuple(names), lambda x, name: x[name], columns, place)


def _tuples(examples: list[Any], columns: Columns, place: DataPlace) -> Column:
    first = examples[0]
    numbers = None if hasattr(first, "_fields") else flat_numbers(examples)
    if numbers is not None and len(set(map(len, examples))) > 1:
        return _packed(*numbers)
    for i, x in enumerate(examples):
        if type(x) is not type(first):
            raise StructureError(_mismatch(examples, i, place))
        if len(x) != len(first):
            raise StructureError(
                f"example {place.example_of(i)}{place} is a tuple of {len(x)}, example {place.example_of(0)} of "
                f"{len(first)}; expected tuples of one length; lists may have any, and ab.map takes trees as they are"
            )
    return _fields(examples, range(len(first)), lambda x, i: x[i], columns, place)


def _fields(examples: list[Any], names: Any, get: Callable[..., Any], columns: Columns, place: DataPlace) -> Column:
    found = {name: _sequence([get(x, name) for x in examples], columns, place.field(name)) for name in names}
    return _rebuilt(examples[0], columns.records(found, None, place))


def _packed(values: np.ndarray, lengths: np.ndarray) -> Column:
    if (lengths == lengths[0]).all():
        width = int(lengths[0])
        return Column(MaskedBatch.of_data(values.reshape(len(lengths), width), (width,), None))
    return Column(PackedBatch.of(values, offsets_from(lengths)))


def _arrays(arrays: Sequence[Any], place: DataPlace) -> Column:
    """Arrays, packed where they differ in their first dimension only."""
    arrays = as_arrays(arrays, place.path)
    shapes = {x.shape for x in arrays}  # of one rank
    if len(shapes) == 1 and not is_boxed(arrays[0]):
        shape = arrays[0].shape
        data = end_to_end([x.reshape(1) for x in arrays] if not shape else arrays).reshape(len(arrays), *shape)
        return Column(MaskedBatch.of_data(data, shape, None))
    if len(shapes) > 1 and (arrays[0].ndim == 1 or len({shape[1:] for shape in shapes}) == 1):
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        return Column(PackedBatch.of(end_to_end(arrays), offsets_from(lengths)))
    return Column(MaskedBatch.stacked(arrays))


# Other libraries, none of which is imported: an object says by its class whose it is.


def _awkward(data: Any, columns: Columns, place: DataPlace) -> Column:
    if not hasattr(data.layout, "length"):
        raise UnsupportedError(f"a single awkward record{place}; expected an array of records")
    return read_awkward(data.layout, columns, place)


def _pandas(data: Any, columns: Columns, place: DataPlace) -> Column | None:
    """A frame's columns, or a series; an index is one of the examples, not of their values."""
    if not hasattr(data, "isna"):  # groups: pairs of a key and a part
        return None
    if hasattr(data, "columns"):
        names = list(data.columns)
        if len(set(names)) < len(names):
            raise UnsupportedError(f"two columns have one name{place}: {names}; rename one of them")
        return columns.records({name: _column(data[name], columns, place.field(name)) for name in names}, None, place)
    data = data.sparse.to_dense() if hasattr(data, "sparse") else data
    dtype = data.dtype
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return _array(data.to_numpy(), columns, place)
    if hasattr(dtype, "pyarrow_dtype"):
        return read_arrow(data, columns)
    valid = ~np.asarray(data.isna())
    if isinstance(dtype, np.dtype) or not hasattr(dtype, "numpy_dtype"):
        values = [x if ok else None for x, ok in zip(data.tolist(), valid.tolist(), strict=True)]
        return _sequence(values, columns, place)
    numbers = data.to_numpy(dtype=dtype.numpy_dtype, na_value=dtype.numpy_dtype.type(0))
    return columns.numbers(numbers, valid, place)


def _torch(data: Any, columns: Columns, place: DataPlace) -> Column | None:
    if not hasattr(data, "is_nested"):
        return None
    if data.requires_grad:
        raise DTypeError(
            f"a tensor that requires a gradient{place}, which an array does not carry; write .detach(), or "
            "differentiate by ab.grad"
        )
    if not data.is_nested and str(data.layout) != "torch.strided":
        entries = data.cpu().to_sparse_coo().coalesce()  # in the order of the rows
        rows, ids = _tensor(entries.indices())
        return _csr((_tensor(entries.values()), ids, offsets_from(np.bincount(rows, minlength=len(data)))))
    if not data.is_nested:
        return columns.numbers(_tensor(data), None, place)
    if not hasattr(data, "offsets") or str(data.layout) != "torch.jagged":
        return _arrays([_tensor(x) for x in data.unbind()], place)
    if data.lengths() is not None:  # jagged with holes
        starts, lengths = _tensor(data.offsets())[:-1], _tensor(data.lengths())
        return columns.runs(columns.numbers(_tensor(data.values()), None, place), starts, lengths, None, place)
    return columns.lists(columns.numbers(_tensor(data.values()), None, place), _tensor(data.offsets()), None, place)


def _tensor(x: Any) -> Any:
    """A tensor of any library as an array, without a copy where it lies in this machine's memory."""
    if type(x) is np.ndarray or is_boxed(x) or isinstance(x, np.generic | np.ndarray):
        return x
    check_plain(x, "an example")
    if getattr(x, "requires_grad", False):
        raise DTypeError("a tensor that requires a gradient, which an array does not carry; write .detach()")
    x = x.cpu() if hasattr(x, "cpu") else x
    x = x.resolve_conj().resolve_neg() if hasattr(x, "resolve_neg") else x
    try:
        return np.asarray(x)
    except TypeError as error:  # torch's bfloat16
        raise DTypeError(f"a tensor of {getattr(x, 'dtype', 'a dtype')} that NumPy does not have: {error}") from None


def _xarray(data: object, columns: Columns, place: DataPlace) -> Column | None:
    """A dataset's variables, without its coordinates, which are not values of the examples."""
    if not isinstance(data, Mapping):
        return None
    dims = {name: each.dims for name, each in data.items()}
    first = next(iter(dims), None)
    for name, own in dims.items():
        if own[:1] != dims[first][:1]:
            raise StructureError(
                f"variable {name!r}{place} lies along {own}, variable {first!r} along {dims[first]}; expected the "
                "examples' dimension first in each: write ds.transpose('name', ...), or leave it out, ds[['names']]"
            )
    return _record(dict(data), columns, place)


def _dataset(data: Any, columns: Columns, place: DataPlace) -> Column | None:
    if isinstance(data, Mapping):
        raise UnsupportedError(f"data of several splits{place}; pass one of them: data[{next(iter(data), 'train')!r}]")
    shown = getattr(data, "format", None)
    if not isinstance(shown, dict) or shown["type"] == "custom":  # a column, a stream, or rows that a function makes
        return None
    names = None if shown["output_all_columns"] else shown["columns"]
    return read_arrow(data.with_format("arrow", columns=names)[:], columns)


def _csr(data: object) -> Column:
    """A sparse matrix, or a triple as `read_csr` takes it: the columns and the entries of each row."""
    entries, ids, offsets = read_csr(data)
    batch = PackedBatch(ids, offsets)
    return Column((batch, PackedBatch.of(entries, batch.offsets, batch.size_of_first)))


_STRICT, _WHOLE = Columns("raise"), DataPlace()
_READERS: dict[str, Callable[..., Any]] = {
    "awkward": _awkward,
    "pandas": _pandas,
    "torch": _torch,
    "narwhals": lambda data, columns, place: _column(data.to_native(), columns, place),
    "datasets": _dataset,
    "xarray": _xarray,
    "zarr": lambda data, *place: _record(dict(data.arrays()), *place) if hasattr(data, "arrays") else None,
}
