"""Attention of a candidate over histories in torch, on histories padded to the longest."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import pad_sequence

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.workloads import interest


def prepare(case: Case) -> Runner:
    data = interest.data(case)
    p = torch_common.parameters(data, case.train)
    histories = torch_common.tensors(data.columns[0])
    ids = pad_sequence(histories, batch_first=True)
    inside = pad_sequence([torch.ones(len(each)) for each in histories], batch_first=True)
    candidates = torch.tensor(data.columns[1])

    def logits() -> torch.Tensor:
        items = F.embedding(ids, p["emb"], sparse=case.train)
        wanted = F.embedding(candidates, p["emb"], sparse=case.train)
        beside = wanted[:, None].expand_as(items)
        features = torch.cat([items, beside, items - beside, items * beside], dim=2)
        weights = (torch.relu(features @ p["w_1"] + p["b_1"]) @ p["w_2"]) * inside
        pooled = (weights[:, None] @ items)[:, 0]
        hidden = torch.relu(torch.cat([pooled, wanted], dim=1) @ p["w_3"] + p["b_3"])
        return hidden @ p["out"]

    def loss() -> torch.Tensor:
        labels = torch.tensor(data.columns[2], dtype=torch.float32)
        return F.binary_cross_entropy_with_logits(logits(), labels)

    return torch_common.runner(p, logits, loss, case.train)
