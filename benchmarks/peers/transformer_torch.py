"""The transformer encoder in torch: padded with its fused attention, and a sentence at a time."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import pad_sequence

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.workloads import transformer


def encode(x: torch.Tensor, p: dict[str, torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
    """(batch, t, size) -> the same, normed; `mask` is False at padding."""
    size = x.shape[-1]
    for layer in range(transformer.LAYERS):
        y = F.layer_norm(x, (size,)) @ p[f"qkv_{layer}"]
        q, k, v = y.view(*x.shape[:2], 3, transformer.HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None, None])
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ p[f"mix_{layer}"]
        up = F.relu(F.layer_norm(x, (size,)) @ p[f"up_{layer}"] + p[f"b_up_{layer}"])
        x = x + up @ p[f"down_{layer}"] + p[f"b_down_{layer}"]
    return F.layer_norm(x, (size,))


def padded(case: Case) -> Runner:
    data = transformer.data(case)
    p = torch_common.parameters(data, case.train)
    xs = torch_common.tensors(data.columns[0])
    labels = torch.tensor(data.columns[-1]) if case.train else None

    def scores() -> torch.Tensor:
        lengths = torch.tensor([len(x) for x in xs])
        batch = pad_sequence(xs, batch_first=True)
        mask = torch.arange(batch.shape[1]) < lengths[:, None]
        y = encode(batch, p, mask) * mask[:, :, None]
        return y.sum(1) / lengths[:, None] @ p["out"]

    return torch_common.runner(p, scores, lambda: F.cross_entropy(scores(), labels), case.train)


def loop(case: Case) -> Runner:
    data = transformer.data(case)
    p = torch_common.parameters(data, case.train)
    xs = torch_common.tensors(data.columns[0])
    labels = torch.tensor(data.columns[-1]) if case.train else None

    def scores() -> list[torch.Tensor]:
        return [encode(x[None], p, None)[0].mean(0) @ p["out"] for x in xs]

    return torch_common.runner(p, scores, lambda: F.cross_entropy(torch.stack(scores()), labels), case.train)
