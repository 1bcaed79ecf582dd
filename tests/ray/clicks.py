"""A small training with everything in it: two variables, one of them twice, a table, arrays, a number, ragged keys."""

from typing import Any

import numpy as np

import autobatch as ab

ITEMS = 7


@ab.batch
def click(user, seen, item, price, label, params):
    """The loss of one example; `seen` are any number of items."""
    bag = params["items"][seen].sum(0)
    x = np.tanh(params["users"][user] * bag + params["items"][item] + params["prices"][price])
    score = x @ params["w"] + params["bias"]
    return (score - label) ** 2


def loss(params: Any, batch: Any) -> Any:
    """The mean over a batch."""
    columns = (batch[name] for name in ("user", "seen", "item", "price", "label"))
    return ab.mean(click(*columns, params))


def params(partitions: int | None = None, **more: Any) -> dict[str, Any]:
    """Fresh parameters."""
    rng = np.random.default_rng(5)
    init = ab.nn.init.normal(std=0.5)
    users = ab.EmbeddingVariable(4, seed=1, initializer=init, **more)
    users.assign([3, -8], rng.normal(size=(2, 4)))
    return {
        "users": users if partitions is None else users.partition(partitions),
        "items": ab.EmbeddingVariable(4, seed=2, initializer=init, key_dtype=np.uint64, **more),
        "prices": ab.EmbeddingTable(rng.normal(size=(5, 4)).astype(np.float32)),
        "w": rng.normal(size=4).astype(np.float32),
        "wide": np.zeros((3, 20_000), np.float32)[:, :0],
        "bias": 0.25,
        "name": "clicks",
    }


def batches(count: int = 5, size: int = 11, seed: int = 0) -> list[Any]:
    """So many batches, with empty bags among them."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        seen = [rng.integers(0, ITEMS, n).astype(np.uint64) for n in rng.integers(0, 4, size)]
        out.append(
            {
                "user": ab.collate(rng.integers(-8, 8, size)),
                "seen": ab.PackedBatch.from_examples(seen),
                "item": ab.collate(rng.integers(0, ITEMS, size).astype(np.uint64)),
                "price": ab.collate(rng.integers(0, 5, size)),
                "label": ab.collate(rng.normal(size=size).astype(np.float32)),
            }
        )
    return out


def plain(optimizer: Any, steps: int, given: Any, data: list[Any]) -> tuple[Any, Any]:
    """The same training as a loop of one process, without any of what is tested."""
    state = optimizer.init(given)
    gradient = ab.value_and_grad(loss)
    for step in range(steps):
        _, grads = gradient(given, data[step % len(data)])
        given, state = optimizer.update(given, grads, state)
    return given, state


def fingerprint(trained: tuple[Any, Any]) -> list[tuple[Any, ...]]:
    """All there is of parameters and state, to the bit."""
    params, state = trained
    out: list[tuple[Any, ...]] = [("step", state["step"]), ("bias", params["bias"])]
    for name in ("users", "items"):
        table = params[name].join() if hasattr(params[name], "join") else params[name]
        order = np.argsort(table.keys(), kind="stable")
        blocks = list(table.blocks(1 << 30))
        for block in blocks:
            order = np.argsort(block.keys, kind="stable")
            arrays = [block.keys, block.rows, block.versions, block.counts]
            arrays += [block.slots[slot] for slot in sorted(block.slots)]
            out += [(name, table.step, *(array[order].tobytes() for array in arrays))]
    out += [("w", params["w"].tobytes()), ("prices", np.asarray(params["prices"]).tobytes())]
    for slot in sorted(set(state) - {"step"}):
        found = state[slot]
        out += [(slot, np.asarray(found[name]).tobytes()) for name in ("prices", "w", "bias")]
    return out
