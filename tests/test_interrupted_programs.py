"""Random functions that write, append and count, left early: what is left is what the loop leaves, or nothing.

An exception of the function's own that is no `Exception` leaves what the loop leaves, exactly. After a Ctrl-C, at each
line of the function or at each call inside the library, all is as in a loop that was left at some line, or untouched.

    python -m tests.test_interrupted_programs --seed 5000 --count 200
"""

import asyncio
import contextlib
import linecache
import random
import sys
import types
import warnings

import numpy as np
import pytest

import autobatch as ab
from tests.compiled.interpreted import interpreted
from tests.faults import PACKAGE, interrupted_at
from tests.fuzz import by_seed, main

COUNT = 5
WEIGHTS = np.linspace(-1.0, 1.0, 9).reshape(3, 3)
_POINTS = 8  # interrupts of one seed by way and kind of event


class Own(BaseException):
    """A user's own exception that is no `Exception`."""


KINDS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Own)
_STATEMENTS = (
    "x[0] += 1.0",
    "x *= 0.5",
    "x[:] = np.tanh(x @ W)",
    "x[1:] = x[:2] - k",
    "LOG.append(k)",
    "LOG.append(float(x[0]))",
    "COUNTS['n'] += 1",
    "BOX.total += 2.0",
    "BOX.last = k",
    "own['k'] = k + 1",
    "items.append(k)",
    "if x.sum() > 0.5:\n        x[2] -= 1.0\n        LOG.append(-1)",
    "for i in range(2):\n        x[i] += i\n        COUNTS['n'] += i",
)


class Program:
    """A random function of one example, and all that it may change.

    Attributes:
        text: its source; f: the function; raising: the same, but one of its statements raises for one example.
    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        lines = ["x[0] += 1.0", "LOG.append(k)", *draw.choices(_STATEMENTS, k=draw.randrange(1, 6))]
        draw.shuffle(lines)
        self.batched = draw.random() < 0.5  # of arrays and numbers only, as a batch has them
        left_out = ("own", "items") if self.batched else ()
        if draw.random() < 0.3:
            left_out += ("own", "LOG", "COUNTS", "BOX")  # compiled
        lines = [line for line in lines if not any(name in line for name in left_out)]
        self.kind = draw.choice(KINDS)
        stop = f"if k == {draw.randrange(COUNT)}:\n        raise KIND"
        at = draw.randrange(len(lines) + 1)
        end = draw.choice(("return x.sum()", "return x", "return x @ W"))
        self.has_gradient = end == "return x.sum()" and not any("float(" in line for line in lines)
        self.given = 2 if self.batched else 4
        self.seed, self.log, self.counts = seed, [], {"n": 0}
        self.box = types.SimpleNamespace(total=0.0, last=-1)
        self.text = ""
        self.f = self._made([*lines, end])
        self.raising = self._made([*lines[:at], stop, *lines[at:], end])

    def _made(self, lines):
        name = f"<interrupted {self.seed}, {len(lines)} statements>"
        head = f"def f({', '.join(('x', 'k', 'own', 'items')[: self.given])}):"
        text = "\n    ".join((head, *lines)) + "\n"
        self.text += text
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        names = {"np": np, "W": WEIGHTS, "KIND": self.kind, "LOG": self.log, "COUNTS": self.counts, "BOX": self.box}
        exec(compile(text, name, "exec"), names)
        return names["f"]

    def start(self):
        """Everything as it was at first; returns the columns of arguments."""
        self.log.clear()
        self.counts["n"], self.box.total, self.box.last = 0, 0.0, -1
        self.xs = [np.arange(3.0) - i for i in range(COUNT)]
        self.own: list[dict[str, int]] = [{} for _ in range(COUNT)]
        self.items: list[list[int]] = [[i] for i in range(COUNT)]
        self.batch = ab.MaskedBatch(np.stack(self.xs))
        numbers = list(np.arange(COUNT)) if self.batched else list(range(COUNT))
        return (self.xs, numbers, self.own, self.items)[: self.given]

    def state(self, of_batch=False):
        xs = self.batch.data if of_batch else np.stack(self.xs)
        xs = np.round(xs, 6) + 0.0  # ways differ in rounding
        log = [round(float(each), 6) + 0.0 for each in self.log]
        return repr((xs.tolist(), self.own, self.items, log, self.counts, vars(self.box)))

    def loop(self, f):
        for row in zip(*self.start(), strict=True):
            f(*row)

    def call(self, form, f):
        """A call of a form on arguments as they were at first."""
        columns = self.start()
        match form:
            case "batch":
                return lambda: ab.batch(f)(self.batch, ab.MaskedBatch(np.arange(COUNT)))
            case "map":
                return lambda: ab.map(f, *columns)
            case "gradients":
                return lambda: [ab.grad(f)(*row) for row in zip(*columns, strict=True)]
            case "map of gradients":
                return lambda: ab.map(ab.grad(f), *columns)
        raise AssertionError(form)

    def states_of_the_loop(self):
        """Each state between two lines of the function in the loop, the first and the last one included."""
        found = set()

        def trace(frame, event, arg):
            if frame.f_code.co_filename != self.f.__code__.co_filename:
                return None
            found.add(self.state())
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            self.loop(self.f)
        finally:
            sys.settrace(before)
        self.start()
        return found | {self.state()}


def ways(program):
    """(form of the call, option `way`) of each way that takes the program."""
    found = [("map", "fly"), ("map", "auto"), ("map", "compiled")]
    if program.batched:
        found += [("batch", way) for way in ("lockstep", "fly", "auto", "compiled")]
    if program.has_gradient:
        found += [("gradients", "auto"), ("map of gradients", "fly"), ("map of gradients", "auto")]
    return found


def compare(seed):
    """Run program `seed` in every way, by its own exception and with interrupts. Returns how many interrupts came."""
    program = Program(seed)
    with warnings.catch_warnings(), interpreted():
        warnings.simplefilter("ignore")
        _own_exception(program)
        return _interrupts(program)


def _own_exception(program):
    with contextlib.suppress(program.kind):
        program.loop(program.raising)
    want = program.state()
    for form, way in ways(program):
        for _ in range(3 if way == "auto" else 1):
            call = program.call(form, program.raising)
            with ab.options(way=way):
                try:
                    call()
                except program.kind:
                    pass
                else:
                    raise AssertionError(f"{form}, {way}: nothing is raised\n{program.text}")
            got = program.state(form == "batch")
            assert got == want, f"{program.text}{program.kind.__name__}, {form}, {way}:\n{got}\n{want}"


def _interrupts(program):
    states = program.states_of_the_loop()
    program.loop(program.f)
    end = program.state()
    draw, seen = random.Random(program.seed), 0
    for form, way in ways(program):
        with ab.options(way=way):
            for _ in range(2):
                program.call(form, program.f)()  # what is read and learned once is so
            for event, files in (("line", program.f.__code__.co_filename), ("call", PACKAGE)):
                number = 1
                for _ in range(_POINTS):
                    came = interrupted_at(number, program.call(form, program.f), event, files)
                    got = program.state(form == "batch")
                    where = f"{program.text}{form}, {way}, {event} {number}:\n{got}"
                    assert got in states if came else got == end, where
                    program.call(form, program.f)()
                    assert program.state(form == "batch") == end, f"the next call, after {where}"
                    seen += came
                    number = draw.randrange(number + 1, 3 * number + 3) if came else draw.randrange(1, number + 1)
    return seen


@pytest.mark.fuzz
@pytest.mark.parametrize("start", [0, 3])
def test_random_programs(start):
    assert sum(map(compare, range(start, start + 3))) > 50


FUZZERS = {"interrupts": by_seed(compare, lambda seen: f"{sum(seen)} interrupts")}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
