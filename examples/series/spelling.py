"""A spelling corrector: the word of a list that is nearest by edit distance (Damerau 1964; Levenshtein 1966).

Two loops over letters, which are compiled as they stand. Words with one or two mistakes that are put right: at least
0.9.
"""

from typing import Any

import numpy as np

import autobatch as ab

BAR = 0.9


@ab.batch
def distance(a: np.ndarray, b: np.ndarray) -> int:
    """ONE pair of words, as letters: how many must be put in, left out, or changed."""
    above = np.arange(len(b) + 1)
    for i in range(len(a)):
        row = np.zeros(len(b) + 1, dtype=np.int64)
        row[0] = i + 1
        for j in range(len(b)):
            change = 0 if a[i] == b[j] else 1
            row[j + 1] = min(above[j] + change, above[j + 1] + 1, row[j] + 1)
        above = row
    return int(above[len(b)])


loss = distance  # what the test of all short examples proves


def letters(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(97, 123, rng.integers(5, 12))


def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    word = letters(rng)
    return word, misspelled(rng, word)


def misspelled(rng: np.random.Generator, word: np.ndarray) -> np.ndarray:
    for _ in range(rng.integers(1, 3)):
        place, letter = rng.integers(len(word)), rng.integers(97, 123)
        word = [np.delete(word, place), np.insert(word, place, letter), np.r_[word[:place], letter, word[place + 1 :]]][
            rng.integers(3)
        ]
    return word


def run(count: int = 100, tries: int = 20) -> float:
    rng = np.random.default_rng(0)
    known = [letters(rng) for _ in range(count)]
    right: list[Any] = []
    for place in rng.integers(count, size=tries):
        word = misspelled(rng, known[place])
        right.append(np.argmin(ab.map(distance, known, [word] * count)) == place)
    return float(np.mean(right))


if __name__ == "__main__":
    print(f"words put right: {run():.1%}")
