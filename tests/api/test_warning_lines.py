"""NumPy's warnings name the user's line, not the library's, in every execution mode and for every call of a batch."""

import functools
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.diagnostics import handling

EXAMPLES = [np.array([1.0, 0.0]), np.array([-1.0, 2.0, 3.0])]


def per_statement(x, p):
    total = np.log(x).sum()
    for v in x:
        total = total + np.sqrt(v * p)
    return total


def per_branch(x, p):
    y = np.log(x)
    if x.sum() > 3:
        y = y + np.sqrt(x - 2 * p)
    return y.sum()


def given(call):
    """(file, line, message) of each warning that a call gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return {(each.filename, each.lineno, str(each.message)) for each in found}


def loop(f):
    return lambda: [f(x, 1.0) for x in EXAMPLES]


@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "compiled", "loop"])
@pytest.mark.parametrize("f", [per_statement, per_branch])
def test_every_mode_warns_of_the_line_of_which_the_loop_warns(f, way):
    expected = given(loop(f))
    assert len(expected) == 3
    with ab.options(way=way):
        called = given(lambda: ab.batch(f)(ab.MaskedBatch.from_examples(EXAMPLES), 1.0))
        mapped = given(lambda: ab.map(f, EXAMPLES, p=1.0))
    if way in ("lockstep", "compiled", "loop"):  # tracing runs operations together that several lines recorded
        assert called == expected
    for found in (called, mapped):
        assert {(file, message) for file, _, message in found} == {(file, message) for file, _, message in expected}


OF_SCALARS = [
    lambda x: x[0] / x[1], lambda x: x[0] / np.float64(0), lambda x: 1 / x[1], lambda x: np.divide(x[0], x[1]),
    lambda x: x / x[1], lambda x: x[0] // 0, lambda x: x[0] % x[1], lambda x: divmod(x[0], x[1]),
    lambda x: x[:1].std(ddof=1), lambda x: np.int64(2) / x[1], lambda x: np.divide(x[0], x[1]) * x,
    lambda x: (x[0] / x[1] + x.sum()) * x[0], lambda x: x[:0].std(), lambda x: x[:0].var(ddof=1),
    lambda x: np.std(x[:0].reshape(1, 0), axis=1), lambda x: divmod(x, x[1]),
    lambda x: x[:0].mean(dtype=np.float32), lambda x: x[:0].reshape(0, 2).mean(axis=0),
]  # fmt: skip


@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "compiled", "loop"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
@pytest.mark.parametrize("f", OF_SCALARS)
def test_every_mode_warns_in_the_words_of_the_loop(f, dtype, way):
    """NumPy says "scalar divide" where an operator meets scalars, unless their dtypes need a third one."""
    xs = [np.array(each, dtype) for each in ([100, 0], [0, 0], [100, 3, 5])]

    def words(call):
        return {message for *_, message in given(call)}

    expected = words(lambda: [f(x) for x in xs])
    assert expected
    with ab.options(way=way, warn=False):
        for _ in range(1 if way in ("auto", "loop") else 5):  # until blocks run as generated NumPy calls
            assert words(lambda: ab.batch(f)(ab.collate(xs))) == expected
            assert words(lambda: ab.map(f, xs)) == expected


def test_the_variance_of_nothing_warns_in_numpys_order():
    with warnings.catch_warnings(record=True) as found, ab.options(way="lockstep"):
        warnings.simplefilter("always")
        np.std(np.ones(0))
        ab.batch(np.std)(ab.collate([np.ones(0), np.ones(0)]))
        ab.batch(np.std)(ab.collate([np.ones(2), np.ones(0)]))
    expected = ["Degrees of freedom <= 0 for slice"]
    expected += [f"invalid value encountered in {words}" for words in ("divide", "scalar divide")]
    assert [str(each.message) for each in found] == 3 * expected


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_mean_of_nothing_warns_in_numpys_words(dtype):
    xs = [np.ones(n, dtype) for n in (0, 2)]
    with ab.options(way="lockstep"):
        found = given(lambda: ab.batch(lambda x: x.mean())(ab.collate(xs)))
    assert {said for *_, said in found} == {said for *_, said in given(lambda: [x.mean() for x in xs])}


@pytest.mark.parametrize("f", [lambda x: x * x * 1e300, lambda x: x[0] / np.float64(0)])
def test_a_generated_recorder_warns_of_the_users_file(f):
    xs = [np.array([1e300, n]) for n in range(4)]
    with ab.options(way="fly"):
        assert {file for _ in range(3) for file, *_ in given(lambda: ab.map(f, xs))} == {__file__}


def test_a_gradient_warns_of_the_users_line():
    found = given(lambda: ab.grad(lambda p: ab.sum(ab.map(per_branch, EXAMPLES, p=p)))(1.0))
    assert {file for file, *_ in found} == {__file__}


def test_a_recorded_operation_on_a_shared_batch_warns_of_the_users_line():
    shared = ab.MaskedBatch.from_examples(EXAMPLES)
    found = given(lambda: ab.map(lambda x, b: np.sum((np.log(x[0] * b)).example(0)), EXAMPLES, b=shared))
    assert {file for file, *_ in found} == {__file__}


@pytest.mark.parametrize("layout", [ab.MaskedBatch, ab.PackedBatch])
@pytest.mark.parametrize(
    "call",
    [
        np.log, np.sqrt, np.arcsin, lambda b: b / 0, lambda b: 1 / (b * 0), lambda b: b % 0.0, lambda b: (b - 9) ** 0.5,
        lambda b: np.exp(b * 1000), lambda b: (b * 1e308).sum(), lambda b: b.std(ddof=5), lambda b: np.mean(b[:0]),
        lambda b: np.divide(b, 0, out=b + 1), lambda b: ab.nn.softmax(b * np.inf), lambda b: np.log(b).astype(int),
        lambda b: np.median(np.log(b)), lambda b: np.logaddexp(b * np.inf, -np.inf * b),
    ],
)  # fmt: skip
def test_a_call_of_a_batch_warns_of_the_users_line(call, layout):
    found = given(lambda: call(layout.from_examples(EXAMPLES)))
    assert found
    assert {file for file, *_ in found} == {__file__}


def test_the_default_filter_shows_each_line_once():
    batch = ab.MaskedBatch.from_examples(EXAMPLES)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            np.sqrt(batch)
            np.sqrt(batch)
    assert len({each.lineno for each in found}) == len(found) == 2


def test_a_filter_of_the_users_module_applies():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="in log"):
            np.log(ab.MaskedBatch.from_examples(EXAMPLES))
        warnings.filterwarnings("ignore", module=__name__)
        assert np.log(ab.MaskedBatch.from_examples(EXAMPLES)).batch_size == len(EXAMPLES)


@pytest.mark.parametrize(
    ("state", "error"),
    [({"all": "raise"}, FloatingPointError), ({"divide": "ignore", "invalid": "call"}, ValueError)],
)
def test_the_users_error_state_applies(state, error):
    def callback(text, flag):
        raise ValueError(text)

    with np.errstate(**state, call=callback), pytest.raises(error, match=r"divide by zero|invalid value"):
        np.log(ab.MaskedBatch.from_examples(EXAMPLES))
    with np.errstate(all="ignore"):
        assert given(lambda: np.log(ab.MaskedBatch.from_examples(EXAMPLES))) == set()


def test_a_warning_that_is_an_error_shows_the_users_line_only():
    batch = ab.MaskedBatch.from_examples(EXAMPLES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="in log") as caught:
            np.log(batch)
    assert {str(each.path) for each in caught.traceback} == {__file__}


def test_the_error_state_is_as_before_afterwards():
    before, known = handling(), np.geterr()
    given(functools.partial(np.log, ab.MaskedBatch.from_examples(EXAMPLES)))
    assert handling() is before
    assert np.geterr() == known
