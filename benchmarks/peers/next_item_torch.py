"""The next item of a history in torch, on histories padded to the longest, with its fused attention."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import pad_sequence

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.workloads import next_item


def prepare(case: Case) -> Runner:
    data = next_item.data(case)
    p = torch_common.parameters(data, case.train)
    columns = [torch_common.tensors(column) for column in data.columns]
    lengths = torch.tensor([len(items) for items in columns[0]])

    def states() -> torch.Tensor:
        items = pad_sequence(columns[0], batch_first=True)
        x = F.embedding(items, p["emb"], sparse=case.train) + p["place"][: items.shape[1]]
        size = x.shape[-1:]
        for layer in range(next_item.LAYERS):
            y = F.layer_norm(x, size)
            q, k, v = y @ p[f"q_{layer}"], x @ p[f"k_{layer}"], x @ p[f"v_{layer}"]
            x = y + F.scaled_dot_product_attention(q, k, v, is_causal=True)  # padding comes after what is there
            y = F.layer_norm(x, size)
            x = y + F.relu(y @ p[f"up_{layer}"] + p[f"b_up_{layer}"]) @ p[f"down_{layer}"] + p[f"b_down_{layer}"]
        return F.layer_norm(x, size)

    def loss() -> torch.Tensor:
        wanted = states()
        came, others = (
            F.embedding(pad_sequence(column, batch_first=True), p["emb"], sparse=True) for column in columns[1:]
        )
        each = F.softplus(-(wanted * came).sum(2)) + F.softplus((wanted * others).sum(2))
        inside = torch.arange(each.shape[1]) < lengths[:, None]
        return ((each * inside).sum(1) / lengths).mean()

    def results() -> list[torch.Tensor]:
        return [x[:n] for x, n in zip(states(), lengths.tolist(), strict=True)]

    return torch_common.runner(p, results, loss, case.train)
