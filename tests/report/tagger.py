"""A tagger of sixty lines: words by their characters, attention, a conditional random field. To be explained."""

import numpy as np

import autobatch as ab

WORD, CHAR, TAGS = 16, 8, 5


def word_of_characters(chars, p):
    h = np.zeros(CHAR, np.float32)
    for c in p["chars"][chars]:
        h = np.tanh(c @ p["cw"] + h @ p["cu"])
    return h


def encode(words, characters, p):
    h = np.zeros(WORD, np.float32)
    states = []
    for w, chars in zip(words, characters, strict=True):
        x = np.concatenate([p["words"][w], word_of_characters(chars, p)])
        h = np.tanh(x @ p["w"] + h @ p["u"])
        states.append(h)
    return np.stack(states)


def attend(states, p):
    scores = (states @ p["q"]) @ (states @ p["k"]).T / np.sqrt(WORD)
    weights = ab.nn.softmax(scores)
    return np.concatenate([states, weights @ states], axis=1)


def score_of(emissions, tags, trans):
    score = emissions[0, tags[0]]
    for t in range(1, len(tags)):
        score = score + trans[tags[t - 1], tags[t]] + emissions[t, tags[t]]
    return score


def log_z(emissions, trans):
    alpha = emissions[0]
    for e in emissions[1:]:
        alpha = ab.nn.logsumexp(alpha[:, None] + trans, axis=0) + e
    return ab.nn.logsumexp(alpha)


def loss(words, characters, tags, p):
    states = encode(words, characters, p)
    features = attend(states, p)
    emissions = features @ p["out"]
    return log_z(emissions, p["trans"]) - score_of(emissions, tags, p["trans"])


def parameters():
    draw = np.random.default_rng(0)
    sizes = {
        "chars": (40, CHAR), "words": (90, WORD), "cw": (CHAR, CHAR), "cu": (CHAR, CHAR), "w": (WORD + CHAR, WORD),
        "u": (WORD, WORD), "q": (WORD, WORD), "k": (WORD, WORD), "out": (2 * WORD, TAGS), "trans": (TAGS, TAGS),
    }  # fmt: skip
    return {name: draw.normal(0, 0.1, shape).astype(np.float32) for name, shape in sizes.items()}


def sentences(count=16):
    draw = np.random.default_rng(1)
    lengths = draw.integers(2, 9, count)
    words = [draw.integers(0, 90, n) for n in lengths]
    characters = [[draw.integers(0, 40, draw.integers(1, 7)) for _ in range(n)] for n in lengths]
    return words, characters, [draw.integers(0, TAGS, n) for n in lengths]
