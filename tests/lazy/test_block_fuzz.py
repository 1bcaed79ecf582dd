"""Random structured programs on the fly, with blocks and without, against the plain interpreter.

A soak run compares as many as wanted:
    python -m tests.lazy.test_block_fuzz --seed 5000 --count 2000
"""

import sys
import warnings

import numpy as np
import pytest

import autobatch as ab
from tests.fuzz import by_seed, main
from tests.inspect import map_with_stats, noted_fallbacks
from tests.law import assert_same
from tests.lockstep.fuzz import Program


def outcome(run, columns):
    """The results of a run, or its error; what it launched, and whether it had to be repeated as a loop."""
    columns = [[x.copy() if isinstance(x, np.ndarray) else x for x in column] for column in columns]
    with warnings.catch_warnings(), noted_fallbacks() as notes:
        warnings.simplefilter("ignore")
        try:
            results, stats = run(columns)
        except Exception as error:
            return (type(error), str(error)), None, None, False
    return None, results, stats, any("could not run these examples together" in note for note in notes)


def compare(seed):
    """Run program `seed` in all three ways. Returns how many of the recorded calls were blocks, and of how many."""
    with Program.of(seed) as program:
        return _compare(program, f"{program.text}\nseed {seed}")


def _compare(program, where):
    f, columns = program.f, program.columns

    def mapped(blocks):
        def run(columns):
            with ab.options(blocks=blocks):
                return map_with_stats(f, *columns)

        return run

    error, want, *_ = outcome(lambda columns: ([f(*row) for row in zip(*columns, strict=True)], None), columns)
    repeated = []
    for blocks in (False, True):
        found, got, stats, again = outcome(mapped(blocks), columns)
        repeated.append(again)
        assert found == error, where
        if error is None:
            for i, (a, b) in enumerate(zip(got, want, strict=True)):
                assert_same(a, b, f"{where}, blocks {blocks}, example {i}: ")
    assert repeated[0] == repeated[1], f"{where}: repeated as a loop without blocks and with them: {repeated}"
    if stats is None:
        return 0, 0
    return sum(row[0] for (op, _), row in stats.by_signature.items() if op.startswith("block ")), stats.calls


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(0, 60, 12))
def test_random_programs(start):
    found = [compare(seed) for seed in range(start, start + 12)]
    assert sum(blocks for blocks, _ in found) > 0


def summary(found):
    blocks, calls = np.sum(found, axis=0)
    return f"{blocks} of {calls} recorded calls were blocks"


FUZZERS = {"blocks": by_seed(compare, summary)}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
