"""Random programs that recorders have a form for: an example's own Python beside what is recorded, against the loop.

What recorders read differs from what runs as Python only inside: so an example is a tuple, a dict, a list or an object,
its numbers are Python's and NumPy's of several kinds, and its own arrays are written to, kept, returned, named twice.
Values, exact types, what is the same object, what becomes of the examples, and exceptions are compared:

    python -m tests.lazy.recorder_programs --seed 5000 --count 1000
"""

import bisect
import collections
import copy
import dataclasses
import heapq
import linecache
import math
import operator
import random
import re
import sys
import warnings

import numpy as np

import autobatch as ab
from autobatch.lazy.recorders.generated_recorders import why_not_recorded
from tests.fuzz import by_seed, main
from tests.inspect import map_with_stats
from tests.law import assert_same


@dataclasses.dataclass
class Record:
    """An example that is an object."""

    ns: list
    x: np.ndarray
    y: np.ndarray
    word: str
    p: object
    d: dict
    rows: list


Fields = collections.namedtuple("Fields", "left right")


def step(h, w):
    return np.tanh(h @ w + 1)


def several(h, *rest, w, scale=2):
    for each in rest:
        h = h + each * scale
    return step(h, w)


def depth(ns, w, h):
    if not ns:
        return h
    return step(depth(ns[1:], w, h) * ns[0], w)


TOTALS = [0.0]

READ = {
    "tuple": "    ns, x, y, word, p, d, rows = each",
    "list": "    ns, x, y, word, p, d, rows = each",
    "dict": "    ns, x, y, word, p, d, rows = (each[k] for k in ('ns', 'x', 'y', 'word', 'p', 'd', 'rows'))",
    "keys": "    ns = each['ns']; x = each['x']; y = each['y']; word = each['word']; p = each['p']; d = each['d']\n"
    "    rows = each['rows']",
    "object": "    ns, x, y, word, p, d, rows = each.ns, each.x, each.y, each.word, each.p, each.d, each.rows",
}  # fmt: skip

NUMBERS = """
n; len(ns); len(y); p; i; 2; 0.5; -1; True; len(word); m; total; abs(n); min(n, 2); max(p, 1); n * 0.5; -n; n % 3;
i / 2; n // 2; p * 2; p + n; ns[0]; ns[-1]; ns[i]; sum(ns); len(kept); d['a']; d.get('b', 1); d.get(word, n); int(p);
float(n); round(p); n ** 2; x[0]; y[0]; y.sum(); x.max(); float(x[1]); int(x[0] > 0); len(rows); word.count('a');
bool(n); x.shape[0]; y.size; ord(word[0]); table[0]; (n if n > 1 else p); (p or n); (n and p); math.floor(p);
divmod(n, 3)[0]; pair.left; y.argmax(); np.float32(n); x.sum() * n; rows[0][1]; ns[1:2][0]; sorted(ns)[0]; max(ns);
min(ns, default=0); h[0]; h.sum(); float(h.sum()); counts.get(n, 0); (1 if word else n);
next((v for v in ns if v > 1), p); len(set(ns)); int(word == 'ab'); x.ndim; x @ x; y @ y; np.sqrt(p); np.exp(n);
np.abs(n); np.maximum(n, p); np.sum(x); np.mean(x); np.dot(x, x)
"""
VECTORS = """
h; x; g; h * N; h + N; x * N; h + x; x + h; h[::-1]; np.sort(x); np.abs(x); h * x; N - h; x / 2; step(h, w);
step(x, w); several(h, N, w=w); several(x, x, N, w=w, scale=N); w[0]; w[i % 3]; h @ w; x @ w; np.where(h > 0, h, N);
(h if n > 1 else x); np.maximum(h, x); np.maximum(h, N); g.copy(); x.copy(); h.copy(); np.zeros(3); np.ones(3) * N;
np.array([n, p, 0.5]); kept[0]; rows[0]; rows[-1]; np.tanh(x); h if p else g; np.clip(h, -0.5, 0.5);
h.astype(np.float32); np.concatenate([x, h])[:3]; np.stack([h, x]).sum(0); x[[2, 0, 1]]; h[[2, 0, 1]]; np.cumsum(h);
np.roll(h, 1); x if n else h; -h; +x; h ** 2; np.full(3, N); np.where(x > N, x, h); max(rows, key=lambda r: r[0]);
np.outer(h, x)[i % 3]; (h > 0) * N; (x > 0) * 1; np.float64(N) + h; depth(ns, w, h); np.arange(3) * N; np.array(x);
np.asarray(x); x.T; h.T; x.reshape(3); w @ x; np.dot(x, w); np.minimum(x, N)
"""
CONDITIONS = """
n > 1; len(ns) > 2; p; word; not ns; x[0] > 0; x.sum() > 0; n in ns; n in d; 'a' in word; 'a' in d; 0 < n <= 2;
n and p; h[0] > 0.5; h.sum() > 1; any(v > 1 for v in ns); all(v for v in ns); n == p; n != 1 and p; n is None;
isinstance(p, float); isinstance(n, int); word.endswith('b'); y.size; len(y) > len(ns); (x > 0).any(); (h > 0).all();
n > 0 or ns[0] > 0; kept; ns == [1, 2]; word < 'b'; d; i % 2; x is g; not n; x.max() > n; m == n; ns[0] < ns[-1];
type(p) is int; counts; total > 1
"""
SIMPLE = """
h = V; h = V; g = V; h += V; h *= N; h = h * N; x = V; total += N; total = N; m = N; n = N; kept.append(V);
kept.append(N); kept += [V]; kept.append((n, V)); h = h + V; g[0] = N; x[0] = N; x[i % 3] += N; y[:] = N; y *= 2;
x += N; ns.append(n); g = x; g = h; kept.append(g); d['a'] = N; d[word] = N; counts[n] = counts.get(n, 0) + 1;
kept.insert(0, N); ns.sort(); ns = sorted(ns); ns = ns[::-1]; ns = ns + [n]; ns += [1]; ns.reverse(); m = ns.pop();
m = ns.index(1); word += 'c'; word = word.upper(); word = word[::-1]; m, n = n, m; (m, *rest) = ns;
kept = kept[::-1]; pair = Fields(N, V); h = pair.right; pair = pair._replace(left=n); heapq.heappush(heap, (n, i));
m = heapq.heappop(heap)[0]; bisect.insort(ns, n); states[word] = V; states[n] = V; h = h + states.get(n, 0);
h = sum(states.values()); m = [v * 2 for v in ns]; m = {v: v for v in ns}; kept = [V for v in ns];
kept = [h * v for v in ns]; kept = [(v, h) for v in ns if v]; h = sum([h * v for v in ns]);
h = sum(h * v for v in ns); total = sum(v * 2 for v in ns); total = N + total; m = N if C else N; h = V if C else V;
m = C; h = h + N if C else h; m = (C) and N; rows.append(V); rows[0] = V; rows[0][1] = N; buf[i % 3] = N;
buf[1] += N; buf += x; h = buf + h; a = [1.0]; a += ns; kept.append(a); m = tuple(ns); m = list(word); m = [*ns, n];
kept.append(x); kept.extend(rows); m = x; m = y[1:]; g = x[:2]; g = x[::-1]; m = float(N); m = f'{n}:{word}';
m = str(p); total -= N; assert n < 7, n; n = next(v for v in ns if v > N); n = next(iter(ns));
m = any(v > N for v in ns); del ns[0]; del d['a']; x.sort(); x.fill(N); np.add(x, N, out=x); x[x > N] = N;
buf[:] = h; buf[1:] = N; m = x.tolist(); g = np.zeros(3); g[i % 3] = N; m = x > N; m = y > 0; m = y[y > 0];
h = h * len(y); h = h + y.sum(); h = h + y[:1].sum(); m = np.append(y, N); m = np.concatenate([y, x]); m = len(y);
m = np.sort(y); m = y.mean(); m = np.cumsum(y); m = 1 / n; m = ns[3]; m = d['zz']; m = n // len(y); m = x[N];
kept[0] = V; kept[-1] = N; m = kept.pop(); m = len(kept); h = kept[-1]; m = enumerate(ns); m = list(zip(ns, word));
m = dict(zip(word, ns)); m = list(range(n)); m = list(map(abs, ns)); m = max(ns, key=lambda v: -v); m = sorted(word);
m = word.split('b'); m = None; m = x.dtype; m = (x, x); m = [x] * 2; m = np.float32(N); m = np.int8(n); m = bool(N);
m = round(N, 1); h = abs(h); m = d.items(); m = list(d); m = sorted(d); d = {**d, 'c': n}; m = d.pop('a', N);
d.update(c=V); d.setdefault('e', []).append(N); m = ns.copy(); ns.clear(); ns.extend(ns[:2]); ns.insert(0, n);
ns[0] = N; ns[0] += 1; ns *= 2; m = ns * 2; m = (n, p); m = (n, p) < (2, 1)
"""
COMPOUND = """
if C:|    S|    S; if C:|    S|else:|    S; if C:|    S|elif C:|    S|else:|    S; for i in range(min(n, 9)):|    S;
for i in range(3):|    S|    S; for v in ns[:9]:|    S; for v in ns[:9]:|    h = h * v|    S;
for i, v in enumerate(ns[:9]):|    S; for v in rows[:4]:|    h = h + v;
for r in rows[:4]:|    h = step(h + r, w)|    S; for v in y:|    total += v; for v in y:|    h = h + v;
for c in word[:6]:|    S; for v in ns[:9]:|    if C:|        break|    S;
for v in ns[:9]:|    if C:|        continue|    S|else:|    S; for v in kept[:9]:|    m = v;
t = 4|while n > 0 and t:|    t -= 1|    n = n - 1|    S;
t = 4|while ns and t > 0:|    t = t - 1|    m = ns.pop()|    S; for k in d:|    total += d[k];
for k, v in list(d.items()):|    m = v|    S; for a, b in zip(ns[:9], rows):|    h = h + a * b;
if C:|    return h, n; if C:|    raise ValueError(n); t = 0|while True:|    t += 1|    if t > 3:|        break|    S;
for v in (h, n):|    g = g + v; for v in [x, h]:|    g = g + v; for v in [1, 0.5]:|    h = h * v;
for v in reversed(ns[:9]):|    S; for i in range(len(y)):|    total += y[i]; for i in range(len(y)):|    y[i] = N;
def local(v):|    return v * 2 + n|h = local(h)|m = local(n);
def local(v, k=2):|    return step(v, w) * k|h = local(h)|g = local(x, k=n);
try:|    S|except (ValueError, KeyError, IndexError, ZeroDivisionError):|    S;
def local(v):|    nonlocal m|    m = v|    return v|h = local(h);
try:|    m = N|    S|except ZeroDivisionError:|    S|else:|    S; try:|    S|finally:|    S;
if C:|    q = V|else:|    S;
for v in ns[:3]:|    q = N|    S; if C:|    h = h + q; if C:|    q = None|else:|    q = V; if q is not None:|    S;
match n:|    case 1:|        S|    case m if C:|        S;
match ns:|    case [m, *q]:|        S|    case [_]:|        S;
match (n, p, word):|    case (1, float(v), _):|        S|    case (_, m, str(q)) if C:|        S|    case _:|        S;
match pair:|    case Fields(left=m, right=g):|        S|    case (m, g):|        S;
match (h, n):|    case (g, 2):|        h = g;
match d:|    case dict():|        S|    case _:|        S
"""
_NAME = re.compile(r"\b([NVCS])\b")


def _forms(text):
    return [each.strip() for each in text.replace("\n", " ").split(";") if each.strip()]


FORMS = {"N": _forms(NUMBERS), "V": _forms(VECTORS), "C": _forms(CONDITIONS)}


# what recorders have no form for, or what mostly raises: programs of three seeds in four have none of it
_RARE = re.compile(
    r"^buf|^[xyg]\[.*=|^[xyg] [-+*]=|out=|fill|x\.sort|buf|np\.zeros|np\.ones|np\.full|try|nonlocal|bisect|^rows|^d\b"
    r"|ns\.(append|pop|sort|clear|extend|insert|reverse)|^ns\[|^ns \+=|^ns \*=|del |next\(|1 / n|ns\[3\]|zz|len\(y\)$"
    r"|x\[N\]|raise|assert|ns\.index|kept\.pop|kept\[|table|map\(|k=n|k=2|a \+= ns|^(m|g) = V|@ w\)|np\.outer"
    r"|y\[0\]|argmax|rows\[|min\(|max\(ns\)|copy|enumerate\(ns\)$|items\(\)$"
)


class Writer:
    """Writes one function of (each, w, table)."""

    def __init__(self, seed):
        self.random, self.loops = random.Random(seed), 0
        known = {
            **FORMS,
            "simple": _forms(SIMPLE),
            "compound": [form.strip() for form in COMPOUND.replace("\n", " ").split("; ")],
        }
        rare = _RARE if seed % 4 else re.compile("^$")
        self.forms = {key: [form for form in forms if not rare.search(form)] for key, forms in known.items()}

    def filled(self, form, depth=0):
        """A form with its parts written in."""

        def part(found):
            options = self.forms[found[1]]
            text = self.random.choice(options[:12] if depth > 1 else options)
            return self.filled(text, depth + 1) if depth < 3 else "n" if found[1] != "V" else "h"

        return re.sub(r"\b([NVC])\b", part, form)

    def statement(self, budget):
        if budget and self.random.random() < 0.35:
            out = []
            self.loops += 1
            form = re.sub(r"\bt\b", f"t{self.loops}", self.random.choice(self.forms["compound"]))
            for line in form.split("|"):
                text = line.strip()
                pad = line[: len(line) - len(line.lstrip())]
                out += [pad + each for each in self.statement(budget - 1)] if text == "S" else [self.filled(line)]
            return out
        return [self.filled(self.random.choice(self.forms["simple"]))]

    def write(self, kind):
        names = {
            "m": "0", "i": "0", "total": "0.0", "kept": "[]", "heap": "[]", "counts": "{}", "states": "{}",
            "buf": "np.zeros(3)", "pair": "Fields(1, x)", "g": "h",
        }  # fmt: skip
        body = []
        for _ in range(self.random.randint(1, 5)):
            body += self.statement(2)
        ends = ["h", "n", "m", "total", "kept", "ns", "word", "d", "g", "buf", "x", "y", "i", "states", "counts"]
        ends += ["rows", "pair", "heap"]
        text = "\n".join(body)
        used = [name for name in ends if re.search(rf"\b{name}\b", text)]
        returned = ["h", *[each for each in used if each != "h" and self.random.random() < 0.8]]
        copies = {
            "ns": "list(ns)",
            "rows": "len(rows)",
            "d": "len(d)",
            "pair": "pair.left",
            "counts": "list(counts.values())",
        }
        copies |= {"kept": "len(kept)"} if self.random.random() < 0.2 else {}
        if self.random.random() < 0.9:  # what is an example's own container is not recorded
            returned = [copies.get(name, name) for name in returned]
        needed = [name for name in names if re.search(rf"\b{name}\b", text + " ".join(returned))]
        begin = [READ[kind], "    n = ns[0] if ns else len(word)"]
        begin += ["    h = " + self.random.choice([*["step(x, w)"] * 12, "x @ w", "w[1]", "x * 2"])]
        begin += [f"    {name} = {names[name]}" for name in names if name in needed]
        begin += ["    h = step(h, w)"] * (self.random.random() < 0.3)
        lines = [
            "def f(each, w, table):",
            *begin,
            *("    " + each for each in body),
            f"    return {', '.join(returned)},",
        ]
        return "\n".join(lines) + "\n"


def made(text, seed):
    """The function of this text, with its source where the syntax is looked for."""
    name = f"<recorded {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope = {
        "np": np, "math": math, "heapq": heapq, "bisect": bisect, "Fields": Fields, "step": step, "several": several,
        "depth": depth, "operator": operator, "__name__": __name__,
    }  # fmt: skip
    exec(compile(text, name, "exec"), scope)
    return scope["f"]


def examples(seed, kind):
    """The examples, and what they share."""
    rng = np.random.default_rng(seed)
    dtype = rng.choice([np.float64, np.float64, np.float32, np.int64])
    floats = rng.choice(["float", "int", "mixed", "numpy"])
    lowest = int(rng.integers(0, 5) > 0)
    one = normal(rng, dtype, 3)
    out = []
    for place in range(int(rng.choice([1, 5, 12, 12, 20]))):
        ns = [int(n) for n in rng.integers(-2, 5, rng.integers(lowest, 4))]
        p = round(float(rng.normal()), 2)
        mixed = (p, int(p * 3), bool(p > 0))[place % 3]
        number = {"float": p, "int": int(p * 3), "mixed": mixed, "numpy": np.float64(p)}
        y = normal(rng, dtype, int(rng.integers(lowest, 4)))
        if rng.random() < 0.05 and y.dtype.kind == "f":
            y[:1] = np.nan
        x = one if rng.random() < 0.1 else normal(rng, dtype, 3)
        rows = [normal(rng, dtype, 3) for _ in range(rng.integers(lowest, 3))]
        word = "abcab"[: rng.integers(lowest, 5)]
        fields = {"ns": ns, "x": x, "y": y, "word": word, "p": number[floats]}
        fields |= {"d": {"a": int(rng.integers(5)), "b": p}, "rows": rows}
        containers = {"tuple": tuple, "list": list, "object": lambda values: Record(*values)}
        out.append(containers[kind](fields.values()) if kind in containers else fields)
    shared = normal(rng, np.float64 if dtype == np.int64 else dtype, (3, 3))
    return out, {"w": shared, "table": [1.5, 2, 3]}


def normal(rng, dtype, shape):
    """Some numbers of a dtype."""
    return (rng.standard_normal(shape) * (3 if np.dtype(dtype).kind == "i" else 1)).astype(dtype)


def told(value, seen):
    """The types in a structure, and which of its mutable parts are the same object, or share memory."""
    if isinstance(value, np.ndarray):
        same = seen.setdefault(id(value), len(seen))
        return ("array", value.dtype.str, value.shape, same) if value.ndim else (value.dtype.str,)
    if isinstance(value, np.generic):
        return (value.dtype.str,)
    if isinstance(value, list | dict | Record):
        if id(value) in seen:
            return ("again", seen[id(value)])
        seen[id(value)] = len(seen)
    if isinstance(value, Record):
        return [told(each, seen) for each in vars(value).values()]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(told(each, seen) for each in value)]
    if isinstance(value, dict):
        return {key: told(each, seen) for key, each in value.items()}
    return type(value).__name__


def first_difference(found, expected, path=""):
    """Where two structures differ first, and how."""
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple) and len(found) == len(expected):
        for at, (a, b) in enumerate(zip(found, expected, strict=True)):
            if a != b:
                return first_difference(a, b, f"{path}[{at}]")
    return f"{path}: {found}, expected {expected}"


def outcome(run, xs, shared):
    """What a run gives or raises, and what became of what it was given."""
    xs, shared = copy.deepcopy((xs, shared))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = run(xs, shared)
        except Exception as error:
            found = error
    return found, xs, shared


def compare(seed):
    """How many examples of a program were recorded by a recorder, of how many; raises AssertionError."""
    kind = random.Random(-seed - 1).choice([*READ])
    text = Writer(seed).write(kind)
    f = made(text, seed)
    xs, shared = examples(seed, kind)
    where = f"{text}\nseed {seed}: "
    want, changed, left = outcome(lambda xs, shared: [f(x, **shared) for x in xs], xs, shared)
    recorded = 0
    for again in range(3):
        stats = None

        def run(xs, shared):
            nonlocal stats
            with ab.options(way="fly"):
                found, stats = map_with_stats(f, xs, **shared)
            return found

        found, others, shared_after = outcome(run, xs, shared)
        place = f"{where}run {again}: "
        if isinstance(want, Exception):
            assert (type(found), str(found)) == (type(want), str(want)), f"{place}{found!r} for {want!r}"
        else:
            assert not isinstance(found, Exception), f"{place}{found!r}"
            assert_same(found, want, place, precision=4)
            names, others_names = {}, {}
            is_now = [told(list(found), names), told(others, names)]
            should_be = [told(list(want), others_names), told(changed, others_names)]
            assert is_now == should_be, f"{place}identity of {first_difference(is_now, should_be)}"
        assert_same(others, changed, f"{place}examples afterwards", precision=4)
        assert_same(shared_after, left, f"{place}shared afterwards", precision=4)
        recorded = max(recorded, stats.recorded if stats else 0)
    return (
        recorded,
        len(xs),
        isinstance(want, Exception),
        re.sub(r"0x\w+|_ab_\w+|line \d+", "_", str(why_not_recorded(f)))[:90],
    )


def compare_gradients(seed):
    """Compare the gradient of the first result by what is shared, of a program; returns whether there is one."""
    kind = random.Random(-seed - 1).choice([*READ])
    text = Writer(seed).write(kind)
    f = made(text, seed)
    xs, shared = examples(seed, kind)

    def alone(xs, shared):
        def total(w):  # of all results at once, since examples may write into what earlier ones have returned
            return sum(np.sum(each[0]) for each in [f(x, **{**shared, "w": w}) for x in xs])

        return ab.grad(total)(shared["w"])

    def together(xs, shared):
        with ab.options(way="fly"):
            return ab.grad(lambda w: sum(np.sum(each[0]) for each in ab.map(f, xs, **{**shared, "w": w})))(shared["w"])

    want, *_ = outcome(alone, xs, shared)
    if isinstance(want, Exception):
        return False
    largest = np.abs(want).max(initial=1, where=np.isfinite(want))  # the terms of a sum may be larger than the sum
    for again in range(2):
        found, *_ = outcome(together, xs, shared)
        assert not isinstance(found, Exception), f"{text}\nseed {seed}, run {again}: {found!r}"
        place = f"{text}\nseed {seed}: run {again}: gradient"
        assert_same(found / largest, want / largest, place, precision=4)
    return True


def summary(seen):
    """How much of the programs ran by recorders."""
    some = sum(recorded > 0 for recorded, *_ in seen)
    reasons = collections.Counter(reason for recorded, _, _, reason in seen if not recorded)
    lines = [f"{some} of {len(seen)} recorded, {sum(raised for _, _, raised, _ in seen)} raise"]
    return "\n".join([*lines, *(f"{times:5d} {reason}" for reason, times in reasons.most_common(25))])


FUZZERS = {
    "recorders": by_seed(compare, summary),
    "recorder-gradients": by_seed(compare_gradients, lambda seen: f"{sum(seen)} have gradients"),
}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
