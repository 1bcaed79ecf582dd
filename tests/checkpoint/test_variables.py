"""`EmbeddingVariable`s in checkpoints: rows, slots, versions and counts of one instant, by what changed."""

import ctypes
import itertools
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError, CheckpointWarning, ShapeError
from tests.checkpoint.training import everything_of

OPTIMIZERS = {
    "SGD": ab.optim.SGD(0.1),
    "momentum": ab.optim.SGD(0.1, momentum=0.9),
    "Adagrad": ab.optim.Adagrad(0.1, initial_accumulator=0.5),
    "RowWiseAdagrad": ab.optim.RowWiseAdagrad(0.1),
    "Adam": ab.optim.Adam(0.1),
    "FTRL": ab.optim.FTRL(0.1),
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def variable(**options):
    return ab.EmbeddingVariable(3, **{"seed": 2, "key_dtype": np.int64} | options)


def step(users, optimizer, state, rng, keys=200):
    ids = rng.integers(0, keys, 30).astype(users.key_dtype)
    grads = ab.SparseRows(ids, rng.normal(size=(30, 3)).astype(users.dtype), None)
    return optimizer.update(users, grads, state)


def slots_of(users):
    blocks = list(users.blocks())
    return [
        sorted(
            {
                key: rows.tobytes() for b in blocks for key, rows in zip(b.keys.tolist(), b.slots[name], strict=True)
            }.items()
        )
        for name in blocks[0].slots
    ]


def same(users, others):
    assert everything_of(users) == everything_of(others)


KINDS = [{}, {"dtype": np.float16}, {"key_dtype": np.uint64}, {"dtype": np.float64}]
BESIDE = {"momentum": KINDS[2], "Adagrad": KINDS[3], "RowWiseAdagrad": KINDS[1]}
SLOTS = [  # each optimiser, and each kind of keys and rows with one of them
    pytest.param(name, kind, marks=[pytest.mark.slow] * (bool(kind) and BESIDE.get(name) is not kind))
    for name in OPTIMIZERS
    for kind in KINDS
]


@pytest.mark.parametrize(("name", "options"), SLOTS)
def test_a_killed_run_goes_on_with_its_slots(folder, name, options):
    optimizer, rng, users = OPTIMIZERS[name], np.random.default_rng(0), variable(**options)
    state = optimizer.init(users)
    with ab.Checkpoints(folder, full_every=3) as saver:
        for number in range(5):
            users, state = step(users, optimizer, state, rng)
            saver.save(number, users, state, rng)
        restored = saver.restore()
    same(restored.params, users)
    (others, own, _), other_rng = restored, restored.extra
    for _ in range(3):
        users, state = step(users, optimizer, state, rng)
        others, own = step(others, optimizer, own, other_rng)
    same(others, users)
    assert own["step"] == state["step"]


def test_into_a_variable_that_has_slots_already(folder):
    """The usual resumption: parameters and state are made as at the start, then restored into."""
    rng, optimizer, users = np.random.default_rng(0), ab.optim.Adam(0.1), variable()
    state = optimizer.init(users)
    users, state = step(users, optimizer, state, rng)
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users, state)
        like = variable()
        others, own, _ = saver.restore(like, optimizer.init(like))
    assert len(like) == 0, "what is given is not written to"
    same(others, users)
    users, state = step(users, optimizer, state, np.random.default_rng(1))
    others, own = step(others, optimizer, own, np.random.default_rng(1))
    same(others, users)


@pytest.mark.parametrize("pair", [*itertools.permutations(["SGD", "Adagrad", "RowWiseAdagrad", "Adam"], 2)])
def test_into_another_optimizer_the_slots_begin_anew_and_that_is_said(folder, pair):
    first, second = (OPTIMIZERS[name] for name in pair)
    rng, users = np.random.default_rng(0), variable()
    state = first.init(users)
    users, state = step(users, first, state, rng)
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users, state)
        like = variable()
        with pytest.warns(CheckpointWarning, match="not restored from step 1"):
            others, own, _ = saver.restore(like, second.init(like))
    assert own["step"] == 0
    assert others.export()[1].tobytes() == users.export()[1].tobytes()
    fresh = variable()
    fresh.assign(users.keys(), users[users.keys()])
    fresh_state = second.init(fresh)
    fresh, _ = step(fresh, second, fresh_state, np.random.default_rng(1))
    others, _ = step(others, second, own, np.random.default_rng(1))
    assert others.export()[1].tobytes() == fresh.export()[1].tobytes()


def test_other_settings(folder):
    users = variable(capacity=50)
    users.insert(range(40))
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users)
        found = saver.restore(variable(capacity=1000, eviction="lfu")).params
    assert (found.capacity, found.eviction) == (1000, "lfu")
    assert found.keys().tolist() == list(range(40))


def test_increments_have_what_changed_and_nothing_more(folder):
    users, optimizer, rng = variable(), ab.optim.Adagrad(0.1), np.random.default_rng(0)
    state = optimizer.init(users)
    users.insert(range(2_000))
    known = {}
    with ab.Checkpoints(folder, keep=20, full_every=100) as saver:
        for number in range(12):
            users, state = step(users, optimizer, state, rng, 2_400)
            if number % 3 == 1:
                users.remove(rng.integers(0, 2_000, 10))
            if number % 4 == 2:
                users.insert([-number])
            saver.save(number, users, state)
            known[number] = everything_of(users)
        sizes = [path.stat().st_size for path in sorted(folder.glob("*.safetensors"))]
        assert sizes[0] > 2_000 * (8 + 12 + 12)
        assert max(sizes[1:]) < 6000
        for number, everything in known.items():
            assert everything_of(saver.restore(step=number).params) == everything
        saver.compact()
        same(saver.restore().params, users)


@pytest.mark.parametrize("full_every", [1, 2, 100])
def test_random_lives_of_keys(folder, full_every):
    """Updates, insertions, removals, assignments and evictions in any order between saves, failed ones among them."""
    rng = np.random.default_rng(full_every)
    users = variable(capacity=150, admission=ab.admission.count(2), steps_to_live=6)
    optimizer = ab.optim.Adagrad(0.1)
    state = optimizer.init(users)
    with ab.Checkpoints(folder, keep=2, full_every=full_every) as saver:
        for number in range(40):
            for _ in range(rng.integers(0, 4)):
                keys = rng.integers(-200, 200, rng.integers(0, 20))
                what = rng.integers(0, 5)
                if what == 0:
                    users.insert(keys)
                elif what == 1:
                    users.remove(keys)
                elif what == 2:
                    users.assign(keys, rng.normal(size=(len(keys), 3)))
                else:
                    users, state = step(users, optimizer, state, rng)
            if rng.random() < 0.2:
                with pytest.raises(TypeError, match=r"builtins\.object"):
                    saver.save(number, users, state, object())
            if rng.random() < 0.1:
                saver.compact() if saver.steps() else None
            saver.save(number, users, state)
            same(saver.restore().params, users)
            if rng.random() < 0.1:
                users, state, _ = saver.restore()


@pytest.mark.parametrize("second", ["Adagrad", "RowWiseAdagrad", "Adam"])
@pytest.mark.parametrize("parts", [None, 2])
@pytest.mark.parametrize("background", [False, True])
def test_moments_that_begin_anew_are_in_the_next_increment(folder, background, parts, second):
    """`init` replaces the moments of all keys, also of those that no update names until the next save."""
    rng, users = np.random.default_rng(0), variable() if parts is None else variable().partition(parts)
    state = OPTIMIZERS["Adagrad"].init(users)
    users, state = step(users, OPTIMIZERS["Adagrad"], state, rng)
    with ab.Checkpoints(folder, background=background) as saver:
        saver.save(1, users, state)
        state = OPTIMIZERS[second].init(users)
        saver.save(2, users, state)
        before = slots_of(users)
        users, state = step(users, OPTIMIZERS[second], state, rng, keys=20)
        saver.save(3, users, state)
        for _ in range(2):
            assert slots_of(saver.restore(step=3).params) == slots_of(users)
            assert saver.steps()[-1] == 3
            saver.compact()
        assert slots_of(saver.restore(step=2).params) == before


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("key_dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_into_a_variable_of_other_dtypes_rows_and_keys_are_converted(folder, dtype, key_dtype, compacted, mapped):
    users = variable()
    users.assign(range(5), np.arange(15.0).reshape(5, 3))
    with ab.Checkpoints(folder) as saver:
        saver.save(1, {"users": users})
        users.assign([3, 70], np.ones((2, 3)))
        saver.save(2, {"users": users})
        if compacted:
            saver.compact()
        like = variable(dtype=dtype, key_dtype=key_dtype)
        found = saver.restore({"users": like}, mapped=mapped).params["users"]
        assert (found.dtype, found.key_dtype) == (dtype, key_dtype)
        keys, rows, versions, counts = found.export()
        for part, expected in zip((keys, rows, versions, counts), users.export(), strict=True):
            np.testing.assert_array_equal(part, expected)
        assert (keys.dtype, rows.dtype) == (key_dtype, dtype)
        with pytest.raises(ShapeError, match=r"params\['users'\] was saved with rows of 3 numbers; given .* dim=4"):
            saver.restore({"users": ab.EmbeddingVariable(4)}, mapped=mapped)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("key", "own", "other"), [(-1, np.int64, np.uint64), (2**63 + 1, np.uint64, np.int64)], ids=["negative", "large"]
)
def test_a_key_that_the_other_key_dtype_does_not_hold_is_refused(folder, key, own, other, mapped, compacted):
    users = variable(key_dtype=own)
    users.insert([key, 2])
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users)
        users.insert([3])
        saver.save(2, users)
        if compacted:
            saver.compact()
        with pytest.raises(
            BadIdError, match=rf"key {key} in a table of {np.dtype(other)} keys; make it one of key_dty"
        ):
            saver.restore(variable(key_dtype=other), mapped=mapped)


def test_keys_that_lived_too_long_go_with_a_checkpoint(folder):
    users, optimizer = variable(steps_to_live=2), ab.optim.SGD(0.1)
    state = optimizer.init(users)
    with ab.Checkpoints(folder) as saver:
        for number in range(6):
            grads = ab.SparseRows(np.array([number]), np.ones((1, 3), np.float32), None)
            users, state = optimizer.update(users, grads, state)
            saver.save(number, users, state)
        assert users.keys().tolist() == [3, 4, 5]
        assert saver.restore().params.keys().tolist() == [3, 4, 5]


def test_a_bad_leaf_is_found_before_keys_are_removed(folder):
    users = variable(steps_to_live=1)
    users.insert([1])
    users.step = 10
    with ab.Checkpoints(folder) as saver, pytest.raises(TypeError, match=r"builtins\.object"):
        saver.save(1, {"users": users, "bad": object()})
    assert 1 in users


def test_an_initializer_of_ones_own_is_refused(folder):
    users = variable(initializer=lambda seed, keys, dim, dtype: np.zeros((len(keys), dim), dtype))
    with ab.Checkpoints(folder) as saver, pytest.raises(TypeError, match="initializer"):
        saver.save(1, users)


def test_a_variable_in_two_places_stays_one(folder):
    users = variable()
    users.insert([1, 2])
    with ab.Checkpoints(folder) as saver:
        saver.save(1, {"a": users, "b": [users]})
        found = saver.restore().params
    assert found["a"] is found["b"][0]


def test_one_file(tmp_path):
    users, optimizer, rng = variable(), ab.optim.Adam(0.1), np.random.default_rng(0)
    state = optimizer.init(users)
    users, state = step(users, optimizer, state, rng)
    ab.save(tmp_path / "model", {"params": users, "state": state})
    found = ab.load(tmp_path / "model")
    same(found["params"], users)
    users, state = step(users, optimizer, state, np.random.default_rng(1))
    others, _ = step(found["params"], optimizer, found["state"], np.random.default_rng(1))
    same(others, users)


def test_the_snapshot_of_a_background_save(folder):
    """What changes after `save` returned is not in it, keys included."""
    users, optimizer, rng = variable(), ab.optim.Adagrad(0.1), np.random.default_rng(0)
    state = optimizer.init(users)
    with warnings.catch_warnings(), ab.Checkpoints(folder, background=True, full_every=4) as saver:
        warnings.simplefilter("error")
        for number in range(20):
            users, state = step(users, optimizer, state, rng)
            saver.save(number, users, state)
            expected = everything_of(users)
            users, state = step(users, optimizer, state, rng)
            users.remove(users.keys()[:5])
            assert everything_of(saver.restore().params) == expected


@pytest.mark.parametrize("key_dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_mapped_variable_reads_as_the_one_that_was_saved(folder, compacted, key_dtype):
    rng, optimizer = np.random.default_rng(0), ab.optim.Adagrad(0.1)
    users = variable(key_dtype=key_dtype)
    ends = np.array([0, 1, 2**63, 2**64 - 1, 2**62], np.uint64).astype(key_dtype)
    state = optimizer.init(users)
    with ab.Checkpoints(folder) as saver:
        for number in range(3):
            users, state = step(users, optimizer, state, rng)
            users.insert(ends[number:])
            saver.save(number, {"users": users})
        if compacted:
            saver.compact()
        mapped = saver.restore(mapped=True).params["users"]
    keys = np.concatenate([users.keys(), rng.integers(0, 2**60, 50).astype(key_dtype), ends])
    assert mapped[keys].tobytes() == users[keys].tobytes(), "absent keys read as the initialiser"
    assert mapped.contains(keys).tolist() == users.contains(keys).tolist()
    for found, expected in zip(mapped.export(), users.export(), strict=True):
        assert found.tobytes() == expected.tobytes()
    assert len(mapped) == len(users)
    bags = ab.embedding_bag(keys[:10], mapped, np.array([0, 4]), mode="sum")
    assert bags.tobytes() == ab.embedding_bag(keys[:10], users, np.array([0, 4]), mode="sum").tobytes()
    with pytest.raises(TypeError, match="look-ups only"):
        mapped.assign([1], np.ones((1, 3)))
    for change in (lambda: mapped.insert([123]), lambda: mapped.remove(mapped.keys()[:1])):
        with pytest.raises(TypeError, match="is mapped, for look-ups only"):
            change()
    with pytest.raises(TypeError, match="look-ups only"):
        optimizer.update(mapped, ab.SparseRows(keys[:1], np.ones((1, 3), np.float32), None), optimizer.init(users))


def test_a_mapped_variable_opens_without_reading_its_rows(folder):
    users = variable()
    users.insert(np.arange(50_000) * 7 - 1000)
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users)
        saver.compact()
        reads = []
        files = saver._folder.files
        files.read_into = lambda handle, out, offset: (
            reads.append(len(out)) or type(files).read_into(files, handle, out, offset)
        )
        mapped = saver.restore(mapped=True).params
        assert sum(reads) < 10_000
        assert (mapped[[-1000, 6, 7]] == users[[-1000, 6, 7]]).all()


def test_rows_of_a_mapped_variable_have_addresses(folder):
    users = variable()
    users.insert([5, 3, -2])
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users)
        mapped = saver.restore(mapped=True).params
    addresses = mapped.row_addresses([3, -2, 5, -2]).tolist()
    assert b"".join(ctypes.string_at(each, mapped.row_bytes) for each in addresses) == users[[3, -2, 5, -2]].tobytes()
    with pytest.raises(BadIdError, match="key 4 is not in the table and has no address"):
        mapped.row_addresses([-2, 4])
    assert mapped[[-2, 3, 4, 5]].shape == (4, 3)


def test_what_is_mapped_can_be_saved(folder, tmp_path):
    users = variable()
    users.insert([5, 3, -2])
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users)
        saver.compact()
        mapped = saver.restore(mapped=True).params
    ab.save(tmp_path / "copy", mapped)
    assert ab.load(tmp_path / "copy").export()[1].tobytes() == users.export()[1].tobytes()


COUNTS = [None, 1, 3, 5]


@pytest.mark.parametrize("pair", [*itertools.product(COUNTS, COUNTS)])
def test_another_number_of_partitions_goes_on_alike(folder, pair):
    before, after = pair
    rng, optimizer = np.random.default_rng(0), ab.optim.Adam(0.1)

    def made(count):
        users = variable(admission=ab.admission.count(2), capacity=1000)
        return users if count is None else users.partition(count)

    users = made(before)
    state = optimizer.init(users)
    with ab.Checkpoints(folder, full_every=2) as saver:
        for number in range(3):
            users, state = step(users, optimizer, state, rng)
            saver.save(number, users, state)
        like = made(after)
        others, own, _ = saver.restore(like, optimizer.init(like))
        assert type(others) is type(like)
        assert len(getattr(others, "parts", [1])) == (after or 1)
        assert {part.capacity for part in getattr(others, "parts", [others])} == {
            part.capacity for part in getattr(like, "parts", [like])
        }
        as_saved = saver.restore().params
    assert type(as_saved) is type(users)
    for x, y in zip(as_saved.export(), users.export(), strict=True):
        assert x.tobytes() == y.tobytes()
    for seed in range(3):
        users, state = step(users, optimizer, state, np.random.default_rng(seed))
        others, own = step(others, optimizer, own, np.random.default_rng(seed))
    for x, y in zip(others.export(), users.export(), strict=True):
        assert x.tobytes() == y.tobytes()


def test_a_vocabulary_is_saved_with_the_rest(folder):
    words = ab.Vocabulary(["red", "", "grün", b"\xff"])
    with ab.Checkpoints(folder) as saver:
        saver.save(1, {"words": words})
        words[["new"]]
        saver.save(2, {"words": words})
        for found in (saver.restore().params["words"], saver.restore({"words": ab.Vocabulary()}).params["words"]):
            assert found == words
            assert found["other"] == words["other"] == 5
            words = ab.Vocabulary(words.strings()[:5])
        frozen = ab.Vocabulary(["a"], grow=False)
        saver.save(3, frozen)
        assert saver.restore().params["b"] == -1
