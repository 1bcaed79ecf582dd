"""What the torch peers share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.common import Data
from benchmarks.declare import Runner


def parameters(data: Data, train: bool) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(x, requires_grad=train) for name, x in data.params.items()}


def tensors(arrays: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]


def runner(params: dict[str, torch.Tensor], forward: Callable[[], Any], loss: Callable[[], Any], train: bool) -> Runner:
    """`forward()` gives the results, one row or one tensor for each example; `loss()` the mean loss."""
    if not train:

        def run() -> Any:
            with torch.inference_mode():
                return forward()

        return Runner(run, lambda out: [x.numpy() for x in out])

    def step() -> torch.Tensor:
        for p in params.values():
            p.grad = None
        value = loss()
        value.backward()
        return value

    def result(value: torch.Tensor) -> dict[str, Any]:
        found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in params.items()}
        dense = {name: (g.to_dense() if g.is_sparse else g).numpy() for name, g in found.items()}
        return {"loss": value.detach().numpy(), "gradients": dense}

    return Runner(step, result)
