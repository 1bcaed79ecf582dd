"""Tables in compiled code: look-ups by ids as the table gives them, memory of their own, and its errors."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import compiled_map, prepared
from autobatch.errors import Unsupported
from tests.compiled.interpreted import interpreted
from tests.compiled.law import outcome, same


def summed(words, emb):
    total = 0.0
    for word in words:
        total += float(emb[word].sum())
    return total


def looked_up(ids, emb):
    return emb[ids]


def sizes(ids, emb):
    return emb.shape, len(emb), emb.ndim, emb.size, emb[ids.size]


def written(ids, emb):
    one, several = emb[int(ids[0])], emb[ids]
    one[0], several[0] = 5.0, 7.0
    return one, several


def caught(words, emb):
    found = 0.0
    for word in words:
        try:
            found += float(emb[word][0])
        except IndexError:
            found += 1000.0
    return found


def scored(words, params):
    state = np.zeros(params["w"].shape[0])
    for word in words:
        state = np.tanh(params["emb"][word] @ params["w"] + state)
    return state


ARRAYS = [np.array(ids, np.int64) for ids in ([1, 2], [3], [], [19, 0, 0])]
LISTS = [[1, 2, 3], [4], [], [19, 0]]


def table(dtype, **changes):
    return ab.EmbeddingTable(np.random.default_rng(0).normal(0, 9, (20, 4)).astype(dtype), **changes)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize(
    ("function", "column"),
    [
        (summed, LISTS),
        (looked_up, ARRAYS),
        (looked_up, [np.arange(6).reshape(2, 3), np.zeros((4, 1), int), np.zeros((0, 2), int)]),
        (looked_up, [np.arange(3, dtype=np.uint8)]),
        (looked_up, [4, 0]),
        (looked_up, list(np.arange(3))),
        (sizes, ARRAYS),
        (written, [ids for ids in ARRAYS if len(ids)]),
        (caught, [[1, 20], [-1, 2], []]),
    ],
)
def test_look_ups(function, column, dtype):
    emb = table(dtype)
    before = emb.weights.copy()
    with interpreted():
        found = compiled_map(function, [column], {"emb": emb})
        assert prepared(function, [column], {"emb": emb}, None)[1].failures == sum(
            function is caught and any(word < 0 for word in words) for words in column
        )
    assert same(found, [function(example, emb) for example in column])
    assert same(emb.weights, before)


@pytest.mark.parametrize("ids", [[1, -1], [20], [1.0], [-21]])
def test_ids_that_are_none_raise_as_the_table_does(ids):
    emb = table(np.float64)
    column = [np.array([3]).astype(np.array(ids).dtype), np.array(ids)]
    want = outcome(lambda: [looked_up(each, emb) for each in column])
    with interpreted():
        found = outcome(lambda: compiled_map(looked_up, [column], {"emb": emb}))
        assert same(found, want) or "would leave each example to Python" in str(found)


@pytest.mark.parametrize("index", [np.array([True] * 20), slice(2), (1, 2)])
def test_another_index_is_for_python(index):
    with interpreted(), pytest.raises(Unsupported, match=r"ids|tuple|slice"):
        compiled_map(lambda x, emb, index: emb[index], [[1]], {"emb": table(np.float64), "index": index})


def test_weights_of_any_memory():
    weights = np.random.default_rng(1).normal(0, 1, (20, 4))
    read_only = weights.copy()
    read_only.flags.writeable = False
    for each in (weights[::-1], np.asfortranarray(weights), read_only, np.zeros((3, 0)), weights[:, :1]):
        column = [np.array([2, 0])]
        with interpreted():
            assert same(
                compiled_map(looked_up, [column], {"emb": ab.EmbeddingTable(each)}), [each[ids] for ids in column]
            )


def test_shared_arrays_are_read_where_they_are():
    """What is looked up, and what it is multiplied by, is that of the moment."""
    params = {"emb": table(np.float64), "w": np.eye(4)}
    with interpreted():
        for _ in range(3):
            assert same(compiled_map(scored, [LISTS], {"params": params}), [scored(words, params) for words in LISTS])
            params["emb"].weights[1] += 1.0
            params["w"][0] += 0.5


def test_memory_that_an_example_writes_into_is_not_a_tables():
    def f(x, emb):
        x[0] = emb[1][0] + 1.0
        return emb[0]

    emb = table(np.float64)
    with interpreted():
        with pytest.raises(Unsupported, match="shares memory"):
            compiled_map(f, [[emb.weights[0], np.zeros(4)]], {"emb": emb})
        own = [np.zeros(4), np.ones(4)]
        assert same(compiled_map(f, [own], {"emb": emb}), [emb[0], emb[0]])
    assert own[0][0] == own[1][0] == emb.weights[1, 0] + 1.0


def test_a_gradient_leaves_tables_to_the_other_ways():
    emb, w = table(np.float64), np.ones(4)
    with interpreted(), ab.options(way="compiled"):
        found = ab.map(ab.grad(lambda w, x, emb: (emb[int(x)] * w).sum()), [w, w], [1.0, 2.0], emb=emb)
        both = ab.grad(lambda p: sum(ab.map(lambda x, p: (p["emb"][x] * p["w"]).sum(), [1, 2], p=p)))(
            {"emb": emb, "w": w}
        )
    assert same(found, [emb[1], emb[2]])
    assert same(both["w"], emb[1] + emb[2])
    assert both["emb"].ids.tolist() == [1, 2]
