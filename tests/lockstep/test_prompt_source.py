"""The source of what is typed at the prompt, from the history that `readline` keeps."""

import inspect
import sys
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.syntax.source import NoSourceError, find, written_lines

LATER = ["y = 2", "for i in range(3):", "    print(i)", ""]


@pytest.fixture
def typed(monkeypatch):
    """Run a statement as the prompt does, and let its lines, with others around it, be the history."""

    def run(*lines):
        past = ["import numpy as np", "x = 1", *lines, *LATER]
        history = types.SimpleNamespace(
            get_current_history_length=lambda: len(past),
            get_history_item=lambda at: past[at - 1] if 0 < at <= len(past) else None,
        )
        monkeypatch.setitem(sys.modules, "readline", history)
        names = {"ab": ab, "np": np}
        exec(compile("\n".join(lines) + "\n", "<stdin>", "single"), names)
        return names["f"]

    return run


@pytest.mark.parametrize(
    "lines",
    [
        ("def f(x):", "    return np.tanh(x)"),
        ("def f(x):", "    for r in x:", "        x = r", "    return x"),
        ("@ab.batch", "def f(x):", "    return x + 1"),
        ("@ab.batch(strict=True)", "@ab.batch", "def f(x):", "    return x + 1"),
        ("f = lambda x: x * 2",),
    ],
)
def test_a_statement_is_found_whole(typed, lines):
    f = inspect.unwrap(typed(*lines))
    found = "".join(written_lines(f.__code__)).splitlines()
    assert found[: len(lines)] == list(lines)
    find(f)


def test_another_function_of_that_name_is_not_taken_for_it(typed):
    f = typed("def f(x):", "    return np.tanh(x)")
    typed("def f(x):", "    return np.sin(x)")
    assert written_lines(f.__code__) == []
    with pytest.raises(NoSourceError, match="f has no source"):
        find(f)
