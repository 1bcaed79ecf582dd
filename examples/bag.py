"""A bag of words: one function's tokens and pairs, each looked up, added up over √n, and one linear layer."""

from typing import TypedDict

import numpy as np

import autobatch as ab


class Params(TypedDict):
    """A table of a row for each id, and a linear layer from a row to the scores of the labels."""

    emb: ab.EmbeddingTable
    w: np.ndarray
    b: np.ndarray


def init(rng: np.random.Generator, num_ids: int, num_labels: int, size: int = 64) -> Params:
    emb = rng.normal(0, 0.05, (num_ids, size)).astype(np.float32)
    return {
        "emb": ab.EmbeddingTable(emb),
        "w": rng.normal(0, size**-0.5, (size, num_labels)).astype(np.float32),
        "b": np.zeros(num_labels, np.float32),
    }


def logits(words: np.ndarray, params: Params) -> np.ndarray:
    """(n,) ids of one function's tokens and pairs, in any order -> one score per label."""
    pooled = params["emb"][words].sum(0) / np.sqrt(len(words), dtype=np.float32)
    scores: np.ndarray = pooled @ params["w"] + params["b"]
    return scores


@ab.batch
def loss(words: np.ndarray, label: int, params: Params) -> np.ndarray:
    return ab.nn.cross_entropy(logits(words, params), label)
