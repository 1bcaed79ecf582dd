"""The loader: what it reads, what it hides, what it drops, how it splits."""

import ast

import numpy as np
import pytest

from examples.duplicates import first_of_each, shingles
from examples.source import definitions, read_function, source_files, words_of
from examples.task import MAX_NODES, MAX_TOKENS, UNKNOWN, hide_answer, load


def read(text, name=None):
    found = [(node, around) for node, around in definitions(ast.parse(text)) if name in (None, node.name)]
    return read_function(found[0][0], "file.py", found[0][1])


def names(function):
    return [token for token in function.tokens if isinstance(token, tuple)]


def tree_names(tree):
    own = [tree[0]] if isinstance(tree[0], tuple) else []
    return own + [name for child in tree[1] for name in tree_names(child)]


@pytest.fixture
def folder(tmp_path):
    """Ten files; in each a `get_`, a `set_` and a `read_` function of its own words."""
    for i, end in enumerate("abcdefghij"):
        body = "\n".join(
            f"def {verb}_it(self):\n    {verb}_it = p{verb}{end}.q{verb}{end} + p{verb}{end}.r{verb}{end}\n"
            f"    return s{verb}{end}({verb}_it, {f't{verb}{end}, ' * (i + 1)})\n"
            for verb in ("get", "set", "read")
        )
        (tmp_path / f"f{i}.py").write_text(body)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [("_getHTTPName2", ("get", "http", "name", "2")), ("__", ()), ("read_line", ("read", "line")), ("X", ("x",))],
)
def test_words_of(name, words):
    assert words_of(name) == words


def test_a_body_has_no_text_annotation_or_enclosed_body():
    lines = ['"doc words"', 'b: hint = "text"', "def inner(c): return hidden", 'return f"{a} text"']
    function = read("def f(a: hint):\n" + "".join(f"    {line}\n" for line in lines), "f")
    assert names(function) == [("b",), ("inner",), ("c",), ("a",)]
    assert sorted(tree_names(function.tree)) == [("a",), ("b",), ("c",), ("inner",)]
    assert function.tokens.count("<string>") == 2


def test_enclosed_functions_and_methods_count_once_and_special_methods_do_not():
    text = "class A:\n    def __init__(self): pass\n    def run(self):\n        def go(): pass\n"
    assert sorted(f"{around}{node.name}" for node, around in definitions(ast.parse(text))) == ["A.run", "A.run.go"]


def test_the_answer_is_hidden_everywhere():
    function = hide_answer(
        read("def read_all(self):\n    return self.readline(self.reader.buffer_read, unread, ready)\n")
    )
    assert [name for name in names(function) if name] == [("self",), ("self",), ("unread",)]
    assert [name for name in tree_names(function.tree) if name].count(("unread",)) == 1
    assert not any(word.startswith("read") for name in tree_names(function.tree) for word in name)


def test_near_duplicates_keep_the_first():
    long = list(range(30))
    assert first_of_each(shingles(x) for x in (long, [*long, 99], [9, 8, 7, 6])) == [0, 2]


def test_tests_and_installed_packages_are_left_out(tmp_path):
    for name in ("a.py", "test/b.py", "pkg/tests/c.py", "site-packages/d.py", "pkg/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert [path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)] == ["a.py", "pkg/e.py"]


def test_the_split_is_by_file_and_repeats_itself(folder):
    (folder / "broken.py").write_text("def (:")
    (folder / "latin.py").write_bytes(b"x = '\xff'")
    one, two = load(folder), load(folder)
    files = [{example.function.file for example in part} for part in (one.train, one.held_out)]
    assert one.labels == ("get", "read", "set")
    assert files[0].isdisjoint(files[1])
    assert len(one.train) > len(one.held_out) > 0
    assert [e.function for e in one.held_out] == [e.function for e in two.held_out]
    assert all(np.array_equal(a.words, b.words) for a, b in zip(one.train, two.train, strict=True))


def test_the_vocabulary_is_of_the_training_files(folder):
    task = load(folder)
    assert task.symbols[0] == UNKNOWN
    ends = {"abcdefghij"[int(example.function.file[1])] for example in task.train}
    assert {symbol for symbol in task.symbols if symbol.startswith("tget") and symbol.isalpha()} <= {
        f"tget{end}" for end in ends
    }
    assert "<return> sgeta" not in task.symbols  # it occurs once
    assert {"<return>", "<newline> <return>", "<Call> > <unknown>"} & set(task.symbols)


def test_validation_files_are_training_files(folder):
    task, inner = load(folder), load(folder, validation=1)
    training = {example.function.file for example in task.train}
    validation = {example.function.file for example in inner.held_out}
    assert validation < training
    assert {example.function.file for example in inner.train} == training - validation


def test_each_view_holds_the_tokens_and_their_pairs(folder):
    task = load(folder)
    example = next(example for example in task.train if example.function.word == "get")
    spelt = [[task.symbols[i] for i in row] for row in example.tokens]
    assert spelt[0][0] == UNKNOWN  # the name that repeats the answer
    assert ["<return>", "<newline> <return>"] in spelt
    bag = {task.symbols[i] for i in example.words}
    assert {"<return>", "<newline> <return>"} <= bag
    assert UNKNOWN not in bag
    assert "<body> > <Return>" in {task.symbols[i] for child in example.tree.children for i in child.ids}


def test_long_bodies_are_cut(folder):
    (folder / "g.py").write_text("def get_long(x):\n" + "".join(f"    x.a{i}(x.b{i})\n" for i in range(300)))
    longest = max((*load(folder).train, *load(folder).held_out), key=lambda example: len(example.tokens))
    assert len(longest.tokens) == MAX_TOKENS
    assert longest.tree.size() == MAX_NODES


def test_too_little_to_learn_from_is_said(tmp_path):
    with pytest.raises(ValueError, match="0 usable functions"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        load(tmp_path / "none")
