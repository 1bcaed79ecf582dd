"""The doors by which the JSON of files comes in.

Whatever is wrong with what a file says is found by what makes a value of it, in `making`, which turns exceptions into
CheckpointError.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from autobatch.errors import CheckpointError

_OF_VALUES = (  # exceptions that wrong values cause in whatever is given them
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError, RecursionError,
    ImportError, Warning,
)  # fmt: skip


def parse(text: str | bytes, path: str) -> dict[str, Any]:
    """The object that a JSON text says.

    Raises:
        CheckpointError: it says none; names the file `path`.

    >>> parse("[]", "model.safetensors")
    Traceback (most recent call last):
      ...
    autobatch.errors.CheckpointError: model.safetensors is damaged: its description is not a JSON object
    """
    with contextlib.suppress(ValueError, TypeError, RecursionError, MemoryError):
        value = json.loads(text)
        if type(value) is dict:
            return value
    raise CheckpointError(f"{path} is damaged: its description is not a JSON object")


@contextlib.contextmanager
def making(what: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Exceptions of the code that makes `what` of a file's values are CheckpointErrors, but for those `passing`."""
    try:
        yield
    except passing:
        raise
    except _OF_VALUES as error:
        raise CheckpointError(f"{what} cannot be made of what the file says: {error!s:.300}") from error


def count(value: object) -> int:
    """A whole number of at least 0, of those that sizes are; ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a whole number, got {value!r:.100}")
    return value
