"""A small training that is the same every time, with everything in it that a checkpoint holds."""

import hashlib
from collections.abc import Iterator

import numpy as np

import autobatch as ab
from autobatch.checkpoint import streams
from autobatch.core import pytree
from autobatch.tables.keyed.variable import SlotOf
from autobatch.tables.stored import Changes, StoredBlock, StoredTable

ROWS, DIM = 300, 16  # 19,200 bytes: large enough that changes are stored alone


class KeyTable:
    """A table of keys as slow and plain as can be: what `StoredTable` asks, of a dict."""

    trainable = False

    def __init__(self, dim: int, partitions: int = 1) -> None:
        self.dim, self.partitions, self.step = dim, partitions, 0
        self.found: dict[int, tuple[np.ndarray, np.ndarray, int, int]] = {}
        self.notes: list[tuple[int, int]] = []  # (moment, key)
        self.moment = 0

    def __len__(self) -> int:
        return len(self.found)

    def update(self, keys, step: int) -> None:
        """A step of Adagrad on a gradient of the keys' own."""
        self.step = step
        for key in keys:
            row, slot, _, count = self.found.get(key, (np.full(self.dim, key, np.float32), np.zeros(self.dim), 0, 0))
            grad = np.cos(np.arange(self.dim) + key + step)
            slot = slot + grad**2
            row = (row - 0.1 * grad / np.sqrt(slot + 1e-9)).astype(np.float32)
            self.found[key] = row, slot, step, count + 1
            self.notes.append((self.moment, key))

    def remove(self, keys) -> None:
        for key in keys:
            if self.found.pop(key, None) is not None:
                self.notes.append((self.moment, key))

    @property
    def settings(self):
        return {"dim": self.dim, "partitions": self.partitions, "step": self.step}

    @classmethod
    def from_settings(cls, settings):
        return cls(settings["dim"], settings["partitions"])

    def arrays(self):
        return {"seen": np.array([len(self.found), self.step])}

    def mark(self) -> int:
        self.moment += 1
        return self.moment

    def _blocks(self, keys: list[int], rows: int) -> Iterator[StoredBlock]:
        for first in range(0, len(keys), rows):
            named = keys[first : first + rows]
            each = [self.found[key] for key in named]
            numbers = [np.array([one[i] for one in each], np.int64) for i in (2, 3)]
            slots = {"sum": np.array([one[1] for one in each])}
            yield StoredBlock(np.array(named, np.int64), np.array([one[0] for one in each]), slots, *numbers)

    def blocks(self, rows: int = 7) -> Iterator[StoredBlock]:
        return self._blocks(list(self.found), rows)

    def changed_since(self, mark: int, rows: int = 7) -> Changes | None:
        keys = list(dict.fromkeys(key for moment, key in self.notes if moment >= mark))
        self.notes = [note for note in self.notes if note[0] >= mark]
        there = [key for key in keys if key in self.found]
        gone = np.array([key for key in keys if key not in self.found], np.int64)
        return Changes(gone, len(there), self._blocks(there, rows))

    def restore_blocks(self, blocks, *, removed=(), arrays=None, step=None) -> None:
        for key in np.asarray(removed).tolist():
            self.found.pop(key, None)
        for block in blocks:
            for i, key in enumerate(block.keys.tolist()):
                numbers = int(block.versions[i]), int(block.counts[i])
                self.found[key] = block.rows[i].copy(), block.slots["sum"][i].copy(), *numbers
        self.step = self.step if step is None else step


streams.TABLES["KeyTable"] = KeyTable


class Training:
    """A training from its seed, or from what `restore` gave."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.optimizer = ab.optim.Adagrad(0.1)
        weights = rng.normal(size=(ROWS, DIM)).astype(np.float32)
        dense = {
            "emb": ab.EmbeddingTable(weights),
            "w": rng.normal(size=(DIM, 3)),
            "b": 0.5,
            "same": weights,
            "items": ab.EmbeddingVariable(4, seed=1, steps_to_live=4, admission=ab.admission.count(2)),
        }
        self.params = {"dense": dense, "users": KeyTable(4)}
        self.state = self.optimizer.init(dense)
        self.extra = {"rng": rng, "name": "run", "seen": []}
        self.step = 0

    def resume(self, restored) -> "Training":
        self.params, self.state, self.step = restored
        self.extra = restored.extra
        return self

    def advance(self) -> None:
        rng, self.step = self.extra["rng"], self.step + 1
        ids = rng.integers(0, ROWS, 12)
        grads = {
            "emb": ab.SparseRows(ids, rng.normal(size=(12, DIM)).astype(np.float32), ROWS),
            "w": rng.normal(size=(DIM, 3)) if self.step % 3 else None,
            "b": float(rng.normal()),
            "same": None,
            "items": ab.SparseRows(rng.integers(-20, 20, 16), rng.normal(size=(16, 4)).astype(np.float32), None),
        }
        dense, self.state = self.optimizer.update(self.params["dense"], grads, self.state)
        self.params = {**self.params, "dense": dense}
        dense["items"].shrink()
        users = self.params["users"]
        users.update(rng.integers(0, 40, 6).tolist(), self.step)
        users.remove(rng.integers(0, 40, 2).tolist())
        self.extra["seen"] = [*self.extra["seen"], self.step][-3:]

    def save(self, checkpoints) -> None:
        checkpoints.save(self.step, self.params, self.state, self.extra)

    def fingerprint(self) -> str:
        """All that there is, to the bit."""
        tables = [self.params["users"], self.params["dense"]["items"]]
        values, structure = pytree.flatten([self.params, self.state, {**self.extra, "rng": None}])
        values = [value for value in values if not isinstance(value, SlotOf | StoredTable)]
        values += [everything_of(table) for table in tables]
        rng = self.extra["rng"].bit_generator.state
        digest = hashlib.sha256(repr((structure, rng, self.step)).encode())
        for value in values:
            if hasattr(value, "dtype"):
                digest.update(repr((value.shape, str(value.dtype))).encode() + np.asarray(value).tobytes())
            else:
                digest.update(repr(value).encode())
        return digest.hexdigest()


def everything_of(table) -> list:
    """What a table of keys holds, in the order of the keys."""
    settings = {name: value for name, value in table.settings.items() if name != "slots"}
    rows = []
    for keys, weights, slots, versions, counts in table.blocks():
        parts = [weights, *slots.values(), versions, counts]
        rows += [(int(key), [part[i].tobytes() for part in parts]) for i, key in enumerate(keys)]
    beside = {name: array.tobytes() for name, array in table.arrays().items()}
    return [settings, beside, sorted(rows)]


def replay(steps: int, seed: int = 0) -> list[str]:
    """The fingerprint after each step, 0 first."""
    training = Training(seed)
    out = [training.fingerprint()]
    for _ in range(steps):
        training.advance()
        out.append(training.fingerprint())
    return out
