"""From one process to a cluster: a map over ragged Parquet, then a training whose table of users is in shards.

    python -m examples.cluster                    # in this process, without Ray
    python -m examples.cluster --workers 2        # on two processes, by Ray
    RAY_ADDRESS=head:6379 python -m examples.cluster --workers 64 --folder /shared/run

The data are made: users look at films, any number of them, and like one or not. Run it again on the same `--folder` and
it goes on where it was; kill it and do the same.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import autobatch as ab

FILMS, TASTES = 400, 4


def make_data(folder: Path, files: int, rows: int) -> None:
    """Parquet files of users, what they have seen, a film, and whether they liked it."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    tastes = np.random.default_rng(0).normal(size=(FILMS, TASTES))
    for i in range(files):
        rng = np.random.default_rng((1, i))
        favourite = rng.integers(0, TASTES, rows)
        likely = np.exp(2 * tastes[:, favourite]).T
        likely /= likely.sum(axis=1, keepdims=True)
        seen = [rng.choice(FILMS, rng.integers(0, 12), p=p) for p in likely]
        film = rng.integers(0, FILMS, rows)
        liked = tastes[film, favourite] + 0.1 * rng.normal(size=rows) > 0
        user = (i * rows + np.arange(rows)) * 7_919 % 2**40
        table = pa.table({"user": user, "seen": seen, "film": film, "liked": liked.astype(np.float32)})
        pq.write_table(table, folder / f"views-{i:03d}.parquet", row_group_size=max(1, rows // 4))


def summarise(seen: Any, film: Any) -> dict[str, Any]:
    """Of ONE row: how much has been seen, and the films next to the one in question."""
    near = seen[np.abs(seen - film) <= 20]
    return {"count": len(seen), "near": near}


def like(user: Any, seen: Any, film: Any, liked: Any, params: Any) -> Any:
    """The loss of ONE row."""
    taste = params["users"][user] + params["films"][seen].sum(0) / np.sqrt(np.float32(1) + len(seen))
    score = taste @ params["about"][film] + params["bias"]
    return np.logaddexp(np.float32(0), score) - liked * score


batched_like = ab.batch(like)


def loss(params: Any, batch: Any) -> Any:
    """The mean over a batch."""
    return ab.mean(batched_like(batch["user"], batch["seen"], batch["film"], batch["liked"], params))


def examples_of(folder: Path) -> Any:
    """All rows, as a tree of batches."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pq.read_table(folder)
    return ab.collate({name: table[name] for name in ("user", "seen", "film", "liked")})


def train(folder: Path, run: Path, workers: int, steps: int) -> tuple[Any, list[float]]:
    """The trained parameters, and the loss of each step."""
    init = ab.nn.init.normal(std=0.1)
    params = {
        "users": ab.EmbeddingVariable(8, initializer=init, name="users"),
        "films": ab.EmbeddingVariable(8, initializer=init, seed=1, name="films"),
        "about": ab.EmbeddingVariable(8, initializer=init, seed=2, name="about"),
        "bias": np.float32(0),
    }
    losses: list[float] = []
    params, _ = ab.ray.train(
        loss,
        params,
        ab.minibatches(examples_of(folder), 256, shuffle=True),
        ab.optim.Adam(0.02),
        steps=steps,
        every=20,
        checkpoints=run,
        log=lambda step, value: losses.append(value),
        workers=workers or None,
        communicator=None if workers else ab.ray.LocalCommunicator(2),
    )
    return params, losses


def main(arguments: list[str] | None = None) -> int:
    """Make the data, map them, train."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--workers", type=int, default=0, help="processes of Ray; 0: this one")
    options.add_argument("--folder", type=Path, help="for data, results and checkpoints; a new one by default")
    options.add_argument("--files", type=int, default=4)
    options.add_argument("--rows", type=int, default=2000, help="of a file")
    options.add_argument("--steps", type=int, default=200)
    given = options.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp())
    data = folder / "data"
    if not data.exists():
        make_data(data, given.files, given.rows)
    done = ab.ray.map(
        summarise,
        data,
        columns=["seen", "film"],
        keep=["user"],
        out=folder / "summaries",
        workers=given.workers,
    )
    print(f"map: {done.rows} rows of {done.units} row groups in {done.out}, {done.resumed} of them from before")
    params, losses = train(data, folder / "run", given.workers, given.steps)
    if losses:
        print(f"training: loss {np.mean(losses[:5]):.3f} at first, {np.mean(losses[-5:]):.3f} at last")
    print(f"{len(params['users'])} users and {len(params['films'])} films have rows; checkpoints in {folder / 'run'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
