"""What Python makes of items lazily, as its documentation writes it: `map`, `filter` and their kin of `itertools`.

Each is a generator function that lock-step converts as it does a user's, so that an item is made when a lane reads it,
and by no lane that reads no further.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = [
    "CODES", "accumulated", "chained", "counted", "cycled", "drop_while", "filtered", "filtered_out", "mapped",
    "paired", "repeated", "sliced", "starmapped", "take_while",
]  # fmt: skip


def mapped(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """`map` of one iterable."""
    for item in items:
        yield function(item)


def starmapped(function: Callable[..., Any], rows: Iterable[Any]) -> Iterator[Any]:
    """`itertools.starmap`, and `map` of several iterables."""
    for row in rows:
        yield function(*row)


def filtered(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """`filter`."""
    for item in items:
        if function(item):
            yield item


def filtered_out(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """`itertools.filterfalse`."""
    for item in items:
        if not function(item):
            yield item


def take_while(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """`itertools.takewhile`."""
    for item in items:
        if not function(item):
            return
        yield item


def drop_while(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """`itertools.dropwhile`."""
    dropping = True
    for item in items:
        if dropping and function(item):
            continue
        dropping = False
        yield item


def accumulated(items: Iterable[Any], function: Callable[[Any, Any], Any], initial: Any) -> Iterator[Any]:
    """`itertools.accumulate`."""
    total = initial
    begun = initial is not None
    if begun:
        yield total
    for item in items:
        total = function(total, item) if begun else item
        begun = True
        yield total


def chained(iterables: Iterable[Any]) -> Iterator[Any]:
    """`itertools.chain` and `chain.from_iterable`."""
    for items in iterables:
        for item in items:  # noqa: UP028  (`yield from` would be rewritten to this)
            yield item


def sliced(items: Iterable[Any], start: Any, stop: Any, step: Any) -> Iterator[Any]:
    """`itertools.islice`: reads no item from `stop` on."""
    place, wanted = 0, start
    if stop is not None and stop < 1:
        return
    for item in items:
        if place == wanted:
            yield item
            wanted += step
        place += 1  # noqa: SIM113  (an iterator may be drawn from by some lanes, `enumerate` of one may not)
        if stop is not None and place >= stop:
            return


def paired(items: Iterable[Any]) -> Iterator[Any]:
    """`itertools.pairwise`."""
    begun, last = False, None
    for item in items:
        if begun:
            yield last, item
        begun, last = True, item


def counted(start: Any, step: Any) -> Iterator[Any]:
    """`itertools.count`."""
    while True:
        yield start
        start = start + step


def cycled(items: Iterable[Any]) -> Iterator[Any]:
    """`itertools.cycle`, of items that end."""
    kept = list(items)
    while kept:
        for item in kept:  # noqa: UP028
            yield item


def repeated(value: Any, times: Any) -> Iterator[Any]:
    """`itertools.repeat`; `times` is None for ever."""
    while times is None or times > 0:
        yield value
        if times is not None:
            times -= 1


CODES = frozenset(value.__code__ for value in list(vars().values()) if hasattr(value, "__code__"))
