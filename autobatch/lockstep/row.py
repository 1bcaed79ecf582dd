"""`Row`: what a container of one lane keeps of a batch."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Row"]


class Row:
    """The value of one lane of a batch."""

    __slots__ = ("batch", "lane")

    def __init__(self, batch: Any, lane: int) -> None:
        self.batch = batch
        self.lane = lane

    def value(self) -> Any:
        """The lane's own array or scalar."""
        return self.batch._lane(self.lane)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.value(), dtype)

    def __bool__(self) -> bool:
        return bool(self.value())

    def __hash__(self) -> int:
        return hash(self.value())

    def __repr__(self) -> str:
        return repr(self.value())


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: compare(self.value(), other.value() if type(other) is Row else other)


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Row, f"__{_name}__", _comparison(getattr(operator, _name)))
