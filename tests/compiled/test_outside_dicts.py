"""Dicts from outside of a function, such as vocabularies: read as they are when the call is made."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import prepared
from tests.compiled.interpreted import interpreted
from tests.inspect import ran_ways

VOCABULARY = {letter: place for place, letter in enumerate("abc", 1)}
BONUS = {("a", 1): 0.5}


def scored(text, w):
    total, known = 0.0, 0
    for letter in text:
        total = np.tanh(total + w[VOCABULARY[letter]] * w[VOCABULARY.get(letter, 0)])
        if letter in VOCABULARY:
            known += VOCABULARY["a"]
    return total * known


def lenient(text):
    return [VOCABULARY.get(letter, -1) for letter in text], "z" in VOCABULARY


@pytest.fixture
def vocabulary():
    before = dict(VOCABULARY)
    yield VOCABULARY
    VOCABULARY.clear()
    VOCABULARY.update(before)


def test_a_vocabulary_that_changes_between_calls(vocabulary):
    texts, w = ["ab", "", "cab"], np.arange(1.0, 7.0) / 5
    loss = lambda w: sum(ab.map(scored, texts, w=w))
    with interpreted():  # one form for all calls
        for change in ({}, {"a": 2, "z": 4}, {"c": 0}):
            vocabulary.update(change)
            with ab.options(way="loop"):
                expected = ab.value_and_grad(loss)(w)
                kept = ab.map(lenient, texts)
            with ab.options(way="compiled"), ran_ways() as ran:
                got = ab.value_and_grad(loss)(w)
                assert ab.map(lenient, texts) == kept
            assert {each.way for each in ran} == {"compiled"}
            np.testing.assert_allclose(got[0], expected[0], rtol=1e-12)
            np.testing.assert_allclose(got[1], expected[1], rtol=1e-9)
        assert prepared(lenient, [texts], {}, None)[1].failures == 0


def test_what_a_vocabulary_does_not_have(vocabulary):
    with interpreted(), ab.options(way="compiled"), pytest.raises(KeyError, match="x") as raised:
        ab.map(scored, ["ab", "axb", "y"], w=np.ones(5))
    assert "example 1" in "".join(raised.value.__notes__)
    vocabulary["c"] = "three"  # of another type than the form was written for
    with interpreted(), ab.options(way="compiled"):
        assert ab.map(lenient, ["ab", "ca"]) == [([1, 2], False), (["three", 1], False)]


def asks_whether(x):
    return x + 1 if VOCABULARY else x


def test_whether_a_dict_is_empty_is_not_taken_for_a_constant():
    _, form = prepared(asks_whether, [[1, 2]], {}, None)
    assert "whether a dict from outside of the function is true" in form.reason
