"""Lists and tuples of recorded arrays as inputs of a block: their structure is part of what calls are alike in."""

from collections.abc import Iterator
from typing import Any

from autobatch.core.abstract_eval import Aval
from autobatch.lazy.array import LazyArray

__all__ = ["Tree", "flattened"]

_MOST = 16  # arrays in one input; of more, each number of them would be a program of its own
_LIMIT = 1 << 12
_known: dict[Any, "Tree"] = {}


class Tree:
    """The structure of one input, interned.

    Attributes:
        leaves: the `Aval` of each array, in order.
    """

    __slots__ = ("_structure", "leaves")

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self.leaves = tuple(_leaves(structure))

    def rebuilt(self, values: Iterator[Any]) -> Any:
        """The same structure around other arrays, taken one after the other."""
        return _rebuilt(self._structure, values)


def flattened(trace: Any, value: Any) -> tuple[Tree | None, list[int]]:
    """The structure of a list or tuple and the references of its arrays; (None, []) for what is no such input.

    An input holds arrays that were recorded in this trace, in lists and tuples, and nothing else.
    """
    refs: list[int] = []
    structure = _structure(trace, value, refs)
    if structure is None or len(refs) > _MOST:
        return None, []
    found = _known.get(structure)
    if found is None:
        if len(_known) > _LIMIT:
            _known.clear()
        found = _known.setdefault(structure, Tree(structure))
    return found, refs


def _structure(trace: Any, value: Any, refs: list[int]) -> Any:
    segment = trace.segment
    out: list[Any] = [type(value)]
    for part in value:
        kind = type(part)
        if kind is LazyArray:
            if part.segment is not segment and (part.aval.shared or not trace.enter(part)):
                return None
            refs.append(part.ref)
            out.append(part.aval)
        elif (kind is tuple or kind is list) and len(part) <= _MOST:
            inner = _structure(trace, part, refs)
            if inner is None:
                return None
            out.append(inner)
        else:
            return None
    return tuple(out)


def _leaves(structure: Any) -> Iterator[Aval]:
    for part in structure[1:]:
        if type(part) is tuple:
            yield from _leaves(part)
        else:
            yield part


def _rebuilt(structure: Any, values: Iterator[Any]) -> Any:
    kind, *parts = structure
    return kind([_rebuilt(part, values) if type(part) is tuple else next(values) for part in parts])
