"""Reads values in a request as the types that a function's parameters are annotated with; errors name the place.

`reader(annotation)` gives a function that reads a value. Without an annotation a value stays as it is. A bad value's
place is assembled while its exception passes through the readers of its containers, so good values pay nothing for it.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Path = tuple[Any, ...]
Read = Callable[[Any, int], Any]  # of a value, and how many levels of nesting it may have

_SHOWN = 40  # the most characters of a given value in a message


class BadValueError(ValueError):
    """A value in a request of another type or form than expected.

    Args:
        place: its path in the request. expected: a text, or a function from the whole path to one. given: a text.
    """

    def __init__(self, place: Path, expected: str | Callable[[Path], str], given: str) -> None:
        super().__init__()
        self.place, self.given = place, given
        self._expected = expected

    def prepend_path(self, name: Any) -> None:
        """Note that the value is the part of a larger value with this name or index."""
        self.place = (name, *self.place)

    @property
    def path(self) -> str:
        """The place as text, as in "$.words[3]"."""
        return json_path(self.place)

    @property
    def expected(self) -> str:
        """What was expected, as text."""
        return self._expected if isinstance(self._expected, str) else self._expected(self.place)

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.given}"


def json_path(path: Path) -> str:
    """A place in a tree, as text.

    >>> json_path(("words", 3))
    '$.words[3]'
    """
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)


def reader(annotation: Any) -> Read:
    """The reader of values of an annotated type.

    Args:
        annotation: `np.ndarray`, `NDArray[dtype]`, a NumPy scalar's class, int, float, bool, str, None, `list[...]`,
            `tuple[...]`, `dict[str, ...]`, `Literal`, unions, dataclasses, named tuples and typed dicts, nested and
            recursive. For anything else the reader returns the value as it is.

    Returns:
        A function (value, levels) -> value, which raises BadValueError.

    >>> reader(list[int])([1, 2.5], 10)
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
        return _union_of([_read_of(each, known) for each in args], args)
    if origin is typing.Annotated:
        return _read_of(args[0], known)
    if origin is typing.Literal:
        listed = f"one of {', '.join(map(repr, args))}"
        return lambda value, levels: value if _is_among(value, args) else _reject(listed, value)
    if origin is np.ndarray:
        kinds = typing.get_args(args[1]) if len(args) > 1 else ()
        return _array_of(np.dtype(kinds[0]) if kinds and _is_scalar(kinds[0]) else None)
    if _is_scalar(annotation):
        own = _array_of(np.dtype(annotation))
        return lambda value, levels: (
            _reject(f"a number ({annotation.__name__})", value) if isinstance(value, list) else own(value, 1)[()]
        )
    if origin in (list, Sequence, typing.get_origin(typing.Sequence)) and args:
        item = _read_of(args[0], known)
        return _list_of(item)
    if origin is tuple and args:
        return _tuple_of(args, known)
    if origin in (dict, Mapping) and len(args) == 2 and args[0] is str:
        item = _read_of(args[1], known)
        return lambda value, levels: object_of(dict.fromkeys(value, item) if type(value) is dict else {}, set())(
            value, levels
        )
    if isinstance(annotation, type) and _fields(annotation) is not None:
        return _record_of(annotation, known)
    return _plain_json


def _is_scalar(annotation: Any) -> bool:
    kind = isinstance(annotation, type) and issubclass(annotation, np.number | np.bool_)
    return kind and annotation not in _ABSTRACT


_ABSTRACT = {np.number, np.integer, np.floating, np.inexact, np.signedinteger, np.unsignedinteger, np.complexfloating}


# Leaves.


def _plain_json(value: Any, levels: int) -> Any:
    """The value, if its numbers are finite and it is not nested too deeply."""
    kind = type(value)
    if kind is list or kind is dict:
        _check_levels(levels)
        for at, each in enumerate(value) if kind is list else value.items():
            own = type(each)
            if own is list or own is dict or (own is float and each - each != 0.0):
                try:
                    _plain_json(each, levels - 1)
                except BadValueError as error:
                    error.prepend_path(at)
                    raise
    elif kind is float and not math.isfinite(value):
        _reject("a number of float64", value)
    return value


def _integer(value: Any, levels: int) -> int:
    return value if type(value) is int else _reject("a whole number", value)


def _number(value: Any, levels: int) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            _reject("a number of float64", value)
    return value if type(value) is float and math.isfinite(value) else _reject("a number", value)


def _kind_of(kind: type, says: str) -> Read:
    return lambda value, levels: value if type(value) is kind else _reject(says, value)


def _array_of(dtype: np.dtype | None) -> Read:
    """The reader of arrays of a dtype; None: of the dtype that NumPy chooses for the numbers."""

    def read(value: Any, levels: int) -> np.ndarray:
        if isinstance(value, np.ndarray):
            if dtype is not None and value.dtype != dtype:
                raise BadValueError((), f"an array of {dtype}", f"one of {value.dtype}")
            if value.dtype.kind not in "biufcmM":
                raise BadValueError((), "an array of numbers", f"one of {value.dtype}")
            return value
        kinds: set[type] = set()
        shape = _shape(value, levels, kinds)
        if dtype is not None:
            _check_kinds(value, kinds, dtype)
        elif bool in kinds and len(kinds) > 1:
            raise BadValueError((), "numbers, or truth values", "both")
        try:
            with np.errstate(over="ignore"):  # what becomes infinite is refused below
                out = np.asarray(value, dtype)
        except OverflowError:
            out = np.asarray(value, object)
        except ValueError:  # more dimensions than NumPy has
            raise BadValueError((), "lists of fewer levels, for an array", f"{len(shape)}") from None
        if out.dtype.kind not in "biufc" or (kinds == {int} and dtype is None and out.dtype.kind != "i"):
            raise BadValueError((), f"numbers of {dtype or 'int64 or float64'}", "a number that it does not hold")
        if out.dtype.kind == "f" and not np.isfinite(out).all():
            raise BadValueError((), f"numbers of {out.dtype}", "a number that it does not hold")
        return out.reshape(shape) if out.size == 0 else out

    return read


def _shape(value: Any, levels: int, kinds: set[type]) -> tuple[int, ...]:
    """The shape of nested lists of numbers; adds the numbers' types to `kinds`."""
    if type(value) is not list:
        if type(value) not in (int, float, bool):
            _reject("a number or a list of numbers", value)
        kinds.add(type(value))
        return ()
    _check_levels(levels)
    own = set(map(type, value))
    if list not in own:
        if not own <= {int, float, bool}:
            at = next(at for at, each in enumerate(value) if type(each) not in (int, float, bool))
            raise BadValueError((at,), "a number", _shown(value[at]))
        kinds |= own
        return (len(value),)
    shapes: list[tuple[int, ...]] = []
    try:
        for each in value:
            shapes.append(_shape(each, levels - 1, kinds))
    except BadValueError as error:
        error.prepend_path(len(shapes))
        raise
    for at, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise BadValueError(
                (at,),
                lambda place: f"numbers of shape {shapes[0]}, as at {json_path((*place[:-1], 0))}",
                f"shape {shape}",
            )
    return (len(value), *shapes[0])


def _check_kinds(value: Any, kinds: set[type], dtype: np.dtype) -> None:
    """Raise unless numbers of these types suit a dtype: bool for bool, int for integers, int and float for others."""
    fits: set[type] = {int, float}
    if dtype.kind in "biu":
        fits = {bool} if dtype.kind == "b" else {int}
    if kinds <= fits:
        return
    place, given = next((place, each) for place, each in _leaves(value, ()) if type(each) not in fits)
    words = {"b": "true or false", "i": "a whole number", "u": "a whole number"}.get(dtype.kind, "a number")
    raise BadValueError(place, words, _shown(given))


def _leaves(value: Any, path: Path) -> typing.Iterator[tuple[Path, Any]]:
    if type(value) is not list:
        yield path, value
        return
    for at, each in enumerate(value):
        yield from _leaves(each, (*path, at))


_SIMPLE: dict[Any, Read] = {
    int: _integer,
    float: _number,
    bool: _kind_of(bool, "true or false"),
    str: _kind_of(str, "a string"),
    None: _kind_of(type(None), "null"),
    type(None): _kind_of(type(None), "null"),
    np.ndarray: _array_of(None),
}


# Containers.


def _list_of(item: Read) -> Read:
    def read(value: Any, levels: int) -> list[Any]:
        if type(value) is not list:
            _reject("a list", value)
        _check_levels(levels)
        out: list[Any] = []
        try:
            for each in value:
                out.append(item(each, levels - 1))
        except BadValueError as error:
            error.prepend_path(len(out))
            raise
        return out

    return read


def object_of(reads: Mapping[str, Read], optional: set[str], wanted: str = "a value") -> Read:
    """The reader of an object, each value by the reader of its name; `wanted`: what is expected of a missing value."""

    def read(value: Any, levels: int) -> dict[str, Any]:
        if type(value) is not dict:
            _reject("an object", value)
        _check_levels(levels)
        if value.keys() != reads.keys():
            for name in value:
                if name not in reads:
                    raise BadValueError((name,), f"one of {', '.join(reads)}", f"the name {name!r}")
            for name in reads:
                if name not in value and name not in optional:
                    raise BadValueError((name,), wanted, "nothing")
        out = {}
        try:
            for name, each in value.items():
                out[name] = reads[name](each, levels - 1)
        except BadValueError as error:
            error.prepend_path(name)
            raise
        return out

    return read


def _tuple_of(args: tuple[Any, ...], known: dict[Any, Read]) -> Read:
    if len(args) == 2 and args[1] is Ellipsis:
        items = _list_of(_read_of(args[0], known))
        return lambda value, levels: tuple(items(value, levels))
    own = [_read_of(each, known) for each in args]

    def read(value: Any, levels: int) -> tuple[Any, ...]:
        following = iter(own)
        if type(value) is list and len(value) != len(own):
            raise BadValueError((), f"a list of {len(own)}", f"one of {len(value)}")
        return tuple(_list_of(lambda each, levels: next(following)(each, levels))(value, levels))

    return read


def _union_of(reads: Sequence[Read], args: tuple[Any, ...]) -> Read:
    def read(value: Any, levels: int) -> Any:
        found: BadValueError | None = None
        for own in reads:
            try:
                return own(value, levels)
            except BadValueError as error:
                if found is None or len(error.place) > len(found.place):  # the deepest error says most
                    found = error
        assert found is not None
        if found.place:
            raise found
        names = [each.__name__ if isinstance(each, type) else str(each) for each in args]
        raise BadValueError((), " or ".join(names), _shown(value))

    return read


def _fields(kind: type) -> dict[str, bool] | None:
    """By name, whether a field of a record class may be left out; None if `kind` is not a record class."""
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
    if kind in known:  # made before, or being made: record classes may be recursive
        return known[kind]
    fields, reads = _fields(kind), dict[str, Read]()
    assert fields is not None
    optional = {name for name, may_miss in fields.items() if may_miss}
    parts = object_of(reads, optional, f"a value, as {kind.__name__} has")

    def read(value: Any, levels: int) -> Any:
        own = parts(value, levels)
        try:
            return kind(**own)
        except Exception as error:  # in __post_init__, for example
            raise BadValueError((), f"what {kind.__name__} takes", str(error) or type(error).__name__) from error

    known[kind] = read
    hints = typing.get_type_hints(kind)
    reads.update((name, _read_of(hints.get(name, Any), known)) for name in fields)
    return read


# Errors and their texts.


def _check_levels(levels: int) -> None:
    if levels < 1:
        raise BadValueError((), lambda place: f"at most {len(place)} levels", "more")


def _is_among(value: Any, args: tuple[Any, ...]) -> bool:
    return any(type(value) is type(each) and value == each for each in args)


def _reject(expected: str, value: Any) -> typing.NoReturn:
    raise BadValueError((), expected, _shown(value))


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
