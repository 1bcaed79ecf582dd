"""Random numeric programs, compiled, give what Python gives: values, exact types, bits, exceptions and warnings.

python -m tests.compiled.test_fuzz compiled_text --seed 5000 --count 1000
"""

import collections
import functools
import linecache
import math
import random
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest

from autobatch.compiled.compiled_map import compiled_map
from autobatch.errors import Unsupported
from tests.compiled.interpreted import interpreted
from tests.compiled.law import same, wait_until_compiled
from tests.fuzz import by_seed, main

pytestmark = pytest.mark.fuzz

_SCALARS = ("a", "b", "c", "d")
_DTYPES = (np.float64, np.float64, np.int64, np.float32, np.int32, np.bool_, np.uint8)
_SPECIAL = {
    "f8": (0.0, -0.0, 1.0, -2.5, np.inf, np.nan, 1e300, 0.1), "f4": (0.0, -0.0, np.inf, np.nan, 1e30, 0.1),
    "i8": (0, 1, -1, 7, 2**62), "i4": (0, -1, 2**31 - 1), "u1": (0, 1, 255), "b1": (0, 1),
}  # fmt: skip
_FUNCTIONS = ("float", "int", "bool", "np.float64", "np.sqrt", "np.exp", "math.floor", "np.abs", "math.atan")


def _binds_from_the_right() -> bool:
    """True where Python itself leaves `c` by `c, c = c, 0`, as CPython 3.11.2 does."""
    c = 1
    c, c = c, 0
    return c == 1


class Grammar:
    """One random function of an array x, a number p and a whole number n."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []

    def number(self, depth: int) -> str:
        pick = self.random.choice
        if depth <= 0:
            return pick(
                [
                    *_SCALARS,
                    "p",
                    "n",
                    "i",
                    "0",
                    "1",
                    "2",
                    "3",
                    "-1",
                    "0.5",
                    "2.0",
                    "len(x)",
                    "True",
                    "x[0]",
                    "x[-1]",
                    "x[i]",
                    "y[1]",
                ]
            )
        left, right = self.number(depth - 1), self.number(depth - 1)
        return pick([
            lambda: f"({left} {pick(['+', '-', '*', '+', '-', '*', '/', '//', '%'])} {right})",
            lambda: f"({left} {pick(['+', '-', '*'])} {right})",
            lambda: f"{pick(['min', 'max'])}({left}, {right})",
            lambda: f"({left} if {self.test(0)} else {right})",
            lambda: f"abs({left})",
            lambda: f"-{left}",
            lambda: f"({left}) ** 2",
            lambda: f"{pick(_FUNCTIONS)}({left})",
            lambda: f"({left} {pick(['<', '<=', '==', '!=', '>'])} {right})",
            lambda: f"({left} {pick(['and', 'or'])} {right})",
            lambda: f"{pick(['math.hypot', 'np.maximum', 'np.minimum', 'math.copysign'])}({left}, {right})",
            lambda: f"z[{pick(['0', '-1', 'i', 'len(z) - 1'])}]",
            lambda: f"sum(z) + {left}",
            lambda: f"(x {pick(['+', '*', '-'])} {left}).{pick(['max', 'min', 'sum'])}()",
            lambda: f"{pick(['g', 'g', 'h', 'len(r) + h'])}({left})",
            lambda: pick(["r[-1][0]", "r[0][n]", "y[[0, 2]].sum()", "x[x > 0].sum()", "y[None, :].max()", "h(n)"]),
        ])()  # fmt: skip

    def test(self, depth: int) -> str:
        pick = self.random.choice
        text = f"{self.number(depth)} {pick(['<', '<=', '==', '!=', '>', '>='])} {self.number(depth)}"
        return pick([text, text, f"not ({text})", f"({text}) and {self.number(0)} > 0", f"{self.number(0)}"])

    def statement(self, depth: int, indent: str) -> None:
        pick = self.random.choice
        kinds = ["assign"] * 5 + ["augment"] * 3 + ["append", "store", "swap", "pop"]
        kinds += ["rows", "places", "argument", "counts"]
        kinds += ["if", "for", "if", "while", "each", "try", "try", "match"] * (depth > 0)
        kind = pick(kinds)
        add = lambda text: self.lines.append(indent + text)
        target = pick(_SCALARS)
        if kind == "assign":
            add(f"{target} = {self.number(2)}")
        elif kind == "augment":
            add(f"{target} {pick(['+=', '-=', '*='])} {self.number(1)}")
        elif kind == "append":
            add(f"z.append({self.number(1)})")
        elif kind == "pop":
            add(f"{target} = z.pop()")
        elif kind == "store":
            add(f"y[{pick(['0', '1', '-1', 'i', 'n'])}] {pick(['=', '+='])} {self.number(1)}")
        elif kind == "rows":
            add(
                pick([f"r.append([{self.number(0)}, n])", "r[-1].append(n)", "r.pop()", f"r[-1][0] = {self.number(0)}"])
            )
        elif kind == "places":
            add(f"y[{pick(['[0, 2]', 'y > 0', '[i, 1]'])}] {pick(['=', '+='])} {self.number(0)}")
        elif kind == "counts":
            add(
                pick([
                    "m[n] += 1", f"{target} = m[{pick(['i', 'n', '7'])}]", f"e[n].append({self.number(0)})",
                    f"{target} = len(e[i])", f"e.setdefault(i, []).append({self.number(0)})", f"{target} = round(p, n)",
                    f"{target} = sum(filter(None, z))", f"m[i] = {self.number(0)}",
                ])
            )  # fmt: skip
        elif kind == "argument":
            add(f"x[{pick(['0', '-1', 'i', 'n'])}] {pick(['=', '+=', '*='])} {self.number(0)}")
        elif kind == "try":
            add("try:")
            self.block(depth - 1, indent + "    ")
            if self.random.random() < 0.5:
                add(f"    if {self.test(0)}:")
                add(f"        {pick(['raise ValueError', 'raise KeyError(n)', 'x[9]', 'z.pop(7)', 'a = 1 / n'])}")
            for caught in pick(
                [["IndexError"], ["ValueError", "LookupError"], ["ZeroDivisionError"], ["Exception"], [""]]
            ):
                add(f"except {caught}:".replace(" :", ":"))
                self.block(depth - 1, indent + "    ")
            if self.random.random() < 0.3:
                add("else:")
                self.block(0, indent + "    ")
        elif kind == "match":
            add(f"match {pick([self.number(0), f'({self.number(0)}, n)'])}:")
            for pattern in (
                pick(["0", "1 | 2", "int()", "(0, d)"]),
                pick(["float()", "(c, 1)", "(_, _)", "b if n"]),
                "_",
            ):
                if pattern == "b if n" and self.random.random() < 0.5:
                    continue
                add(f"    case {pattern}:")
                self.block(0, indent + "        ")
        elif kind == "swap":
            other = pick(_SCALARS)
            line = f"{target}, {other} = {other}, {self.number(1)}"
            add("pass" if target == other and _binds_from_the_right() else line)
        elif kind == "if":
            add(f"if {self.test(1)}:")
            self.block(depth - 1, indent + "    ")
            if self.random.random() < 0.5:
                add("else:")
                self.block(depth - 1, indent + "    ")
        elif kind == "for":
            add(f"for i in range({pick(['n', 'len(x)', '3', '1, 3', 'len(z) - 1, -1, -1'])}):")
            self.block(depth - 1, indent + "    ")
            self.exit(indent + "    ")
        elif kind == "each":
            add(f"for {target} in {pick(['x', 'y', 'z[:3]', '(1, 2.5, x[0])'])}:")
            self.block(depth - 1, indent + "    ")
        else:
            name = f"w{len(self.lines)}"
            add(f"{name} = 0")
            add(f"while {name} < 3 and {self.test(0)}:")
            add(f"    {name} += 1")
            self.block(depth - 1, indent + "    ")
            self.exit(indent + "    ")

    def exit(self, indent: str) -> None:
        if self.random.random() < 0.3:
            self.lines.append(f"{indent}if {self.test(0)}:")
            self.lines.append(
                f"{indent}    {self.random.choice(['break', 'continue', f'return {self.number(0)}, n, y, z, r'])}"
            )

    def block(self, depth: int, indent: str) -> None:
        for _ in range(self.random.randint(1, 2)):
            self.statement(depth, indent)

    def text(self) -> str:
        self.lines = ["def f(x, p, n):", "    i, a, b = 0, 0, p", "    c = x[0]", "    y, z = np.zeros(3), [n]"]
        self.lines += ["    m, e = collections.Counter([n, 1, n]), collections.defaultdict(list)"]
        self.lines += ["    r = [[n, 1], [2]]", "    def g(v):", *self.random.choice([["        nonlocal a"], []])]
        self.lines += [f"        a = {self.random.choice(['v', 'n', 'v + 1'])}", "        return v + len(z) + b"]
        self.lines += ["    @functools.cache", "    def h(k):", "        return k if k < 2 else h(k - 1) + h(k - 2)"]
        if self.random.random() < 0.7:
            self.lines.append("    d = 1")
        for _ in range(4):
            self.statement(2, "    ")
        names = ", ".join(_SCALARS)
        self.lines.append(f"    return {names}, y, z, r, list(m.values()), {{k: len(v) for k, v in e.items()}}")
        return "\n".join(self.lines) + "\n"


def made(text: str, seed: int) -> Any:
    """The function of this text, with its source where the syntax is looked for."""
    name = f"<program {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = types.ModuleType(f"program_{seed}")
    module.__dict__.update(np=np, math=math, functools=functools, collections=collections)
    exec(compile(text, name, "exec"), module.__dict__)
    sys.modules[module.__name__] = module
    return module.f


def observed(call: Any) -> tuple[Any, list[str]]:
    """What a call returns or raises, and what it warns of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            out = call()
        except Exception as error:
            out = error
    return out, [str(each.message) for each in seen]


def compare(seed: int) -> str:
    """Whether the program was compiled."""
    text = Grammar(seed).text()
    f = made(text, seed)
    rng = np.random.default_rng(seed)
    dtype = np.dtype(_DTYPES[seed % len(_DTYPES)])
    p_type = (float, int, np.float64, np.float32, bool)[seed // 7 % 5]
    examples = []
    for _ in range(12):
        x = rng.integers(0, 5, rng.integers(1, 5)).astype(dtype)
        if rng.random() < 0.5:
            x[0] = rng.choice(np.array(_SPECIAL[dtype.str[1:]]))
        if dtype.kind == "f":
            x = (x * rng.choice([1, 0.3])).astype(dtype)
        examples.append((x, p_type(rng.integers(-2, 3) * rng.choice([1, 0.7])), int(rng.integers(0, 4))))
    columns = [list(column) for column in zip(*examples, strict=True)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wait_until_compiled(f, columns, {})
    except Unsupported as why:
        if why.passing or f"<program {seed}>" in str(why):
            return why.reason
        raise AssertionError(f"{why.reason}\n{text}") from None
    for example in examples:
        other, one = (
            [[np.copy(value) if isinstance(value, np.ndarray) else value] for value in example] for _ in range(2)
        )
        expected, said = observed(lambda one=other: f(*(column[0] for column in one)))
        try:
            got, heard = observed(lambda one=one: compiled_map(f, one, {}))
        except Unsupported as why:
            raise AssertionError(f"{why.reason}\n{text}") from None
        if isinstance(got, Unsupported):
            raise AssertionError(f"{got.reason} for {example}\n{text}")
        got = got[0] if isinstance(got, list) else got
        assert same(got, expected), f"{example}: {got!r}, expected {expected!r}\n{text}"
        assert same(one, other), f"{example}: changed to {one!r}, expected {other!r}\n{text}"
        # what is computed and never looked at is not computed, and does not warn
        assert set(heard) <= set(said), f"{example}: {heard}, expected {said}\n{text}"
    return "compiled"


def summary(seen: list[str]) -> str:
    """How many were compiled."""
    return f"{seen.count('compiled')} compiled"


def compare_text(seed: int) -> str:
    """The same where Python runs the text that would be compiled, which takes a hundredth of the time."""
    with interpreted():
        return compare(seed)


FUZZERS = {"compiled": by_seed(compare, summary), "compiled_text": by_seed(compare_text, summary)}


@pytest.mark.parametrize("seed", range(2))
def test_random_programs(seed):
    compare(seed)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_texts_of_random_programs(first):
    for seed in range(first, first + 10):
        compare_text(seed)


if __name__ == "__main__":
    sys.exit(main(FUZZERS))
