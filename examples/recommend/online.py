"""An online learner: users and films come and go in a stream, and live in an embedding variable while they do.

Each click is predicted before it is learned from. Users churn: a tenth of them is replaced in each of 20 rounds.
Progressive accuracy over the second half of the stream: at least 0.7; the keys of users who left are gone at the end.
"""

from typing import Any

import numpy as np

import autobatch as ab

BAR = 0.7
USERS, FILMS = 50, 40


@ab.batch
def score(user: int, film: int, params: Any) -> Any:
    """ONE impression: two keys -> a logit."""
    return (params["users"][user] * params["films"][film]).sum()


@ab.batch
def loss(user: int, film: int, click: int, params: Any) -> Any:
    logit = score(user, film, params)
    return ab.nn.cross_entropy(np.stack([0 * logit, logit]), click)


def taste(keys: np.ndarray) -> np.ndarray:
    """What nobody knows: two numbers for each key."""
    return np.stack([np.sin(keys * 12.9898), np.cos(keys * 78.233)], -1)


def init(rng: np.random.Generator) -> Any:
    start = ab.nn.init.normal(std=0.3)
    return {name: ab.EmbeddingVariable(4, initializer=start, steps_to_live=40, seed=1) for name in ("users", "films")}


def sample(rng: np.random.Generator, present: np.ndarray | None = None) -> tuple[Any, ...]:
    user, film = int(rng.choice(np.arange(USERS) if present is None else present)), int(rng.integers(FILMS))
    return user, film, int((taste(np.array(user)) * taste(np.array(film))).sum() > 0)


def run(rounds: int = 20, steps: int = 12, size: int = 64) -> float:
    rng, optimizer = np.random.default_rng(0), ab.optim.Adagrad(lr=0.3)
    params, present, right, gone = init(rng), np.arange(USERS), [], []
    state = optimizer.init(params)
    for _ in range(rounds):
        for _ in range(steps):
            user, film, click = ab.collate([sample(rng, present) for _ in range(size)])
            logits, clicks = np.array(score(user, film, params).examples()), np.array(click.examples())
            right.append(np.mean((logits > 0) == clicks))
            gradient = ab.grad(lambda p, u=user, f=film, c=click: ab.mean(loss(u, f, c, p)))(params)
            params, state = optimizer.update(params, gradient, state)
        leaving = rng.choice(USERS, USERS // 10, replace=False)
        gone.append(present[leaving])
        present[leaving] = present.max() + 1 + np.arange(USERS // 10)
        params["users"].shrink()
    left = np.concatenate(gone[: -40 // steps])
    assert not params["users"].contains(left).any(), "users who left long ago are still there"
    return float(np.mean(right[len(right) // 2 :]))


if __name__ == "__main__":
    print(f"progressive accuracy {run():.1%}")
