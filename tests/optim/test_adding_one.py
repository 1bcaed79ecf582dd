"""An optimiser is a kernel of one row (`kernels/optimizer_steps.py`) and a class (`optim/optimizers.py`)."""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from autobatch.kernels.jit import jit
from autobatch.kernels.sparse_gradients import row_gradient
from autobatch.optim import optimizers
from autobatch.optim.base import Optimizer, Schedule


@jit
def lion_rows(weights, mean, ids, lo, hi, acc, g, lr, decay, beta1, beta2):
    for k in range(lo, hi):
        row = k if ids is None else ids[k]
        row_gradient(acc, k, g[0], g[1], g[2], g[3], g[4], g[5], g[6])
        for j in range(acc.shape[0]):
            step = np.sign(beta1 * mean[row, j] + (1 - beta1) * acc[j])
            weights[row, j] -= lr * (step + decay * weights[row, j])
            mean[row, j] = beta2 * mean[row, j] + (1 - beta2) * acc[j]


@dataclasses.dataclass
class Lion(Optimizer):
    """Lion (Chen et al. 2023): the sign of a running mean."""

    lr: Schedule = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    @property
    def slots(self):
        return ("mean",)

    def _step(self, step, lr):
        return lion_rows, lambda real: tuple(map(real, (lr, self.weight_decay, *self.betas)))


def lion_in_numpy(p, mean, grad, lr, decay, beta1, beta2):
    step = np.sign(beta1 * mean + (1 - beta1) * grad)
    return p - lr * (step + decay * p), beta2 * mean + (1 - beta2) * grad


@pytest.mark.parametrize("sparse", [False, True])
def test_a_kernel_and_a_class_are_all_that_an_optimizer_needs(sparse):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((5, 3))
    wanted, mean = weights.copy(), np.zeros_like(weights)
    params = {"table": ab.EmbeddingTable(weights), "bias": np.float64(0.5)}
    optimizer = Lion(lr=lambda step: 0.1 / (1 + step), weight_decay=0.01, clip_value=2.0)
    state = optimizer.init(params)
    for step in range(3):
        ids, rows = np.array([4, 1, 4]), rng.standard_normal((3, 3))
        gradient = ab.SparseRows(ids, rows, 5)
        grads = {"table": gradient if sparse else gradient.to_dense(), "bias": None}
        params, state = optimizer.update(params, grads, state)
        named = np.unique(ids) if sparse else slice(None)  # of a table only the rows that a gradient names move
        cut = np.clip(gradient.to_dense()[named], -2.0, 2.0)
        wanted[named], mean[named] = lion_in_numpy(wanted[named], mean[named], cut, 0.1 / (1 + step), 0.01, 0.9, 0.99)
    np.testing.assert_allclose(params["table"].weights, wanted, rtol=1e-12)
    np.testing.assert_allclose(state["mean"]["table"], mean, rtol=1e-12)


def test_what_the_module_of_optimizers_names_is_public():
    """So that neither `optim/__init__.py` nor `autobatch/__init__.py` is touched for another one."""
    assert set(optimizers.__all__) < set(ab.optim.__all__)
    assert all(getattr(ab.optim, name) is getattr(optimizers, name) for name in optimizers.__all__)
