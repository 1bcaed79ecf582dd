"""Nothing recorded and no batch leaves a call: results, and what is left outside, hold arrays of NumPy's own."""

import collections
import copyreg
import dataclasses
import functools
import gc
import itertools
import operator
import types

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import noted_fallbacks
from tests.law import assert_same, batch_of, loop


class Plain:
    def __init__(self, held):
        self.held = held

    def get(self):
        return self.held


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Both(Plain):
    __slots__ = ("more",)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    held: object


class Lazily:
    def __init__(self, x):
        self.x = x

    @functools.cached_property
    def twice(self):
        return self.x * 2


class FailError(Exception):
    pass


Pair = collections.namedtuple("Pair", "first second")
Items = type("Items", (list,), {})
Entries = type("Entries", (dict,), {})


def a_closure(x):
    y = np.tanh(x)
    return lambda v: y + v


def a_closure_in_a_closure(x):
    y = np.tanh(x)

    def outer():
        return lambda: y

    return outer


def a_default(x):
    return lambda v, y=np.tanh(x): y + v  # noqa: B008  (what is tested)


def a_keyword_default(x):
    return lambda *, y=np.tanh(x): y  # noqa: B008


def an_attribute_of_a_function(x):
    def made():
        return 1

    made.held = np.tanh(x)
    return made


def a_function_without_arrays(x):
    return lambda v: np.tanh(v) * v


def a_generator(x):
    y = np.tanh(x)
    yield y
    yield y * 2


def a_started_generator(x):
    made = a_generator(x)
    next(made)
    return made


def a_generator_expression(x):
    y = np.tanh(x)
    return (v * 2 for v in y)


def a_cached_property(x):
    out = Lazily(np.tanh(x))
    out.twice  # noqa: B018  (which fills the cache)
    return out


def a_cache(x):
    @functools.lru_cache
    def times(n):
        return np.tanh(x) * n

    times(1)
    return times


def a_class(x):
    class Made:
        held = np.tanh(x)

    return Made


def an_error(x):
    try:
        raise FailError(np.tanh(x), 1)
    except FailError as error:
        return error


def an_error_with_its_frames(x):
    y = np.tanh(x)
    try:
        raise FailError(len(y))
    except FailError as error:
        return error


def an_object_that_holds_itself(x):
    out = Plain(np.tanh(x))
    out.own = out
    return out


def what_an_array_of_objects_holds(x):
    out = np.empty(2, object)
    out[0] = np.tanh(x)
    return out[0] + 1


def an_array_of_objects(x):
    out = np.empty(2, object)
    out[0], out[1] = np.tanh(x), Plain(x * 2)
    return out


def a_function_that_calls_itself(x):
    def down(n):
        return x if n == 0 else down(n - 1) + 1

    return Plain(down(3))


RESULTS = {
    "an object": lambda x: Plain(np.tanh(x)),
    "a slot": lambda x: Slotted(np.tanh(x)),
    "a slot beside attributes": lambda x: Both(np.tanh(x)),
    "a frozen dataclass with slots": lambda x: Plain(Frozen(np.tanh(x))),
    "a namedtuple in an object": lambda x: Plain(Pair(np.tanh(x), 1)),
    "tuples in an object": lambda x: Plain((np.tanh(x), (x * 2, 1))),
    "a list in an object": lambda x: Plain([np.tanh(x), 1]),
    "a class of dicts": lambda x: Plain(Entries(a=np.tanh(x))),
    "a class of lists": lambda x: Plain(Items([np.tanh(x)])),
    "objects in objects": lambda x: {"a": [Plain((Plain(np.tanh(x)), {"b": Slotted(x * 2)}))]},
    "a namespace": lambda x: types.SimpleNamespace(held=np.tanh(x)),
    "a deque": lambda x: collections.deque([np.tanh(x)]),
    "a set": lambda x: {np.tanh(x).sum()},
    "a frozenset": lambda x: frozenset({np.tanh(x).sum()}),
    "a key": lambda x: {np.tanh(x).sum(): 1},
    "a key in an object": lambda x: Plain({np.tanh(x).sum(): 1}),
    "a defaultdict": lambda x: Plain(collections.defaultdict(list, a=[np.tanh(x)])),
    "a chain of dicts": lambda x: collections.ChainMap({"a": np.tanh(x)}),
    "a dict of Python's": lambda x: collections.UserDict(a=np.tanh(x)),
    "a read-only dict": lambda x: types.MappingProxyType({"a": np.tanh(x)}),
    "the values of a dict": lambda x: {"a": np.tanh(x)}.values(),
    "a partial": lambda x: functools.partial(np.add, np.tanh(x)),
    "a partial with keywords": lambda x: functools.partial(sorted, key=np.tanh(x)),
    "a method": lambda x: Plain(np.tanh(x)).get,
    "a method of an array": lambda x: np.tanh(x).sum,
    "a method of a list": lambda x: [np.tanh(x)].append,
    "a method's name and arguments": lambda x: operator.methodcaller("get", np.tanh(x)),
    "a map": lambda x: map(np.tanh, [x * 2]),
    "a zip": lambda x: zip([x * 2], [x], strict=True),
    "an iterator": lambda x: iter([x * 2]),
    "an iterator of an array": lambda x: iter(x * 2),
    "a chain": lambda x: itertools.chain([x * 2]),
    "a slice": lambda x: slice(np.tanh(x).sum()),
    "an argument": lambda x: Plain([x]),
    "a view": lambda x: Plain((x * 2)[1:]),
} | {
    f.__name__: f
    for f in (
        a_closure, a_closure_in_a_closure, a_default, a_keyword_default, an_attribute_of_a_function, a_generator,
        a_function_without_arrays, a_started_generator, a_generator_expression, a_cached_property, a_cache, a_class,
        an_error, an_error_with_its_frames, an_object_that_holds_itself, an_array_of_objects,
        what_an_array_of_objects_holds, a_function_that_calls_itself,
    )
}  # fmt: skip

LOG, TABLE, QUEUE, SEEN, BOX, SLOT, MODULE = (
    [],
    {},
    collections.deque(),
    set(),
    Plain(0),
    Slotted(0),
    types.ModuleType("m"),
)
LAST = None


def in_a_global(x):
    global LAST
    LAST = np.tanh(x)


def in_a_function(x):
    in_a_function.last = np.tanh(x)


def in_a_default(x, log=[]):  # noqa: B006  (what is tested)
    log.append(np.tanh(x))


def in_a_closure(x):
    y = np.tanh(x)
    LOG.append(lambda: y)


def in_several_places(x):
    y = np.tanh(x)
    LOG.append(y)
    BOX.held = y
    return y


def in_an_error(x):
    try:
        raise FailError(np.tanh(x))
    except FailError as error:
        LOG.append(error)


PLACES = {
    "an attribute": lambda x: setattr(BOX, "held", np.tanh(x)),
    "a slot": lambda x: setattr(SLOT, "held", np.tanh(x)),
    "an attribute of a class": lambda x: setattr(Plain, "last", np.tanh(x)),
    "an attribute of a module": lambda x: setattr(MODULE, "last", np.tanh(x)),
    "a list": lambda x: LOG.append(np.tanh(x)),
    "a tuple in a list": lambda x: LOG.append((1, (np.tanh(x),))),
    "a namedtuple in a list": lambda x: LOG.append(Pair(1, np.tanh(x))),
    "an object in a list": lambda x: LOG.insert(0, Plain(np.tanh(x))),
    "a partial in a list": lambda x: LOG.append(functools.partial(np.add, np.tanh(x))),
    "a generator in a list": lambda x: LOG.append(a_generator_expression(x)),
    "an array of objects in a list": lambda x: LOG.append(np.array([np.tanh(x)], object)),
    "a dict": lambda x: TABLE.update({len(x): np.tanh(x)}),
    "a key": lambda x: TABLE.update({np.tanh(x).sum(): 1}),
    "a deque": lambda x: QUEUE.append(np.tanh(x)),
    "a set": lambda x: SEEN.add(np.tanh(x).sum()),
} | {
    f.__name__: f for f in (in_a_global, in_a_function, in_a_default, in_a_closure, in_several_places, in_an_error)
}  # fmt: skip


def outside():
    """What the functions of `PLACES` change."""
    return [
        vars(BOX), SLOT, vars(Plain).get("last"), vars(MODULE).get("last"), LOG, TABLE, QUEUE, SEEN, LAST,
        vars(in_a_function), in_a_default.__defaults__[0],
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def cleared():
    yield
    for each in (LOG, TABLE, QUEUE, SEEN, vars(in_a_function), in_a_default.__defaults__[0]):
        each.clear()
    vars(MODULE).pop("last", None)
    if "last" in vars(Plain):
        del Plain.last
    BOX.held = SLOT.held = globals()["LAST"] = 0


def told(value, seen=()):
    """What is in a value of any kind, as lists, tuples and dicts that can be compared; iterators are used up."""
    if id(value) in seen:
        return "again"
    kind, seen = type(value), (*seen, id(value))
    if isinstance(value, np.ndarray):
        assert kind is np.ndarray
        return told(value.tolist(), seen) if value.dtype == object else value
    if kind is types.FunctionType:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__qualname__, *told([cells, value.__defaults__, value.__kwdefaults__, vars(value)], seen)]
    if isinstance(value, types.MethodType | types.BuiltinMethodType | types.MethodWrapperType):
        return [value.__name__, told(value.__self__, seen)]
    if isinstance(value, type):
        return told([each for name, each in vars(value).items() if name[0] != "_"], seen)
    if isinstance(value, functools.partial):
        return told([value.args, value.keywords], seen)
    if isinstance(value, BaseException):
        return told([*value.args, vars(value)], seen)
    if isinstance(value, slice):
        return told([value.start, value.stop, value.step], seen)
    if isinstance(value, dict | types.MappingProxyType | collections.ChainMap | collections.UserDict):
        return [kind.__name__, [[told(key, seen), told(each, seen)] for key, each in value.items()]]
    if isinstance(value, str | bytes | np.generic) or not (hasattr(value, "__iter__") or hasattr(kind, "__reduce__")):
        return value
    if hasattr(value, "__iter__"):
        return [kind.__name__, [told(each, seen) for each in value]]
    attributes = dict(getattr(value, "__dict__", {}))
    attributes |= {name: getattr(value, name) for name in copyreg._slotnames(kind) if hasattr(value, name)}
    return [kind.__name__, told(list(attributes.items()), seen)] if attributes else value


def internal(value):
    """What of the library's own is reached from a value, by whatever Python keeps it in."""
    seen, waiting = {}, [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, types.ModuleType | types.CodeType | types.FrameType):
            continue
        seen[id(each)] = each
        if type(each).__module__.partition(".")[0] == "autobatch":
            yield each
        elif type(each) is types.FunctionType:
            waiting += [each.__closure__, each.__defaults__, each.__kwdefaults__, vars(each)]
        elif not isinstance(each, type) or each.__module__ == __name__:
            waiting += gc.get_referents(each)


def examples(lengths):
    return [np.linspace(-1, i, n) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("lengths", [(3, 3, 3), (2, 3, 1)])
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("way", ["on the fly", "lock-step"])
def test_results(name, lengths, way):
    f, xs = RESULTS[name], examples(lengths)
    with noted_fallbacks():
        found = ab.map(f, xs) if way == "on the fly" else ab.examples(ab.batch(f)(batch_of(xs)))
    assert list(internal(found)) == []
    assert_same(told(found), told(loop(f, xs)))


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("way", ["on the fly", "lock-step"])
def test_what_is_outside(name, way):
    f, xs = PLACES[name], examples((2, 3, 1))
    with noted_fallbacks():
        found = ab.map(f, xs) if way == "on the fly" else ab.examples(ab.batch(f)(batch_of(xs)))
    assert list(internal([found, outside()])) == []
    mine = told([found, outside()])
    for each in (LOG, TABLE, QUEUE, SEEN, in_a_default.__defaults__[0]):
        each.clear()
    assert_same(mine, told([loop(f, xs), outside()]))


def test_one_array_at_two_places_is_one():
    results = ab.map(in_several_places, examples((3, 3)))
    assert all(a is b for a, b in zip(results, LOG, strict=True))
    assert BOX.held is results[-1]


@pytest.mark.parametrize("name", ["an object", "a slot", "a_closure", "a partial", "objects in objects"])
def test_what_can_be_replaced_is_no_reason_to_loop(name):
    with noted_fallbacks() as notes:
        ab.map(RESULTS[name], examples((3, 2)))
    assert notes == []


def test_garbage_is_no_reason_to_loop():
    with noted_fallbacks() as notes:
        ab.map(a_function_that_calls_itself, examples((3, 2)))
    assert notes == []


def test_arguments_that_were_written_to_are_as_before_where_arrays_are_left():
    def written(x):
        x += 1.0
        return (v for v in x)

    xs, others = examples((3, 2)), examples((3, 2))
    with noted_fallbacks() as notes:
        found = ab.map(written, xs)
    assert notes
    assert_same([list(each) for each in found], [list(written(x)) for x in others])
    assert_same(xs, others)


def keeps_in_a_dict(each):
    x, held = each
    held["sum"] = x.sum()
    held["all"].append(x * 2)
    return held, [held["all"]]


def test_a_container_of_the_callers_that_is_returned_is_that_container():
    xs = [(x, {"all": []}) for x in examples((3, 2))]
    found = ab.map(keeps_in_a_dict, xs)
    for (x, held), (one, (other,)) in zip(xs, found, strict=True):
        assert one is held
        assert other is held["all"]
        assert_same([held["sum"], other[0]], [x.sum(), x * 2])
