"""The models of `benchmarks.first_form` in torch, batched by hand: padded, packed, joined, by level or by step."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence

from benchmarks.first_form_models import LEFT, RIGHT, SHIFT, best_move
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
    if tree.grad is None:
        return np.zeros(tree.shape, np.float32)
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


def _bags(p: Tree, sentences: Sequence[np.ndarray]) -> torch.Tensor:
    """The mean word vector of each sentence."""
    offsets = torch.from_numpy(np.cumsum([0, *map(len, sentences[:-1])]))
    return F.embedding_bag(torch.from_numpy(np.concatenate(sentences)), p["emb"], offsets, mode="mean", sparse=True)


def bag(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def bags(words: Any, labels: Any) -> torch.Tensor:
        return F.cross_entropy(_bags(p, words) @ p["out"], torch.tensor(labels))

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


def _states(p: Tree, ids: torch.Tensor) -> torch.Tensor:
    """(B, T, n) states of the recurrence over padded ids."""
    xs = F.embedding(ids, p["emb"], sparse=True) @ p["w"]
    h = torch.zeros(len(ids), p["u"].shape[0])
    states = []
    for x in xs.unbind(1):
        h = torch.tanh(x + h @ p["u"])
        states.append(h)
    return torch.stack(states, 1)


def _last(states: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """The state at each sentence's last word."""
    return states[torch.arange(len(states)), inside.sum(1) - 1]


def _log_partition(rows: torch.Tensor, inside: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """(B,) log-sums over all paths of scores by step (B, T, K) and by move (K, K)."""
    alpha = rows[:, 0]
    for row, run in zip(rows.unbind(1)[1:], inside.unbind(1)[1:], strict=True):
        alpha = torch.where(run[:, None], torch.logsumexp(alpha[:, :, None] + moves, 1) + row, alpha)
    return torch.logsumexp(alpha, 1)


def crf(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(words: Any, tags: Any) -> torch.Tensor:
        ids, inside = _padded(words)
        wanted, _ = _padded(tags)
        rows = _states(p, ids) @ p["out"]
        score = (rows.gather(2, wanted[..., None])[..., 0] * inside).sum(1)
        score = score + (p["moves"][wanted[:, :-1], wanted[:, 1:]] * inside[:, 1:]).sum(1)
        return (_log_partition(rows, inside, p["moves"]) - score).mean()

    return {"torch padded": _step(p, padded)}


def hmm(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(seen: Any) -> torch.Tensor:
        ids, inside = _padded(seen)
        rows = torch.log_softmax(p["emits"], 1).T[ids]
        start = torch.log_softmax(p["start"], 0)
        rows = torch.cat([(rows[:, :1] + start), rows[:, 1:]], 1)
        return -_log_partition(rows, inside, torch.log_softmax(p["moves"], 1)).mean()

    return {"torch padded": _step(p, padded)}


def _attending(p: Tree, states: torch.Tensor, inside: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(B, S, 2 n) states of a decoder and what they attend to; and (B, S, T) attention, all steps at once.

    Args:
        before: (B, S, n) what the decoder reads at each step.
    """
    h = _last(states, inside)
    steps = []
    for x in (before @ p["w2"]).unbind(1):
        h = torch.tanh(x + h @ p["u2"])
        steps.append(h)
    h = torch.stack(steps, 1)
    scores = h @ p["a"] @ states.transpose(1, 2)
    attention = torch.softmax(scores.masked_fill(~inside[:, None], -torch.inf), 2)
    return torch.cat([h, attention @ states], 2), attention


def _shifted(wanted: torch.Tensor) -> torch.Tensor:
    """What was said before each step; 0 before the first."""
    return F.pad(wanted[:, :-1], (1, 0))


def _mean_by_length(each: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """The mean over examples of means over their steps."""
    return ((each * inside).sum(1) / inside.sum(1)).mean()


def g2p(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(letters: Any, sounds: Any) -> torch.Tensor:
        ids, inside = _padded(letters)
        wanted, there = _padded(sounds)
        both, _ = _attending(p, _states(p, ids), inside, p["said"][_shifted(wanted)])
        logits = torch.tanh(both @ p["mix"]) @ p["out"]
        return _mean_by_length(F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none"), there)

    return {"torch padded": _step(p, padded)}


def pointer(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(sources: Any, summaries: Any) -> torch.Tensor:
        ids, inside = _padded(sources)
        wanted, there = _padded(summaries)
        before = F.embedding(_shifted(wanted), p["emb"], sparse=True)
        both, attention = _attending(p, _states(p, ids), inside, before)
        copy = torch.sigmoid(both @ p["copy"])
        generated = torch.softmax(both @ p["out"], 2).gather(2, wanted[..., None])[..., 0]
        copied = (attention * (ids[:, None] == wanted[..., None])).sum(2)
        return _mean_by_length(-torch.log((1 - copy) * generated + copy * copied + 1e-6), there)

    return {"torch padded": _step(p, padded)}


def ctc(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(frames: Any, sounds: Any) -> torch.Tensor:
        x = pad_sequence(_tensors(frames))
        log_p = torch.log_softmax(torch.tanh(x @ p["w"]) @ p["out"], 2)
        times, counts = (torch.tensor([len(each) for each in column]) for column in (frames, sounds))
        each = F.ctc_loss(log_p, torch.from_numpy(np.concatenate(sounds)), times, counts, reduction="none")
        return each.mean()

    return {"torch padded": _step(p, padded)}


def retrieval(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def bags(queries: Any, texts: Any) -> torch.Tensor:
        wanted = _bags(p, queries) @ p["w"]
        found = torch.tanh(_bags(p, [text for each in texts for text in each]) @ p["v"])
        scores = (found.view(len(queries), -1, found.shape[1]) @ wanted[:, :, None])[..., 0]
        return F.cross_entropy(scores, torch.zeros(len(queries), dtype=torch.int64))

    return {"torch bag": _step(p, bags)}


def experts(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def bags(words: Any, labels: Any) -> torch.Tensor:
        x = _bags(p, words)
        gate, chosen = torch.softmax(x @ p["gate"], 1).max(1)
        rows = torch.zeros_like(x)
        for number, expert in enumerate(p["experts"].unbind(0)):
            mine = (chosen == number).nonzero()[:, 0]
            rows = rows.index_put((mine,), x[mine] @ expert)
        return F.cross_entropy(gate[:, None] * torch.tanh(rows) @ p["out"], torch.tensor(labels))

    return {"torch by expert": _step(p, bags)}


def halting(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def masked(words: Any, labels: Any) -> torch.Tensor:
        x = _bags(p, words) @ p["w"]
        h = answer = torch.zeros_like(x)
        total = torch.zeros(len(x))
        for _ in range(12):
            h = torch.tanh(x + h @ p["u"])
            share = torch.minimum(torch.sigmoid(h @ p["a"]), 1 - total) * (total <= 0.99)
            answer = answer + share[:, None] * h
            total = total + share
            if bool((total > 0.99).all()):
                break
        return F.cross_entropy(answer @ p["out"], torch.tensor(labels))

    return {"torch masked": _step(p, masked)}


def documents(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def padded(texts: Any, labels: Any) -> torch.Tensor:
        rows = torch.tanh(_bags(p, [sentence for text in texts for sentence in text]) @ p["w"])
        lengths = [len(text) for text in texts]
        x = pad_sequence(rows.split(lengths), batch_first=True)
        inside = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
        weights = torch.softmax((x @ p["a"]).masked_fill(~inside, -torch.inf), 1)
        return F.cross_entropy((weights[:, None] @ x)[:, 0] @ p["out"], torch.tensor(labels))

    return {"torch padded": _step(p, padded)}


def graph(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def joined(nodes: Any, edges: Any, labels: Any) -> torch.Tensor:
        sizes = [len(each) for each in nodes]
        starts = np.cumsum([0, *sizes[:-1]])
        ends = np.concatenate([each + start for each, start in zip(edges, starts, strict=True)])
        source, target = torch.from_numpy(ends).unbind(1)
        h = F.embedding(torch.from_numpy(np.concatenate(nodes)), p["emb"], sparse=True)
        for _ in range(2):
            messages = torch.zeros_like(h).index_add(0, target, (h @ p["w"])[source])
            h = torch.tanh(h @ p["u"] + messages)
        which = torch.repeat_interleave(torch.tensor(sizes))
        mean = torch.zeros(len(nodes), h.shape[1]).index_add(0, which, h) / torch.tensor(sizes)[:, None]
        return F.cross_entropy(mean @ p["out"], torch.tensor(labels))

    return {"torch joined": _step(p, joined)}


@dataclasses.dataclass
class _Parse:
    """Where a sentence's parser is; `first` is the place of its words among those of the batch."""

    heads: list[int]
    first: int
    at: int = 0
    stack: list[int] = dataclasses.field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.at == len(self.heads) and len(self.stack) < 2

    def places(self, nothing: int) -> list[int]:
        """The two words at the top of the stack and the next one, as places of the batch."""
        found = [nothing, nothing, *self.stack][-2:]
        found = [each if each == nothing else each + self.first for each in found]
        return [*found, self.first + self.at if self.at < len(self.heads) else nothing]

    def move(self, scores: list[float]) -> None:
        if len(self.stack) < 2:
            best = SHIFT
        elif self.at == len(self.heads):
            best = LEFT if scores[LEFT] > scores[RIGHT] else RIGHT
        else:
            best = scores.index(max(scores))
        if best == SHIFT:
            self.stack.append(self.at)
            self.at += 1
        else:
            del self.stack[-2 if best == LEFT else -1]


def parser(params: Tree) -> dict[str, Step]:
    p = _parameters(params)

    def by_step(sentences: Any, heads: Any) -> torch.Tensor:
        rows = F.embedding(torch.from_numpy(np.concatenate(sentences)), p["emb"], sparse=True)
        rows = F.pad(rows, (0, 0, 0, 1))
        nothing = len(rows) - 1
        firsts = np.cumsum([0, *map(len, sentences[:-1])]).tolist()
        left = [_Parse(own, first) for own, first in zip(heads, firsts, strict=True)]
        loss = torch.zeros(())
        while left:
            given = rows[torch.tensor([each.places(nothing) for each in left])].flatten(1)
            scores = torch.tanh(given @ p["w"]) @ p["moves"]
            wanted = torch.tensor([best_move(each.stack, each.at, each.heads) for each in left])
            weights = 1 / torch.tensor([len(each.heads) for each in left])
            loss = loss + (F.cross_entropy(scores, wanted, reduction="none") * weights).sum()
            for each, row in zip(left, scores.tolist(), strict=True):
                each.move(row)
            left = [each for each in left if not each.done]
        return loss / len(sentences)

    return {"torch by step": _step(p, by_step)}
