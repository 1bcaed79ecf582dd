"""The loop with an exit of its own in torch: an example at a time, and all at once until the last has ended."""

import torch

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.workloads import halting


def loop(case: Case) -> Runner:
    data = halting.data(case)
    p = torch_common.parameters(data, case.train)
    hs = torch_common.tensors(data.columns[0])

    def run(h: torch.Tensor) -> torch.Tensor:
        while h.abs().max() > halting.ENOUGH:
            h = torch.tanh(h @ p["u"])
        return h

    return torch_common.runner(
        p, lambda: [run(h) for h in hs], lambda: torch.stack([(run(h) * p["out"]).sum() for h in hs]).mean(), case.train
    )


def masked(case: Case) -> Runner:
    data = halting.data(case)
    p = torch_common.parameters(data, case.train)
    hs = torch_common.tensors(data.columns[0])

    def run() -> torch.Tensor:
        h = torch.stack(hs)
        while (going := h.abs().amax(1, keepdim=True) > halting.ENOUGH).any():
            h = torch.where(going, torch.tanh(h @ p["u"]), h)
        return h

    return torch_common.runner(p, run, lambda: (run() * p["out"]).sum(1).mean(), case.train)
