"""The normal form does what the function does, in the same order: programs that write down each step, and the library.

Found red by breaking once each: in `lowering._Lowering.values`, operands that are not kept; in `link`, a middle operand
that is evaluated twice; in `store`, the value evaluated last; in `loops`, variables that are not renamed.
"""

import ast
import importlib.util
import random
import subprocess
import sys

import pytest

from autobatch.program import normal_form as nf
from autobatch.program.folding import folded
from autobatch.program.lowering import lowered
from autobatch.program.python_text import Writer

NAMES = ("a", "b", "c")


class Grammar:
    """Random functions whose every step is seen: `t(n, value)` notes that it is evaluated."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0
        self.inside = 0  # a comprehension or a lambda, where `:=` binds elsewhere

    def step(self, value):
        self.count += 1
        return f"t({self.count}, {value})"

    def value(self, depth=2):
        if depth == 0:
            return self.step(self.random.choice([*NAMES, "0", "1", "2", "3"]))
        kinds = [
            self.arithmetic, self.choice, self.junction, self.chain, self.call, self.item, self.display, self.text,
            self.comprehension, self.later, self.attribute, self.plain,
        ]  # fmt: skip
        if not self.inside:
            kinds += [self.walrus, self.walrus]
        return self.random.choice(kinds)(depth - 1)

    def plain(self, depth):
        return self.random.choice(NAMES)

    def arithmetic(self, depth):
        return f"({self.value(depth)} {self.random.choice(['+', '-', '*', '%'])} {self.value(depth)})"

    def choice(self, depth):
        return f"({self.value(depth)} if {self.value(depth)} else {self.value(depth)})"

    def junction(self, depth):
        word = self.random.choice([" and ", " or "])
        made = word.join(self.value(depth) for _ in range(self.random.choice([2, 3])))
        return f"({'not ' if self.random.random() < 0.2 else ''}({made}))"

    def chain(self, depth):
        symbols = self.random.choices(["<", "<=", "==", "!=", "is not"], k=self.random.choice([1, 2, 3]))
        return "(" + self.value(depth) + "".join(f" {symbol} {self.value(depth)}" for symbol in symbols) + ")"

    def call(self, depth):
        return f"g({self.value(depth)}, *[{self.value(depth)}], k={self.value(depth)}, **{{'m': {self.value(depth)}}})"

    def item(self, depth):
        return f"xs[{self.value(depth)} % 3]" if self.random.random() < 0.7 else f"xs[{self.value(depth)} % 3:][0]"

    def attribute(self, depth):
        return f"o.at({self.value(depth)}).n"

    def display(self, depth):
        first, second = self.value(depth), self.value(depth)
        return self.random.choice(
            [f"[{first}, {second}][0]", f"({first}, *[{second}])[-1]", f"len({{{first}: {second}}})"]
        )

    def text(self, depth):
        return f"len(f'{{{self.value(0)}!r:>{{{self.value(0)} % 4 + 3}}}}')"

    def comprehension(self, depth):
        self.inside += 1
        name = self.random.choice(["i", *NAMES])
        made = f"{self.step(name)} + {self.value(depth)} for {name} in xs if {self.value(depth)}"
        self.inside -= 1
        return self.random.choice([f"sum([{made}])", f"sum({made})", f"len({{{made}}})"])

    def later(self, depth):
        self.inside += 1
        made = f"(lambda {self.random.choice(NAMES)}={self.value(depth)}: {self.value(depth)})()"
        self.inside -= 1
        return made

    def walrus(self, depth):
        return f"({self.random.choice(NAMES)} := {self.value(depth)})"

    def statement(self, depth):
        name, value = self.random.choice(NAMES), self.value()
        simple = [
            f"{name} = {value}",
            f"{name} += {value}",
            f"xs[{self.value(1)} % 3] = {value}",
            f"xs[{self.value(1)} % 3] += {value}",
            f"o.at({self.value(1)}).n -= {value}",
            f"{name}, xs[{self.value(1)} % 3] = {self.value(1)}, {value}",
            f"{name} = xs[{name} % 3] = {value}",
            f"assert {value} is not None, {self.value(1)}",
        ]
        if depth == 0:
            return [self.random.choice(simple)]
        jump = self.random.choice(["break", "continue", "pass"])
        body = ["    " + line for line in self.statements(depth - 1)]
        other = ["    " + line for line in self.statements(depth - 1)]
        ends = ["if bound():", "    break"]
        leave = [f"if {self.value(1)}:", f"    {jump}"]
        if self.random.random() < 0.4:
            return [self.random.choice(simple)]
        return self.random.choice(
            [
                [f"if {value}:", *body, f"elif {self.value()}:", *other],
                [f"if {value} and {self.value()}:", *body],
                [f"while {value}:", *["    " + each for each in (*ends, *leave)], *body, "else:", *other],
                [f"for {name} in (xs + [{value}])[:2]:", *["    " + each for each in leave], *body, "else:", *other],
                ["try:", *body, "except TypeError as e:", *other, "finally:", f"    {self.step(0)}"],
                self.match(body, other),
            ]
        )

    def match(self, body, other):
        """A `match` whose subject has steps, and whose guards and names are seen."""
        subject = self.random.choice(
            [self.value(1), f"{self.value(1)}, {self.value(1)}", f"xs[:{self.value(1)} % 3]", f"({self.value(1)},)"]
        )
        guard = f" if {self.value(1)}" if self.random.random() < 0.5 else ""
        return [
            f"match {subject}:",
            f"    case {self.pattern(2)}{guard}:",
            *["    " + line for line in body],
            f"    case {self.pattern(1)} if {self.value(1)}:",
            *["    " + line for line in other],
            "    case d if bound():",
            f"        {self.random.choice(NAMES)} = d",
        ]

    def pattern(self, depth):
        """A pattern that binds no name twice, and does not always match."""
        names = iter(self.random.sample([*NAMES, "p", "q", "r"], 6))
        made = self.part(depth, lambda: next(names, "_"))
        return f"[{made}]" if made.isidentifier() else made

    def part(self, depth, name):
        simple = ["1", "-1", "2 | 3", "None", "True", "int()", "str() | None", "'x'"]
        if depth == 0:
            return self.random.choice([*simple, name(), "_"])
        first, second = self.part(depth - 1, name), self.part(depth - 1, name)
        held = name()
        return self.random.choice(
            [
                f"[{first}, {second}]", f"({first}, *{held}, {second})", f"[{first}, *_]", f"[{first}]", "[]",
                f"(1 | [int(), *_]) as {held}", f"int({first})" if held != "_" else "int()", f"int(real={first})",
                f"[int({held}) | None as {held}]" if held == "_" else f"[(1 as {held}) | (2 as {held})]",
                f"{{0: {first}}}" if self.random.random() < 0.1 else "list()", f"Record({first})", "_",
            ]
        ).replace("[int(_) | None as _]", "[_]").replace(" as _", "")  # fmt: skip

    def statements(self, depth):
        return [line for _ in range(self.random.choice([1, 2])) for line in self.statement(depth)]

    def function(self):
        body = [line for _ in range(4) for line in self.statement(2)]
        return "\n    ".join(["def f(a, b, c, xs, o):", *body, f"return a, b, c, xs, {self.value()}"])


class Record:
    __match_args__ = ("n",)

    def __init__(self, steps):
        self.steps = steps
        self.n = 1

    def at(self, value):
        self.steps.append(("at", repr(value)))
        return self


def outcome(tree):
    """What a function gives or raises, and the steps that it takes."""
    steps, left = [], [6]

    def t(number, value):
        steps.append((number, repr(value)))
        return value

    def g(*args, **named):
        return steps.append((args, tuple(named.items()))) or (args[0] or 0) + len(named)

    def bound():
        left[0] -= 1
        return left[0] < 0

    space = {"t": t, "g": g, "bound": bound, "Record": Record}
    space |= {f"_ab_{each.__name__}": each for each in nf.PARTS}
    module = ast.fix_missing_locations(ast.Module([tree], []))
    exec(compile(module, "<made>", "exec"), space)
    record = Record(steps)
    try:
        result = repr(space["f"](1, 0, 2, [3, 1, 2], record))
    except Exception as error:
        result = type(error).__name__
    return result, record.n, steps


def assert_same_steps(seeds):
    for seed in seeds:
        text = Grammar(seed).function()
        tree = ast.parse(text).body[0]
        form = lowered(tree)
        wanted = outcome(tree)
        for made in (form, folded(form)):
            written = Writer().definition(made)
            assert outcome(written) == wanted, (seed, text, ast.unparse(written))


def test_steps_are_those_of_the_function():
    assert_same_steps(range(60))


@pytest.mark.slow
def test_steps_are_those_of_many_functions():
    assert_same_steps(range(1000, 3000))


LIBRARY = {
    "textwrap": "test_textwrap",
    "fractions": "test_fractions",
    "heapq": "test_heapq",
    "shlex": "test_shlex",
    "ipaddress": "test_ipaddress",
}


@pytest.mark.skipif(importlib.util.find_spec("test.test_textwrap") is None, reason="Python comes without its tests")
def test_pythons_library_lowered_and_written_back_passes_its_tests():
    command = [sys.executable, "-m", "tests.program.lowered_library", *(f"{k}={v}" for k, v in LIBRARY.items())]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert out.returncode == 0, out.stdout + out.stderr
    assert int(out.stdout.split()[-1]) > 200  # functions
