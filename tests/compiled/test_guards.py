"""What compiled code does not do as Python does is left to Python, one example at a time, with its errors and notes."""

import dataclasses
import functools
import linecache
import threading
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled import compiled_map as run
from autobatch.compiled.compiled_map import compiled_map
from autobatch.errors import Unsupported
from tests.compiled.interpreted import each_as_text, interpreted
from tests.compiled.law import outcome, same, wait_until_compiled
from tests.inspect import ran_ways
from tests.programs.containers import linked_list


def power(x, n):
    out = 1
    for _ in range(n):
        out = out * x
    return out


def quotient(a, b):
    return a // b, a % b, a / b


def at(x, i):
    return x[i] + x[i - 1]


def never_bound(x):
    for v in x:
        last = v
    return last


def chosen_type(x):
    best = 0
    for v in x:
        if v > best:
            best = v
    return best


def half_precision(x):
    return x * 2


def narrow(x, k):
    y = x * 2
    y[0] = k
    return y, x[0] + k


def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)


def deep_by_another(n):
    return 0 if n == 0 else 1 + deepens(n)


def deepens(n):
    return deepens_again(n - 1)


def deepens_again(n):
    return deep_by_another(n)


def overflowing(x):
    return np.exp(x[0]) * x, x[0] * 1e300


def popped(n):
    items = [1.5]
    for _ in range(n):
        items.pop()
    return items


def checked(x):
    if x < 0:
        raise ValueError(f"{x} is negative")
    assert x < 9, "too large"
    return x**0.5


INF = float("inf")


def weighed(ids, weights):
    return np.bincount(ids, weights=weights)


CASES = [
    (weighed, [(np.array([0, 2, 2]), np.ones(3)), (np.zeros(0, int), np.ones(0)), (np.array([1]), np.ones(1))]),
    (power, [(2, 3), (3, 39), (3, 41), (-7, 30), (0, 0), (2, 63), (10, 18)]),
    (quotient, [(7, 2), (-7, 2), (7, -2), (-(2**63), -1), (2**60 + 1, 3)]),
    (quotient, [(7.5, 2.0), (-7.5, 2.0), (7.5, -2.0), (-0.0, 1.0), (INF, 2.0), (float("nan"), 1.0), (1.0, INF)]),
    (quotient, [(np.float64(7), 2), (np.float64(-7), 0), (np.float64(0), 0)]),
    (quotient, [(3, 1), (1, 0), (4, 2)]),
    (quotient, [(INF, 0.0)]),
    (at, [(np.arange(3.0), 0), (np.arange(3.0), -3), (np.arange(2.0), 1)]),
    (at, [(np.arange(3.0), 0), (np.arange(2.0), 5)]),
    (at, [([1, 2, 3], 0), ([1, 2], -2), ([2**62, 2**62], 1)]),
    (never_bound, [(np.arange(2),), (np.arange(0),)]),
    (chosen_type, [([1.5, 2.0],), ([],), ([-1.0],)]),
    (chosen_type, [(np.array([3, 1]),), (np.array([-3]),), (np.zeros(0, int),)]),
    (chosen_type, [(np.array([True]),), (np.array([False]),)]),
    (half_precision, [(np.int8(100),), (np.int8(3),)]),
    (half_precision, [(np.float32(1e38),), (np.float32(3e38),)]),
    (narrow, [(np.array([1, 2], np.int8), 3), (np.array([1, 2], np.int8), 200)]),
    (narrow, [(np.array([1.5], np.float32), 3)]),
    (deep, [(5,), (0,), (700,)]),
    (deep, [(5,), (100_000,)]),
    (deep_by_another, [(5,), (0,), (250,)]),
    (deep_by_another, [(5,), (500,)]),  # 1500 frames of Python's, though not of one function
    (overflowing, [(np.array([1.0, 2]),), (np.array([800.0]),), (np.array([1.0]),)]),
    (popped, [(1,), (0,)]),
    (popped, [(1,), (2,)]),
    (checked, [(4.0,), (0.0,)]),
    (checked, [(4.0,), (-1.0,), (-2.0,)]),
    (checked, [(4.0,), (10.0,)]),
]


def looped(function, examples):
    """The loop, whose error says which example raised it."""
    out = []
    for index, example in enumerate(examples):
        try:
            out.append(function(*example))
        except Exception as error:
            error.add_note(f"raised for example {index}")
            raise
    return out


COMPILED = {
    "power", "quotient-2", "quotient-5", "quotient-6", "at-7", "at-8", "never_bound", "chosen_type-11",
    "half_precision-14", "deep-18", "deep-19", "overflowing", "popped-23", "popped-24",
    "checked-25", "checked-26", "checked-27",
}  # fmt: skip


@each_as_text(("function", "examples"), CASES, COMPILED)
def test_failing_examples_run_in_python(function, examples, text_or_compiled):
    columns = [list(column) for column in zip(*examples, strict=True)]
    wait_until_compiled(function, columns, {})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        expected = outcome(lambda: looped(function, examples))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        got = outcome(lambda: compiled_map(function, columns, {}))
    assert same(got, expected), f"{got!r}, expected {expected!r}"
    if isinstance(expected, Exception):
        assert got.__notes__ == expected.__notes__
    assert {str(each.message) for each in heard} == {str(each.message) for each in said}


def test_an_example_that_fails_does_not_stop_the_others():
    wait_until_compiled(power, [[2] * 50, list(range(50, 100))], {})
    call, form = run.prepared(power, [[2] * 50, list(range(50, 100))], {}, None)
    before = form.failures
    assert compiled_map(power, [[2] * 50, list(range(50, 100))], {}) == [2**k for k in range(50, 100)]
    assert form.failures - before == 37
    assert call.count == 50


def test_a_batch_is_read_where_it_is():
    examples = [np.arange(n, dtype=float) for n in (3, 0, 5)]
    for batch in (ab.PackedBatch.from_examples(examples), ab.MaskedBatch.from_examples(examples)):
        wait_until_compiled(total, [batch], {})
        assert compiled_map(total, [batch], {}) == [3.0, 0.0, 10.0]
    square = ab.MaskedBatch(np.arange(12.0).reshape(2, 3, 2), lengths=[3, 2])
    wait_until_compiled(total_of_rows, [square], {})
    assert compiled_map(total_of_rows, [square], {}) == [total_of_rows(x) for x in square.examples()]


def total(x):
    out = 0.0
    for v in x:
        out += v
    return out


def total_of_rows(x):
    out = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out += x[i, j] * (i + 1)
    return out


SCALE = 2.0


def reads_a_global(x):
    return x * SCALE


def test_a_global_that_changes_is_read_again(monkeypatch, text_or_compiled):
    wait_until_compiled(reads_a_global, [[1.0]], {})
    assert compiled_map(reads_a_global, [[1.0]], {}) == [2.0]
    monkeypatch.setitem(globals(), "SCALE", 3)
    wait_until_compiled(reads_a_global, [[1.0]], {})
    assert compiled_map(reads_a_global, [[1.0, 2.0]], {}) == [3.0, 6.0]


@functools.cache
def remembered(k):
    return k * SCALE


def reads_a_memo(n):
    return remembered(n) + 1


def test_what_python_remembers_is_pythons(monkeypatch):
    """A memoised function of a module knows what it was asked before, and by others."""
    assert ab.map(reads_a_memo, [1, 2]) == [3.0, 5.0]
    monkeypatch.setitem(globals(), "SCALE", 3)
    with interpreted(), pytest.raises(Unsupported, match="remembered is not compiled"):
        compiled_map(reads_a_memo, [[1, 2]], {})
    with ab.options(way="compiled"):
        assert ab.map(reads_a_memo, [1, 2, 4]) == [3.0, 5.0, 13.0]


def test_each_of_many_handlers_is_its_own():
    lines = ["def f(x, n):", " try:", "  try: return x[n] / (1 // n)", "  except ZeroDivisionError: return -1.0"]
    lines += [*[" except KeyError: return -2.0"] * 16, " except IndexError: return -3.0"]
    linecache.cache["<handlers>"] = 0, None, [f"{line}\n" for line in lines], "<handlers>"
    names = {}
    exec(compile("\n".join(lines), "<handlers>", "exec"), names)
    columns = [[np.ones(3), np.ones(1), np.ones(0), np.ones(2)], [1, 1, 0, 0]]
    with interpreted():
        assert compiled_map(names["f"], columns, {}) == [names["f"](*row) for row in zip(*columns, strict=True)]


def first_or_new(x):
    if x[0] > 0:
        x = x * 2
    return x


def test_an_argument_that_is_returned_is_that_argument(text_or_compiled):
    columns = [[np.ones(2), -np.ones(2)]]
    wait_until_compiled(first_or_new, columns, {})
    new, same_one = compiled_map(first_or_new, columns, {})
    assert same(new, 2 * np.ones(2))
    assert same_one is columns[0][1]


def test_no_examples_need_no_form():
    assert compiled_map(power, [[], []], {}) == []


def test_columns_that_arguments_are_made_of():
    def place(values, shared):
        return ({"x": values[0], "n": values[1]},), shared

    columns = [[np.arange(3.0), np.arange(2.0)], [1, 2]]
    wait_until_compiled(of_a_dict, columns, {"k": 2}, place)
    assert compiled_map(of_a_dict, columns, {"k": 2}, place) == [7.0, 4.0]


def of_a_dict(d, k):
    return float(d["x"].sum()) * k + d["n"]


# --- refusals


def prints(x):
    y = x + 1
    print(y)
    return y


def imports(x):
    import cmath  # noqa: PLC0415

    return cmath.sqrt(x)


def changes_what_is_shared(x, shared):
    shared[0] = x
    return 0


def calls_another_library(x):
    return np.fft.fft(x)


def loops_over_a_set(x):
    out = 0
    for v in {int(u) for u in x}:
        out = v
    return out


def asks_for_an_error(x):
    with np.errstate(all="raise"):
        return x * 2.0


LOCK = threading.Lock()


def holds_a_lock(x):
    with LOCK:
        return x * 2.0


def counts_outside():
    count = 0.0

    def counted(x):
        nonlocal count
        count += x
        return count

    return counted


def counts_outside_by_another():
    count = 0.0

    def counted(x):
        def add(y):
            nonlocal count
            count += y

        add(x)
        return count

    return counted


@pytest.mark.parametrize("make", [counts_outside, counts_outside_by_another])
def test_what_binds_a_variable_around_it_is_never_tried(make):
    counted = make()
    with pytest.raises(Unsupported, match="a variable of a function around it that is bound"):
        compiled_map(counted, [[1.0, 2.0, 4.0]], {})
    assert counted(1.0) == 1.0
    with ab.options(way="compiled", warn=False):
        assert ab.map(counted, [1.0, 2.0, 4.0]) == [2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("function", "value", "line", "why"),
    [
        (prints, 1.0, "print(y)", "print is not compiled"),
        (imports, 1.0, "import cmath", "`import` statements are not compiled"),
        (changes_what_is_shared, 1.0, "shared[0]", "it writes into a value that examples share"),
        (calls_another_library, np.ones(2), "np.fft.fft(x)", "fft"),
        (loops_over_a_set, np.ones(2), "int(u) for u in x", "a loop over a set"),
        (asks_for_an_error, 1.0, "np.errstate(all=", "asks for underflow to be reported"),
        (holds_a_lock, 1.0, "with LOCK:", "a `with` block"),
    ],
)
def test_a_refusal_names_the_line(function, value, line, why):
    shared = {"shared": np.zeros(2)} if "shared" in function.__code__.co_varnames else {}
    reason = ab.testing.forms(function, [value], **shared)["compiled"]
    first = function.__code__.co_firstlineno
    assert any(reason.startswith(f"test_guards.py:{number}: ") for number in range(first, first + 6)), reason
    assert why in reason
    assert line in reason


@dataclasses.dataclass
class Node:
    x: np.ndarray
    kids: list = dataclasses.field(default_factory=list)
    parent: object = None


def with_parents():
    root = Node(np.ones(2))
    root.kids = [Node(np.ones(2), parent=root), Node(np.zeros(2), parent=root)]
    return root


def with_shared_kids(layers=40):
    below = [Node(np.ones(2))]
    for _ in range(layers):
        below = [Node(np.ones(2), list(below), below[-1]) for _ in range(2)]
    return below[0]


def sum_of_kids(node):
    total = node.x.sum()
    for kid in node.kids:
        total += kid.x.sum()
    return total


@pytest.mark.parametrize("make", [with_parents, with_shared_kids])
def test_nodes_that_hold_each_other_are_packed_once(make, text_or_compiled):
    examples = [make(), make()]
    with ab.options(way="compiled", warn=False), ran_ways() as ran:
        assert ab.map(sum_of_kids, examples) == [sum_of_kids(each) for each in examples]
    assert ran[-1].way == "compiled"


def in_itself():
    whole = []
    whole.append([whole])
    return whole


def with_shared_parts(layers=40):
    below = {}
    for k in range(layers):  # of other keys at each level: no tree
        below = {f"one{k}": below, f"other{k}": below}
    return below


@pytest.mark.parametrize(
    ("make", "why"), [(in_itself, "a structure that contains itself"), (with_shared_parts, "a structure of more than")]
)
def test_structures_without_an_end_have_no_type(make, why):
    examples = [make(), make()]
    with pytest.raises(Unsupported, match=why):
        compiled_map(lambda whole: len(whole), [examples], {})
    with ab.options(way="compiled", warn=False):
        assert ab.map(lambda whole: len(whole), examples) == [len(each) for each in examples]


@dataclasses.dataclass
class Link:
    value: int
    behind: object = None


def chain_of_objects(n):
    head, total = None, 0
    for i in range(n):
        head = Link(i, head)
    while head is not None:
        total, head = total + head.value, head.behind
    return total


def pairs_of_pairs(n):
    pair, depth = None, 0
    for _ in range(n):
        pair = (pair, pair)
    while pair is not None:
        pair, depth = pair[0], depth + 1
    return depth


@pytest.mark.parametrize("function", [linked_list, chain_of_objects, pairs_of_pairs])
def test_what_holds_itself_a_level_deeper_in_each_step_is_soon_refused(function):
    # read level by level without an end, the type of the last one doubles in each step
    with pytest.raises(Unsupported, match=r"`.*`: (tuples|structs) nested without end"):
        compiled_map(function, [[3, 1, 4, 0]], {})
    with ab.options(way="compiled", warn=False):
        assert ab.map(function, [3, 1, 4, 0]) == [function(n) for n in (3, 1, 4, 0)]


def yields_nothing(x):
    return x
    yield x


async def waits(x):
    return x


def binds_a_global(x):
    global _bound
    _bound = x
    return x


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (imports, "`import` statements"), (yields_nothing, "a generator"), (waits, "a coroutine"),
        (binds_a_global, "a global name"),
        (len, "builtin_function_or_method is not a plain Python function"),
    ],
)  # fmt: skip
def test_syntax_that_is_refused(function, why):
    with pytest.raises(Unsupported, match=why):
        compiled_map(function, [[1.0]], {})


def test_nothing_happens_before_it_is_compiled():
    seen = []

    def counted(x):
        seen.append(x)
        return x

    with pytest.raises(Unsupported, match="from outside"):
        compiled_map(counted, [[1.0]], {})
    assert seen == []


def test_what_is_not_there_yet_is_pending(monkeypatch):
    monkeypatch.setattr(run, "kernel_of", lambda text: run.CachedKernel(text))
    monkeypatch.setattr(run.CachedKernel, "poll", lambda self, wait=True: False)
    with pytest.raises(Unsupported, match="being compiled") as caught:
        compiled_map(lambda x: x + 1.25, [[1.0]], {})
    assert caught.value.passing


def test_a_wrong_form_is_given_up(monkeypatch):
    """The first results of a form are compared with Python's."""
    columns = [[3.0, 4.0]]
    wait_until_compiled(triple, columns, {})
    with monkeypatch.context() as patch:
        patch.setattr(run, "unpack", lambda kind, arrays, count: [0.0] * count)
        with pytest.raises(Unsupported, match="gave"):
            compiled_map(triple, columns, {})
    with pytest.raises(Unsupported, match="gave"):
        compiled_map(triple, columns, {})


def triple(x):
    return 3.0 * x


@pytest.mark.parametrize(
    "table",
    [dict.fromkeys(range(20_001), 1.0), [1.0] * 20_001, {7: {"a": [1.0] * 20_001}}],
    ids=["dict", "list", "inside"],
)
def test_no_copy_is_made_of_many_items_that_examples_share(table):
    def first(x, table):
        return x if table is None else x + 1.0

    with pytest.raises(Unsupported, match="share containers of more than 20000 items; arrays have no such limit"):
        compiled_map(first, [[1.0, 2.0]], {"table": table})


def sum_and_least(x):
    return x[0] + x[0], x.min()  # NumPy's loop of a minimum clears the processor's flags


def test_an_overflow_is_known_after_numpys_loops():
    xs = [np.full(3, value) for value in (1.0, 1e308, 2.0)]
    wait_until_compiled(sum_and_least, [xs], {})
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow encountered in scalar add"):
        compiled_map(sum_and_least, [xs], {})


def joined_by_dtype(x):
    return np.concatenate([x, x + 1], dtype=np.float64)


def joined_by_names(x):
    return np.concatenate(axis=-1, arrays=[x, x[:1]])


def unknown_keyword(x):
    return max(x[0], x[1], least=1)


@pytest.mark.parametrize("f", [joined_by_dtype, joined_by_names, unknown_keyword], ids=lambda f: f.__name__)
def test_keywords_that_compiled_code_does_not_know(f):
    xs = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    with pytest.raises(Unsupported, match="with these arguments it is not compiled"):
        compiled_map(f, [xs], {})
    with ab.options(way="compiled", warn=False):
        assert same(outcome(lambda: ab.map(f, xs)), outcome(lambda: [f(x) for x in xs]))
