"""`ab.map` and arrays by position: zipped with a warning, or shared by all examples with `ab.shared`."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same

RNG = np.random.default_rng(0)
XS = [RNG.standard_normal(3) for _ in range(3)]
W = RNG.standard_normal((3, 3))


def f(x, w):
    return np.tanh(x @ w).sum()


@pytest.mark.parametrize("w", [W, W[:, 0], W.astype(int), ab.EmbeddingTable(W)], ids=["matrix", "row", "ints", "table"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_an_array_beside_lists_warns_and_is_zipped(kind, w):
    with pytest.warns(UserWarning, match=r"argument 2, an array of shape .*\(W=W\) or as ab.shared\(W\)") as caught:
        got = ab.map(lambda x, row: x * row, kind(XS), w)
    assert [each.filename for each in caught] == [__file__]
    for one, x, row in zip(got, XS, w, strict=True):
        np.testing.assert_array_equal(one, x * row)
    with pytest.warns(UserWarning, match="argument 1, "):
        ab.map(lambda row, x: x * row, w, kind(XS))


def test_an_array_of_another_length_warns_and_is_an_error():
    with pytest.warns(UserWarning, match="argument 2, "), pytest.raises(ValueError, match="lengths"):
        ab.map(f, XS, np.ones((5, 3)))


def test_an_array_that_carries_gradients_warns():
    with pytest.warns(UserWarning, match="argument 2, "):
        ab.grad(lambda w: ab.mean(ab.map(lambda x, row: (x * row).sum(), XS, w)))(W)


@pytest.mark.parametrize(
    "sequences",
    [(XS,), (np.array(XS),), (np.array(XS), W), (XS, list(W)), (XS, range(3)), (XS, ab.MaskedBatch.from_examples(XS))],
)
def test_other_sequences_are_silent(sequences):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ab.map(lambda *values: values[-1], *sequences)
    last = sequences[-1]
    wants = last.examples() if isinstance(last, ab.MaskedBatch) else list(last)
    assert len(found) == len(wants)
    for got, want in zip(found, wants, strict=True):
        np.testing.assert_array_equal(got, want)


def g(x, w, y, *, scale):
    return f(x, w["w"]) * scale if y > 0 else y * w["w"].sum()


def waits(x, w, y, *, scale):
    return g(x, w, y, scale=scale) if f(x, w["w"]) > 0 else np.sum(x)


@pytest.mark.parametrize("function", [g, waits, ab.batch(g)])
def test_what_is_shared_stands_at_its_place_in_every_example(function):
    params, ys = {"w": W}, [1.0, -2.0, 3.0]
    plain = getattr(function, "__wrapped__", function)

    def loop(p):
        return np.stack([plain(x, p, y, scale=2.0) for x, y in zip(XS, ys, strict=True)]).sum()

    for _ in range(3):
        got = ab.map(function, XS, ab.shared(params), ys, scale=2.0)
        np.testing.assert_allclose(got, [plain(x, params, y, scale=2.0) for x, y in zip(XS, ys, strict=True)])
        mapped = ab.grad(lambda p: ab.sum(ab.map(function, XS, ab.shared(p), ys, scale=2.0)))(params)
        np.testing.assert_allclose(mapped["w"], ab.grad(loop)(params)["w"])
    np.testing.assert_allclose(ab.map(lambda w, x: f(x, w), ab.shared(W), XS), [f(x, W) for x in XS])
    assert "3 examples" in str(ab.explain(function, XS, ab.shared(params), ys, scale=2.0))


@pytest.mark.chosen
def test_it_stands_at_its_place_where_the_library_chooses():
    params, ys = {"w": W}, [1.0, -2.0, 3.0]
    for _ in range(3):  # small maps are the loop from the first call on
        got = ab.map(g, XS, ab.shared(params), ys, scale=2.0)
        np.testing.assert_allclose(got, [g(x, params, y, scale=2.0) for x, y in zip(XS, ys, strict=True)])
    np.testing.assert_allclose(ab.map(lambda w, x: f(x, w), ab.shared(W), XS), [f(x, W) for x in XS])


def test_what_is_shared_by_keyword_may_be_marked_as_well():
    got = ab.map(f, XS, w=ab.shared(W))
    np.testing.assert_allclose(got, [f(x, W) for x in XS])
    assert ab.testing.assert_equivalent(f, XS, w=ab.shared(W)).failing == 0


def test_shared_alone_is_no_sequence():
    with pytest.raises(ab.errors.UnsupportedError, match="got no sequence of examples"):
        ab.map(f, ab.shared(W))


class Settings(dict):
    __getattr__ = dict.get  # None for every other name


class Items(dict):
    def __getattr__(self, name):
        return self[name]  # a KeyError for every other name


class Everything:
    def __init__(self, **parts):
        self.__dict__.update(parts)

    def __getattr__(self, name):
        return self


def reads(x, settings):
    return np.tanh(x * settings.scale) @ settings.w


@pytest.mark.parametrize("kind", [Settings, Items, Everything])
@pytest.mark.parametrize("way", ["loop", "fly", "lockstep", "compiled", None])
def test_an_object_that_answers_every_name_is_no_array(kind, way):
    settings = kind(scale=2.0, w=W)
    expected = [reads(x, settings) for x in XS]
    with ab.options(warn=False, **({} if way is None else {"way": way})):
        for _ in range(3):
            np.testing.assert_allclose(ab.map(reads, XS, settings=settings), expected)
            np.testing.assert_allclose(
                ab.examples(ab.batch(reads)(ab.MaskedBatch.from_examples(XS), settings)), expected
            )
        total = ab.grad(lambda s: sum(ab.map(reads, [x * s for x in XS], settings=settings)).sum())(1.0)
    step = 1e-6
    low, high = (sum(reads(x * s, settings) for x in XS).sum() for s in (1 - step, 1 + step))
    np.testing.assert_allclose(total, (high - low) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("way", ["fly", "compiled", "lockstep"])
def test_a_call_that_gives_what_another_left_at_its_default(way):
    first, second = np.arange(3.0), np.array([2.0, -1.0, 0.5])

    def f(x, w=first, *, k=1.0):
        return np.tanh(x * w).sum() * k

    xs = [np.full(3, 0.1 * i) for i in range(12)]
    calls = [{}, {"w": second}, {"k": 3.0}, {}, {"w": second, "k": 3.0}]
    with ab.options(way=way):
        for shared in calls:
            assert_same(ab.map(f, xs, **shared), [f(x, **shared) for x in xs], repr(shared))
        assert_same(ab.map(f, xs, ab.shared(second)), [f(x, second) for x in xs])
        assert_same(ab.map(f, xs, [second * x[0] for x in xs]), [f(x, second * x[0]) for x in xs])
        want = sum(ab.grad(f, argnums=1)(x, first) for x in xs)
        assert_same(ab.grad(lambda w: sum(ab.map(f, xs, w=w)))(first), want)


BATCHES = {
    "of one length": ab.collate(np.arange(6.0).reshape(3, 2)), "of numbers": ab.collate([1.0, 2.0]),
    "padded": ab.MaskedBatch.from_examples([[1.0, 2.0], [3.0]]), "packed": ab.PackedBatch.from_examples([[1.0], [2.0]]),
}  # fmt: skip


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("way", ["fly", "lockstep", "compiled", None])
def test_a_batch_that_a_map_is_given_is_an_object_of_its_examples(batch, way):
    """By keyword, in a tree, or as an example: its own functions see all of it, as in the loop."""

    def of_all(x, each):
        return (each * x.sum()).example(0), ab.mean(ab.map(np.sum, each.examples())), x.sum() * ab.sum(each[...])

    def of_tree(x, tree):
        return of_all(x, tree["b"])

    with ab.options(warn=False, **({} if way is None else {"way": way})):
        for _ in range(3):
            expected = [of_all(x, batch) for x in XS[:2]]
            assert_same(ab.map(of_all, XS[:2], each=ab.shared(batch)), expected)
            assert_same(ab.map(of_tree, XS[:2], tree={"b": batch}), expected)
            assert_same(ab.map(of_all, XS[:2], [batch, batch]), expected)
