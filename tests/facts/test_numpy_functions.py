"""The table of calls against NumPy itself: what is written, what the result shares, and that nothing is left out.

Each entry is called with arguments of many kinds. Arguments that are not said to be written keep their bytes; the
result shares memory with those only of which that is said; and what is said to be written, or shared, is seen to be so
in at least one call.
"""

import dataclasses
import inspect
import itertools
import warnings

import numpy as np
import pytest

from autobatch.facts import methods, numpy_functions, python_functions
from autobatch.facts.call_effects import _ENTRY, _METHODS, _OF_UFUNCS, _effect, effect_of, method_effect
from tests.facts.arguments import ARGUMENTS, RECEIVERS, SWITCHES, pools

# NumPy's `dot` says to nobody that it could not copy a result back, where `out` has another layout.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MODULES = list(numpy_functions.TABLES)
# NumPy's own tools for whoever tests or extends it, and what is in its namespace by accident.
NOT_FUNCTIONS = {"test", "array_function_dispatch", "set_module"}


def functions(module):
    for name in sorted(dir(module)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a name that a newer NumPy will not have
            found = getattr(module, name)
        if not name.startswith("_") and callable(found) and not isinstance(found, type) and name not in NOT_FUNCTIONS:
            yield name, found


def test_each_name_stands_once():
    for tables in (numpy_functions.TABLES, python_functions.TABLES, methods.TABLES):
        for sections in tables.values():
            names = [name for text in sections.values() for _, name, _ in _ENTRY.findall(text)]
            assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_each_public_function_has_a_verdict(module):
    missing = [name for name, function in functions(module) if effect_of(function) is None]
    assert not missing


@pytest.mark.parametrize("kind", [np.ndarray, np.generic, np.random.Generator, np.random.RandomState])
def test_each_method_has_a_verdict(kind):
    names = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
    assert not [name for name in names if method_effect(kind, name) is None]


def candidates(effect, receiver=None):
    """Argument lists to try: those of `ARGUMENTS`, and one, two and three of the pool's arrays."""
    yield from ARGUMENTS.get(effect.name, ())
    if effect.name not in ("test", "info", "nested_iters"):
        kinds = list(pools())
        for kind in kinds:
            yield lambda a, kind=kind: (a[kind],)
            yield lambda a, kind=kind: ([a[kind], a[kind]],)
        yield from ((lambda a, x=x, y=y: (a[x], a[y])) for x, y in itertools.product(kinds[:6], repeat=2))
        yield lambda a: (a["text"], 5)
        yield lambda a: (a["text"], "a")
        yield lambda a: (a["text"], a["text"])
        yield lambda a: (a["text"], "a", "b")
        yield lambda a: (a["matrix"], a["matrix"], a["matrix"])
        yield lambda a: (3,)
        yield lambda a: (3, 4, 5)
        yield lambda a: ()


def arrays_in(value):
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, list | tuple):
        return [each for part in value for each in arrays_in(part)]
    return []


def names_of(effect, args, kwargs):
    """The arrays among the arguments, with the names that the table has for the arguments."""
    return [(name, array) for name, arg in effect.bind(args, kwargs) for array in arrays_in(arg)]


def as_told(effect, args, kwargs):
    written, shared = effect.written(args, kwargs), effect.shared(args, kwargs)
    return {id(x) for x in arrays_in(written)}, {id(x) for x in arrays_in(shared)}


class Seen:
    """What calls of one entry did, and what was not as the table says."""

    def __init__(self):
        self.wrong, self.written, self.shared, self.calls = [], set(), set(), 0

    def call(self, effect, function, args, kwargs, extra=()):
        named = names_of(effect, args, kwargs)
        before = [(name, array, state(array)) for name, array in named]
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                out = function(*args[len(extra) :], **kwargs)
        except Exception:  # these arguments do not suit
            return None
        self.calls += 1
        may_write, may_share = as_told(effect, args, kwargs)
        for name, array, was in before:
            if state(array) != was:
                self.written.add(name)
                if id(array) not in may_write:
                    self.wrong.append(f"writes {name or 'an argument'}")
            if any(np.shares_memory(array, each) for each in arrays_in(out)):
                self.shared.add(name)
                if id(array) not in may_share:
                    self.wrong.append(f"shares {name or 'an argument'}")
        return out


def state(array):
    return array.tobytes(), array.shape, array.dtype, array.flags.writeable


def run(effect, function, receiver=None):
    """Call an entry in all ways: as it is, with `out`, by keyword and by position, with its switches thrown."""
    seen = Seen()
    for make in candidates(effect, receiver):
        for kind in receiver or [None]:

            def given(make=make, kind=kind):
                pool = pools()
                first = () if kind is None else (pool[kind],)
                called = function if kind is None else getattr(first[0], effect.name)
                return called, (*first, *make(pool)), first

            called, args, extra = given()
            try:
                out = seen.call(effect, called, args, {}, extra)
            except TypeError:
                continue
            if out is None and not effect.always_writes:
                continue
            parameters = parameters_of(called)
            for name, value in itertools.product(SWITCHES, (True, False)):
                called, args, extra = given()
                seen.call(effect, called, args, {name: value}, extra)
                called, args, extra = given()
                if (filled := up_to(name, parameters, args, extra)) is not None:
                    seen.call(effect, called, (*filled, value), {}, extra)
            if isinstance(out, np.ndarray | np.generic):
                called, args, extra = given()
                seen.call(effect, called, args, {"out": other(out)}, extra)
                called, args, extra = given()
                if (filled := up_to("out", parameters, args, extra)) is not None:
                    seen.call(effect, called, (*filled, other(out)), {}, extra)
                elif effect.name.startswith("conj"):  # which has a positional argument that it does not tell
                    seen.call(effect, called, (*args, other(out)), {}, extra)
    return seen


def parameters_of(function):
    """The parameters of a function, in order; none where it does not tell them."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


def up_to(name, parameters, args, extra):
    """The arguments, and the defaults of those up to one that is to be given by its position; None if it has none."""
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    given = len(args) - len(extra)
    if name not in names or names.index(name) < given:
        return None
    between = parameters[given : names.index(name)]
    return (*args, *(None if each.default is each.empty else each.default for each in between))


def other(out):
    """An array of the shape and dtype of a result, with other contents."""
    target = np.empty(np.shape(out), np.asarray(out).dtype)
    if target.dtype.hasobject:
        return target
    target.view(np.uint8).fill(0x5B) if target.size and target.ndim else target.fill(0)
    return target


# What is not seen by calling.
UNSEEN = {
    "hfft": "NumPy does not write `out` where it has to convert the result",
    "ifft2": "NumPy takes `out`, and leaves it alone",
    "irfft2": "NumPy takes `out`, and leaves it alone",
    "frompyfunc": "gives a ufunc",
    "__hash__": "arrays have none",
    "resize": "needs an array that nobody else refers to",
    "__iter__": "gives an iterator",
    "__delitem__": "arrays refuse it",
    "__setstate__": "is pickle's",
}


def every_entry():
    for module in MODULES:
        for name, function in functions(module):
            effect = effect_of(function)
            if effect is not None and effect.changes_nothing_outside and not isinstance(function, np.ufunc):
                yield pytest.param(effect, function, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize(("effect", "function"), list(every_entry()))
def test_a_function_writes_and_shares_what_the_table_says(effect, function):
    check(effect, run(effect, function))


def check(effect, seen):
    assert not seen.wrong, sorted(set(seen.wrong))
    if effect.name in UNSEEN:
        return
    assert seen.calls, "no arguments suit it"
    targets = effect.writes | {target for _, writes, target in effect.switches if writes}
    assert targets <= seen.written, f"is said to write {sorted(targets - seen.written)}"
    shares = effect.shares | {target for _, writes, target in effect.switches if not writes}
    assert shares <= seen.shared, f"is said to share {sorted(shares - seen.shared)}"


def every_method():
    for kind in (np.ndarray,):
        for effect in map(_effect, _METHODS[kind].values()):
            if effect.changes_nothing_outside:
                yield pytest.param(effect, id=f"{kind.__name__}.{effect.name}")


@pytest.mark.parametrize("effect", list(every_method()))
def test_a_method_writes_and_shares_what_the_table_says(effect):
    check(effect, run(effect, None, RECEIVERS.get(effect.name, ["matrix", "ints"])))


@pytest.mark.parametrize("name", [name for name, f in functions(np) if isinstance(f, np.ufunc)])
def test_a_ufunc_writes_its_output_only(name):
    ufunc = getattr(np, name)
    effect, made = effect_of(ufunc), 0
    for kind in ("vector", "ints", "bools", "matrix", "dates", "text"):
        seen = Seen()
        out = seen.call(effect, ufunc, tuple(pools()[kind] for _ in range(ufunc.nin)), {})
        outs = out if isinstance(out, tuple) else (out,)
        if out is None or not all(isinstance(each, np.ndarray) for each in outs):
            continue
        made += 1
        inputs = tuple(pools()[kind] for _ in range(ufunc.nin))
        seen.call(effect, ufunc, (*inputs, *map(other, outs)), {})
        seen.call(effect, ufunc, inputs, {"out": tuple(map(other, outs))})
        assert not seen.wrong
        assert seen.written == {"out"}
    assert made or name in ("isnat", "frexp", "ldexp") or ufunc.nin > 1


@pytest.mark.parametrize("effect", [_effect(entry) for entry in _OF_UFUNCS.values()], ids=lambda effect: effect.name)
def test_a_method_of_ufuncs_writes_what_the_table_says(effect):
    ufunc = np.negative if effect.name == "at" else np.add
    if effect.name != "resolve_dtypes":
        check(effect, run(effect, getattr(ufunc, effect.name)))


@pytest.mark.parametrize("kind", [np.random.Generator, np.random.RandomState])
def test_what_generators_write(kind):
    make = np.random.default_rng if kind is np.random.Generator else np.random.RandomState
    for effect in map(_effect, _METHODS[kind].values()):
        for arguments in ((), (0.5,), (0.5, 0.5), (3, 0.5), (np.ones(3),)):
            for extra in ({}, {"out": np.full(3, 7.0)}):
                seen = Seen()
                args = (make(0), *arguments)
                seen.call(effect, getattr(args[0], effect.name), args, extra, args[:1])
                assert not seen.wrong, effect.name


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cumsum", {"writes": frozenset()}),
        ("nan_to_num", {"switches": ()}),
        ("ravel", {"shares": frozenset()}),
        ("tile", {"shares": frozenset({"A"})}),
        ("roll", {"parameters": ("a",), "writes": frozenset({"a"})}),
    ],
)
def test_a_wrong_fact_is_seen(name, changes):
    function = getattr(np, name)
    effect = dataclasses.replace(effect_of(function), **changes)
    with pytest.raises(AssertionError, match=r"writes|shares|said"):
        check(effect, run(effect, function))
