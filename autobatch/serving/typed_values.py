"""What a request says as what a function's parameter is annotated with; what does not fit is named by its place.

`reader(annotation)` gives a function of a value and its path. Without an annotation a value stays what it is.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Path = tuple[Any, ...]
Read = Callable[[Any, Path, int], Any]  # of a value, its place, and how many levels it may have

_SHOWN = 40  # characters of what was given


class BadValueError(ValueError):
    """A value in a request of another type or form than expected.

    Attributes:
        path: where in it, as in "$.words[3]". expected, given: in words.
    """

    def __init__(self, path: Path, expected: str, given: str) -> None:
        self.path, self.expected, self.given = json_path(path), expected, given
        super().__init__(f"{self.path}: expected {expected}, got {given}")


def json_path(path: Path) -> str:
    """A place in a tree.

    >>> json_path(("words", 3))
    '$.words[3]'
    """
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)


def reader(annotation: Any) -> Read:
    """The reader of values of an annotated type.

    Args:
        annotation: `np.ndarray`, `NDArray[dtype]`, a NumPy scalar's class, int, float, bool, str, None, `list[...]`,
            `tuple[...]`, `dict[str, ...]`, `Literal`, unions, dataclasses, named tuples and typed dicts, nested and
            recursive. Anything else: the value as it is.

    Returns:
        A function (value, path, levels) -> value, which raises BadValueError.

    >>> reader(list[int])([1, 2.5], (), 10)
    Traceback (most recent call last):
      ...
    autobatch.serving.typed_values.BadValueError: $[1]: expected a whole number, got 2.5
    """
    return _read_of(annotation, {})


def _read_of(annotation: Any, known: dict[Any, Read]) -> Read:
    if annotation is None or annotation in (int, float, bool, str, type(None), np.ndarray):
        return _SIMPLE[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _one_of([_read_of(each, known) for each in args], args)
    if origin is typing.Annotated:
        return _read_of(args[0], known)
    if origin is typing.Literal:
        return lambda value, path, levels: value if _is_among(value, args) else _wrong(path, _listed(args), value)
    if origin is np.ndarray:
        kinds = typing.get_args(args[1]) if len(args) > 1 else ()
        return _array_of(np.dtype(kinds[0]) if kinds and _is_scalar(kinds[0]) else None)
    if _is_scalar(annotation):
        own = _array_of(np.dtype(annotation))
        return lambda value, path, levels: (
            _wrong(path, f"a number ({annotation.__name__})", value)
            if isinstance(value, list)
            else own(value, path, 1)[()]
        )
    if origin in (list, Sequence, typing.get_origin(typing.Sequence)) and args:
        item = _read_of(args[0], known)
        return lambda value, path, levels: _items(value, path, levels, item)
    if origin is tuple and args:
        return _tuple_of(args, known)
    if origin in (dict, Mapping) and len(args) == 2 and args[0] is str:
        item = _read_of(args[1], known)
        return lambda value, path, levels: {
            name: item(each, (*path, name), levels - 1) for name, each in _object(value, path, levels).items()
        }
    if isinstance(annotation, type) and _fields(annotation) is not None:
        return _record_of(annotation, known)
    return _as_it_is


def _is_scalar(annotation: Any) -> bool:
    kind = isinstance(annotation, type) and issubclass(annotation, np.number | np.bool_)
    return kind and annotation not in _ABSTRACT


_ABSTRACT = {np.number, np.integer, np.floating, np.inexact, np.signedinteger, np.unsignedinteger, np.complexfloating}


# Leaves.


def _as_it_is(value: Any, path: Path, levels: int) -> Any:
    """Any value whose numbers are finite and that is not nested too deep."""
    kind = type(value)
    if kind is list:
        _check_levels(path, levels)
        for at, each in enumerate(value):
            own = type(each)
            if own is list or own is dict or (own is float and each - each != 0.0):
                _as_it_is(each, (*path, at), levels - 1)
    elif kind is dict:
        _check_levels(path, levels)
        for name, each in value.items():
            _as_it_is(each, (*path, name), levels - 1)
    elif kind is float and not math.isfinite(value):
        _wrong(path, "a number of float64", value)
    return value


def _whole(value: Any, path: Path, levels: int) -> int:
    return value if type(value) is int else _wrong(path, "a whole number", value)


def _number(value: Any, path: Path, levels: int) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            _wrong(path, "a number of float64", value)
    return value if type(value) is float and math.isfinite(value) else _wrong(path, "a number", value)


def _kind_of(kind: type, says: str) -> Read:
    return lambda value, path, levels: value if type(value) is kind else _wrong(path, says, value)


def _array_of(dtype: np.dtype | None) -> Read:
    """An array: of a dtype, or of that which NumPy takes for the numbers."""

    def read(value: Any, path: Path, levels: int) -> np.ndarray:
        if isinstance(value, np.ndarray):
            if dtype is not None and value.dtype != dtype:
                raise BadValueError(path, f"an array of {dtype}", f"one of {value.dtype}")
            return value
        kinds: set[type] = set()
        shape = _shape(value, path, levels, kinds)
        if dtype is not None:
            _check_kinds(value, path, kinds, dtype)
        elif bool in kinds and len(kinds) > 1:
            raise BadValueError(path, "numbers, or truth values", "both")
        try:
            with np.errstate(over="ignore"):  # what becomes infinite is refused
                out = np.asarray(value, dtype)
        except OverflowError:
            out = np.asarray(value, object)
        if out.dtype.kind not in "biufc" or (kinds == {int} and dtype is None and out.dtype.kind != "i"):
            raise BadValueError(path, f"numbers of {dtype or 'int64 or float64'}", "a number that it does not hold")
        if out.dtype.kind == "f" and not np.isfinite(out).all():
            raise BadValueError(path, f"numbers of {out.dtype}", "a number that it does not hold")
        return out.reshape(shape) if out.size == 0 else out

    return read


def _shape(value: Any, path: Path, levels: int, kinds: set[type]) -> tuple[int, ...]:
    """The shape of nested lists of numbers, whose types go to `kinds`."""
    if type(value) is not list:
        if type(value) not in (int, float, bool):
            _wrong(path, "a number or a list of numbers", value)
        kinds.add(type(value))
        return ()
    _check_levels(path, levels)
    own = set(map(type, value))
    if list not in own:
        if not own <= {int, float, bool}:
            at = next(at for at, each in enumerate(value) if type(each) not in (int, float, bool))
            _wrong((*path, at), "a number", value[at])
        kinds |= own
        return (len(value),)
    first: tuple[int, ...] | None = None
    for at, each in enumerate(value):
        shape = _shape(each, (*path, at), levels - 1, kinds)
        if first is not None and shape != first:
            raise BadValueError(
                (*path, at), f"numbers of shape {first}, as at {json_path((*path, 0))}", f"shape {shape}"
            )
        first = shape
    assert first is not None
    return (len(value), *first)


def _check_kinds(value: Any, path: Path, kinds: set[type], dtype: np.dtype) -> None:
    """Whether numbers of these types are such of a dtype, without loss of what they are."""
    fits: set[type] = {int, float}
    if dtype.kind in "biu":
        fits = {bool} if dtype.kind == "b" else {int}
    if kinds <= fits:
        return
    place, given = next((place, each) for place, each in _leaves(value, path) if type(each) not in fits)
    _wrong(
        place, {"b": "true or false", "i": "a whole number", "u": "a whole number"}.get(dtype.kind, "a number"), given
    )


def _leaves(value: Any, path: Path) -> typing.Iterator[tuple[Path, Any]]:
    if type(value) is not list:
        yield path, value
        return
    for at, each in enumerate(value):
        yield from _leaves(each, (*path, at))


_SIMPLE: dict[Any, Read] = {
    int: _whole,
    float: _number,
    bool: _kind_of(bool, "true or false"),
    str: _kind_of(str, "a string"),
    None: _kind_of(type(None), "null"),
    type(None): _kind_of(type(None), "null"),
    np.ndarray: _array_of(None),
}


# What has parts.


def _items(value: Any, path: Path, levels: int, item: Read) -> list[Any]:
    return [item(each, (*path, at), levels - 1) for at, each in enumerate(_list(value, path, levels))]


def _list(value: Any, path: Path, levels: int) -> list[Any]:
    if type(value) is not list:
        _wrong(path, "a list", value)
    _check_levels(path, levels)
    return value


def _object(value: Any, path: Path, levels: int) -> dict[str, Any]:
    if type(value) is not dict:
        _wrong(path, "an object", value)
    _check_levels(path, levels)
    return value


def _tuple_of(args: tuple[Any, ...], known: dict[Any, Read]) -> Read:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _read_of(args[0], known)
        return lambda value, path, levels: tuple(_items(value, path, levels, item))
    items = [_read_of(each, known) for each in args]

    def read(value: Any, path: Path, levels: int) -> tuple[Any, ...]:
        if len(_list(value, path, levels)) != len(items):
            raise BadValueError(path, f"a list of {len(items)}", f"one of {len(value)}")
        pairs = zip(items, value, strict=True)
        return tuple(own(each, (*path, at), levels - 1) for at, (own, each) in enumerate(pairs))

    return read


def _one_of(reads: Sequence[Read], args: tuple[Any, ...]) -> Read:
    def read(value: Any, path: Path, levels: int) -> Any:
        found: BadValueError | None = None
        for own in reads:
            try:
                return own(value, path, levels)
            except BadValueError as error:
                if found is None or len(error.path) > len(found.path):  # the one that came farthest says most
                    found = error
        assert found is not None
        if found.path != json_path(path):
            raise found
        raise BadValueError(path, " or ".join(map(_name, args)), _shown(value))

    return read


def _fields(kind: type) -> dict[str, bool] | None:
    """The names of a record's fields, and which may be left out; None: it is none."""
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        fields = [each for each in dataclasses.fields(kind) if each.init]
        return {each.name: each.default is not missing or each.default_factory is not missing for each in fields}
    if issubclass(kind, tuple) and hasattr(kind, "_field_defaults"):
        return {name: name in kind._field_defaults for name in kind._fields}  # type: ignore[attr-defined]
    if typing.is_typeddict(kind):
        return {name: name in kind.__optional_keys__ for name in kind.__annotations__}  # type: ignore[attr-defined]
    return None


def _record_of(kind: type, known: dict[Any, Read]) -> Read:
    if kind in known:  # or being made: a tree's children are trees
        return lambda value, path, levels: known[kind](value, path, levels)
    known[kind] = _as_it_is
    fields = _fields(kind)
    assert fields is not None
    hints = typing.get_type_hints(kind)
    reads = {name: _read_of(hints.get(name, Any), known) for name in fields}

    def read(value: Any, path: Path, levels: int) -> Any:
        for name in _object(value, path, levels):
            if name not in fields:
                raise BadValueError((*path, name), f"one of {', '.join(fields)}", f"the name {name!r}")
        for name, optional in fields.items():
            if name not in value and not optional:
                raise BadValueError((*path, name), f"a value, as {kind.__name__} has", "nothing")
        parts = {name: reads[name](each, (*path, name), levels - 1) for name, each in value.items()}
        try:
            return kind(**parts)
        except Exception as error:  # of its __post_init__
            raise BadValueError(path, f"what {kind.__name__} takes", str(error) or type(error).__name__) from error

    known[kind] = read
    return read


# Words.


def _check_levels(path: Path, levels: int) -> None:
    if levels < 1:
        raise BadValueError(path, f"at most {len(path)} levels", "more")


def _is_among(value: Any, args: tuple[Any, ...]) -> bool:
    return any(type(value) is type(each) and value == each for each in args)


def _listed(args: tuple[Any, ...]) -> str:
    return "one of " + ", ".join(map(repr, args))


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _wrong(path: Path, expected: str, value: Any) -> typing.NoReturn:
    raise BadValueError(path, expected, _shown(value))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, list(value)[:4])) or 'nothing'}"[:_SHOWN]
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = f"the string {value!r}" if isinstance(value, str) else _digits(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _digits(value: Any) -> str:
    return (
        f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 64 else repr(value)
    )
