"""What random programs call: helpers, generators, a context manager and a few classes of users."""

import dataclasses
from typing import NamedTuple

import numpy as np


def helper(x, k):
    out = np.zeros(2)
    for i in range(k):
        out = out * 0.5 + x * i
        if i == 3:
            break
    return out


def steps(x, k):
    if k < 1:
        return x
    if x > 1:
        return steps(x * 0.5, k - 1)
    for i in range(k):
        x = x + 0.25
        if x > 1:
            return x, i
    return steps(x, k - 2) if k % 2 else None


def even(k):
    return True if k < 1 else odd(k - 1)


def odd(k):
    return False if k < 1 else even(k - 1)


def pick(items, k):
    return items[k % len(items)] if len(items) else 0.5


def total_of(*values, scale=1.0, **named):
    out = 0.0
    for value in values:
        out = out + value * scale
    for name in named:
        out += named[name]
    return out


def counting(k, x):
    while k > 0:
        if k % 2:
            yield x
        elif k == 4:
            return
        else:
            yield k * 0.5
        k -= 1


def both_ways(k):
    yield from range(k)
    yield from counting(k, 0.5)


def endless(x):
    while True:
        x = max(0.0, x) + 0.5  # grows whatever it starts from, so that who waits for more of it does not wait forever
        yield x


class Guard:
    def __init__(self, k):
        self.k = k
        self.seen = 0

    def __enter__(self):
        self.seen += 1
        return self

    def __exit__(self, kind, error, trace):
        self.seen += 10
        return kind is KeyError


class Pair(NamedTuple):
    left: object
    right: object = 0


@dataclasses.dataclass
class Point:
    x: object
    k: int = 0
    log: list = dataclasses.field(default_factory=list)

    def moved(self, step):
        self.x = self.x + step
        self.k += 1
        if self.k % 2:
            self.log.append(step)
        return self

    @property
    def far(self):
        return self.x > 1 or self.k > 2


class Stack:
    limit = 3

    def __init__(self):
        self.items = []
        self.lost = 0

    def push(self, item):
        if len(self.items) >= self.limit:
            self.lost += 1
            return False
        self.items.append(item)
        return True

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def __len__(self):
        return len(self.items)
