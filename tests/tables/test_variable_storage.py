"""Where a variable keeps its rows: addresses, growth, files, blocks for saving; and what is left by an interrupt."""

import copy
import ctypes
import json
import threading

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import OptionError, UnsupportedError
from autobatch.kernels import hash_table as kernels
from autobatch.tables.keyed import variable
from autobatch.tables.keyed.row_store import StoredBlock
from tests import inspect
from tests.faults import Left, left_at, without_memory_at
from tests.inspect import EMPTY_KEY

MAX, MIN = 2**63 - 1, -(2**63)


def gradient(keys, dim=2, value=1.0):
    return ab.SparseRows(np.asarray(keys, np.int64), np.full((len(keys), dim), value, np.float32), None)


def same(one, other):
    for found, expected in zip(one.export(), other.export(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_addresses_are_of_the_rows_themselves_and_stay():
    users = ab.EmbeddingVariable(4)
    users.insert([7, 8])
    addresses = users.row_addresses([8, 7, 8])
    assert users.row_bytes == 16
    users.insert(np.arange(100, 100_000))
    users.remove(np.arange(100, 50_000))
    np.testing.assert_array_equal(users.row_addresses([8, 7, 8]), addresses)
    users.assign([8], [[1, 2, 3, 4]])
    there = np.frombuffer((ctypes.c_char * users.row_bytes).from_address(int(addresses[0])), np.float32)
    assert there.tolist() == [1, 2, 3, 4]


def test_growth_moves_the_index_a_part_at_a_time(monkeypatch):
    """No step moves more than some slots for each key that it brings, whatever the size, and none is there twice."""
    moved, move = [], kernels.move_slots

    def counted(index, form, count):
        moved[-1] += count
        return move(index, form, count)

    monkeypatch.setattr(kernels, "move_slots", counted)
    users, random = ab.EmbeddingVariable(1), np.random.default_rng(0)
    index, grown = users._store._index, 0
    while len(users) < 200_000 or not index.is_moving:
        moved.append(0)
        keys, slots = random.integers(MIN, MAX, 1000), index.slots
        users.insert(keys)
        grown += index.slots > slots > 100_000
        assert index.nbytes == 16 * index.slots
        assert len(users) < 10_000 or len(users) > 0.55 * index.slots
    assert grown >= 3
    assert sum(moved) > 300_000
    assert max(moved) <= 32 * 1000
    moved.append(0)
    assert users.remove(keys[:500]) == 500  # nor does one that takes keys out
    assert moved[-1] == 0
    assert users.contains(keys).tolist() == [False] * 500 + [True] * 500
    assert users.contains(users.keys()).all()


def test_a_row_is_not_taken_for_a_code():
    """In a line of the index codes stand beside rows, and are compared at once."""
    keys = np.arange(4000) ^ np.int64(EMPTY_KEY)  # whose codes are the rows of others
    users = ab.EmbeddingVariable(1)
    users.insert(keys[::2])
    np.testing.assert_array_equal(users.contains(keys), np.arange(4000) % 2 == 0)
    rows = (users.row_addresses(keys[::2]) - users.row_addresses(keys[:1])) // users.row_bytes
    np.testing.assert_array_equal(rows, np.arange(2000))
    users.remove(keys[::4])
    np.testing.assert_array_equal(users.contains(keys), np.arange(4000) % 4 == 2)


def test_memory_is_taken_when_keys_come():
    users, opt = ab.EmbeddingVariable(16), ab.optim.Adagrad(0.1)
    opt.init(users)
    assert users.nbytes < 1 << 14
    users.insert(np.random.default_rng(0).integers(MIN, MAX, 100_000))
    assert users.nbytes <= 1.35 * len(users) * (8 + 64 + 64)
    full = users.nbytes
    users.remove(users.keys()[:90_000])
    users.insert(np.arange(80_000))
    assert users.nbytes == full  # the rows of those that went


def test_a_variable_in_a_folder_is_that_in_memory(tmp_path):
    one, other = ab.EmbeddingVariable(3), ab.EmbeddingVariable(3, storage=tmp_path / "users")
    opt, random = ab.optim.Adam(0.1), np.random.default_rng(0)
    states = [opt.init(one), opt.init(other)]
    for _ in range(5):
        keys = random.integers(MIN, MAX, 3000)
        for table, state in zip((one, other), states, strict=True):
            opt.update(table, gradient(keys, 3), state)
    same(one, other)
    names = sorted(path.name for path in (tmp_path / "users").iterdir())
    assert names == ["keys.bin", "rows.bin", "slot-mean.bin", "slot-square.bin"]
    assert (tmp_path / "users" / "rows.bin").stat().st_size < 1 << 24
    with pytest.raises(OptionError, match="holds the rows of another variable"):
        ab.EmbeddingVariable(3, storage=tmp_path / "users")


# Saving.


def restored(table, blocks, *, removed=(), **more):
    """Removes keys, then puts the blocks in, one by one."""
    table.restore_block(removed=removed, **more)
    for block in blocks:
        table.restore_block(block)


def test_its_settings_are_json_and_make_it_again():
    users = ab.EmbeddingVariable(
        3, key_dtype=np.uint64, dtype=np.float64, initializer=ab.nn.init.uniform(-1, 1), seed=4, capacity=100,
        steps_to_live=5, admission=ab.admission.count(2), eviction="lfu", name="users",
    )  # fmt: skip
    ab.optim.RowWiseAdagrad(0.1, initial_accumulator=0.5).init(users)
    settings = json.loads(json.dumps(users.settings))
    again = ab.EmbeddingVariable.from_settings(settings)
    assert again.settings == users.settings
    np.testing.assert_array_equal(again[[1, 2**64 - 1]], users[[1, 2**64 - 1]])
    own = ab.EmbeddingVariable(2, initializer=lambda seed, keys, dim, dtype: np.ones((len(keys), dim)))
    with pytest.raises(UnsupportedError, match="cannot be saved"):
        json.dumps(own.settings)


@pytest.mark.parametrize("rows", [1, 7, 1 << 16])
def test_blocks_of_bounded_size_hold_all_of_it(rows):
    users, opt = ab.EmbeddingVariable(2, admission=ab.admission.count(2)), ab.optim.Adam(0.1)
    state, random = opt.init(users), np.random.default_rng(0)
    for _ in range(6):
        opt.update(users, gradient(random.integers(0, 30, 20)), state)
    users.remove([3, 4])
    blocks = list(users.blocks(rows))
    assert max(len(block.keys) for block in blocks) <= rows
    again = ab.EmbeddingVariable.from_settings(users.settings)
    restored(again, blocks, arrays=users.arrays())
    same(again, users)
    other = copy.deepcopy(state)
    for table, own in ((users, state), (again, other)):
        opt.update(table, gradient([1, 3, 50, 51]), own)
        opt.update(table, gradient([50, 2]), own)
    same(again, users)


def test_what_changed_since_a_mark_is_all_that_an_increment_needs():
    users, opt = ab.EmbeddingVariable(2, steps_to_live=6), ab.optim.Adagrad(0.1)
    state, random = opt.init(users), np.random.default_rng(0)
    copies = []
    for turn in range(30):
        if turn % 5 == 0:
            saved = ab.EmbeddingVariable.from_settings(users.settings)
            restored(saved, users.blocks(), step=users.step)
            copies.append((users.mark(), saved))
        keys = random.integers(0, 4000, 60)
        opt.update(users, gradient(keys), state)
        users.remove(random.integers(0, 4000, 30))
        users.assign(keys[:2], np.ones((2, 2)))
        if turn % 7 == 3:
            users.shrink()
    for mark, saved in copies[::-1]:
        before = set(saved.keys().tolist())
        changes = users.changed_since(mark, rows=16)
        assert changes is not None
        blocks = list(changes.blocks)
        assert sum(len(block.keys) for block in blocks) == changes.total <= 60 * 30
        assert not set(changes.removed.tolist()) & set(users.keys().tolist())
        restored(saved, blocks, removed=changes.removed, step=users.step)
        same(saved, users)
        assert before - set(users.keys().tolist()) <= set(changes.removed.tolist())
        copies = [(m, s) for m, s in copies if m <= mark]
        break
    for mark, _ in copies[:1]:
        assert users.changed_since(mark) is None or mark == copies[-1][0]
    assert users.changed_since(10**6) is None
    mark = users.mark()
    assert users.changed_since(mark).total == 0
    users[[1, 2, 3]]
    assert users.changed_since(mark).total == 0


def test_notes_of_changes_are_given_up_before_they_outgrow_the_table():
    users = ab.EmbeddingVariable(1)
    mark = users.mark()
    users.insert(np.arange(1000))
    assert users.changed_since(mark).total == 1000
    users.insert(np.arange(200_000))
    assert users.changed_since(mark) is None
    mark = users.mark()
    users.assign([5], [[1.0]])
    assert users.changed_since(mark).total == 1


def test_slots_of_another_optimiser_start_anew():
    users, opt = ab.EmbeddingVariable(2), ab.optim.Adagrad(0.1)
    opt.update(users, gradient([1, 2]), opt.init(users))
    again = ab.EmbeddingVariable(2)
    other = ab.optim.RowWiseAdagrad(0.1, initial_accumulator=0.5)
    state = other.init(again)
    restored(again, users.blocks())
    np.testing.assert_array_equal(again.slot_array(state["sum"], by_row=True)[:2], [[0.5], [0.5]])
    np.testing.assert_array_equal(again[[1, 2]], users[[1, 2]])


# Faults.


def prepared(capacity=6):
    users = ab.EmbeddingVariable(2, capacity=capacity, admission=ab.admission.count(2), steps_to_live=9)
    opt = ab.optim.Adam(0.1)
    state = opt.init(users)
    for keys in ([1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 7, 8]):
        opt.update(users, gradient(keys), state)
    users.mark()
    return users, opt, state


def seen(users, state):
    slots = [slot[0] for block in users.blocks() for slot in block.slots.values()]
    arrays = [*users.export(), *users.arrays().values(), *slots]
    return state["step"], users.step, [x.tobytes() for x in arrays]


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ([1, 5, 6, 7, 9], 7),  # one that is there, three that come to life and evict one, one that is only counted
        ([9], 1),  # which has no row yet
        ([], 1),
    ],
)
def test_an_exception_at_any_line_of_a_step_leaves_all_before_or_after_it(keys, lines):
    users, opt, state = prepared()
    old = seen(users, state)
    other, other_state = copy.deepcopy((users, state))
    opt.update(other, gradient(keys), other_state, threads=1)
    new = seen(other, other_state)
    line, found, reached = 1, set(), True
    while reached:
        mine, mine_state = copy.deepcopy((users, state))
        reached = left_at(line, lambda m=mine, s=mine_state: opt.update(m, gradient(keys), s, threads=1))
        after = seen(mine, mine_state)
        assert after in (old, new), f"between, at line event {line}"
        found.add(after[0])
        opt.update(mine, gradient(keys), mine_state)  # it goes on
        assert mine.contains(mine.keys()).all()
        line += lines
    assert found == {3, 4}


def test_memory_that_is_missing_anywhere_leaves_all_before_or_after_it():
    users, opt, state = prepared()
    keys = [1, 5, 6, 7, 9]
    other, other_state = copy.deepcopy((users, state))
    opt.update(other, gradient(keys), other_state, threads=1)
    old, new = seen(users, state), seen(other, other_state)
    number, failed = 1, True
    while failed:
        mine, mine_state = copy.deepcopy((users, state))
        failed = without_memory_at(number, lambda m=mine, s=mine_state: opt.update(m, gradient(keys), s, threads=1))
        number += 1
        assert seen(mine, mine_state) in ((old, new) if failed else (new,))
    assert number > 5


def put_block(table):
    """Over keys that are there and new ones, with one slot of two."""
    keys, ones = np.array([3, 40, 1, 41]), np.ones((4, 2), np.float32)
    block = StoredBlock(keys, ones, {"moment": 2 * ones}, np.arange(4), np.arange(4))
    table.restore_block(block, removed=[2, 4, 40, 99], step=11)


def from_arrow(table):
    """Of two chunks."""
    pa = pytest.importorskip("pyarrow")
    own = table.to_arrow()
    table.from_arrow(pa.concat_tables([own.slice(0, 2), own.slice(2)]).set_column(2, "version", [np.full(len(own), 7)]))


def looked_up(table):
    table.insert_on = "lookup"
    return table[[1, 50, 51]]


CHANGES = {
    "insert": lambda t: t.insert([1, 20, 21, 22], np.ones((4, 2))),
    "remove": lambda t: t.remove([2, 4, 99]),
    "shrink": lambda t: t.shrink(40),
    "assign": lambda t: t.assign([30, 1, 31, 2], np.ones((4, 2))),
    "item": lambda t: t.__setitem__([30, 1, 31, 2], 7.0),
    "write": lambda t: t.write([3, 1], np.ones((2, 2))),
    "block": put_block,
}
OF_ONE = {"arrow": from_arrow, "look-up": looked_up, "slot": lambda t: t.add_slot("another", 1.0, np.float32, True)}


def every(table):
    """All that is seen of a variable or of its parts."""
    return [seen(part, {"step": 0}) for part in getattr(table, "parts", [table])]


@pytest.mark.parametrize("lines", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("change", "parts"),
    [*((name, n) for name in CHANGES for n in (1, 3)), *((name, 1) for name in OF_ONE)],
)
def test_an_exception_at_any_line_of_other_changes(change, parts, lines):
    """At each fourth line, or at each, of which there are as many as there are parts."""
    call = (CHANGES | OF_ONE)[change]
    users, _, _ = prepared(6 if parts == 1 else 60)
    users = users if parts == 1 else users.partition(parts)
    done = copy.deepcopy(users)
    call(copy.deepcopy(users))  # what is made once is there
    call(done)
    old, new = every(users), every(done)
    assert old != new
    line, found, reached = 1, set(), True
    while reached:
        mine = copy.deepcopy(users)
        reached = left_at(line, lambda m=mine: call(m))
        assert every(mine) in (old, new), f"between, at line event {line}"
        found.add(every(mine) == new)
        if line // (lines * parts) % 5 == 0:
            call(mine)  # it goes on
            if change not in ("look-up", "slot"):
                assert every(mine) == new
        line += lines * parts
    assert found == {False, True}


def test_a_vocabulary_that_is_left_at_any_line_goes_on():
    first, more = [f"w{i}" for i in range(60)], [f"w{i}" for i in range(50, 300)]
    want = [int(x) for x in ab.Vocabulary(first)[more]]
    line, reached = 1, True
    while reached:
        words = ab.Vocabulary(first)
        reached = left_at(line, lambda w=words: w[more])
        assert len(words) in (60, 300)
        assert words[more].tolist() == want
        assert words.strings() == [f"w{i}" for i in range(300)]
        line += 7  # by time


def test_look_ups_beside_updates_see_a_row_before_or_after_a_step():
    dim, count = 60, 2000
    users, opt = ab.EmbeddingVariable(dim, initializer=ab.nn.init.zeros()), ab.optim.SGD(1.0)
    keys, state, wrong, stop = np.arange(count), opt.init(users), [], threading.Event()

    def read():
        while not stop.is_set():
            rows = users[keys]
            bags = ab.embedding_bag(keys, users, np.arange(0, count, 2), mode="sum")
            if len(np.unique(rows)) != 1 or len(np.unique(bags)) != 1:
                wrong.append(np.unique(rows))
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        opt.update(users, gradient(keys, dim, -1.0), state)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert (users[keys] == 60).all()


def test_threads_that_update_and_insert_at_once_lose_nothing():
    users, opt = ab.EmbeddingVariable(1, initializer=ab.nn.init.zeros()), ab.optim.SGD(1.0)

    def work(number):
        for turn in range(40):
            users.insert(np.arange(turn * 50, turn * 50 + 50) * 4 + number)
            opt.update(users, gradient([-1, -2 - number], 1, -1.0), {"step": 0})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(users) == 4 * 40 * 50 + 5
    assert users[[-1, -2, -5]].tolist() == [[160], [40], [40]]
    assert users.step == 160


def test_an_interrupt_while_a_look_up_reads_changes_nothing():
    users, _, state = prepared()
    before, line, reached = seen(users, state), 1, True
    while reached:
        try:
            reached = left_at(line, lambda: users[[1, 50, 2]])
        except Left:
            reached = True
        assert seen(users, state) == before
        line += 3


def test_a_block_is_put_over_keys_that_are_there_and_new_ones():
    """Free rows, keys that live, new keys and slots that the block has or not, in one block."""
    users = variable_with_slots()
    store = users._store
    users.insert([1, 2, 3, 4, 5, 6])
    users.remove([2, 4])
    block = StoredBlock(
        np.array([9, 1, 2, 7, 5]),
        np.arange(20.0, dtype=np.float32).reshape(5, 4),
        {"sum": np.arange(20.0, dtype=np.float32).reshape(5, 4) + 100},
        np.array([3, 1, 4, 1, 5]),
        np.array([2, 7, 1, 8, 2]),
    )
    before = users[[3, 6]]
    users.restore_block(block)
    np.testing.assert_array_equal(users[block.keys], block.rows)
    np.testing.assert_array_equal(users[[3, 6]], before)
    rows, _ = store.find(block.keys)
    np.testing.assert_array_equal(store.slots["sum"].memory.array[rows], block.slots["sum"])
    np.testing.assert_array_equal(store.slots["other"].memory.array[rows], np.full((5, 1), 0.5))
    np.testing.assert_array_equal(store.versions[rows], block.versions)
    np.testing.assert_array_equal(store.counts[rows], block.counts)
    assert sorted(users.keys().tolist()) == [1, 2, 3, 5, 6, 7, 9]


def variable_with_slots():
    users = ab.EmbeddingVariable(4)
    users._store.add_slot("sum", 0.25, np.float32, 4, 1)
    users._store.add_slot("other", 0.5, np.float32, 1, 1)
    return users


def test_room_is_made_at_once_for_keys_that_are_expected(monkeypatch):
    source = ab.EmbeddingVariable(4)
    source.insert(np.arange(20_000))
    users = ab.EmbeddingVariable(4)
    users.insert([5])
    users._store.expect(20_000)
    slots = users._store._index.slots
    monkeypatch.setattr(kernels, "move_slots", None)
    restored(users, source.blocks(1000))
    assert users._store._index.slots == slots < 45_000
    np.testing.assert_array_equal(users[np.arange(20_000)], source[np.arange(20_000)])


@pytest.mark.parametrize("count", [3, 3000])
def test_of_rows_that_are_written_twice_the_last_stays(count):
    users = ab.EmbeddingVariable(2)
    users.insert(np.arange(count))
    mark = users.mark()
    keys = np.concatenate([np.arange(count), np.arange(count)[::-1], [0]])
    rows = np.arange(2.0 * len(keys), dtype=np.float32).reshape(-1, 2)
    with inspect.watched(variable, "first_seen") as numbered:
        users.assign(keys, rows)
    assert not numbered  # rows that are all there are written as they come, repeats and all
    np.testing.assert_array_equal(users[np.arange(1, count)], rows[count : 2 * count - 1][::-1])
    np.testing.assert_array_equal(users[0], rows[-1])
    assert users.changed_since(mark).total == count
