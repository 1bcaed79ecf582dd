"""Recordings that are kept: the results of the loop, whatever changed since an equal example was recorded.

By hand: with `_State.is_still` always true, with `Guard.holds` always true, without `reads += 1` in `_known_view`, or
with `_part_of` giving None, tests here fail.
"""

import dataclasses
import threading
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.mapping import map_with_stats
from autobatch.lazy import recordings
from autobatch.rewrite import structural

TREES = [((1, 2), 3), 4, ((5, (6, 7)), 8), (0, 0)]
SCALE = 2.0


@dataclasses.dataclass(frozen=True)
class Node:
    word: int
    children: tuple = ()


@dataclasses.dataclass(slots=True)
class Slotted:
    word: int
    children: list


class Plain:
    def __init__(self, word, *children):
        self.word = word
        self.children = children


@pytest.fixture(autouse=True)
def _nothing_was_seen_before():
    structural.forget_memories()


def params(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(9, 4) if name == "emb" else (4, 4)).astype(dtype) for name in ("emb", "w", "u")}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            same(left, right)
    elif isinstance(a, np.ndarray | np.generic):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-12 if a.dtype == np.float64 else 1e-5)
    else:
        assert repr(a) == repr(b)


def check(f, *columns, **shared):
    """One map beside the loop; how many of its examples were replayed."""
    plain = getattr(f, "__wrapped__", f)
    expected = [plain(*given, **shared) for given in zip(*columns, strict=True)]
    results, stats = map_with_stats(f, *columns, **shared)
    same(results, expected)
    assert not stats.fallbacks
    return stats.replayed


def always(f, *columns, times=4, **shared):
    """Every example is replayed from the third map on."""
    counts = [check(f, *columns, **shared) for _ in range(times)]
    assert counts[0] == 0
    assert counts[2:] == [len(columns[0])] * (times - 2)


def never(f, *columns, times=4, **shared):
    assert [check(f, *columns, **shared) for _ in range(times)] == [0] * times


@ab.batch
def encode(tree, params):
    if isinstance(tree, int):
        return params["emb"][tree]
    left, right = (encode(part, params) for part in tree)
    return np.tanh(left @ params["w"] + right @ params["u"])


def node(tree, params):
    out = params["emb"][tree.word] * 0.5
    for child in tree.children:
        out = out + np.tanh(node(child, params) @ params["w"])
    return out


def a_loop(words, params):
    states, h = [], np.zeros(4)
    for word in words:
        h = np.tanh(params["emb"][word] + h @ params["u"])
        states.append(h)
    total = 0.0
    for state in states[::2]:
        total += state
    return {"h": h, "total": total, "length": len(words), "last": [h, h]}


def a_match(tree, params):
    match tree:
        case int(word):
            return params["emb"][word] * 2
        case [first, *rest]:
            out = a_match(first, params)
            for part in rest:
                out = out - a_match(part, params) @ params["w"]
            return out


def functions_inside(tree, params):
    def walk(part, depth=0):
        if isinstance(part, int):
            return params["emb"][part] * (depth + 1)
        parts = map(lambda each: walk(each, depth + 1), part)  # noqa: C417
        return sum(parts) @ params["w"]

    return walk(tree)


def by_kind(items, params):
    h = np.ones(4)
    for name, word in items.items():
        h = np.tanh(h @ params[name] + params["emb"][word])
    return h


WORDS = [[1, 2, 3], [4], [5, 6, 7, 8, 0]]


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize(
    ("f", "examples"),
    [
        (encode, TREES),
        (a_match, TREES),
        (functions_inside, TREES),
        (a_loop, WORDS),
        (a_loop, [np.array(words) for words in WORDS]),
        (by_kind, [{"w": 1, "u": 2}, {"u": 2, "w": 1}, {"w": 3}]),
        (node, [Node(1, (Node(2), Node(3))), Node(4)]),
        (node, [Slotted(1, [Slotted(2, [])]), Slotted(4, [])]),
        (node, [Plain(1, Plain(2), Plain(3)), Plain(4)]),
    ],
)
def test_an_example_that_comes_again_is_recorded_without_its_python(f, examples, blocks):
    with ab.options(blocks=blocks):
        always(f, examples, params=params())
        assert check(f, examples[::-1] + [examples[0]] * 3, params=params(1)) == len(examples) + 3
        assert check(f, examples, params=params(dtype=np.float32)) == 0


def test_gradients_and_in_place_updates_over_epochs():
    def run(replay):
        own = params()
        own["emb"] = ab.EmbeddingTable(own["emb"])
        optimizer = ab.optim.Adam(lr=0.1)
        state = optimizer.init(own)
        values = []
        with ab.options(replay=replay):
            for _ in range(5):
                loss = ab.value_and_grad(lambda p: sum(h.sum() for h in ab.map(encode, TREES, params=p)))
                value, grads = loss(own)
                own, state = optimizer.update(own, grads, state)
                values.append(float(value))
        return values, grads

    values, grads = run(True)
    expected, expected_grads = run(False)
    np.testing.assert_allclose(values, expected, rtol=1e-9)
    np.testing.assert_allclose(grads["w"], expected_grads["w"], rtol=1e-7)
    np.testing.assert_allclose(grads["emb"].to_dense(), expected_grads["emb"].to_dense(), rtol=1e-7)


def test_what_an_example_holds_counts_not_which_object_it_is():
    tree = [[1, 2], 3]
    never(encode, [tree], times=2, params=params())
    tree[0][0] = 5
    assert check(encode, [tree], params=params()) == 0
    plain = Plain(1, Plain(2))
    always(node, [plain], params=params())
    plain.children[0].word = 3
    assert check(node, [plain], params=params()) == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, True], [1, 1]),
        ([2, 1], [2, 1.0]),
        ([2, 0.0], [2, -0.0]),
        ([2, np.int64(1)], [2, 1]),
        ([2, np.float32(1)], [2, np.float64(1)]),
        ([2, float("nan")], [2, 1.0]),
        ([2, "a"], [2, b"a"]),
        ([2, (1,)], [2, [1]]),
        ([2, np.array(3)], [2, np.array([3])]),
        ([2, np.array([3.0])], [2, np.array([3])]),
        ([2, np.array(3.0)], [2, np.array(4.0)]),
        ([2, np.array([1, 2])], [2, np.array([1, 2], np.int32)]),
    ],
)
def test_examples_that_look_alike_are_told_apart(first, second):
    def kinds(example, params):
        name = str(example[1:])
        return params["emb"][example[0]] * len(name), name, isinstance(example[1], float)

    structural.memory_of(kinds)
    for _ in range(4):
        check(kinds, [first, second], params=params())


def test_what_a_function_relies_on_may_change(monkeypatch):
    def scaled(tree, params):
        return encode(tree, params) * SCALE + helper(params["emb"][0])

    always(scaled, TREES, params=params())
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    always(scaled, TREES, params=params())
    monkeypatch.setitem(globals(), "helper", lambda x: x * 7)
    always(scaled, TREES, params=params())
    monkeypatch.setattr(helper_of_helper, "__defaults__", (4,))
    check(scaled, TREES, params=params())
    monkeypatch.undo()
    always(scaled, TREES, params=params())
    monkeypatch.setattr(helper_of_helper, "__defaults__", (4,))
    assert check(scaled, TREES, params=params()) == 0
    monkeypatch.setattr(np, "tanh", np.sinh)
    assert check(scaled, TREES, params=params()) == 0


def helper(x):
    return helper_of_helper(x)


def helper_of_helper(x, factor=1):
    return x * factor


def test_what_all_examples_share_may_change():
    def f(tree, params, factor, tied):
        return encode(tree, params) * factor + tied["a"] - tied["b"]

    a, b = np.ones(4), np.full(4, 3.0)
    always(f, TREES, params=params(), factor=2.0, tied={"a": a, "b": a})
    assert check(f, TREES, params=params(), factor=3.0, tied={"a": a, "b": a}) == 0
    assert check(f, TREES, params=params(), factor=2, tied={"a": a, "b": a}) == 0
    assert check(f, TREES, params=params(), factor=2.0, tied={"a": a, "b": b}) == 0
    assert check(f, TREES, params=params(), factor=2.0, tied={"b": a, "a": a}) == 0
    a += 1
    assert check(f, TREES, params=params(3), factor=2.0, tied={"a": a, "b": a}) == len(TREES)


def looks_at_a_parameter(tree, params):
    return encode(tree, params) if params["w"][0, 0] > 0 else -encode(tree, params)


def counts_in_a_parameter(tree, params):
    return encode(tree, params) * int(np.argmax(params["u"]))


def looks_at_a_sum(tree, params):
    h = encode(tree, params)
    return h if h.sum() > 0 else h * 2


def shows_a_parameter(tree, params):
    return encode(tree, params), f"{params['w'].sum():.3f}"


def asks_for_the_layout(tree, params):
    return encode(tree, params), bool(params["w"].flags.c_contiguous)


@pytest.mark.parametrize(
    "f",
    [looks_at_a_parameter, counts_in_a_parameter, looks_at_a_sum, shows_a_parameter, asks_for_the_layout],
    ids=lambda f: f.__name__,
)
def test_no_recording_is_kept_where_a_value_decided(f):
    never(f, TREES, params=params())
    other = params(5)
    other["w"] = np.asfortranarray(-other["w"])
    never(f, TREES, params=other)


class Stateful:
    size = 2

    def __init__(self, word):
        self.word = word

    @property
    def children(self):
        return [Stateful(1)] * self.size if self.word == 2 else []


class Counted(Plain):
    def __len__(self):
        return 3


class Lists(Plain):
    def items(self):
        return self.children


class Defaults:
    children = ()

    def __init__(self, word):
        self.word = word


def of_items(tree, params):
    return params["emb"][tree.word] + len(list(tree.items()))


def of_length(tree, params):
    return params["emb"][tree.word] * len(tree)


def test_no_code_of_a_class_is_taken_for_what_is_stored(monkeypatch):
    never(node, [Stateful(2)], params=params())
    monkeypatch.setattr(Stateful, "size", 3)
    never(node, [Stateful(2)], params=params())
    never(of_length, [Counted(1)], params=params())
    never(of_items, [Lists(1, 2)], params=params())
    always(node, [Defaults(2)], params=params())
    monkeypatch.setattr(Defaults, "children", (Plain(1),))
    assert check(node, [Defaults(2)], params=params()) == 0


def test_a_class_of_the_same_name_is_another_class(monkeypatch):
    always(node, [Plain(1, Plain(2))], params=params())

    class Other(Plain):
        @property
        def word(self):
            return 5

        @word.setter
        def word(self, value):
            pass

    Other.__qualname__, Other.__module__ = "Plain", __name__
    monkeypatch.setitem(globals(), "Plain", Other)
    assert check(node, [Other(1, Other(2))], params=params()) == 0


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
        ab.map(prints, TREES, params=params())
    assert len(capsys.readouterr().out.splitlines()) == 4 * len(TREES)
    for f in (changes_its_argument, extends_its_argument, writes_an_item):
        for _ in range(4):
            words = [[1, 2], [1, 2]]
            got = ab.map(f, words, params=params())
            expected = [[1, 2], [1, 2]]
            same(got, [f(each, params()) for each in expected])
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
    again = [rng.normal(size=x.shape) for x in xs]
    assert check(of_rows, again, params=params()) == len(xs)
    assert check(of_rows, [x.astype(np.float32) for x in xs], params=params()) == 0
    strided = [np.ones((2 * len(x), 4))[::2] for x in xs]
    never(of_rows, strided, params=params())

    def pair(x, y, params):
        return x * 2 - y @ params["w"]

    for _ in range(3):
        check(pair, xs, [x + 1 for x in xs], params=params())
    assert check(pair, xs, xs, params=params()) == 0  # one array twice is another structure
    shared = params()
    never(pair, [shared["w"]], [shared["u"]], params=shared)  # what is shared as well is no array of its own
    always(pair, [shared["w"] + 1], [shared["u"] + 1], params=shared)


def test_numbers_out_of_an_array_are_values():
    def first(x, params):
        return params["emb"][int(x[0])] * x[1]

    for start in range(4):
        assert check(first, [np.array([start, 1.0]), np.array([2.0, 3.0])], params=params()) == 0


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


def test_a_small_budget_launches_in_waves():
    always(encode, TREES, params=params())
    with ab.options(memory_budget=200):
        for _ in range(3):
            check(encode, TREES * 5, params=params())


def test_there_is_a_limit_to_what_is_kept(monkeypatch):
    monkeypatch.setattr(recordings, "_ROOM", 200_000)
    trees = [(i % 9, (j, k)) for i in range(9) for j in range(9) for k in range(9)]
    for _ in range(3):
        check(encode, trees, params=params())
    assert 0 < check(encode, trees, params=params()) < len(trees)


def test_without_replay_the_python_runs():
    with ab.options(replay=False):
        never(encode, TREES, params=params())
    report = None
    for _ in range(3):
        report = ab.explain(encode, TREES, params=params())
    assert report.replayed == len(TREES)
    assert "of which 4 came before" in str(report)


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
