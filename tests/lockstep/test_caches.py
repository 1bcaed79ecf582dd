"""What keeps results, or a closure over lanes: what some lanes computed is never given to others."""

import functools
import operator

import numpy as np
import pytest

from autobatch import batch, examples
from tests.inspect import noted_fallbacks
from tests.law import assert_same, batch_of, map_equals_loop


def in_dict(f):
    known = {}

    @functools.wraps(f)
    def call(*args):
        if args not in known:
            known[args] = f(*args)
        return known[args]

    return call


class InObject:
    def __init__(self, f):
        self.f = f
        self.known = {}

    def __call__(self, *args):
        if args not in self.known:
            self.known[args] = self.f(*args)
        return self.known[args]


def on_function(f):
    def call(*args):
        if not hasattr(call, str(args)):
            setattr(call, str(args), f(*args))
        return getattr(call, str(args))

    return call


class Property:
    def __init__(self, f):
        self.f = f

    @functools.cached_property
    def value(self):
        return self.f(0)


class Method:
    def __init__(self, f):
        self.f = f

    @functools.cache  # noqa: B019 - that it is kept too long is the point
    def value(self, n):
        return self.f(n)


def by_type(f):
    @functools.singledispatch
    def call(n):
        return -f(0)

    call.register(int)(f)
    return call


KEEPERS = {
    "cache": functools.cache,
    "lru_cache": functools.lru_cache,
    "lru_cache of one": lambda f: functools.lru_cache(1)(f),
    "lru_cache by type": lambda f: functools.lru_cache(None, typed=True)(f),
    "cache of a cache": lambda f: functools.cache(functools.cache(f)),
    "partial of a cache": lambda f: functools.partial(functools.cache(f)),
    "a dict": in_dict,
    "an object": InObject,
    "a function": on_function,
    "method": lambda f: Method(f).value,
    "bound property": lambda f: functools.partial(lambda holder, n: holder.value + n, Property(f)),
    "singledispatch": by_type,
    "partial": lambda f: functools.partial(lambda inner, n: inner(n), f),
    "methodcaller": lambda f: lambda n: operator.methodcaller("__call__", n)(f),
}

RESULTS = {
    "an array": lambda x: lambda n: x * (n + 1),
    "a number": lambda x: lambda n: x.sum() + n,
    "one of two numbers": lambda x: lambda n: 1.0 + n if x[0] > 0 else 2.0 - n,
    "a text": lambda x: lambda n: 3 if x[0] > 0 else 5,
    "a tuple": lambda x: lambda n: (x[0], n)[n % 2],
}


def in_one_arm(g, x):
    y = g(0) if x[0] > 0 else 7.0
    return y + g(0)


def in_both_arms(g, x):
    if x[0] > 0:
        y = g(0)
    elif x[0] > -2:
        y = g(0) * 2
    else:
        y = g(1)
    return y + g(1)


def before_an_arm(g, x):
    y = g(0)
    if x[0] > 0:
        y = y + g(0)
    return y


def in_a_loop(g, x):
    y = 0.0
    n = 0
    while n < abs(x[0]):
        y = y + g(n % 2)
        n += 1
    return y + g(0)


def in_a_ragged_loop(g, x):
    y = 0.0
    for n, _ in enumerate(x):
        y = y + g(n)
    return y + g(1)


USES = [in_one_arm, in_both_arms, before_an_arm, in_a_loop, in_a_ragged_loop]
XS = [np.array([1.0, 2, 3]), np.array([-1.0, 5, -7]), np.array([2.0, -4, 1]), np.array([-3.0, 0.5, 0.25])]
RAGGED = [np.array([2.0, 2]), np.array([-1.0]), np.array([1.0, 4, 2]), np.array([-3.0, 2])]


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("keep", KEEPERS)
def test_what_lanes_keep_is_their_own(keep, use):
    xs = RAGGED if use is in_a_ragged_loop else XS
    for make in RESULTS.values():

        def f(x, make=make):
            return use(KEEPERS[keep](make(x)), x)

        assert_same(examples(batch(f)(batch_of(xs))), [f(x) for x in xs])
        map_equals_loop(f, xs)


def test_memoised_recursion():
    def g(x):
        @functools.cache
        def rising(n):
            return x[0] if n == 0 else np.maximum(rising(n - 1), x[n]) + rising(max(n - 2, 0))

        return rising(4)

    xs = list(np.random.default_rng(0).normal(size=(3, 5)))
    with pytest.warns(match="keeps its results"):
        assert_same(examples(batch(g)(batch_of(xs))), [g(x) for x in xs])


def test_a_cached_array_is_not_written_into():
    def f(x):
        g = functools.cache(lambda n: x * 2)
        y = g(0)
        y += 1
        return g(0)

    def copies(x):
        g = functools.cache(lambda n: [x * 2])
        g(0).append(x)
        return len(g(0)), g(0)[0]

    for each in (f, copies):
        with pytest.warns(match=".*") if each is f else noted_fallbacks():
            got = examples(batch(each)(batch_of(XS)))
        assert_same(got, [each(x) for x in XS])


def test_full_caches():
    calls = []

    def f(x):
        @functools.lru_cache(2)
        def g(n):
            calls.append(n)
            return x * n

        return g(1) + g(2) + g(3) + g(1)

    want = [f(x) for x in XS]
    alone, calls[:] = list(calls), []
    with pytest.warns(match="keeps its results"):
        assert_same(examples(batch(f)(batch_of(XS))), want)
    assert calls == alone
