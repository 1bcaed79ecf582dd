"""Optimisers that update parameters in place: dense arrays as a whole, tables row by row."""

from autobatch.optim import optimizers
from autobatch.optim.base import Optimizer
from autobatch.optim.optimizers import *  # noqa: F403 - all of them
from autobatch.tables.sparse import Indexer

__all__ = ["Indexer", "Optimizer"]
__all__ += optimizers.__all__
