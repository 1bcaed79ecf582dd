"""Ways that are wrong in one respect: each must be reported, with the way and the example."""

import numpy as np
import pytest

from autobatch import MaskedBatch
from autobatch.core.pytree import leaves, map_tree
from autobatch.testing.compared_ways import ReferenceLoop, UnfitError, Way
from autobatch.testing.equivalence import check_equivalence
from tests.inspect import current_example

EXAMPLES = [np.float32([1, 2, 3]), np.float32([4]), np.float32([5, 6])]
SHARED = {"w": np.float32([0.5, -1.0])}


def model(x, w):
    return {"y": np.tanh(x.sum() * w), "n": len(x), "tag": ("sum", None)}


class Right(Way):
    """The loop itself, noting the example that raises; a faulty way overrides `result` or `results`."""

    name = "planted"

    def result(self, f, place, values, shared):
        return f(*values, **shared)

    def results(self, results):
        return results

    def call(self, f, args, shared):
        out = []
        for place, values in enumerate(zip(*args, strict=True)):
            try:
                out.append(self.result(f, place, values, shared))
            except Exception as error:
                error.add_note(f"raised for example {self.noted(place)}")
                raise
        return self.results(out)

    def noted(self, place):
        return place


def changed(where, change):
    """A way whose result has `change` applied to its entry `where`."""

    class Changed(Right):
        def result(self, f, place, values, shared):
            out = dict(f(*values, **shared))
            out[where] = change(out[where], values[0])
            return out

    return Changed()


class LostOrder(Right):
    def results(self, results):
        return results[::-1]


class LostExample(Right):
    def results(self, results):
        return results[:-1]


class Leaking(Right):
    """A batched sum with the mask dropped: what is beyond the longest example is added too."""

    def result(self, f, place, values, shared):
        return f(np.append(values[0], np.float32(np.nan)), **shared)


class WrongOnlyTogether(Right):
    """Right for one example, wrong where there are several."""

    def results(self, results):
        if len(results) > 1:
            results[1] = map_tree(lambda leaf: leaf, results[0])
        return results


class Mutating(Right):
    """Writes into the examples: the next way must not see it."""

    def call(self, f, args, shared):
        out = super().call(f, args, shared)
        for x in args[0]:
            x[:] = 0
        return out


def detached(y, x):
    """The value without its gradient."""
    return np.asarray(y._ab_value) if hasattr(y, "_ab_tape") else y


def doubled_gradient(y, x):
    """The value is right; the gradient is doubled."""
    return y + (y - np.asarray(y._ab_value)) if hasattr(y, "_ab_tape") else y


def check(way, f=model, examples=EXAMPLES, shared=SHARED, **options):
    return check_equivalence(f, [examples], shared, ways=[way], **options)


def test_the_right_way_passes():
    report = check(Right())
    assert report.ways == ["planted"]
    assert report.skipped == {}
    assert report.max_error < 1e-6
    assert "3 examples" in str(report)


FAULTS = {
    "value": (changed("y", lambda y, x: y * np.float32(1.01)), r"example 0 .*result\['y'\]\[0\]: value is"),
    "one element": (
        changed("y", lambda y, x: np.where(np.arange(2) == len(x) - 1, y + np.float32(1), y)),
        r"example 1 .*result\['y'\]\[0\]: value is",
    ),
    "wrong axis": (changed("y", lambda y, x: y[::-1]), r"result\['y'\]\[0\]: value"),
    "kept axis": (changed("y", lambda y, x: y[None]), r"result\['y'\]: shape is \(1, 2\); expected \(2,\)"),
    "dtype": (changed("y", lambda y, x: y.astype(np.float64)), r"result\['y'\]: dtype is float64; expected float32"),
    "NumPy integer": (changed("n", lambda n, x: np.int64(n)), r"result\['n'\]: type is numpy\.int64"),
    "wrong integer": (changed("n", lambda n, x: n + 1), r"result\['n'\]: value is 4; expected 3"),
    "structure": (changed("tag", lambda tag, x: list(tag)), r"result\['tag'\]: structure is list"),
    "None": (changed("tag", lambda tag, x: ("sum", 0)), r"result\['tag'\]\[1\]: type is int 0; expected None"),
    "string": (changed("tag", lambda tag, x: ("mean", None)), r"result\['tag'\]\[0\]: value is 'mean'"),
    "padding leaks": (Leaking(), r"example 0 .*"),
    "lost order": (LostOrder(), r"example 0 .*result\['y'\]\[0\]: value"),
    "lost example": (LostExample(), r"2 results for 3 examples"),
    "wrong only together": (WrongOnlyTogether(), r"all examples differs.*\n.*example 1 .*result\['y'\]"),
    "no gradient": (changed("y", detached), r"gradient of the example's floats\[0\]\[0\]: value is .*0\.0"),
    "doubled gradient": (changed("y", doubled_gradient), r"example 0 .*\n.*gradient of the example's floats"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported(fault):
    way, message = FAULTS[fault]
    with pytest.raises(AssertionError, match=message.replace(" .*", r"[\s\S]*")) as caught:
        check(way)
    assert "model: planted" in str(caught.value)


def test_a_wrong_gradient_of_a_shared_argument_is_reported():
    class Partial(Right):
        """The weights' gradient misses the last example."""

        def result(self, f, place, values, shared):
            if place == 2 and hasattr(shared["w"], "_ab_tape"):
                shared = {"w": np.asarray(shared["w"]._ab_value)}
            return f(*values, **shared)

    with pytest.raises(AssertionError, match=r"all examples together:\n.*gradient of the shared floats\[0\]\[0\]"):
        check(Partial())


def test_ways_do_not_see_what_others_wrote():
    before = SHARED["w"].copy()
    report = check_equivalence(model, [EXAMPLES], SHARED, ways=[Mutating(), Right()], grad=False)
    assert len(report.ways) == 2
    assert np.array_equal(SHARED["w"], before)
    assert EXAMPLES[0][0] == 1


def put(into, x):
    into[0] = x[0]
    return into


def test_a_function_that_writes_into_a_shared_argument_is_compared_in_each_order():
    def counted(x, seen):
        seen.append(len(x))
        return x.sum() + len(seen)

    shared = {"seen": [0]}
    assert check(Right(), counted, shared=shared).ways == ["planted"]
    assert shared == {"seen": [0]}

    class Forgetful(Right):
        def result(self, f, place, values, shared):
            return f(*values, seen=[0])

    with pytest.raises(AssertionError, match="example 1 "):
        check(Forgetful(), counted, shared=shared)


def failing(x, w):
    if len(x) < 3:
        raise KeyError(f"length {len(x)}")
    return x * w[0]


def test_exceptions_are_compared_and_the_other_examples_too():
    report = check(Right(), failing)
    assert (report.examples, report.failing) == (3, 2)
    assert report.ways == ["planted"]


class Silent(Right):
    def result(self, f, place, values, shared):
        try:
            return f(*values, **shared)
        except KeyError:
            return None


class OtherType(Right):
    def result(self, f, place, values, shared):
        try:
            return f(*values, **shared)
        except KeyError as error:
            raise IndexError(*error.args) from None


class OtherMessage(Right):
    def result(self, f, place, values, shared):
        try:
            return f(*values, **shared)
        except KeyError:
            raise KeyError("padded") from None


class OtherExample(Right):
    def noted(self, place):
        return place + 1


class LastFailure(Right):
    """The exception of the last example that fails, not of the first."""

    def call(self, f, args, shared):
        return super().call(f, tuple(list(column)[::-1] for column in args), shared)


class WrongBesideFailures(Right):
    def result(self, f, place, values, shared):
        return f(*values, **shared) + np.float32(1)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (Silent(), r"example 1 \(at place 1 of its batch\):\n.*nothing is raised; the loop raises KeyError"),
        (OtherType(), r"raises IndexError\(.*the loop raises KeyError"),
        (OtherMessage(), r"raises KeyError with message .*padded.*length 1"),
        (OtherExample(), r"notes are \['raised for example 2'\]; expected 'raised for example 1'"),
        (LastFailure(), r"raises KeyError with message"),
        (WrongBesideFailures(), r"example 0 \(at place 0 of its batch\):\n.*result\[0\]: value is"),
    ],
)
def test_a_wrong_exception_is_reported(way, message):
    with pytest.raises(AssertionError, match=message):
        check(way, failing)


def test_an_exception_that_the_loop_does_not_raise_is_reported_with_its_note():
    class Raising(Right):
        def result(self, f, place, values, shared):
            if place == 1:
                raise ZeroDivisionError("no")
            return f(*values, **shared)

    with pytest.raises(AssertionError, match=r"ZeroDivisionError\('no'\) \(raised for example 1\)") as caught:
        check(Raising())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_gradient_that_raises_is_reported():
    class Undifferentiable(Right):
        def result(self, f, place, values, shared):
            out = f(*values, **shared)
            return {**out, "y": np.array([float(y) for y in out["y"]], np.float32)}

    with pytest.raises(AssertionError, match="raises when differentiated"):
        check(Undifferentiable(), examples=EXAMPLES)


def test_random_numbers_depend_on_the_place_in_the_batch():
    def noisy(x, w):
        key = current_example().next_key(0)
        return x * np.float32(int(key) % 97) * w[0]

    assert check(ReferenceLoop(), noisy).ways == ["the loop over the examples"]

    class SameForAll(Right):
        pass

    with pytest.raises(AssertionError, match="example 1 "):
        check(SameForAll(), noisy)


def test_a_function_that_does_not_repeat_itself_is_said_to_be_the_cause():
    calls = []

    def counts(x):
        calls.append(x)
        return x + len(calls)

    with pytest.raises(AssertionError, match=r"(?s)differs.*called again with this example.*keeps state"):
        check(Right(), counts, shared={})
    with pytest.raises(AssertionError, match="differs") as caught:
        check(LostOrder())
    assert "called again" not in str(caught.value)


def test_a_way_that_cannot_take_the_examples_is_in_the_report():
    class Picky(Right):
        def pack(self, examples):
            raise UnfitError("not these")

    report = check(Picky())
    assert report.ways == []
    assert report.skipped == {"planted": "not these"}


def test_a_way_that_takes_some_batches_only_ran():
    class Several(Right):
        def pack(self, examples):
            if len(examples) == 1:
                raise UnfitError("one is too few")
            return super().pack(examples)

    assert check(Several()).ways == ["planted"]


@pytest.mark.parametrize(
    ("f", "examples", "shared", "why"),
    [
        (lambda x: len(x), EXAMPLES, {}, "no float outputs"),
        (lambda x: np.tanh(x * 1.0), [np.arange(3), np.arange(2)], {}, "no float inputs"),
        (lambda x: np.float32(x.sum().tolist()), EXAMPLES, {}, "cannot be differentiated"),
        (lambda x: put(np.zeros(9), x), EXAMPLES, {}, "cannot be differentiated"),
        (lambda x, w: put(w, x).copy(), EXAMPLES, {"w": np.zeros(9)}, "writes into its shared arguments"),
    ],
)
def test_the_report_says_why_there_are_no_gradients(f, examples, shared, why):
    assert why in check(Right(), f, examples, shared).skipped["gradients"]


def test_no_gradients_where_they_are_not_asked_for():
    report = check(changed("y", detached), grad=False)
    assert report.skipped == {"gradients": "grad=False"}


def test_where_every_example_raises_only_exceptions_are_compared():
    def never(x):
        raise ValueError("never")

    report = check(Right(), never, shared={})
    assert report.failing == 3
    assert report.skipped == {"gradients": "every example raises"}


@pytest.mark.parametrize(
    ("sequences", "shared", "error", "message"),
    [
        ([], SHARED, ValueError, "no examples"),
        ([[]], SHARED, ValueError, "no examples"),
        ([EXAMPLES, SHARED], {}, TypeError, r"assert_equivalent takes sequences .* got dict: .* by keyword"),
        ([EXAMPLES, EXAMPLES[:2]], {}, ValueError, r"lengths \[3, 2\]"),
        ([EXAMPLES], {"v": 1}, TypeError, r"missing a required argument: 'w': the function takes \(x, w\)"),
    ],
)
def test_wrong_calls(sequences, shared, error, message):
    with pytest.raises(error, match=message):
        check_equivalence(model, sequences, shared, ways=[Right()])


def test_a_batch_is_a_sequence_of_its_examples():
    report = check(Right(), examples=MaskedBatch.from_examples(EXAMPLES))
    assert report.ways == ["planted"]
    assert report.examples == 3


def test_keyboard_interrupt_passes_through():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        check(Right(), interrupted, shared={})


def test_leaves_of_every_kind_of_tree_get_gradients():
    def nested(x, p):
        return [x * p["a"][0], {"z": p["b"] - x.sum()}]

    p = {"a": [np.float64([2.0])], "b": np.float64(3.0), "name": "p"}
    report = check(Right(), nested, [np.float64([1, 2]), np.float64([3, 4])], {"p": p})
    assert "gradients" not in report.skipped
    assert len(leaves(p)) == 3
