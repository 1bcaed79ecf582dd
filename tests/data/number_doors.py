"""The doors through which examples that are numbers come in, and a fuzzer of them.

A number that is Python's is Python's in the function, whichever door it came through: `7 // n` raises at zero, `10 **
30` has no limit, `True + True` is 2 and a float leaves a float32 array as it is.
"""

import asyncio
import collections
import copy
import dataclasses
import linecache
import math
import numbers as numbers_module
import operator
import pickle
import random
import sys
import warnings

import numpy as np

import autobatch as ab
from tests.compiled.interpreted import map_as_text
from tests.fuzz import by_seed, main


@dataclasses.dataclass
class Record:
    n: object


DOORS = {
    "from_examples": ab.MaskedBatch.from_examples,
    "from_examples of a tuple": lambda xs: ab.MaskedBatch.from_examples(tuple(xs)),
    "from_examples of an iterator": lambda xs: ab.MaskedBatch.from_examples(iter(xs)),
    "from_examples with dims": lambda xs: ab.MaskedBatch.from_examples(xs, dims=()),
    "from_examples of objects": lambda xs: ab.MaskedBatch.from_examples(_objects(xs)),
    "collate": ab.collate,
    "collate of an iterator": lambda xs: ab.collate(iter(xs)),
    "collate of columns": lambda xs: ab.collate({"n": xs})["n"],
    "collate of dicts": lambda xs: ab.collate([{"n": x} for x in xs])["n"],
    "collate of tuples": lambda xs: ab.collate([(x, "") for x in xs])[0],
    "collate of dataclasses": lambda xs: ab.collate([Record(x) for x in xs]).n,
    "Examples": lambda xs: ab.Examples(xs).batch,
    "Examples, one by one": lambda xs: ab.collate(list(ab.Examples(xs))),
    "Examples, by index": lambda xs: ab.Examples(xs)[list(range(len(xs)))].batch,
    "minibatches": lambda xs: ab.concat(list(ab.minibatches(xs, 2))),
    "concat": lambda xs: ab.concat([ab.collate([x]) for x in xs]),
    "pickle": lambda xs: pickle.loads(pickle.dumps(ab.MaskedBatch.from_examples(xs))),
    "deepcopy": lambda xs: copy.deepcopy(ab.MaskedBatch.from_examples(xs)),
    "copy": lambda xs: copy.copy(ab.MaskedBatch.from_examples(xs)),
    "examples": lambda xs: ab.collate(ab.examples({"n": ab.collate(xs)}))["n"],
}
"""For each door a function that makes a batch of a list of numbers."""


def _objects(xs):
    out = np.empty(len(xs), object)
    out[:] = xs
    return out


def same(found, expected):
    """Equal in exact type and in value, up to the last bits of a float; NaN and the sign of zero count."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, tuple | list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, np.ndarray):
        return (found.dtype, found.shape) == (expected.dtype, expected.shape) and same(
            found.tolist(), expected.tolist()
        )
    if isinstance(expected, complex | np.complexfloating):
        return same(found.real, expected.real) and same(found.imag, expected.imag)
    if isinstance(expected, float | np.floating):
        relative = 1e-13 if isinstance(expected, float) else 1e-6
        close = found == expected or abs(found - expected) <= relative * abs(expected)
        return (found != found and expected != expected) or (close and np.signbit(found) == np.signbit(expected))
    return repr(found) == repr(expected)


def outcome(call):
    """What a call gives, or the type of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error)


# Random functions of one number n and a float32 array w, on one line.

_LEAVES = (
    "n",
    "n",
    "n",
    "n",
    "1",
    "7",
    "0",
    "2.5",
    "True",
    "10 ** 30",
    "np.int64(3)",
    "np.float32(0.5)",
    "w",
    "w[0]",
)
_BINARY = ("+", "-", "*", "/", "//", "%", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "@", "and", "or")
_CALLS = (
    "abs", "round", "int", "float", "bool", "complex", "str", "repr", "np.sqrt", "np.abs", "np.sign", "np.negative",
    "np.asarray", "np.isnan", "np.square", "math.sqrt", "math.floor", "math.isnan", "len", "list", "np.exp",
    "np.sum", "np.float32", "np.int64", "np.isscalar", "np.iscomplexobj", "np.ndim", "np.shape",
    "callable", "np.atleast_1d", "np.ones_like", "np.real", "np.round", "operator.index", "bin",
)  # fmt: skip
_PAIRS = (
    "min", "max", "divmod", "np.add", "np.multiply", "np.maximum", "np.power", "np.floor_divide", "np.arctan2",
    "math.hypot", "np.equal", "np.logical_and", "np.divide", "np.left_shift", "np.append",
)  # fmt: skip
_FORMS = (
    "-{0}", "+{0}", "~{0}", "not {0}", "{0} ** 2", "{0} ** -1", "{0} ** 0.5", "2 ** ({0} % 9)", "{0} << 70", "{0} >> 1",
    "isinstance({0}, int)", "isinstance({0}, float)", "isinstance({0}, (bool, complex))", "isinstance({0}, np.generic)",
    "isinstance({0}, numbers.Integral)", "type({0}).__name__", "type({0}) is int", "{0}.real", "{0}.bit_length()",
    "{0}.is_integer()", "{0}.conjugate()", "{0}.__class__.__name__", "format({0})", "'%s' % {0}", "({0}, {1})",
    "[{0}, {1}]", "{0} if {1} else {2}", "{0} < {1} < {2}", "np.array([{0}, {1}])", "np.full(2, {0})", "w * {0}",
    "w[{0} % 3]", "w[:{0}]", "{{'a': {0}}}", "np.where(w > 0.1, {0}, {1})", "np.where({0}, {1}, {2})",
    "hasattr({0}, 'dtype')",
    "np.arange({0} % 5)", "sum([{0}, {1}])", "{0} in ({1}, {2})", "np.clip({0}, 0, 2)", "np.zeros(2) + {0}",
    "np.float32(1) * {0}", "np.int8(1) + {0}", "np.linspace(0, {0}, 3)", "range({0} % 4)[-1]", "w.dtype.type({0})",
    "getattr({0}, 'dtype', None)", "np.concatenate([w, [{0}]])", "np.stack([{0}, {1}])", "sorted([{0}, {1}])",
    "w @ w * {0}",
)  # fmt: skip


def expression(choose, depth):
    """A random expression of n and w."""
    if depth <= 0 or choose.random() < 0.12:
        return choose.choice(_LEAVES)

    def part():
        return expression(choose, depth - 1)

    kind = choose.random()
    if kind < 0.3:
        return f"({part()} {choose.choice(_BINARY)} {part()})"
    if kind < 0.5:
        return f"{choose.choice(_CALLS)}({part()})"
    if kind < 0.6:
        return f"{choose.choice(_PAIRS)}({part()}, {part()})"
    return f"({choose.choice(_FORMS).format(*(f'({part()})' for _ in range(3)))})"


_NUMBERS = {
    int: (0, 1, -1, 2, 7, 2**53 + 1, -(2**63), 2**63 - 1),
    "beyond int64": (2**63, -(10**30), 0, 1),
    bool: (True, False),
    float: (0.0, -0.0, 0.5, -2.0, 3.0, 1e300, float("inf"), float("nan"), 0.1),
    complex: (0j, 1j, 1 + 2j, complex(0, -0.0), complex(float("nan"), 1)),
    "NumPy's": (
        np.int64(2),
        np.float64(0.5),
        np.float32(0.1),
        np.True_,
        np.int8(-3),
        np.uint64(2**63),
        np.complex64(1j),
    ),
}


def numbers(choose):
    """A random list of numbers, of one kind or of several, of which one at least is Python's."""
    kinds = [choice for choice in _NUMBERS if choice != "NumPy's"]
    chosen = [choose.choice(kinds)]
    if choose.random() < 0.35:
        chosen += choose.sample(list(_NUMBERS), 2)
    own = [choose.choice(_NUMBERS[chosen[i % len(chosen)]]) for i in range(choose.randint(1, 5))]
    choose.shuffle(own)
    if all(isinstance(x, np.generic) for x in own):
        own.append(1)
    return own


def written(text):
    """The function of n and w that returns the value of this expression."""
    name = f"<door {text}>"
    lines = ["def f(n, w):", f"    return {text}"]
    linecache.cache[name] = len(text), None, [f"{line}\n" for line in lines], name
    space = {"np": np, "math": math, "numbers": numbers_module, "operator": operator, "__name__": "door"}
    exec(compile("\n".join(lines), name, "exec"), space)
    return space["f"]


W = np.float32([0.5, -2, 0.1])


def _batched(way):
    def run(f, xs, door):
        with ab.options(way=way, warn=False):
            return ab.examples(ab.batch(f)(DOORS[door](xs), W))

    return run


def _mapped(way, wrap=list):
    def run(f, xs, door):
        with ab.options(way=way, warn=False):
            return ab.map(f, wrap(xs), w=W)

    return run


def _served(f, xs, door):
    async def ask():
        async with ab.Batcher(f, w=W) as batcher:
            return await asyncio.gather(*(batcher(x) for x in xs))

    return asyncio.run(ask())


WAYS = {
    "batch in lock-step": _batched("lockstep"),
    "batch on the fly": _batched("fly"),
    "batch by choice": _batched("auto"),
    "map on the fly": _mapped("fly"),
    "map by choice": _mapped("auto"),
    "map in lock-step": _mapped("lockstep"),
    "map of Examples": _mapped("fly", ab.Examples),
    "compiled text": lambda f, xs, door: map_as_text(f, [xs], {"w": W}),
    "Batcher": _served,
}


def compare(seed):
    """One random function of random numbers, through some doors, by every way beside the loop."""
    choose = random.Random(seed)
    xs = numbers(choose)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):  # most have a result
            text = expression(choose, choose.randint(1, 3))
            f = written(text)
            expected = outcome(lambda f=f: [f(x, W) for x in xs])
            if isinstance(expected, list):
                break
        doors = choose.sample(list(DOORS), 3)
        for door in doors:
            assert same(DOORS[door](xs).examples(), xs), f"{door}: {DOORS[door](xs)!r} of {xs}"
        wrong = {}
        for way, run in WAYS.items():
            found = outcome(lambda run=run: run(f, xs, doors[0]))
            if found is NotImplemented:
                continue
            if not same(found, expected):
                wrong[way] = found
        assert not wrong, f"{text} of {xs} through {doors[0]}: {wrong}, expected {expected!r}"
    return expected if isinstance(expected, type) else list


def summary(seen):
    """How many functions returned, and how many raised what."""
    return ", ".join(f"{count} {kind.__name__}" for kind, count in collections.Counter(seen).most_common())


FUZZERS = {"number_doors": by_seed(compare, summary)}


if __name__ == "__main__":
    sys.exit(main(FUZZERS))
