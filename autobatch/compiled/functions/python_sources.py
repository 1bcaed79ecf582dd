"""Functions of Python's library, written as plain Python that is compiled like a helper of the user's.

Each does what CPython's does, for arguments of a few types. Where one raises an exception, the example runs in Python,
unless the user's function catches the exception.
"""

import bisect
import heapq
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from autobatch.compiled.translation.calls import CALLS, ITERATORS, METHODS, user_function
from autobatch.compiled.translation.exact_types import Array, Counts, Deque, List, Text, Tuple
from autobatch.compiled.translation.source_program import Unreadable
from autobatch.compiled.translation.typed_text import Value


def implements(
    *functions: Any, of: tuple[int, ...] = (), sums: bool = False, into: dict[Any, Any] = CALLS
) -> Callable[[Any], Any]:
    """Register the decorated function to be read for calls of these functions, or of methods given as (type, name).

    Args:
        of: the ranks that the first argument may have, a list counting as a vector; () for any.
        sums: NumPy or LAPACK may add in another order, so results are compared approximately.
    """

    def register(written: Any) -> Any:
        parameters = list(inspect.signature(written).parameters)

        def call(reader: Any, node: Any, *args: Value, **named: Value) -> Value:
            if len(args) > len(parameters) or not set(named) <= set(parameters):
                raise reader.refuse("with these arguments it is not compiled", node)
            if of and rank(args[0].kind if args else None) not in of:
                raise reader.refuse("with arguments of these types it is not compiled", node)
            reader.program.approximate |= sums
            try:
                return user_function(reader, node, written, list(args), named)
            except Unreadable as error:
                raise reader.refuse(f"with these arguments it is not compiled ({error})", node) from None

        into.update(dict.fromkeys(functions, call))
        return written

    return register


def rank(kind: Any) -> int:
    """The rank of an array; 1 for a list of numbers, -1 for anything else."""
    if isinstance(kind, Array):
        return kind.ndim
    return 1 if isinstance(kind, List) and not isinstance(kind.elem, List | Array | Tuple) else -1


def method(kind: type, name: str) -> Callable[[Any], Any]:
    """Register the decorated function to be read for calls of a method."""
    return implements((kind, name), into=METHODS)


def leave_to_python() -> NoReturn:
    """Leave the example to Python; no handler of the user's catches this."""
    raise AssertionError


CALLS[leave_to_python] = lambda reader, node: reader.stop()


# --- Python's


@implements(bisect.bisect_left)
def bisect_left(a, x, lo=0, hi=None):
    if lo < 0:
        raise ValueError
    high = len(a) if hi is None else hi
    low = lo
    while low < high:
        middle = (low + high) // 2
        if a[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


@implements(bisect.bisect_right, bisect.bisect)
def bisect_right(a, x, lo=0, hi=None):
    """`bisect.bisect_right`."""
    if lo < 0:
        raise ValueError
    high = len(a) if hi is None else hi
    low = lo
    while low < high:
        middle = (low + high) // 2
        if x < a[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@implements(bisect.insort, bisect.insort_right)
def insort(a, x):
    a.insert(bisect_right(a, x), x)


@implements(bisect.insort_left)
def insort_left(a, x):
    a.insert(bisect_left(a, x), x)


@implements(divmod)
def both(a, b):
    return a // b, a % b


@implements(pow)
def power(base, exp, mod=None):
    if mod is None:
        return base**exp
    if mod == 0:
        raise ValueError
    if exp < 0:
        leave_to_python()
    out, square, left = 1 % mod, base % mod, exp
    while left > 0:
        if left % 2 == 1:
            out = out * square % mod
        left = left // 2
        if left > 0:
            square = square * square % mod
    return out


def rounded_to(x, n):
    """`round` of a float: the integer nearest to x * 10**n, if that is certain, divided by 10**n."""
    if n < 0 or n > 22:
        leave_to_python()
    power = 10.0**n
    scaled = x * power
    whole = float(np.rint(scaled))
    if not abs(scaled) < 2.0**51 or abs(abs(scaled - whole) - 0.5) <= abs(scaled) * 2.3e-16:
        leave_to_python()
    return whole / power


@implements(bin)
def binary(number):
    left = abs(number)
    out = "0" if left == 0 else ""
    while left > 0:
        out = ("1" if left % 2 == 1 else "0") + out
        left = left // 2
    return ("-0b" if number < 0 else "0b") + out


@implements(heapq.nsmallest)
def nsmallest(n, iterable):
    return sorted(iterable)[: max(n, 0)]


@implements(heapq.nlargest)
def nlargest(n, iterable):
    return sorted(iterable, reverse=True)[: max(n, 0)]


@implements(math.prod)
def product(values, start=1):
    out = start
    for value in values:
        out = out * value
    return out


@implements(math.fsum)
def fsum(seq):
    parts = [0.0 for _ in range(0)]
    for value in seq:
        x = float(value)
        kept = [0.0 for _ in range(0)]
        for part in parts:
            big, small = (part, x) if abs(x) < abs(part) else (x, part)
            high = big + small
            low = small - (high - big)
            if low != 0.0:
                kept.append(low)
            x = high
        kept.append(x)
        parts = kept
    if len(parts) == 0:
        return 0.0
    n = len(parts) - 1
    high = parts[n]
    low = 0.0
    while n > 0:
        n -= 1
        x, y = high, parts[n]
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            break
    if n > 0 and ((low < 0.0 and parts[n - 1] < 0.0) or (low > 0.0 and parts[n - 1] > 0.0)):
        y = low * 2.0
        x = high + y
        if y == x - high:
            high = x
    return high


@implements(math.factorial)
def factorial(n):
    if n < 0:
        raise ValueError
    out = 1
    for k in range(2, n + 1):
        out *= k
    return out


@implements(math.comb)
def comb(n, k):
    if n < 0 or k < 0:
        raise ValueError
    if k > n:
        return 0
    out = 1
    for i in range(min(k, n - k)):
        out = out * (n - i) // (i + 1)
    return out


@implements(math.perm)
def perm(n, k=None):
    if k is None:
        return factorial(n)
    if n < 0 or k < 0:
        raise ValueError
    out = 1
    for i in range(k):
        out *= n - i
    return out


@implements(math.isqrt)
def isqrt(n):
    if n < 0:
        raise ValueError
    out = int(math.sqrt(n))
    while out * out > n:
        out -= 1
    while (out + 1) * (out + 1) <= n:
        out += 1
    return out


@implements(math.dist)
def distance(p, q):
    if len(p) != 2 or len(q) != 2:
        leave_to_python()
    return math.hypot(p[0] - q[0], p[1] - q[1])


@implements(math.radians)
def radians(x):
    return float(x) * (math.pi / 180.0)


@implements(math.degrees)
def degrees(x):
    return float(x) * (180.0 / math.pi)


@implements(math.lcm)
def lcm(a, b):
    if a == 0 or b == 0:
        return 0
    return abs(a // math.gcd(a, b) * b)


@method(List, "index")
def index(items, value):
    for k in range(len(items)):
        if items[k] == value:
            return k
    raise ValueError


@method(List, "count")
def count(items, value):
    out = 0
    for item in items:
        if item == value:
            out += 1
    return out


@method(List, "remove")
def remove(items, value):
    items.pop(index(items, value))


@method(Deque, "rotate")
def rotate(items, n=1):
    if len(items) > 0:
        for _ in range(n % len(items)):
            items.appendleft(items.pop())


METHODS[Tuple, "index"], METHODS[Tuple, "count"] = METHODS[List, "index"], METHODS[List, "count"]


@method(Counts, "most_common")
def most_common(counts, n=None):
    pairs = sorted(counts.items(), key=lambda pair: pair[1], reverse=True)
    return pairs if n is None else pairs[: max(n, 0)]


@method(Counts, "total")
def total(counts):
    return sum(counts.values())


# --- iterators


def two_of(items, r):
    pool = list(items)
    return [(pool[i], pool[j]) for i in range(len(pool)) for j in range(i + 1, len(pool))]


def three_of(items, r):
    pool = list(items)
    places = range(len(pool))
    return [
        (pool[i], pool[j], pool[k]) for i in places for j in range(i + 1, len(pool)) for k in range(j + 1, len(pool))
    ]


def combinations(reader: Any, node: Any, items: Value, r: Value) -> Value:
    """`itertools.combinations` of two or three."""
    written = {2: two_of, 3: three_of}.get(r.constant)
    if written is None:
        raise reader.refuse("combinations of other than two or three", node)
    return user_function(reader, node, written, [items, r], {})


ITERATORS[itertools.combinations] = combinations


@implements(itertools.product, into=ITERATORS)
def pairs(a, b):
    return [(x, y) for x in a for y in b]


@implements(itertools.pairwise, into=ITERATORS)
def pairwise(items):
    pool = list(items)
    return [(pool[i], pool[i + 1]) for i in range(len(pool) - 1)]


@implements(itertools.accumulate, into=ITERATORS)
def accumulate(items):
    out: list = []
    for item in items:
        if len(out) == 0:
            out.append(item)
        else:
            out.append(out[-1] + item)
    return out


@implements(itertools.chain, into=ITERATORS)
def chain(a, b):
    out = list(a)
    out.extend(b)
    return out


# --- strings


@method(Text, "count")
def count_text(s, part):
    if len(part) == 0:
        return len(s) + 1
    out = i = 0
    while i + len(part) <= len(s):
        if s[i : i + len(part)] == part:
            out += 1
            i += len(part)
        else:
            i += 1
    return out


@method(Text, "find")
def find(s, part, start=0):
    if start < 0:
        start = max(0, start + len(s))
    for i in range(start, len(s) - len(part) + 1):
        if s[i : i + len(part)] == part:
            return i
    return -1


@method(Text, "index")
def index_of_text(s, part):
    found = find(s, part)
    if found < 0:
        raise ValueError
    return found


@method(Text, "startswith")
def startswith(s, part):
    return s[: len(part)] == "" + part  # a tuple of several is Python's


@method(Text, "endswith")
def endswith(s, part):
    return len(part) <= len(s) and s[len(s) - len(part) :] == "" + part


def every(s, test):
    for c in s:
        if ord(c) > 127:
            leave_to_python()
        if not test(c):
            return False
    return len(s) > 0


def shifted(s, test, by):
    out = ""
    for c in s:
        if ord(c) > 127:
            leave_to_python()
        out += chr(ord(c) + by) if test(c) else c
    return out


def is_digit(c):
    return "0" <= c <= "9"


def is_upper(c):
    return "A" <= c <= "Z"


def is_lower(c):
    return "a" <= c <= "z"


def is_letter(c):
    return is_upper(c) or is_lower(c)


def is_letter_or_digit(c):
    return is_letter(c) or is_digit(c)


def is_blank(c):
    code = ord(c)
    return code == 32 or 9 <= code <= 13 or 28 <= code <= 31


def _with(written: Any, *constants: Any) -> Callable[..., Value]:
    """A handler for a method of strings: calls `written` with the string and with constants."""

    def call(reader: Any, node: Any, text: Value) -> Value:
        values = [text, *(reader.constant(each, node) for each in constants)]
        return user_function(reader, node, written, values, {})

    return call


METHODS.update({
    (Text, "isdigit"): _with(every, is_digit), (Text, "isalpha"): _with(every, is_letter),
    (Text, "isspace"): _with(every, is_blank), (Text, "isalnum"): _with(every, is_letter_or_digit),
    (Text, "upper"): _with(shifted, is_lower, -32), (Text, "lower"): _with(shifted, is_upper, 32),
})  # fmt: skip


@method(Text, "strip")
def strip(s):
    first, last = 0, len(s)
    while first < last and blank_or_odd(s[first]):
        first += 1
    while first < last and blank_or_odd(s[last - 1]):
        last -= 1
    return s[first:last]


def blank_or_odd(c):
    if ord(c) > 127:
        leave_to_python()
    return is_blank(c)


@method(Text, "split")
def split(s, sep=None):
    out = []
    if sep is None:
        i = 0
        while i < len(s):
            while i < len(s) and blank_or_odd(s[i]):
                i += 1
            first = i
            while i < len(s) and not blank_or_odd(s[i]):
                i += 1
            if i > first:
                out.append(s[first:i])
        return out
    if len(sep) == 0:
        raise ValueError
    i = first = 0
    while i + len(sep) <= len(s):
        if s[i : i + len(sep)] == sep:
            out.append(s[first:i])
            i += len(sep)
            first = i
        else:
            i += 1
    out.append(s[first:])
    return out


@method(Text, "replace")
def replace(s, old, new):
    if len(old) == 0:
        leave_to_python()
    out = ""
    i = 0
    while i < len(s):
        if s[i : i + len(old)] == old:
            out += new
            i += len(old)
        else:
            out += s[i]
            i += 1
    return out


@method(Text, "join")
def join(s, parts):
    out = ""
    for i, part in enumerate(parts):
        out += s + part if i else part
    return out


def int_of_text(s):
    """`int` of a string of digits."""
    t = strip(s)
    negative = len(t) > 0 and t[0] == "-"
    if len(t) > 0 and (t[0] == "-" or t[0] == "+"):
        t = t[1:]
    if len(t) == 0:
        raise ValueError
    out = 0
    for c in t:
        if ord(c) > 127 or c == "_":
            leave_to_python()
        if not "0" <= c <= "9":
            raise ValueError
        out = out * 10 + (ord(c) - 48)
    return -out if negative else out


def text_of_int(n):
    """`str` of an int."""
    if n == 0:
        return "0"
    left = n if n > 0 else -n
    out = ""
    while left > 0:
        out = chr(48 + left % 10) + out
        left = left // 10
    return "-" + out if n < 0 else out
