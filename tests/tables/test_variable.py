"""The embedding variable as a table: look-ups, gradients and steps equal those of a dense table of all keys."""

import copy
import pickle

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError, DTypeError, OptionError, ShapeError, StructureError, UnsupportedError
from tests.inspect import EMPTY_KEY, forget_recorders
from tests.law import assert_same

MAX, MIN = 2**63 - 1, -(2**63)
SENTENCES = [np.array(x, np.int64) for x in ([-7, 4, -7], [MIN], [5, EMPTY_KEY, 2, 3], [6, 6], [])]
OPTIMIZERS = {
    "SGD": lambda: ab.optim.SGD(0.1),
    "SGD with decay": lambda: ab.optim.SGD(0.1, weight_decay=0.1, clip_value=0.5),
    "momentum": lambda: ab.optim.SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: ab.optim.Adagrad(0.1, initial_accumulator=0.1),
    "RowWiseAdagrad": lambda: ab.optim.RowWiseAdagrad(0.1),
    "Adam": lambda: ab.optim.Adam(0.1, clip_norm=1.0),
    "AdamW": lambda: ab.optim.AdamW(lambda step: 0.1 / (1 + step)),
    "RMSProp": lambda: ab.optim.RMSProp(0.1, centered=True, momentum=0.5),
    "FTRL": lambda: ab.optim.FTRL(0.1, l1=0.01, initial_accumulator=0.2),
}


def looped(words, table, v):
    h = np.zeros(table.shape[1], table.dtype)
    for word in words:
        h = np.tanh(h + table[word])
    return h @ v


def bagged(words, table, v):
    several = ab.embedding_bag(words, table, [0], mode=("sqrtn", "max"))
    return np.tanh(ab.embedding_bag(words, table, [0], mode="mean", padding_idx=-7)[0]) @ v + several[1][0, 0]


def mixed(words, table, v):
    if len(words) and words[0] > 2:
        return np.tanh(table[words]).sum()
    summed = ab.segment_sum(table, np.zeros(len(words), np.int64), ids=words, num_segments=1)
    return ab.lookup(table, words[:, None]).sum() + (table[words].sum(axis=0) @ v) + summed.sum()


def loss(table, ids):
    rows = table[ids]
    bags = ab.embedding_bag(ids[: len(ids) // 2], table, [0, 3], mode="mean")
    return (rows * np.sin(np.arange(table.shape[1], dtype=table.dtype))).sum() + (bags**2).sum()


def trained(optimizer, table, steps, state=None):
    state = optimizer.init(table) if state is None else state
    for ids in steps:
        table, state = optimizer.update(table, ab.grad(loss)(table, ids), state)
    return state


def stream(count, steps=100, keys=300, seed=0):
    """Keys of any size, some of them often."""
    random = np.random.default_rng(seed)
    names = np.unique(np.concatenate([random.integers(MIN, MAX, keys), [MIN, MAX, EMPTY_KEY, 0, -1]]))
    places = (len(names) * random.random((steps, count)) ** 3).astype(np.int64)
    return names, places


@pytest.mark.parametrize(
    ("function", "insert_on"),
    [
        *((function, "update") for function in (looped, bagged, mixed)),
        (mixed, "lookup"),
        *(pytest.param(function, "lookup", marks=pytest.mark.slow) for function in (looped, bagged)),
    ],
)
def test_a_batch_of_look_ups_by_keys_is_the_loop(function, insert_on):
    table = ab.EmbeddingVariable(5, dtype=np.float64, insert_on=insert_on)
    v = np.random.default_rng(2).standard_normal(5)
    ab.testing.assert_equivalent(function, SENTENCES, table=table, v=v)
    assert len(table) == 0
    table.insert([4, 5, -7, EMPTY_KEY])
    ab.testing.assert_equivalent(function, SENTENCES, table=table, v=v)
    assert len(table) == 4


def items_in_a_loop(words, table):
    h = 0.0
    for word in words:
        h = h * 0.5 + table[word]
    return h


def look_ups_in_a_loop(words, table):
    h = 0.0
    for word in words:
        h = h * 0.5 + ab.lookup(table, np.array([word]))[0]
    return h


@pytest.mark.parametrize("parts", [None, 2])
@pytest.mark.parametrize("f", [items_in_a_loop, look_ups_in_a_loop])
def test_a_function_met_first_looks_up_what_the_loop_does_and_no_more(f, parts):
    """No key is tried to find out what a look-up gives."""
    forget_recorders()
    for way in ("fly", "lockstep", "compiled", "auto"):
        ours, theirs = (ab.EmbeddingVariable(5, insert_on="lookup") for _ in range(2))
        ours, theirs = (x if parts is None else x.partition(parts) for x in (ours, theirs))
        expected = [f(words, theirs) for words in SENTENCES]
        with ab.options(way=way, warn=False):
            assert_same(ab.map(f, SENTENCES, table=ours), expected)
        np.testing.assert_array_equal(np.sort(ours.export()[0]), np.sort(theirs.export()[0]), err_msg=way)


TRAINED = [  # each optimiser in one dtype, one with a state and one without in each; each compiles kernels
    pytest.param(dtype, name, marks=[] if dtype is np.float32 or name in ("SGD", "Adam") else [pytest.mark.slow])
    for dtype in (np.float32, np.float64, np.float16)
    for name in OPTIMIZERS
]


@pytest.mark.parametrize(("dtype", "name"), TRAINED)
def test_training_is_that_of_a_dense_table_of_all_keys_to_the_bit(name, dtype):
    names, steps = stream(40, steps=100 if dtype == np.float32 else 10)
    users = ab.EmbeddingVariable(6, dtype=dtype, seed=3)
    dense = ab.EmbeddingTable(users[names])
    one, two = OPTIMIZERS[name](), OPTIMIZERS[name]()
    state, other = one.init(users), two.init(dense)
    for places in steps:
        found, expected = loss(users, names[places]), loss(dense, places)
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
        users, state = one.update(users, ab.grad(loss)(users, names[places]), state)
        dense, other = two.update(dense, ab.grad(loss)(dense, places), other)
    assert users[names].tobytes() == dense.weights.tobytes()
    assert len(users) == len(np.unique(steps))
    assert state["step"] == users.step == len(steps)


def asked(words, table, v):
    known = [word for word in words if word in table]
    return table.contains(words).sum() + table.lookup(words).sum() + len(known)


def taken(words, table, v):
    return (table * 2).sum() + np.tanh(table).sum(axis=0) @ v + table.shape[0] + len(table)


@pytest.mark.parametrize(
    "function",
    [asked, taken, *(lambda words, table, v, f=f: f(table) for f in (lambda t: t[1:3], lambda t: t[1, 2], list))],
    ids=["asked", "taken", "slice", "element", "iterated"],
)
def test_what_else_is_done_with_a_table_in_a_batch_is_that_of_the_loop(function):
    table = ab.EmbeddingVariable(5, dtype=np.float64)
    table.insert([6, -7, 3])
    ab.testing.assert_equivalent(function, SENTENCES, table=table, v=np.arange(5.0))


def test_strings_of_examples_are_keys_of_a_table():
    examples = [{"user": "ann", "tags": ["a", "b"]}, {"user": "bob", "tags": []}]

    def score(example, users, words):
        tags = words[ab.hash_keys(example["tags"])].sum(axis=0)
        return users[ab.hash_keys(example["user"])] @ tags + tags.sum()

    tables = {"users": ab.EmbeddingVariable(4, dtype=np.float64), "words": ab.EmbeddingVariable(4, dtype=np.float64)}
    ab.testing.assert_equivalent(score, examples, **tables)


def test_unsigned_keys_and_every_key_of_64_bits():
    big = np.array([2**64 - 1, 0, 2**63, 5, 2**64 + EMPTY_KEY], np.uint64)
    users = ab.EmbeddingVariable(3, key_dtype=np.uint64)
    gradient = ab.grad(lambda t: t[big].sum() + ab.embedding_bag(big, t, [0], mode="max").sum())(users)
    assert gradient.ids.dtype == np.uint64
    assert gradient.coalesce().ids.tolist() == big.tolist()
    before, opt = users[big], ab.optim.SGD(1.0)
    opt.update(users, gradient, opt.init(users))
    np.testing.assert_array_equal(users.keys(), np.sort(big))
    assert (users[big] < before).all()
    np.testing.assert_array_equal(users[[2**64 - 1, 5]], users[big[[0, 3]]])
    np.testing.assert_array_equal(users[2**64 - 1], users[big[0]])
    users[[3, 2**63 + 1]] = 7.0  # NumPy makes floats of the two
    np.testing.assert_array_equal(users[np.array([2**63 + 1, 3], np.uint64)], np.full((2, 3), 7.0))
    assert ab.EmbeddingVariable(3)[np.array([2**63 - 1], np.uint64)].shape == (1, 3)  # the largest key of int64
    sentences = [np.array(x, np.uint64) for x in ([2**64 - 7, 4], [2**62], [5, 5, 2, 3])]
    ab.testing.assert_equivalent(looped, sentences, table=users, v=np.ones(3, np.float32))


def test_a_look_up_changes_nothing_and_reads_the_first_row():
    users = ab.EmbeddingVariable(4, seed=1)
    keys = np.array([[3, -3], [MAX, 3]])
    first = users[keys]
    assert first.shape == (2, 2, 4)
    np.testing.assert_array_equal(first[0, 0], first[1, 1])
    assert len(users) == 0
    users.insert([3])
    np.testing.assert_array_equal(users[keys], first)
    np.testing.assert_array_equal(ab.EmbeddingVariable(4, seed=1)[[MAX, 3]], first[1])
    np.testing.assert_array_equal(ab.nn.init.normal(0.01)((4, 4), seed=1)[3], first[0, 0])
    assert not np.array_equal(ab.EmbeddingVariable(4, seed=2)[3], first[0, 0])


def test_look_up_inserts_where_it_is_told_to():
    users = ab.EmbeddingVariable(4, insert_on="lookup")
    rows = users[[7, 8, 7]]
    assert users.keys().tolist() == [7, 8]
    np.testing.assert_array_equal(users[[7, 8, 7]], rows)
    assert ab.embedding_bag([9, 7], users, [0], mode="sum").shape == (1, 4)
    assert 9 in users


def test_insert_assign_and_writing_by_key():
    users = ab.EmbeddingVariable(2, initializer=ab.nn.init.zeros())
    users.insert([5, 6, 5], [[1, 1], [2, 2], [3, 3]])
    np.testing.assert_array_equal(users[[5, 6]], [[1, 1], [2, 2]])
    users.insert([5, 7])
    np.testing.assert_array_equal(users[[5, 7]], [[1, 1], [0, 0]])
    users.assign([6, 8, 6], [[4, 4], [5, 5], [6, 6]])
    np.testing.assert_array_equal(users[[6, 8]], [[6, 6], [5, 5]])
    users[9] = 3.0
    users[[5, 9]] += 1
    np.testing.assert_array_equal(users[[5, 9]], [[2, 2], [4, 4]])
    for wrong in (1.5, slice(3), [0.5], True):
        with pytest.raises(DTypeError, match="integers"):
            users[wrong] = 1.0
    assert users.shape == (5, 2)
    np.testing.assert_array_equal(np.asarray(users), users[users.keys()])


def test_pickled_and_copied_with_its_slots_it_goes_on_alike():
    names, steps = stream(20, steps=30)
    users, opt = ab.EmbeddingVariable(4, admission=ab.admission.count(2)), ab.optim.Adam(0.1)
    state = trained(opt, users, names[steps[:20]])
    for again, same in (pickle.loads(pickle.dumps((users, state))), copy.deepcopy((users, state))):
        one, other = copy.deepcopy((users, state)), (again, same)
        for table, own in (one, other):
            trained(opt, table, names[steps[20:]], own)
        for found, expected in zip(other[0].export(), one[0].export(), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_state_goes_with_the_slots_that_its_init_made():
    users, opt = ab.EmbeddingVariable(2), ab.optim.Adagrad(0.1)
    old = opt.init(users)
    new = opt.init(users)
    gradient = ab.SparseRows([1], np.ones((1, 2), np.float32), None)
    with pytest.raises(StructureError, match=r"call init\(params\) again"):
        opt.update(users, gradient, old)
    assert (users.step, len(users)) == (0, 0)
    opt.update(users, gradient, new)
    with pytest.raises(StructureError, match="call init"):
        ab.optim.RowWiseAdagrad(0.1).update(users, gradient, new)


def test_one_variable_at_two_places_is_updated_once():
    users, twice = ab.EmbeddingVariable(2), ab.EmbeddingVariable(2)
    opt = ab.optim.Adagrad(0.1)
    params = {"a": users, "b": users, "w": np.ones(2, np.float32)}
    grads = ab.grad(lambda p: (p["a"][[1, 2]] @ p["w"]).sum() + p["b"][[2]].sum())(params)
    opt.update(params, grads, opt.init(params))
    w = np.ones(2, np.float32)
    opt.update(twice, ab.grad(lambda t: (t[[1, 2]] @ w).sum() + t[[2]].sum())(twice), opt.init(twice))
    np.testing.assert_array_equal(users[[1, 2]], twice[[1, 2]])


def test_a_variable_that_is_not_trained_has_no_gradient():
    users = ab.EmbeddingVariable(2, trainable=False)
    assert ab.grad(lambda p: (p["t"][[1]] @ p["w"]).sum())({"t": users, "w": np.ones(2)})["t"] is None
    with pytest.raises(UnsupportedError, match="look-ups only"):
        users.assign([1], np.ones((1, 2)))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ab.EmbeddingVariable(0), OptionError, "dim=0; expected at least 1"),
        (lambda: ab.EmbeddingVariable(2.0), OptionError, "dim=2.0; expected a whole number"),
        (lambda: ab.EmbeddingVariable(2, dtype=int), DTypeError, "of int64; expected float16"),
        (lambda: ab.EmbeddingVariable(2, key_dtype=np.int32), DTypeError, "keys of int32"),
        (lambda: ab.EmbeddingVariable(2, capacity=0), OptionError, "capacity=0"),
        (lambda: ab.EmbeddingVariable(2, eviction="fifo"), OptionError, "eviction='fifo'; expected one of lru"),
        (lambda: ab.EmbeddingVariable(2, insert_on="read"), OptionError, "insert_on='read'"),
        (lambda: ab.EmbeddingVariable(2, admission=3), OptionError, "admission=3; expected ab.tables.admission.count"),
        (
            lambda: ab.EmbeddingVariable(2, initializer=ab.nn.init.orthogonal()),
            OptionError,
            "rows depend on keys alone",
        ),
        (
            lambda: ab.EmbeddingVariable(2, initializer=lambda *a: np.ones(3))[[1]],
            ShapeError,
            r"gave rows of shape \(3,",
        ),
        (lambda: ab.EmbeddingVariable(2)[[0.5]], DTypeError, "expected integers"),
        (lambda: ab.EmbeddingVariable(2)[1:3], DTypeError, "indexed by keys"),
        (lambda: list(ab.EmbeddingVariable(2)), TypeError, "not iterable"),
        (lambda: ab.EmbeddingVariable(2)[np.array([2**63], np.uint64)], BadIdError, "9223372036854775808"),
        (lambda: ab.EmbeddingVariable(2, key_dtype=np.uint64)[[-1]], BadIdError, "key -1 in a table of uint64 keys"),
        (lambda: ab.EmbeddingVariable(2).insert([1], np.ones((2, 2))), ShapeError, r"expected \(1, 2\)"),
        (lambda: ab.EmbeddingVariable(2).insert([[1]]), ShapeError, r"keys of shape \(1, 1\)"),
        (lambda: ab.EmbeddingVariable(2).insert(["a"]), DTypeError, "expected integers"),
        (lambda: ab.EmbeddingVariable(2).row_addresses([4]), BadIdError, "key 4 is not in the table"),
        (lambda: ab.EmbeddingVariable(2).shrink(), UnsupportedError, "steps_to_live="),
        (lambda: ab.admission.count(0), OptionError, r"n=0; expected at least 1"),
        (lambda: ab.admission.bloom(2, 0, 0.1), OptionError, "capacity=0"),
    ],
)
def test_what_a_variable_is_not_made_of_or_asked_for(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    ("gradient", "error", "match"),
    [
        (np.ones((0, 2), np.float32), ShapeError, "not the gradient of a table of keys"),
        (ab.SparseRows([0], np.ones((1, 2), np.float32), 1), ShapeError, "not the gradient of a table of keys"),
        (ab.SparseRows([0], np.ones((1, 3), np.float32), None), ShapeError, r"rows of shape \(3,\); expected \(2,\)"),
        (ab.SparseRows([0], np.ones((1, 2)), None), DTypeError, "dtype float64"),
    ],
)
def test_a_gradient_that_is_none_changes_nothing(gradient, error, match):
    users, opt = ab.EmbeddingVariable(2), ab.optim.Adam(0.1)
    state = opt.init(users)
    with pytest.raises(error, match=match):
        opt.update(users, gradient, state)
    assert (len(users), users.step, state["step"]) == (0, 0, 0)
