"""Which random changes of the package do the tests see?

    python -m tests.mutate --count 200 --seed 1 [--jobs 2] [--under autobatch/lockstep] [--least 95]
    python -m tests.mutate --count 200 --seed 1 --resume /tmp/seen.json

A mutant changes one thing: an operator, a comparison, a condition (negated), a constant or what is returned. Kinds are
drawn equally often, then a place of that kind anywhere in the package. Each is tried in a temporary copy of the
repository, up to the first test that fails, which is named. All that can be switched on and off are in one copy, whose
tests are collected once and tried file by file on the mutants that they reach (`tests/switches.py`); the others, and
those that no test reaches there, are tried one by one on the tests of their folder, those nearest to their place first.
A mutant that no test fails for *survived*: its diff is printed at the end. One whose tests took too long is not known,
and does not count as seen.
The same seed draws the same mutants, also after lines elsewhere have changed: each place has a number, made of the seed
and of what the place says, and the lowest are taken. So the draw that found what was missing shows that it is mended; a
new seed tells how much is not yet seen. With `--resume`, a second run tries only those that the first did not see.
The exit status is 0 where at least `--least` percent were seen, 1 otherwise.

Not drawn: what only a person reads (`raise`, `assert`, `__repr__`, f-strings, `warn`), annotations, `strict=` of `zip`,
and the numbers that the code is tuned by (`_LEAST_ELEMENTS = 4096`), which by the law change no result.
"""

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.switches import Driver, switched

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The tests of a folder are those of its name in tests/; of those without, these.
TESTS = {
    "batches/data": ["data", "batches"],
    "core": ["ops", "batches", "lazy", "lockstep"],
    "facts": ["facts", "lockstep", "lazy"],
    "ops": ["ops", "numpy_functions", "lazy"],
    "kernels": ["kernels", "tables"],
    "kernels/compiled_code": ["compiled", "kernels"],
    "autodiff": ["ops", "blocks", "tables", "lazy"],
    "tables": ["tables", "checkpoint"],
    "optim": ["optim", "tables"],
    "api": ["lockstep", "lazy", "testing", "test_bad_input.py"],
    "report": ["report", "testing"],
    "cli": ["cli", "testing"],
    "autobatch": ["test_architecture.py", "testing"],
    "errors.py": ["testing", "lockstep", "tables"],
}
ALWAYS = ["test_programs.py"]
_AT_ONCE = 6  # test files that one run of pytest collects
_HANGS = 120  # seconds after which a test does not come to an end
_LONGEST = 600  # seconds for the tests of one file, on a busy machine

OPERATORS = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "+", "@": "*", "**": "*", "&": "|", "|": "&",
             "<<": ">>", ">>": "<<", "^": "&"}  # fmt: skip
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
               "in": "not in", "not in": "in"}  # fmt: skip
KINDS = ("operator", "comparison", "condition", "constant", "return")


@dataclasses.dataclass(frozen=True, order=True)
class Mutant:
    """One change: bytes `start` to `end` of a file become `text`."""

    path: str
    start: int
    end: int
    text: str
    kind: str
    place: str = dataclasses.field(compare=False)  # its definition, its line, and which of equal ones it is

    def drawn(self, seed: int) -> bytes:
        """A number of the seed and the place."""
        return hashlib.sha256(f"{seed}:{self.path}:{self.place}:{self.kind}:{self.text}".encode()).digest()

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        before, after = (x.decode().splitlines(keepends=True) for x in (source, self.applied(source)))
        return "".join(difflib.unified_diff(before, after, self.path, self.path, n=2))


class _Finder(ast.NodeVisitor):
    """Finds the mutants of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.inside: list[str] = []
        self.equal = collections.Counter[tuple[str, str, str]]()
        self.lines = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
        self.found: list[Mutant] = []

    def place(self, node: ast.expr) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[end_line - 1] + end_column

    def add(self, kind: str, start: int, end: int, text: str) -> None:
        line = self.source[self.source.rfind(b"\n", 0, start) + 1 :].partition(b"\n")[0].strip().decode()
        which = f"{'.'.join(self.inside)}: {line}", kind, text
        self.equal[which] += 1
        self.found.append(Mutant(self.path, start, end, text, kind, f"{which[0]} ({self.equal[which]})"))

    def between(self, kind: str, left: ast.expr, right: ast.expr, words: dict[str, str]) -> None:
        """The operator that stands between two expressions, beside parentheses and comments."""
        start, end = self.place(left)[1], self.place(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:end])
        word = re.search(rb"[^\s()\\]+(\s+(not|in)\b)?", gap)
        if word and (text := words.get(" ".join(word[0].decode().split()))):
            self.add(kind, start + word.start(), start + word.end(), text)

    def condition(self, test: ast.expr) -> None:
        start, end = self.place(test)
        self.add("condition", start, end, f"(not ({self.source[start:end].decode()}))")
        self.visit(test)

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            super().visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.between("operator", node.left, node.right, OPERATORS)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in itertools.pairwise([node.left, *node.comparators]):
            self.between("comparison", left, right, COMPARISONS)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in itertools.pairwise(node.values):
            self.between("condition", left, right, {"and": "or", "or": "and"})
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, ast.Constant) and "TYPE_CHECKING" not in ast.unparse(node.test):
            start, end = self.place(node.test)
            self.add("condition", start, end, f"(not ({self.source[start:end].decode()}))")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.visit_If(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit_If(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool | int | float):
            text = repr(not node.value) if isinstance(node.value, bool) else repr(node.value + 1)
            self.add("constant", *self.place(node), text)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.expr) and not isinstance(node.value, ast.Constant):
            self.add("return", *self.place(node.value), "None")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func).rpartition(".")[2] not in ("warn", "add_note", "TypeVar"):
            self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip: it only ever raises
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        number = re.fullmatch(r"[\d._eE+\-* <()]+", ast.unparse(node.value))
        if not (number and any(name.isupper() for name in names)):
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.inside.append(node.name)
        for each in () if node.name in ("__repr__", "__str__") else node.body:
            self.visit(each)
        self.inside.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_FunctionDef(node)


def mutants(path: pathlib.Path) -> list[Mutant]:
    """Every mutant of one file, in the order of the text."""
    source = path.read_bytes()
    finder = _Finder(str(path.relative_to(ROOT)), source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found))


def draw(count: int, seed: int, under: str = "autobatch") -> list[Mutant]:
    """As many different mutants, at random: equally many of each kind, at any places."""
    by_kind: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for path in sorted((ROOT / under).rglob("*.py")) if (ROOT / under).is_dir() else [ROOT / under]:
        for mutant in mutants(path):
            by_kind[mutant.kind].append(mutant)
    for places in by_kind.values():
        places.sort(key=lambda mutant: mutant.drawn(seed))
    in_turns = itertools.chain.from_iterable(itertools.zip_longest(*by_kind.values()))
    return list(itertools.islice(filter(None, in_turns), count))


@functools.cache
def words_of(path: pathlib.Path) -> frozenset[str]:
    """The identifiers of a file, those in text too: many tests hold their programs as text."""
    return frozenset(re.findall(r"[A-Za-z]\w{2,}", path.read_text(encoding="utf-8")))


def tests_of(mutant: Mutant) -> list[str]:
    """The tests that may see a mutant: its module's doctests, then its folder's, nearest first.

    Near is a test file that names what the mutant is in, or other words of its module that few test files have.
    """
    parts = pathlib.Path(mutant.path).parts
    folder = parts[1] if len(parts) > 1 else parts[0]
    inner = "/".join(parts[1:-1])
    named = [ROOT / "tests" / name for name in [*TESTS.get(inner, TESTS.get(folder, [folder])), *ALWAYS]]
    files = [file for each in named for file in (sorted(each.rglob("test_*.py")) if each.is_dir() else [each])]
    files = [file for file in dict.fromkeys(files) if file.exists()]
    source = (ROOT / mutant.path).read_bytes()
    stem = set(re.findall(r"[a-z]+", pathlib.Path(mutant.path).stem))
    near = set(enclosing(source, mutant.start))
    words = near | (words_of(ROOT / mutant.path) & public_words(source))
    spread = {word: sum(word in words_of(file) for file in files) for word in words}

    def nearness(file: pathlib.Path) -> float:
        has = words_of(file) & words
        alike = 2.0 * len(stem & set(re.findall(r"[a-z]+", file.stem.removeprefix("test_"))))
        return alike + sum((4 if word in near else 1) / spread[word] for word in has)

    return [mutant.path, *(str(file.relative_to(ROOT)) for file in sorted(files, key=nearness, reverse=True))]


def enclosing(source: bytes, place: int) -> list[str]:
    """The names of the functions and classes that a place is in, without underscores around them."""
    line = source.count(b"\n", 0, place) + 1
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [node.name.strip("_") for node in nodes if node.lineno <= line <= (node.end_lineno or 0)]


def public_words(source: bytes) -> set[str]:
    """The names that a module defines, without underscores around them."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return {node.name.strip("_") for node in nodes}


class Copy:
    """A copy of the repository in which one mutant at a time is tried."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.written = time.time()
        skipped = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".*_cache", "*.egg-info", "shared")
        shutil.copytree(ROOT, folder, ignore=skipped)

    def switch(self, drawn: list[Mutant]) -> set[int]:
        """Put a switch before each mutant that can have one; the numbers of those."""
        numbers: set[int] = set()
        for path in sorted({mutant.path for mutant in drawn}):
            source = (ROOT / path).read_bytes()
            here = {i: (each.start, each.applied(source)) for i, each in enumerate(drawn) if each.path == path}
            text, have = switched(source, here)
            if have and "/kernels/" not in path:
                (self.folder / path).write_text(text, encoding="utf-8")
                numbers |= have
        return numbers

    def collected(self, driver: Driver) -> None:
        """Have pytest collect all tests of this copy, in this process, for the driver."""
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests" and name != "tests.switches"]:
            del sys.modules[name]
        sys.path[:] = [str(self.folder), *(path for path in sys.path if pathlib.Path(path).resolve() != ROOT)]
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder)
        pytest.main(
            ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler", f"--timeout={_HANGS}"],
            plugins=[driver],
        )
        os.chdir(ROOT)

    def write(self, path: str, source: bytes) -> None:
        """Write a file, as of another second than before: what is compiled of it is kept by its time and size."""
        (self.folder / path).write_bytes(source)
        self.written += 2
        os.utime(self.folder / path, (self.written, self.written))

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The mutant in place. What is compiled and kept on disk is named after the text of all kernels."""
        source = (ROOT / mutant.path).read_bytes()
        self.write(mutant.path, mutant.applied(source))
        try:
            yield
        finally:
            (self.folder / mutant.path).write_bytes(source)
            original = (ROOT / mutant.path).stat()
            os.utime(self.folder / mutant.path, ns=(original.st_atime_ns, original.st_mtime_ns))

    def failing(self, tests: list[str], limit: float, **settings: str) -> str | None:
        """The first test that fails or does not come to an end, with these environment variables; None if all pass.

        Raises:
            subprocess.TimeoutExpired: after as many seconds in all.
        """
        environment = {**os.environ, "PYTHONPATH": str(self.folder), **settings}
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no",
            f"--timeout={_HANGS}", *tests,
        ]  # fmt: skip
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, text=True,
        ) as run:  # fmt: skip
            try:
                said, _ = run.communicate(timeout=limit)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.pid, 9)  # with what the tests started
        if run.returncode in (0, 5):  # all pass; there are none
            return None
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return found[1] if found else f"pytest itself, exit status {run.returncode}"

    def verdict(self, mutant: Mutant, limit: float) -> str:
        """The name of the test that sees it, "" if none does, "?" if that was not known in time."""
        tests, end = tests_of(mutant), time.monotonic() + limit
        turns = [(tests[at : at + _AT_ONCE], "0") for at in range(0, len(tests), _AT_ONCE)]
        if "kernels" in mutant.path:  # as `make test` does: Python runs them, and nothing has to be compiled
            turns.insert(0, (["tests/kernels"], "1"))
        with self.mutated(mutant):
            for now, disabled in turns:
                try:
                    if seen := self.failing(now, max(end - time.monotonic(), 1), NUMBA_DISABLE_JIT=disabled):
                        return seen
                except subprocess.TimeoutExpired:
                    return "?"
        return ""


def try_all(drawn: list[Mutant], asked: argparse.Namespace, tell: Callable[[Mutant, str, float], None]) -> None:
    """Try mutants, and tell of each the verdict and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(pathlib.Path(folder, "switched"))
        numbers = copy.switch(drawn)
        if numbers:
            driver = Driver(
                numbers, lambda number: tests_of(drawn[number]), lambda number, *said: tell(drawn[number], *said),
                jobs=asked.jobs, limit=_LONGEST,
            )  # fmt: skip
            copy.collected(driver)
            numbers -= driver.untried
        copies = queue.SimpleQueue[Copy]()
        for job in range(asked.jobs):
            copies.put(Copy(pathlib.Path(folder, f"one{job}")))

        def try_one(mutant: Mutant) -> None:
            start, copy = time.monotonic(), copies.get()
            verdict = copy.verdict(mutant, asked.limit)
            copies.put(copy)
            with telling:
                tell(mutant, verdict, time.monotonic() - start)

        telling = threading.Lock()
        with concurrent.futures.ThreadPoolExecutor(asked.jobs) as threads:
            list(threads.map(try_one, [drawn[number] for number in sorted({*range(len(drawn))} - numbers)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="how many mutants (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice (1)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (1)")
    parser.add_argument("--under", default="autobatch", help="a folder or file of the package (all of it)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the tests of one mutant (900)")
    parser.add_argument("--least", type=float, default=95, help="percent that must be seen (95)")
    parser.add_argument("--resume", type=pathlib.Path, help="a file: what it says was seen is not tried again")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    asked = parser.parse_args()
    drawn = draw(asked.count, asked.seed, asked.under)
    source = {mutant.path: (ROOT / mutant.path).read_bytes() for mutant in drawn}
    diffs = {mutant: mutant.diff(source[mutant.path]) for mutant in drawn}
    keys = {
        mutant: re.sub(r"^@@.*\n", "", diff, flags=re.MULTILINE) for mutant, diff in diffs.items()
    }  # wherever it is
    if asked.list:
        print("\n".join(diffs.values()))
        return 0
    seen: dict[str, str] = json.loads(asked.resume.read_text()) if asked.resume and asked.resume.exists() else {}
    verdicts = {mutant: seen[key] for mutant, key in keys.items() if key in seen}
    rest = [mutant for mutant in drawn if mutant not in verdicts]

    def tell(mutant: Mutant, test: str, seconds: float) -> None:
        verdicts[mutant] = test
        line = source[mutant.path].count(b"\n", 0, mutant.start) + 1
        said = {"": "SURVIVED", "?": "not known in time"}.get(test, f"seen by {test}")
        print(f"{len(verdicts):4d} {mutant.path}:{line} ({mutant.kind}, {seconds:.0f} s) {said}", flush=True)
        if asked.resume and test not in ("", "?"):
            seen[keys[mutant]] = test
            asked.resume.write_text(json.dumps(seen))

    try_all(rest, asked, tell)
    survived = sorted(mutant for mutant, test in verdicts.items() if test in ("", "?"))
    for mutant in survived:
        print(f"\n{'not known in time' if verdicts[mutant] else 'survived'}: {mutant.kind}")
        print(diffs[mutant])
    share = 100 * (1 - len(survived) / max(len(drawn), 1))
    print(f"\n{len(drawn) - len(survived)} of {len(drawn)} seen ({share:.1f} %), seed {asked.seed}")
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
