"""Repeated maps: what examples change, give and raise is there each time, as in the loop."""

import threading
import warnings

import numpy as np
import pytest

import autobatch as ab
from tests.lazy.repeated import TREES, again, assert_same, check, encode, params

seen = []


def appends_to_what_is_outside(tree, params):
    seen.append(len(seen))
    return encode(tree, params)


def changes_its_argument(words, params):
    words.append(1)
    return params["emb"][len(words)]


def extends_its_argument(words, params):
    again = words
    again += [1]
    return params["emb"][len(words)]


def writes_an_item(words, params):
    words[0] += 1
    return params["emb"][words[0]]


def writes_by_out(words, params):
    np.add(words, 1, out=words)
    return params["emb"][words[0]]


def test_what_an_example_changes_is_changed_each_time(capsys):
    for _ in range(4):
        ab.map(appends_to_what_is_outside, TREES, params=params())
    assert len(seen) == 4 * len(TREES)

    def prints(tree, params):
        print(tree)
        return encode(tree, params)

    for _ in range(4):
        with ab.options(warn=False):
            ab.map(prints, TREES, params=params())
    assert len(capsys.readouterr().out.splitlines()) == 4 * len(TREES)
    for f in (changes_its_argument, extends_its_argument, writes_an_item):
        for _ in range(4):
            words = [[1, 2], [1, 2]]
            got = ab.map(f, words, params=params())
            expected = [[1, 2], [1, 2]]
            assert_same(got, [f(each, params()) for each in expected])
            assert words == expected
    for start in range(4):
        ids = np.array([start])
        np.testing.assert_array_equal(ab.map(writes_by_out, [ids], params=params())[0], params()["emb"][start + 1])
        assert ids[0] == start + 1
    ids = np.array([0])
    for _ in range(4):
        again = ids.copy()
        ab.map(writes_by_out, [again], params=params())
        assert again[0] == 1


def test_parts_of_the_arguments_in_a_result_are_those_parts():
    def parts(tree, params, names):
        return tree[0], names, encode(tree[0], params)

    names = ["a"]
    trees = [[[1, 2], 3], [[4, 5], 6]]
    for _ in range(4):
        for (part, name, _), tree in zip(ab.map(parts, trees, params=params(), names=names), trees, strict=True):
            assert part is tree[0]
            assert name is names

    def twice(tree, params):
        pair = [encode(tree, params)]
        return pair, pair

    for _ in range(4):
        for left, right in ab.map(twice, TREES, params=params()):
            assert left is right


def of_rows(x, params):
    h = np.zeros(4)
    for row in x:
        h = np.tanh(row @ params["w"] + h)
    return h, x[-1] * 2, x[:, 1:3].sum(), (x.T @ x)[0]


def test_of_arrays_of_floats_only_shape_and_dtype_count():
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(n, 4)) for n in (3, 1, 5, 3)]
    for _ in range(2):
        check(of_rows, xs, params=params())
    others = [rng.normal(size=x.shape) for x in xs]
    check(of_rows, others, params=params())
    check(of_rows, [x.astype(np.float32) for x in xs], params=params())
    strided = [np.ones((2 * len(x), 4))[::2] for x in xs]
    again(of_rows, strided, params=params())

    def pair(x, y, params):
        return x * 2 - y @ params["w"]

    for _ in range(3):
        check(pair, xs, [x + 1 for x in xs], params=params())
    check(pair, xs, xs, params=params())
    shared = params()
    again(pair, [shared["w"]], [shared["u"]], params=shared)  # what is shared as well is not an array of its own
    again(pair, [shared["w"] + 1], [shared["u"] + 1], params=shared)


def test_numbers_out_of_an_array_are_values():
    def first(x, params):
        return params["emb"][int(x[0])] * x[1]

    for start in range(4):
        check(first, [np.array([start, 1.0]), np.array([2.0, 3.0])], params=params())


def test_a_write_to_an_argument_is_made_each_time():
    def doubles(x, params):
        y = x.reshape(-1)
        y += 1
        return params["w"] @ x

    for _ in range(4):
        x, expected = np.arange(4.0), np.arange(4.0)
        (got,) = ab.map(doubles, [x], params=params())
        np.testing.assert_allclose(got, doubles(expected, params()))
        np.testing.assert_array_equal(x, expected)


def test_errors_are_those_of_the_example():
    examples = [1, (2, 3), (4, 50), (1, 1)]
    for _ in range(4):
        with pytest.raises(IndexError, match="50") as caught:
            ab.map(encode, examples, params=params())
        assert any("example 2" in note for note in caught.value.__notes__)
    check(encode, examples[:2], params=params())


def test_warnings_are_given_where_each_one_is_to_be_seen():
    def warns(word, params):
        return params["emb"][word] * np.log(np.zeros(2)).max()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            with ab.options(blocks=False):
                ab.map(warns, [1, 2], params=params())
    for _ in range(3):
        with ab.options(blocks=False), pytest.warns(RuntimeWarning, match="divide by zero"):
            ab.map(warns, [1, 2], params=params())
    with ab.options(blocks=False), np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide"):
        ab.map(warns, [1, 2], params=params())


def test_a_small_budget_launches_in_segments():
    again(encode, TREES, params=params())
    with ab.options(memory_budget=200):
        for _ in range(3):
            check(encode, TREES * 5, params=params())


def test_threads_share_recordings():
    failures = []

    def run(seed):
        try:
            for _ in range(8):
                check(encode, TREES, params=params(seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
