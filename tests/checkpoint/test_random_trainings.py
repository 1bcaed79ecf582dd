"""`ab.Checkpoints` beside a dictionary of copies: trainings, saves, faults and restores in any order."""

import ml_dtypes
import numpy as np
import pytest

import autobatch as ab
from autobatch.checkpoint.files import Files
from autobatch.errors import UnsupportedError
from autobatch.tables.keyed.variable import SlotOf

DIM, ROWS = 3, 400
DTYPES = [
    "f2", "f4", "f8", ">f4", ">i2", "?", "c8", "c16", "i8", "u1", "U3", "M8[s]", [("a", "i4"), ("b", "f8")],
    ml_dtypes.bfloat16,
]  # fmt: skip
SHAPES = [(), (0,), (0, 3), (3, 0, 2), (5,), (1500, 8), (40, 70), (1, 1, 7000), (2, 3, 4)]
LAYOUTS = [
    np.array, np.asfortranarray, np.transpose, lambda x: x[::-1] if x.ndim else x,
    lambda x: np.repeat(x, 2, axis=0)[::2] if x.ndim else x,
]  # fmt: skip
OPTIMIZERS = [
    ab.optim.SGD(0.1), ab.optim.SGD(0.1, momentum=0.9), ab.optim.Adagrad(0.1, initial_accumulator=0.5),
    ab.optim.RowWiseAdagrad(0.1), ab.optim.Adam(0.1), ab.optim.FTRL(0.1),
    ab.optim.Adagrad(0.1, state_dtype=np.float64),
]  # fmt: skip


FEW = [OPTIMIZERS[0], OPTIMIZERS[3], OPTIMIZERS[4]]  # without slots, with a number for each row, with two slots


class FailingFiles(Files):
    """Files of which any operation that changes the disk may fail, with probability `risk`."""

    def __init__(self, rng):
        self.rng, self.risk = rng, 0.0

    def create(self, path):
        self._may_fail()
        return super().create(path)

    def write(self, handle, data, offset):
        self._may_fail()
        return super().write(handle, data, offset)

    def flush(self, handle):
        self._may_fail()
        super().flush(handle)

    def rename(self, old, new):
        self._may_fail()
        super().rename(old, new)

    def unlink(self, path):
        self._may_fail()
        super().unlink(path)

    def _may_fail(self):
        if self.rng.random() < self.risk:
            raise OSError("no room")


def elements(rng, dtype, count):
    dtype = np.dtype(dtype)
    if dtype.kind == "?":
        return rng.random(count) < 0.5
    if dtype.kind == "U":
        return np.array([chr(65 + number) for number in rng.integers(0, 26, count)], dtype)
    return np.frombuffer(rng.integers(32, 100, count * dtype.itemsize, dtype=np.uint8).tobytes(), dtype)


def array(rng):
    dtype, shape = DTYPES[rng.integers(len(DTYPES))], SHAPES[rng.integers(len(SHAPES))]
    return LAYOUTS[rng.integers(len(LAYOUTS))](elements(rng, dtype, int(np.prod(shape))).copy().reshape(shape))


def variable(rng):
    one = ab.EmbeddingVariable(
        DIM, seed=4, dtype=rng.choice(["f2", "f4", "f8"]), key_dtype=rng.choice(["i8", "u8"]),
        capacity=[None, 60][rng.integers(2)], steps_to_live=[None, 5][rng.integers(2)],
        admission=[None, ab.admission.count(2), ab.admission.bloom(2, 1000)][rng.integers(3)],
        eviction=rng.choice(["lru", "lfu", "norm"]), insert_on=rng.choice(["update", "lookup"]),
    )  # fmt: skip
    return one if rng.integers(3) else one.partition(int(rng.integers(1, 4)))


def copied(value, rows_only=False):
    """All that a tree holds, as plain values that nothing changes later."""
    if isinstance(value, ab.EmbeddingVariable):
        rows = []
        for keys, weights, slots, versions, counts in value.blocks():
            parts = [weights, versions, counts, *(() if rows_only else slots.values())]
            rows += [(key, [(x.dtype, x[i].tobytes()) for x in parts]) for i, key in enumerate(keys.tolist())]
        if rows_only:
            return sorted(rows)
        slots = [{**slot, "token": None} for slot in value.settings["slots"]]
        return {**value.settings, "slots": slots}, sorted(rows), copied(value.arrays())
    if hasattr(value, "parts"):
        return [copied(part, rows_only) for part in value.parts]
    if isinstance(value, ab.EmbeddingTable):
        return ab.EmbeddingTable, copied(value.weights)
    if isinstance(value, dict):
        return {key: copied(part, rows_only) for key, part in value.items()}
    if isinstance(value, list):
        return [copied(part, rows_only) for part in value]
    if isinstance(value, np.ndarray):
        order = value.flags.f_contiguous and not value.flags.c_contiguous
        return value.dtype, value.shape, order, np.ascontiguousarray(value).tobytes()
    return value.name if isinstance(value, SlotOf) else value


class Run:
    """A training and its saver; by step, `saved` has a copy of all that was saved, and `known` the optimiser."""

    def __init__(self, folder, seed, optimizers=OPTIMIZERS):
        self.rng = rng = np.random.default_rng(seed)
        self.optimizers = optimizers
        self.files = FailingFiles(np.random.default_rng(seed))
        self.options = {
            "keep": int(rng.choice([1, 2, 5])), "full_every": int(rng.choice([1, 2, 3, 100])),
            "background": bool(rng.integers(2)),
        }  # fmt: skip
        self.folder, self.saver, self.saved, self.known = folder, None, {}, {}
        self.params = {"users": variable(rng), "arrays": [array(rng) for _ in range(4)]}
        self.params["emb"] = ab.EmbeddingTable(rng.normal(size=(ROWS, 12)).astype(np.float32))
        self.open()
        self.other_optimizer()

    def open(self):
        if self.saver is not None:
            self.saver.close()
        self.saver = ab.Checkpoints(self.folder, files=self.files, **self.options)

    def tables(self):
        return {name: self.params[name] for name in ("users", "emb")}

    def init(self):
        self.state = self.optimizer.init(self.tables())

    def other_optimizer(self):
        self.optimizer = self.optimizers[self.rng.integers(len(self.optimizers))]
        self.init()

    def other_variable(self):
        self.params["users"] = variable(self.rng)
        self.init()

    def other_array(self):
        self.params["arrays"][self.rng.integers(4)] = array(self.rng)

    def one_array_twice(self):
        self.params["arrays"][0] = self.params["arrays"][1]

    def write(self):
        target = self.params["arrays"][self.rng.integers(4)]
        if target.size:
            places = tuple(self.rng.integers(0, size, 9) for size in target.shape) or ...
            target[places] = (
                elements(self.rng, target.dtype, 9) if target.ndim else elements(self.rng, target.dtype, 1)[0]
            )

    def keys(self):
        return self.rng.integers(0, 120, self.rng.integers(0, 25)).astype(self.params["users"].key_dtype)

    def rows(self, keys):
        return self.rng.normal(size=(len(keys), DIM)).astype(self.params["users"].dtype)

    def insert(self):
        self.params["users"].insert(self.keys())

    def assign(self):
        keys = self.keys()
        self.params["users"].assign(keys, self.rows(keys))

    def remove(self):
        self.params["users"].remove(self.keys())

    def shrink(self):
        if getattr(self.params["users"], "steps_to_live", None) is not None:
            self.params["users"].shrink()

    def look_up(self):
        self.params["users"][self.keys()]

    def update(self):
        keys, ids = self.keys(), self.rng.integers(0, ROWS, 5)
        grads = {
            "users": ab.SparseRows(keys, self.rows(keys), None) if len(keys) else None,
            "emb": ab.SparseRows(ids, self.rng.normal(size=(5, 12)).astype(np.float32), ROWS),
        }
        self.state = self.optimizer.update(self.tables(), grads, self.state)[1]

    def save(self):
        step = max(self.saved, default=0) + 1
        try:
            self.saver.save(step, self.params, self.state)
            now = copied({"params": self.params, "state": self.state})  # without the keys that the save removes
            self.saver.wait()
        except UnsupportedError:  # arrays that overlap without being the same
            return
        except OSError:
            now = copied({"params": self.params, "state": self.state})
            if step not in self.saver.steps():  # else it failed after the commit
                return
        self.saved[step] = now

    def save_with_faults(self):
        self.files.risk = 0.02
        self.save()
        self.files.risk = 0.0

    def compact(self):
        if self.saver.steps():
            self.saver.compact()

    def go_on_from_the_last(self):
        if self.saver.steps():
            restored = self.saver.restore()
            self.params, self.state = restored.params, restored.state
            self.optimizer = self.known[restored.step]

    def check(self):
        for step in self.saver.steps():
            found = self.saver.restore(step=step)
            assert copied({"params": found.params, "state": found.state}) == self.saved[step]
            mapped = self.saver.restore(step=step, mapped=True)
            assert copied(mapped.params, rows_only=True) == copied(found.params, rows_only=True)

    def go(self, calls):
        weights = {"update": 4, "save": 4, "save_with_faults": 2, "init": 2}
        names = [
            "insert", "assign", "remove", "shrink", "look_up", "update", "init", "other_optimizer", "other_variable",
            "other_array", "one_array_twice", "write", "save", "save_with_faults", "compact", "open",
            "go_on_from_the_last",
        ]  # fmt: skip
        share = np.array([weights.get(name, 1) for name in names], float)
        for name in self.rng.choice(names, calls, p=share / share.sum()):
            getattr(self, name)()
            if "save" in name:
                self.known[max(self.saved, default=0)] = self.optimizer
            if name in ("save", "save_with_faults", "compact"):
                self.check()
        self.saver.close()


@pytest.mark.filterwarnings("ignore:old checkpoints stay:autobatch.errors.CheckpointWarning")
@pytest.mark.parametrize("seed", range(5))
def test_every_save_comes_back_to_the_bit(tmp_path, seed):
    Run(tmp_path / "run", seed, FEW).go(30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:old checkpoints stay:autobatch.errors.CheckpointWarning")
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_trainings_come_back_to_the_bit(tmp_path, seed):
    Run(tmp_path / "run", seed).go(60)
