"""A network that delays and reorders messages, from a seed."""

import random
from collections.abc import Sequence
from typing import Any

import autobatch as ab


class Unordered(ab.ray.LocalCommunicator):
    """A local communicator whose seed decides which worker runs, and which message arrives next.

    Args:
        seed: of the network.
    """

    def __init__(self, n: int, *, seed: int, **more: Any) -> None:
        self._random = random.Random(seed)
        super().__init__(n, **more)

    def _step(self, threads: Sequence[Any]) -> None:
        """Deliver a message, or let a worker continue."""
        ready = [each for each in threads if not each.ended and not each.member.is_waiting]
        choice = self._random.randrange(len(ready) + len(self.in_flight))
        if choice < len(ready):
            self._resume(ready[choice])
        else:
            self._deliver(self.in_flight.pop(choice - len(ready)))
