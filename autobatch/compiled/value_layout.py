"""How example values become flat arrays that compiled code reads, and its result arrays become Python objects.

`type_of` finds the type of many values; `pack` writes them one after the other into arrays, its leaves; `Loader` and
`ResultWriter` write the code that reads an example's value and appends a result; `unpack` makes objects of the results.
"""

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches.padded_batch import MaskedBatch
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import BOOL, INT, NONE
from autobatch.compiled.translation.object_trees import (
    are_of_one_form,
    dtypes_of,
    pack_trees,
    type_of_nested,
    type_of_trees,
)
from autobatch.compiled.translation.source_program import Lines, SourceProgram
from autobatch.compiled.translation.typed_text import assigned, code, item_text, rep
from autobatch.core.batched import Lengths
from autobatch.core.memory import collector_paused
from autobatch.errors import Unsupported
from autobatch.facts.types import is_plain, is_stored
from autobatch.ops.rules.row_gather import pad_rows
from autobatch.tables.table import EmbeddingTable

_KINDS = {tag: kind for kind, tag in types.TAGS.items()}


_MOST_CONTAINERS = 2_000  # containers of the arguments that are typed one by one


def type_of(
    program: SourceProgram,
    values: Sequence[Any],
    where: str,
    given: int = types.OWN,
    around: frozenset[int] = frozenset(),
) -> types.Type:
    """The one type that covers all these values; None if there are no values.

    Args:
        given: whose memory they are, as in `Array.given`; around: the ids of the containers that hold them.
        where: the path that leads to them, as `argument 0[1]`; containers of one path share an `AllocationSite`.

    Raises:
        Unsupported: no variable of compiled code can hold them all, or one has a type without a compiled form.
    """
    tree = tree_at_a_glance(values, given)
    if tree is not None:
        return tree
    try:
        return _type_of(program, values, where, given, around)
    except Unsupported:
        tree = type_of_nested(values)
        if tree is None:
            raise
        return tree


def _type_of(
    program: SourceProgram, values: Sequence[Any], where: str, given: int, around: frozenset[int]
) -> types.Type:
    out: types.Type = None
    classes = set(map(type, values))
    for cls in classes:
        if cls in types.PYTHON:
            out = types.join(out, types.PYTHON[cls])
            continue
        own: Sequence[Any] = values if len(classes) == 1 else [value for value in values if type(value) is cls]
        held = around
        if cls is list or cls is dict or dataclasses.is_dataclass(cls):
            own = list({id(value): value for value in own}.values())
            held = _around(program, around, own)
        if cls is np.ndarray:
            for dtype, ndim in {(value.dtype, value.ndim) for value in own}:
                out = types.join(out, types.Array(types.of_dtype(dtype).name, ndim, given))
        elif issubclass(cls, np.generic):
            out = types.join(out, types.of_dtype(np.dtype(cls)))
        elif cls is EmbeddingTable:
            inner = type_of(program, [value.weights for value in own], where, types.FIXED)
            if not isinstance(inner, types.Array):
                raise Unsupported(f"a table of {inner}")
            out = types.join(out, types.LookedUp(inner))
        elif cls is tuple:
            if len({len(value) for value in own}) > 1:
                raise Unsupported("tuples of several lengths")
            columns = enumerate(zip(*own, strict=True))
            items = [type_of(program, column, f"{where}[{i}]", given, held) for i, column in columns]
            out = types.join(out, types.Tuple(tuple(items)))
        elif cls is list or cls is set or cls is frozenset:
            container = types.List if cls is list else types.Set
            site = program.site((where, container.__name__), given=given)
            site.container = container
            inner = type_of(program, list(itertools.chain.from_iterable(own)), f"{where}[]", given, held)
            if inner is not None:
                site.widen(0, inner)
            out = types.join(out, container(site))
        elif cls is dict:
            out = types.join(out, _dict_type(program, own, where, given, held))
        elif dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
            names = _fields(cls)
            items = [
                type_of(program, [getattr(value, name) for value in own], f"{where}.{name}", given, held)
                for name in names
            ]
            out = types.join(out, types.Struct(tuple(items), cls, names, bool(given)))
        else:
            raise Unsupported(f"an object of class {cls.__qualname__}")
    return out


def tree_at_a_glance(values: Sequence[Any], given: int = types.OWN) -> types.ObjectTree | None:
    """The type of trees of several forms that no other type covers as well; None if that is not what they are."""
    nodes = [value for value in values if type(value) is tuple]
    if nodes and all(tuple in map(type, children) for children in zip(*nodes, strict=False)):
        # not a tuple of trees where no value happens to be a leaf: each such type is compiled anew
        return None if are_of_one_form(values) else type_of_nested(values)
    return type_of_trees(values) if given == types.OWN and not nodes else None


def _fields(cls: Any) -> tuple[str, ...]:
    """The names of the fields of a dataclass or named tuple.

    Raises:
        Unsupported: an attribute is computed, not stored.
    """
    if issubclass(cls, tuple):
        return tuple(cls._fields)
    names = tuple(field.name for field in dataclasses.fields(cls))
    if not all(is_stored(cls, name) for name in names):
        raise Unsupported(f"{cls}, whose attributes are computed")
    return names


def _around(program: SourceProgram, around: frozenset[int], own: Sequence[Any]) -> frozenset[int]:
    """The ids of the containers around the parts of these values: `around`, and the values themselves.

    Raises:
        Unsupported: a value contains itself, as nodes that refer to their parent do, or there are too many containers.
    """
    ids = frozenset(map(id, own))
    if not ids.isdisjoint(around):
        raise Unsupported("a structure that contains itself")
    program.containers += 1
    if program.containers > _MOST_CONTAINERS:
        raise Unsupported(f"a structure of more than {_MOST_CONTAINERS} containers")
    return around | ids


def _dict_type(
    program: SourceProgram, own: Sequence[dict[Any, Any]], where: str, given: int, around: frozenset[int]
) -> types.Type:
    names = tuple(own[0])
    if names and all(isinstance(name, str) for name in names):
        if any(tuple(value) != names for value in own):
            raise Unsupported("dicts of several sets of keys")
        columns = [(name, [value[name] for value in own]) for name in names]
        items = [type_of(program, column, f"{where}[{name!r}]", given, around) for name, column in columns]
        return types.Struct(tuple(items), dict, names, True)
    site = program.site((where, "Dict"), 2, given=given)
    site.container = types.Dict
    keys = type_of(program, list(itertools.chain.from_iterable(own)), f"{where}{{}}", given, around)
    values = type_of(program, [each for value in own for each in value.values()], f"{where}[]", given, around)
    if isinstance(values, types.List):
        values.site.find().boxed = True
    if keys is not None:
        if not isinstance(keys, types.Scalar | types.Tuple):
            raise Unsupported(f"keys that are {keys}")
        site.widen(0, keys)
        site.widen(1, values)
    return types.Dict(site)


# --- in


def _word(kind: types.Scalar) -> Any:
    return np.dtype("bool" if kind.name == "bool" else "int64" if kind.name == "none" else kind.name)


def columns(kind: types.Tuple | types.Struct, values: Sequence[Any]) -> Iterator[tuple[types.Type, list[Any]]]:
    """For each part of a type its own type, and that part of each value."""
    get: Any = getattr if isinstance(kind, types.Struct) and kind.cls is not dict else operator.getitem
    names = kind.names if isinstance(kind, types.Struct) else range(len(kind.items))
    for name, item in zip(names, kind.items, strict=True):
        yield item, [get(value, name) for value in values]


def split(flat: Any, lengths: Iterable[int]) -> list[Any]:
    """Consecutive parts of these lengths."""
    return [flat[a:b] for a, b in itertools.pairwise(itertools.accumulate(lengths, initial=0))]


def flattened(kind: types.Type, values: Sequence[Any]) -> Iterator[tuple[types.Type, Sequence[Any]]]:
    """Split values into sequences of numbers, arrays or strings of one type each, in packing order.

    For containers their lengths come first, then their contents.
    """
    match kind:
        case types.Tuple() | types.Struct():
            for item, column in columns(kind, values):
                yield from flattened(item, column)
        case types.List() | types.Set() | types.Dict():
            yield INT, list(map(len, values))
            yield from flattened(kind.elem, list(itertools.chain.from_iterable(values)))
            if isinstance(kind, types.Dict):
                yield from flattened(kind.value, [each for value in values for each in value.values()])
        case None | types.Scalar(name="none"):
            pass
        case _:
            yield kind, values


def pack(kind: types.Type, values: Sequence[Any]) -> list[np.ndarray]:
    """Write the values one after the other into arrays, whose dtypes are `leaves(kind)`.

    Raises:
        OverflowError: an int does not fit in 64 bits.
    """
    return [array for leaf, own in flattened(kind, values) for array in _packed(leaf, own)]


def _packed(kind: types.Type, values: Sequence[Any]) -> list[np.ndarray]:
    match kind:
        case types.Scalar():
            return [np.array(values, _word(kind))]
        case types.Union():
            scalars: list[Any] = [types.PYTHON.get(type(value)) or types.of_dtype(value.dtype) for value in values]
            tags = [types.TAGS[scalar] for scalar in scalars]
            pairs = list(zip(scalars, values, strict=True))
            floats = [float(value) if scalar.kind == "f" else 0.0 for scalar, value in pairs]
            words = [int(value) if scalar.kind in "iub" else 0 for scalar, value in pairs]
            return [np.array(tags, np.int64), np.array(words, np.int64), np.array(floats, np.float64)]
        case types.Array():
            flat = [value.reshape(-1) for value in values]
            sizes = np.array([value.shape for value in values], np.int64).reshape(-1)
            if len(flat) == 1 and kind.given == types.FIXED and flat[0].flags.c_contiguous and flat[0].flags.aligned:
                return [flat[0], sizes]  # no copy, since nothing writes into it
            joined = np.concatenate(flat) if flat else np.empty(0, kind.dtype)
            return [np.ascontiguousarray(joined), sizes]
        case types.LookedUp():
            return _packed(kind.weights, [table.weights for table in values])
        case types.ObjectTree():
            return pack_trees(kind, values)
        case types.Text():
            codes = np.frombuffer("".join(values).encode("utf-32-le", "surrogatepass"), np.int32)
            return [codes, np.array(list(map(len, values)), np.int64)]
    raise AssertionError(kind)


def leaves(kind: types.Type) -> list[str]:
    """The dtypes of the arrays that `pack` returns for this type."""
    return [array.dtype.name for array in pack(kind, ())]


_WORD = (1 << 64) - 1  # the bits of a word


def count_steps(kind: types.Type) -> int:
    """The number of packed arrays of a type whose examples may lie apart (`Loader.steps`)."""
    if isinstance(kind, types.Tuple | types.Struct):
        return sum(map(count_steps, kind.items))
    return int(isinstance(kind, types.Array))


class Loader:
    """Writes the code that reads the next value of a type from packed arrays.

    Attributes:
        dtypes: of the packed arrays, in order; the text names them `in0`, `in1` …, and read positions `at0`, `at1` …
        steps: arrays whose examples may lie apart, as in padded data; `step<array>` is how far, -1 for no gaps.
        kinds: the type of each variable that holds a value.
        tables: for each packed array that is the weights of a table, the variable that holds it; "" for several tables.
    """

    def __init__(self) -> None:
        self.dtypes: list[str] = []
        self.steps: list[int] = []
        self.kinds: dict[str, types.Type] = {}
        self.tables: dict[int, str] = {}
        self._count = self._depth = 0

    def _leaf(self, dtype: str) -> int:
        self.dtypes.append(dtype)
        return len(self.dtypes) - 1

    def _name(self) -> str:
        self._count += 1
        return f"x{self._count}"

    def load(self, kind: types.Type, lines: Lines, at_top: bool = False) -> str:
        """Write the code that reads one value; returns the name of its variable.

        Args:
            at_top: the value is an argument, or a part of a tuple, dict or dataclass that is one.
        """
        name = self._name()
        self.kinds[name] = kind
        match kind:
            case None | types.Scalar(name="none"):
                return "0"
            case types.LookedUp():
                self.tables[len(self.dtypes)] = "" if self._depth else name
                lines.append(assigned(name, self.load(kind.weights, lines, at_top)))
            case types.Scalar():
                leaf = self._leaf(_word(kind).name)
                lines += [assigned(name, item_text(f"in{leaf}", f"at{leaf}")), f"at{leaf} += 1"]
            case types.Union():
                places = [self._leaf(dtype) for dtype in ("int64", "int64", "float64")]
                lines.append(assigned(name, code("()", *(item_text(f"in{leaf}", f"at{leaf}") for leaf in places))))
                lines += [f"at{leaf} += 1" for leaf in places]
            case types.Array():
                values, sizes = self._leaf(kind.dtype), self._leaf("int64")
                shape = [f"{name}_{axis}" for axis in range(kind.ndim)]
                lines += [f"{each} = in{sizes}[at{sizes} + {axis}]" for axis, each in enumerate(shape)]
                lines += [f"at{sizes} += {kind.ndim}", f"{name}_n = {' * '.join(shape) or '1'}"]
                view = item_text(f"in{values}", f"at{values}:at{values} + {name}_n")
                lines.append(assigned(name, view if kind.ndim == 1 else code(".reshape", view, code("()", *shape))))
                if at_top:
                    self.steps.append(values)
                    lines.append(f"at{values} += step{values} if step{values} >= 0 else {name}_n")
                else:
                    lines.append(f"at{values} += {name}_n")
            case types.ObjectTree():
                held = [f"in{self._leaf(dtype)}" for dtype in dtypes_of(kind)]
                leaf = self._leaf("int64")
                lines.append(assigned(name, code("()", *held, item_text(f"in{leaf}", f"at{leaf}"))))
                lines.append(f"at{leaf} += 1")
            case types.Text():
                values, sizes = self._leaf("int32"), self._leaf("int64")
                lines += [
                    f"{name} = in{values}[at{values}:at{values} + in{sizes}[at{sizes}]]",
                    f"at{values} += in{sizes}[at{sizes}]",
                    f"at{sizes} += 1",
                ]
            case types.Tuple() | types.Struct():
                parts = [self.load(item, lines, at_top) for item in kind.items]
                lines.append(assigned(name, code("()", *parts)))
            case types.List() | types.Set() | types.Dict():
                leaf = self._leaf("int64")
                inner: Lines = []
                self._depth += 1
                key = self.load(kind.elem, inner)
                if isinstance(kind, types.Dict):
                    inner.append(assigned(item_text(name, key), self.load(kind.value, inner)))
                else:
                    inner.append(code(".append" if isinstance(kind, types.List) else ".add", name, key))
                self._depth -= 1
                lines += [
                    assigned(name, code(f"new_{rep(kind)}")),
                    f"for _ in range(in{leaf}[at{leaf}]):",
                    inner,
                    f"at{leaf} += 1",
                ]
        return name


# --- out


class ResultWriter:
    """Writes the code that appends a result to arrays that grow.

    Attributes:
        dtypes: of the arrays; the text names them `out0`, `out1` …, and their used lengths `used0`, `used1` …
    """

    def __init__(self) -> None:
        self.dtypes: list[str] = []
        self._count = 0

    def start(self, size: str) -> Lines:
        """The lines that make the arrays, of this size at first."""
        names = [f"np.{dtype}" if dtype != "bool" else "np.bool_" for dtype in self.dtypes]
        made = [assigned(f"out{leaf}", code("np.empty", size, name)) for leaf, name in enumerate(names)]
        return [*made, *(f"used{leaf} = 0" for leaf in range(len(made)))]

    def _put(self, dtype: str, text: str, lines: Lines) -> None:
        leaf = len(self.dtypes)
        self.dtypes.append(dtype)
        lines += [
            f"if used{leaf} == out{leaf}.size:",
            [assigned(f"out{leaf}", code("reserve", f"out{leaf}", f"used{leaf}", "1"))],
            assigned(item_text(f"out{leaf}", f"used{leaf}"), text),
            f"used{leaf} += 1",
        ]

    def _all(self, dtype: str, text: str, lines: Lines) -> None:
        leaf = len(self.dtypes)
        self.dtypes.append(dtype)
        self._count += 1
        name = f"y{self._count}"
        lines += [
            assigned(name, text),
            assigned(f"out{leaf}", code("reserve", f"out{leaf}", f"used{leaf}", f"{name}.size")),
            assigned(item_text(f"out{leaf}", f"used{leaf}:used{leaf} + {name}.size"), name),
            f"used{leaf} += {name}.size",
        ]

    def append(self, kind: types.Type, text: str, lines: Lines) -> None:
        """Write the code that appends a value.

        Raises:
            Unsupported: compiled code cannot return a result of this type.
        """
        match kind:
            case None | types.Scalar(name="none"):
                pass
            case types.Scalar():
                self._put(_word(kind).name, text, lines)
            case types.Union():
                for place, dtype in enumerate(("int64", "int64", "float64")):
                    self._put(dtype, item_text(text, place), lines)
            case types.Maybe():
                self._put("bool", item_text(text, 0), lines)
                inside: Lines = []
                self.append(kind.inner, item_text(text, 1), inside)
                lines += [f"if {text}[0]:", inside or ["pass"]]
            case types.Array():
                for axis in range(kind.ndim):
                    self._put("int64", item_text(code(".shape!", text), axis), lines)
                self._all(kind.dtype, code(".ravel", code("np.ascontiguousarray", text)), lines)
            case types.Text():
                self._put("int64", code(".size!", text), lines)
                self._all("int32", text, lines)
            case types.Tuple() | types.Struct():
                if isinstance(kind, types.Struct) and (kind.given or not is_plain(kind.cls)):
                    raise Unsupported(f"it returns a {kind}")
                for place, each in enumerate(kind.items):
                    self.append(each, item_text(text, place), lines)
            case types.List() | types.Dict() if not isinstance(kind, types.Deque | types.Counts | types.DefaultDict):
                if isinstance(kind, types.Dict) and kind.site.find().vague:
                    raise Unsupported(f"it returns {kind}, whose keys are Python's or NumPy's")
                self._put("int64", code("len", text), lines)
                self._count += 1
                name = f"y{self._count}"
                inner: Lines = []
                if isinstance(kind, types.Dict):
                    self.append(kind.elem, item_text(name, 0), inner)
                    self.append(kind.value, item_text(name, 1), inner)
                    lines += [code("for", name, code(".items", text)), inner or ["pass"]]
                else:
                    self.append(kind.elem, name, inner)
                    lines += [code("for", name, text), inner or ["pass"]]
            case _:
                raise Unsupported(f"it returns a {kind}")


def check_aliases(
    kind: types.Type, text: str, given: Sequence[tuple[str, str]], lines: Lines, aliases: Sequence[str] = ()
) -> None:
    """Write code that leaves an example to Python if its result contains an object, or memory, twice or of an argument.

    Results are copied out, which would lose such sharing.

    Args:
        given: the name and the dtype of each array that holds data of arguments.
        aliases: for the result, or for each of its items, the variable that says which argument it is; "" if none.
    """
    parts = (
        [(item, item_text(text, k)) for k, item in enumerate(kind.items)]
        if isinstance(kind, types.Tuple)
        else [(kind, text)]
    )
    names = list(aliases) or [""] * len(parts)
    spans = len(types.objects_in(kind)) > 1
    structs: list[type] = []
    if spans:
        lines.append("spans = [(int64(0), int64(0)) for _ in range(0)]")
    for (item, where), alias in zip(parts, names, strict=True):
        inside: Lines = []
        _spans(item, where, given, spans, inside, structs)
        lines += [f"if {alias} < 0:", inside] if alias and inside else inside
    if spans:
        lines += ["if spans_overlap(spans):", ["ok = False"]]


def _spans(
    kind: types.Type, text: str, given: Sequence[tuple[str, str]], spans: bool, lines: Lines, structs: list[type]
) -> None:
    """Write code that appends the memory span of each array and each container of a value to `spans`."""
    match kind:
        case types.Array():
            if kind.given:
                for name, dtype in given:
                    if dtype == kind.dtype:
                        lines += [f"if overlap({text}, {name}):", ["ok = False"]]
            if spans:
                lines += [f"if {text}.size > 0:", [code(".append", "spans", code("extent", text))]]
        case types.Maybe():
            inside: Lines = []
            _spans(kind.inner, item_text(text, 1), given, spans, inside, structs)
            lines += [f"if {text}[0]:", inside or ["pass"]]
        case types.Tuple() | types.Struct():
            if types.is_record(kind):
                if kind.cls in structs:
                    raise Unsupported(f"it returns a {kind} more than once")
                structs.append(kind.cls)
            for place, item in enumerate(kind.items):
                _spans(item, item_text(text, place), given, spans, lines, structs)
        case types.List() | types.Dict():
            if kind.given:
                lines.append("ok = False")
            if spans:
                where = code("address", text)
                lines.append(code(".append", "spans", code("()", where, where)))
            place = 1 if isinstance(kind, types.Dict) else 0
            inner: Lines = []
            name = f"z{len(text)}"
            item = kind.site.find().items[place]
            if types.objects_in(item):
                if types.is_record(item):
                    raise Unsupported(f"it returns a {item} in a {kind}, where one object may occur twice")
                _spans(item, name, given, spans, inner, structs)
                lines += [code("for", name, code(".values", text) if place else text), inner or ["pass"]]


def unpack(kind: types.Type, arrays: Sequence[np.ndarray], count: int) -> list[Any]:
    """The results that a `ResultWriter` appended, as Python and NumPy objects."""
    with collector_paused():  # many objects are made, and none is garbage
        out, rest = _unpack(kind, list(arrays), count)
    assert not rest
    return out


def batch_of(kind: types.Type, arrays: list[np.ndarray]) -> Any:
    """The results of a `ResultWriter` as a batch or a tuple of batches; None if that needs work per example.

    Handles numbers, arrays of one dimension, and tuples of these.
    """
    match kind:
        case types.Scalar() if kind.name != "none":
            scalar = {"b": bool, "f": float, "c": complex}.get(kind.kind, int) if kind.python else None
            return MaskedBatch.of_data(arrays.pop(0), (), None, scalar)
        case types.Array(ndim=1):
            lengths, values = arrays.pop(0), arrays.pop(0)
            if (lengths == lengths[0]).all():
                return MaskedBatch.of_data(values.reshape(len(lengths), -1), (int(lengths[0]),), None)
            size = Lengths(lengths)
            return MaskedBatch.of_data(pad_rows(values, size), (size,), None)
        case types.Tuple():
            parts = [batch_of(item, arrays) for item in kind.items]
            return tuple(parts) if parts and all(part is not None for part in parts) else None
    return None


def _unpack(kind: types.Type, arrays: list[np.ndarray], count: int) -> tuple[list[Any], list[np.ndarray]]:
    match kind:
        case None | types.Scalar(name="none"):
            return [None] * count, arrays
        case types.Scalar():
            return (arrays[0].tolist() if kind.python else list(arrays[0])), arrays[1:]
        case types.Union():
            tags, words, floats = arrays[:3]
            each = {tag: _scalars(_KINDS[tag], words, floats) for tag in np.unique(tags).tolist()}
            if len(each) == 1:
                return next(iter(each.values())), arrays[3:]
            made = [each[tag][place] for place, tag in enumerate(tags.tolist())]
            return made, arrays[3:]
        case types.Array():
            shapes = np.stack(arrays[: kind.ndim], axis=1) if kind.ndim else np.empty((count, 0), np.int64)
            views = split(arrays[kind.ndim], np.prod(shapes, axis=1).tolist())
            if kind.ndim != 1:
                views = [view.reshape(shape) for view, shape in zip(views, shapes.tolist(), strict=True)]
            return views, arrays[kind.ndim + 1 :]
        case types.Text():
            return split(arrays[1].tobytes().decode("utf-32-le", "surrogatepass"), arrays[0].tolist()), arrays[2:]
        case types.Maybe():
            there = arrays[0].tolist()
            found, rest = _unpack(kind.inner, arrays[1:], sum(there))
            inner = iter(found)
            return [next(inner) if is_there else None for is_there in there], rest
        case types.Tuple() | types.Struct():
            found = []
            for item in kind.items:
                column, arrays = _unpack(item, arrays, count)
                found.append(column)
            return rows_of(kind, found, count), arrays
        case types.List() | types.Dict():
            lengths = arrays[0].tolist()
            items, rest = _unpack(kind.elem, arrays[1:], sum(lengths))
            if isinstance(kind, types.List):
                return split(items, lengths), rest
            values, rest = _unpack(kind.value, rest, sum(lengths))
            return list(map(dict, split(list(zip(items, values, strict=True)), lengths))), rest
    raise AssertionError(kind)


def rows_of(kind: types.Tuple | types.Struct, found: Sequence[list[Any]], count: int) -> list[Any]:
    """The values whose parts are in these lists, one for each part."""
    rows = list(zip(*found, strict=True)) if found else [()] * count
    return [made_of(kind, row) for row in rows] if isinstance(kind, types.Struct) else rows


def made_of(kind: types.Struct, items: Sequence[Any]) -> Any:
    """A dict, dataclass object or named tuple with these parts."""
    if kind.cls is dict:
        return dict(zip(kind.names, items, strict=True))
    return kind.cls(**dict(zip(kind.names, items, strict=True)))


def _scalars(kind: types.Scalar, words: np.ndarray, floats: np.ndarray) -> list[Any]:
    """Numbers of one type, taken from all words or floats of a `Union`; entries of another type are meaningless."""
    if kind == NONE:
        return [None] * words.size
    values = floats if kind.kind == "f" else words
    if kind.python:
        return (values != 0).tolist() if kind == BOOL else values.tolist()
    with np.errstate(all="ignore"):
        return list(values.astype(kind.name))
