"""`kill -9` at random moments loses nothing that was saved; `tests.checkpoint.kills` does it a thousand times."""

import subprocess
import sys


def test_a_killed_training_goes_on_from_its_last_step():
    """In a process without threads, which may fork."""
    command = [sys.executable, "-m", "tests.checkpoint.kills", "--count", "8"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("8 kills in")
