"""Fixtures of the tests of the on-the-fly engine."""

import pytest

from autobatch.lazy import replay
from autobatch.rewrite import structural


@pytest.fixture(autouse=True)
def _nothing_was_recorded_before():
    structural.forget_recordings()


@pytest.fixture
def played(monkeypatch):
    """How many examples of each map were copied."""
    counts = []
    play = replay.Replay.play

    def counted(self, columns):
        found = play(self, columns)
        counts.append(len(found))
        return found

    monkeypatch.setattr(replay.Replay, "play", counted)
    return counts
