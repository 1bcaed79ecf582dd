"""Which random changes of the package do the tests see?

    python -m tests.mutate --count 200 --seed 1 [--jobs 2] [--under autobatch/lockstep] [--least 95]

A mutant changes one thing: an operator, a comparison, a condition (negated), a constant or what is returned. Kinds are
drawn equally often, then a place of that kind anywhere in the package. Each mutant is made in a temporary copy of the
repository; there the tests of its folder run, those named like its file first, up to the first that fails. A mutant
that no test fails for *survived*: its diff is printed at the end. The same seed on the same sources draws the same
mutants. The exit status is 0 where at least `--least` percent were seen, 1 otherwise.

Not drawn: what only a person reads (`raise`, `assert`, `__repr__`, f-strings, `warn`), annotations, `strict=` of `zip`,
and the numbers that the code is tuned by (`_LEAST_ELEMENTS = 4096`), which by the law change no result.
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import difflib
import itertools
import os
import pathlib
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

__all__ = ["Mutant", "draw", "main", "mutants"]

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The tests of a folder are those of its name in tests/; of those without, these.
TESTS = {
    "core": ["ops", "batches", "lazy", "lockstep"],
    "facts": ["facts", "lockstep", "lazy"],
    "ops": ["ops", "numpy_functions"],
    "kernels": ["kernels", "tables"],
    "autodiff": ["ops", "blocks", "tables", "lazy"],
    "rewrite": ["rewrite", "lockstep", "lazy"],
    "optim": ["optim", "tables"],
    "api": ["lockstep", "lazy", "testing", "test_bad_input.py"],
    "report": ["report", "lazy/test_explain.py", "testing"],
    "cli": ["cli", "testing"],
    "autobatch": ["test_architecture.py", "testing"],
    "errors.py": ["testing", "lockstep", "tables"],
}
ALWAYS = ["test_programs.py"]

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

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        before, after = (x.decode().splitlines(keepends=True) for x in (source, self.applied(source)))
        return "".join(difflib.unified_diff(before, after, self.path, self.path, n=2))


class _Finder(ast.NodeVisitor):
    """Finds the mutants of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.lines = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
        self.found: list[Mutant] = []

    def place(self, node: ast.expr) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[end_line - 1] + end_column

    def add(self, kind: str, start: int, end: int, text: str) -> None:
        self.found.append(Mutant(self.path, start, end, text, kind))

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

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for each in () if node.name in ("__repr__", "__str__") else node.body:
            self.visit(each)


def mutants(path: pathlib.Path) -> list[Mutant]:
    """Every mutant of one file, in the order of the text."""
    source = path.read_bytes()
    finder = _Finder(str(path.relative_to(ROOT)), source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found))


def draw(count: int, seed: int, under: str = "autobatch") -> list[Mutant]:
    """As many different mutants, at random: the kind first, then the place."""
    by_kind: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for path in sorted((ROOT / under).rglob("*.py")) if (ROOT / under).is_dir() else [ROOT / under]:
        for mutant in mutants(path):
            by_kind[mutant.kind].append(mutant)
    choices = random.Random(seed)
    for places in by_kind.values():
        choices.shuffle(places)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(by_kind.values()):
        drawn.append(by_kind[choices.choice([kind for kind in KINDS if by_kind[kind]])].pop())
    return drawn


def tests_of(path: str) -> list[str]:
    """The tests that may see a mutant of this file: those of its own name first, then its folder's."""
    parts = pathlib.Path(path).parts
    folder = parts[1] if len(parts) > 1 else parts[0]
    named = [ROOT / "tests" / name for name in TESTS.get(folder, [folder])]
    words = set(re.findall(r"[a-z]+", pathlib.Path(path).stem))
    files: list[pathlib.Path] = []
    for each in (each for each in named if each.exists()):
        files += sorted(each.rglob("test_*.py")) if each.is_dir() else [each]
    alike = lambda file: -len(words & set(re.findall(r"[a-z]+", file.stem.removeprefix("test_"))))
    files = [*sorted(files, key=alike), *(ROOT / "tests" / name for name in ALWAYS)]
    return [path, *(str(file.relative_to(ROOT)) for file in dict.fromkeys(files))]


class Copy:
    """A copy of the repository in which one mutant at a time is tried."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.written = time.time()
        skipped = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".*_cache", "*.egg-info", "shared")
        shutil.copytree(ROOT, folder, ignore=skipped)

    def write(self, path: str, source: bytes) -> None:
        """Write a file, as of another second than before: what is compiled of it is kept by its time and size."""
        (self.folder / path).write_bytes(source)
        self.written += 2
        os.utime(self.folder / path, (self.written, self.written))
        if "kernels" in path:  # compiled into callers, which do not know that it has changed
            for compiled in self.folder.rglob("*.nb[ic]"):
                compiled.unlink()

    def fails(self, tests: list[str], timeout: float) -> bool:
        """Whether a test fails, or does not come to an end."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "AUTOBATCH_CACHE_DIR": str(self.folder / ".kernels"),
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        ) as run:  # fmt: skip
            try:
                return run.wait(timeout) != 0
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, 9)  # with what the tests started
                return True

    def sees(self, mutant: Mutant, timeout: float) -> bool:
        source = (ROOT / mutant.path).read_bytes()
        self.write(mutant.path, mutant.applied(source))
        try:
            return self.fails(tests_of(mutant.path), timeout)
        finally:
            self.write(mutant.path, source)


def tried(drawn: list[Mutant], jobs: int, timeout: float) -> Iterator[tuple[Mutant, bool, float]]:
    """Each mutant, whether it was seen and after how many seconds, as they come."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(pathlib.Path(folder, str(number))))

        def one(mutant: Mutant) -> tuple[Mutant, bool, float]:
            start, copy = time.monotonic(), copies.get()
            try:
                return mutant, copy.sees(mutant, timeout), time.monotonic() - start
            finally:
                copies.put(copy)

        for done in concurrent.futures.as_completed([pool.submit(one, mutant) for mutant in drawn]):
            yield done.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="how many mutants (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice (1)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (1)")
    parser.add_argument("--under", default="autobatch", help="a folder or file of the package (all of it)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for the tests of one mutant (900)")
    parser.add_argument("--least", type=float, default=95, help="percent that must be seen (95)")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    asked = parser.parse_args()
    drawn = draw(asked.count, asked.seed, asked.under)
    source = {mutant.path: (ROOT / mutant.path).read_bytes() for mutant in drawn}
    if asked.list:
        print("\n".join(mutant.diff(source[mutant.path]) for mutant in drawn))
        return 0
    survived = []
    for number, (mutant, seen, seconds) in enumerate(tried(drawn, asked.jobs, asked.timeout), 1):
        line = source[mutant.path].count(b"\n", 0, mutant.start) + 1
        said = "seen    " if seen else "survived"
        print(f"{number:4d} {said} {mutant.path}:{line} ({mutant.kind}, {seconds:.0f} s)", flush=True)
        survived += [] if seen else [mutant]
    for mutant in sorted(survived):
        print(f"\nsurvived: {mutant.kind}\n{mutant.diff(source[mutant.path])}")
    share = 100 * (1 - len(survived) / max(len(drawn), 1))
    print(f"\n{len(drawn) - len(survived)} of {len(drawn)} seen ({share:.1f} %), seed {asked.seed}")
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
