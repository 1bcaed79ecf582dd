"""Trees as JSON: `describe` splits a tree into JSON nodes and its arrays and tables; `rebuild` makes the tree again.

A node is a JSON object whose first key is its type. Containers are `dict`, `list`, `tuple` and `object` (attributes),
with their children and, unless it is Python's own, their `class`. Leaves are `array`, `kind` (see `KINDS`),
`table` (of keys), `parts` (a partitioned table of keys), `slot` (an optimiser's slot in a table of keys) and literals
(`json_values.py`). An array's value is the name of its entry, under which its elements are stored. Arrays that share
memory name the same entry, and share memory again when they are restored.
"""

import copyreg
import dataclasses
import itertools
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from autobatch.checkpoint import json_values
from autobatch.checkpoint.files import making
from autobatch.checkpoint.tensor_files import stored_dtype
from autobatch.core import parameter_trees, pytree
from autobatch.errors import BadIdError, CheckpointError, DTypeError, ShapeError, StructureError, UnsupportedError
from autobatch.optim.base import State
from autobatch.tables.keyed.features import Vocabulary
from autobatch.tables.keyed.keyed_table import KeyedTable
from autobatch.tables.keyed.partitioned import PartitionedVariable
from autobatch.tables.keyed.variable import EmbeddingVariable, SlotOf
from autobatch.tables.sparse import SparseRows
from autobatch.tables.table import EmbeddingTable, QuantizedTable, SplitTable

if TYPE_CHECKING:
    from autobatch.checkpoint.entry_reader import Entries

_BRANCHES: dict[str, type] = {"dict": dict, "object": object, "list": list, "tuple": tuple}
ANY: Any = object()  # no tree to restore into: use the saved structure


class StoredKind(NamedTuple):
    """How the objects of a class, those of subclasses excluded, are stored and rebuilt.

    Attributes:
        cls: the class.
        take: gives an object's settings, as JSON values, and its arrays by name.
        build: makes the object from settings and arrays.
        grows: its arrays have any length, so settings and shapes are the saved ones, not those of `like`.
    """

    cls: type
    take: Callable[[Any], tuple[dict[str, Any], Mapping[str, np.ndarray]]]
    build: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]
    grows: bool = False


def _quantized(settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> QuantizedTable:
    if settings.get("bits", 8) != 8:  # as earlier versions could save
        raise CheckpointError(f"a QuantizedTable of {settings['bits']!r:.20} bits, which this version does not support")
    return QuantizedTable(arrays["packed"])


# By names that are written into files, and so must not change.
KINDS: dict[str, StoredKind] = {
    "EmbeddingTable": StoredKind(
        EmbeddingTable,
        lambda table: ({"static": table.static}, {"weights": table.weights}),
        lambda settings, arrays: EmbeddingTable(arrays["weights"], settings["static"]),
    ),
    "SplitTable": StoredKind(
        SplitTable,
        lambda table: ({}, {str(i): chunk for i, chunk in enumerate(table.chunks)}),
        lambda settings, arrays: SplitTable([arrays[str(i)] for i in range(len(arrays))]),
    ),
    "QuantizedTable": StoredKind(QuantizedTable, lambda table: ({}, {"packed": table.packed}), _quantized),
    "SparseRows": StoredKind(
        SparseRows,
        lambda grad: ({"num_rows": grad.num_rows}, {"ids": np.asarray(grad.ids), "rows": np.asarray(grad.rows)}),
        lambda settings, arrays: SparseRows(arrays["ids"], arrays["rows"], settings["num_rows"]),
        grows=True,
    ),
    "Vocabulary": StoredKind(
        Vocabulary,
        lambda words: ({"grow": words.grow}, words.arrays()),
        lambda settings, arrays: Vocabulary.from_arrays(arrays, settings["grow"]),
        grows=True,
    ),
}


def kind_of(value: object) -> str | None:
    """The name in `KINDS` of a leaf's kind; None if it has none.

    >>> kind_of(EmbeddingTable(np.zeros((2, 3))))
    'EmbeddingTable'
    """
    return next((name for name, each in KINDS.items() if type(value) is each.cls), None)


@dataclasses.dataclass(slots=True)
class Contents:
    """The arrays and tables of a tree, which its description refers to by entry name.

    Attributes:
        arrays: by entry name.
        tables: of keys, by entry name.
    """

    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    tables: dict[str, Any] = dataclasses.field(default_factory=dict)
    _nodes: list[tuple[dict[str, Any], np.ndarray]] = dataclasses.field(default_factory=list)
    _known: dict[Any, str] = dataclasses.field(default_factory=dict)

    def name(self, path: tuple[str, ...]) -> str:
        """An unused entry name for a place in the tree."""
        plain = "/".join(path).replace("#", "_") or "value"  # entry#column is a tensor of an entry
        names = (plain if i == 0 else f"{plain}~{i}" for i in itertools.count())
        return next(name for name in names if name not in self.arrays and name not in self.tables)

    def add_array(self, path: tuple[str, ...], array: np.ndarray) -> dict[str, Any]:
        """Add an array, once if it occurs several times; returns its node."""
        key = _memory_of(array)
        entry = None if key is None else self._known.get(key)
        if entry is None:
            entry = self.name(path)
            self.arrays[entry] = array
            if key is not None:
                self._known[key] = entry
        node = {"array": entry, "dtype": json_values.dtype_name(array.dtype), "shape": list(array.shape)}
        if array.flags.f_contiguous and not array.flags.c_contiguous:
            node["order"] = "F"
        self._nodes.append((node, array))
        return node

    def share_memory(self) -> None:
        """Turn overlapping arrays into views of one entry, the base array of all of them.

        Raises:
            UnsupportedError: overlapping arrays that have no common contiguous base of the same dtype.
        """
        for names in list(_overlapping(self.arrays)):
            names.sort(key=list(self.arrays).index)
            roots = {id(root): root for root in (_root(self.arrays[name]) for name in names)}
            (root, *others) = roots.values()
            same = all(self.arrays[name].dtype == root.dtype for name in names)
            if others or not same or not (root.flags.c_contiguous or root.flags.f_contiguous):
                raise UnsupportedError(
                    f"{names[0]} and {names[1]} share memory, which restored arrays would not; save one of them, "
                    "and make the other from it where it is used"
                )
            flat = root.reshape(-1, order="A")
            for name in names:
                del self.arrays[name]
            self.arrays[names[0]] = flat
            start = flat.__array_interface__["data"][0]
            for node, array in self._nodes:
                if node["array"] in names:
                    offset = (array.__array_interface__["data"][0] - start) // array.itemsize
                    strides = [stride // array.itemsize for stride in array.strides]
                    node |= {"array": names[0], "offset": offset, "strides": strides, "whole": flat.size}
                    node.pop("order", None)


def _memory_of(array: np.ndarray) -> Any:
    """A key that is equal for arrays with the same memory, shape, strides and dtype; None for empty ones."""
    place = array.__array_interface__["data"][0]
    return (place, array.shape, array.strides, array.dtype) if array.size else None


def _root(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _overlapping(arrays: dict[str, np.ndarray]) -> Iterator[list[str]]:
    """Groups of names of arrays that share memory; one group for each connected piece of memory."""
    bounds = sorted((*np.lib.array_utils.byte_bounds(x), name) for name, x in arrays.items() if x.nbytes)
    group: list[str] = []
    end = 0
    for low, high, name in [*bounds, (float("inf"), 0, "")]:
        if low >= end:
            if len(group) > 1 and any(_share(arrays[a], arrays[b]) for a, b in itertools.combinations(group, 2)):
                yield group
            group = []
        group.append(name)
        end = max(end, high)


def _share(x: np.ndarray, y: np.ndarray) -> bool:
    try:
        return np.shares_memory(x, y, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def describe(tree: object, what: str, path: tuple[str, ...], contents: Contents) -> dict[str, Any]:
    """A tree as JSON; its arrays and tables are added to `contents`.

    Args:
        what: the tree's name in error messages, such as "params". path: the first components of entry names.

    Raises:
        UnsupportedError: a leaf that cannot be stored as data or by name. DTypeError: an array of Python objects.
        StructureError: an object that contains itself.
    """
    return _describe(tree, path, what, contents, ())


def _describe(
    value: object, path: tuple[str, ...], place: str, contents: Contents, above: tuple[Any, ...]
) -> dict[str, Any]:
    branch = _branch(value)
    if branch is None:
        return _leaf(value, path, place, contents)
    if any(value is each for each in above):
        raise StructureError(f"{place} is a {type(value).__name__} that contains itself; expected a tree")
    base, keys, parts, factory = branch
    children = [
        _describe(part, (*path, str(key)), place + pytree.step_to(base, key), contents, (*above, value))
        for key, part in zip(keys, parts, strict=True)
    ]
    node: dict[str, Any]
    if base is dict:
        said = [json_values.key_to_json(key) for key in keys]
        if None in said:
            raise UnsupportedError(f"{place} has the key {keys[said.index(None)]!r}; expected text or a number")
        node = {"dict": [list(pair) for pair in zip(said, children, strict=True)]}
        if factory is not None:
            if not json_values.is_literal(factory):
                raise UnsupportedError(f"{place} has the default {factory!r}; expected a class")
            node["factory"] = json_values.to_literal(factory)
    elif base is object:
        node = {"object": [list(pair) for pair in zip(keys, children, strict=True)]}
    else:
        node = {base.__name__: children}
    return node if type(value) in (base, State) else node | {"class": json_values.name_of(type(value))}


def _branch(value: object) -> tuple[type, tuple[Any, ...], list[Any], Any] | None:
    """(one of dict, list, tuple and object, keys, children, default factory); None for a leaf."""
    if pytree.is_node(value):
        base = next((each for each in (dict, list, tuple) if isinstance(value, each)), object)
        return (base, *pytree.children_of(value), getattr(value, "default_factory", None) if base is dict else None)
    if _is_its_attributes(value) and not json_values.is_literal(value):
        whole = kind_of(value) is not None or isinstance(value, SlotOf | PartitionedVariable)
        if whole or parameter_trees.is_array_like(value):
            return None
        parts = parameter_trees.parts_of(value)
        return object, tuple(parts), list(parts.values()), None
    return None


def _is_its_attributes(value: object) -> bool:
    """True if an object's attributes are its whole state: it has no state in C, for example."""
    if not _has_attributes(type(value)):
        return False
    if type(value) is types.SimpleNamespace:
        return True
    try:
        made = value.__reduce_ex__(2)
    except TypeError:  # pickle's error for an object with other state
        return False
    return made[:2] == (copyreg.__newobj__, (type(value),)) and made[3:] == (None, None)  # type: ignore[attr-defined]


def _has_attributes(cls: type) -> bool:
    """True for dataclasses, and for other Python classes that do not customise pickling."""
    if cls is types.SimpleNamespace or dataclasses.is_dataclass(cls):
        return True
    made_in_python = bool(cls.__flags__ & (1 << 9))  # Py_TPFLAGS_HEAPTYPE: the class was made by a class statement
    plain = cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__
    return made_in_python and plain and cls.__getstate__ is object.__getstate__


def _leaf(value: Any, path: tuple[str, ...], place: str, contents: Contents) -> dict[str, Any]:
    if type(value) in (np.ndarray, np.memmap):
        _check_dtype(value.dtype, place)
        return contents.add_array(path, value.view(np.ndarray))
    if isinstance(value, np.generic):
        _check_dtype(value.dtype, place)
        return contents.add_array(path, np.array(value)) | {"scalar": True}
    stored = kind_of(value)
    if stored is not None:
        settings, arrays = KINDS[stored].take(value)
        parts = {
            name: _leaf(array, path if len(arrays) == 1 else (*path, name), place, contents)
            for name, array in arrays.items()
        }
        return {"kind": stored, "settings": settings, "arrays": parts}
    if isinstance(value, SlotOf):
        return {"slot": value.name, "token": value.token}
    if isinstance(value, PartitionedVariable):
        return {"parts": [_leaf(part, (*path, str(i)), place, contents) for i, part in enumerate(value.parts)]}
    if isinstance(value, EmbeddingVariable):
        entry = next((name for name, table in contents.tables.items() if table is value), None)
        entry = contents.name(path) if entry is None else entry
        contents.tables[entry] = value
        beside = {name: _leaf(array, (*path, name), place, contents) for name, array in value.arrays().items()}
        return {"table": entry, "class": type(value).__name__, "settings": value.settings, "arrays": beside}
    if json_values.is_literal(value):
        return json_values.to_literal(value)
    made = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        raise UnsupportedError(f"{place} is a {made}; expected an array: np.asarray(...), or those that it is made of")
    raise UnsupportedError(
        f"{place} is a {made}, which cannot be stored; make its class a dataclass "
        "(@dataclasses.dataclass), or put its data into a dict"
    )


def _check_dtype(dtype: np.dtype, place: str) -> None:
    if dtype.hasobject:
        raise DTypeError(f"{place} is an array of Python objects; expected numbers or text of a fixed length")
    if json_values.dtype_of_name(json_values.dtype_name(dtype)) != dtype:
        raise DTypeError(f"{place} has dtype {dtype}, with gaps between its fields; write .astype(one without gaps)")


class Rebuilding:
    """Makes a tree from its description; an object that occurs several times is made once."""

    def __init__(self, entries: "Entries", initialised: list[str] | None) -> None:
        self._entries = entries
        self._initialised = initialised
        self._made: dict[str, Any] = {}

    def node(self, node: dict[str, Any], like: Any, path: str) -> Any:
        """The tree of a node, in the structure of `like`; another optimiser's state stays `like` (see `rebuild`)."""
        if self._initialised is None or not _is_optimizer_state(like):
            return self._node(node, like, path)
        known = len(self._initialised)
        try:
            saved = [key for key, _ in node.get("dict", ())]
            if set(map(str, saved)) != like.keys():
                raise StructureError(f"{path} was saved with {saved}; given is that of an optimiser with {list(like)}")
            return self._node(node, like, path)
        except (StructureError, ShapeError, DTypeError) as error:
            self._initialised[known:] = [str(error)]
            return like

    def _node(self, node: dict[str, Any], like: object, path: str) -> Any:
        said = next(iter(node), "")
        return self._branch(node, said, like, path) if said in _BRANCHES else self._leaf(node, like, path)

    def _missing(self, place: str, like: object) -> Any:
        if self._initialised is None:
            raise StructureError(f"{place} is not in the checkpoint; give a tree of what was saved, or a part of it")
        self._initialised.append(f"{place} was not saved")
        return like

    def _branch(self, node: dict[str, Any], said: str, like: object, path: str) -> Any:
        builtin, in_order = _BRANCHES[said], said in ("list", "tuple")
        key_of: Callable[[Any], Any] = json_values.key_from_json if said == "dict" else lambda key: key
        parts = {key_of(key): part for key, part in (enumerate(node[said]) if in_order else node[said])}
        cls: Any
        if like is not ANY:
            own, keys, likes, factory = _branch_like(like, path, node)
            cls = type(like)
            if own not in (list, tuple) or len(likes) != len(parts) if in_order else own is not builtin:
                raise StructureError(f"{path} was saved as a {_node_text(node)}; given is a {_like_text(like)}")
        else:
            cls, keys = self._class(node, builtin), tuple(parts)
            factory = json_values.from_literal(node["factory"]) if "factory" in node else None
            likes = [ANY] * len(keys)
            if builtin is object and {"__class__", "__dict__"} & parts.keys():
                raise CheckpointError(f"{path} has attributes that say what it is: {list(parts)!r:.200}")
        children = []
        for key, part_like in zip(keys, likes, strict=True):
            place = path + pytree.step_to(builtin, key)
            found = parts.get(key)
            children.append(self._missing(place, part_like) if found is None else self.node(found, part_like, place))
        return _construct(cls, keys, children, factory)

    def _class(self, node: dict[str, Any], builtin: type) -> type:
        if "class" not in node:
            return builtin
        found = json_values.object_named(node["class"])
        right = isinstance(found, type) and (
            _has_attributes(found) if builtin is object else issubclass(found, builtin)
        )
        if not right:
            plain = {key: value for key, value in node.items() if key != "class"}
            raise CheckpointError(f"{node['class']} is no longer a {_node_text(plain)}")
        return found

    def _leaf(self, node: dict[str, Any], like: object, path: str) -> Any:
        if like is not ANY and _branch(like) is not None:
            raise StructureError(f"{path} was saved as a {_node_text(node)}; given is a {_like_text(like)}")
        if "array" in node:
            if type(like) is EmbeddingTable:
                _check_like(node, like.weights, path)
                return EmbeddingTable(self._array(node), like.static)
            if like is not ANY:
                _check_like(node, like, path)
            return self._array(node)
        if "kind" in node:
            return self._stored_kind(node, like, path)
        if "table" in node or "parts" in node:
            if like is not ANY and not isinstance(like, EmbeddingVariable | PartitionedVariable):
                raise StructureError(f"{path} was saved as a {_node_text(node)}; given is a {_like_text(like)}")
            first = node["parts"][0] if "parts" in node else node
            dim = first["settings"].get("dim")
            if isinstance(like, KeyedTable) and dim not in (None, like.dim):
                raise ShapeError(f"{path} was saved with rows of {dim} numbers; given is one of dim={like.dim}")
            key = "table " + first["table"]
            return self._once(key, lambda: self._table_of_keys(node, like))
        if "slot" in node:
            if like is ANY:
                return self._entries.slots.get(node["token"], SlotOf(node["slot"], node["token"]))
            if node["token"] not in self._entries.slots:
                raise StructureError(f"{path} is the slot {node['slot']!r} of a table of keys that has no such slot")
            return self._entries.slots[node["token"]]
        if isinstance(like, np.ndarray | EmbeddingTable):
            raise StructureError(f"{path} was saved as a {_node_text(node)}; given is a {_like_text(like)}")
        if like is not ANY and {"name", "module"} & node.keys() and isinstance(like, json_values.BY_NAME):
            return like  # even if the saved name is that of another object
        return json_values.from_literal(node)

    def _stored_kind(self, node: dict[str, Any], like: object, path: str) -> Any:
        if node["kind"] not in KINDS:
            raise CheckpointError(f"{path} is a {node['kind']}, which this version does not support")
        stored, parts = KINDS[node["kind"]], node["arrays"]
        if isinstance(like, np.ndarray) and stored.cls is EmbeddingTable:
            return self._leaf(parts["weights"], like, path)
        settings = node["settings"]
        if like is not ANY:
            if type(like) is not stored.cls:
                raise StructureError(f"{path} was saved as a {node['kind']}; given is a {_like_text(like)}")
            if not stored.grows:
                settings, arrays = stored.take(like)
                if arrays.keys() != parts.keys():
                    raise StructureError(f"{path} was saved with {sorted(parts)}; given has {sorted(arrays)}")
                for name, part in parts.items():
                    _check_like(part, arrays[name], path)
        key = " ".join(["kind", node["kind"], *(str(part["array"]) for part in parts.values())])
        arrays = {name: self._array(part) for name, part in parts.items()}
        return self._once(key, lambda: stored.build(settings, arrays))

    def _table_of_keys(self, node: dict[str, Any], like: Any) -> Any:
        """A table of keys, partitioned as `like` is, or as it was saved."""
        single = like.parts[0] if isinstance(like, PartitionedVariable) else like
        found = [self._entries.table(part["table"], part, single) for part in node.get("parts", [node])]
        out: Any = PartitionedVariable(found) if "parts" in node else found[0]
        saved, wanted = (len(each.parts) if isinstance(each, PartitionedVariable) else None for each in (out, like))
        if like is ANY or saved == wanted:
            return out
        out = out.join() if wanted is None else out.partition(wanted)
        for part in [out] if wanted is None else out.parts:
            part.capacity = single.capacity
        return out

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _array(self, node: dict[str, Any]) -> Any:
        dtype, shape = json_values.dtype_of_name(node["dtype"]), tuple(node["shape"])
        if "strides" in node:
            flat = self._once("array " + node["array"], lambda: self._elements(node["array"], (node["whole"],), dtype))
            strides = [stride * dtype.itemsize for stride in node["strides"]]
            return np.ndarray(shape, dtype, flat, node["offset"] * dtype.itemsize, strides)
        out = self._once(
            "array " + node["array"], lambda: self._elements(node["array"], shape, dtype, node.get("order"))
        )
        return out[()] if node.get("scalar") else out

    def _elements(self, entry: str, shape: tuple[int, ...], dtype: np.dtype, order: str | None = None) -> np.ndarray:
        stored = stored_dtype(dtype)
        if stored is not None:
            out = self._entries.array(entry, shape, stored).astype(dtype, copy=False)
        elif dtype.itemsize:
            data = self._entries.array(entry, (*shape, dtype.itemsize), np.dtype(np.uint8))
            out = np.ascontiguousarray(data).view(dtype).reshape(shape)
        elif math.prod(shape) > 1 << 24:  # elements of an array whose elements take no bytes in the file
            raise CheckpointError(f"{entry!r:.100} is an array of shape {shape} of elements without bytes")
        else:
            out = np.zeros(shape, dtype)
        return np.asfortranarray(out) if order == "F" else out


def rebuild(
    node: dict[str, Any], like: object, what: str, entries: "Entries", initialised: list[str] | None = None
) -> Any:
    """The tree of a description; the inverse of `describe`.

    Args:
        like: a tree with the wanted structure: the saved one, or with fewer keys in its dicts and objects. It is not
            written to. `ANY`: the saved structure.
        initialised: a list that gets a text for each place where `like` is used as it is: a key that was not saved, or
            the state of another optimiser. None: these are errors.

    Raises:
        StructureError, ShapeError, DTypeError: names the first place where `like` differs from the saved tree.
    """
    differs = () if like is ANY else (StructureError, ShapeError, DTypeError, BadIdError, UnsupportedError)
    with making(f"{what} of {entries.path}", passing=differs):
        return Rebuilding(entries, initialised).node(node, like, what)


def _is_optimizer_state(like: object) -> bool:
    """True for a state from `Optimizer.init`, some slots of which would be meaningless without the others."""
    return isinstance(like, dict) and type(like.get("step")) is int


def _branch_like(like: object, path: str, node: dict[str, Any]) -> tuple[type, tuple[Any, ...], list[Any], Any]:
    branch = _branch(like)
    if branch is None:
        raise StructureError(f"{path} was saved as a {_node_text(node)}; given is a {_like_text(like)}")
    return branch


def _check_like(node: dict[str, Any], like: object, path: str) -> None:
    """Raise unless a saved array may take the place of `like`."""
    if not isinstance(like, np.ndarray | np.generic):
        if isinstance(like, float | int) and node.get("scalar"):
            return
        raise StructureError(f"{path} was saved as a {_node_text(node)}; given is a {_like_text(like)}")
    if list(like.shape) != node["shape"]:
        raise ShapeError(f"{path} was saved with shape {tuple(node['shape'])}; given is {like.shape}")
    if like.dtype != json_values.dtype_of_name(node["dtype"]):
        raise DTypeError(
            f"{path} was saved with dtype {json_values.dtype_of_name(node['dtype'])}; given is {like.dtype}: restore "
            "into the saved dtype, and convert it with .astype"
        )


def _construct(cls: Any, keys: tuple[Any, ...], children: list[Any], factory: object) -> Any:
    """A container or object made of its parts."""
    if not issubclass(cls, dict | list | tuple):
        return pytree.new_object(cls, dict(zip(keys, children, strict=True)))
    structure = pytree.TreeDef(cls, keys, tuple(pytree.leaf_def for _ in children), factory)
    return pytree.unflatten(structure, children)


def _node_text(node: dict[str, Any]) -> str:
    """A description of a node, for error messages."""
    said = next(iter(node), "")
    if said in ("dict", "object"):
        return f"{node.get('class', said)} with {[key for key, _ in node[said]]}"
    if said in ("list", "tuple"):
        return f"{node.get('class', said)} of {len(node[said])}"
    if said == "array":
        return f"{node['dtype']} array of shape {tuple(node['shape'])}"
    if said == "parts":
        return f"table of keys in {len(node['parts'])} parts"
    return str(node["kind"] if said == "kind" else node.get("class", "table") if said == "table" else node)


def _like_text(like: object) -> str:
    if isinstance(like, dict):
        return f"{type(like).__name__} with {list(like)}"
    return f"{type(like).__name__}{f' of {len(like)}' if isinstance(like, list | tuple) else ''}"
