"""Calls of functions that only compute run in Python from within compiled code, and are what they are in the loop."""

import math
import os
import statistics
import subprocess
import sys
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled import compiled_map as run
from autobatch.compiled import python_calls
from autobatch.compiled.compiled_map import compiled_map
from autobatch.errors import Unsupported
from tests.compiled.interpreted import each_as_text, interpreted
from tests.compiled.law import outcome, same, wait_until_compiled

SORTED = [np.sort(np.random.default_rng(n).random(4 + n)) for n in range(4)]
SQUARE = [np.random.default_rng(n).random((3, 3)).astype(dtype) for n, dtype in enumerate([np.float64] * 3)]
COUNTS = [3, 0, 5, 2]
WORDS = ["ab", "", "né\U0001f600", "b"]


def of_arrays(m):
    return np.linalg.eigvalsh(m).sum(), np.linalg.svd(m)[1], np.linalg.matrix_rank(m), np.linalg.slogdet(m)[0]


def of_numbers(n):
    return math.lcm(n, 4, 6), math.dist((n, 1.0), (2.0, 3)), math.ldexp(1.5, n), math.frexp(n + 0.5)


def of_text(s):
    return s.rjust(5, "-"), s.upper(), s.split("b"), s.partition("b"), s.isidentifier(), ascii(s)


def of_lists(n):
    items = [n, 2, 1]
    floats = [float(x) for x in items]
    return statistics.median(floats), statistics.pstdev(floats), statistics.mode(items), np.lexsort((items, floats))


def of_exact_types(n):
    x = np.float32(n)
    return repr(x), repr(float(n)), repr(np.int64(n)), repr(n), repr(n > 2), repr(np.bool_(n > 2)), repr((x, [n], None))


def of_what_has_several_types(n):
    either = n if n > 2 else float(n)
    maybe = None if n > 4 else either
    return repr(either), repr(maybe), math.lcm(int(either), 2)


def with_keywords(x):
    q = np.quantile(x, q=[0.2, 0.9], method="lower")
    return q, np.trapezoid(x, dx=0.5), np.unique(x[:2], return_counts=True), np.percentile(x, 50)


def of_views(m):
    return m.T.flatten("K"), np.median(m[:, 1]), np.median(m[::-1, ::2]), np.median(m[0:0].sum(axis=0))


def in_loops_and_helpers(x):
    total = 0.0
    for k in range(len(x)):
        total += helper(x[: k + 1]) if k % 2 else np.ptp(x)
    return total


def helper(x):
    return sum(float(np.median(x * k)) for k in range(2))


def of_a_long_result(n):
    return np.tile(np.array([n, 1, 2]), 50), "ab".ljust(n * 100), np.hamming(n + 2)


def of_constants(n):
    return n * math.lcm(4, 6), str(np.float32), statistics.median([1.0, 5.0, 2.0])


CASES = [
    (of_arrays, SQUARE), (of_numbers, COUNTS), (of_text, WORDS), (of_lists, COUNTS), (of_exact_types, COUNTS),
    (of_what_has_several_types, COUNTS), (with_keywords, SORTED), (of_views, SQUARE),
    (in_loops_and_helpers, SORTED), (of_a_long_result, COUNTS), (of_constants, COUNTS),
]  # fmt: skip


def failures(f, values):
    return run.prepared(f, [values], {}, None)[1].failures


@each_as_text(("f", "values"), CASES, {"in_loops_and_helpers"})
def test_a_call_in_python_is_the_call_in_the_loop(f, values, text_or_compiled):
    wait_until_compiled(f, [values], {})
    assert same(compiled_map(f, [values], {}), [f(x) for x in values])
    assert failures(f, values) == 0


# --- what is left to Python


def factorised(m):
    return np.linalg.qr(np.linalg.cholesky(m))[1]


def root_or_nothing(m):
    try:
        return np.linalg.eigvals(m)[0]
    except np.linalg.LinAlgError:
        return -1.0


def perhaps_complex(m):
    return np.linalg.eigvals(m)


NAN = np.full((2, 2), np.nan)
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("f", "values", "left"),
    [
        (root_or_nothing, [np.eye(2), np.full((2, 2), np.inf), np.eye(3)], 1),
        (perhaps_complex, [np.eye(2), TURN, np.eye(3)], 1),
        (factorised, [np.eye(2), -np.eye(2), np.eye(2)], 1),
        (lambda m: m.T.round(1), [np.eye(2), np.eye(3)], 2),  # in Fortran's order
        (lambda n: math.lcm(n, 2**40), [1, 3, 2**40 - 1], 1),  # which has more than 64 bits
    ],
)
def test_another_result_or_an_exception_is_pythons(f, values, left, text_or_compiled):
    wait_until_compiled(f, [values], {})
    assert same(outcome(lambda: compiled_map(f, [values], {})), outcome(lambda: [f(x) for x in values]))
    assert failures(f, values) == left


def grown(x):
    return np.nanprod([x, 1e200]) + math.lcm(4, int(x > 2.0))


def test_a_warning_is_pythons(text_or_compiled):
    values = [1.0, 1e200, 2.0]
    wait_until_compiled(grown, [values], {})
    with (
        np.errstate(over="raise"),
        pytest.raises(FloatingPointError, match="overflow encountered in reduce"),
    ):
        compiled_map(grown, [values], {})
    with np.errstate(over="ignore"):
        assert same(compiled_map(grown, [values], {}), [grown(x) for x in values])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled_map(grown, [values], {})
    assert [str(each.message) for each in caught] == ["overflow encountered in reduce"]
    assert failures(grown, values) == 3


def of_one_array(x):
    y = x * 2.0
    return np.correlate(y, y)[0] + np.correlate(y, y * 1.0)[0]


def test_an_array_that_is_given_twice_is_one_object(monkeypatch):
    plain, seen = python_calls._called, []
    monkeypatch.setattr(python_calls, "_caller_at", lambda *place: called)

    def called(function, args, named):
        seen.append(args[0] is args[1])
        return plain(function, args, named)

    with interpreted():
        assert same(compiled_map(of_one_array, [SORTED], {}), [of_one_array(x) for x in SORTED])
    assert seen[-2:] == [True, False]


def fitted(x):
    return np.polyfit(x, x, 4)


def test_other_warnings_name_the_users_line():
    with interpreted(), warnings.catch_warnings(record=True) as caught:
        run.prepared(fitted, [SORTED], {}, None)
        call = next(iter(run.prepared(fitted, [SORTED], {}, None)[1].module.program.python_calls.values()))[0]
        warnings.simplefilter("always")
        call([np.arange(2.0), 4])
    assert {(each.filename, each.lineno) for each in caught} == {(__file__, fitted.__code__.co_firstlineno + 1)}


# --- what does not only compute


def shares(x):
    y = np.atleast_1d(x)
    y[0] = 5.0
    return x[0]


def tells_where_it_is(x):
    return id(x)


def writes(x):
    y = x + 1.0
    np.place(y, y > 0, [0.0])
    return y


def draws(x):
    return np.random.permutation(len(x))


def calls_what_it_gets(x):
    return np.apply_along_axis(lambda row: row * 2.0, 0, x)


def names_variables(x):
    return len(dir()) + len(x)


@pytest.mark.parametrize("f", [shares, tells_where_it_is, writes, draws, calls_what_it_gets, names_variables])
def test_only_what_computes_is_called_from_compiled_code(f):
    with pytest.raises(Unsupported, match="is not compiled"):
        compiled_map(f, [SORTED], {})


def test_libraries_that_compute():
    special, stats = pytest.importorskip("scipy.special"), pytest.importorskip("scipy.stats")

    def of_special(x):
        return special.logsumexp(x), special.softmax(x)

    def drawn(x):
        return stats.bootstrap((x,), np.mean)

    with interpreted():
        assert same(compiled_map(of_special, [SORTED], {}), [of_special(x) for x in SORTED])
    with pytest.raises(Unsupported, match="is not compiled"):
        compiled_map(drawn, [SORTED], {})


# --- gradients


def of_data(w, x):
    scale = float(np.median(x)) * np.count_nonzero(w > 0.5) * len(np.unique(x))
    total = 0.0
    for k in range(len(x)):
        total = total + w[k % 2] ** 2 * np.ptp(x[: k + 1])
    return total * scale


def of_parameters(w, x):
    return np.linalg.eigvalsh(np.outer(w, w) * x[0])[1]


def test_a_call_that_depends_on_no_parameter_is_a_constant_of_the_tape(text_or_compiled):
    w = np.array([0.3, 0.7])
    gradient = ab.grad(of_data)
    with ab.options(way="compiled", warn=False):
        found = ab.map(gradient, [w] * 4, SORTED)
    assert all(map(np.allclose, found, [gradient(w, x) for x in SORTED]))
    taped = [form for _, forms in run._forms.values() for each in forms.values() for form in each.taped.values()]
    assert any(form.checked for form in taped)


def test_a_call_that_depends_on_a_parameter_has_no_compiled_gradient():
    w = np.array([0.3, 0.7])
    assert ab.testing.forms(of_parameters, [w], x=SORTED[0])["compiled"] == ""
    with ab.options(way="compiled", warn=False):
        found = outcome(lambda: ab.map(ab.grad(of_parameters), [w] * 4, SORTED))
    assert same(found, outcome(lambda: [ab.grad(of_parameters)(w, x) for x in SORTED]))


# --- threads, interrupts, processes


def test_on_several_threads(monkeypatch):
    monkeypatch.setattr(run, "MIN_PARALLEL", 0.0)
    monkeypatch.setattr(run, "thread_count", lambda: 3)
    values = SORTED * 50
    wait_until_compiled(in_loops_and_helpers, [values], {})
    for _ in range(3):
        assert same(compiled_map(in_loops_and_helpers, [values], {}), [in_loops_and_helpers(x) for x in values])


def test_an_interrupt_in_a_call_is_raised_at_the_end_of_the_kernel(monkeypatch, text_or_compiled):
    plain = python_calls.PythonCall.__call__
    calls = []

    def interrupted(self, values):
        calls.append(values)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(self, values)

    wait_until_compiled(of_numbers, [COUNTS], {})
    with monkeypatch.context() as patch:
        patch.setattr(python_calls.PythonCall, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            compiled_map(of_numbers, [COUNTS], {})
        assert len(calls) == 2
    assert same(compiled_map(of_numbers, [COUNTS], {}), [of_numbers(n) for n in COUNTS])


def middle(x):
    return np.median(x)


def test_a_second_process_finds_the_machine_code(tmp_path):
    code = (
        "import sys, numpy as np; from autobatch.blocks import kernel_cache;"
        "from autobatch.compiled.compiled_map import *;"
        "from tests.compiled.test_python_calls import *;"
        "sys.argv[1] == 'there' and setattr(kernel_cache._compiler, 'ask', None);"
        "wait_until_compiled(middle, [SORTED], {});"
        "assert same(compiled_map(middle, [SORTED], {}), [middle(x) for x in SORTED]) and not failures(middle, SORTED)"
    )
    environment = os.environ | {"AUTOBATCH_CACHE_DIR": str(tmp_path)}
    for word in ("new", "there"):
        done = subprocess.run([sys.executable, "-c", code, word], env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
