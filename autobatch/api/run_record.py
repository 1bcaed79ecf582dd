"""How calls ran: the names of the ways, and `ran_ways`, which collects which of them the calls of a block took."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from autobatch.api.chooser import LOOP, Cost
from autobatch.lazy.launching import Stats

LOCKSTEP, FLY, COMPILED = "lockstep", "fly", "compiled"
NAMES: dict[Any, str] = {
    LOOP: "the loop over the examples",
    LOCKSTEP: "lock-step",
    FLY: "on the fly",
    COMPILED: "compiled",
}


@dataclasses.dataclass(frozen=True)
class Ran:
    """How a call ran.

    Attributes:
        way: the way of the last of its examples; why: what decided that.
        function: what was called.
        stats: what was launched on the fly.
        costs: what each way has cost so far on inputs of this kind, by way.
    """

    way: str
    why: str
    function: Any
    stats: Stats
    costs: dict[str, Cost]


# What those who look have collected so far; None while nobody does.
watched: contextvars.ContextVar[list[Ran] | None] = contextvars.ContextVar("autobatch_ran", default=None)
# Whether the user's own lines are to run, in which others see what each costs: not recorders made of them.
by_line: contextvars.ContextVar[bool] = contextvars.ContextVar("autobatch_by_line", default=False)


@contextlib.contextmanager
def ran_ways(lines: bool = False) -> Iterator[list[Ran]]:
    """Collect how the calls in this block ran.

    A call runs whole by the way that calls of its kind take now, and by the one that it names before there was any. To
    look at it takes time, so what it costs here is not added to what is known.

    Args:
        lines: whether each of the user's lines is to run as it stands.
    """
    found: list[Ran] = []
    tokens = watched.set(found), by_line.set(lines)
    try:
        yield found
    finally:
        watched.reset(tokens[0])
        by_line.reset(tokens[1])


def note(way: str, why: str, function: Any, stats: Stats | None = None, costs: dict[str, Cost] | None = None) -> None:
    """Let those who look know how a call ran."""
    collected = watched.get()
    if collected is not None:
        collected.append(Ran(way, why, function, stats or Stats(), costs or {}))
