"""Random programs that give numbers and arrays of an example to Python's library, with a handler around each call.

What the library makes of a number shows what it was given: C code, `json` and the abstract base classes take a float,
an int or an array of NumPy's each in another way, or raise. Each program is compared in every way with the loop:

    python -m tests.fuzz opaque_callees --seed 5000 --count 1000
"""

import abc
import collections
import contextlib
import copy
import dataclasses
import functools
import importlib
import linecache
import random
import re
import sys
import typing
import warnings

import numpy as np

import autobatch as ab
from tests.fuzz import by_seed, main
from tests.law import batch_of

_VALUES = """
x; x.mean(); x.sum() * 2; x[0]; x[-1] + 1; x[:2]; x.max(); -x; x * 2; x > 0; (x > 0).sum(); x.argmax(); x.mean() > 0;
x.mean() * 0; np.array(x.sum()); x.astype(np.float32)[0]; np.float64(x[0]); float(x[0]); x.shape; x.shape[0]; n;
n + 1; n * 0.5; n > 2; s; s + "x"; k; k[0]; k.sum(); k * 2; k.mean(); w[0]; w; w.sum(); x @ w; round(x[0]);
abs(x[0]); int(x[0]); len(x); x + n; x.tolist(); (x * 2).tolist(); np.ceil(x[0]); x.dtype; [x.mean()]; [x[0], n];
(x.mean(), s); {"s": x.mean() * 2}; {"a": [x[0]], "b": n}; [x, x * 2]; [[x.sum()], s]; (x * 2)[0] ** 2; x.std();
np.round(x.sum()); np.where(x > 0, x, 0.0); x.reshape(1, -1); x[None] * 2
"""
"""Of x (T,) floats, k (3,) integers, n an int, s a text, w (3,) floats that all examples share."""

_CALLEES = r"""
json.dumps(V); json.dumps(V, default=str); json.dumps({"v": V}, default=repr); json.dumps([V], default=float);
json.dumps(V, default=lambda v: type(v).__name__); json.JSONEncoder().encode(V); json.JSONEncoder().default(V);
json.loads(str(V)); json.loads(V); decimal.Decimal(V); decimal.Decimal(1) + V; decimal.Decimal(2) * (V);
decimal.Decimal(2).quantize(V); fractions.Fraction(V); fractions.Fraction(1, 3) + V; fractions.Fraction(V, 3);
datetime.timedelta(seconds=V); datetime.timedelta(1) * (V);
datetime.datetime.fromtimestamp(V, datetime.timezone.utc); datetime.date.fromordinal(V); datetime.timedelta(V);
statistics.mean([V, 1.0]); statistics.mean(V); statistics.fmean(V); statistics.median([V, 2.0, 3]);
statistics.stdev([V, 2.0]); statistics.NormalDist(V, 1.0).mean; marshal.loads(marshal.dumps(V));
pickle.loads(pickle.dumps(V)); pickle.dumps(V, 2); copy.copy(V); copy.deepcopy(V); float.hex(V); (V).hex();
(V).is_integer(); (V).as_integer_ratio(); (V).bit_length(); (V).conjugate(); int.bit_length(V); float.is_integer(V);
float.as_integer_ratio(V); float.__add__(V, 1.0); int.__add__(1, V); float.__repr__(V); str.upper(V);
str.join("-", V); ", ".join(V); str(V); repr(V); ascii(V); format(V, ".3f"); format(V); "%s" % (V,); "%.2f" % V;
"%d" % V; "%r" % (V,); "{}".format(V); "{:.1f}".format(V); str.format("{0!r}", V); "a" * V;
[0] * V; [1, 2, 3][V]; "abc"[V]; range(V); list(range(V)); bytes(V); bytearray(V); memoryview(V).nbytes;
memoryview(V).format; bytes([V]); chr(V); ord(V); bin(V); hex(V); oct(V); int(V); float(V); complex(V); bool(V);
int(V, 10); float.fromhex(V); int.from_bytes(V, "big"); hash(V); abs(V); round(V); round(V, 2); divmod(V, 2);
divmod(7, V); pow(V, 2); pow(2, V, 5); sum(V); sum([V, 1]); min(V); max(V); min(V, 1); max([V, 0.0]); sorted(V);
sorted([V, 1.0]); any(V); all(V); len(V); list(V); tuple(V); set(V); frozenset(V); dict(V); dict(a=V);
list(enumerate(V)); list(zip(V, [1, 2])); list(reversed(V)); list(map(str, V)); list(map(type, [V]));
list(map(type, V)); list(filter(None, V)); next(iter(V)); iter(V) and 1; slice(V).indices(5); isinstance(V, float);
isinstance(V, int); isinstance(V, (list, tuple)); isinstance(V, np.ndarray); isinstance(V, np.generic);
isinstance(V, np.floating); isinstance(V, (int, float)); isinstance(V, collections.abc.Iterable);
isinstance(V, collections.abc.Sized); isinstance(V, collections.abc.Container);
isinstance(V, collections.abc.Hashable); isinstance(V, collections.abc.Sequence);
isinstance(V, collections.abc.Collection); isinstance(V, collections.abc.Reversible);
isinstance(V, collections.abc.Callable); isinstance(V, collections.abc.Mapping);
isinstance(V, collections.abc.Iterator); isinstance(V, numbers.Number); isinstance(V, numbers.Real);
isinstance(V, numbers.Integral); isinstance(V, numbers.Complex); isinstance(V, numbers.Rational);
isinstance(V, typing.SupportsFloat); isinstance(V, typing.SupportsInt); isinstance(V, typing.SupportsIndex);
isinstance(V, typing.SupportsAbs); isinstance(V, typing.SupportsRound); isinstance(V, typing.SupportsComplex);
isinstance(V, typing.SupportsBytes); isinstance(V, typing.Sized); isinstance(V, HasShape);
isinstance(V, Iterable | Sized); isinstance(V, int | float); isinstance(V, object); isinstance(V, Like);
issubclass(type(V), Sized); hasattr(V, "__iter__"); hasattr(V, "__len__"); hasattr(V, "__index__");
hasattr(V, "__array__"); hasattr(V, "shape"); hasattr(V, "__contains__"); hasattr(V, "__hash__");
hasattr(V, "__getitem__"); hasattr(V, "__setitem__"); hasattr(V, "trace"); hasattr(V, "tolist"); hasattr(V, "real");
hasattr(V, "hex"); hasattr(V, "__round__"); hasattr(V, "__dict__"); hasattr(V, "items"); hasattr(V, "aval");
hasattr(V, "is_integer"); hasattr(V, "__float__"); hasattr(V, "__iadd__"); hasattr(V, "__buffer__");
hasattr(V, "__bytes__"); hasattr(V, "__floor__"); hasattr(V, "__slots__"); hasattr(V, "__call__");
hasattr(V, "__next__"); hasattr(V, "__array_interface__"); hasattr(V, "__array_struct__");
hasattr(V, "__array_priority__"); hasattr(V, "_ab_rank"); getattr(V, "shape", None); getattr(V, "ndim", 7);
getattr(V, "real"); getattr(V, "size", None); getattr(V, "__len__", None) is None; getattr(V, "dtype", None);
getattr(V, "itemsize", None); getattr(V, "nbytes", None); getattr(V, "T", 0); getattr(V, "imag", 0);
getattr(V, "__class__"); getattr(V, "item")(); callable(V);
callable([V]); type(V); type(V).__name__; [type(v) for v in [V]]; type(V) is float; type(V) in (float, np.float64);
partial(type, V)(); {type(V): 1}; alias(V); (lambda t=type: t(V))(); sorted([V], key=type); (V).__class__;
(V).__class__.__name__; type(type(V)); operator.attrgetter("__class__")(V); operator.methodcaller("item")(V);
operator.itemgetter(0)(V); operator.index(V); operator.add(V, 1); operator.mul(V, 2); operator.neg(V);
operator.truth(V); operator.not_(V); operator.length_hint(V, 3); operator.concat(V, [1]); operator.contains(V, 1);
operator.getitem(V, 0); operator.pow(V, 2); operator.floordiv(V, 2); operator.eq(V, 1); operator.lt(V, 1);
operator.countOf(V, 1); operator.is_(V, None); operator.invert(V); operator.matmul(V, V); operator.iadd(1, V);
operator.abs(V); math.sqrt(V); math.exp(V); math.floor(V); math.ceil(V); math.trunc(V); math.isnan(V);
math.isclose(V, 1.0); math.frexp(V); math.fsum([V, 1.0]); math.fsum(V); math.prod([V, 2]); math.prod(V);
math.gcd(V, 4); math.factorial(V); math.comb(V, 2); math.isqrt(V); math.hypot(V, 1.0); math.dist(V, [1.0, 2.0, 3.0]);
math.copysign(V, -1.0); math.ldexp(V, 2); math.ldexp(1.0, V); math.modf(V); math.log(V); math.degrees(V);
math.pow(V, 2); cmath.sqrt(V); cmath.phase(V); cmath.polar(V); cmath.isfinite(V); struct.pack("d", V);
struct.pack("f", V); struct.pack("i", V); struct.pack("?", V); struct.pack("dd", 1.0, V); struct.Struct("d").pack(V);
struct.calcsize(V); array.array("d", [V]); array.array("d", V); array.array("i", [V]); array.array("b", V);
ctypes.c_double(V).value; ctypes.c_int(V).value; ctypes.c_float(V).value; base64.b64encode(V); binascii.hexlify(V);
zlib.crc32(V); zlib.adler32(V); hashlib.md5(V).hexdigest(); hashlib.sha256(repr(V).encode()).hexdigest();
collections.Counter(V); collections.Counter([V]); collections.deque(V); collections.deque([V], maxlen=1)[0];
collections.OrderedDict(a=V); collections.ChainMap({"a": V})["a"]; collections.namedtuple("P", "a")(V);
types.SimpleNamespace(a=V).a; dict.fromkeys([V]); dict.fromkeys([1], V); functools.reduce(operator.add, [V, 1]);
functools.reduce(max, V); partial(float, V)(); partial(float.hex)(V); functools.partial(round)(V);
itertools.repeat(V, 2).__length_hint__(); list(itertools.repeat(V, 2)); list(itertools.chain([V], [1]));
list(itertools.chain(V)); list(itertools.accumulate([V, 1])); list(itertools.islice([1, 2, 3], V));
list(itertools.islice(V, 1)); list(itertools.count(V).__reduce__()[1]); list(itertools.product(V, repeat=1));
list(itertools.combinations(V, 2)); list(itertools.starmap(pow, [(V, 2)])); list(itertools.takewhile(bool, [V]));
list(itertools.groupby([V], type))[0][0]; list(itertools.zip_longest([V], [1, 2])); list(itertools.pairwise([V, 1]));
heapq.nlargest(1, [V, 0.0]); heapq.nsmallest(V, [1, 2]); heapq.nsmallest(1, [V], key=type);
list(heapq.merge([V], [1])); bisect.bisect([0.0, 1.0], V); bisect.bisect_left(V, 1);
string.Template("$v").substitute(v=V); string.Formatter().format("{0:.2f}", V); textwrap.indent(str(V), " ");
textwrap.dedent(V); pprint.pformat(V); io.StringIO(V).read(); io.BytesIO(V).read(); sys.getsizeof(V) and 1;
sys.intern(V); typing.cast(float, V); float(V) + 0.0; single(V); single([V]); single((V,)); kinds(V); kinds(v=V);
Kept(V).kind; Kept(V).told(); Point(V); Point(V).kind; Num(V) + 1; [V].count(1); [V].index(1);
[V, 1].__contains__(1); {1: 2}.get(V, 3); {}.setdefault(1, V); (V) in [1, 2]; 1 in V; {0: 1}.pop(V, 5); {V}; {V: 1};
{1: V} == {1: 2}; (V,) == (1,); [V] < [1]; "x".center(V); "x".ljust(V, "-"); "abc".find(V); "a,b".split(V);
"abc".startswith(V); b"ab".hex(":", V); "".join([V]); (1).__add__(V); (1.5).__mul__(V); (2).__pow__(V);
(1.5).__eq__(V); complex(1, V); complex(V, 2); float(str(V)); int(str(V)); slice(0, V).stop; [*range(5)][: V];
(5).to_bytes(V, "big"); Shaped(V); isinstance(V, Shaped); contextlib.nullcontext(V).enter_result;
random.Random(1).uniform(V, 2.0); random.Random(V).random(); isinstance(V, typing.get_type_hints(Kept)["kind"]);
match_of(V); dispatch(V); cached(V); unpack(*V); [*V]; max(V, key=abs); max([V], key=type);
min([V, 0], key=lambda v: type(v).__name__); list(map(lambda v: type(v), V));
[f(1.0) for f in [partial(operator.add, V)]]
"""


_LIBRARY = """
    array base64 binascii bisect cmath copy ctypes datetime decimal fractions hashlib heapq io itertools json marshal
    math numbers pickle pprint random statistics string struct sys textwrap types zlib
"""


# What the programs name beside Python's library.

Iterable, Sized, partial = collections.abc.Iterable, collections.abc.Sized, functools.partial
alias = type


class Like(abc.ABC):  # noqa: B024 - what its hook says is all it is for
    """Numbers that can say whether they are whole."""

    @classmethod
    def __subclasshook__(cls, kind):
        return hasattr(kind, "is_integer")


@typing.runtime_checkable
class HasShape(typing.Protocol):
    shape: tuple


class Kept:
    kind: float

    def __init__(self, value):
        self.value, self.kind = value, type(value)

    def told(self):
        return f"{type(self.value).__name__} {isinstance(self.value, Sized)}"


@dataclasses.dataclass
class Point:
    value: object
    kind: object = None

    def __post_init__(self):
        self.kind = type(self.value).__name__


class Num:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return type(self.value + other).__name__


def single(value, default=type):
    return default(value)


def kinds(*values, **named):
    return [*map(type, values), *map(type, named.values())]


def match_of(value):
    match value:
        case float():
            return "float"
        case [first, *_]:
            return "sequence", type(first)
        case {"s": part}:
            return "mapping", type(part)
        case int() | str():
            return "int or str"
    return "other"


@functools.singledispatch
def dispatch(value):
    return "other", type(value)


@dispatch.register(float)
def _(value):
    return "float", value.hex()


@dispatch.register(np.ndarray)
def _(value):
    return "array", value.shape


@functools.cache
def cached(value):
    return type(value)


def unpack(*values):
    return [type(value).__name__ for value in values]


def _parts(text):
    return [part.strip() for part in text.replace(";\n", ";").replace("\n", ";").split(";") if part.strip()]


SCOPE = {**{name: importlib.import_module(name) for name in _LIBRARY.split()}, **globals()}
"""What the programs may name."""
VALUES, CALLEES = _parts(_VALUES), _parts(_CALLEES)
_V = re.compile(r"\bV\b")


WAYS = ("fly", "lockstep", "compiled")


def write(steps, handled=True):
    """The text of a function that takes each step, a callee and a value, with a handler around it if `handled`."""
    lines = ["def f(x, k, n, s, w):"]
    for i, (callee, value) in enumerate(steps):
        call = _V.sub(lambda _, value=value: value if value.isidentifier() else f"({value})", callee)
        if handled:
            caught = ["    except Exception as error:", f"        v{i} = type(error).__name__"]
            lines += ["    try:", f"        v{i} = {call}", *caught]
        else:
            lines.append(f"    v{i} = {call}")
    return "\n".join([*lines, f"    return [{', '.join(f'v{i}' for i in range(len(steps)))}]", ""])


@contextlib.contextmanager
def function_of(text, name, scope):
    """The function `f` of a program; its source is there for as long as the context."""
    filename = f"<program {name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = dict(scope)
    with warnings.catch_warnings(action="ignore"):  # of syntax that can only raise
        exec(compile(text, filename, "exec"), scope)
    try:
        yield scope["f"]
    finally:
        del linecache.cache[filename]


def examples(seed):
    """Columns of a few examples, and what they share."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 4))
    xs = [rng.integers(-4, 9, 3) * 0.5 for _ in range(count)]
    ks = [rng.integers(0, 4, 3) for _ in range(count)]
    ns = [int(i) for i in rng.integers(0, 5, count)]
    return [xs, ks, ns, ["7", "ab", "1.5"][:count]], {"w": rng.integers(1, 5, 3) * 1.0}


def told(value):
    """A value in full: classes, dtypes and numbers, containers as deep as they go."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray | np.generic):
        return f"{kind} {value.dtype} {np.shape(value)} {np.asarray(value).tolist()}"
    if isinstance(value, dict):
        return kind, [(told(key), told(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | collections.deque):
        return kind, [told(each) for each in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(map(str, map(told, value)))
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return kind, told(vars(value))
    return f"{kind} {value!r}"


def _by(way, f, columns, shared):
    """What the examples give, run in a way; or the class of what the first that fails raises."""
    columns = copy.deepcopy(columns)
    try:
        if way == "loop":
            found = [f(*row, **shared) for row in zip(*columns, strict=True)]
        elif way == "lockstep":
            found = ab.examples(ab.batch(f)(*map(batch_of, columns), **shared))
        else:
            found = ab.map(f, *columns, **shared)
        return list(map(told, found))
    except Exception as error:
        return type(error).__name__


def differences(f, columns, shared, ways=WAYS):
    """The ways in which a function differs from the loop: {way: (found, expected)}."""
    want = _by("loop", f, columns, shared)
    out = {}
    for way in ways:
        with ab.options(way=way):
            found = _by(way, f, columns, shared)
        if found != want:
            out[way] = found, want
    return out


def compare(seed):
    """Compare a program of this seed with the loop in each way; raises AssertionError."""
    choices = random.Random(seed)
    handled = choices.random() < 0.6  # lock-step and compiled code have no form for most handlers
    steps = range(choices.randint(1, 6 if handled else 2))
    text = write([(choices.choice(CALLEES), choices.choice(VALUES)) for _ in steps], handled)
    columns, shared = examples(seed)
    with function_of(text, seed, SCOPE) as f, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        different = differences(f, columns, shared)
    assert not different, f"{text}\n{different}"


FUZZERS = {"opaque_callees": by_seed(compare)}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
