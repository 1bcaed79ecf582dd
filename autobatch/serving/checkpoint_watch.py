"""Takes a batcher's parameters from a folder of checkpoints, again whenever there is a newer checkpoint."""

import asyncio
import logging
from typing import Any

from autobatch.checkpoint.checkpoints import Checkpoints
from autobatch.errors import OptionError
from autobatch.serving.batcher import Batcher

_log = logging.getLogger("autobatch.serving")


class CheckpointWatch:
    """Keeps one shared value of a batcher equal to that in the newest checkpoint of a folder.

    A checkpoint is taken whole or not at all: each of its blocks is verified, and its tree must have the structure of
    the served value. A checkpoint that cannot be taken is counted and logged; the batcher keeps its value, and the
    checkpoint is tried again.

    Args:
        batcher: its shared value "params", or its only shared value, is replaced.
        folder: a folder that `ab.Checkpoints` writes, in this process or another one.
        every: seconds between two checks.

    Attributes:
        step: of the served checkpoint; None before the first.

    Raises:
        OptionError: several values are shared, and none is named "params".
    """

    def __init__(self, batcher: Batcher, folder: Any, every: float) -> None:
        names = list(batcher.shared)
        if "params" not in names and len(names) != 1:
            raise OptionError(f"checkpoints go into the shared value params; shared is {', '.join(names) or 'nothing'}")
        self._name = "params" if "params" in names else names[0]
        self._batcher = batcher
        self._checkpoints = Checkpoints(folder)
        self._every = every
        self.step: int | None = None
        self._complaint = ""

    async def look(self) -> bool:
        """Take the newest checkpoint if it is not served yet; returns whether a checkpoint is served."""
        try:
            restored = await asyncio.to_thread(self._newer)
            if restored is not None:
                self._batcher.swap(version=restored.step, **{self._name: restored.params})
                self.step, self._complaint = restored.step, ""
                _log.info("serving the checkpoint of step %d of %s", restored.step, self._checkpoints.folder)
        except Exception as error:
            self._batcher.metrics.swap_errors += 1
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("no checkpoint taken from %s: %s", self._checkpoints.folder, error)
        return self.step is not None

    def _newer(self) -> Any:
        steps = self._checkpoints.steps()
        if steps[-1:] in ([], [self.step]):
            return None
        return self._checkpoints.restore(self._batcher.shared[self._name])

    async def watch(self) -> None:
        """Call `look` every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            await self.look()
