"""What lies inside of the examples, as it was before the first of them ran.

A run that is given up leaves none of what it changed there, or the loop after it would find examples that were visited
before. What several examples hold may be changed in another order than in the loop, where one of them waits. And where
an example sees a copy of a container, since there are arrays in it, what it changes there goes into the container.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.pytree import attributes, replace_leaves
from autobatch.core.recorded import is_recorded
from autobatch.core.snapshot import Snapshot
from autobatch.facts.purity import may_change
from autobatch.facts.types import GENERATORS, SCALARS
from autobatch.lazy.array import LazyArray

__all__ = ["ExampleState"]


_Copy = tuple[Any, Any, Any, list[Any], list[Any]]  # as `core.pytree.replace_leaves` gives it


class ExampleState:
    """The entries of containers and attributes of objects in the examples, if the function may change any.

    Args:
        columns: the sequences of examples; none if whatever Python changes is not to be seen.
        shared: the function, and what the examples have in common.
        copies: what `core.pytree.replace_leaves` copied of what they share.

    Attributes:
        shared: what they have in common, as it was before.
        copies: receives what `core.pytree.replace_leaves` copies of the examples; None where nothing is changed.
        kinds: the classes of the examples and, if the function may change any, of what is in them.
    """

    __slots__ = ("_common", "_roots", "_shared_copies", "_states", "copies", "kinds", "shared")

    def __init__(self, columns: Sequence[Sequence[Any]], shared: Snapshot, copies: list[_Copy]) -> None:
        self._states: list[Snapshot] = []
        self._roots: list[Any] = []
        self.shared = shared
        self._common: set[int] = set()
        self.copies: list[_Copy] | None = None
        self._shared_copies: list[_Copy] | None = None
        examples = [value for column in columns for value in column if not _is_wrapped(value)]
        functions = shared.functions or shared.roots[:1]
        self.kinds = set(map(type, examples))
        draws = not self.kinds.isdisjoint(GENERATORS)
        if not columns or not (draws or may_change(functions, [*shared.classes, *self.kinds])):
            return
        if not shared.complete:
            self.shared = shared = Snapshot(shared.roots)
        self._shared_copies = copies
        if examples:
            self.copies = []
            self._roots = list(zip(*columns, strict=True))
            self._states = [Snapshot(values, inside=True, raw=_is_raw(values)) for values in self._roots]
            self.kinds |= {type(value) for state in self._states for value in state.places.values()}
            times = collections.Counter(place for state in (shared, *self._states) for place in state.places)
            self._common = {place for place, count in times.items() if count > 1}

    @property
    def may_change(self) -> bool:
        """Whether the function may change anything that it is given or reaches, for all that its syntax says."""
        return self._shared_copies is not None

    def changed(self) -> bool:
        """Whether anything is not as it was."""
        return any(state.changed() for state in self._states) or any(map(_is_changed, self._containers))

    def is_changing(self, index: int) -> bool:
        """Whether what others may see is not as it was, now that one example stops; it may put it back later."""
        if self._shared_copies is None or self.shared.changed(entries=True):
            return self._shared_copies is not None
        return bool(self._common) and self._states[index].changed(self._common, entries=True)

    def changed_in_common(self, waited: bool) -> bool:
        """Whether examples saw too little of what others changed in what they have in common.

        Args:
            waited: an example waited for a value, so they did not run one after the other.
        """
        if waited and any(map(_is_changed, self._shared_copies or ())):
            return True
        if not self._common:
            return False
        if waited and any(state.changed(self._common) for state in self._states):
            return True
        return any(id(each[0]) in self._common and _is_changed(each) for each in self._containers)

    def restore(self) -> None:
        """Put everything back."""
        for state in self._states:
            state.restore()

    def finish(self, finished: Callable[[Any], Any]) -> None:
        """Store what was given to examples and to what they share, in the form that results have."""
        if self._shared_copies is None:
            return
        containers = self._containers
        own = {id(copy): original for original, copy, *_ in containers}
        own |= {id(b): a for *_, old, new in containers for a, b in zip(old, new, strict=True) if a is not b}

        given = functools.partial(_given, own, finished)
        stored = [each for each in containers if _is_changed(each)]
        for each in stored:
            _store(each[0], each[1], given)
        if stored or self.shared.changed():
            Snapshot(self.shared.roots).settle(given)
        for roots, state in zip(self._roots, self._states, strict=True):
            if stored or state.changed():
                Snapshot(roots, inside=True).settle(given)
        if self.copies:
            self.copies.clear()

    @property
    def _containers(self) -> list[Any]:
        return [*(self._shared_copies or ()), *(self.copies or ())]


def _given(own: dict[int, Any], finished: Callable[[Any], Any], value: Any) -> Any:
    """What was given to an example as it is outside: of a copy the original, of a recorded array its value."""
    if id(value) in own:
        return own[id(value)]
    if type(value) is tuple:
        return tuple([_given(own, finished, each) for each in value])
    return finished(value) if type(value) is LazyArray else value


def _is_wrapped(value: Any) -> bool:
    """Whether an example as a whole is a number, text, or an array into which the trace sees all writes."""
    if type(value) is np.ndarray:
        return is_recorded(value)
    return type(value) in SCALARS


def _is_raw(values: tuple[Any, ...]) -> bool:
    """Whether there is a structure in an example whose arrays are not wrapped, since it holds itself."""
    for value in values:
        found: list[Any] = []
        if replace_leaves(value, lambda leaf, found=found: found.append(leaf)) is value and found:  # type: ignore[misc]
            return True
    return False


def _entries(copy: Any) -> tuple[Any, list[Any]]:
    if isinstance(copy, dict):
        return tuple(copy), list(copy.values())
    if isinstance(copy, list):
        return tuple(range(len(copy))), copy
    keys = attributes(copy)
    return keys, [getattr(copy, key) for key in keys]


def _is_changed(each: _Copy) -> bool:
    _, copy, keys, _, new = each
    if isinstance(copy, tuple):
        return False
    keys_now, now = _entries(copy)
    return keys_now != keys or len(now) != len(new) or any(a is not b for a, b in zip(now, new, strict=True))


def _store(original: Any, copy: Any, given: Callable[[Any], Any]) -> None:
    keys, now = _entries(copy)
    values = [given(value) for value in now]
    if dataclasses.is_dataclass(original):
        for key, value in zip(keys, values, strict=True):
            object.__setattr__(original, key, value)
        return
    original.clear()
    if isinstance(original, list):
        original.extend(values)
    else:
        original.update(zip(keys, values, strict=True))
