"""What changed since a statement began, so that it can be taken back: `try` runs its body again for fewer lanes.

Whatever changes an object in place says so before (`ownership.changing`). Values of names need no journal: the code
that was written for the statement puts them back. A change that nobody can take back counts in `Root.changes` only, and
then `undo` says that it cannot.
"""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.base import Batch
from autobatch.core.batched import Batched
from autobatch.core.lanes import current_example

__all__ = ["Journal"]

_COPIED = (list, dict, set, collections.deque, bytearray, np.ndarray)


class Journal:
    """The changes of one attempt; attempts nest.

    Attributes:
        known: how many of the root's changes can be taken back.
    """

    __slots__ = ("calls", "known", "outer", "prints", "root", "saved", "start", "undoing")

    def __init__(self, root: Any) -> None:
        self.root = root
        self.outer: Journal | None = root.journal
        self.start = root.changes
        self.known = 0
        self.saved: dict[int, tuple[Any, Callable[[], None]]] = {}
        self.undoing: list[Callable[[], None]] = []
        self.prints = len(root.prints)
        calls = current_example().calls
        self.calls = calls.copy() if isinstance(calls, np.ndarray) else None
        root.journal = self

    def changing(self, value: Any) -> bool:
        """Note that an object is going to change. False if that cannot be taken back."""
        if id(value) not in self.saved:
            restore = _restorer(value)
            if restore is None:
                return False
            self.saved[id(value)] = (value, restore)
        self.known += 1
        return True

    def on_undo(self, action: Callable[[], None]) -> None:
        """What else to do if this is taken back."""
        self.undoing.append(action)

    def close(self) -> None:
        """What happened stays, as far as this attempt is concerned."""
        outer = self.root.journal = self.outer
        if outer is not None:
            outer.known += self.known
            for key, entry in self.saved.items():
                outer.saved.setdefault(key, entry)
            outer.undoing += self.undoing

    def undo(self) -> bool:
        """Take everything back; False if something cannot be."""
        while self.root.journal is not self:
            self.root.journal.close()
        self.root.journal = self.outer
        if self.root.changes - self.start != self.known:
            return False
        for action in reversed(self.undoing):
            action()
        for _, restore in self.saved.values():
            restore()
        del self.root.prints[self.prints :]
        if self.calls is not None:
            current_example().calls[:] = self.calls
        self.root.changes = self.start
        return True


def _restorer(value: Any) -> Callable[[], None] | None:
    """A function that gives an object the state that it has now; None if there is no such function."""
    if isinstance(value, Batch):
        family = list(_family(value))
        states = [_batch_state(each) for each in family]
        return lambda: _put_back(family, states)
    if isinstance(value, _COPIED):
        held = value.copy()
        return lambda: _refill(value, held)
    fields: dict[str, Any] = {}
    for kind in type(value).__mro__:
        for field in getattr(kind, "__slots__", ()):
            if field not in ("__weakref__", "__dict__") and hasattr(value, field):
                fields[field] = getattr(value, field)
    if not hasattr(value, "__dict__") and not fields:
        return None
    fields = {key: held.copy() if isinstance(held, _COPIED) else held for key, held in fields.items()}
    own = dict(vars(value)) if hasattr(value, "__dict__") else None

    def restore() -> None:
        for key, held in fields.items():
            object.__setattr__(value, key, held)
        if own is not None:
            vars(value).clear()
            vars(value).update(own)

    return restore


def _family(batch: Any) -> Any:
    """A batch, what it is a view of, and the live views of either."""
    base = batch
    while getattr(getattr(base, "_view", None), "base", None) is not None:
        base = base._view.base
    stack = [base]
    while stack:
        each = stack.pop()
        if isinstance(each, Batch):
            yield each
        stack += [view for ref in getattr(each, "_views", None) or () if (view := ref()) is not None]


def _batch_state(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, Batched):
        return batch.data, batch.sizes, batch.scalar
    values = batch.values
    return (list(values) if isinstance(values, list) else values,)


def _put_back(family: list[Any], states: list[tuple[Any, ...]]) -> None:
    for batch, state in zip(family, states, strict=True):
        if isinstance(batch, Batched):
            batch.data, batch.sizes, batch.scalar = state
        else:
            (batch.values,) = state


def _refill(value: Any, held: Any) -> None:
    if isinstance(value, np.ndarray):
        value[...] = held
    elif isinstance(value, dict | set):
        value.clear()
        value.update(held)
    else:
        value.clear()
        value.extend(held)
