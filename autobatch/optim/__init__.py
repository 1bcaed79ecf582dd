"""Optimisers that update parameters in place, dense leaves whole and tables row by row."""

from autobatch.optim.optimizers import SGD, Adagrad, Adam, Optimizer

__all__ = ["SGD", "Adagrad", "Adam", "Optimizer"]
