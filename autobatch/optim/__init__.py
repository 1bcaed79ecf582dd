"""Optimisers that update parameters in place, dense leaves whole and tables row by row."""

from autobatch.optim.base import Optimizer
from autobatch.optim.optimizers import FTRL, SGD, Adagrad, Adam, AdamW, RMSProp, RowWiseAdagrad
from autobatch.tables.sparse import Indexer

__all__ = ["FTRL", "SGD", "Adagrad", "Adam", "AdamW", "Indexer", "Optimizer", "RMSProp", "RowWiseAdagrad"]
