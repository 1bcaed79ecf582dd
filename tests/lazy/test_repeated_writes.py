"""Repeated maps of what looks like nothing but structure and is more."""

import types

import numpy as np
import pytest

import autobatch as ab
from tests.lazy.repeated import again, assert_same, check, params


def adds_to_a_reshaped_view(ids, params):
    flat = ids.reshape(-1)
    flat += 1
    return params["emb"][ids[0]] * 2


def adds_to_the_same_array(ids, params):
    again = np.asarray(ids)
    again += 1
    return params["emb"][ids[0]] * 2


def adds_to_what_astype_gave(ids, params):
    again = ids.astype(int)
    again -= 1
    other = ids.astype(int, copy=False)
    other += 1
    return params["emb"][ids[0]] * 2


def writes_by_the_third_argument(ids, params):
    np.add(ids, 1, ids)
    return params["emb"][ids[0]] * 2


def writes_by_a_method(ids, params):
    ids.clip(0, 1, ids)
    return params["emb"][ids[0]] * 2


def writes_by_keywords_in_a_dict(ids, params):
    np.add(ids, 1, **{"out": ids})
    return params["emb"][ids[0]] * 2


def writes_by_arguments_in_a_list(ids, params):
    given = [ids, 1, ids]
    np.add(*given)
    return params["emb"][ids[0]] * 2


def sorts_while_it_takes_the_median(ids, params):
    np.median(ids, None, None, True)
    return params["emb"][ids[0]] * 2


def adds_to_an_item(ids, params):
    held = [ids]
    held[0] += 1
    return params["emb"][ids[0]] * 2


@pytest.mark.parametrize(
    "f",
    [
        adds_to_a_reshaped_view,
        adds_to_the_same_array,
        adds_to_what_astype_gave,
        writes_by_the_third_argument,
        writes_by_a_method,
        writes_by_keywords_in_a_dict,
        writes_by_arguments_in_a_list,
        sorts_while_it_takes_the_median,
        adds_to_an_item,
    ],
    ids=lambda f: f.__name__,
)
def test_a_write_to_an_array_of_integers_is_made_each_time(f):
    for _ in range(4):
        given, expected = np.array([3, 1, 2]), np.array([3, 1, 2])
        assert_same(ab.map(f, [given], params=params()), [f(expected, params())])
        np.testing.assert_array_equal(given, expected)


def extends_an_item(words, params):
    held = {"words": words}
    held["words"] += [1]
    return params["emb"][len(words)]


def test_a_list_in_a_display_is_extended_each_time():
    for _ in range(4):
        words = [2, 3]
        ab.map(extends_an_item, [words], params=params())
        assert words == [2, 3, 1]


def test_arrays_of_its_own_may_be_written_to():
    def f(ids, params):
        out = np.tanh(params["emb"][ids[0]])
        again = ids + 0
        again += 1
        for i in ids:
            out += params["emb"][i]
        return out * again[0]

    again(f, [np.array([1, 2])], params=params())


made = []


class Counted:
    def __init__(self, word):
        made.append(word)
        self.word = word


def makes_objects(words, params):
    return params["emb"][sum([word.word for word in map(Counted, words)])] * 2


def makes_objects_by_a_name(words, params):
    def isinstance(words, kind):
        return sum([word.word for word in map(kind, words)])

    return params["emb"][isinstance(words, Counted)] * 2


@pytest.mark.parametrize("f", [makes_objects, makes_objects_by_a_name], ids=lambda f: f.__name__)
def test_a_class_that_is_called_runs_each_time(f):
    made.clear()
    for _ in range(4):
        ab.map(f, [(1, 2)], params=params())
    assert len(made) == 8


class Shown:
    def __init__(self, word):
        self.word = word


def by_a_string(word, params):
    return params["emb"][1] * 2, f"{word}"


def by_a_percent_sign(word, params):
    return params["emb"][1] * 2, "%s" % (word,)  # noqa: UP031


def by_str(word, params):
    return params["emb"][1] * 2, ",".join(map(str, [word]))


@pytest.mark.parametrize("f", [by_a_string, by_a_percent_sign, by_str], ids=lambda f: f.__name__)
def test_text_that_depends_on_more_than_the_example(f):
    words = [Shown(1) for _ in range(4)]  # which lie in different places
    for word in words:
        check(f, [word], params=params())
    ids = np.arange(9)
    for limit in (1000, 1000, 1000, 2):
        with np.printoptions(threshold=limit, edgeitems=1):
            assert ab.map(f, [ids], params=params())[0][1] == str(ids)
    again(f, [(1, "a")], params=params())


def test_a_function_of_the_same_code_without_defaults():
    def f(word, *, params, scale=2):
        return params["emb"][word] * scale

    again(f, [1], params=params())
    with pytest.raises(TypeError, match="scale"):
        ab.map(types.FunctionType(f.__code__, f.__globals__), [1], params=params())
