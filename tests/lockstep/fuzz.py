"""Random structured programs over ragged data, as source text, written by the grammar of `fuzz_grammar`.

A soak run compares as many as wanted with the plain interpreter, one example at a time; it prints how many ran in
lock-step, how many had lanes that part, and why the others fell back:
    python -m tests.lockstep.fuzz --seed 5000 --count 2000 [programs] [gradients]

To see that the suite can fail, break one thing by hand at a time: let `join_pieces` forget the order of its pieces, or
drop the last of them; let `RaggedLoop.narrow` keep nothing; let `LaneList.append` take the places of other lanes.
"""

import collections
import contextlib
import dataclasses
import functools
import io
import linecache
import math
import random
import re
import sys
import warnings

import numpy as np

from autobatch import batch, examples
from autobatch.errors import FallbackWarning
from autobatch.testing.compared_ways import LockStep, fresh
from autobatch.testing.equivalence import Reference
from autobatch.testing.gradients import gradients
from tests.fuzz import by_seed, main
from tests.inspect import regions
from tests.law import assert_same, batch_of, ragged
from tests.lockstep import fuzz_grammar as grammar
from tests.lockstep import fuzz_prelude

NAMESPACE = {
    **{name: value for name, value in vars(fuzz_prelude).items() if not name.startswith("_")},
    "__name__": "fuzz", "math": math, "reduce": functools.reduce, "replace": dataclasses.replace,
}  # fmt: skip
_NAME = re.compile(r"<(\w+)>")
_DEPTH = 4


class Writer:
    """Writes one function of (xs, ys, n): xs (T, 2), ys (S,), n an int.

    Args:
        seed: of the choices.
        writes: whether the program may write into arrays.
    """

    def __init__(self, seed, *, writes=True):
        self.random = random.Random(seed)
        self.together = bool(seed % 2)
        self.simple = self.kept({**grammar.SIMPLE, **(grammar.WRITES if writes else {})})
        self.compound, self.parts = self.kept(grammar.COMPOUND), self.kept(grammar.PARTS)
        self.fresh = 0

    def kept(self, kinds):
        """The forms that a program of this seed may have."""
        if not self.together:
            return kinds
        out = {kind: [form for form in forms if not grammar.APART.search(form)] for kind, forms in kinds.items()}
        return {kind: forms for kind, forms in out.items() if forms}

    def write(self):
        lines = (grammar.BEGIN_TOGETHER if self.together else grammar.BEGIN).strip("\n").split("\n")
        body = [*self.expand(lines, ()), *self._indented(self.block((), False, _DEPTH))]
        body.append(grammar.END_TOGETHER if self.together else grammar.END)
        return "\n".join(body) + "\n"

    def block(self, counters, inside, budget):
        """Some statements: the names of counters of loops around, whether a loop is around, how deep they may nest."""
        out = []
        for _ in range(self.random.randint(1, max(budget, 1)) + (3 if budget == _DEPTH else 0)):
            kinds = self.simple if budget < 1 or self.random.random() < 0.55 else self.compound
            kind = self.random.choice(list(kinds))
            form = self.random.choice(kinds[kind])
            out += self.expand(form.split("\n"), counters, inside, budget - 1)
        return out

    def expand(self, lines, counters, inside=False, budget=0):
        """The lines of one form, each name replaced."""
        chosen = {}
        out = []
        for line in lines:
            text = line.lstrip()
            indent = line[: len(line) - len(text)]
            whole = _NAME.fullmatch(text)
            if whole is None:
                more = _NAME.sub(lambda found: self.part(found[1], chosen, counters, inside), line).split("\n")
                out += more
            elif whole[1] in ("block", "loop"):
                loop = whole[1] == "loop"
                known = (*counters, *(chosen[name] for name in "it" if name in chosen)) if loop else counters
                out += self._indented(self.block(known, inside or loop, budget), indent)
            else:
                form = self.random.choice(self.jumps(inside) if whole[1] == "jump" else self.parts[whole[1]])
                out += self._indented(self.expand(form.split("\n"), counters, inside, budget), indent) if form else []
        return out

    def part(self, name, chosen, counters, inside):
        """What stands for a name within a line."""
        if name in grammar.FRESH:
            if name not in chosen:
                self.fresh += 1
                chosen[name] = f"{name}{self.fresh}"
        elif name in grammar.CHOICES:
            chosen.setdefault(name, self.random.choice(grammar.CHOICES[name]))
        else:
            options = counters or ("n",) if name == "counter" else self.parts[name]
            form = self.random.choice(options)
            return _NAME.sub(lambda found: self.part(found[1], chosen, counters, inside), form)
        return chosen[name]

    def jumps(self, inside):
        return self.parts["jump" if inside else "leave"]

    def _indented(self, lines, indent="    "):
        return [indent + line for line in lines]


@dataclasses.dataclass
class Program:
    """A random program, compiled, with its examples."""

    f: object
    columns: list
    text: str

    @classmethod
    @contextlib.contextmanager
    def of(cls, seed, **kwargs):
        """Program `seed`; its source is there for as long as the context."""
        text = Writer(seed, **kwargs).write()
        filename = f"<fuzz {seed}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        namespace = dict(NAMESPACE)
        exec(compile(text, filename, "exec"), namespace)
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, 6))
        low = int(rng.integers(0, 2))
        columns = [
            ragged(*rng.integers(low, 5, size), width=2, seed=seed),
            ragged(*rng.integers(low, 5, size), seed=seed + 1),
            [int(k) for k in rng.integers(low, 5, size)],
        ]
        try:
            yield cls(namespace["f"], columns, text)
        finally:
            linecache.cache.pop(filename)

    def rows(self):
        return [fresh(row) for row in zip(*self.columns, strict=True)]


@dataclasses.dataclass
class Outcome:
    """What a comparison that found no difference saw.

    Attributes:
        fallbacks: why it did not run in lock-step.
        raised: whether an example raises.
        parted: whether lanes parted.
    """

    fallbacks: list
    raised: bool = False
    parted: bool = False

    @property
    def in_lock_step(self):
        return not self.fallbacks and not self.raised


def compare(seed):
    """Run program `seed` both ways. Returns an `Outcome`; raises AssertionError on a difference."""
    with Program.of(seed) as program:
        want, error, prints = [], None, io.StringIO()
        with contextlib.redirect_stdout(prints), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for row in program.rows():
                try:
                    want.append(program.f(*row))
                except Exception as raised:
                    error = raised
                    break
        raised, got, printed = None, None, io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            warnings.catch_warnings(record=True) as caught,
            regions() as found,
        ):
            warnings.simplefilter("always")
            try:
                got = examples(batch(program.f)(*map(batch_of, program.columns)))
            except Exception as other:
                raised = other
        where = f"{program.text}\nseed {seed}"
        assert (type(raised), str(raised)) == (type(error), str(error)), where
        assert printed.getvalue() == prints.getvalue(), where
        if error is None:
            assert len(got) == len(want), where
            for i, (a, b) in enumerate(zip(got, want, strict=True)):
                assert_same(a, b, f"{where}, example {i}: ")
        fallbacks = [str(each.message) for each in caught if issubclass(each.category, FallbackWarning)]
        return Outcome(fallbacks, error is not None, any(lanes < around for lanes, around in found))


def compare_gradients(seed):
    """Compare the gradients of program `seed` with the loop's. Returns whether it has any."""
    with Program.of(seed, writes=False) as program, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(io.StringIO()):
            reference = Reference(program.f, program.rows(), {})
            everyone = range(len(reference))
            if any(reference.outcome(i, i).error for i in everyone) or reference.no_gradient():
                return False
            want = reference.gradients(everyone)
            way = LockStep(poison="high")
            got = gradients(way, program.f, way.pack(program.rows()), {}, reference.weights(everyone))
        assert_same(got.examples, want.examples, f"{program.text}\ngradient, seed {seed}: ")
        return True


def summary(outcomes):
    """What programs that were compared were like, and why they fell back."""
    count = len(outcomes)
    alone = sum(each.in_lock_step for each in outcomes)
    raised, parted = sum(each.raised for each in outcomes), sum(each.parted for each in outcomes)
    share = 100 * alone / max(count - raised, 1)
    reasons = collections.Counter(reason[:110] for each in outcomes for reason in set(each.fallbacks))
    return "\n".join(
        [
            f"{alone} of {count} in lock-step ({share:.0f} % of those that raise nothing)",
            f"{parted} part their lanes, {raised} raise",
            *(f"{times:5d} {reason}" for reason, times in reasons.most_common(25)),
        ]
    )


FUZZERS = {
    "programs": by_seed(compare, summary),
    "gradients": by_seed(compare_gradients, lambda seen: f"{sum(seen)} have gradients"),
}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
