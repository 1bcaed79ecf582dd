"""The models of `benchmarks.first_form` in torch, batched by hand: padded, packed, as bags, or level by level."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence

from benchmarks.peers.tree_levels import Levels

Step = Callable[[Any], tuple[Any, Any]]
Tree = Any


def _parameters(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {name: _parameters(part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_parameters(part) for part in tree]
    return torch.tensor(tree, requires_grad=True)


def _leaves(tree: Tree) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in _leaves(part)]


def _gradients(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {name: _gradients(part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_gradients(part) for part in tree]
    return (tree.grad.to_dense() if tree.grad.is_sparse else tree.grad).numpy()


def _step(params: Tree, loss: Callable[..., torch.Tensor]) -> Step:
    """`loss(*columns)` of the batch, and its gradients; those of the table sparse, as torch's own are."""
    leaves = _leaves(params)

    def run(columns: Any) -> tuple[Any, Any]:
        for leaf in leaves:
            leaf.grad = None
        value = loss(*columns)
        value.backward()
        return value.item(), _gradients_later(params)

    return run


class _gradients_later(dict[str, Any]):  # noqa: N801
    """The gradients by name; a table's are made dense when they are read, which is not a part of a step."""

    def __init__(self, params: Tree) -> None:
        self.params = params

    def items(self) -> Any:
        return _gradients(self.params).items()


def _tensors(arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(x) for x in arrays]


def _padded(sentences: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids side by side, and where they are."""
    lengths = torch.tensor([len(x) for x in sentences])
    ids = pad_sequence(_tensors(sentences), batch_first=True)
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def bag(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def bags(words: Any, labels: Any) -> torch.Tensor:
        ids = torch.from_numpy(np.concatenate(words))
        offsets = torch.from_numpy(np.cumsum([0, *map(len, words[:-1])]))
        rows = F.embedding_bag(ids, p["emb"], offsets, mode="mean", sparse=True)
        return F.cross_entropy(rows @ p["out"], torch.tensor(labels))

    return {"torch bag": _step(p, bags)}


def recurrent(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(words: Any, labels: Any) -> torch.Tensor:
        ids, inside = _padded(words)
        xs = F.embedding(ids, p["emb"], sparse=True) @ p["w"]
        h = torch.zeros(len(words), p["u"].shape[0])
        for t in range(ids.shape[1]):
            h = torch.where(inside[:, t, None], torch.tanh(xs[:, t] + h @ p["u"]), h)
        return F.cross_entropy(h @ p["out"], torch.tensor(labels))

    q = {"emb": torch.tensor(params["emb"], requires_grad=True), "out": torch.tensor(params["out"], requires_grad=True)}
    cell = torch.nn.RNN(params["w"].shape[0], params["u"].shape[0], bias=False)
    with torch.no_grad():
        cell.weight_ih_l0.copy_(torch.tensor(params["w"].T))
        cell.weight_hh_l0.copy_(torch.tensor(params["u"].T))

    def packed(words: Any, labels: Any) -> torch.Tensor:
        ids = pack_sequence(_tensors(words), enforce_sorted=False)
        _, h = cell(ids._replace(data=F.embedding(ids.data, q["emb"], sparse=True)))
        return F.cross_entropy(h[0] @ q["out"], torch.tensor(labels))

    return {"torch padded": _step(p, padded), "torch packed": _module_step(q, cell, packed)}


def tagger(params: Tree) -> dict[str, Step]:
    q = {"emb": torch.tensor(params["emb"], requires_grad=True), "out": torch.tensor(params["out"], requires_grad=True)}
    cell = torch.nn.LSTM(params["w"].shape[0], params["u"].shape[0])
    with torch.no_grad():
        cell.weight_ih_l0.copy_(torch.tensor(params["w"].T))
        cell.weight_hh_l0.copy_(torch.tensor(params["u"].T))
        cell.bias_ih_l0.copy_(torch.tensor(params["b"]))
        cell.bias_hh_l0.zero_()
    cell.bias_hh_l0.requires_grad_(False)

    def packed(words: Any, tags: Any) -> torch.Tensor:
        ids, wanted = (pack_sequence(_tensors(each), enforce_sorted=False) for each in (words, tags))
        states, _ = cell(ids._replace(data=F.embedding(ids.data, q["emb"], sparse=True)))
        each = F.cross_entropy(states.data @ q["out"], wanted.data, reduction="none")
        return (each * _shares(ids, words)).sum()

    return {"torch packed": _module_step(q, cell, packed)}


def _shares(packed: PackedSequence, sentences: Any) -> torch.Tensor:
    """What each packed row counts in a mean over sentences of means over their words."""
    weights = 1 / (torch.tensor([len(x) for x in sentences]) * len(sentences))[packed.sorted_indices]
    return torch.cat([weights[:n] for n in packed.batch_sizes.tolist()])


def _module_step(q: dict[str, torch.Tensor], cell: Any, loss: Callable[..., torch.Tensor]) -> Step:
    """Like `_step`, of a recurrent module whose gradients are named as ours."""

    def run(columns: Any) -> tuple[Any, Any]:
        cell.zero_grad(set_to_none=True)
        for leaf in q.values():
            leaf.grad = None
        value = loss(*columns)
        value.backward()
        return value.item(), _Named(q, cell)

    return run


class _Named(dict[str, Any]):
    """As `_gradients_later`, with those of a module."""

    def __init__(self, q: dict[str, torch.Tensor], cell: Any) -> None:
        self.q, self.cell = q, cell

    def items(self) -> Any:
        found = _gradients(self.q) | {
            "w": self.cell.weight_ih_l0.grad.T.numpy(),
            "u": self.cell.weight_hh_l0.grad.T.numpy(),
        }
        if self.cell.bias:
            found["b"] = self.cell.bias_ih_l0.grad.numpy()
        return found.items()


def encoder(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(words: Any, labels: Any) -> torch.Tensor:
        ids, inside = _padded(words)
        x = F.embedding(ids, p["emb"], sparse=True)
        size = x.shape[-1:]
        for layer in p["layers"]:
            mixed = F.scaled_dot_product_attention(
                x @ layer["q"], x @ layer["k"], x @ layer["v"], attn_mask=inside[:, None]
            )
            x = F.layer_norm(x + mixed @ layer["o"], size)
            x = F.layer_norm(x + F.relu(x @ layer["up"]) @ layer["down"], size)
        mean = (x * inside[..., None]).sum(1) / inside.sum(1, keepdim=True)
        return F.cross_entropy(mean @ p["out"], torch.tensor(labels))

    return {"torch padded": _step(p, padded)}


def interest(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(histories: Any, items: Any, labels: Any) -> torch.Tensor:
        ids, inside = _padded(histories)
        seen = F.embedding(ids, p["emb"], sparse=True)
        wanted = F.embedding(torch.tensor(items), p["emb"], sparse=True)
        beside = wanted[:, None].expand_as(seen)
        scores = torch.tanh(torch.cat([seen, beside, seen * beside], 2) @ p["w"]) @ p["a"]
        weights = torch.softmax(scores.masked_fill(~inside, -torch.inf), 1)
        taste = (weights[:, None] @ seen)[:, 0]
        logits = torch.tanh(torch.cat([taste, wanted], 1) @ p["w2"]) @ p["out"][:, 0]
        return F.binary_cross_entropy_with_logits(logits, torch.tensor(labels, dtype=torch.float32))

    return {"torch padded": _step(p, padded)}


def trees(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def by_level(examples: Any, labels: Any) -> torch.Tensor:
        levels = Levels.of(examples)
        words = F.embedding(torch.from_numpy(levels.words), p["emb"], sparse=True)
        states = torch.tanh(words @ p["w"])
        for left, right in levels.levels:
            a, b = states[torch.from_numpy(left)], states[torch.from_numpy(right)]
            both = torch.cat([a, b], 1)
            z = torch.sigmoid(both @ p["gate"])
            states = torch.cat([states, z * torch.tanh(both @ p["new"]) + (1 - z) * (a + b) / 2])
        return F.cross_entropy(states[torch.from_numpy(levels.roots)] @ p["out"], torch.tensor(labels))

    return {"torch by level": _step(p, by_level)}
