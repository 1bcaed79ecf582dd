"""Decodes and encodes the bodies of requests and answers: JSON, one array as .npy, arrays by name as safetensors.

What does not parse is `BadValueError`, which `serving/app.py` answers with 422. The size that a .npy body states is
checked against its own length before memory is allocated for it. Nothing is decompressed, and nothing is unpickled.
"""

import dataclasses
import io
import json
import math
import tokenize
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from autobatch.checkpoint.tensor_files import stored_dtype, tensor_dtype
from autobatch.core.pytree import attributes
from autobatch.errors import CheckpointError
from autobatch.serving.typed_values import BadValueError

JSON, NPY, SAFETENSORS = "application/json", "application/x-npy", "application/safetensors"
_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))


class UnsuitedResultError(TypeError):
    """A result that cannot be encoded in the requested media type."""


def decode(media_type: str, body: bytes) -> Any:
    """The value in a body of this media type: JSON, NPY or SAFETENSORS.

    Raises:
        BadValueError: the body does not parse.

    >>> decode(JSON, b'{"words": [3, 1]}')
    {'words': [3, 1]}
    >>> decode(JSON, b"[1, NaN]")
    Traceback (most recent call last):
      ...
    autobatch.serving.typed_values.BadValueError: $: expected JSON, got JSON is malformed: invalid character (byte 4)
    """
    read, name = _DECODERS[media_type]
    try:
        return read(body)
    except BadValueError:
        raise
    except RecursionError:
        raise BadValueError("$", f"{name} that is not nested so deep", "more levels than Python has room for") from None
    except _NO_BODY as error:
        raise BadValueError("$", name, (str(error).splitlines() or [type(error).__name__])[0]) from None


def _npy(body: bytes) -> np.ndarray:
    stream = io.BytesIO(body)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject or any(type(size) is not int or size < 0 for size in shape) or not dtype.itemsize:
        raise BadValueError("$", "a .npy file of numbers", f"an array of shape {shape} and dtype {dtype}")
    size, given = math.prod(shape) * dtype.itemsize, len(body) - stream.tell()
    if size != given:
        raise BadValueError("$", f"{size} bytes after the header", f"{given} for shape {shape} and dtype {dtype}")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _safetensors(body: bytes) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(said["data"], tensor_dtype(said["dtype"])).reshape(said["shape"]).copy()
        for name, said in sorted(safetensors.deserialize(body))  # which come in any order
    }


_DECODERS: dict[str, tuple[Callable[[bytes], Any], str]] = {
    JSON: (msgspec.json.decode, "JSON"),
    NPY: (_npy, "a .npy file"),
    SAFETENSORS: (_safetensors, "a safetensors file"),
}
_NO_BODY = (  # what these raise for bytes that are no such body
    ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError, OverflowError, MemoryError, Warning,
    safetensors.SafetensorError, CheckpointError,
)  # fmt: skip


def encode(media_type: str, value: object) -> bytes:
    """A result as a body.

    Numbers that JSON lacks become the strings "NaN", "Infinity" and "-Infinity", as in Protocol Buffers' JSON.

    Args:
        media_type: JSON, NPY or SAFETENSORS.

    Raises:
        UnsuitedResultError: the result cannot be encoded in this type; the message names the place in the result.

    >>> encode(JSON, {"tags": np.array([1, 2]), "score": np.float32(0.5), "worst": -np.inf})
    b'{"tags":[1,2],"score":0.5,"worst":"-Infinity"}'
    """
    if media_type == JSON:
        try:
            return _ENCODER.encode(_plain(value, ())).encode()
        except RecursionError:
            raise UnsuitedResultError("the result is nested too deeply for Python, or contains itself") from None
        except ValueError as error:  # an integer with more digits than Python writes
            raise UnsuitedResultError(f"the result cannot be written as JSON: {error}") from None
    if media_type == NPY:
        out = io.BytesIO()
        np.lib.format.write_array(out, _array(value, ()), allow_pickle=False)
        return out.getvalue()
    arrays = {}
    for name, each in value.items() if isinstance(value, dict) else [("result", value)]:
        if not isinstance(name, str):
            raise UnsuitedResultError(f"the result is a dict with the key {name!r}, not text")
        array = _array(each, (name,) if isinstance(value, dict) else ())
        dtype = stored_dtype(array.dtype)
        if dtype is None:
            raise UnsuitedResultError(f"safetensors has no dtype {array.dtype}, which the result at {name!r} has")
        arrays[name] = array.astype(dtype, copy=False)
    return safetensors.numpy.save(arrays)


def _array(value: object, path: tuple[Any, ...]) -> np.ndarray:
    if not isinstance(value, np.ndarray | np.generic | int | float | complex) or np.asarray(value).dtype.hasobject:
        raise UnsuitedResultError(f"the result at {_place(path)} is of type {type(value).__name__}, not an array")
    return np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)


def _plain(value: object, path: tuple[Any, ...]) -> Any:
    """A result as None, bool, int, finite float, str, list and dict, which JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biufU" or value.dtype.char == "g":
            said = f"an array of {value.dtype}"
            raise UnsuitedResultError(f"the result at {_place(path)} is {said}; ask for it with Accept: {NPY}")
        out = value.tolist()
        return out if value.dtype.kind != "f" or np.isfinite(value).all() else _plain(out, path)
    if isinstance(value, float):
        infinite = "Infinity" if value > 0 else "-Infinity"
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else infinite
    if isinstance(value, dict):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise UnsuitedResultError(f"the result at {_place(path)} is a dict with the key {wrong!r}, not text")
        return {str(key): _plain(each, (*path, key)) for key, each in value.items()}
    names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = attributes(value)
    if names is not None:
        return {name: _plain(getattr(value, name), (*path, name)) for name in names}
    if isinstance(value, list | tuple):
        return [_plain(each, (*path, at)) for at, each in enumerate(value)]
    raise UnsuitedResultError(f"the result at {_place(path)} is of type {type(value).__name__}, unknown to JSON")


def _place(path: tuple[Any, ...]) -> str:
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
