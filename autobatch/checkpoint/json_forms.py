"""The doors by which the JSON of files comes in: `parse` compares headers and manifests with a form.

A form is a class (that of the value), a tuple of forms (it has one of them), a list of one form (a list of values of
it), a dict (an object of these names; those with "?" in front may be missing), or a function of a value, which raises
CheckpointError. The nodes of trees have no form: whatever is wrong with one is found by what makes a value of it, in
`making`, which turns exceptions into CheckpointError.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from autobatch.errors import CheckpointError

_OF_VALUES = (  # exceptions that wrong values cause in whatever is given them
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError, RecursionError,
    ImportError, Warning,
)  # fmt: skip
_MOST_DIMENSIONS, _MOST = 64, 1 << 63  # of NumPy's arrays: dimensions, and bytes


def parse(text: str | bytes, form: object, path: str) -> Any:
    """The value of a JSON text, which has a form.

    Raises:
        CheckpointError: it is not JSON, or does not have the form; names the file `path`.

    >>> parse('{"shape": [2, -1]}', {"shape": [count]}, "model.safetensors")
    Traceback (most recent call last):
      ...
    autobatch.errors.CheckpointError: model.safetensors is damaged: ... (expected a whole number, got -1)
    """
    try:
        value = json.loads(text)
        check(value, form)
    except (ValueError, TypeError, RecursionError, MemoryError, CheckpointError) as error:
        raise CheckpointError(f"{path} is damaged: what it says of its contents cannot be read ({error})") from error
    return value


@contextlib.contextmanager
def making(what: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Exceptions of the code that makes `what` of a file's values are CheckpointErrors, but for those `passing`."""
    try:
        yield
    except passing:
        raise
    except _OF_VALUES as error:
        raise CheckpointError(f"{what} cannot be made of what the file says: {error!s:.300}") from error


def check(value: Any, form: Any) -> None:
    """Raise CheckpointError, with the place, unless a value has a form."""
    if isinstance(form, type):
        _expect(type(value) is form, value, f"a {form.__name__}")
    elif isinstance(form, tuple):
        _expect(any(_has(value, each) for each in form), value, "another value")
    elif isinstance(form, list):
        _expect(type(value) is list, value, "a list")
        for each in value:
            check(each, form[0])
    elif isinstance(form, dict):
        _expect(type(value) is dict, value, "an object")
        for name, each in form.items():
            if name.removeprefix("?") in value or name[0] != "?":
                _expect(name.removeprefix("?") in value, value, f"an object with {name}")
                check(value[name.removeprefix("?")], each)
        unknown = value.keys() - {name.removeprefix("?") for name in form}
        _expect(not unknown, sorted(unknown), f"no names but {', '.join(form)}")
    else:
        form(value)


def _has(value: object, form: object) -> bool:
    try:
        check(value, form)
    except CheckpointError:
        return False
    return True


def _expect(right: bool, value: object, expected: str) -> None:
    if not right:
        raise CheckpointError(f"expected {expected}, got {value!r:.100}")


def count(value: Any) -> None:
    """The form of whole numbers of at least 0."""
    _expect(type(value) is int and 0 <= value < _MOST, value, "a whole number")


def shape(value: Any) -> None:
    """The form of the shapes that NumPy's arrays have."""
    check(value, [count])
    few = len(value) <= _MOST_DIMENSIONS and math.prod(max(size, 1) for size in value) < _MOST // 64
    _expect(few, value, "an array's shape")


def by_name(form: object) -> Callable[[Any], None]:
    """The form of objects of any names, whose values have a form."""

    def check_all(value: Any) -> None:
        _expect(type(value) is dict, value, "an object")
        for each in value.values():
            check(each, form)

    return check_all


def some(form: object) -> Callable[[Any], None]:
    """The form of lists that are not empty, whose items have a form."""

    def check_some(value: Any) -> None:
        check(value, [form])
        _expect(len(value) > 0, value, "a list that is not empty")

    return check_some


TABLE_PART = {"count": count, "columns": by_name(str), "?sorted": bool, "?removed": str, "?file": str}
_PARTS = (
    {"file": str, "tensor": str},
    {"file": str, "index": str, "units": str, "unit": count, "count": count},
    TABLE_PART | {"file": str},
)
MANIFEST = {
    "version": int,
    "sequence": count,
    "step": count,
    "trees": {"params": dict, "state": dict, "extra": dict},
    "entries": by_name(some(_PARTS)),
    "files": by_name({"bytes": count, "header": str}),
}
