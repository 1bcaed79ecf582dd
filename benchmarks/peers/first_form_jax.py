"""The models of `benchmarks.first_form` in JAX: padded to a power of two, so that few shapes are compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.jax_common import masked

Step = Callable[[Any], tuple[Any, Any]]
Tree = Any


def _padded(sentences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Ids side by side, int32, to a power of two of places; and the lengths."""
    lengths = np.array([len(x) for x in sentences], np.int32)
    ids = np.zeros((len(sentences), 1 << int(lengths.max() - 1).bit_length()), np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids, lengths


def _cross_entropy(logits: Any, label: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], -1)[..., 0]


def _step(params: Tree, loss: Callable[..., Any], batch: Callable[..., tuple[Any, ...]]) -> dict[str, Step]:
    """`loss(params, *one)` of one padded example, mapped over what `batch(*columns)` makes."""

    def mean(params: Tree, given: tuple[Any, ...]) -> Any:
        return jax.vmap(loss, in_axes=(None, *[0] * len(given)))(params, *given).mean()

    compiled = jax.jit(jax.value_and_grad(mean))
    held = jax.tree.map(jnp.asarray, params)
    return {"JAX padded": lambda columns: jax.block_until_ready(compiled(held, batch(*columns)))}


def _labelled(words: Any, labels: Any) -> tuple[Any, ...]:
    return (*_padded(words), np.array(labels, np.int32))


def bag(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, label: Any) -> Any:
        inside = jnp.arange(len(ids)) < length
        return _cross_entropy((p["emb"][ids] * inside[:, None]).sum(0) / length @ p["out"], label)

    return _step(params, loss, _labelled)


def recurrent(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, label: Any) -> Any:
        def step(h: Any, given: Any) -> Any:
            x, run = given
            return masked(run, jnp.tanh(x + h @ p["u"]), h), None

        xs = p["emb"][ids] @ p["w"]
        h, _ = jax.lax.scan(step, jnp.zeros(p["u"].shape[0]), (xs, jnp.arange(len(ids)) < length))
        return _cross_entropy(h @ p["out"], label)

    return _step(params, loss, _labelled)


def tagger(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, tags: Any) -> Any:
        def step(state: Any, x: Any) -> Any:  # what comes after a sentence's end is not looked at
            h, c = state
            i, f, g, o = jnp.split(x + h @ p["u"], 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros(p["u"].shape[0])
        _, states = jax.lax.scan(step, (start, start), p["emb"][ids] @ p["w"] + p["b"])
        each = _cross_entropy(states @ p["out"], tags)
        return (each * (jnp.arange(len(ids)) < length)).sum() / length

    return _step(params, loss, lambda words, tags: (*_padded(words), _padded(tags)[0]))


def _normed(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def encoder(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, label: Any) -> Any:
        inside = jnp.arange(len(ids)) < length
        x = p["emb"][ids]
        for layer in p["layers"]:
            scores = (x @ layer["q"]) @ (x @ layer["k"]).T / np.sqrt(x.shape[1])
            weights = jax.nn.softmax(jnp.where(inside, scores, -jnp.inf))
            x = _normed(x + weights @ (x @ layer["v"]) @ layer["o"])
            x = _normed(x + jax.nn.relu(x @ layer["up"]) @ layer["down"])
        return _cross_entropy((x * inside[:, None]).sum(0) / length @ p["out"], label)

    return _step(params, loss, _labelled)


def interest(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, item: Any, label: Any) -> Any:
        seen, wanted = p["emb"][ids], p["emb"][item]
        beside = jnp.broadcast_to(wanted, seen.shape)
        scores = jnp.tanh(jnp.concatenate([seen, beside, seen * beside], 1) @ p["w"]) @ p["a"]
        weights = jax.nn.softmax(jnp.where(jnp.arange(len(ids)) < length, scores, -jnp.inf))
        logit = jnp.tanh(jnp.concatenate([weights @ seen, wanted]) @ p["w2"]) @ p["out"][:, 0]
        return jnp.logaddexp(0, logit) - label * logit

    return _step(
        params,
        loss,
        lambda seen, items, labels: (*_padded(seen), np.array(items, np.int32), np.array(labels, np.int32)),
    )


def _states(p: Tree, ids: Any, length: Any) -> tuple[Any, Any]:
    """The last state of the recurrence over padded ids, and all."""

    def step(h: Any, given: Any) -> Any:
        x, run = given
        h = masked(run, jnp.tanh(x + h @ p["u"]), h)
        return h, h

    start = jnp.zeros(p["u"].shape[0])
    found: tuple[Any, Any] = jax.lax.scan(step, start, (p["emb"][ids] @ p["w"], jnp.arange(len(ids)) < length))
    return found


def _log_partition(rows: Any, length: Any, moves: Any) -> Any:
    """The log-sum over all paths of scores by step (T, K) and by move (K, K)."""

    def step(alpha: Any, given: Any) -> Any:
        row, run = given
        return masked(run, jax.nn.logsumexp(alpha[:, None] + moves, 0) + row, alpha), None

    alpha, _ = jax.lax.scan(step, rows[0], (rows[1:], jnp.arange(1, len(rows)) < length))
    return jax.nn.logsumexp(alpha)


def crf(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, tags: Any) -> Any:
        inside = jnp.arange(len(ids)) < length
        rows = _states(p, ids, length)[1] @ p["out"]
        score = (jnp.take_along_axis(rows, tags[:, None], 1)[:, 0] * inside).sum()
        score = score + (p["moves"][tags[:-1], tags[1:]] * inside[1:]).sum()
        return _log_partition(rows, length, p["moves"]) - score

    return _step(params, loss, lambda words, tags: (*_padded(words), _padded(tags)[0]))


def hmm(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any) -> Any:
        rows = jax.nn.log_softmax(p["emits"]).T[ids]
        rows = rows.at[0].add(jax.nn.log_softmax(p["start"]))
        return -_log_partition(rows, length, jax.nn.log_softmax(p["moves"]))

    return _step(params, loss, _padded)


def _attending(p: Tree, ids: Any, length: Any, before: Any) -> tuple[Any, Any]:
    """States of a decoder beside what they attend to, (S, 2 n), and the attention, (S, T)."""
    h, states = _states(p, ids, length)

    def step(h: Any, x: Any) -> Any:  # what comes after the end is not looked at
        h = jnp.tanh(x + h @ p["u2"])
        return h, h

    _, spoken = jax.lax.scan(step, h, before @ p["w2"])
    scores = spoken @ p["a"] @ states.T
    attention = jax.nn.softmax(jnp.where(jnp.arange(len(ids)) < length, scores, -jnp.inf))
    return jnp.concatenate([spoken, attention @ states], 1), attention


def _shifted(wanted: Any) -> Any:
    return jnp.concatenate([jnp.zeros(1, wanted.dtype), wanted[:-1]])


def g2p(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, wanted: Any, many: Any) -> Any:
        both, _ = _attending(p, ids, length, p["said"][_shifted(wanted)])
        each = _cross_entropy(jnp.tanh(both @ p["mix"]) @ p["out"], wanted)
        return (each * (jnp.arange(len(wanted)) < many)).sum() / many

    return _step(params, loss, lambda letters, sounds: (*_padded(letters), *_padded(sounds)))


def pointer(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, wanted: Any, many: Any) -> Any:
        both, attention = _attending(p, ids, length, p["emb"][_shifted(wanted)])
        copy = jax.nn.sigmoid(both @ p["copy"])
        generated = jnp.take_along_axis(jax.nn.softmax(both @ p["out"]), wanted[:, None], 1)[:, 0]
        copied = (attention * (ids == wanted[:, None])).sum(1)
        each = -jnp.log((1 - copy) * generated + copy * copied + 1e-6)
        return (each * (jnp.arange(len(wanted)) < many)).sum() / many

    return _step(params, loss, lambda sources, summaries: (*_padded(sources), *_padded(summaries)))


def halting(params: Tree) -> dict[str, Step]:
    def loss(p: Tree, ids: Any, length: Any, label: Any) -> Any:
        x = (p["emb"][ids] * (jnp.arange(len(ids)) < length)[:, None]).sum(0) / length @ p["w"]

        def step(state: Any, _: Any) -> Any:
            h, answer, total = state
            h = jnp.tanh(x + h @ p["u"])
            share = jnp.where(total > 0.99, 0, jnp.minimum(jax.nn.sigmoid(h @ p["a"]), 1 - total))
            return (h, answer + share * h, total + share), None

        start = jnp.zeros(p["u"].shape[0])
        (_, answer, _), _ = jax.lax.scan(step, (start, start, jnp.float32(0)), length=12)
        return _cross_entropy(answer @ p["out"], label)

    return _step(params, loss, _labelled)
