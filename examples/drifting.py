"""A stream whose vocabulary drifts for a week of simulated days: an embedding variable beside two fixed tables.

    python -m examples.drifting --plot drifting.svg

Each day half of the users leave for ever, and as many come whom nobody has seen. Clicks are predicted, then learned
from, by the loss of `examples.recommend.online`. Three models differ in where a user's row is:

    variable   `ab.EmbeddingVariable`: users come to life with their first update, and go `steps_to_live` after the last
    buckets    a table of as many rows as there are users at a time, a user's row being a hash of his name
    dense      a table with a row for every user of the whole week, who would have to be known beforehand

The variable predicts what the dense table predicts, to the bit, and takes the memory of those who are there: the dense
one has holes where users are not yet or not any more, and of the buckets most are shared by strangers.
"""

import argparse
import dataclasses
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from examples.recommend.online import loss, score

DAYS = 7
FILMS, DIM = 200, 16
TABLES = ("variable", "buckets", "dense")


@dataclasses.dataclass
class Day:
    """What one model was after one day.

    Attributes:
        accuracy: of its predictions before it learned from each click. logits: these, of all clicks.
        memory: bytes of the users' table and its optimiser's state. checkpoint: bytes of a whole checkpoint.
        rows: of the table.
    """

    accuracy: float
    logits: np.ndarray
    memory: int
    checkpoint: int
    rows: int


class Model:
    """Rows of users in one kind of table, and what trains them.

    Args:
        present: how many users there are at a time; total: in the week. steps: in a day.
    """

    def __init__(self, kind: str, folder: pathlib.Path, present: int, total: int, steps: int) -> None:
        self.kind, self.folder, self.present = kind, folder, present
        variable = ab.EmbeddingVariable(
            DIM, initializer=ab.nn.init.normal(std=0.3), steps_to_live=steps, seed=1, name="users"
        )
        users: Any = variable
        if kind == "buckets":
            users = ab.EmbeddingTable(variable[ab.hash_keys([f"bucket {i}" for i in range(present)])])
        elif kind == "dense":
            users = ab.EmbeddingTable(variable[names(np.arange(total))])
        films = np.random.default_rng(0).normal(size=(FILMS, DIM), scale=0.3).astype(np.float32)
        self.params = {"users": users, "films": films}
        self.optimizer = ab.optim.Adagrad(lr=0.3)
        self.state = self.optimizer.init(self.params)
        self.saver = ab.Checkpoints(folder, keep=1, full_every=1)
        self.step = 0

    def ids(self, users: np.ndarray) -> np.ndarray:
        """Where the rows of users are: by name, by a hash of it, or by the number that nobody knows."""
        if self.kind == "dense":
            return users
        keys = names(users)
        return keys if self.kind == "variable" else np.asarray(keys.view(np.uint64) % np.uint64(self.present), np.int64)

    def learn(self, users: np.ndarray, films: np.ndarray, clicks: np.ndarray) -> np.ndarray:
        """The logits of some clicks, which are learned from then."""
        user, film, click = (ab.collate(x) for x in (self.ids(users), films, clicks))
        logits = np.array(score(user, film, self.params).examples())
        gradient = ab.grad(lambda params: ab.sum(loss(user, film, click, params)))(self.params)
        self.params, self.state = self.optimizer.update(self.params, gradient, self.state)
        self.step += 1
        return logits

    def end_day(self, logits: np.ndarray, clicks: np.ndarray) -> Day:
        """Forget who left, and save."""
        users = self.params["users"]
        if isinstance(users, ab.EmbeddingVariable):
            users.shrink()
            memory = users.nbytes
        else:
            memory = 2 * np.asarray(users).nbytes  # Adagrad keeps a number for each
        self.saver.save(self.step, self.params, self.state)
        size = sum(path.stat().st_size for path in self.folder.glob("*-step-*")) + sum(
            path.stat().st_size for path in self.folder.glob("*.safetensors")
        )
        return Day(float(np.mean((logits > 0) == (clicks > 0))), logits, memory, size, len(users))


def names(users: np.ndarray) -> np.ndarray:
    """64-bit keys of users, who have names."""
    return np.asarray(ab.hash_keys([f"user {i}" for i in users.tolist()]), np.int64)


def taste(who: np.ndarray) -> np.ndarray:
    """What nobody knows: two numbers for each user or film."""
    return np.stack([np.sin(who * 12.9898), np.cos(who * 78.233)], -1)


def run(present: int = 2000, steps: int = 60, size: int = 512) -> dict[str, list[Day]]:
    """The days of each model.

    Args:
        present: users at a time. steps: of a day; size: clicks of a step.
    """
    total = present + (DAYS - 1) * (present // 2)
    out: dict[str, list[Day]] = {}
    # One way for all: another one takes sums in another order, and the tables are compared to the bit.
    with tempfile.TemporaryDirectory() as folder, ab.options(way="lockstep"):
        for kind in TABLES:
            rng = np.random.default_rng(0)
            model = Model(kind, pathlib.Path(folder) / kind, present, total, steps)
            there = np.arange(present)
            out[kind] = []
            for _ in range(DAYS):
                seen = []
                for _ in range(steps):
                    users, films = rng.choice(there, size), rng.integers(0, FILMS, size)
                    clicks = ((taste(users) * taste(films + 0.5)).sum(-1) > 0).astype(np.int64)
                    seen.append((model.learn(users, films, clicks), clicks))
                logits, all_clicks = (np.concatenate(part) for part in zip(*seen, strict=True))
                out[kind].append(model.end_day(logits, all_clicks))
                leaving = rng.choice(present, present // 2, replace=False)
                there[leaving] = there.max() + 1 + np.arange(present // 2)
            model.saver.close()
    return out


def plot(days: dict[str, list[Day]], path: str) -> None:
    """Three curves of each model over the days, as a file."""
    import matplotlib  # noqa: PLC0415  (an extra)

    matplotlib.use("svg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    plt.rcParams.update({"svg.hashsalt": "autobatch", "font.size": 9})
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), constrained_layout=True)
    what: list[tuple[str, Callable[[Day], float]]] = [
        ("accuracy before learning", lambda day: day.accuracy),
        ("memory of users, MB", lambda day: day.memory / 1e6),
        ("checkpoint, MB", lambda day: day.checkpoint / 1e6),
    ]
    for axis, (title, of) in zip(axes, what, strict=True):
        for kind, style in zip(TABLES, ("o-", "s--", "^:"), strict=True):
            axis.plot(range(1, DAYS + 1), [of(day) for day in days[kind]], style, label=kind)
        axis.set_title(title)
        axis.set_xlabel("day")
        axis.set_ylim(0.5 if title.startswith("acc") else 0, 1 if title.startswith("acc") else None)
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the days, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--plot", metavar="FILE", help="draw the days into an SVG file")
    options = parser.parse_args()
    days = run()
    print("day  " + "".join(f"{kind:>28}" for kind in TABLES))
    for number in range(DAYS):
        cells = [days[kind][number] for kind in TABLES]
        text = "".join(f"{c.accuracy:>12.1%} {c.memory / 1e6:>6.2f} {c.checkpoint / 1e6:>5.2f} MB" for c in cells)
        print(f"{number + 1:>3}  {text}")
    if options.plot:
        plot(days, options.plot)


if __name__ == "__main__":
    main()
