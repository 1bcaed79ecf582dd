"""Making arrays like an example, splitting and joining its dimensions: for one example and a batch alike."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import equals_loop, every_way_equals_loop

RNG = np.random.default_rng(0)
SENTENCES = [RNG.normal(size=(size, 6)) for size in (3, 1, 5, 3)]


def zeros_and_ones(x):
    return np.zeros_like(x), np.ones((x.shape[0], 2)), np.full_like(x[:, 0], 2.0) + x[:, 0], np.zeros(x.shape[-1])


def split_and_join(x):
    heads = x.reshape(x.shape[0], 2, 3)  # the last dimension as two
    joined = heads.reshape(x.shape[0], 6)
    flat = heads.reshape(x.shape[0] * 2, 3)  # the first two as one
    return heads * 2.0, joined + 1.0, flat.sum(0), np.moveaxis(heads, 1, 0).sum(1)


def causal_attention(x):
    return ab.nn.softmax(ab.nn.causal_mask(x @ x.T)) @ x


PROGRAMS = [zeros_and_ones, split_and_join, causal_attention]


@pytest.mark.parametrize("f", PROGRAMS)
def test_arrays_are_made_split_and_joined_alike_for_an_example_and_a_batch(f):
    every_way_equals_loop(f, SENTENCES)


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("examples", [SENTENCES, SENTENCES[:1], [np.zeros((0, 6)), SENTENCES[0]]], ids=["4", "1", "0"])
def test_they_run_in_lock_step_for_batches_of_any_size(f, packed, examples):
    equals_loop(f, examples, falls_back=None if packed else False, packed=packed)
