"""What a test can see of how a program runs, other than its result: work counted, not timed.

Counts are the same on every machine, however busy; a test of them fails only where the program does something else.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from autobatch.fusion import forms

__all__ = ["compiled_at_once", "python_calls", "replaced"]


@contextlib.contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Attributes of a module, class or object, replaced for as long as the context."""
    before = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def compiled_at_once() -> Iterator[None]:
    """Blocks have their compiled form from the first run on, and kernels, where there are any."""
    with replaced(forms, RUNS_BEFORE_A_FORM=0, RUNS_BEFORE_KERNELS=0):
        yield


def python_calls(f: Callable[[], Any]) -> int:
    """How many Python functions a call of `f` calls, itself among them.

    >>> python_calls(lambda: abs(-1))
    1
    """
    count = 0

    def on(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on)
    try:
        f()
    finally:
        sys.setprofile(before)
    return count
