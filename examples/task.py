"""The task: predict the first word of a function's name from its body. Labels, vocabulary, split, examples.

From the functions of a folder:

1. Bodies with fewer than three names are dropped: there is nothing to read.
2. Names in a body that repeat the answer are removed: every name one of whose words starts with the first word of
   the function's own name. In a token sequence or a tree such a name becomes `<unknown>`, as rare names do.
3. Near-duplicates are dropped, across all files and labels: of functions whose bodies (after step 2) share 60 % of
   their token trigrams, the first stays.
4. The labels are the most frequent first words of what is left.
5. Files, never functions, are held out, chosen at random so that each label has about its share.
6. The vocabulary is made of the training files alone: what occurs thrice. The rest is `<unknown>`, id 0.

All three views are of tokens, a name as its words, and of pairs of them, as in fastText: a sequence and a bag hold each
token and its pair with the one before; a node of a tree its own words and their pairs with the node above. Long bodies
are cut: to the first `MAX_TOKENS` tokens, `MAX_WORDS` distinct tokens and pairs, and `MAX_NODES` nodes in pre-order.
"""

import contextlib
import functools
import gc
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.duplicates import first_of_each, shingles
from examples.source import (
    SourceFunction,
    Symbol,
    Tree,
    definitions,
    parse_files,
    read_function,
    stdlib_folder,
    words_of,
)

MIN_NAMES = 3
MAX_WORDS = 200
MAX_TOKENS = 100
MAX_NODES = 50
MIN_COUNT = 3
UNKNOWN = "<unknown>"


class Node:
    """A node of a syntax tree: what it is, and its children.

    Attributes:
        ids: (n,) int64, n >= 1: the words of a name, or the one symbol of anything else; and the pairs of these with
            the symbol of the node above.
        children: the nodes below it.
    """

    __slots__ = ("children", "ids")

    def __init__(self, ids: np.ndarray, children: list["Node"]) -> None:
        self.ids = ids
        self.children = children

    def size(self) -> int:
        return 1 + sum(child.size() for child in self.children)


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One function, three times: as a bag, as a sequence and as a tree.

    Attributes:
        label: index of the first word of its name in `Task.labels`.
        words: (n,) int64, n >= 1: its distinct tokens and pairs, in no particular order; unknown ones only if all are.
        tokens: (t, 2) int64, t >= 1: each token, and its pair with the one before.
        tree: its syntax tree.
        function: where it came from.
    """

    label: int
    words: np.ndarray
    tokens: np.ndarray
    tree: Node
    function: SourceFunction


@dataclass(frozen=True, slots=True)
class Task:
    """Examples of training files and of held-out files, and what their ids mean.

    Attributes:
        labels: the first words to tell apart, most frequent first.
        symbols: the vocabulary that every id of an example indexes; `symbols[0]` is `UNKNOWN`.
        read: how many functions were read; `kept` after near-duplicates and tiny bodies were dropped.
    """

    labels: tuple[str, ...]
    symbols: tuple[str, ...]
    train: list[Example]
    held_out: list[Example]
    read: int
    kept: int

    def majority(self) -> float:
        """The held-out accuracy of always answering the most frequent label of the training files."""
        answer = Counter(example.label for example in self.train).most_common(1)[0][0]
        return sum(example.label == answer for example in self.held_out) / len(self.held_out)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of nodes of syntax trees live until all are counted: garbage collections in between find nothing."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@_no_collection()
def load(
    folder: str | Path | None = None,
    *,
    num_labels: int = 20,
    held_out: float = 0.2,
    seed: int = 0,
    validation: int | None = None,
) -> Task:
    """The task on the functions of a folder; by default, the standard library of this Python.

    Args:
        folder: where `*.py` files are searched, at any depth.
        num_labels: how many first words, at most.
        held_out: the share of the examples that is held out.
        seed: of the choice of held-out files.
        validation: the seed of a second choice, among the training files. The files of the first choice are then left
            out, and those of the second take their place: to compare models without a look at the first.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: too few functions to have two labels, in training files and in held-out files.
    """
    root = stdlib_folder() if folder is None else Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}; give a folder that holds Python source files")
    read, functions = _read(root, 3 * num_labels)
    kept = _distinct(functions)
    counts = Counter(function.word for function in kept)
    labels = tuple(sorted(counts, key=lambda word: (-counts[word], word))[:num_labels])
    chosen = [function for function in kept if function.word in labels]
    train, held = _split(chosen, labels, held_out, seed)
    if validation is not None:
        train, held = _split(train, labels, held_out, validation)
    if len({function.word for function in train}) < 2 or not held:
        raise ValueError(
            f"{root} holds {len(chosen)} usable functions of {len(labels)} first words in "
            f"{len({function.file for function in chosen})} files; at least two first words in training files, and "
            "one more file to hold out, are needed: give a folder with more functions"
        )
    symbols = _vocabulary(train)
    number, ids = ({key: i for i, key in enumerate(keys)} for keys in (labels, symbols))

    def example(function: SourceFunction) -> Example:
        return Example(
            number[function.word],
            np.array([i for word in _words(function) if (i := ids.get(word))][:MAX_WORDS] or [0], np.int64),
            np.stack([_lookup(part[:MAX_TOKENS], ids) for part in _tokens(function)], axis=1),
            _node(function.tree, ids),
            function,
        )

    return Task(labels, symbols, [example(f) for f in train], [example(f) for f in held], read, len(kept))


def _read(root: Path, num_words: int) -> tuple[int, list[SourceFunction]]:
    """How many functions there are, and those with the most frequent first words (the others cannot become labels)."""
    found = [(node, file, around) for file, module in parse_files(root) for node, around in definitions(module)]
    counts = Counter(words_of(node.name)[:1] for node, _, _ in found)
    frequent = {word for word, _ in counts.most_common(num_words)}
    functions = [read_function(*where) for where in found if words_of(where[0].name)[:1] in frequent]
    return len(found), [hide_answer(function) for function in functions if function is not None]


def hide_answer(function: SourceFunction) -> SourceFunction:
    """The function with every name that repeats its answer replaced by a name without words."""

    def hidden(symbol: Symbol) -> Symbol:
        return () if _repeats(symbol, function.word) else symbol

    def hidden_tree(tree: Tree) -> Tree:
        symbol, children = tree
        return hidden(symbol), tuple(hidden_tree(child) for child in children)

    tokens = tuple(hidden(token) for token in function.tokens)
    return SourceFunction(
        function.word, function.file, function.line, function.name, tokens, hidden_tree(function.tree)
    )


@functools.cache
def _repeats(symbol: Symbol, answer: str) -> bool:
    return isinstance(symbol, tuple) and any(word.startswith(answer) for word in symbol)


def _distinct(functions: list[SourceFunction]) -> list[SourceFunction]:
    enough = [f for f in functions if sum(isinstance(token, tuple) and bool(token) for token in f.tokens) >= MIN_NAMES]
    return [enough[i] for i in first_of_each(shingles(function.tokens) for function in enough)]


def _split(
    functions: list[SourceFunction], labels: tuple[str, ...], share: float, seed: int
) -> tuple[list[SourceFunction], list[SourceFunction]]:
    """Training and held-out functions: a file is held out where that brings every label's share closer."""
    files: dict[str, Counter[str]] = {}
    for function in functions:
        files.setdefault(function.file, Counter())[function.word] += 1
    order = sorted(files)
    random.Random(seed).shuffle(order)
    missing = {word: share * sum(counts[word] for counts in files.values()) for word in labels}
    held = set()
    for file in order:
        counts = files[file]
        if sum(abs(missing[word] - n) - abs(missing[word]) for word, n in counts.items()) < 0:
            held.add(file)
            for word, n in counts.items():
                missing[word] -= n
    return [f for f in functions if f.file not in held], [f for f in functions if f.file in held]


def _vocabulary(functions: list[SourceFunction]) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for function in functions:
        for part in _tokens(function):
            counts.update(part)
        counts.update(key for tree, above in _preorder(function.tree) for key in _keys(tree, above))
    del counts[UNKNOWN]
    return (UNKNOWN, *sorted(key for key, count in counts.items() if count >= MIN_COUNT))


def _tokens(function: SourceFunction) -> tuple[list[str], list[str]]:
    """The tokens of a body, a name as its words, and the pair of each with the one before."""
    tokens = _flat(function.tokens)
    return tokens, [f"{a} {b}" for a, b in itertools.pairwise(["", *tokens])]


def _words(function: SourceFunction) -> list[str]:
    """The distinct tokens of a body, then the distinct pairs."""
    return list(dict.fromkeys(itertools.chain(*_tokens(function))))


def _keys(tree: Tree, above: Symbol) -> list[str]:
    """What a node is known by: its words, and their pairs with the symbol above."""
    words = _flat([tree[0]])
    return words + [f"{above} > {word}" for word in words]


def _flat(symbols: Iterable[Symbol]) -> list[str]:
    """Names as their words; one without words is unknown."""
    return [part for symbol in symbols for part in ((symbol,) if isinstance(symbol, str) else symbol or (UNKNOWN,))]


def _preorder(tree: Tree) -> Iterator[tuple[Tree, Symbol]]:
    """Every node, with the symbol of the node above it."""
    stack: list[tuple[Tree, Symbol]] = [(tree, "")]
    while stack:
        tree, above = stack.pop()
        yield tree, above
        stack.extend((child, tree[0]) for child in reversed(tree[1]))


def _lookup(symbols: Iterable[str], ids: dict[str, int]) -> np.ndarray:
    return np.array([ids.get(symbol, 0) for symbol in symbols], np.int64)


def _node(tree: Tree, ids: dict[str, int]) -> Node:
    """The first `MAX_NODES` nodes of a tree in pre-order."""
    root = Node(_lookup((), ids), [])
    stack: list[tuple[Tree, Symbol, Node]] = [(tree, "", root)]
    for _ in range(MAX_NODES):
        if not stack:
            break
        below, above, parent = stack.pop()
        node = Node(_lookup(_keys(below, above), ids), [])
        parent.children.append(node)
        stack.extend((child, below[0], node) for child in reversed(below[1]))
    return root.children[0]
