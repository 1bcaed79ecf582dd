"""The optimisers: `init(params)` makes the state, `update` writes a step into the parameters."""

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

    With nesterov it is p -= lr · (g + momentum · v). The velocity of a table's row decays only in the steps that name
    the row. The arguments of all optimisers are those of `Optimizer`.

    Args:
        lr: the learning rate; or a schedule, called with the number of steps taken before. This, `weight_decay` and the
            keywords are those of `Optimizer`, here and in all optimisers.
        momentum: the share of the velocity that a step keeps; 0: there is none.
        nesterov: look ahead along the velocity.

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
        return kernels.momentum_rows, lambda real: (
            real(lr),
            real(self.weight_decay),
            real(self.momentum),
            self.nesterov,
        )


@dataclasses.dataclass
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): g += weight_decay · p; s += g²; p -= lr · g / (√s + eps).

    Args:
        lr, weight_decay: as for `Optimizer`.
        eps: keeps the divisor from 0.
        initial_accumulator: what s starts from.

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

    A table of (rows, dim) has a state of (rows,). The rows of an array are those of its first dimension; the
    elements of a vector are rows of one.

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
    """Adam (Kingma and Ba 2015), with bias correction by the number of steps; for tables lazy: only named rows move.

    Args:
        lr, weight_decay: as for `Optimizer`.
        betas: the shares of the running means of g and of g² that a step keeps, each below 1.
        eps: keeps the divisor from 0.

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
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): p -= lr · weight_decay · p beside Adam's step.

    Args:
        lr, betas, eps: as for `Adam`.
        weight_decay: the share of the parameter, times lr, that a step takes off.

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

    With `centered` the square of a running mean of g is taken off s; with momentum v = momentum · v + g / (√s + eps)
    and p -= lr · v.

    Args:
        lr, weight_decay: as for `Optimizer`.
        alpha: the share of the running means that a step keeps, at most 1.
        eps: keeps the divisor from 0.
        momentum: the share of the velocity that a step keeps; 0: there is none.
        centered: whether there is a running mean of g.

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

    def _check_option(self, name: str, default: Any, value: Any) -> None:
        super()._check_option(name, default, value)
        if name == "alpha":
            check(name, value, below=math.nextafter(1.0, 2.0))

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square", *(["average"] if self.centered else []), *(["velocity"] if self.momentum else []))

    def _arrays(self, arrays: list[Any]) -> list[Any]:
        found = dict(zip(("weights", *self.slots), arrays, strict=True))
        return [found.get(name) for name in ("weights", "square", "average", "velocity")]

    def _step(self, step: int, lr: float) -> _Step:
        return kernels.rms_rows, _numbers(lr, self.weight_decay, self.alpha, 1 - self.alpha, self.eps, self.momentum)


@dataclasses.dataclass
class FTRL(Optimizer):
    """FTRL-proximal (McMahan et al. 2013), which leaves the weights of rare features exactly zero.

    n' = n + g²; z += g − (√n' − √n) / lr · p; p = 0 where |z| ≤ l1, else (±l1 − z) / ((beta + √n') / lr + l2).
    A schedule changes lr in both places.

    Args:
        lr, weight_decay: as for `Optimizer`; lr is above 0.
        beta: added to √n'.
        l1, l2: how strongly weights are drawn to exactly 0, and to small values.
        initial_accumulator: what n starts from.

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
