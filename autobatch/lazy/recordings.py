"""What one example records, without what it was recorded in: kept, and put into other traces (`lazy.replay`)."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.lazy.array import LazyArray
from autobatch.lazy.content import Unsuited
from autobatch.lazy.execute import BlockCall, Signature
from autobatch.lazy.trace import Trace

__all__ = ["Place", "Recording", "Shelf", "Template", "part_of"]

_ROOM = 1 << 26  # bytes of the recordings of one shelf, about
_numbering = threading.Lock()
_PATIENCE = 32  # recordings that could not be kept, where none could


class Place:
    """The place of a shared array in a template, known by its number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    @staticmethod
    @functools.cache
    def of(number: int) -> "Place":
        """The one of this number."""
        return Place(number)


class Template:
    """A signature without the arrays that all examples share.

    Attributes:
        sig: a signature like it, whose `avals` are not used; key: what it is interned by, with the numbers of shared
            arrays in their places; avals: those of its operands, likewise.
        values: for each input of a block the number of a shared array, or None.
    """

    __slots__ = ("avals", "key", "nbytes", "op", "out", "params", "program", "text", "values", "where")

    def __init__(self, sig: Signature, key: tuple[Any, ...], number_of: Callable[[Any], Any]) -> None:
        self.key = tuple(map(number_of, key))
        self.avals = tuple(map(number_of, sig.avals))
        self.op, self.params, self.out, self.where = sig.op, sig.params, sig.out, sig.where
        self.nbytes, self.text = sig.nbytes, sig.text
        self.program = None if sig.block is None else sig.block.program
        self.values = () if sig.block is None else self.key[1:]

    def bound(self, trace: Trace, arrays: Sequence[LazyArray]) -> Signature:
        """The signature with these shared arrays, in this trace."""
        key = tuple([arrays[part.number].aval if type(part) is Place else part for part in self.key])
        sig = trace.interned.get(key)
        if sig is None:
            avals = [arrays[part.number].aval if type(part) is Place else part for part in self.avals]
            sig = Signature(self.op, self.params, avals, self.out, len(trace.table), self.where, trace.errors)
            sig.nbytes, sig.text, sig.shared = self.nbytes, self.text, False
            if self.program is not None:
                values = [arrays[part.number].source if type(part) is Place else None for part in self.values]
                sig.block = BlockCall(self.program, values, sig.index)
            trace.table.append(sig)
            trace.interned[key] = sig
        return sig


class Shelf:
    """The recordings for one structure of the shared arguments.

    Attributes:
        found: {an example's bytes: its recording; None: it was seen once}; templates: their signatures.
        room: how many bytes more are kept; patience: how many more may turn out not to be kept
            before one is.
    """

    __slots__ = ("_numbers", "found", "patience", "room", "templates")

    def __init__(self) -> None:
        self.found: dict[bytes, Recording | None] = {}
        self.templates: list[Template] = []
        self._numbers: dict[Any, int] = {}
        self.room = _ROOM
        self.patience = _PATIENCE

    def number(self, template: Template) -> int:
        """The number of a template like this one."""
        with _numbering:
            number = self._numbers.setdefault(template.key, len(self.templates))
            if number == len(self.templates):
                self.templates.append(template)
        return number

    def spend(self, nbytes: int) -> bool:
        """Whether there is room."""
        if self.room < nbytes:
            return False
        self.room -= nbytes
        return True

    def give_way(self) -> None:
        """Forget what does not come any more, if that leaves no room for what comes."""
        if self.room < _ROOM // 16:
            self.found.clear()
            self.room = _ROOM


class Recording:
    """What one example adds to a wave.

    Attributes:
        sigs: for each node the number of its template, -1 for a further output.
        refs: the operands: a node of the example (>= 0), or ~i for its i-th value from outside.
        sources: those values; shared: (i, number of a shared array) for those that are one;
            constants: the places i of arrays;
            inputs: (i, number of an array of the example, which part of it) for those that are one.
        result: a function of the new handles' maker; nbytes: of the recorded results.
    """

    __slots__ = ("constants", "inputs", "nbytes", "refs", "result", "shared", "sigs", "sources")

    def __init__(
        self,
        sigs: np.ndarray,
        refs: np.ndarray,
        sources: list[Any],
        shared: list[tuple[int, int]],
        inputs: list[tuple[int, int, Any]],
        result: Any,
    ) -> None:
        self.sigs = sigs
        self.refs = refs
        self.sources = sources
        self.shared = shared
        self.inputs = inputs
        self.result = result
        self.constants = [place for place, source in enumerate(sources) if type(source) is np.ndarray]
        self.nbytes = 0


def part_of(source: Any, arrays: Sequence[np.ndarray]) -> tuple[int, Any] | None:
    """The number of the array that a value is a view of, and which: (shape, offset, strides), None for all of it."""
    if type(source) is np.ndarray:
        for number, array in enumerate(arrays):
            if source is array:
                return number, None
            if np.may_share_memory(source, array):
                if source.dtype != array.dtype:
                    raise Unsuited
                start = source.__array_interface__["data"][0] - array.__array_interface__["data"][0]
                return number, (source.shape, start, source.strides)
    return None
