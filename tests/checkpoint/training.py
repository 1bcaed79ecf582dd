"""A small training that is the same every time, with everything in it that a checkpoint holds."""

import hashlib

import numpy as np

import autobatch as ab
from autobatch.core import pytree
from autobatch.tables.keyed.variable import EmbeddingVariable, SlotOf

ROWS, DIM = 300, 16  # 19,200 bytes: large enough that changes are stored alone


def assign(users, keys, step: int) -> None:
    """Rows of a step, made of the keys."""
    users.step = step
    users.assign(keys, np.cos(np.arange(users.dim) + np.array(keys)[:, None] + step))


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
        self.params = {"dense": dense, "users": ab.EmbeddingVariable(4)}
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
        assign(users, rng.integers(0, 40, 6), self.step)
        users.remove(rng.integers(0, 40, 2))
        self.extra["seen"] = [*self.extra["seen"], self.step][-3:]

    def save(self, checkpoints) -> None:
        checkpoints.save(self.step, self.params, self.state, self.extra)

    def fingerprint(self) -> str:
        """All that there is, to the bit."""
        tables = [self.params["users"], self.params["dense"]["items"]]
        values, structure = pytree.flatten([self.params, self.state, {**self.extra, "rng": None}])
        values = [value for value in values if not isinstance(value, SlotOf | EmbeddingVariable)]
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
