"""The README's Python runs, and prints what it says it prints."""

import doctest
import linecache
import pathlib
import re
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^(?P<code>[^#\n]*?\S)\s+# -> (?P<value>.+)$")


def run_markdown(text: str, filename: str) -> int:
    """Run the ```python blocks of a page in order, in one namespace; returns how many there were.

    `>>>` lines are doctests. Elsewhere `expression  # -> value` says what the expression prints.
    """
    namespace: dict[str, Any] = {"__name__": "readme"}
    sources = {}
    count = 0
    for block in BLOCK.finditer(text):
        count += 1
        line = text[: block.start(1)].count("\n") + 1
        code = block.group(1)
        name = f"<{filename}, line {line}>"
        sources[name] = (len(code), None, code.splitlines(keepends=True), name)
        linecache.cache.update(sources)  # where a function's source is looked for
        if ">>>" in code:
            run_doctest(code, namespace, name)
        else:
            run_shown(code, namespace, name)
    return count


def run_doctest(code: str, namespace: dict[str, Any], filename: str) -> None:
    test = doctest.DocTestParser().get_doctest(code, namespace, filename, filename, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    report: list[str] = []
    runner.run(test, out=report.append, clear_globs=False)
    assert runner.failures == 0, "".join(report)
    namespace.update(test.globs)


def run_shown(code: str, namespace: dict[str, Any], filename: str) -> None:
    """The whole block first; then each expression that is shown."""
    exec(compile(code, filename, "exec"), namespace)
    for row in code.splitlines():
        shown = SHOWN.match(row)
        if shown and not row.startswith((" ", "\t")):
            expression = shown["code"].split(" = ")[0]
            actual = repr(eval(expression, namespace))
            assert actual == shown["value"].strip(), f"{filename}: {expression} is {actual}; it says {shown['value']}"


def test_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it saves
    assert run_markdown(README.read_text(encoding="utf-8"), README.name) > 0


@pytest.mark.parametrize("wrong", ["```python\nx = 1 + 1\nx  # -> 3\n```\n", "```python\n>>> 1 + 1\n3\n```\n"])
def test_a_wrong_page_is_noticed(wrong):
    with pytest.raises(AssertionError, match="3"):
        run_markdown(wrong, "page.md")


def test_a_right_page_passes():
    assert (
        run_markdown(
            "```python\nx = 2\n```\ntext\n```python\nx  # -> 2\n>>> x + 1\n3\n```\n".replace("x  # -> 2\n", ""), "p"
        )
        == 2
    )
