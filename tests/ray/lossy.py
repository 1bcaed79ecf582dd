"""A network that loses, repeats and reorders messages, from a seed."""

import random
from collections.abc import Sequence
from typing import Any

import autobatch as ab


class Lossy(ab.ray.LocalCommunicator):
    """A local communicator whose seed decides which worker runs, and which message arrives next, never, or twice.

    Args:
        seed: of the network. drop, repeat: the fraction of messages that are lost, and that arrive again later.
    """

    def __init__(self, n: int, *, seed: int, drop: float = 0.0, repeat: float = 0.0, **more: Any) -> None:
        self._random = random.Random(seed)
        self._drop, self._repeat = drop, repeat
        super().__init__(n, **more)

    def _step(self, threads: Sequence[Any]) -> None:
        """Deliver a message, or let a worker continue; if neither is possible, send messages again."""
        ready = [each for each in threads if not each.ended and not each.member.is_waiting]
        choice = self._random.randrange(len(ready) + len(self.in_flight) + 1)
        if choice < len(ready):
            self._resume(ready[choice])
        elif choice < len(ready) + len(self.in_flight):
            at = choice - len(ready)
            message = self.in_flight[at]
            if self._random.random() >= self._repeat:
                del self.in_flight[at]
            if self._random.random() >= self._drop:
                self._deliver(message)
        elif not ready and (not self.in_flight or self._random.random() < 0.1):  # as after a timeout
            for each in threads:
                each.member.send_again()
