"""The source of what is typed at the prompt, from the history that `readline` keeps."""

import ast
import inspect
import linecache
import sys
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import Unsupported
from autobatch.program.source import find, written_lines

LATER = ["y = 2", "for i in range(3):", "    print(i)", ""]


@pytest.fixture
def typed(monkeypatch):
    """Run a statement as the prompt does, and let its lines, with others around it, be the history."""

    def run(*lines, filename="<stdin>"):
        past = ["import numpy as np", "x = 1", *lines, *LATER]
        history = types.SimpleNamespace(
            get_current_history_length=lambda: len(past),
            get_history_item=lambda at: past[at - 1] if 0 < at <= len(past) else None,
        )
        monkeypatch.setitem(sys.modules, "readline", history)
        names = {"ab": ab, "np": np}
        exec(compile("\n".join(lines) + "\n", filename, "single"), names)
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


def test_the_prompt_of_code_interact(typed):
    f = typed("def f(x):", "    return np.tanh(x)", filename="<console>")
    assert "".join(written_lines(f.__code__)).startswith("def f(x):\n    return np.tanh(x)")


def test_the_prompt_of_python_3_14_keeps_sources_by_the_code(monkeypatch):
    """A pasted block is kept whole and compiled statement by statement."""
    block = "import numpy as np\ndef f(x):\n    return np.tanh(x)\n"
    names = {}
    for statement in ast.parse(block).body:
        exec(compile(ast.Module([statement], []), "<python-input-7>", "exec"), names)
    kept = {("<python-input-7>", "f", 2): block.splitlines(keepends=True)}
    by_code = lambda code: kept.get((code.co_filename, code.co_qualname, code.co_firstlineno), [])
    monkeypatch.setattr(linecache, "_getlines_from_code", by_code, raising=False)
    assert written_lines(names["f"].__code__) == block.splitlines(keepends=True)
    assert find(names["f"]).node.name == "f"


def test_another_function_of_that_name_is_not_taken_for_it(typed):
    f = typed("def f(x):", "    return np.tanh(x)")
    typed("def f(x):", "    return np.sin(x)")
    assert written_lines(f.__code__) == []
    with pytest.raises(Unsupported, match="f has no source"):
        find(f)
