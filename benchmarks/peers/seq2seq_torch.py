"""Sequence to sequence with attention in torch: `nn.LSTM` reads packed sequences, cells write, padding is masked."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence

from benchmarks.declare import Case, Runner
from benchmarks.peers import lstm_torch, torch_common
from benchmarks.workloads import seq2seq

__all__ = ["prepare"]


def prepare(case: Case) -> Runner:
    data = seq2seq.data(case)
    p = torch_common.parameters(data, False)
    reader = lstm_torch.module(p.pop("w"), p.pop("u"), p.pop("b"), case.train)
    for each in p.values():
        each.requires_grad_(case.train)
    sources, targets = (torch_common.tensors(column) for column in data.columns[:2])
    labels = torch_common.tensors(data.columns[-1]) if case.train else []

    def scores() -> torch.Tensor:
        packed, (last, _) = reader(pack_sequence(sources, enforce_sorted=False))
        memory, lengths = pad_packed_sequence(packed, batch_first=True)
        outside = (torch.arange(memory.shape[1]) >= lengths[:, None])[:, :, None]
        inputs = pad_sequence(targets) @ p["w_2"] + p["b_2"]
        h, c = last[0], torch.zeros_like(last[0])
        found = []
        for x in inputs:
            i, f, g, o = (x + h @ p["u_2"]).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            weights = (memory @ (h @ p["look"])[:, :, None]).masked_fill(outside, -torch.inf).softmax(1)
            found.append(torch.cat([h, (weights.transpose(1, 2) @ memory)[:, 0]], dim=1))
        return torch.tanh(torch.stack(found, dim=1) @ p["mix"]) @ p["out"]

    def each_scores() -> list[torch.Tensor]:
        return [row[: len(target)] for row, target in zip(scores(), targets, strict=True)]

    def step() -> torch.Tensor:
        reader.zero_grad(set_to_none=True)
        for each in p.values():
            each.grad = None
        wanted = pad_sequence(labels, batch_first=True, padding_value=-1)
        losses = F.cross_entropy(scores().transpose(1, 2), wanted, ignore_index=-1, reduction="none")
        value = (losses.sum(1) / (wanted >= 0).sum(1)).mean()
        value.backward()
        return value

    def result(value: torch.Tensor) -> dict[str, Any]:
        gradients = {name: each.grad.numpy() for name, each in p.items()}
        return {"loss": value.detach().numpy(), "gradients": {**gradients, **lstm_torch.gradients_of(reader)}}

    return Runner(step, result) if case.train else torch_common.runner({}, each_scores, each_scores, train=False)
