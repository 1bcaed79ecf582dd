"""A model with all kinds of state, and the law for functions that change it."""

import collections
import warnings

import numpy as np

from autobatch import batch, examples
from autobatch.errors import FallbackWarning
from tests.inspect import forget_warnings
from tests.law import assert_same, batch_of


class Layer:
    def __init__(self):
        self.calls = 0
        self.seen = None

    def __call__(self, x):
        self.calls += 1
        self.seen = x
        return np.tanh(x)


class Model:
    instances = 0

    def __init__(self):
        self.calls, self.total, self.h = 0, 0.0, None
        self.log, self.cache, self.sums = [], {"known": 1.0}, np.zeros(5)
        self.counts, self.words, self.queue = collections.defaultdict(int), set(), collections.deque()
        self.layers = [Layer(), Layer()]
        self.w = np.array([[0.5, -0.1], [0.2, 0.3]])

    def bump(self, by=1):
        self.calls += by


def state(value):
    """All that a user can see of an object, as plain containers."""
    if isinstance(value, Model | Layer):
        return {name: state(each) for name, each in vars(value).items()}
    if isinstance(value, dict):
        return [(key, state(each)) for key, each in value.items()]
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list | tuple | collections.deque):
        return [type(value).__name__, *map(state, value)]
    return value


def equals_loop(f, *columns, falls_back=None, make=Model):
    """Results and what is outside afterwards are those of the loop; by the next way, which is said.

    `falls_back`: as in `tests.lockstep.law.equals_loop`.
    """
    columns = [batch_of(column) for column in columns]
    forget_warnings()
    looped, batched = make(), make()
    want = [f(*row, looped) for row in zip(*map(examples, columns), strict=True)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = examples(batch(f)(*columns, batched))
    found = [each for each in caught if issubclass(each.category, FallbackWarning)]
    assert falls_back in (None, bool(found)), [str(each.message) for each in found]
    assert all(each.filename in (f.__code__.co_filename, __file__) for each in found)
    assert_same(got, want)
    assert_same(state(batched), state(looped))
    return batched
