"""Arrays by position beside a batch: shared by all examples, with a warning if a row for each may have been meant."""

import collections
import dataclasses
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.pytree import leaves
from tests.inspect import forget_warnings
from tests.law import assert_same

RNG = np.random.default_rng(0)
XS = [RNG.standard_normal(n) for n in (3, 1, 2, 5)]
X = ab.MaskedBatch.from_examples(XS)
Y = np.arange(4.0)
ADVICE = r"argument 2, .* as long as the batch of 4 examples.*write ab\.collate\(y\); .*write ab\.shared\(y\)"


def square(x, y):
    return (x.sum() - np.sum(y)) ** 2


def expected(y):
    return [square(x, y) for x in XS]


class Column:
    """A column of another library."""

    def __init__(self, values):
        self.values = values
        self.shape = values.shape

    def __array__(self, dtype=None, copy=None):
        return self.values

    def to_numpy(self):
        return self.values


@dataclasses.dataclass
class Targets:
    y: object
    rate: float = 0.1
    name: str = "targets"


Pair = collections.namedtuple("Pair", ["y", "weight"])


def total(x, tree):
    """A sum over all numbers in a tree."""
    return x.sum() + sum(np.sum(leaf) for leaf in leaves(tree) if not isinstance(leaf, str))


CONTAINERS = {
    "dict": {"y": Y},
    "dict of two": {"features": np.ones((4, 3)), "y": Y, "rate": 0.1, "none": "", "scale": np.array(2.0)},
    "dict of lists": {"y": [0.0, 1.0, 2.0, 3.0], "ids": [3, 1, 0, 2]},
    "dict of ids": {"ids": np.arange(8).reshape(4, 2)},
    "tuple": (Y, Y > 1),
    "nested": ({"a": (Y,)}, {"b": [Y, Y + 1]}),
    "dataclass": Targets(Y),
    "namedtuple": Pair(Y, np.ones(4)),
    "list of columns": [Y, Y],
    "list of lists": [[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]],
    "a list of ids each": [[0, 1], [2], [], [1, 1, 3]],
    "an array of ids each": [np.arange(n) for n in (2, 1, 0, 5)],
}
PARAMETERS = {
    "a bias of that length": {"w": np.ones((3, 4)), "b": Y},
    "weights from and to that many": {"w": np.ones((4, 4)), "b": Y, "rate": 0.1},
    "weights alone": {"w": np.ones((4, 4)), "u": np.ones((4, 2))},
    "layers": [{"w": np.ones((2, 4)), "b": Y}, {"w": np.ones((4, 1)), "b": np.ones(1)}],
    "a table beside": {"b": Y, "emb": ab.EmbeddingTable(np.ones((7, 2)))},
    "matrices": [np.ones((4, 4))] * 3,
    "settings": {"rate": 0.5, "sizes": (4, 4), "name": "abcd"},
    "a long list": [Y] * 100,
    "numbers": dict.fromkeys(range(4), 1.0),
}


@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "loop"])
@pytest.mark.parametrize("tree", CONTAINERS.values(), ids=CONTAINERS)
def test_a_container_of_columns_is_shared_with_one_warning(tree, way):
    f = ab.batch(total)
    advice = ADVICE.replace("y", r"(tuple\(y\)|y)", 1) if isinstance(tree, list) else ADVICE
    with ab.options(way=way), pytest.warns(UserWarning, match=advice) as caught:
        results = [f(X, tree) for _ in range(3)]
    assert len(caught) == 1
    for found in results:
        assert_same(found.examples(), [total(x, tree) for x in XS])
    forget_warnings()
    f(X, ab.shared(tree))
    f(X, tree=tree)


def test_a_list_of_columns_is_collated_as_a_tuple():
    with pytest.warns(UserWarning, match=r"write ab\.collate\(tuple\(y\)\)"):
        ab.batch(total)(X, [Y, Y])
    assert_same(
        ab.batch(total)(X, ab.collate((Y, Y))).examples(), [total(x, [y, y]) for x, y in zip(XS, Y, strict=True)]
    )


def test_columns_beside_a_batch_in_one_container_warn():
    f = ab.batch(lambda record: record["x"].sum() * record["y"].sum())
    with pytest.warns(UserWarning, match="argument 1, a dict of arrays, is as long as the batch of 4"):
        f({"x": X, "y": Y})


@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "loop"])
@pytest.mark.parametrize("tree", PARAMETERS.values(), ids=PARAMETERS)
def test_parameters_are_shared_in_silence(tree, way):
    f = ab.batch(lambda x, tree: x.sum())
    with ab.options(way=way):  # a warning is an error
        assert_same(f(X, tree).examples(), [x.sum() for x in XS])


def test_parameters_under_a_gradient_are_shared_in_silence():
    f = ab.batch(lambda x, p: x.sum() * p["b"].sum())
    assert_same(ab.grad(lambda p: ab.sum(f(X, p)))({"b": Y})["b"], np.full(4, sum(x.sum() for x in XS)))


LIKE_A_COLUMN = {
    "array": Y,
    "rows of ids": np.arange(8).reshape(4, 2),
    "rows of bools": np.ones((4, 4), bool),
    "ints": np.arange(4),
    "list": [0.0, 1, True, np.float32(2)],
}


@pytest.mark.parametrize("y", LIKE_A_COLUMN.values(), ids=LIKE_A_COLUMN)
def test_what_is_as_long_as_the_batch_is_shared_with_a_warning(y):
    loss = ab.batch(square)
    with pytest.warns(UserWarning, match=ADVICE) as caught:
        found = loss(X, y)
    assert [each.filename for each in caught] == [__file__]
    assert_same(found.examples(), expected(y))


class ArrowColumn:
    """A column of another library, which has a length and no shape."""

    def __len__(self):
        return len(Y)

    def __array__(self, dtype=None, copy=None):
        return Y

    def to_numpy(self):
        return Y


@pytest.mark.parametrize("column", [Column(Y), ArrowColumn()])
def test_a_column_of_another_library_warns(column):
    with pytest.warns(UserWarning, match=ADVICE), ab.options(warn=False):
        found = ab.batch(square)(X, column)
    assert_same(found.examples(), expected(Y))


@pytest.mark.chosen
@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "loop"])
def test_it_warns_once_whichever_way_runs(way):
    loss = ab.batch(square)
    forget_warnings()
    with warnings.catch_warnings(record=True) as caught, ab.options(way=way):
        warnings.simplefilter("default")
        for count in (4, 4, 3):
            loss(ab.collate(XS[:count]), Y[:count])
    assert [each.category for each in caught] == [UserWarning]


SILENT = {
    "another length": lambda f: f(X, np.ones(3)),
    "a square matrix": lambda f: f(X, np.ones((4, 4))),
    "a matrix": lambda f: f(X, np.ones((4, 2))),
    "weights of four inputs": lambda f: ab.batch(lambda x, w: x @ w)(ab.collate(np.ones((4, 4))), np.ones((4, 3))),
    "a batch": lambda f: f(X, ab.MaskedBatch(Y)),
    "by keyword": lambda f: f(X, y=Y),
    "ab.shared": lambda f: f(X, ab.shared(Y)),
    "ab.shared by keyword": lambda f: f(X, y=ab.shared(Y)),
    "a number": lambda f: f(X, np.float64(4)),
    "a tuple": lambda f: f(X, (0, 1, 2, 3)),
    "a list of arrays": lambda f: f(X, [np.ones(2)] * 4),
    "one example": lambda f: f(ab.collate(XS[:1]), np.ones(1)),
    "in a tree": lambda f: ab.batch(lambda x, p: f(x, p["y"]))(X, {"y": Y, "w": np.ones(3)}),
    "a parameter": lambda f: ab.grad(lambda y: ab.mean(f(X, y)))(Y),
    "no batch": lambda f: f(XS[0], Y),
}


@pytest.mark.parametrize("call", SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("strict", [True, False])
def test_what_may_not_be_meant_row_by_row_is_silent(call, strict):
    call(ab.batch(square, strict=strict))  # a warning is an error


@pytest.mark.chosen
@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "loop"])
def test_a_decorated_function_gets_what_is_marked_as_shared_itself(way):
    loss = ab.batch(square)

    @ab.batch
    def twice(x, y):
        return 2 * loss(x, ab.shared(y)) + loss(x, y=ab.shared(y))

    class Model:
        @ab.batch
        def inner(self, x, y):
            return square(x, y)

        @ab.batch
        def outer(self, x, y):
            return self.inner(x, ab.shared(y))

    with ab.options(way=way):
        assert_same(loss(X, ab.shared(Y)).examples(), expected(Y))
        assert_same(loss(X, y=ab.shared(Y)).examples(), expected(Y))
        assert_same(loss(ab.shared(X), ab.MaskedBatch(Y)).examples(), loss(X, ab.MaskedBatch(Y)).examples())
        assert_same(loss(XS[0], ab.shared(Y)), square(XS[0], Y))
        assert_same(twice(X, ab.shared(Y)).examples(), [3 * square(x, Y) for x in XS])
        assert_same(twice(XS[0], ab.shared(Y)), 3 * square(XS[0], Y))
        assert_same(Model().outer(X, ab.shared(Y)).examples(), expected(Y))
        assert_same(Model().outer(XS[0], Y), square(XS[0], Y))


@pytest.mark.parametrize("blocks", [True, False])
def test_what_is_marked_inside_a_map_goes_the_way_of_the_map(blocks):
    loss = ab.batch(square)

    def by_position(x, y):
        return loss(x, ab.shared(y)) + 1

    def by_keyword(x, y):
        return 2 * loss(x, y=ab.shared(y))

    for f in (by_position, by_keyword):
        with ab.options(blocks=blocks, strict=True):  # a loop is an error
            assert_same(ab.map(f, list(XS), y=Y), [f(x, Y) for x in XS])


@pytest.mark.chosen
@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "loop"])
def test_a_mark_inside_a_container_says_what_to_write(way):
    f = ab.batch(lambda x, p: x.sum() - p["y"])
    with ab.options(way=way, warn=False), pytest.raises(TypeError, match="Shared") as caught:
        f(X, {"y": ab.shared(Y)})
    assert any("ab.shared({...})" in note for note in caught.value.__notes__)


def test_gradients_go_through_what_is_marked_as_shared():
    loss = ab.batch(square)
    want = ab.grad(lambda y: sum(square(x, y) for x in XS) / len(XS))(Y)
    assert_same(ab.grad(lambda y: ab.mean(loss(X, ab.shared(y))))(Y), want)
    assert_same(ab.grad(lambda y, x: ab.mean(loss(x, y)))(ab.shared(Y), ab.shared(X)), want)
    assert_same(ab.grad(square, argnums=1)(XS[0], ab.shared(Y)), ab.grad(square, argnums=1)(XS[0], Y))
