"""What a differentiated function changes in its arguments, carried over to the caller's objects as after a plain call.

The function gets copies of the containers and objects that hold its parameters, with values on a tape in them.
Afterwards each copy is compared with what was put into it: entries and attributes that were bound again, added or
removed, and arrays that were written into.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from autobatch.core import pytree
from autobatch.core.memory import overlap, run_all
from autobatch.core.op import is_boxed
from autobatch.core.parameter_trees import is_array_like, parts_of
from autobatch.core.snapshot import Snapshot, refill
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.aliasing import write


class ArgumentChanges:
    """The differentiated arguments of one call, and their copies as they were before it.

    Args:
        pairs: (argument, copy).
    """

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._nodes: list[tuple[Any, Any, dict[Any, Any]]] = []  # (original, copy, what was in the copy)
        for original, copy in pairs:
            self._add(original, copy)

    def _add(self, original: Any, copy: object) -> None:
        cls = type(original)
        if copy is original or cls in pytree.PLAIN or (cls is not dict and cls is not list and is_array_like(original)):
            return
        before = dict(copy) if cls is dict else parts_of(copy)  # type: ignore[call-overload]
        if not isinstance(original, tuple):
            self._nodes.append((original, copy, before))
        for key, part in (original if cls is dict else parts_of(original)).items():
            if type(part) is not np.ndarray and key in before and not hasattr(type(before[key]), "_ab_rank"):
                self._add(part, before[key])

    def carry(
        self, written: Sequence[tuple[Any, Any]], given: Sequence[tuple[Any, Any]],
        others: Callable[[], Sequence[Any]], unboxed: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        """Make the changes in the caller's objects; all of them if an interrupt comes meanwhile. May be repeated.

        Args:
            written: (the caller's array, its new value) of each parameter that the function has written into.
            given: (the caller's value, what the function got for it) of each parameter.
            others: returns what else the function was called with.
            unboxed: takes values off the tape.

        Raises:
            UnsupportedError: what was changed occurs at several places, where the function saw separate copies.
        """
        changed = [
            (original, before, now)
            for original, copy, before in self._nodes
            if list(now := parts_of(copy)) != list(before) or any(map(operator.is_not, now.values(), before.values()))
        ]
        if not changed and not written:
            return
        places = [id(original) for original, _, _ in self._nodes]
        for original, _, _ in changed:
            if places.count(id(original)) > 1:
                _refuse(f"a {type(original).__name__}")
        reached = [*(value for value, _ in given), *others()]
        for value, _ in written:
            if sum(_overlap(value, other) for other in reached) > 1:
                _refuse("an array")
        known = {id(copy): original for original, copy, _ in self._nodes}
        known |= {id(box): value for value, box in given}
        found = [
            [value for key, value in now.items() if before.get(key, now) is not value] for _, before, now in changed
        ]
        Snapshot([found], inside=True).settle(lambda part: known[id(part)] if id(part) in known else unboxed(part))
        calls = []
        for (original, before, now), values in zip(changed, found, strict=True):
            mine, new = parts_of(original), iter(values)
            parts = {key: mine[key] if before.get(key, now) is now[key] else next(new) for key in now}
            calls.append(functools.partial(_set_parts, original, parts))
        calls += [functools.partial(write if is_boxed(value) else np.copyto, value, new) for value, new in written]
        run_all(calls)


def _overlap(value: object, other: object) -> bool:
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray) and not is_boxed(value) and not is_boxed(other):
        return overlap(value, other)
    return value is other


def _set_parts(original: object, parts: dict[Any, Any]) -> None:
    if isinstance(original, dict):
        refill(original, list(parts.items()))
    elif isinstance(original, list):
        refill(original, list(parts.values()))
    else:
        for name in parts_of(original).keys() - parts.keys():
            object.__delattr__(original, name)
        for name, value in parts.items():
            if getattr(original, name, parts) is not value:
                object.__setattr__(original, name, value)


def _refuse(what: str) -> None:
    raise UnsupportedError(
        f"the differentiated function changes {what} that is at several places of its arguments, or shares memory with "
        "another of them, where it got separate copies; pass it at one place, or change a copy: x = x.copy()"
    )
