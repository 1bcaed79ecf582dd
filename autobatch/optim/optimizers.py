"""The optimiser classes: `init(params)` makes the state, and `update` applies a step to the parameters in place."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.kernels import optimizer_steps as kernels
from autobatch.optim.base import Optimizer, Schedule, check

__all__ = ["FTRL", "SGD", "Adagrad", "Adam", "AdamW", "RMSProp", "RowWiseAdagrad"]

_Step = tuple[Callable[..., None], Callable[[Any], Sequence[Any]]]


def _numbers(*values: Any) -> Callable[[Any], Sequence[Any]]:
    return lambda real: tuple(real(value) for value in values)


@dataclasses.dataclass
class SGD(Optimizer):
    """Stochastic gradient descent: g += weight_decay · p; v = momentum · v + g; p -= lr · v.

    With nesterov: p -= lr · (g + momentum · v). The velocity of a table's row decays only in steps whose gradient names
    the row.

    Args:
        lr: the learning rate; or a schedule, a function of the number of steps taken before. This, `weight_decay` and
            the keywords of `Optimizer` are common to all optimisers.
        momentum: the factor by which the velocity decays in each step; 0: no velocity.
        nesterov: use Nesterov momentum.

    Source: `torch.optim.SGD` without dampening.

    >>> optimizer, params = SGD(lr=0.1), {"w": np.array([1.0, -2.0])}
    >>> params, state = optimizer.update(params, {"w": np.array([0.5, 0.0])}, optimizer.init(params))
    >>> params["w"].round(4)
    array([ 0.95, -2.  ])
    """

    lr: Schedule
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=True with momentum=0; give a momentum, such as 0.9")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def _step(self, step: int, lr: float) -> _Step:
        if not self.momentum:
            return kernels.sgd_rows, _numbers(lr, self.weight_decay)
        numbers = _numbers(lr, self.weight_decay, self.momentum)
        return kernels.momentum_rows, lambda real: (*numbers(real), self.nesterov)


@dataclasses.dataclass
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): g += weight_decay · p; s += g²; p -= lr · g / (√s + eps).

    Args:
        lr, weight_decay: as for `Optimizer`.
        eps: added to the divisor, so that it is not 0.
        initial_accumulator: the initial value of s.

    Source: `torch.optim.Adagrad`; Caffe2's `SparseAdagrad`.

    >>> optimizer, params = Adagrad(lr=0.1), {"w": np.array([1.0, -2.0])}
    >>> params, state = optimizer.update(params, {"w": np.array([0.5, 0.0])}, optimizer.init(params))
    >>> params["w"].round(4)
    array([ 0.9, -2. ])
    """

    lr: Schedule = 0.01
    eps: float = 1e-10
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("sum",)

    def _fill(self, slot: str) -> float:
        return self.initial_accumulator

    def _step(self, step: int, lr: float) -> _Step:
        return kernels.adagrad_rows, _numbers(lr, self.weight_decay, self.eps)


@dataclasses.dataclass
class RowWiseAdagrad(Adagrad):
    """Adagrad with one accumulator for each row: s += mean(g²) over the row; p -= lr · g / (√s + eps).

    For a table (rows, dim) the state is (rows,). The rows of an array are along its first dimension; each element of a
    vector counts as a row.

    Args:
        lr, eps, weight_decay, initial_accumulator: as for `Adagrad`.

    Source: FBGEMM's `EXACT_ROWWISE_ADAGRAD`; Caffe2's `RowWiseSparseAdagrad`.

    >>> optimizer, table = RowWiseAdagrad(lr=0.1), np.array([[1.0, -2.0]])
    >>> table, state = optimizer.update(table, np.array([[0.5, 0.0]]), optimizer.init(table))
    >>> table.round(4), state["sum"]
    (array([[ 0.8586, -2.    ]]), array([0.125]))
    """

    @property
    def by_row(self) -> bool:
        return True

    def _step(self, step: int, lr: float) -> _Step:
        return kernels.row_adagrad_rows, _numbers(lr, self.weight_decay, self.eps)


@dataclasses.dataclass
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), with bias correction by the number of steps; in tables only named rows are updated.

    Args:
        lr, weight_decay: as for `Optimizer`.
        betas: the decay factors of the running means of g and of g², each below 1.
        eps: added to the divisor, so that it is not 0.

    Source: `torch.optim.Adam`; for `SparseRows` `torch.optim.SparseAdam`.

    >>> optimizer, params = Adam(lr=0.1), {"w": np.array([1.0, -2.0])}
    >>> params, state = optimizer.update(params, {"w": np.array([0.5, 0.0])}, optimizer.init(params))
    >>> params["w"].round(4)
    array([ 0.9, -2. ])
    """

    lr: Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean", "square")

    def _step(self, step: int, lr: float) -> _Step:
        return self._with_decay(step, lr, self.weight_decay, 0.0)

    def _with_decay(self, step: int, lr: float, decay: float, shrink: float) -> _Step:
        beta1, beta2 = self.betas
        size, scale = lr / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step)
        return kernels.adam_rows, _numbers(size, decay, shrink, beta1, beta2, 1 - beta1, 1 - beta2, scale, self.eps)


@dataclasses.dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): p -= lr · weight_decay · p on top of Adam's step.

    Args:
        lr, betas, eps: as for `Adam`.
        weight_decay: each step subtracts lr · weight_decay · p.

    Source: `torch.optim.AdamW`.

    >>> optimizer, params = AdamW(lr=0.1), {"w": np.array([1.0, -2.0])}
    >>> params, state = optimizer.update(params, {"w": np.array([0.5, 0.0])}, optimizer.init(params))
    >>> params["w"].round(4)
    array([ 0.899, -1.998])
    """

    weight_decay: float = 1e-2

    def _step(self, step: int, lr: float) -> _Step:
        return self._with_decay(step, lr, 0.0, lr * self.weight_decay)


@dataclasses.dataclass
class RMSProp(Optimizer):
    """RMSProp (Hinton 2012): s = alpha · s + (1 − alpha) · g²; p -= lr · g / (√s + eps).

    With `centered`, the square of a running mean of g is subtracted from s; with momentum,
    v = momentum · v + g / (√s + eps) and p -= lr · v.

    Args:
        lr, weight_decay: as for `Optimizer`.
        alpha: the decay factor of the running means, at most 1.
        eps: added to the divisor, so that it is not 0.
        momentum: the factor by which the velocity decays in each step; 0: no velocity.
        centered: keep a running mean of g, and divide by the root of the variance.

    Source: `torch.optim.RMSprop`.

    >>> optimizer, params = RMSProp(lr=0.1), {"w": np.array([1.0, -2.0])}
    >>> params, state = optimizer.update(params, {"w": np.array([0.5, 0.0])}, optimizer.init(params))
    >>> params["w"].round(4)
    array([ 0., -2.])
    """

    lr: Schedule = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def _check_option(self, name: str, default: object, value: object) -> None:
        super()._check_option(name, default, value)
        if name == "alpha":
            check(name, value, below=math.nextafter(1.0, 2.0))

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square", *(["average"] if self.centered else []), *(["velocity"] if self.momentum else []))

    def _kernel_arrays(self, arrays: list[Any]) -> list[Any]:
        found = dict(zip(("weights", *self.slots), arrays, strict=True))
        return [found.get(name) for name in ("weights", "square", "average", "velocity")]

    def _step(self, step: int, lr: float) -> _Step:
        return kernels.rms_rows, _numbers(lr, self.weight_decay, self.alpha, 1 - self.alpha, self.eps, self.momentum)


@dataclasses.dataclass
class FTRL(Optimizer):
    """FTRL-proximal (McMahan et al. 2013), which leaves the weights of rare features exactly zero.

    n' = n + g²; z += g − (√n' − √n) / lr · p; p = 0 where |z| ≤ l1, else (±l1 − z) / ((beta + √n') / lr + l2).
    A schedule applies to both occurrences of lr.

    Args:
        lr, weight_decay: as for `Optimizer`; lr must be above 0.
        beta: added to √n'.
        l1, l2: the strengths of L1 regularisation (exact zeros) and of L2 regularisation.
        initial_accumulator: the initial value of n.

    Source: algorithm 1 of the paper; Caffe2's `SparseFtrl`.

    >>> optimizer, params = FTRL(lr=0.1, l1=0.1), {"w": np.array([1.0, -2.0])}
    >>> params, state = optimizer.update(params, {"w": np.array([0.5, 0.0])}, optimizer.init(params))
    >>> params["w"].round(4)
    array([0.2933, 0.    ])
    """

    lr: Schedule = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("squares", "linear")

    def __post_init__(self) -> None:
        if not callable(self.lr) and not self.lr:
            raise ValueError("lr=0 for FTRL, which divides by it")

    def _fill(self, slot: str) -> float:
        return self.initial_accumulator if slot == "squares" else 0.0

    def _rate(self, step: int) -> float:
        rate = super()._rate(step)
        if not rate:
            raise ValueError("lr=0 for FTRL, which divides by it")
        return rate

    def _step(self, step: int, lr: float) -> _Step:
        return kernels.ftrl_rows, _numbers(lr, self.weight_decay, self.beta, self.l1, self.l2)
