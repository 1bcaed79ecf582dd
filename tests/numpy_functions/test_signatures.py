"""NumPy's signatures are declared once: what an implementation does not name is declined, and never ignored."""

import inspect
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.extend import implements
from autobatch.errors import FallbackWarning, Unsupported, UnsupportedError
from autobatch.ops.rules.dispatch import FUNCTIONS, UFUNCS, Coverage, is_default

KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
EXAMPLES = [np.array([1.0, 4.0]), np.array([2.0, 0.5, 3.0])]


def name(function):
    return f"{function.__module__}.{function.__name__}"


def coverage(function):
    return Coverage(function, FUNCTIONS[function].__wrapped__)


def required(signature):
    """Some value for each argument that a call must give."""
    return [
        object()
        for parameter in signature.parameters.values()
        if parameter.kind in POSITIONAL and parameter.default is parameter.empty
    ]


# One implementation serves several functions: np.sum's dtype= is not an argument of np.max.
SHARED = {"dtype", "initial"}


@pytest.mark.parametrize("function", FUNCTIONS, ids=name)
def test_an_implementation_names_arguments_as_numpy_does(function):
    found = coverage(function)
    nameless = {p.name for p in list(found.covered.values())[: found.leading]}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = {p.name for p in found.covered.values() if p.kind not in variadic}
    assert own - nameless - set(found.parameters) - SHARED == set()


@pytest.mark.parametrize("function", FUNCTIONS, ids=name)
def test_an_argument_left_out_means_what_it_means_to_numpy(function):
    found = coverage(function)
    for argument, own in found.covered.items():
        theirs = found.parameters.get(argument)
        if theirs is None or own.kind not in KEYWORDS or own.default is own.empty or theirs.default is theirs.empty:
            continue
        unsaid = theirs.default is np._NoValue or own.default is np._NoValue or argument == "dtype"
        assert unsaid or own.default == theirs.default, f"{argument}={own.default!r}, NumPy: {theirs.default!r}"


@pytest.mark.parametrize("function", FUNCTIONS, ids=name)
def test_what_is_not_named_is_declined(function):
    found = coverage(function)
    for argument, parameter in found.parameters.items():
        if parameter.kind not in KEYWORDS or argument in found.named or parameter.default is parameter.empty:
            continue
        if argument in found.covered or is_default(argument, object(), parameter.default):
            continue
        with pytest.raises(Unsupported, match=f"{function.__name__} with {argument}="):
            found.bind(tuple(required(found.signature)), {argument: object()}, False)


def test_a_default_that_is_said_changes_nothing():
    batch = ab.MaskedBatch.from_examples(EXAMPLES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = np.sum(batch, axis=0, dtype=None, out=None, keepdims=np._NoValue, where=True)
        also = np.quantile(batch, 0.5, 0, None, False, "linear", False)
    for i, x in enumerate(EXAMPLES):
        assert got.examples()[i] == x.sum()
        assert also.examples()[i] == np.quantile(x, 0.5)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.std(x, mean=np.mean(x, keepdims=True)),
        lambda x: np.median(x, overwrite_input=True),
        lambda x: np.linalg.svd(np.outer(x, x), compute_uv=False, hermitian=True),
        lambda x: np.interp(x, [0.0, 2.0], [0.0, 1.0], period=3.0),
        lambda x: np.einsum("i,i->i", x, x, order="F"),
        lambda x: np.nanmean(x, dtype=np.float32),
    ],
)
def test_a_declined_argument_is_not_ignored(f):
    with pytest.warns(FallbackWarning, match=r"np\.\S+ with \w+"):
        got = f(ab.MaskedBatch.from_examples(EXAMPLES)).examples()
    for mine, x in zip(got, EXAMPLES, strict=True):
        np.testing.assert_allclose(mine, f(x), rtol=1e-6)


def test_a_wrong_argument_is_the_type_error_that_it_is():
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        ab.MaskedBatch.from_examples(EXAMPLES).sum(axes=0)


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated")  # since NumPy 2.5
@pytest.mark.parametrize("f", [np.round, np.clip, np.take, np.fix, np.isposinf], ids=name)
def test_out_is_written_where_the_result_does_not_depend_on_it(f):
    arguments = {np.clip: (1.0, 3.0), np.take: ([0, 0], 0)}.get(f, ())

    @ab.batch
    def write(x):
        out = np.zeros_like(x, dtype=bool if f is np.isposinf else None)
        f(x[:2] if f is np.take else x, *arguments, out=out[:2] if f is np.take else out)
        return out

    xs = [np.array([1.25, 3.75]), np.array([0.5, np.inf, 2.5])]
    got = write(ab.MaskedBatch.from_examples(xs))
    for mine, x in zip(got.examples(), xs, strict=True):
        np.testing.assert_array_equal(mine, write(x))


def test_adding_a_numpy_function_is_one_declaration():
    try:

        @implements(np.trapezoid)
        def trapezoid(y, x):
            return ((y[1:] + y[:-1]) / 2 * np.diff(x)).sum()

        batch = ab.MaskedBatch.from_examples(EXAMPLES)
        assert np.trapezoid(batch * batch, batch).examples() == [np.trapezoid(x * x, x) for x in EXAMPLES]
        with pytest.warns(FallbackWarning, match=r"np\.trapezoid with axis="):  # which it does not name
            assert np.trapezoid(batch, batch, axis=0).examples() == [np.trapezoid(x, x, axis=0) for x in EXAMPLES]
        w = np.float64(2.0)
        ab.testing.assert_equivalent(lambda x, w: np.trapezoid(w * x, x), EXAMPLES, w=w)
    finally:
        del FUNCTIONS[np.trapezoid]


def test_adding_a_ufunc_is_one_declaration():
    before = UFUNCS.pop(np.exp2)
    try:
        batch = ab.MaskedBatch.from_examples(EXAMPLES)
        with pytest.raises(UnsupportedError, match=r"derivative of np\.exp2 is not known"):
            ab.grad(lambda w: np.exp2(w * 2.0))(1.0)
        ab.extend.elementwise(np.exp2, lambda ct, out, x: ct * out * np.log(2.0), pad=0.0)
        for mine, x in zip(np.exp2(batch).examples(), EXAMPLES, strict=True):
            np.testing.assert_array_equal(mine, np.exp2(x))
        ab.testing.assert_equivalent(lambda x, w: np.exp2(w * x), EXAMPLES, w=np.float64(0.5))
    finally:
        UFUNCS[np.exp2] = before
