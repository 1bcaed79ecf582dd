"""One compiled call: its data, its arguments' types, and how the arguments are packed into flat arrays."""

import dataclasses
import functools
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.any_batch import Batch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.source_program import SourceProgram
from autobatch.compiled.value_layout import count_steps, pack, tree_at_a_glance, type_of
from autobatch.core.batched import Lengths
from autobatch.core.current_region import Example, example
from autobatch.core.pytree import leaves_of_kind
from autobatch.errors import Unsupported, note_example
from autobatch.ops.rules.aliasing import is_scalar
from autobatch.program.bounded_caches import MOST_FUNCTIONS
from autobatch.tables.table import EmbeddingTable

Arguments = Callable[[Sequence[Any], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]]


class ColumnPlace:
    """A placeholder, in the arguments of a call, for an example's value of a column."""

    def __init__(self, column: int) -> None:
        self.column = column


column_place = functools.lru_cache(maxsize=256)(ColumnPlace)  # the same one for each call
_PACKED = frozenset((np.ndarray, float, int, bool, EmbeddingTable, ColumnPlace))  # what is packed as it is


@dataclasses.dataclass
class CompiledCall:
    """A call's data: its columns, and where they stand among the arguments of each example's call."""

    function: FunctionType
    columns: Sequence[Any]
    shared: dict[str, Any]
    arguments_of: Arguments | None
    count: int
    first: int  # the index of the first example in its batch
    values: list[Any]  # for each parameter: the shared value, or a `ColumnPlace`, alone or in a tuple or dict
    lists: list[Any]  # for each column its examples, once they are needed
    key: Any = None  # of its types, if they are known at a glance
    leaves: list[list[list[Any]]] | None = None  # of each parameter's value, as `quick_key` finds them, if it is known
    packed: list[list[Any] | None] | None = None  # for each parameter its packed arrays, None if it differs by example

    def examples(self, column: int) -> Sequence[Any]:
        if self.lists[column] is None:
            found = self.columns[column]
            self.lists[column] = found.examples() if isinstance(found, Batch) else list(found)
        return self.lists[column]

    def example(self, index: int) -> list[Any]:
        """The values of one example, one for each column."""
        return [self.examples(column)[index] for column in range(len(self.columns))]

    def in_python(self, index: int, given: Sequence[Any] | None = None) -> Any:
        """Run one example in Python, as the loop does.

        Args:
            given: the example's values; by default the user's own objects, which the function may change.
        """
        with example(Example(self.first + index)):
            try:
                values = self.example(index) if given is None else given
                args, named = (
                    (values, self.shared) if self.arguments_of is None else self.arguments_of(values, self.shared)
                )
                return self.function(*args, **named)
            except Exception as error:
                raise note_example(error, self.first + index)  # noqa: B904 - the same error, with its note


def bound_values(function: FunctionType, given: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    """The value of each parameter.

    Raises:
        Unsupported: the arguments do not fit (the loop raises the better error), or there is `*args` or `**kwargs`.
    """
    defaults = function.__defaults__ or ()
    places = _places(function.__code__, function, len(given), tuple(named), len(defaults))
    return [
        given[place] if kind == "given" else named[place] if kind == "named"
        else defaults[place] if kind == "default" else function.__kwdefaults__[place]  # type: ignore[index]
        for kind, place in places
    ]  # fmt: skip


@functools.lru_cache(maxsize=MOST_FUNCTIONS)
def _places(
    code: Any, function: FunctionType, given: int, named: tuple[str, ...], defaults: int
) -> list[tuple[str, Any]]:
    """For each parameter, (source of its value, key in the source)."""
    signature = inspect.signature(function)
    parameters = sorted(signature.parameters.values(), key=lambda each: each.kind == each.KEYWORD_ONLY)
    if {each.kind for each in parameters} & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise Unsupported(f"{function.__qualname__} takes *args or **kwargs")
    try:
        bound = signature.bind(*(("given", k) for k in range(given)), **{name: ("named", name) for name in named})
    except TypeError as error:
        raise Unsupported(str(error)) from None
    positional = [each.name for each in parameters if each.kind != each.KEYWORD_ONLY]
    first = len(positional) - defaults
    return [
        bound.arguments[each.name] if each.name in bound.arguments
        else ("default", positional.index(each.name) - first) if each.name in positional
        else ("named default", each.name)
        for each in parameters
    ]  # fmt: skip


def is_varying(value: Any) -> bool:
    """True if an argument is, or contains, a value that differs by example."""
    return bool(leaves_of_kind(value, ColumnPlace))


def kind_of_value(program: SourceProgram, call: CompiledCall, value: Any, where: str) -> types.Type:
    """The type of an argument; for a tuple or dict of several columns, the type of the whole."""
    if isinstance(value, ColumnPlace):
        column = call.columns[value.column]
        if isinstance(column, Batch) and is_contiguous(column):
            data = column.values if isinstance(column, PackedBatch) else column.data  # type: ignore[attr-defined]
            return types.Array(
                types.of_dtype(data.dtype).name, data.ndim - isinstance(column, MaskedBatch), types.FIXED
            )
        return type_of(
            program, call.examples(value.column), where, types.FIXED if isinstance(column, Batch) else types.OWN
        )
    if is_varying(value):
        if type(value) is tuple:
            return types.Tuple(
                tuple(kind_of_value(program, call, each, f"{where}[{i}]") for i, each in enumerate(value))
            )
        if type(value) is dict and all(isinstance(name, str) for name in value):
            items = [kind_of_value(program, call, each, f"{where}[{name!r}]") for name, each in value.items()]
            return types.Struct(tuple(items), dict, tuple(value), True)
        raise Unsupported(f"a {type(value).__name__} that holds both an example's own values and shared ones")
    return type_of(program, [value], where, types.FIXED)


def quick_key(call: "CompiledCall", value: Any, leaves: list[Any], levels: int = 4) -> Any:
    """What determines the type of an argument, found without making the type; None where that takes more.

    Appends to `leaves` the value's arrays, tables, numbers and places of columns, in packing order, each in a list of
    what is packed together; where a tape holds one of these, what it gave for it.
    """
    plain = value._ab_value if type(value) is TapeArray else value
    cls = type(plain)
    if cls in _PACKED:
        leaves.append([value])
    if cls is np.ndarray:
        return plain.dtype, plain.ndim
    if cls is float or cls is int or cls is bool:
        return cls
    if cls is EmbeddingTable:
        return cls, plain.weights.dtype, plain.weights.ndim
    if cls is ColumnPlace:
        column = call.columns[value.column]
        if type(column) is list:
            return _key_of_examples(column)
        if isinstance(column, Batch) and (is_contiguous(column) or of_numbers(column)):
            if isinstance(column, PackedBatch):
                return type(column), column.values.dtype, column.values.ndim
            return type(column), column.data.dtype, column.data.ndim, column.scalar  # type: ignore[attr-defined]
        if of_lists(column):
            values = column.values.values
            return "lists", values.dtype, values.ndim, bool(column.offsets[-1] > column.offsets[0])  # any item?
        return None
    if levels == 0 or (cls is not tuple and cls is not dict and cls is not list) or not 0 < len(value) <= 64:
        return None  # a long container is typed by other means than item by item
    if cls is list:  # of items of one type
        items: list[list[Any]] = [[] for _ in value]
        keys = [quick_key(call, each, own, levels - 1) for each, own in zip(value, items, strict=True)]
        if keys[0] is None or keys.count(keys[0]) < len(keys):
            return None
        leaves.append([len(value)])
        leaves += [list(itertools.chain.from_iterable(own)) for own in zip(*items, strict=True)]
        return cls, keys[0]
    if cls is dict and not set(map(type, value)) <= {str}:
        return None
    parts: list[Any] = []
    for each in value.values() if cls is dict else value:
        plain = each._ab_value if type(each) is TapeArray else each
        if type(plain) is np.ndarray:  # nearly always
            leaves.append([each])
            parts.append((plain.dtype, plain.ndim))
        else:
            parts.append(quick_key(call, each, leaves, levels - 1))
    return None if None in parts else (cls, *(value if cls is dict else ()), *parts)


def _key_of_examples(values: list[Any]) -> Any:
    """`quick_key` of a column of arrays, numbers or trees that are no batch."""
    kinds = set(map(type, values))
    if kinds == {np.ndarray}:
        found = set(map(operator.attrgetter("dtype", "ndim"), values))
        return ("examples", *found) if len(found) == 1 else None
    if len(kinds) == 1 and kinds <= {int, float, bool}:
        return "examples", *kinds
    try:
        tree = tree_at_a_glance(values)
    except Unsupported:
        return None
    return None if tree is None else ("examples", tree)


def of_numbers(batch: Any) -> bool:
    """True for a batch of a number, Python's or NumPy's, for each example."""
    if not isinstance(batch, MaskedBatch) or batch.sizes or type(batch.data) is not np.ndarray:
        return False
    return batch.data.ndim == 1 and (batch.scalar is not None or is_scalar(batch))


def of_lists(batch: Any) -> bool:
    """True for a batch of a list of arrays for each example, all of which lie one after the other."""
    return isinstance(batch, PackedBatch) and isinstance(batch.values, PackedBatch) and is_contiguous(batch.values)


def is_contiguous(batch: Any) -> bool:
    """True if the examples of a batch can be read without a copy: each is contiguous."""
    if isinstance(batch, PackedBatch):
        return type(batch.values) is np.ndarray and batch.values.flags.c_contiguous
    if not isinstance(batch, MaskedBatch) or batch.scalar is not None or not batch.sizes:
        return False
    data = batch.data
    return type(data) is np.ndarray and data.flags.c_contiguous and Lengths not in map(type, batch.sizes[1:])


def describe(kind: types.Type) -> str:
    """A type in full, as text: the key by which kinds of examples are distinguished."""
    match kind:
        case types.Tuple():
            return f"({', '.join(map(describe, kind.items))})"
        case types.Struct():
            return f"{kind.cls.__qualname__}:{id(kind.cls)}({', '.join(map(describe, kind.items))}){kind.names}"
        case types.List() | types.Set() | types.Dict():
            return f"{type(kind).__name__}[{', '.join(map(describe, kind.site.find().items))}]{kind.given}"
        case types.Array():
            return f"{kind}{kind.given}"
        case types.ObjectTree():
            return f"{[id(cls) for cls in kind.classes]}{kind!r}"
    return str(kind)


def packed_values(
    call: CompiledCall, value: Any, kind: types.Type, first: int, last: int
) -> tuple[list[Any], list[int]]:
    """The packed arrays of an argument, and how far examples lie apart in those of `Loader.steps` (-1: no gaps)."""
    if not isinstance(value, ColumnPlace):
        if not is_varying(value):
            return pack(kind, [value] * (last - first)), [-1] * count_steps(kind)
        items = zip(value.values() if isinstance(value, dict) else value, kind.items, strict=True)
        parts = [packed_values(call, each, item, first, last) for each, item in items]
        return [array for arrays, _ in parts for array in arrays], [step for _, steps in parts for step in steps]
    column = call.columns[value.column]
    if isinstance(column, Batch) and is_contiguous(column):
        if isinstance(column, PackedBatch):
            offsets = column.offsets[first : last + 1]
            values = column.values[offsets[0] : offsets[-1]]
            lengths = offsets[1:] - offsets[:-1]
            trailing, step = values.shape[1:], -1
        else:
            values = column.data[first:last]  # type: ignore[attr-defined]
            size = column.sizes[0]  # type: ignore[attr-defined]
            whole = values.shape[1]
            lengths = size.values[first:last] if isinstance(size, Lengths) else np.full(last - first, size, np.int64)
            trailing, step = values.shape[2:], whole * math.prod(values.shape[2:])
        sizes = np.empty((last - first, kind.ndim), np.int64)
        sizes[:, 0], sizes[:, 1:] = lengths, trailing
        return [values.reshape(-1), sizes.reshape(-1)], [step]
    if of_lists(column) and isinstance(kind, types.List) and isinstance(kind.elem, types.Array):
        bounds, inner = column.offsets[first : last + 1], column.values
        offsets = inner.offsets[bounds[0] : bounds[-1] + 1]
        values = inner.values[offsets[0] : offsets[-1]]
        sizes = np.empty((len(offsets) - 1, values.ndim), np.int64)
        sizes[:, 0], sizes[:, 1:] = offsets[1:] - offsets[:-1], values.shape[1:]
        return [bounds[1:] - bounds[:-1], values.reshape(-1), sizes.reshape(-1)], []
    if isinstance(kind, types.Scalar) and of_numbers(column):
        return [np.ascontiguousarray(column.data[first:last], kind.name)], []
    return pack(kind, call.examples(value.column)[first:last]), [-1] * count_steps(kind)


def packed_arguments(
    call: CompiledCall, kinds: Sequence[types.Type], varying: Sequence[bool], first: int, last: int
) -> tuple[list[np.ndarray], list[int]]:
    """The packed arrays of all arguments for the examples `first` to `last - 1`, and their steps, as above."""
    if call.packed is None:
        call.packed = [
            None if own else pack(kind, [value]) if call.leaves is None else _packed_leaves(call.leaves[place])
            for place, (value, kind, own) in enumerate(zip(call.values, kinds, varying, strict=True))
        ]
    arrays: list[Any] = []
    steps: list[int] = []
    for value, kind, shared in zip(call.values, kinds, call.packed, strict=True):
        own_arrays, own_steps = packed_values(call, value, kind, first, last) if shared is None else (shared, [])
        arrays += own_arrays
        steps += own_steps
    return arrays, steps


def _packed_leaves(leaves: Sequence[list[Any]]) -> list[np.ndarray]:
    """The packed arrays of a shared value, from what `quick_key` found in it; nothing writes into them."""
    out: list[np.ndarray] = []
    for own in leaves:
        if TapeArray in map(type, own):
            own = [own[0]._ab_value] if len(own) == 1 else [getattr(each, "_ab_value", each) for each in own]
        cls = type(own[0])
        if cls is np.ndarray or cls is EmbeddingTable:
            arrays = own if cls is np.ndarray else [table.weights for table in own]
            flags = arrays[0].flags
            if len(arrays) == 1 and flags.c_contiguous and flags.aligned:
                out += (arrays[0].reshape(-1), _sizes(arrays[0].shape))
            else:
                out += (np.concatenate(arrays, None), _sizes(*[array.shape for array in arrays]))
        else:
            out.append(np.array(own, np.int64 if cls is int else cls))
    return out


@functools.lru_cache(maxsize=1024)
def _sizes(*shapes: tuple[int, ...]) -> np.ndarray:
    return np.array([*itertools.chain.from_iterable(shapes)], np.int64)
