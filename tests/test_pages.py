"""The pages: their Python runs and prints what they say, their links lead somewhere, and the site has them all.

A ```python block runs; one that needs a library that is not always there says so in the line above: `<!-- needs torch
-->`. A ```py block is another library's code, shown and not run, and stands only where people come from that library.
"""

import ast
import doctest
import importlib.util
import inspect
import linecache
import pathlib
import re
import sys
import tomllib
import traceback
from typing import Any
from unittest import mock

import pytest

import autobatch

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NEWCOMER = "index tutorial first-hour ways examples limits howto/data howto/training howto/fast howto/debugging"
NEWCOMERS_PATH = [DOCS / f"{name}.md" for name in NEWCOMER.split()]  # what somebody reads before the first model runs
PROJECT = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md")
LINKED = [*PAGES, *(ROOT / name for name in PROJECT)]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
BLOCK = re.compile(r"^(?:<!-- needs (?P<needs>[\w, ]+) -->\n+)?```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^(?P<code>[^#\n]*?\S)\s+# -> (?P<value>.+)$")
FENCED = re.compile(r"^(?P<fence>```+)(?P<kind>[^\n]*)\n.*?^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "text", "console", "toml", "yaml", "dockerfile", ""}  # beside the ```py of docs/from
LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def run_markdown(text: str, filename: str, *, alone: bool = False) -> int:
    """Run the ```python blocks of a page in order, in one namespace; returns how many ran.

    `>>>` lines are doctests, which compile each statement by itself. Elsewhere `expression  # -> value` says what the
    expression prints; the block is compiled as a whole, as in a file, or each statement `alone`, as in a notebook.
    """
    namespace: dict[str, Any] = {"__name__": "page"}
    sources = {}
    count = 0
    for block in BLOCK.finditer(text):
        needs = re.findall(r"\w+", block["needs"] or "")
        if any(importlib.util.find_spec(library) is None for library in needs):
            continue
        count += 1
        line = text[: block.start("code")].count("\n") + 1
        code = block["code"]
        name = f"<{filename}, line {line}>"
        sources[name] = (len(code), None, code.splitlines(keepends=True), name)
        linecache.cache.update(sources)  # where a function's source is looked for
        if ">>>" in code:
            run_doctest(code, namespace, name)
        else:
            run_shown(code, namespace, name, alone)
    return count


def run_doctest(code: str, namespace: dict[str, Any], filename: str) -> None:
    test = doctest.DocTestParser().get_doctest(code, namespace, filename, filename, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    report: list[str] = []
    shown = traceback.format_exception_only
    with mock.patch.object(traceback, "format_exception_only", lambda *error: ["".join(shown(*error))]):
        runner.run(test, out=report.append, clear_globs=False)  # CPython 3.11.2 compares the last note only
    assert runner.failures == 0, "".join(report)
    namespace.update(test.globs)


def run_shown(code: str, namespace: dict[str, Any], filename: str, alone: bool) -> None:
    """The whole block first; then each expression that is shown."""
    tree = ast.parse(code, filename)
    for part in [ast.Module([statement], []) for statement in tree.body] if alone else [tree]:
        exec(compile(part, filename, "exec"), namespace)
    for row in code.splitlines():
        shown = SHOWN.match(row)
        if shown and not row.startswith((" ", "\t")):
            expression = re.sub(r"^\w[\w, ]* = ", "", shown["code"])
            actual = repr(eval(expression, namespace))
            assert actual == shown["value"].strip(), f"{filename}: {expression} is {actual}; it says {shown['value']}"


def named(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def as_a_file_and_as_a_notebook() -> list[Any]:
    """Each page in both forms; as a notebook by default only what newcomers paste into one."""
    first = {PAGES[0], *NEWCOMERS_PATH}
    slow = {page: () if page in first else (pytest.mark.slow,) for page in PAGES}
    return [
        *(pytest.param(page, False, id=named(page)) for page in PAGES),
        *(pytest.param(page, True, id=f"{named(page)}, as a notebook", marks=slow[page]) for page in PAGES),
    ]


@pytest.mark.parametrize(("page", "alone"), as_a_file_and_as_a_notebook())
def test_a_page_runs(page, alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it saves
    run_markdown(page.read_text(encoding="utf-8"), named(page), alone=alone)


def test_the_newcomers_path_is_short():
    """An hour of reading, code included."""
    words = {named(page): len(page.read_text(encoding="utf-8").split()) for page in NEWCOMERS_PATH}
    assert sum(words.values()) <= 9000, words


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_says_what_it_is(page):
    """What looks like Python is run, wherever it is indented to and whatever stands behind the word."""
    text = page.read_text(encoding="utf-8")
    own = KINDS | ({"py"} if page.parent.name == "from" else set())
    assert {block["kind"].strip() for block in FENCED.finditer(text)} <= own
    assert len(re.findall(r"```[ \t]*python", text)) == len(list(BLOCK.finditer(text)))


def words_to_avoid() -> list[str]:
    """The last column of the table of words in CONTRIBUTING.md; "way" has other meanings, too."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Words")[2]
    cells = re.findall(r"^\|[^|\n]*\|[^|\n]*\|([^|\n(]*)[^|\n]*\|$", text, re.MULTILINE)[2:]
    return [each.strip() for each in cells if each.strip() not in ("", "way")]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_uses_the_words_of_the_table(page):
    """Outside of code and quotations; the architecture says what the code calls a lane."""
    assert "on the fly" in words_to_avoid()
    prose = re.sub(r"`[^`]*`|\"[^\"]*\"", "", FENCED.sub("", page.read_text(encoding="utf-8")))
    words = [each for each in words_to_avoid() if each != "lane" or page.name != "architecture.md"]
    assert [each for each in words if re.search(rf"\b{each}s?\b", re.sub(r"\s+", " ", prose))] == []


def test_the_readme_runs():
    text = PAGES[0].read_text(encoding="utf-8")
    assert len(text.encode()) <= 6000
    assert len(list(BLOCK.finditer(text))) > 1


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("wrong", ["```python\nx = 1 + 1\nx  # -> 3\n```\n", "```python\n>>> 1 + 1\n3\n```\n"])
def test_a_wrong_page_is_noticed(wrong, alone):
    with pytest.raises(AssertionError, match="3"):
        run_markdown(wrong, "page.md", alone=alone)


@pytest.mark.parametrize("alone", [False, True])
def test_a_right_page_passes(alone):
    page = "```python\nx = 2\n```\ntext\n```python\n>>> x + 1\n3\n```\n"
    assert run_markdown(page, "page.md", alone=alone) == 2
    assert run_markdown("<!-- needs no_such_library -->\n```python\n1 / 0\n```\n", "page.md", alone=alone) == 0


def test_statements_are_compiled_alone():
    """A function's code object then comes from a module of that one statement, whose file holds the whole block."""
    compiled = []
    names = {"seen": lambda: compiled.append(sys._getframe(1).f_code)}
    run_shown("seen()\nseen()\n", names, "<cell>", False)
    assert compiled[0] is compiled[1]
    run_shown("seen()\nseen()\n", names, "<cell>", True)
    assert compiled[2] is not compiled[3]
    assert [code.co_filename for code in compiled] == ["<cell>"] * 4


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as Python-Markdown makes them, and those that it gives itself."""
    prose = FENCED.sub("", text)
    headings = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", each) for each in re.findall(r"^#+ (.+?)\s*$", prose, re.MULTILINE)]
    own = re.findall(r"\{\s*#([\w.-]+)\s*\}", prose) + re.findall(r"<a (?:id|name)=\"([\w.-]+)\"", prose)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in headings} | set(own)


def broken(page: pathlib.Path) -> list[str]:
    """The links of a page to files of ours that lead nowhere; those into our repository are read here."""
    found = []
    for first, second in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target, _, anchor = (first or second).partition("#")
        kept = re.fullmatch(rf"{re.escape(REPOSITORY)}/(?:blob|raw)/main/(.+)", target)
        if re.match(r"[a-z]+:", target) and not kept:
            continue
        folder = ROOT if kept else page.parent
        file = (folder / (kept[1] if kept else target)).resolve() if target else page
        inside = not page.is_relative_to(DOCS) or file.is_relative_to(DOCS)  # the site has no other files
        if not file.is_file() or not inside or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            found.append(first or second)
    return found


@pytest.mark.parametrize("page", LINKED, ids=named)
def test_links_lead_somewhere(page):
    assert broken(page) == []


def test_a_broken_link_is_noticed(tmp_path):
    (tmp_path / "there.md").write_text("# A `title`, with *marks*\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#a-title-with-marks) [c](there.md#no) ![d](no.svg) [e](https://x.y)\n")
    assert broken(page) == ["there.md#no", "no.svg"]


def test_the_readme_can_be_read_elsewhere():
    """A package index shows it without the files beside it."""
    links = LINK.findall(FENCED.sub("", PAGES[0].read_text(encoding="utf-8")))
    assert [first or second for first, second in links if not (first or second).startswith("https://")] == []


def test_no_page_installs_another_project():
    """The name `autobatch` is not ours in the package index: pages install a folder, or `autobatch-numpy`."""
    files = [*LINKED, *(ROOT / ".github").rglob("*.yml"), *(ROOT / "autobatch").rglob("*.py")]
    wrong = [
        f"{named(path)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"""\binstall\b.*[\s"'`]autobatch(?![-/\w.])""", line)
    ]
    assert wrong == []


def test_the_changelog_is_for_users():
    """Short enough to read; the repository's history has the rest."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    lines = {each.partition("\n")[0]: len(each.rstrip().splitlines()) for each in sections}
    assert lines.pop("[Unreleased]") <= 60
    assert {name: count for name, count in lines.items() if count > 40} == {}


def test_the_version_is_the_same_everywhere():
    """That of the package is the newest in the changelog, and the one to cite, with its date."""
    released = re.search(r"^## \[(\d\S*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert released
    assert released.groups() == (autobatch.__version__, re.search(r"^date-released: (\S+)$", citation, re.MULTILINE)[1])
    assert f"\nversion: {autobatch.__version__}\n" in citation


def test_the_project_has_one_address():
    """That of the repository, in what cites it, in where to report, and in the addresses that the index shows."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "mkdocs.yml", *PROJECT[1:4])}
    assert f"\nrepository-code: {REPOSITORY}\n" in texts["CITATION.cff"]
    assert all(f"({REPOSITORY}/security)" in texts[name] for name in ("SECURITY.md", "CODE_OF_CONDUCT.md"))
    site = re.search(r"^site_url: (\S+?)/?$", texts["mkdocs.yml"], re.MULTILINE)[1]
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"].values()
    assert [each for each in urls if not each.startswith((REPOSITORY, site))] == []
    kept = [each.removeprefix(f"{REPOSITORY}/blob/main/") for each in urls if "/blob/main/" in each]
    assert [name for name in kept if not (ROOT / name).is_file()] == []


def test_the_site_has_every_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[\w/-]+\.md", text.partition("\nnav:")[2])
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES[1:])


def test_the_reference_shows_each_public_name_once():
    """What no page names is put on docs/api/more.md when the site is built."""
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    shown = re.findall(r"^::: autobatch\.public\.(\w+)$", text, re.MULTILINE)
    assert len(shown) == len(set(shown))
    assert set(shown) <= set(dir(autobatch))
    for namespace in (autobatch.segments, autobatch.tables):
        shown = re.findall(rf"^::: {namespace.__name__}\.(\w+)$", text, re.MULTILINE)
        inner = {each for each in namespace.__all__ if inspect.ismodule(getattr(namespace, each))}
        assert len(shown) == len(set(shown))
        assert set(namespace.__all__) <= {*shown, *inner}
    assert "every other public name" in (DOCS / "api" / "more.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_workflows_run_what_there_is(path):
    text = path.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [each for each in re.findall(r"(?<![\w.])tests/[\w/.]+|\.ci/\w+", text) if not (ROOT / each).exists()] == []
    assert [each for each in re.findall(r"run: make ([\w-]+)", text) if f"\n{each}:" not in makefile] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = ",".join([*re.findall(r"-e \.\[([\w,]+)\]", text), *re.findall(r"extra: (\w+)", text)])
    assert set(filter(None, named.split(","))) <= set(extras)
