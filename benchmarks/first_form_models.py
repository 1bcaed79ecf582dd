"""Models of one example as a new user writes them first, for `benchmarks.first_form`: losses, examples, parameters."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import autobatch as ab

WORDS, CLASSES = 2000, 5
SHORT, SOUNDS, EXPERTS = 200, 40, 4

Params = dict[str, Any]


# Sentences


def recurrent(words: np.ndarray, label: int, params: Params) -> Any:
    """A sentence's class, by the README's recurrence."""
    h = np.zeros(params["u"].shape[0], np.float32)
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return ab.nn.cross_entropy(h @ params["out"], label)


def tagger(words: np.ndarray, tags: np.ndarray, params: Params) -> Any:
    """A tag for each word, by an LSTM."""
    n = params["u"].shape[0]
    h = c = np.zeros(n, np.float32)
    loss: Any = np.float32(0)
    for x, tag in zip(params["emb"][words], tags, strict=True):
        z = x @ params["w"] + h @ params["u"] + params["b"]
        i, f, o = ab.nn.sigmoid(z[:n]), ab.nn.sigmoid(z[n : 2 * n]), ab.nn.sigmoid(z[3 * n :])
        c = f * c + i * np.tanh(z[2 * n : 3 * n])
        h = o * np.tanh(c)
        loss = loss + ab.nn.cross_entropy(h @ params["out"], tag)
    return loss / len(words)


def bag(words: np.ndarray, label: int, params: Params) -> Any:
    """A sentence's class, by the mean of its words."""
    return ab.nn.cross_entropy(params["emb"][words].mean(axis=0) @ params["out"], label)


def encoder(words: np.ndarray, label: int, params: Params) -> Any:
    """A sentence's class, by two layers of self-attention."""
    x = params["emb"][words]
    for layer in params["layers"]:
        q, k, v = x @ layer["q"], x @ layer["k"], x @ layer["v"]
        weights = ab.nn.softmax(q @ k.T / np.float32(np.sqrt(q.shape[1])))
        x = ab.nn.layer_norm(x + weights @ v @ layer["o"])
        x = ab.nn.layer_norm(x + np.maximum(x @ layer["up"], 0) @ layer["down"])
    return ab.nn.cross_entropy(x.mean(axis=0) @ params["out"], label)


def interest(history: np.ndarray, item: int, label: int, params: Params) -> Any:
    """Whether an item is clicked, by attention of the item over what was clicked before."""
    seen, wanted = params["emb"][history], params["emb"][item]
    both = np.concatenate([seen, np.broadcast_to(wanted, seen.shape), seen * wanted], axis=1)
    scores = np.tanh(both @ params["w"]) @ params["a"]
    taste = ab.nn.softmax(scores) @ seen
    logit = np.tanh(np.concatenate([taste, wanted]) @ params["w2"]) @ params["out"][:, 0]
    return np.logaddexp(np.float32(0), logit) - label * logit


def meaning(tree: Any, params: Params) -> Any:
    """The state of a binary tree over words, by a gated cell."""
    if not isinstance(tree, tuple):
        return np.tanh(params["emb"][tree] @ params["w"])
    left, right = meaning(tree[0], params), meaning(tree[1], params)
    both = np.concatenate([left, right])
    z = ab.nn.sigmoid(both @ params["gate"])
    return z * np.tanh(both @ params["new"]) + (1 - z) * (left + right) / 2


def trees(tree: Any, label: int, params: Params) -> Any:
    """A tree's class."""
    return ab.nn.cross_entropy(meaning(tree, params) @ params["out"], label)


def crf(words: np.ndarray, tags: np.ndarray, params: Params) -> Any:
    """A tag for each word, by a recurrence below a conditional random field."""
    h = np.zeros(params["u"].shape[0], np.float32)
    rows = []
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
        rows.append(h @ params["out"])
    alpha, score = rows[0], rows[0][tags[0]]
    for t in range(1, len(words)):
        score = score + params["moves"][tags[t - 1], tags[t]] + rows[t][tags[t]]
        alpha = ab.nn.logsumexp(alpha[:, None] + params["moves"], axis=0) + rows[t]
    return ab.nn.logsumexp(alpha) - score


def g2p(letters: np.ndarray, sounds: np.ndarray, params: Params) -> Any:
    """How a word is spoken: a recurrence over letters, and one over sounds that attends to its states."""
    h = np.zeros(params["u"].shape[0], np.float32)
    states = []
    for x in params["emb"][letters]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
        states.append(h)
    keys = np.stack(states)
    loss: Any = np.float32(0)
    before = 0
    for sound in sounds:
        h = np.tanh(params["said"][before] @ params["w2"] + h @ params["u2"])
        attention = ab.nn.softmax(keys @ (h @ params["a"]))
        both = np.concatenate([h, attention @ keys])
        loss = loss + ab.nn.cross_entropy(np.tanh(both @ params["mix"]) @ params["out"], sound)
        before = sound
    return loss / len(sounds)


def pointer(source: np.ndarray, summary: np.ndarray, params: Params) -> Any:
    """A summary, each word of which is generated or copied from the source."""
    h = np.zeros(params["u"].shape[0], np.float32)
    states = []
    for x in params["emb"][source]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
        states.append(h)
    keys = np.stack(states)
    loss: Any = np.float32(0)
    before = 0
    for word in summary:
        h = np.tanh(params["emb"][before] @ params["w2"] + h @ params["u2"])
        attention = ab.nn.softmax(keys @ (h @ params["a"]))
        both = np.concatenate([h, attention @ keys])
        copy = ab.nn.sigmoid(both @ params["copy"])
        generated = ab.nn.softmax(both @ params["out"])
        p = (1 - copy) * generated[word] + copy * attention[source == word].sum()
        loss = loss - np.log(p + np.float32(1e-6))
        before = word
    return loss / len(summary)


def ctc(frames: np.ndarray, sounds: np.ndarray, params: Params) -> Any:
    """Sounds of a recording without their times: all alignments, summed."""
    path = np.zeros(2 * len(sounds) + 1, np.int64)
    path[1::2] = sounds
    log_p = ab.nn.log_softmax(np.tanh(frames @ params["w"]) @ params["out"])[:, path]
    nothing = np.full(2, -1e9, np.float32)
    skips = np.concatenate([[False, False], (path[2:] != 0) & (path[2:] != path[:-2])])
    alpha = np.concatenate([log_p[0, :2], np.full(len(path) - 2, -1e9, np.float32)])
    for row in log_p[1:]:
        shifted = np.concatenate([nothing, alpha])
        two = np.where(skips, shifted[:-2], np.float32(-1e9))
        alpha = row + np.logaddexp(np.logaddexp(alpha, shifted[1:-1]), two)
    return -np.logaddexp(alpha[-1], alpha[-2])


def hmm(seen: np.ndarray, params: Params) -> Any:
    """How unlikely a sequence of symbols is to a hidden Markov model."""
    moves = ab.nn.log_softmax(params["moves"])
    emits = ab.nn.log_softmax(params["emits"])
    alpha = ab.nn.log_softmax(params["start"]) + emits[:, seen[0]]
    for symbol in seen[1:]:
        alpha = ab.nn.logsumexp(alpha[:, None] + moves, axis=0) + emits[:, symbol]
    return -ab.nn.logsumexp(alpha)


# Bags and choices


def retrieval(query: np.ndarray, texts: list[np.ndarray], params: Params) -> Any:
    """Which of a few texts answers a query; the first does."""
    wanted = params["emb"][query].mean(axis=0) @ params["w"]
    scores = [wanted @ np.tanh(params["emb"][text].mean(axis=0) @ params["v"]) for text in texts]
    return ab.nn.cross_entropy(np.stack(scores), 0)


def experts(words: np.ndarray, label: int, params: Params) -> Any:
    """A sentence's class, by the expert that a gate chooses."""
    x = params["emb"][words].mean(axis=0)
    gate = ab.nn.softmax(x @ params["gate"])
    chosen = int(np.argmax(gate))
    h = gate[chosen] * np.tanh(x @ params["experts"][chosen])
    return ab.nn.cross_entropy(h @ params["out"], label)


def halting(words: np.ndarray, label: int, params: Params) -> Any:
    """A sentence's class, after as many steps of thought as the model wants."""
    x = params["emb"][words].mean(axis=0) @ params["w"]
    h = answer = np.zeros(params["u"].shape[0], np.float32)
    total: Any = np.float32(0)
    for _ in range(12):
        h = np.tanh(x + h @ params["u"])
        share = np.minimum(ab.nn.sigmoid(h @ params["a"]), 1 - total)
        answer = answer + share * h
        total = total + share
        if total > 0.99:
            break
    return ab.nn.cross_entropy(answer @ params["out"], label)


# Structures


def documents(document: list[np.ndarray], label: int, params: Params) -> Any:
    """A document's class, by attention over its sentences."""
    states = []
    for sentence in document:
        states.append(np.tanh(params["emb"][sentence].mean(axis=0) @ params["w"]))
    x = np.stack(states)
    return ab.nn.cross_entropy(ab.nn.softmax(x @ params["a"]) @ x @ params["out"], label)


def graph(nodes: np.ndarray, edges: np.ndarray, label: int, params: Params) -> Any:
    """A graph's class, by two rounds of messages along its edges."""
    h = params["emb"][nodes]
    for _ in range(2):
        messages = np.zeros_like(h)
        np.add.at(messages, edges[:, 1], h[edges[:, 0]] @ params["w"])
        h = np.tanh(h @ params["u"] + messages)
    return ab.nn.cross_entropy(h.mean(axis=0) @ params["out"], label)


SHIFT, LEFT, RIGHT = range(3)


def best_move(stack: list[int], at: int, heads: list[int]) -> int:
    """What a dynamic oracle says: an arc that is right and complete, else a shift."""
    if len(stack) > 1:
        below, top = stack[-2:]
        if heads[below] == top:
            return LEFT
        if at == len(heads) or (heads[top] == below and top not in heads[at:]):
            return RIGHT
    return SHIFT


def parser(words: np.ndarray, heads: list[int], params: Params) -> Any:
    """Moves of a shift-reduce parser, which follows its own choices and learns the oracle's."""
    rows = params["emb"][words]
    nothing = np.zeros(rows.shape[1], np.float32)
    stack: list[int] = []
    at = 0
    loss: Any = np.float32(0)
    while at < len(words) or len(stack) > 1:
        below = rows[stack[-2]] if len(stack) > 1 else nothing
        top = rows[stack[-1]] if stack else nothing
        ahead = rows[at] if at < len(words) else nothing
        scores = np.tanh(np.concatenate([below, top, ahead]) @ params["w"]) @ params["moves"]
        loss = loss + ab.nn.cross_entropy(scores, best_move(stack, at, heads))
        if len(stack) < 2:
            move = SHIFT
        elif at == len(words):
            move = LEFT if scores[LEFT] > scores[RIGHT] else RIGHT
        else:
            move = int(np.argmax(scores))
        if move == SHIFT:
            stack.append(at)
            at += 1
        else:
            del stack[-2 if move == LEFT else -1]
    return loss / len(words)


# Examples and parameters


def _words(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, WORDS, rng.integers(5, 31))


def _class(rng: np.random.Generator) -> int:
    return int(rng.integers(CLASSES))


def _tagged(rng: np.random.Generator) -> tuple[Any, ...]:
    words = _words(rng)
    return words, rng.integers(0, CLASSES, len(words))


def _tree(rng: np.random.Generator, leaves: int) -> Any:
    if leaves == 1:
        return int(rng.integers(WORDS))
    left = int(rng.integers(1, leaves))
    return _tree(rng, left), _tree(rng, leaves - left)


def _short(rng: np.random.Generator, kinds: int, least: int, most: int) -> np.ndarray:
    return rng.integers(1, kinds, rng.integers(least, most + 1))


def _recording(rng: np.random.Generator) -> tuple[Any, ...]:
    sounds = _short(rng, SOUNDS, 2, 10)
    return rng.normal(size=(2 * len(sounds) + int(rng.integers(5, 20)), 20)).astype(np.float32), sounds


def _graph(rng: np.random.Generator) -> tuple[Any, ...]:
    n = int(rng.integers(5, 31))
    return rng.integers(0, WORDS, n), rng.integers(0, n, (2 * n, 2)), _class(rng)


def _heads(rng: np.random.Generator, first: int, end: int, head: int, out: list[int]) -> None:
    """Fill in a random projective tree over the words [first, end)."""
    while first < end:
        middle = int(rng.integers(first + 1, end + 1))
        root = int(rng.integers(first, middle))
        out[root] = head
        _heads(rng, first, root, root, out)
        _heads(rng, root + 1, middle, root, out)
        first = middle


def _parsed(rng: np.random.Generator) -> tuple[Any, ...]:
    words = _words(rng)
    heads = [-1] * len(words)
    root = int(rng.integers(len(words)))
    _heads(rng, 0, root, root, heads)
    _heads(rng, root + 1, len(words), root, heads)
    return words, heads


def _layers(rng: np.random.Generator, n: int) -> dict[str, Any]:
    return _dense(rng, q=(n, n), k=(n, n), v=(n, n), o=(n, n), up=(n, 2 * n), down=(2 * n, n))


def _dense(rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: (rng.normal(size=shape) * shape[0] ** -0.5).astype(np.float32) for name, shape in shapes.items()}


@dataclasses.dataclass(frozen=True)
class Model:
    """One model of the table.

    Attributes:
        about: what the table calls it.
        loss: of one example; example: makes one, as the arguments before `params`.
        params: makes them for a size of the state.
        mapped: whether examples are objects, which only `ab.map` takes.
        peers: modules of `benchmarks.peers` that have a function of the model's name.
    """

    about: str
    loss: Callable[..., Any]
    example: Callable[[np.random.Generator], tuple[Any, ...]]
    params: Callable[[np.random.Generator, int], Params]
    mapped: bool = False
    peers: Sequence[str] = ("torch", "jax")


def _table(rng: np.random.Generator, n: int, words: int = WORDS) -> dict[str, np.ndarray]:
    return {"emb": (rng.normal(size=(words, n)) * 0.3).astype(np.float32)}


MODELS = {
    "bag": Model(
        "mean of word vectors",
        bag,
        lambda rng: (_words(rng), _class(rng)),
        lambda rng, n: _table(rng, n) | _dense(rng, out=(n, CLASSES)),
    ),
    "recurrent": Model(
        "recurrent classifier",
        recurrent,
        lambda rng: (_words(rng), _class(rng)),
        lambda rng, n: _table(rng, n) | _dense(rng, w=(n, n), u=(n, n), out=(n, CLASSES)),
    ),
    "tagger": Model(
        "LSTM tagger",
        tagger,
        _tagged,
        lambda rng, n: _table(rng, n) | _dense(rng, w=(n, 4 * n), u=(n, 4 * n), b=(4 * n,), out=(n, CLASSES)),
    ),
    "encoder": Model(
        "self-attention, two layers",
        encoder,
        lambda rng: (_words(rng), _class(rng)),
        lambda rng, n: _table(rng, n) | _dense(rng, out=(n, CLASSES)) | {"layers": [_layers(rng, n), _layers(rng, n)]},
    ),
    "interest": Model(
        "attention over a history (DIN)",
        interest,
        lambda rng: (_words(rng), int(rng.integers(WORDS)), int(rng.integers(2))),
        lambda rng, n: _table(rng, n) | _dense(rng, w=(3 * n, n), a=(n,), w2=(2 * n, n), out=(n, 1)),
    ),
    "trees": Model(
        "gated recursion over trees",
        trees,
        lambda rng: (_tree(rng, int(rng.integers(5, 31))), _class(rng)),
        lambda rng, n: _table(rng, n) | _dense(rng, w=(n, n), gate=(2 * n, n), new=(2 * n, n), out=(n, CLASSES)),
        mapped=True,
        peers=("torch",),
    ),
    "crf": Model(
        "recurrent tagger with a CRF",
        crf,
        _tagged,
        lambda rng, n: _table(rng, n) | _dense(rng, w=(n, n), u=(n, n), out=(n, CLASSES), moves=(CLASSES, CLASSES)),
    ),
    "g2p": Model(
        "letters to sounds, with attention",
        g2p,
        lambda rng: (_short(rng, SOUNDS, 4, 14), _short(rng, SOUNDS, 3, 12)),
        lambda rng, n: (
            _table(rng, n, SOUNDS)
            | _dense(rng, w=(n, n), u=(n, n), said=(SOUNDS, n), w2=(n, n), u2=(n, n), a=(n, n))
            | _dense(rng, mix=(2 * n, n), out=(n, SOUNDS))
        ),
    ),
    "pointer": Model(
        "summary by pointer and generator",
        pointer,
        lambda rng: (_short(rng, SHORT, 5, 30), _short(rng, SHORT, 3, 12)),
        lambda rng, n: (
            _table(rng, n, SHORT)
            | _dense(rng, w=(n, n), u=(n, n), w2=(n, n), u2=(n, n), a=(n, n), copy=(2 * n,), out=(2 * n, SHORT))
        ),
    ),
    "ctc": Model(
        "alignment of sounds (CTC)",
        ctc,
        _recording,
        lambda rng, n: _dense(rng, w=(20, n), out=(n, SOUNDS)),
        peers=("torch",),
    ),
    "hmm": Model(
        "hidden Markov model",
        hmm,
        lambda rng: (_short(rng, SOUNDS, 5, 30),),
        lambda rng, n: _dense(rng, moves=(n, n), emits=(n, SOUNDS), start=(n,)),
    ),
    "retrieval": Model(
        "retrieval among five texts",
        retrieval,
        lambda rng: (_short(rng, WORDS, 3, 8), [_words(rng) for _ in range(5)]),
        lambda rng, n: _table(rng, n) | _dense(rng, w=(n, n), v=(n, n)),
        peers=("torch",),
    ),
    "experts": Model(
        "mixture of experts",
        experts,
        lambda rng: (_words(rng), _class(rng)),
        lambda rng, n: (
            _table(rng, n)
            | _dense(rng, gate=(n, EXPERTS), out=(n, CLASSES))
            | {"experts": np.stack([_dense(rng, w=(n, n))["w"] for _ in range(EXPERTS)])}
        ),
        peers=("torch",),
    ),
    "halting": Model(
        "adaptive number of steps",
        halting,
        lambda rng: (_words(rng), _class(rng)),
        lambda rng, n: _table(rng, n) | _dense(rng, w=(n, n), u=(n, n), a=(n,), out=(n, CLASSES)),
    ),
    "documents": Model(
        "documents as lists of sentences",
        documents,
        lambda rng: ([_words(rng) for _ in range(rng.integers(2, 9))], _class(rng)),
        lambda rng, n: _table(rng, n) | _dense(rng, w=(n, n), a=(n,), out=(n, CLASSES)),
        peers=("torch",),
    ),
    "graph": Model(
        "messages along edges",
        graph,
        _graph,
        lambda rng, n: _table(rng, n) | _dense(rng, w=(n, n), u=(n, n), out=(n, CLASSES)),
        peers=("torch",),
    ),
    "parser": Model(
        "parser with a dynamic oracle",
        parser,
        _parsed,
        lambda rng, n: _table(rng, n) | _dense(rng, w=(3 * n, n), moves=(n, 3)),
        mapped=True,
        peers=("torch",),
    ),
}
