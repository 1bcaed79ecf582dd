"""What is called instead of a function of the user's: its form, for anything that can be called."""

import functools
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from autobatch.facts.python_functions import FRAME_READERS
from autobatch.rewrite.callees import is_users
from autobatch.syntax.source import PARSING

__all__ = ["LOOKS_AT_NAMES", "Forms", "function_of"]

LOOKS_AT_NAMES = FRAME_READERS - {"globals"} | {"_getframe", "currentframe"}
_LIMIT = 1 << 12


class Forms:
    """The forms of functions, kept while a run lasts.

    Args:
        of_function: the form of a function that is written in Python; itself if it has none.
        of_decorated: the form of a function with the decorator.
        of_class: what makes an object of a class; None: the class does.

    Attributes:
        known: the forms by the ids of their functions.
    """

    def __init__(
        self,
        of_function: Callable[[FunctionType], Any],
        of_decorated: Callable[[Any], Any],
        of_class: Callable[[Any], Any] | None = None,
    ) -> None:
        self.known: dict[int, Any] = {}
        self._kept: dict[Any, Any] = {}
        self._of_function = of_function
        self._of_decorated = of_decorated
        self._of_class = of_class

    def __call__(self, function: Any) -> Any:
        """What to call instead of `function`; itself if it is not the user's own code."""
        found = self.known.get(id(function))
        if found is not None:
            return found
        kind = type(function)
        if kind is FunctionType:
            return self._keep(function, self._of_function)
        if kind is MethodType:
            inner = self(function.__func__)
            return function if inner is function.__func__ else MethodType(inner, function.__self__)
        if isinstance(function, type):
            return function if self._of_class is None else self._keep(function, self._of_class)
        if hasattr(kind, "_ab_batch"):
            return self._keep(function, self._of_decorated)
        if kind is functools.partial:
            inner = self(function.func)
            return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
        call = getattr(kind, "__call__", None)  # noqa: B004  (not whether: which)
        if type(call) is FunctionType and is_users(call):
            return MethodType(self(call), function)
        return function

    def _keep(self, function: Any, make: Callable[[Any], Any]) -> Any:
        with PARSING:  # of two threads, none may keep the id of a function that the other lets go of
            form = make(function)
            if len(self._kept) >= _LIMIT:
                self.known.clear()
                self._kept.clear()
            self._kept[function] = self.known[id(function)] = form
        return form

    def forget(self) -> None:
        """Let go of the functions that were called; their code stays rewritten."""
        with PARSING:
            self.known.clear()
            self._kept.clear()


def function_of(function: FunctionType, code: CodeType, given: dict[str, CellType]) -> FunctionType:
    """A function with other code, which sees more than the function's own closure."""
    cells = {**dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)), **given}
    closure = tuple([cells[name] for name in code.co_freevars])
    out = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    out.__kwdefaults__ = function.__kwdefaults__
    out.__dict__.update(function.__dict__)
    out.__qualname__, out.__module__, out.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return out
