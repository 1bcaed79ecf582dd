"""DyNet from Python, which batches on the fly too: a graph for each example, all evaluated together."""

from collections.abc import Callable
from typing import Any

import dynet as dy
import numpy as np

from benchmarks.common import Data
from benchmarks.declare import Runner

Parameters = dict[str, Any]

_OWNER = "collection"


def parameters(data: Data) -> Parameters:
    """The parameters by name: matrices the other way round (DyNet multiplies columns), tables for look-ups."""
    collection = dy.ParameterCollection()
    held: Parameters = {_OWNER: collection}  # which they do not outlive
    for name, x in data.params.items():
        if name in data.tables:
            held[name] = collection.lookup_parameters_from_numpy(x)
        else:
            held[name] = collection.parameters_from_numpy(np.ascontiguousarray(x.T))
    return held


def runner(data: Data, build: Callable[..., Any], train: bool) -> Runner:
    """`build(*example, parameters)` is an example's result, or its loss.

    Gradients add up from run to run, which DyNet leaves to its trainers to undo; they are read after the first.
    """
    held = parameters(data)
    examples = data.examples

    def forward() -> list[np.ndarray]:
        dy.renew_cg()
        outs = [build(*example, held) for example in examples]
        dy.forward(outs)
        return [out.npvalue() for out in outs]

    def training() -> float:
        dy.renew_cg()
        mean = dy.average([build(*example, held) for example in examples])
        value = mean.value()
        mean.backward()
        return value

    def gradients(loss: float) -> dict[str, Any]:
        found = {name: p.grad_as_array() for name, p in held.items() if name != _OWNER}
        return {
            "loss": np.float32(loss),
            "gradients": {name: g if name in data.tables else g.T for name, g in found.items()},
        }

    return Runner(training, gradients) if train else Runner(forward)
