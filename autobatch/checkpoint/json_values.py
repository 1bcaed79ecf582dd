"""Python values as JSON and back, exactly; functions and classes by name: reading a file runs and imports nothing.

A dict key that is a string is stored as that string. Any other value is a JSON object whose first key is its type:
`{"value": 3}`, `{"float": "0.1"}`, `{"bytes": "aGk="}`, `{"tuple": [...]}`, `{"name": "numpy:tanh"}`.
"""

import base64
import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.checkpoint.tensor_files import numpy_dtype
from autobatch.errors import CheckpointError

BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, np.ufunc)
_GENERATORS = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}


def is_literal(value: object) -> bool:
    """True if JSON can express a leaf: a plain value, or a function, class or enum member, stored by name.

    >>> is_literal(None), is_literal(1.5), is_literal(np.tanh), is_literal(object())
    (True, True, True, False)
    """
    plain = type(value) in (type(None), bool, int, float, complex, str, bytes, slice, type(...), range)
    return plain or isinstance(value, (*BY_NAME, enum.Enum, np.dtype, np.random.Generator))


def to_literal(value: Any) -> dict[str, Any]:
    """A leaf for which `is_literal` holds, as JSON.

    >>> to_literal(float("nan")), to_literal(b"hi")
    ({'float': 'nan'}, {'bytes': 'aGk='})
    """
    cls = type(value)
    if value is None or cls in (bool, int, str):
        return {"value": value}
    if cls is float:
        return {"float": repr(value)}
    if cls is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if cls is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if value is ...:
        return {"ellipsis": None}
    if isinstance(value, slice | range):
        return {cls.__name__: [to_literal(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, enum.Enum):
        return {"enum": name_of(cls), "member": value.name}
    if isinstance(value, np.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, np.random.Generator):
        return {"generator": _plain_state(value.bit_generator.state)}
    return {"module": value.__name__} if isinstance(value, types.ModuleType) else {"name": name_of(value)}


def from_literal(node: dict[str, Any]) -> Any:
    """The inverse of `to_literal`.

    Raises:
        CheckpointError: the name of something that is not imported or does not exist.
    """
    said: Any
    first, said = next(iter(node.items()), ("", None))
    if first == "enum":
        return object_named(said)[node["member"]]
    if first not in _READ:
        raise CheckpointError(f"{node} names a value of an unknown kind")
    return _READ[first](said)


def _module(name: str) -> types.ModuleType:
    if name not in sys.modules:
        raise CheckpointError(f"the module {name} is not imported; import it first")
    return sys.modules[name]


def key_to_json(key: object) -> Any:
    """A key of a dict as JSON; None if JSON cannot express it."""
    if type(key) is str:
        return key
    if type(key) is tuple:
        parts = [key_to_json(part) for part in key]
        return None if None in parts else {"tuple": parts}
    if isinstance(key, np.generic):
        return {"scalar": [dtype_name(key.dtype), base64.b64encode(key.tobytes()).decode()]}
    return to_literal(key) if is_literal(key) and not isinstance(key, np.random.Generator) else None


def key_from_json(node: Any) -> Any:
    """The inverse of `key_to_json`."""
    if isinstance(node, str):
        return node
    if "scalar" in node:
        name, data = node["scalar"]
        return np.frombuffer(base64.b64decode(data), dtype_of_name(name))[0]
    return from_literal(node)


def name_of(value: Any) -> str:
    """`module:name` of a class or function."""
    module = getattr(value, "__module__", None) or ("numpy" if isinstance(value, np.ufunc) else "builtins")
    return f"{module}:{getattr(value, '__qualname__', None) or value.__name__}"


def object_named(name: str) -> Any:
    """The object with a name from `name_of`, in a module that is imported already: reading a file imports nothing.

    Raises:
        CheckpointError: the module is not imported, or has no such name.
    """
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None:
        raise CheckpointError(f"{name} is not imported; import {module} first, or give a tree to restore into")
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise CheckpointError(f"{module} has no {path}; give a tree to restore into, which shows what belongs there")
    return found


def dtype_name(dtype: np.dtype) -> Any:
    """A dtype as JSON: its string, or the list of its fields."""
    if dtype.fields is not None:
        return [_as_lists(part) for part in dtype.descr]
    return dtype.name if dtype.kind == "V" and dtype.name == "bfloat16" else dtype.str


def dtype_of_name(said: Any) -> np.dtype:
    """The inverse of `dtype_name`."""
    dtype = numpy_dtype(said) if isinstance(said, str) else np.dtype([_as_field(part) for part in said])
    if dtype.hasobject or dtype.subdtype is not None:
        raise CheckpointError(f"{said!r:.100} is not a dtype of stored arrays")
    return dtype


def _as_lists(part: object) -> Any:
    return [_as_lists(each) for each in part] if isinstance(part, list | tuple) else part


def _as_field(part: list[Any]) -> tuple[Any, ...]:
    name, own, *shape = part
    name = tuple(name) if isinstance(name, list) else name
    return (name, [_as_field(each) for each in own] if isinstance(own, list) else own, *map(tuple, shape))


def _plain_state(state: object) -> Any:
    if isinstance(state, dict):
        return {key: _plain_state(value) for key, value in state.items()}
    return {"words": state.tolist(), "dtype": state.dtype.str} if isinstance(state, np.ndarray) else state


def _generator(state: dict[str, Any]) -> np.random.Generator:
    if state["bit_generator"] not in _GENERATORS:
        raise CheckpointError(f"{state['bit_generator']!r} is not a NumPy bit generator")
    out = getattr(np.random, state["bit_generator"])()
    out.state = _array_state(state)
    return np.random.Generator(out)


def _array_state(state: object) -> Any:
    if isinstance(state, dict):
        if state.keys() == {"words", "dtype"}:
            return np.array(state["words"], state["dtype"])
        return {key: _array_state(value) for key, value in state.items()}
    return state


_READ: dict[str, Callable[[Any], Any]] = {
    "value": lambda said: said,
    "float": float,
    "complex": lambda said: complex(float(said[0]), float(said[1])),
    "bytes": base64.b64decode,
    "tuple": lambda said: tuple(map(key_from_json, said)),
    "ellipsis": lambda said: ...,
    "slice": lambda said: slice(*map(from_literal, said)),
    "range": lambda said: range(*map(from_literal, said)),
    "dtype": dtype_of_name,
    "generator": _generator,
    "module": _module,
    "name": object_named,
}
