"""Jets of a collision by the anti-kt algorithm (Cacciari, Salam and Soyez 2008): near particles are merged.

Collisions are made up: two to four cores and a haze of soft particles. Collisions in which as many jets are found as
there were cores: at least 0.9.
"""

from typing import Any

import numpy as np

import autobatch as ab

BAR = 0.9
RADIUS, HARD = 0.6, 20.0


@ab.batch
def jets(pt: np.ndarray, y: np.ndarray, phi: np.ndarray) -> list[float]:
    """ONE collision: transverse momenta, rapidities, angles, each (n,) -> the momenta of its jets."""
    pt, y, phi = pt.copy(), y.copy(), phi.copy()
    found = []
    for _ in range(len(pt)):
        best, a, b = np.inf, -1, -1
        for i in range(len(pt)):
            if pt[i] > 0:
                if 1 / pt[i] ** 2 < best:
                    best, a, b = 1 / pt[i] ** 2, i, -1
                for j in range(i):
                    if pt[j] > 0:
                        turn = abs(phi[i] - phi[j])
                        turn = min(turn, 2 * np.pi - turn)
                        near = ((y[i] - y[j]) ** 2 + turn**2) / RADIUS**2 / max(pt[i], pt[j]) ** 2
                        if near < best:
                            best, a, b = near, i, j
        if b < 0:
            if pt[a] > HARD:
                found.append(pt[a])
        else:
            share = pt[b] / (pt[a] + pt[b])
            y[a] += share * (y[b] - y[a])
            phi[a] += share * (phi[b] - phi[a])
            pt[a] += pt[b]
        pt[b if b >= 0 else a] = 0.0
    return found


loss = jets  # what the test of all short examples proves


def collision(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    cores = int(rng.integers(2, 5))
    near = rng.integers(3, 7)
    y0, phi0 = rng.permutation(5)[:cores] * 1.6 - 3.2, rng.uniform(0.8, 5.4, cores)
    pt = np.concatenate([rng.uniform(10, 20, cores * near), rng.exponential(0.5, 5)])
    y = np.concatenate([np.repeat(y0, near) + rng.normal(0, 0.1, cores * near), rng.uniform(-4, 4, 5)])
    phi = np.concatenate([np.repeat(phi0, near) + rng.normal(0, 0.1, cores * near), rng.uniform(0, 6, 5)])
    return pt, y, phi, cores


def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    few = rng.choice(10, 4, replace=False)
    pt, y, phi, _ = collision(rng)
    return pt[few], y[few], phi[few]


def run(count: int = 60) -> float:
    rng = np.random.default_rng(0)
    pt, y, phi, cores = zip(*[collision(rng) for _ in range(count)], strict=True)
    with ab.options(way="compiled"):
        found: list[Any] = ab.map(jets, pt, y, phi)
    return float(np.mean([len(each) == core for each, core in zip(found, cores, strict=True)]))


if __name__ == "__main__":
    print(f"collisions with the right number of jets: {run():.1%}")
