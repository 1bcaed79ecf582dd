"""Loops whose steps read what is known before them run as one op: items of the step before, rows by number, look-ups.

Mutations that must turn this file red; each was made by hand and seen red:
    - an item of the wrong step: in `_ReadAhead.number`, no `how.late`; in `rows`, `items.packed(first, last)`;
    - a row before the first: in `_ReadAhead._numbered`, no `start < 0`; behind the last, no comparison of lengths;
    - a value of another lane after the loop: in `_ReadAhead.after`, no `+ lanes`;
    - what the steps change is read ahead: in `_ReadAhead.rows`, no `changed`;
    - elements that are not chosen: in `blocks.tracing._Chosen.sum`, `self.x` in place of 0.
"""

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch
from tests.law import agrees, batch_of, loop, ragged, run_again

RNG = np.random.default_rng(3)
P = {
    "u": RNG.normal(size=(4, 4)) / 2,
    "w": RNG.normal(size=(4, 4)) / 2,
    "emb": RNG.normal(size=(9, 4)),
    "moves": RNG.normal(size=(9, 9)),
}
LENGTHS = (5, 2, 4, 9, 3, 9, 4)
WORDS = [RNG.integers(0, 9, n) for n in LENGTHS]
TAGS = [RNG.integers(0, 4, n) for n in LENGTHS]
NUMBERS = ragged(*LENGTHS)


def item_before(words, tags, p):
    h, before, loss = np.zeros(4), 0, 0.0
    for word in words:
        h = np.tanh(p["emb"][before] @ p["w"] + h @ p["u"])
        loss = loss + ab.nn.cross_entropy(h, word % 4)
        before = word
    return loss


def item_before_is_read_after(words, tags, p):
    h, before = np.zeros(4), 3
    for word in words:
        h = np.tanh(p["emb"][before] + h @ p["u"] + p["emb"][word])
        before = word
    return h * before, before


def number_before(words, tags, p):
    h, before = np.zeros(4), words[0] * 0.5
    for number in words * 0.25:
        h = np.tanh(h @ p["u"] + number - before)
        before = number
    return h


def row_before(words, tags, p):
    rows = p["emb"][words]
    h, before = np.zeros(4), rows[0]
    for x in rows:
        h = np.tanh((x - before) @ p["w"] + h @ p["u"])
        before = x
    return h + before


def rows_by_number(words, tags, p):
    rows = p["emb"][words]
    h = np.zeros(4)
    for t in range(1, len(words)):
        h = np.tanh(rows[t] @ p["w"] + rows[t - 1] * 0.5 + h @ p["u"])
    return h


def random_field(words, tags, p):
    h, rows = np.zeros(4), []
    for x in p["emb"][words]:
        h = np.tanh(x @ p["w"] + h @ p["u"])
        rows.append(h)
    alpha, score = rows[0], rows[0][tags[0]]
    for t in range(1, len(words)):
        score = score + p["moves"][tags[t - 1], tags[t]] + rows[t][tags[t]]
        alpha = ab.nn.logsumexp(alpha[:, None] + p["moves"][:4, :4], axis=0) + rows[t]
    return ab.nn.logsumexp(alpha) - score


def words_by_number(words, tags, p):
    h = np.zeros(4)
    for t in range(len(words)):
        x = p["emb"][words[t]]
        h = np.tanh(x @ p["w"] + h @ p["u"])
        tag = tags[t]
        h = h * 0.5 + p["moves"][tag, 2]
    return h


def numbered_and_zipped(words, tags, p):
    h, last = np.zeros(4), 0
    for t, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
        h = np.tanh(p["emb"][word] @ p["w"] + h @ p["u"] + words[t - 1]) + p["emb"][last, 0] * 0.1
        last = tag
    return h * t


def stores_before(words, tags, p):
    out, h = np.zeros((len(words), 4)), np.zeros(4)
    for t in range(1, len(words)):
        h = np.tanh(p["emb"][words[t]] @ p["w"] + h @ p["u"])
        out[t - 1] = h
    return out


def number_of_the_step_before(words, tags, p):
    rows, h, before = p["emb"][words], np.zeros(4), 0
    for t in range(len(words)):
        h = np.tanh(rows[before] @ p["w"] + h @ p["u"])
        before = t
    return h * before


CASES = [
    number_of_the_step_before,
    item_before,
    item_before_is_read_after,
    number_before,
    row_before,
    rows_by_number,
    random_field,
    words_by_number,
    numbered_and_zipped,
    stores_before,
]


@pytest.mark.parametrize("f", CASES)
@pytest.mark.parametrize("pick", [slice(None), slice(None, None, -1), slice(3, 4), slice(3, 6, 2)])
def test_results_are_those_of_the_loop(f, pick):
    for _ in range(3):
        agrees(f, WORDS[pick], TAGS[pick], p=P)


@pytest.mark.parametrize("f", CASES)
def test_the_steps_run_as_one(f, scans):
    run_again(f, WORDS, TAGS, p=P, times=3)
    scans.clear()
    run_again(f, WORDS, TAGS, p=P, times=1)
    assert max(scans, default=0) >= 5, scans


@pytest.mark.parametrize("f", [item_before, row_before, rows_by_number, random_field, words_by_number, stores_before])
@pytest.mark.parametrize("make", [np.asarray, ab.EmbeddingTable])
def test_gradients_are_those_of_the_loop(f, make):
    made, p = batch(f, strict=True), {**P, "emb": make(P["emb"])}
    wanted = [ab.grad(lambda p, each=each: (f(*each, p) ** 2).sum())(P) for each in zip(WORDS, TAGS, strict=True)]
    for _ in range(3):
        out = ab.grad(lambda p: (made(batch_of(WORDS), batch_of(TAGS), p) ** 2).sum().data.sum())(p)
    for name in P:
        got = out[name].to_dense() if isinstance(out[name], ab.SparseRows) else out[name]
        np.testing.assert_allclose(got, sum(each[name] for each in wanted), rtol=1e-7, atol=1e-12)


def reads_what_it_stores(words, tags, p):
    out = np.zeros((len(words), 4))
    for t in range(1, len(words)):
        h = np.tanh(out[t - 1] @ p["w"] + p["emb"][words[t]])
        out[t] = h
    return out


def reads_numbers_that_it_stores(words, tags, p):
    out, h = np.zeros(len(words)), np.zeros(4)
    for t in range(1, len(words)):
        h = np.tanh(h @ p["u"] + out[t - 1])
        n = h.sum() * 0.5
        out[t] = n
    return out


def reads_what_it_appends(words, tags, p):
    rows, h = [np.ones(4)], np.zeros(4)
    for t in range(1, len(words)):
        h = np.tanh(rows[t - 1] @ p["w"] + p["emb"][words[t]] + h)
        rows.append(h)
    return rows[-1]


def from_behind(words, tags, p):
    rows, h = p["emb"][words], np.zeros(4)
    for t in range(-2, len(words)):
        h = np.tanh(rows[t] @ p["w"] + h @ p["u"])
    return h


def two_steps_before(words, tags, p):
    h, one, two = np.zeros(4), 0, 1
    for word in words:
        h = np.tanh(p["emb"][two] @ p["w"] + p["emb"][one] + h @ p["u"])
        two = one
        one = word
    return h + two


def with_a_table_that_changes(words, tags, p):
    h, table = np.zeros(4), p["emb"]
    for t in range(len(words)):
        h = np.tanh(table[t % 2] @ p["w"] + h @ p["u"])
        table = p["moves"][:, :4]
    return h


def until_a_word(words, tags, p):
    h, before = np.zeros(4), 0
    for word in words:
        if word == 7:
            break
        h = np.tanh(p["emb"][before] @ p["w"] + h @ p["u"])
        before = word
    return h * before


@pytest.mark.parametrize(
    "f",
    [
        reads_what_it_stores,
        reads_numbers_that_it_stores,
        reads_what_it_appends,
        from_behind,
        two_steps_before,
        with_a_table_that_changes,
        until_a_word,
    ],
)
def test_what_is_not_known_ahead_is_read_step_by_step(f):
    for _ in range(3):
        agrees(f, WORDS, TAGS, p=P)


def test_an_index_behind_the_last_row_is_the_loops_error():
    short = [*TAGS[:3], TAGS[3][:6], *TAGS[4:]]
    for f in (random_field, words_by_number):
        made = batch(f)
        for _ in range(3):
            with pytest.raises(IndexError, match="index 6 is out of bounds") as caught:
                made(batch_of(WORDS), batch_of(short), P)
            assert "example 3" in caught.value.__notes__[-1]


def test_a_number_behind_the_last_is_the_loops_error():
    def f(words, numbers, p):
        h = np.zeros(4)
        for t in range(len(words)):
            h = np.tanh(h @ p["u"] + numbers[t] + words[t])
        return h

    short, made = [*NUMBERS[:3], NUMBERS[3][:6], *NUMBERS[4:]], batch(f)
    for _ in range(3):
        with pytest.raises(IndexError, match="index 6 is out of bounds") as caught:
            made(batch_of(WORDS), batch_of(short), P)
        assert "example 3" in caught.value.__notes__[-1]


def test_an_id_behind_the_table_is_the_loops_error():
    bad = [*WORDS[:3], np.array([1, 2, 3, 4, 99, 3, 4, 1, 1]), *WORDS[4:]]
    for f in (item_before, words_by_number):
        made = batch(f)
        for _ in range(3):
            with pytest.raises(IndexError, match="99") as caught:
                made(batch_of(bad), batch_of(TAGS), P)
            assert "example 3" in caught.value.__notes__[-1]


def test_an_id_that_only_the_step_after_the_last_would_read_is_no_error():
    last = [np.append(each, 99) for each in WORDS]

    def f(words, p):
        h, before = np.zeros(4), 0
        for word in words:
            h = np.tanh(p["emb"][before] @ p["w"] + h @ p["u"]) + word * 1e-3
            before = word
        return h

    for _ in range(3):
        agrees(f, last, p=P)
    assert len(loop(f, last, p=P)) == len(last)


def copies_words(words, tags, p):
    keys = p["emb"][words]
    h, before, loss = np.zeros(4), 0, 0.0
    for tag in tags:
        h = np.tanh(p["emb"][before] @ p["w"] + h @ p["u"])
        attention = ab.nn.softmax(keys @ h)
        found = ab.nn.softmax(h @ p["w"])
        loss = loss - np.log(found[tag] + attention[words == tag].sum() + np.sum(h[h > 0.1]) ** 2)
        before = tag
    return loss


@pytest.mark.parametrize("make", [batch_of, ab.PackedBatch.from_examples])
def test_a_sum_of_chosen_elements_is_part_of_the_step(make, scans):
    sources = [WORDS[(i + 2) % 7] % 4 for i in range(7)]
    f = batch(copies_words, strict=True)
    for _ in range(3):
        scans.clear()
        value, slopes = ab.value_and_grad(lambda p: ab.mean(f(make(sources), make(TAGS), p)))(P)
    wanted = [
        ab.value_and_grad(lambda p, each=each: copies_words(*each, p))(P) for each in zip(sources, TAGS, strict=True)
    ]
    np.testing.assert_allclose(np.asarray(value), np.mean([each for each, _ in wanted]), rtol=1e-9)
    for name in P:
        np.testing.assert_allclose(
            slopes[name], sum(each[name] for _, each in wanted) / len(wanted), rtol=1e-7, atol=1e-12
        )
    assert max(scans, default=0) >= 5, scans
