"""Optimisers that update parameters in place: dense arrays as a whole, tables row by row."""

from typing import TYPE_CHECKING, Any

from autobatch.core.diagnostics import hiding_frames
from autobatch.facts.other_libraries import OPTIMIZER, missing
from autobatch.optim import optimizers
from autobatch.optim.base import Optimizer
from autobatch.optim.optimizers import *  # noqa: F403 - all of them
from autobatch.tables.sparse import Indexer

if not TYPE_CHECKING:  # else each name would have the type Any

    @hiding_frames
    def __getattr__(name: str) -> Any:
        raise missing("module 'autobatch.optim'", name, OPTIMIZER, __all__)


__all__ = ["Indexer", "Optimizer"]
__all__ += optimizers.__all__
__dir__ = __all__.copy
