"""Random programs of scalars, under warnings as errors or `np.errstate(all="raise")`: what one raises, all ways raise.

Integers of every width near their ends, floats with infinities, complex numbers with NaN in either part; arithmetic,
comparisons, sums, and loops that an overflow may end. Each program is compared in every way with the loop:

    python -m tests.fuzz number_warnings --seed 5000 --count 1000
"""

import contextlib
import random
import sys
import warnings

import numpy as np

from autobatch.errors import FallbackWarning
from tests.api.opaque_callees import differences, function_of
from tests.fuzz import by_seed, main

_INTEGERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
_OTHERS = [np.dtype(name) for name in ("f2", "f4", "f8", "c8", "c16")]
_OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_ONE = (
    "-{}",
    "abs({})",
    "+{}",
    "~{}",
    "({} + 1)",
    "(2 * {})",
    "({} - 1)",
    "{} ** 2",
    "1 / {}",
    "7 // {}",
    "np.exp({})",
)
_WHOLE = ("x.sum()", "x.prod()", "(x * x).sum()", "(x - 1).min()", "x.mean()", "(-x)[0]", "(x + w)[1]", "abs(x)[2]")


@contextlib.contextmanager
def _as_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FallbackWarning)  # which no loop gives
        yield


_AROUND = {
    "errstate": lambda: np.errstate(all="raise"),
    "warnings": _as_errors,
    "ignored": lambda: np.errstate(all="ignore"),
}


def numbers(choices, dtype, count):
    """An array of numbers of a dtype, many of them at its ends."""
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        some = [0, 1, 2, 3, 7, ends.max, ends.max - 1, ends.min, ends.max // 2 + 1]
    else:
        ends = np.finfo(dtype)
        some = [0.0, -0.0, 1.0, -1.5, 3.0, float("inf"), float("nan"), float(ends.max), float(ends.tiny)]
        if dtype.kind == "c":
            some += [1j, complex(1, float("nan")), complex(0, float("inf"))]
    return np.array([choices.choice(some) for _ in range(count)], dtype)


class Writer:
    """Writes one function of x (3,), n an int, and w (3,), which all examples share."""

    def __init__(self, choices):
        self.choices = choices
        self.names = ["x[0]", "x[1]", "x[-1]", "w[0]", "n", "2", "1.5"]

    def value(self):
        if self.choices.random() < 0.2:
            return self.choices.choice(_WHOLE)
        return self.choices.choice(self.names)

    def expression(self):
        if self.choices.random() < 0.3:
            return self.choices.choice(_ONE).format(f"({self.value()})")
        return f"({self.value()}) {self.choices.choice(_OPERATORS)} ({self.value()})"

    def test(self):
        return f"({self.value()}) {self.choices.choice(_COMPARISONS)} ({self.value()})"

    def statement(self, name):
        form = self.choices.choice(("plain", "plain", "loop", "branch", "handled", "errstate", "test"))
        if form == "loop":
            step = f"{name} = {name} {self.choices.choice(_OPERATORS[:4])} ({self.value()})"
            return [f"{name}, i = {self.value()}, 0", f"while {self.test()} and i < 5:", f"    {step}", "    i += 1"]
        if form == "branch":
            return [f"if {self.test()}:", f"    {name} = {self.expression()}", "else:", f"    {name} = {self.value()}"]
        if form == "handled":
            caught = "except (ArithmeticError, RuntimeWarning, TypeError, ValueError) as error:"
            return ["try:", f"    {name} = {self.expression()}", caught, f"    {name} = len(type(error).__name__)"]
        if form == "errstate":
            how = self.choices.choice(('over="raise"', 'all="raise"', 'divide="ignore"', 'invalid="warn"'))
            return [f"with np.errstate({how}):", f"    {name} = {self.expression()}"]
        return [f"{name} = {self.test() if form == 'test' else self.expression()}"]

    def write(self):
        lines, made = [], []
        for i in range(self.choices.randint(1, 3)):
            lines += self.statement(f"v{i}")
            self.names.append(f"v{i}")
            made.append(f"v{i}")
        lines.append(f"return {', '.join(made)}")
        return "\n".join(["def f(x, n, w):", *(f"    {line}" for line in lines), ""])


def compare(seed):
    """Compare a program of this seed with the loop in each way; raises AssertionError."""
    choices = random.Random(seed)
    text, count = Writer(choices).write(), choices.randint(1, 3)
    own, common = (choices.choice(_INTEGERS if choices.random() < 0.6 else _OTHERS) for _ in range(2))
    columns = [[numbers(choices, own, 3) for _ in range(count)], [choices.randint(-3, 9) for _ in range(count)]]
    around = choices.choice(list(_AROUND))
    with function_of(text, seed, {"np": np, "__name__": "program"}) as f, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _AROUND[around]():
            different = differences(f, columns, {"w": numbers(choices, common, 3)})
    assert not different, f"{around} {own} {common} {columns}\n{text}\n{different}"


FUZZERS = {"number_warnings": by_seed(compare)}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
