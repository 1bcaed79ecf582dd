"""SGD, Adagrad and Adam: `init(params)` makes the state, `update` writes a step into the parameters."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from autobatch.core import pytree
from autobatch.errors import StructureError
from autobatch.kernels import updates as kernels
from autobatch.optim.leaves import apply_step, paired, state_like

__all__ = ["SGD", "Adagrad", "Adam", "Optimizer"]


class Optimizer(abc.ABC):
    """What the optimisers share: state of the parameters' structure, and an update in place.

    Parameters are a tree (dict, list, tuple, namedtuple, dataclass) of float arrays, `EmbeddingTable`s and float
    numbers; other leaves are left alone. A gradient is dense, `SparseRows` or None (no update). Of a table only the
    rows that a `SparseRows` names change, and only their state; repeated ids are added up first.
    """

    slots: ClassVar[tuple[str, ...]] = ()

    def init(self, params: Any) -> dict[str, Any]:
        """The state before the first step: the number of steps and, for each slot, a tree of arrays. It pickles."""
        return {"step": 0} | {slot: pytree.map_tree(self._initial, params) for slot in self.slots}

    def _initial(self, value: Any) -> Any:
        return state_like(value)

    def update(self, params: Any, grads: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Take one step, `p -= ...`.

        Arrays, tables and the state's arrays are written in place; numbers cannot be, so use what is returned.
        Everything is checked before anything is written.

        Raises:
            StructureError: parameters, gradients and state that differ in structure.
            ShapeError, DTypeError: a gradient of another shape or dtype than its parameter; the message names it.

        >>> params = {"w": np.array([1.0, 2.0])}
        >>> opt = SGD(lr=0.5)
        >>> params, state = opt.update(params, {"w": np.array([1.0, 0.0])}, opt.init(params))
        >>> params
        {'w': array([0.5, 2. ])}
        """
        if not isinstance(state, dict) or state.keys() != {"step", *self.slots}:
            found = list(state) if isinstance(state, dict) else type(state).__name__
            raise StructureError(f"the state has {found}; expected that of {type(self).__name__}.init(params)")
        leaves, structure = paired(params, grads, [state[slot] for slot in self.slots])
        step = state["step"] + 1
        kernel, numbers = self._step(step)
        new = [leaf.value if leaf.grad is None else apply_step(kernel, leaf, numbers) for leaf in leaves]
        if any(value is not leaf.value for value, leaf in zip(new, leaves, strict=True)):
            params = pytree.unflatten(structure, new)
        return params, state | {"step": step}

    @abc.abstractmethod
    def _step(self, step: int) -> tuple[Callable[..., None], Callable[[Any], Sequence[Any]]]:
        """The kernel of the step number `step`, and what it takes beside arrays, made with a dtype's constructor."""


def _check(name: str, value: float, *, below: float = math.inf) -> None:
    if not 0 <= value < below:
        raise ValueError(f"{name}={value}; expected at least 0{f' and below {below:g}' if below < math.inf else ''}")


@dataclasses.dataclass
class SGD(Optimizer):
    """Stochastic gradient descent: g += weight_decay · p; v = momentum · v + g; p -= lr · v.

    With nesterov it is p -= lr · (g + momentum · v). The velocity of a table's row decays only in the steps that name
    the row.
    Source: `torch.optim.SGD` without dampening.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("lr", self.lr)
        _check("momentum", self.momentum)
        _check("weight_decay", self.weight_decay)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=True with momentum=0; give a momentum, such as 0.9")

    @property
    def slots(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("velocity",) if self.momentum else ()

    def _step(self, step: int) -> tuple[Callable[..., None], Callable[[Any], Sequence[Any]]]:
        if not self.momentum:
            return kernels.sgd_rows, lambda real: (real(self.lr), real(self.weight_decay))
        return kernels.momentum_rows, lambda real: (
            real(self.lr),
            real(self.weight_decay),
            real(self.momentum),
            self.nesterov,
        )


@dataclasses.dataclass
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): g += weight_decay · p; s += g²; p -= lr · g / (√s + eps).

    Source: `torch.optim.Adagrad`.
    """

    lr: float = 0.01
    eps: float = 1e-10
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0

    slots: ClassVar[tuple[str, ...]] = ("sum",)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name))

    def _initial(self, value: Any) -> Any:
        return state_like(value, self.initial_accumulator)

    def _step(self, step: int) -> tuple[Callable[..., None], Callable[[Any], Sequence[Any]]]:
        return kernels.adagrad_rows, lambda real: (real(self.lr), real(self.weight_decay), real(self.eps))


@dataclasses.dataclass
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), with bias correction by the number of steps; for tables lazy: only named rows move.

    Source: `torch.optim.Adam`; for `SparseRows` `torch.optim.SparseAdam`.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    slots: ClassVar[tuple[str, ...]] = ("mean", "square")

    def __post_init__(self) -> None:
        _check("lr", self.lr)
        _check("eps", self.eps)
        _check("weight_decay", self.weight_decay)
        for i, beta in enumerate(self.betas):
            _check(f"betas[{i}]", beta, below=1.0)

    def _step(self, step: int) -> tuple[Callable[..., None], Callable[[Any], Sequence[Any]]]:
        beta1, beta2 = self.betas
        size, scale = self.lr / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step)
        values = (size, self.weight_decay, beta1, beta2, 1 - beta1, 1 - beta2, scale, self.eps)
        return kernels.adam_rows, lambda real: tuple(map(real, values))
