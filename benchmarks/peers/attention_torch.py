"""Attention in torch: padded with its fused attention, mapped by `torch.func.vmap`, and a sentence at a time."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import pad_sequence

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.workloads import attention

Parameters = dict[str, torch.Tensor]


def one(x: torch.Tensor, real: torch.Tensor | None, p: Parameters) -> torch.Tensor:
    """The scores of one sentence, of which `real` names the rows that are no padding."""
    scores = (x @ p["q"]) @ (x @ p["k"]).T * x.shape[1] ** -0.5
    if real is None:
        return torch.tanh(scores.softmax(-1) @ (x @ p["v"])).mean(0) @ p["out"]
    mixed = torch.tanh(scores.masked_fill(~real, -torch.inf).softmax(-1) @ (x @ p["v"]))
    return torch.where(real[:, None], mixed, 0).sum(0) / real.sum() @ p["out"]


def many(x: torch.Tensor, real: torch.Tensor, p: Parameters) -> torch.Tensor:
    """The scores of all sentences, side by side."""
    mixed = F.scaled_dot_product_attention(x @ p["q"], x @ p["k"], x @ p["v"], attn_mask=real[:, None])
    mixed = torch.tanh(mixed) * real[:, :, None]
    return mixed.sum(1) / real.sum(1, keepdim=True) @ p["out"]


def _batched(case: Case, by_vmap: bool) -> Runner:
    data = attention.data(case)
    p = torch_common.parameters(data, case.train)
    xs = torch_common.tensors(data.columns[0])
    labels = torch.tensor(data.columns[-1]) if case.train else None

    def scores() -> torch.Tensor:
        batch = pad_sequence(xs, batch_first=True)
        real = torch.arange(batch.shape[1]) < torch.tensor([len(x) for x in xs])[:, None]
        if by_vmap:
            return torch.func.vmap(one, in_dims=(0, 0, None))(batch, real, p)
        return many(batch, real, p)

    return torch_common.runner(p, scores, lambda: F.cross_entropy(scores(), labels), case.train)


def padded(case: Case) -> Runner:
    return _batched(case, by_vmap=False)


def mapped(case: Case) -> Runner:
    return _batched(case, by_vmap=True)


def loop(case: Case) -> Runner:
    data = attention.data(case)
    p = torch_common.parameters(data, case.train)
    xs = torch_common.tensors(data.columns[0])
    labels = torch.tensor(data.columns[-1]) if case.train else None

    def scores() -> list[torch.Tensor]:
        return [one(x, None, p) for x in xs]

    return torch_common.runner(p, scores, lambda: F.cross_entropy(torch.stack(scores()), labels), case.train)
