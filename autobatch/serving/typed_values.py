"""Reads values in a request as the types with which a function's parameters are annotated, in linear time.

msgspec converts numbers, texts, lists and dicts. What it does not support is a `_Read`, which its hook reads: arrays,
literals, records (dataclasses, named tuples, typed dicts: with just the names that they have) and unions of these.
Of the records in a union, those that a `Literal` field or the names rule out are not read. If several are left, each
list or object is read once as a union, whatever the number of records above it: so the time is linear in the request.
"""

import dataclasses
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from autobatch.core.current_region import check_time

_SHOWN, _SAID = 60, 200  # the most characters of a client's text in a message, and of any other


def shortened(text: str, most: int = _SAID) -> str:
    """A text of at most `most` characters, and dots in place of the rest."""
    return text if len(text) <= most else f"{text[:most]}..."


class BadValueError(ValueError):
    """A value in a request of another type or form than expected.

    Args:
        path: its place, as in "$.words[3]". expected, given: texts; long ones are shortened.
    """

    def __init__(self, path: str, expected: str, given: str) -> None:
        self.path, self.expected, self.given = shortened(path), shortened(expected), shortened(given, _SHOWN)
        super().__init__(f"{self.path}: expected {self.expected}, got {self.given}")


class Reading:
    """The reading of one request, before the deadline of `core.current_region.with_deadline`."""

    def __init__(self) -> None:
        self.unions: dict[tuple[int, Any], Any] = {}  # what lists and objects, by identity, were read as, or an error

    def read(self, value: object, schema: object) -> Any:
        """A value as a type of msgspec's that `schema_of` gave.

        Raises:
            BadValueError: it is none. OverTime: the deadline has passed.
        """
        if schema is Any:
            return value
        try:
            return msgspec.convert(value, schema, dec_hook=self._read_form)
        except msgspec.ValidationError as error:
            raise _named(error) from None
        except AttributeError:  # msgspec's, which takes an array for an object
            raise BadValueError("$", "another value", "an array") from None

    def _read_form(self, form: Any, value: object) -> Any:
        check_time()
        return form.read(value, self)


def _named(error: msgspec.ValidationError) -> BadValueError:
    """The error with its place, which msgspec has at the end of the text, before that of an error within a form."""
    said, _, place = str(error).rpartition(" - at ")
    path = place[place.find("$") : -1] if said else "$"
    if isinstance(error.__cause__, BadValueError):
        inner = error.__cause__
        return BadValueError(path + inner.path[1:], inner.expected, inner.given)
    text = (said or place).replace("`", "")
    expected, both, given = text.removeprefix("Expected ").partition(", got ")
    return BadValueError(path, expected, given) if both else BadValueError(path, "another value", f"this: {text}")


def check_levels(value: Any, most: int) -> None:
    """Raise BadValueError if lists and objects lie within each other on more than `most` levels."""
    level = [value]
    for _ in range(most + 1):
        inside = [each.values() if type(each) is dict else each for each in level if type(each) in (list, dict)]
        if not inside:
            return
        level = list(itertools.chain.from_iterable(inside))
    raise BadValueError("$", f"at most {most} levels", "more")


def schema_of(annotation: object) -> Any:
    """The type of msgspec's as which `Reading.read` reads values of an annotated type.

    Args:
        annotation: `np.ndarray`, `NDArray[dtype]`, a NumPy scalar's class, int, float, bool, str, None, `list[...]`,
            `tuple[...]`, `dict[str, ...]`, `Literal`, unions, dataclasses, named tuples and typed dicts, nested and
            recursive. Values of anything else stay as they are.

    >>> Reading().read([1, 2.5], schema_of(list[int]))
    Traceback (most recent call last):
      ...
    autobatch.serving.typed_values.BadValueError: $[1]: expected int, got float
    """
    return _schema(annotation, {})


def _schema(annotation: Any, known: dict[Any, Any]) -> Any:
    if annotation in (int, float, bool, str, None, type(None)):
        return annotation
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union([_schema(each, known) for each in args], args)
    if origin is typing.Annotated:
        return _schema(args[0], known)
    if origin is typing.Literal:
        return _literal(args)
    if annotation is np.ndarray or origin is np.ndarray:
        kinds = typing.get_args(args[1]) if len(args) > 1 else ()
        return _array(np.dtype(kinds[0]) if kinds and _is_scalar(kinds[0]) else None)
    if _is_scalar(annotation):
        return _scalar(annotation)
    if origin in (list, Sequence) and args:
        return list[_schema(args[0], known)]  # type: ignore[misc]
    if origin is tuple and args:
        return tuple[*(each if each is ... else _schema(each, known) for each in args)]  # type: ignore[misc]
    if origin in (dict, Mapping) and args[0] is str:
        return dict[str, _schema(args[1], known)]  # type: ignore[misc]
    if isinstance(annotation, type) and (fields := _fields(annotation)) is not None:
        if annotation not in known:
            known[annotation] = record_of(annotation.__name__, annotation, fields)
            hints = typing.get_type_hints(annotation)
            known[annotation].complete({name: _schema(hints.get(name, Any), known) for name in fields})
        return known[annotation]
    return Any


class _Read(type):
    """A type of ours among those of msgspec, whose hook calls `read(value, reading)`; whatever that returns is one."""

    read: Callable[[Any, Reading], Any]

    def __instancecheck__(cls, value: object) -> bool:
        return True


def _form(name: str, read: Callable[[Any, Reading], Any]) -> _Read:
    return _Read(name, (), {"read": staticmethod(read)})


def _is_scalar(annotation: object) -> bool:
    is_scalar = isinstance(annotation, type) and issubclass(annotation, np.number | np.bool_)
    return is_scalar and annotation not in _ABSTRACT


_ABSTRACT = {np.number, np.integer, np.floating, np.inexact, np.signedinteger, np.unsignedinteger, np.complexfloating}


def _literal(said: tuple[Any, ...]) -> _Read:
    def read(value: object, reading: Reading) -> Any:
        if not _is_among(value, said):
            raise BadValueError("$", f"one of {', '.join(map(repr, said))}", _shown(value))
        return value

    form = _form("literal", read)
    form.said = said  # type: ignore[attr-defined]
    return form


def _is_among(value: object, said: Iterable[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in said)


# Arrays.


def _scalar(cls: type) -> _Read:
    array = _array(np.dtype(cls))

    def read(value: object, reading: Reading) -> Any:
        out = array.read(value, reading)
        if out.ndim:
            raise BadValueError("$", f"a number ({cls.__name__})", _shown(value))
        return out[()]

    return _form(cls.__name__, read)


def _array(dtype: np.dtype | None) -> _Read:
    """Arrays of a dtype; None: of the dtype that NumPy chooses for the numbers."""
    suits, word = _SUITING[dtype.kind if dtype is not None else ""]

    def read(value: object, reading: Reading) -> np.ndarray:
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biufcmM" or dtype not in (None, value.dtype):
                raise BadValueError("$", f"an array of {dtype or 'numbers'}", f"one of {value.dtype}")
            return value
        flat, shape = _flat(value)
        kinds = set(map(type, flat))
        if not kinds <= suits:
            at = next(at for at, each in enumerate(flat) if type(each) not in suits)
            raise BadValueError(_place(at, shape), word, _shown(flat[at]))
        if bool in kinds and len(kinds) > 1:
            raise BadValueError("$", "numbers, or truth values", "both")
        try:
            with np.errstate(over="ignore"):  # what becomes infinite is refused below
                out = np.array(flat, dtype if dtype is not None or kinds != {int} else np.int64)
            held = out.dtype.kind not in "fc" or bool(np.isfinite(out).all())
        except OverflowError:
            held = False
        if not held or out.dtype.kind not in "biufc":
            raise BadValueError("$", f"numbers of {dtype or 'int64 or float64'}", "a number outside its range")
        return out.reshape(shape)

    return _form("array", read)


def _flat(value: Any) -> tuple[list[Any], list[int]]:
    """The numbers in nested lists, and the lists' lengths by level."""
    flat, shape = [value], list[int]()
    while flat and type(flat[0]) is list:
        size = len(flat[0])
        uneven = (at for at, each in enumerate(flat) if type(each) is not list or len(each) != size)
        if (at := next(uneven, None)) is not None:
            raise BadValueError(_place(at, shape), _shown(flat[0]), _shown(flat[at]))
        if len(shape) == _MOST_DIMENSIONS:
            raise BadValueError("$", f"at most {_MOST_DIMENSIONS} levels of lists, for an array", "more")
        shape.append(size)
        flat = list(itertools.chain.from_iterable(flat))
    return flat, shape


_MOST_DIMENSIONS = 64  # of NumPy's arrays


def _place(at: int, shape: Sequence[int]) -> str:
    return "$" + "".join(f"[{index}]" for index in (np.unravel_index(at, shape) if shape else ()))


_NUMBERS: tuple[set[type], str] = {int, float}, "a number"
_WHOLE: tuple[set[type], str] = {int}, "a whole number"
_SUITING: dict[str, tuple[set[type], str]] = {  # by a dtype's kind
    "": ({bool, int, float}, "a number"), "b": ({bool}, "true or false"), "i": _WHOLE, "u": _WHOLE, "f": _NUMBERS,
    "c": _NUMBERS,
}  # fmt: skip


# Records and unions.


class _Record(_Read):
    """Objects with the names of a record class, each value read as the field's type.

    Attributes:
        fields: by name, whether it may be left out. tags: by name, the values of fields that are `Literal`.
    """

    fields: dict[str, bool]
    required: set[str]
    tags: dict[str, tuple[Any, ...]]

    def complete(cls, schemas: dict[str, Any]) -> None:
        """Give the fields' types, once they are known: record classes may be recursive."""
        cls.tags = {name: each.said for name, each in schemas.items() if hasattr(each, "said")}
        cls.values = typing.TypedDict(cls.__name__, schemas, total=False)  # type: ignore[misc]

    def has_tags(cls, value: dict[str, Any]) -> bool:
        """True if no `Literal` field of an object says that it is of another class."""
        return all(name not in value or _is_among(value[name], said) for name, said in cls.tags.items())

    def has_names(cls, value: dict[str, Any]) -> bool:
        return cls.required <= value.keys() <= cls.fields.keys()


def record_of(name: str, make: Callable[..., Any], fields: dict[str, bool]) -> _Record:
    """Records that `make(**values)` makes of values by name; `complete` it with the fields' types.

    Args:
        fields: by name, whether it may be left out.
    """

    def read(value: object, reading: Reading) -> Any:
        if type(value) is not dict:
            raise BadValueError("$", f"an object with {', '.join(fields)}", _shown(value))
        for each in value:
            if each not in fields:
                raise BadValueError(f"$.{shortened(each, _SHOWN)}", f"one of {', '.join(fields)}", "another name")
        for each in form.required:
            if each not in value:
                raise BadValueError(f"$.{each}", f"a value, as {name} has", "nothing")
        values = reading.read(value, form.values)
        try:
            return make(**values)
        except Exception as error:  # in __post_init__, for example
            said = shortened(str(error)) or type(error).__name__
            raise BadValueError("$", f"what {name} takes", said) from error

    required = {each for each, may_miss in fields.items() if not may_miss}
    form = _Record(name, (), {"read": staticmethod(read), "fields": fields, "required": required})
    return form


def _fields(cls: type) -> dict[str, bool] | None:
    """By name, whether a field of a record class may be left out; None if `cls` is not a record class."""
    if dataclasses.is_dataclass(cls):
        missing = dataclasses.MISSING
        fields = [each for each in dataclasses.fields(cls) if each.init]
        return {each.name: each.default is not missing or each.default_factory is not missing for each in fields}
    if issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        return {name: name in cls._field_defaults for name in cls._fields}  # type: ignore[attr-defined]
    if typing.is_typeddict(cls):
        return {name: name in cls.__optional_keys__ for name in cls.__annotations__}  # type: ignore[attr-defined]
    return None


def _union(schemas: list[Any], args: tuple[Any, ...]) -> Any:
    if all(each in (int, float, bool, str, None, type(None)) for each in schemas):
        return typing.Union[tuple(schemas)]  # noqa: UP007
    if Any in schemas[:1]:
        return Any

    def read(value: object, reading: Reading) -> Any:
        found = _possible(value, schemas)
        if len(found) == 1:
            return reading.read(value, found[0])
        key = id(value), form
        outcome = reading.unions.get(key) if type(value) in (list, dict) else None
        if outcome is None:
            outcome = _first(value, found, reading, args)
            if type(value) in (list, dict):
                reading.unions[key] = outcome
        if isinstance(outcome, BadValueError):
            raise outcome.with_traceback(None)
        return outcome[0]

    form = _form("union", read)
    return form


def _possible(value: object, schemas: list[Any]) -> list[Any]:
    """The types of a union that a value may be: of an object, the records with its tags and then those with its names.

    All of the types, if that leaves no record: then the errors say what is missing.
    """
    if type(value) is dict:
        for has in (_Record.has_tags, _Record.has_names):
            left = [each for each in schemas if not isinstance(each, _Record) or has(each, value)]
            schemas = left if any(isinstance(each, _Record) for each in left) else schemas
    return schemas


def _first(value: object, schemas: list[Any], reading: Reading, args: tuple[Any, ...]) -> tuple[Any] | BadValueError:
    """(what a value is as the first type that it suits,), or else the error that lies deepest."""
    worst = BadValueError("$", "", "")
    for schema in schemas:
        try:
            return (reading.read(value, schema),)
        except BadValueError as error:
            worst = max(worst, error, key=lambda each: len(each.path))
    if worst.path != "$":
        return worst
    names = [each.__name__ if isinstance(each, type) else str(each) for each in args]
    return BadValueError("$", " or ".join(names), _shown(value))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, itertools.islice(value, 4))) or 'nothing'}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return f"the string {value[: _SHOWN + 1]!r}" if isinstance(value, str) else repr(value)
