"""Tables in compiled code: look-ups by ids as the table gives them, memory of their own, and its errors."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import KernelForm, compiled_map, prepared
from autobatch.compiled.taping import backward, taped_map
from autobatch.errors import Unsupported
from tests.compiled.interpreted import interpreted
from tests.compiled.law import outcome, same
from tests.inspect import ran_ways, watched


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


def after(words, emb):
    before, found = 0, 0.0  # Python's int, then NumPy's
    for word in words:
        found += float(emb[before][0]) * 2
        before = word
    return found + float(emb[before][1])


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
        (after, ARRAYS),
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


def read_twice(ids, params):
    """Rows one by one, of matrices of ids and of no ids, from two tables, one of which has other rows."""
    total = params["narrow"][ids % 3].sum() + params["emb"][ids[:0]].sum()
    for word in ids:
        h = params["emb"][word] * params["w"]
        if word % 2:
            total = total + h.sum() * params["emb"][0][1]
    return total + (params["emb"][np.stack([ids, ids])] * params["emb"][ids]).sum()


def params_of(dtype, **changes):
    narrow = np.random.default_rng(1).normal(size=(3, 2)).astype(dtype)
    return {"emb": table(dtype, **changes), "narrow": ab.EmbeddingTable(narrow), "w": np.linspace(1, 2, 4, dtype=dtype)}


def equal_gradients(found, want, dtype):
    for name, one in found.items():
        if isinstance(one, ab.SparseRows):
            assert type(want[name]) is ab.SparseRows
            assert one.ids.tolist() == want[name].ids.tolist()
            one, other = one.rows, want[name].rows
        else:
            other = want[name]
        assert one.dtype == other.dtype == dtype
        np.testing.assert_allclose(one, other, rtol=1e-4 if dtype is np.float32 else 1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_what_is_looked_up(dtype, monkeypatch):
    """In parts of two examples, one of which looks up more rows than there is room for at first."""
    monkeypatch.setattr(backward, "_LEAST", 2)
    params, ids = params_of(dtype), [*[each for each in ARRAYS if len(each)], np.arange(backward._ROWS // 4) % 20]
    with interpreted(), ab.options(way="compiled"), ran_ways() as ran:
        each = ab.map(ab.value_and_grad(read_twice, 1), ids, ab.shared(params))
        value, total = ab.value_and_grad(lambda p: sum(ab.map(read_twice, ids, params=p)))(params)
    assert [run.way for run in ran if run.way != "loop"] == ["compiled", "compiled"]
    wanted = [ab.value_and_grad(read_twice, 1)(one, params) for one in ids]
    for (found, own), (want, other) in zip(each, wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5)
        equal_gradients(own, other, dtype)
    want, other = ab.value_and_grad(lambda p: sum(read_twice(one, p) for one in ids))(params)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    equal_gradients(total, other, dtype)


def test_a_loss_whose_examples_weigh_alike_or_not():
    """The gradient is taken with the values, for weights that are alike; else backward takes it anew."""
    params, ids, runs = params_of(np.float64), [each for each in ARRAYS if len(each)], []
    counted = taped_map.run_backward

    def weighted(p, weights):
        values = ab.map(read_twice, ids, params=p)
        runs.append(0)
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    def counting(*args):
        runs[-1:] = [*runs[-1:], 1]
        return counted(*args)

    with interpreted(), ab.options(way="compiled"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(taped_map, "run_backward", counting)
        for weights in [(1.0, 1.0, 1.0), (0.5, 0.5, 0.5), (1.0, 2.0, 3.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]:
            value, found = ab.value_and_grad(weighted)(params, weights)
            want, other = ab.value_and_grad(
                lambda p, weights=weights: sum(w * read_twice(one, p) for w, one in zip(weights, ids, strict=True))
            )(params)
            np.testing.assert_allclose(value, want, rtol=1e-10)
            equal_gradients(found, other, np.float64)
    first, at_once, anew = [1, 0, 1, 1], [1, 0], [0, 1]  # two runs of the first call are for comparison
    assert runs == [*first, *at_once, *at_once, 1, *anew, *anew]


def test_training_on_a_loss_compiles_one_kernel_whose_results_are_compared():
    params, ids = params_of(np.float64), [each for each in ARRAYS if len(each)]
    own = taped_map.run_backward

    def step():
        return ab.value_and_grad(lambda p: sum(ab.map(read_twice, ids, params=p)))(params)

    def wrong(*args):
        found = own(*args)
        found.outs[0][:] += 1
        return found

    with ab.options(way="loop"):
        want, other = step()
    with interpreted(), ab.options(way="compiled"), watched(KernelForm, "require_ready", before=type) as asked:
        value, found = step()
    assert set(asked) == {backward.TapedCode}
    np.testing.assert_allclose(value, want, rtol=1e-12)
    equal_gradients(found, other, np.float64)
    with interpreted(), ab.options(way="compiled"), pytest.MonkeyPatch.context() as patch, ran_ways() as ran:
        patch.setattr(taped_map, "run_backward", wrong)
        value, found = step()
    assert "compiled" not in [each.way for each in ran]
    np.testing.assert_allclose(value, want, rtol=1e-12)
    for name, one in found.items():
        one, want = (getattr(each, "to_dense", lambda each=each: each)() for each in (one, other[name]))
        np.testing.assert_allclose(one, want, rtol=1e-12)


def test_a_gradient_that_overflows_for_ones_is_taken_anew():
    """In float32 3e38 * 2 is infinite, half of it is not."""

    def steep(x, p):
        return (p["w"] * np.float32(3e38) * x).sum()

    params, xs = {"w": np.full(2, 1e-38, np.float32)}, [np.ones(2, np.float32)] * 2
    with interpreted(), ab.options(way="compiled"), np.errstate(all="ignore"):
        for _ in range(2):
            _, found = ab.value_and_grad(lambda p: sum(ab.map(steep, xs, p=p)) / 4)(params)
    assert found["w"].tolist() == [np.float32(1.5e38)] * 2
