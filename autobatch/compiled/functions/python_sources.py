"""Functions of Python's library, written as plain Python that is compiled like a helper of the user's.

Each does what CPython's does, for arguments of a few types. Where one raises an exception, the example runs in Python,
unless the user's function catches the exception.
"""

import bisect
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.compiled.translation.calls import CALLS, ITERATORS, METHODS, implements, user_function
from autobatch.compiled.translation.exact_types import Counts, List, Text, Tuple
from autobatch.compiled.translation.typed_text import Value
from autobatch.ops.rules.dispatch import leave_to_python, source


def method(kind: type, name: str) -> Callable[[Any], Any]:
    """Register the decorated function to be read for calls of a method."""
    return implements((kind, name), into=METHODS)


CALLS[leave_to_python] = lambda reader, node: reader.stop()


# --- Python's


@source()
def bisected(a, x, lo=0, hi=None, right=False):
    if lo < 0:
        raise ValueError
    low, high = lo, len(a) if hi is None else hi
    while low < high:
        middle = (low + high) // 2
        if not x < a[middle] if right else a[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


source(bisect.bisect_left)(lambda a, x, lo=0, hi=None: bisected(a, x, lo, hi))
source(bisect.bisect_right, bisect.bisect)(lambda a, x, lo=0, hi=None: bisected(a, x, lo, hi, True))
source(bisect.insort, bisect.insort_right)(lambda a, x: a.insert(bisected(a, x, right=True), x))
source(divmod)(lambda a, b: (a // b, a % b))
source(heapq.nsmallest)(lambda n, iterable: sorted(iterable)[: max(n, 0)])
source(heapq.nlargest)(lambda n, iterable: sorted(iterable, reverse=True)[: max(n, 0)])
source(math.radians)(lambda x: float(x) * (math.pi / 180.0))
source(math.degrees)(lambda x: float(x) * (180.0 / math.pi))


@source(pow)
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


@source(math.prod)
def product(values, start=1):
    out = start
    for value in values:
        out = out * value
    return out


@source(math.factorial)
def factorial(n):
    if n < 0:
        raise ValueError
    out = 1
    for k in range(2, n + 1):
        out *= k
    return out


@source(math.comb)
def comb(n, k):
    if n < 0 or k < 0:
        raise ValueError
    if k > n:
        return 0
    out = 1
    for i in range(min(k, n - k)):
        out = out * (n - i) // (i + 1)
    return out


@source(math.isqrt)
def isqrt(n):
    if n < 0:
        raise ValueError
    out = int(math.sqrt(n))
    while out * out > n:
        out -= 1
    while (out + 1) * (out + 1) <= n:
        out += 1
    return out


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


METHODS[Tuple, "index"], METHODS[Tuple, "count"] = METHODS[List, "index"], METHODS[List, "count"]


@method(Counts, "most_common")
def most_common(counts, n=None):
    pairs = sorted(counts.items(), key=lambda pair: pair[1], reverse=True)
    return pairs if n is None else pairs[: max(n, 0)]


method(Counts, "total")(lambda counts: sum(counts.values()))


# --- iterators


def two_of(items):
    pool = list(items)
    return [(pool[i], pool[j]) for i in range(len(pool)) for j in range(i + 1, len(pool))]


def combinations(reader: Any, node: Any, items: Value, r: Value) -> Value:
    """`itertools.combinations` of two."""
    if r.constant != 2:
        raise reader.refuse("combinations of anything but two", node)
    return user_function(reader, node, two_of, [items], {})


ITERATORS[itertools.combinations] = combinations


implements(itertools.product, into=ITERATORS)(lambda a, b: [(x, y) for x in a for y in b])


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


@method(Text, "find")
def find(s, part, start=0):
    if start < 0:
        start = max(0, start + len(s))
    for i in range(start, len(s) - len(part) + 1):
        if s[i : i + len(part)] == part:
            return i
    return -1


def every(s, test):
    for c in s:
        if ord(c) > 127:
            leave_to_python()
        if not test(c):
            return False
    return len(s) > 0


def is_digit(c):
    return "0" <= c <= "9"


def is_letter(c):
    return "A" <= c <= "Z" or "a" <= c <= "z"


@method(Text, "isdigit")
def isdigit(s):
    return every(s, is_digit)


@method(Text, "isalpha")
def isalpha(s):
    return every(s, is_letter)


@method(Text, "join")
def join(s, parts):
    out = ""
    for i, part in enumerate(parts):
        out += s + part if i else part
    return out


def int_of_text(s):
    """`int` of a string of digits."""
    negative = len(s) > 0 and s[0] == "-"
    t = s[1:] if len(s) > 0 and (s[0] == "-" or s[0] == "+") else s
    if len(t) == 0:
        raise ValueError
    out = 0
    for c in t:
        if ord(c) > 127 or c == "_" or c <= " ":
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
