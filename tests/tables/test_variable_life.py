"""The life of a key: admission, steps to live, eviction, removal; strings as keys; partitions; reports."""

import hashlib
import pickle
from statistics import NormalDist

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError, OptionError, ShapeError, StructureError, UnsupportedError
from autobatch.tables.keyed import key_index
from tests.inspect import EMPTY_KEY

MAX, MIN = 2**63 - 1, -(2**63)


def gradient(keys, dim=2, value=1.0):
    return ab.SparseRows(keys, np.full((len(keys), dim), value, np.float32), None)


def made(**options):
    users = ab.EmbeddingVariable(2, initializer=ab.nn.init.zeros(), **options)
    return users, ab.optim.SGD(1.0)


def step(users, opt, state, keys, value=1.0):
    return opt.update(users, gradient(keys, value=value), state)[1]


def test_versions_are_the_steps_of_the_last_update_and_counts_their_number():
    users, opt = made()
    state = opt.init(users)
    for keys in ([5, 5, 3], [3], [9], [3, 9]):
        state = step(users, opt, state, keys)
    users.insert([1])
    keys, rows, versions, counts = users.export()
    assert keys.tolist() == [1, 3, 5, 9]
    assert rows[:, 0].tolist() == [0, -3, -2, -2]
    assert versions.tolist() == [4, 4, 1, 4]
    assert counts.tolist() == [0, 3, 1, 2]


@pytest.mark.parametrize("live", [0, 1, 3])
def test_a_key_of_n_steps_ago_lives_and_an_older_one_is_shrunk_away(live):
    users, opt = made(steps_to_live=live)
    state = opt.init(users)
    state = step(users, opt, state, [7])
    for _ in range(live):
        state = step(users, opt, state, [8])
    assert users.shrink() == 0
    assert 7 in users
    state = step(users, opt, state, [8])
    assert users.shrink() == 1
    assert users.keys().tolist() == [8]
    assert users[7].tolist() == [0, 0]
    assert users.shrink(step=users.step + live) == 0
    assert users.shrink(step=users.step + live + 1) == 1


def test_a_removed_key_reads_as_new_and_its_row_starts_anew():
    users = ab.EmbeddingVariable(2, seed=1)
    first = users[[4, 5]]
    opt = ab.optim.Adagrad(0.5, initial_accumulator=0.25)
    state = opt.init(users)
    state = step(users, opt, state, [4, 5])
    address = users.row_addresses([4])
    assert users.remove([4, 4, 77]) == 1
    np.testing.assert_array_equal(users[[4]], first[:1])
    assert not users.contains([4, 5, 77]).tolist()[0]
    state = step(users, opt, state, [6])
    assert users.row_addresses([6]) == address
    fresh = ab.EmbeddingVariable(2, seed=1)
    step(fresh, opt, opt.init(fresh), [6])
    np.testing.assert_array_equal(users[[6]], fresh[[6]])
    assert users.export()[3].tolist() == [1, 1]


@pytest.mark.parametrize("rule", [ab.admission.count(3), ab.admission.bloom(3, 1000, 1e-6)], ids=["count", "bloom"])
def test_a_key_comes_to_life_with_its_nth_update_which_is_applied(rule):
    users, opt = made(admission=rule)
    state = opt.init(users)
    for number in range(1, 6):
        state = step(users, opt, state, [5, EMPTY_KEY] if number > 2 else [5, 5])
        assert (5 in users) == (number >= 3)
        assert users[5].tolist() == [-max(0, number - 2)] * 2
        assert (EMPTY_KEY in users) == (number >= 5)
    assert users.step == 5
    assert len(users) == 2
    again = pickle.loads(pickle.dumps(users))
    for table in (users, again):
        other = opt.init(table)
        other = step(table, opt, other, [6])
        other = step(table, opt, other, [6, 8])
        other = step(table, opt, other, [6])
        assert table.contains([6, 8]).tolist() == [True, False]


def test_admission_counts_as_a_plain_counter_does():
    random, opt = np.random.default_rng(0), ab.optim.SGD(1.0)
    for rule in (ab.admission.count(4), ab.admission.bloom(4, 10_000, 1e-9)):
        users = ab.EmbeddingVariable(1, admission=rule)
        state, seen = opt.init(users), {}
        for _ in range(60):
            keys = (random.random(50) ** 3 * 400).astype(np.int64) * 7919
            for key in set(keys.tolist()):
                seen[key] = seen.get(key, 0) + 1
            state = opt.update(users, gradient(keys, dim=1), state)[1]
        assert users.keys().tolist() == sorted(key for key, times in seen.items() if times >= 4)
        assert dict(zip(*(x.tolist() for x in users.export()[::3]), strict=True)) == {
            key: times - 3 for key, times in seen.items() if times >= 4
        }
    assert ab.admission.bloom(2, 1_000_000, 0.01).nbytes < 1e7


@pytest.mark.parametrize(("eviction", "gone"), [("lru", {1, 2}), ("lfu", {2, 4}), ("norm", {3, 4})])
def test_capacity_is_kept_by_evicting(eviction, gone):
    users, opt = made(capacity=4, eviction=eviction)
    state = opt.init(users)
    for keys, value in [([1], 5.0), ([1], 5.0), ([2], 4.0), ([3], 0.5), ([3], 0.5), ([4], 2.0)]:
        state = step(users, opt, state, keys, value)
    state = step(users, opt, state, [10, 11], 9.0)
    assert set(users.keys().tolist()) == {1, 2, 3, 4, 10, 11} - gone


def test_keys_of_the_step_itself_are_not_evicted_and_a_step_of_too_many_is_refused():
    users, opt = made(capacity=3)
    state = opt.init(users)
    state = step(users, opt, state, [1, 2, 3])
    state = step(users, opt, state, [1, 4])
    assert set(users.keys().tolist()) == {1, 4, 3}
    before = users.export()
    with pytest.raises(MemoryError, match="2 keys more than the table's capacity"):
        step(users, opt, state, [1, 5, 6, 7, 8])
    for found, expected in zip(users.export(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    closed, _ = made(capacity=1, eviction=None)
    closed.insert([1])
    with pytest.raises(MemoryError, match="eviction=None"):
        closed.insert([2])
    assert closed.keys().tolist() == [1]


def test_eviction_takes_the_least_whatever_the_order_in_which_keys_came():
    random, found = np.random.default_rng(1), []
    keys = random.permutation(300)
    for order in (np.arange(300), random.permutation(300)):
        users = ab.EmbeddingVariable(1, capacity=200, seed=3)
        users.insert(keys[order][:200])
        users.insert(keys[:200])  # the same 200 in both, or a part of them
        users.assign(keys[:200], np.arange(200.0)[:, None])
        found.append(users.keys())
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("slowly", [False, True])
def test_changes_at_random_agree_with_a_dictionary(monkeypatch, slowly):
    """Inserting, removing and growing at random, the key whose code is empty among them; also while the index moves."""
    if slowly:
        monkeypatch.setattr(key_index, "_AT_ONCE", 1)
        monkeypatch.setattr(key_index, "_MOVED", 3)
    random, moving = np.random.default_rng(5), 0
    users, known = ab.EmbeddingVariable(1, dtype=np.float64), {}
    pool = np.concatenate([random.integers(MIN, MAX, 3000), np.arange(3000) << 40, [EMPTY_KEY, 0, -1, MIN, MAX]])
    for turn in range(150):
        some = random.choice(pool, random.integers(1, 120))
        if turn % 3 == 2:
            moving += users._store._index.is_moving
            users.remove(some)
            for key in some.tolist():
                known.pop(key, None)
        else:
            rows = random.standard_normal((len(some), 1))
            users.assign(some, rows)
            known.update(zip(some.tolist(), rows[:, 0].tolist(), strict=True))
        asked = random.choice(pool, 200)
        assert users.contains(asked).tolist() == [key in known for key in asked.tolist()]
    keys, rows, _, _ = users.export()
    assert dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True)) == known
    assert (moving > 5) == slowly


@pytest.mark.parametrize(
    ("parts", "admission"),
    [
        (1, None),
        (2, ab.admission.count(2)),
        (7, None),
        pytest.param(1, ab.admission.count(2), marks=pytest.mark.slow),
        pytest.param(2, None, marks=pytest.mark.slow),
        pytest.param(7, ab.admission.count(2), marks=pytest.mark.slow),
    ],
)
def test_results_do_not_depend_on_the_number_of_partitions(parts, admission):
    random = np.random.default_rng(2)
    names = random.integers(MIN, MAX, 200)
    one, opt = ab.EmbeddingVariable(3, admission=admission, seed=9), ab.optim.Adam(0.1)
    state = opt.init(one)

    def loss(table, ids):
        return (table[ids] ** 2).sum() + ab.embedding_bag(ids, table, [0, 5], mode="mean").sum()

    stream = [names[(200 * random.random(30) ** 2).astype(int)] for _ in range(40)]
    for ids in stream[:20]:
        opt.update(one, ab.grad(loss)(one, ids), state)
    several, own = one.partition(parts), dict(state)
    assert np.bincount(several.part_of(names), minlength=parts).min() > 0
    for ids in stream[20:]:
        opt.update(one, ab.grad(loss)(one, ids), state)
        opt.update(several, ab.grad(loss)(several, ids), own)
    for table in (several, several.join(), several.partition(3), pickle.loads(pickle.dumps(several))):
        for found, expected in zip(table.export(), one.export(), strict=True):
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(several.row_addresses(one.keys()), several.row_addresses(one.keys()))
    sentences = [names[:3], names[5:6], names[:0]]
    ab.testing.assert_equivalent(lambda words, table: np.tanh(table[words]).sum(axis=0), sentences, table=several)
    several.insert([1, 2])
    several[3] = 1.0
    assert several.contains([[1, 2], [3, 4]]).tolist() == [[True, True], [True, False]]
    assert several.remove([1, 2, 3, 4]) == 3


def test_the_part_of_a_key_is_the_same_everywhere():
    users = ab.EmbeddingVariable(1).partition(5)
    assert users.part_of([0, 1, -1, 2**40, MAX]).tolist() == [0, 4, 0, 1, 2]


def test_to_arrow_and_back_with_slots(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    users, opt = ab.EmbeddingVariable(2), ab.optim.Adagrad(0.1)
    state = step(users, opt, opt.init(users), [5, -3])
    parquet.write_table(users.to_arrow(), tmp_path / "users.parquet")
    read = parquet.read_table(tmp_path / "users.parquet")
    assert read.column_names == ["key", "row", "version", "count", "slot:sum"]
    again = ab.EmbeddingVariable(2)
    other = opt.init(again)
    again.from_arrow(read)
    for table, own in ((users, state), (again, other)):
        step(table, opt, own, [5, 6])
    for found, expected in zip(again.export()[:2], users.export()[:2], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert ab.EmbeddingVariable(2).to_arrow().num_rows == 0
    with pytest.raises(ShapeError, match="rows of 2 numbers in an Arrow table; expected 3"):
        ab.EmbeddingVariable(3).from_arrow(read)
    with pytest.raises(StructureError, match=r"expected the columns \['row'\]"):
        again.from_arrow(read.drop(["row"]))


# Strings.


def test_a_vocabulary_is_exact_and_grows():
    random = np.random.default_rng(0)
    words = [f"w{i}" * (i % 5) for i in random.integers(0, 3000, 9000)]
    vocabulary, known = ab.Vocabulary(), {}
    for first in range(0, 9000, 700):
        some = words[first : first + 700]
        assert vocabulary[some].tolist() == [known.setdefault(word, len(known)) for word in some]
    assert len(vocabulary) == len(known)
    words_in_order = list(known)
    assert list(vocabulary) == words_in_order
    assert vocabulary.strings([3, 0]) == [words_in_order[3], words_in_order[0]]
    assert "never" not in vocabulary
    assert words[4] in vocabulary
    assert words_in_order[0] in vocabulary
    assert vocabulary.find(["never", words[4]]).tolist() == [-1, known[words[4]]]
    assert len(vocabulary) == len(known)
    for again in (pickle.loads(pickle.dumps(vocabulary)), ab.Vocabulary.from_arrays(vocabulary.arrays())):
        assert again == vocabulary
        assert again["new"] == len(known)
        assert again != vocabulary


@pytest.mark.parametrize(("library", "column"), [("pandas", "Series"), ("polars", "Series"), ("pyarrow", "array")])
def test_a_vocabulary_takes_columns(library, column):
    of = getattr(pytest.importorskip(library), column)
    assert ab.Vocabulary()[of(["b", "a", "b", "ab"])].tolist() == [0, 1, 0, 2]


def test_a_vocabulary_of_any_strings_in_any_shape():
    vocabulary = ab.Vocabulary()
    assert vocabulary[[["é", b"\xff"], ["", "é".encode()]]].tolist() == [[0, 1], [2, 0]]
    assert vocabulary.strings() == ["é", b"\xff", ""]
    assert vocabulary[np.array(["a", "b"])].tolist() == [3, 4]
    assert vocabulary[[]].shape == (0,)
    closed = ab.Vocabulary(["a", "b"], grow=False)
    assert closed[["b", "c"]].tolist() == [1, -1]
    assert len(closed) == 2
    with pytest.raises(IndexError, match="id 2 in a vocabulary of 2"):
        closed.strings([2])
    for wrong, match in ((["a", 3], "3 is of type int"), (7, "^got int; expected a string")):
        with pytest.raises(DTypeError, match=match):
            vocabulary[wrong]
    assert len(vocabulary) == 5


def test_hashed_keys_are_those_of_xxhash_on_every_machine():
    known = {"": 0xEF46DB3751D8E999, "abc": 0x44BC2CF5AD770999}
    known["Nobody inspects the spammish repetition"] = 0xFBCEA83C8A378BF1
    found = ab.hash_keys(list(known))
    assert found.dtype == np.int64
    assert found.view(np.uint64).tolist() == list(known.values())
    assert ab.hash_keys(b"abc") == ab.hash_keys("abc") == found[1]
    assert ab.hash_keys("abc", seed=1) != found[1]
    assert ab.hash_keys([["a"], ["b"]]).shape == (2, 1)
    many = ab.hash_keys([str(i) for i in range(20_000)])
    assert len(set(many.tolist())) == 20_000
    bits = (many[:, None] >> np.arange(64)) & 1
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.02
    assert hashlib.sha256(many.astype("<i8").tobytes()).hexdigest()[:16] == "338a6eef48c09234"


@pytest.mark.parametrize("combine", ["add", "multiply", "concatenate"])
def test_one_row_of_two_small_tables_by_quotient_and_remainder(combine):
    random = np.random.default_rng(0)
    small, large = random.standard_normal((5, 3)), random.standard_normal((4, 3))
    keys = np.arange(20)

    ways = {"add": np.add, "multiply": np.multiply, "concatenate": lambda x, y: np.concatenate([x, y])}

    def naive(key):
        return ways[combine](small[key // 4], large[key % 4])

    found = ab.multi_hash(keys, small, large, 4, combine)
    np.testing.assert_array_equal(found, [naive(key) for key in keys])
    assert len(np.unique(found, axis=0)) == 20
    sentences = [keys[:3], keys[4:5], keys[:0]]
    tables = {"q": ab.EmbeddingTable(small), "r": ab.EmbeddingVariable(3, dtype=np.float64)}
    ab.testing.assert_equivalent(
        lambda words, t: np.tanh(ab.multi_hash(words, t["q"], t["r"], 4, combine)).sum(axis=0), sentences, t=tables
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint64])
def test_parts_of_keys_of_few_bits_have_any_number_of_buckets(dtype):
    quotients, remainders = np.arange(2.0)[:, None], np.arange(1000.0)[:, None]
    keys = np.array([0, 3, 100], dtype)
    np.testing.assert_array_equal(ab.multi_hash(keys, quotients, remainders, 1000)[:, 0], [0, 3, 100])
    batch = ab.MaskedBatch.from_examples([keys, keys[:1]])
    found = ab.batch(lambda keys: ab.multi_hash(keys, quotients, remainders, 1000))(batch)
    np.testing.assert_array_equal(ab.examples(found)[0][:, 0], [0, 3, 100])


def test_parts_of_no_keys_are_no_rows():
    assert ab.multi_hash([], np.ones((2, 3)), np.ones((4, 3)), 4).shape == (0, 3)


def test_what_is_hashed_and_combined_wrongly():
    table = np.ones((4, 2))
    for make, error, match in (
        (lambda: ab.multi_hash([1], table, table, 2, "mean"), OptionError, "combine='mean'"),
        (lambda: ab.multi_hash([1], table, table, 0), OptionError, "buckets=0"),
        (lambda: ab.multi_hash([1], table, np.ones((4, 3)), 2), ShapeError, "expected equal dims"),
        (lambda: ab.multi_hash([-1], table, table, 2), UnsupportedError, "key -1"),
        (lambda: ab.multi_hash([0.5], table, table, 2), DTypeError, "expected integers"),
        (lambda: ab.hash_keys([1]), DTypeError, "1 is of type int"),
    ):
        with pytest.raises(error, match=match):
            make()


def test_initialisers_are_functions_of_seed_and_row():
    for kind in (ab.nn.init.normal(0.5, mean=1.0), ab.nn.init.uniform(-2, 3), ab.nn.init.constant(4.0)):
        whole = kind((50, 7), seed=3, dtype=np.float64)
        np.testing.assert_array_equal(kind.rows(3, np.array([49, 4]), 7, np.float64), whole[[49, 4]])
        np.testing.assert_array_equal(ab.nn.init.from_settings(kind.settings)((50, 7), 3, np.float64), whole)
    drawn = ab.nn.init.normal(1.0)((2000, 50), seed=1, dtype=np.float64)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    assert 3.5 < np.abs(drawn).max() < 7
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.1
    assert ab.nn.init.uniform(0, 1)(10).shape == (10,)
    q = ab.nn.init.orthogonal()((6, 4), dtype=np.float64)
    np.testing.assert_allclose(q.T @ q, np.eye(4), atol=1e-12)
    assert abs(ab.nn.init.kaiming_normal()((100, 200)).std() - 0.02**0.5) < 0.01
    assert np.abs(ab.nn.init.xavier_uniform()((100, 200))).max() <= np.float32(0.02**0.5)
    with pytest.raises(ShapeError, match="expected a matrix"):
        ab.nn.init.xavier_uniform()(3)
    with pytest.raises(DTypeError, match="expected floats"):
        ab.nn.init.zeros()(3, dtype=int)


def test_normal_numbers_are_the_inverse_of_the_distribution_at_the_uniform_ones():
    keys = np.arange(40)
    shares = ab.nn.init.uniform(0, 1).rows(5, keys, 30, np.float64) + 2.0**-54
    expected = np.vectorize(NormalDist().inv_cdf)(shares)
    np.testing.assert_allclose(ab.nn.init.normal(1.0).rows(5, keys, 30, np.float64), expected, rtol=1e-12, atol=1e-15)
