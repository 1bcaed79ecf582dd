"""Bags in torch, with its sparse gradient."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from benchmarks.declare import Case, Runner
from benchmarks.workloads.bags import Bags, coalesced


def prepare(case: Case) -> Runner:
    b = Bags(case)
    table = torch.from_numpy(b.table)
    ids, offsets = torch.from_numpy(b.ids), torch.from_numpy(b.offsets)
    weights = None if b.weights is None else torch.from_numpy(b.weights)

    def bag(sparse: bool = False) -> torch.Tensor:
        return F.embedding_bag(ids, table, offsets, mode=b.mode, per_sample_weights=weights, sparse=sparse)

    if not case.train:

        def forward() -> torch.Tensor:
            with torch.inference_mode():
                return bag()

        return Runner(forward, lambda out: out.numpy())
    ct = torch.from_numpy(b.ct)
    table.requires_grad_()

    def backward() -> torch.Tensor:
        table.grad = None
        (bag(sparse=True) * ct).sum().backward()
        assert table.grad is not None
        return table.grad

    return Runner(backward, lambda g: coalesced(g._indices()[0].numpy(), g._values().numpy()))
