"""Taking the parameters of a batcher from a folder of checkpoints, and again when there is a newer one."""

import asyncio
import logging
from typing import Any

from autobatch.checkpoint.checkpoints import Checkpoints
from autobatch.errors import OptionError
from autobatch.serving.batcher import Batcher

_log = logging.getLogger("autobatch.serving")


class CheckpointWatch:
    """Keeps one shared value of a batcher that of the newest checkpoint in a folder.

    A checkpoint is taken whole or not at all: each of its blocks is checked, and its tree has to be like the one that
    is served. One that cannot be taken is counted and logged, the batcher goes on with what it has, and it is tried
    again.

    Args:
        batcher: whose value; the one named "params", or the only one.
        folder: that `ab.Checkpoints` writes, by this process or another one.
        every: seconds between two looks.

    Attributes:
        step: of the checkpoint that is served; None before the first.

    Raises:
        OptionError: several values are shared, and none is "params".
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
        """Take the newest checkpoint if it is not the one that is served; returns whether one is."""
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
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            await self.look()
