"""The binary Tree-LSTM in torch: a tree at a time, and batched by hand, a level at a time."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.peers.tree_levels import Levels
from benchmarks.workloads import tree_lstm

Parameters = dict[str, torch.Tensor]


def encode(tree: Any, p: Parameters) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(tree, int):
        return leaf(p["emb"][tree], p)
    return pair(*encode(tree[0], p), *encode(tree[1], p), p)


def leaf(x: torch.Tensor, p: Parameters) -> tuple[torch.Tensor, torch.Tensor]:
    i, o, u = (x @ p["w"] + p["b_leaf"]).chunk(3, -1)
    c = torch.sigmoid(i) * torch.tanh(u)
    return torch.sigmoid(o) * torch.tanh(c), c


def pair(
    h1: torch.Tensor, c1: torch.Tensor, h2: torch.Tensor, c2: torch.Tensor, p: Parameters
) -> tuple[torch.Tensor, torch.Tensor]:
    i, o, f1, f2, u = (torch.cat([h1, h2], -1) @ p["u"] + p["b"]).chunk(5, -1)
    c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f1) * c1 + torch.sigmoid(f2) * c2
    return torch.sigmoid(o) * torch.tanh(c), c


def states(trees: Any, p: Parameters) -> torch.Tensor:
    """The roots' states; a state of a lower level is gathered from all levels so far, joined."""
    plan = Levels.of(trees)
    h, c = leaf(F.embedding(torch.from_numpy(plan.words), p["emb"]), p)
    for places in plan.levels:
        left, right = map(torch.from_numpy, places)
        new = pair(h[left], c[left], h[right], c[right], p)
        h, c = torch.cat([h, new[0]]), torch.cat([c, new[1]])
    return h[torch.from_numpy(plan.roots)]


def by_level(case: Case) -> Runner:
    data = tree_lstm.data(case)
    p = torch_common.parameters(data, case.train)
    trees, labels = data.columns[0], torch.tensor(data.columns[-1]) if case.train else None
    return torch_common.runner(
        p,
        lambda: states(trees, p) @ p["out"],
        lambda: F.cross_entropy(states(trees, p) @ p["out"], labels),
        case.train,
    )


def loop(case: Case) -> Runner:
    data = tree_lstm.data(case)
    p = torch_common.parameters(data, case.train)
    trees, labels = data.columns[0], torch.tensor(data.columns[-1]) if case.train else None

    def scores() -> list[torch.Tensor]:
        return [encode(tree, p)[0] @ p["out"] for tree in trees]

    return torch_common.runner(p, scores, lambda: F.cross_entropy(torch.stack(scores()), labels), case.train)
