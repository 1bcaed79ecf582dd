"""Decodes and encodes the bodies of requests and answers: JSON, one array as .npy, arrays by name as safetensors.

What does not parse is `BadValueError`, which `serving/app.py` answers with 422. The sizes that a body states are
checked against its own length before memory is allocated for them. Nothing is decompressed, and nothing is unpickled.
"""

import dataclasses
import io
import json
import math
import tokenize
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.checkpoint.files import Files
from autobatch.checkpoint.tensor_files import Tensor, TensorReader, TensorWriter, stored_dtype
from autobatch.core.pytree import attributes
from autobatch.errors import CheckpointError
from autobatch.serving.typed_values import BadValueError, json_path

JSON, NPY, SAFETENSORS = "application/json", "application/x-npy", "application/safetensors"


class UnsuitedResultError(TypeError):
    """A result that cannot be encoded in the requested media type."""


def decode(kind: str, body: bytes) -> Any:
    """The value in a body of media type `kind`: JSON, NPY or SAFETENSORS.

    Raises:
        BadValueError: the body does not parse.

    >>> decode(JSON, b'{"words": [3, 1]}')
    {'words': [3, 1]}
    >>> decode(JSON, b"[1, NaN]")
    Traceback (most recent call last):
      ...
    autobatch.serving.typed_values.BadValueError: $: expected JSON, got NaN, which JSON does not have
    """
    return _DECODERS[kind](body)


def _json(body: bytes) -> Any:
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except BadValueError:
        raise
    except RecursionError:
        raise BadValueError((), "JSON that is not nested so deep", "more levels than Python has room for") from None
    except json.JSONDecodeError as error:
        given = f"{len(body)} bytes with an error at line {error.lineno}, column {error.colno}: {error.msg}"
        raise BadValueError((), "JSON", given) from None
    except UnicodeDecodeError as error:
        raise BadValueError((), "JSON in UTF-8", f"a byte at {error.start} that is not UTF-8") from None
    except ValueError as error:  # a number with more digits than Python reads
        raise BadValueError((), "JSON with numbers of reasonable length", str(error)) from None


def _refuse_constant(name: str) -> Any:
    raise BadValueError((), "JSON", f"{name}, which JSON does not have")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadValueError((), "an object whose names differ", f"{twice!r} twice")
    return out


def _npy(body: bytes) -> np.ndarray:
    stream = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, MemoryError, RecursionError, Warning) as error:
        raise BadValueError((), "a .npy file", f"{len(body)} bytes that are none ({_first_line(error)})") from None
    start = stream.tell()
    if dtype.hasobject or any(type(size) is not int or size < 0 for size in shape) or not dtype.itemsize:
        raise BadValueError((), "a .npy file of numbers", f"an array of shape {shape} and dtype {dtype}")
    if math.prod(shape) * dtype.itemsize != len(body) - start:
        given = f"{len(body) - start} bytes for an array of shape {shape} and dtype {dtype}"
        raise BadValueError((), f"{math.prod(shape) * dtype.itemsize} bytes after the header", given)
    try:
        out = np.frombuffer(body, dtype, offset=start) if math.prod(shape) else np.empty(0, dtype)
        return out.reshape(shape, order="F" if by_columns else "C").copy(order="K")
    except ValueError as error:
        raise BadValueError((), "a .npy file", _first_line(error)) from None


def _safetensors(body: bytes) -> dict[str, np.ndarray]:
    try:
        with TensorReader(_MemoryFile(bytearray(body)), "the body") as reader:
            return {name: reader.read(name) for name in reader.tensors}
    except (CheckpointError, ValueError, TypeError, OverflowError, MemoryError, RecursionError, Warning) as error:
        raise BadValueError((), "a safetensors file", _first_line(error)) from None


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object)
_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
_DECODERS: dict[str, Callable[[bytes], Any]] = {JSON: _json, NPY: _npy, SAFETENSORS: _safetensors}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def encode(kind: str, value: Any) -> bytes:
    """A result as a body.

    Numbers that JSON lacks become the strings "NaN", "Infinity" and "-Infinity", as in Protocol Buffers' JSON.

    Args:
        kind: the media type: JSON, NPY or SAFETENSORS.

    Raises:
        UnsuitedResultError: the result cannot be encoded in this type; the message names the place in the result.

    >>> encode(JSON, {"tags": np.array([1, 2]), "score": np.float32(0.5), "worst": -np.inf})
    b'{"tags":[1,2],"score":0.5,"worst":"-Infinity"}'
    """
    if kind == JSON:
        try:
            plain = _plain(value, ())
            try:
                return _ENCODER.encode(plain).encode()
            except ValueError:  # a NaN or an infinity
                return _ENCODER.encode(_nonfinite_as_strings(plain)).encode()
        except RecursionError:
            raise UnsuitedResultError("the result has more levels than Python has room for, or holds itself") from None
        except ValueError as error:  # an integer with more digits than Python writes
            raise UnsuitedResultError(f"the result has no form in JSON: {error}") from None
    if kind == NPY:
        array = _array(value, ())
        out = io.BytesIO()
        np.lib.format.write_array(out, array, allow_pickle=False)
        return out.getvalue()
    arrays = {name: _array(each, (name,)) for name, each in value.items()} if isinstance(value, dict) else None
    if arrays is None:
        arrays = {"result": _array(value, ())}
    return _tensor_file(arrays)


def _array(value: Any, path: tuple[Any, ...]) -> np.ndarray:
    if not isinstance(value, np.ndarray | np.generic | int | float | complex) or np.asarray(value).dtype.hasobject:
        raise UnsuitedResultError(f"the result at {json_path(path)} is a {type(value).__name__}, and no array")
    return np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)


def _tensor_file(arrays: dict[str, np.ndarray]) -> bytes:
    stored = {}
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise UnsuitedResultError(f"the result is a dict with the key {name!r}, and no text")
        dtype = stored_dtype(array.dtype)
        if dtype is None:
            raise UnsuitedResultError(f"safetensors has no dtype {array.dtype}, which the result at {name!r} has")
        stored[name] = array.astype(dtype, copy=False)
    memory = _MemoryFile(bytearray())
    writer = TensorWriter(memory, "", [Tensor(name, each.dtype, each.shape) for name, each in stored.items()], {})
    for name, array in stored.items():
        writer.append(name, array)
    writer.finish()
    return bytes(memory.data)


def _plain(value: Any, path: tuple[Any, ...]) -> Any:
    """A result as None, bool, int, float, str, list and dict, which JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biufU" or value.dtype.char == "g":
            said = f"an array of {value.dtype}"
            raise UnsuitedResultError(f"the result at {json_path(path)} is {said}; ask for it with Accept: {NPY}")
        return value.tolist()
    if isinstance(value, float):
        return value
    if isinstance(value, dict):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise UnsuitedResultError(f"the result at {json_path(path)} is a dict with the key {wrong!r}, and no text")
        return {str(key): _plain(each, (*path, key)) for key, each in value.items()}
    names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = attributes(value)
    if names is not None:
        return {name: _plain(getattr(value, name), (*path, name)) for name in names}
    if isinstance(value, list | tuple):
        return [_plain(each, (*path, at)) for at, each in enumerate(value)]
    raise UnsuitedResultError(f"the result at {json_path(path)} is a {type(value).__name__}, which JSON does not have")


def _nonfinite_as_strings(plain: Any) -> Any:
    """The same tree with the strings "NaN", "Infinity" and "-Infinity" in place of those numbers."""
    if isinstance(plain, list):
        return [_nonfinite_as_strings(each) for each in plain]
    if isinstance(plain, dict):
        return {key: _nonfinite_as_strings(each) for key, each in plain.items()}
    if not isinstance(plain, float) or math.isfinite(plain):
        return plain
    return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"


class _MemoryFile(Files):
    """`Files` with a single file, which is in memory."""

    def __init__(self, data: bytearray) -> None:
        self.data = data

    def create(self, path: str) -> Any:
        return self

    def open(self, path: str) -> Any:
        return self

    def size(self, handle: Any) -> int:
        return len(self.data)

    def read_into(self, handle: Any, out: Any, offset: int) -> int:
        part = self.data[offset : offset + len(out)]
        out[: len(part)] = part
        return len(part)

    def write(self, handle: Any, data: Any, offset: int) -> int:
        if len(self.data) < offset + len(data):
            self.data.extend(bytes(offset + len(data) - len(self.data)))
        self.data[offset : offset + len(data)] = data
        return len(data)

    def begin_flush(self, handle: Any, offset: int, length: int) -> None:
        return None

    def flush(self, handle: Any) -> None:
        return None

    def close(self, handle: Any) -> None:
        return None
