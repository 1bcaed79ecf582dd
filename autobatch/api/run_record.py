"""How calls ran: the names of execution modes, and `ran_ways`, which records that of each call in a `with` block."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from autobatch.api.chooser import LOOP, Cost
from autobatch.core.current_region import watched
from autobatch.lazy.launching import Stats

LOCKSTEP, FLY, COMPILED = "lockstep", "fly", "compiled"
NAMES: dict[Any, str] = {LOOP: "the loop", LOCKSTEP: "lock-step", FLY: "tracing", COMPILED: "compiled"}


@dataclasses.dataclass(frozen=True)
class Ran:
    """How a call ran.

    Attributes:
        way: the mode that ran its last examples; why: the reason, in words.
        function: the function that was called.
        stats: launches of tracing.
        costs: each mode's `Cost` so far on inputs of this kind.
    """

    way: str
    why: str
    function: Any
    stats: Stats
    costs: dict[str, Cost]


# True if the user's own lines must run, so that a profiler can time each, rather than recorders generated from them.
by_line: contextvars.ContextVar[bool] = contextvars.ContextVar("autobatch_by_line", default=False)


@contextlib.contextmanager
def ran_ways(lines: bool = False) -> Iterator[list[Ran]]:
    """Record how the calls in this `with` block ran.

    All examples of a call run in the mode that is now the best for calls of its kind; if there was no such call yet, in
    the one that the call names. Observing takes time, so these calls do not change the known costs.

    Args:
        lines: True to run the user's own lines instead of recorders generated from them.
    """
    found: list[Ran] = []
    tokens = watched.set(found), by_line.set(lines)  # `watched` is the list of the innermost `ran_ways`
    try:
        yield found
    finally:
        watched.reset(tokens[0])
        by_line.reset(tokens[1])


def note(way: str, why: str, function: Any, stats: Stats | None = None, costs: dict[str, Cost] | None = None) -> None:
    """Add a call to the record of the innermost `ran_ways`, if there is one."""
    collected = watched.get()
    if collected is not None:
        collected.append(Ran(way, why, function, stats or Stats(), costs or {}))
