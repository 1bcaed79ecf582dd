"""`EmbeddingVariable` beside a dictionary: the same calls at random, with every combination of its options."""

import itertools

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import EMPTY_KEY

DIM, SEED, RATE = 2, 7, 0.25
FIRST = ab.nn.init.normal(std=0.1)
OPTIONS = {
    "dtype": [np.float16, np.float32, np.float64],
    "key_dtype": [np.int64, np.uint64],
    "capacity": [None, 5, 9],
    "steps_to_live": [None, 0, 2],
    "admission": [None, ab.admission.count(1), ab.admission.count(3), ab.admission.bloom(2, 100_000, 1e-6)],
    "eviction": ["lru", "lfu", "norm", None],
    "insert_on": ["update", "lookup"],
}
GRID = [dict(zip(OPTIONS, values, strict=True)) for values in itertools.product(*OPTIONS.values())]
SCORES = {
    "lru": lambda entry: entry["version"],
    "lfu": lambda entry: entry["count"],
    "norm": lambda entry: float((entry["row"].astype(np.float64) ** 2).sum()),
}


class Model:
    """What a variable is said to do, one key at a time; `entries` has what `export` and the slot hold of each key."""

    def __init__(self, options):
        self.__dict__.update(options)
        self.dtype, self.step, self.entries, self.seen = np.dtype(self.dtype), 0, {}, {}

    def first(self, key):
        return FIRST.rows(SEED, np.array([key], self.key_dtype), DIM, self.dtype)[0]

    def add(self, new, named):
        """Add keys, and evict others that are not named in the same call."""
        others = [key for key in self.entries if key not in named]
        excess = 0 if self.capacity is None else len(self.entries) + len(new) - self.capacity
        if excess > 0:
            if self.eviction is None or excess > len(others):
                raise MemoryError
            score = SCORES[self.eviction]
            for key in sorted(others, key=lambda key: (score(self.entries[key]), key))[:excess]:
                del self.entries[key]
        for key in new:
            self.entries[key] = {
                "row": self.first(key), "version": self.step, "count": 0, "sum": np.zeros(DIM, self.state_dtype),
            }  # fmt: skip

    @property
    def state_dtype(self):
        return np.float32 if self.dtype == np.float16 else self.dtype

    def absent(self, keys):
        return [key for key in dict.fromkeys(keys) if key not in self.entries]

    def insert(self, keys, rows=None):
        new = self.absent(keys)
        self.add(new, keys)
        for key in new if rows is not None else ():
            self.entries[key]["row"] = rows[keys.index(key)]

    def assign(self, keys, rows):
        self.add(self.absent(keys), keys)
        for key, row in zip(keys, rows, strict=True):
            self.entries[key] |= {"row": row, "version": self.step}

    def remove(self, keys):
        return sum(self.entries.pop(key, None) is not None for key in keys)

    def shrink(self):
        return self.remove([k for k, each in self.entries.items() if each["version"] < self.step - self.steps_to_live])

    def lookup(self, keys):
        if self.insert_on == "lookup":
            self.add(self.absent(keys), keys)
        return [self.entries[key]["row"] if key in self.entries else self.first(key) for key in keys]

    def update(self, keys, grads):
        """A step of Adagrad."""
        new = self.absent(keys)
        if self.admission is not None:
            admitted = [key for key in new if self.seen.get(key, 0) + 1 >= self.admission.n]
        else:
            admitted = new
        updated = [key for key in dict.fromkeys(keys) if key in self.entries or key in admitted]
        self.add(admitted, updated)
        for key in new:
            self.seen[key] = self.seen.get(key, 0) + 1
            if key in admitted and isinstance(self.admission, ab.admission.count):
                del self.seen[key]
        self.step += 1
        for key in updated:
            entry, real = self.entries[key], self.state_dtype
            grad = sum((g.astype(real) for k, g in zip(keys, grads, strict=True) if k == key), np.zeros(DIM, real))
            total = entry["sum"] + grad**2
            row = entry["row"].astype(real) - RATE * grad / (np.sqrt(total) + 1e-10)
            entry |= {"row": row.astype(self.dtype), "sum": total, "version": self.step, "count": entry["count"] + 1}

    def init(self):
        for entry in self.entries.values():
            entry["sum"] = np.zeros(DIM, self.state_dtype)


def outcome(call, *args):
    try:
        return "done", call(*args)
    except MemoryError:
        return "refused", None


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
def test_calls_at_random_agree_with_a_dictionary(seed):
    rng = np.random.default_rng(seed)
    for number in rng.choice(len(GRID), 12, replace=False):
        agree(rng, GRID[number])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_every_combination_of_options_agrees_with_a_dictionary(part):
    for number in range(part, len(GRID), 16):
        agree(np.random.default_rng(number), GRID[number])


def agree(rng, options):
    users, model = ab.EmbeddingVariable(DIM, seed=SEED, initializer=FIRST, **options), Model(options)
    optimizer = ab.optim.Adagrad(RATE)
    states = [optimizer.init(users)]
    last = np.iinfo(options["key_dtype"]).max
    pool = [0, 1, 2, 5, 8, 13, 2**62, 2**63 - 1, int(last)]
    pool += [-1, -(2**63), EMPTY_KEY] if options["key_dtype"] is np.int64 else [2**63, EMPTY_KEY % 2**64]
    calls = {
        "insert": (users.insert, model.insert),
        "insert rows": (users.insert, model.insert),
        "assign": (users.assign, model.assign),
        "remove": (users.remove, model.remove),
        "lookup": (users.lookup, model.lookup),
        "update": (lambda k, g: optimizer.update(users, ab.SparseRows(k, g, None), states[-1]) and None, model.update),
        "init": (lambda: states.append(optimizer.init(users)), model.init),
    }
    if options["steps_to_live"] is not None:
        calls["shrink"] = users.shrink, model.shrink
    for what in rng.choice(list(calls), 40):
        keys = [pool[i] for i in rng.integers(0, len(pool), rng.integers(0, 6))]
        rows = rng.normal(size=(len(keys), DIM)).astype(options["dtype"])
        with_rows, alone = what in ("insert rows", "assign", "update"), what in ("init", "shrink")
        args = [] if alone else [keys, rows] if with_rows else [keys]
        mine, expected = calls[what]
        found = outcome(mine, *(np.array(args[0], options["key_dtype"]), *args[1:]) if args else ())
        wanted = outcome(expected, *args)
        assert found[0] == wanted[0], (what, options)
        if what == "lookup" and found[0] == "done":
            np.testing.assert_array_equal(found[1], np.reshape(wanted[1], (-1, DIM)))
        elif what in ("remove", "shrink"):
            assert found == wanted, (what, options)
        holds(users, model, (what, options))


def holds(users, model, where):
    """Compare all that there is; rows, which may differ in rounding, are then taken from the variable."""
    known = sorted(model.entries)
    keys, rows, versions, counts = users.export()
    assert keys.tolist() == known, where
    assert (keys.dtype, rows.dtype, users.step) == (model.key_dtype, model.dtype, model.step), where
    assert versions.tolist() == [model.entries[key]["version"] for key in known], where
    assert counts.tolist() == [model.entries[key]["count"] for key in known], where
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if model.dtype == np.float16 else {"rtol": 1e-4, "atol": 1e-6}
    for block in users.blocks():
        for i, key in enumerate(block.keys.tolist()):
            entry = model.entries[key]
            np.testing.assert_allclose(block.rows[i], entry["row"], **tolerance, err_msg=str(where))
            np.testing.assert_allclose(block.slots["sum"][i], entry["sum"], **tolerance, err_msg=str(where))
            entry |= {"row": block.rows[i], "sum": block.slots["sum"][i]}


def test_a_look_up_that_inserts_does_not_make_other_keys_younger():
    users, optimizer = ab.EmbeddingVariable(DIM, insert_on="lookup", steps_to_live=1), ab.optim.SGD(0.1)
    state = optimizer.init(users)
    for keys in ([1, 2, 3], [1], [1]):
        optimizer.update(users, ab.SparseRows(keys, np.ones((len(keys), DIM), np.float32), None), state)
    for table in (users, users.partition(2)):
        table[[2, 9]]
        assert dict(zip(*(part.tolist() for part in table.export()[::2]), strict=True)) == {1: 3, 2: 1, 3: 1, 9: 3}
        assert table.shrink() == 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_smallest_rows_leave_whatever_their_dtype(dtype):
    users = ab.EmbeddingVariable(1, dtype=dtype, capacity=3, eviction="norm")
    users.assign([1, 2, 3], [[-3.0], [0.5], [2.0]])
    users.assign([4, 5], [[1.0], [1.0]])
    assert users.keys().tolist() == [1, 4, 5]


def test_of_equal_unsigned_keys_the_least_leaves_first():
    users = ab.EmbeddingVariable(1, key_dtype=np.uint64, capacity=2)
    users.insert(np.array([2**63 + 5, 7], np.uint64))
    users.insert([4])
    assert users.keys().tolist() == [4, 2**63 + 5]
