"""`with`: a library's manager is entered once for all lanes, a manager of the user's own by converted calls."""

import contextlib
import sys
from types import MethodType
from typing import Any

from autobatch.core.lanes import current_region
from autobatch.errors import NeedsLoop
from autobatch.facts.source import is_library
from autobatch.lockstep.branches import truth
from autobatch.lockstep.calls import call
from autobatch.lockstep.functions import is_batched_tree

__all__ = ["Manager"]


class Manager:
    """What a rewritten `with` enters. Around the statement, as a context manager itself, it enters a library's manager;
    inside of it `enter`, `exit` and `leave` are those of the user's own, for the lanes that are there.
    """

    __slots__ = ("entered", "manager", "native")

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.entered: Any = None
        self.native = _is_native(manager)

    def __enter__(self) -> "Manager":
        if self.native:
            self.entered = self.manager.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if not self.native:
            return False
        swallowed = bool(self.manager.__exit__(kind, error, trace))
        if swallowed and current_region() is not None:
            raise NeedsLoop("a context manager keeps an exception to itself")
        return swallowed

    def enter(self) -> Any:
        """What `as` binds."""
        if self.native:
            return self.entered
        return call(MethodType(type(self.manager).__enter__, self.manager))

    def exit(self) -> bool:
        """The exception of the one lane that is here leaves the block. True if it ends here."""
        kind, error, trace = sys.exc_info()
        if self.native:
            return isinstance(self.manager, contextlib.suppress) and issubclass(kind, self.manager._exceptions)  # type: ignore[arg-type, attr-defined]
        return bool(truth(call(MethodType(type(self.manager).__exit__, self.manager), kind, error, trace)))

    def leave(self) -> None:
        """The lanes that are here leave the block in another way."""
        if not self.native:
            call(MethodType(type(self.manager).__exit__, self.manager), None, None, None)


def _is_native(manager: Any) -> bool:
    """Whether Python enters it itself, once for all lanes."""
    if current_region() is None:
        return True
    if is_batched_tree(manager):
        raise NeedsLoop("a context manager that differs by example")
    generator = getattr(manager, "gen", None)
    if generator is not None and not is_library(generator.gi_code.co_filename):
        raise NeedsLoop("a context manager that is a generator of the user's own")
    code = getattr(getattr(type(manager), "__enter__", None), "__code__", None)
    return code is None or is_library(code.co_filename)
