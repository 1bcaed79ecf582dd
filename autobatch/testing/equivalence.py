"""`assert_equivalent` asserts, for one function and some examples, that every mode gives the loop's results.

`Reference` holds the results and gradients of the loop, computed once; `check_equivalence` runs each mode on batches in
different orders, and compares.
"""

import contextlib
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from autobatch.api.transforms import undecorated
from autobatch.batches.any_batch import unwrap_shared
from autobatch.core import parameter_trees
from autobatch.core.config import seeded
from autobatch.core.diagnostics import hiding_frames, noted_fallbacks
from autobatch.core.foreign_arrays import advice, library_of
from autobatch.core.formatting import html_table, wrapped
from autobatch.core.pytree import leaves
from autobatch.errors import ForcedValueError, OptionError, ShapeError, StructureError, UnsupportedError
from autobatch.lazy.example_map import examples_in
from autobatch.testing.compare import Difference, coarsest, compare, first_of, largest_error
from autobatch.testing.compared_ways import Compiled, ReferenceLoop, UnfitError, Way, default_ways, fresh, is_float
from autobatch.testing.gradients import Gradients, check_directions, cotangents, gradients, shared_floats


@dataclasses.dataclass
class Outcome:
    """The outcome of one example: a value, or an exception."""

    value: Any = None
    error: Exception | None = None


class Reference:
    """The undecorated function on plain arrays, one example at a time.

    An example's result depends on its place in the batch only if it draws random numbers, so results are cached by
    example, and also by place if random numbers were drawn. It depends on earlier examples only if the function writes
    into a shared argument: such a function runs again for each order, and gradients are not compared.

    Attributes:
        function: the undecorated function.
        shared_after: the shared arguments after the last call of `outcomes`.
    """

    def __init__(self, f: Callable[..., Any], examples: Sequence[tuple[Any, ...]], shared: dict[str, Any]) -> None:
        self.function = undecorated(f)
        self.examples = list(examples)
        self._shared = shared
        values = [*leaves(shared), *leaves(self.examples)]
        with contextlib.suppress(StructureError, UnsupportedError):  # the arrays of models, too
            values += parameter_trees.flatten(shared)[0]
        self.precision = coarsest(values)
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._gradients: dict[tuple[int, int], Gradients] = {}
        self._random: set[int] = set()
        self._writes, self.shared_after = False, shared

    def __len__(self) -> int:
        return len(self.examples)

    def outcome(self, index: int, place: int = 0) -> Outcome:
        """The outcome of example `index` at this place of a batch."""
        key = self._key(index, place)
        if key not in self._outcomes:
            shared = fresh(self._shared)
            self._outcomes[self._key(index, place)] = self._run(index, place, shared)  # runs before the key is made
            self._writes = self._writes or bool(compare(self._shared, shared))
        return self._outcomes[self._key(index, place)]

    def outcomes(self, order: Sequence[int]) -> list[Outcome]:
        """The outcomes of the loop over these examples, in this order."""
        out = [] if self._writes else [self.outcome(index, place) for place, index in enumerate(order)]
        self.shared_after = self._shared
        if self._writes:
            self.shared_after = fresh(self._shared)
            out = [self._run(index, place, self.shared_after) for place, index in enumerate(order)]
        return out

    def repeats(self, index: int, place: int) -> bool:
        """True if the function, called again with this example, gives the same result as at first."""
        first, again = self.outcome(index, place), self._run(index, place, fresh(self._shared))
        if first.error is not None or again.error is not None:
            return type(first.error) is type(again.error)
        return not compare(first.value, again.value)

    def _run(self, index: int, place: int, shared: dict[str, Any]) -> Outcome:
        loop = ReferenceLoop(place)
        args = loop.pack([fresh(self.examples[index])]).args
        try:
            return Outcome(value=loop.call(self.function, args, shared)[0])
        except Exception as error:
            return Outcome(error=error)
        finally:
            if loop.random:
                self._random.add(index)

    def _key(self, index: int, place: int) -> tuple[int, int]:
        return (index, place if index in self._random else -1)

    def weights(self, order: Sequence[int]) -> list[list[Any]]:
        """The cotangents of each example's result, in this order."""
        return [cotangents(self.outcome(index, place).value, index) for place, index in enumerate(order)]

    def no_gradient(self) -> str | None:
        """Why gradients cannot be compared; None if they can."""
        values = [outcome.value for outcome in self.outcomes(range(len(self)))]
        if self._writes:
            return "the function writes into its shared arguments"
        if not any(is_float(leaf) for value in values for leaf in leaves(value)):
            return "no float outputs"
        if not shared_floats(self._shared)[0] and not any(ReferenceLoop().pack([x]).floats for x in self.examples):
            return "no float inputs"
        try:
            self.gradients(range(len(self)))
        except Exception as error:
            if not is_refusal(error):
                raise
            return f"the function cannot be differentiated: {error}"
        return None

    def gradients(self, order: Sequence[int]) -> Gradients:
        """Gradients of the shared arguments, summed over the examples in order; and of each example's own floats."""
        parts = [self._gradient(index, place) for place, index in enumerate(order)]
        shared = [_sum(column) for column in zip(*(part.shared for part in parts), strict=True)]
        return Gradients(shared, [part.examples[0] for part in parts])

    def _gradient(self, index: int, place: int) -> Gradients:
        key = self._key(index, place)
        if key not in self._gradients:
            loop = ReferenceLoop(place)
            packed = loop.pack([fresh(self.examples[index])])
            weights = [cotangents(self.outcome(index, place).value, index)]
            self._gradients[key] = gradients(loop, self.function, packed, fresh(self._shared), weights)
        return self._gradients[key]


def is_refusal(error: BaseException | None) -> bool:
    """True if an error, or one in its chain, means that there is no gradient; NumPy may wrap the library's error."""
    while error is not None:
        if isinstance(error, ForcedValueError | UnsupportedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _sum(parts: Sequence[Any]) -> Any:
    """The sum of dense or sparse gradients, accumulated in float64 and returned in their dtype."""
    dense = [part.to_dense() if hasattr(part, "to_dense") else part for part in parts]
    if not is_float(dense[0]):
        return sum(dense)
    return sum(dense[1:], dense[0].astype(np.float64)).astype(dense[0].dtype)


__tracebackhide__ = True  # pytest then shows only the user's line and the message


@dataclasses.dataclass(repr=False)
class EquivalenceReport:
    """The report of `assert_equivalent`.

    Attributes:
        ways: the modes that ran.
        skipped: the modes (and "gradients") that did not, and why.
        not_compiled: why compiled code was not compared: the function cannot be compiled, or another process is still
            compiling it, and the next run compares it; "" if it was compared.
        fallbacks: by mode, what ran as a loop over the examples, and why: correct, but no proof of the batched code.
        examples: how many examples there were, and `failing`, how many of them raise.
        runs: how many batches were run.
        max_error: the largest difference of two floats, relative to the largest value of its array.
        directions: the number of directions in which the gradient was compared with central differences.

    >>> import autobatch as ab
    >>> report = ab.testing.assert_equivalent(ab.batch(lambda x: x.sum()), [np.ones(2), np.ones(3)])
    >>> report.examples, report.failing, report.ways[-1]
    (2, 0, 'ab.map')
    """

    ways: list[str] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    not_compiled: str = ""
    fallbacks: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    examples: int = 0
    failing: int = 0
    runs: int = 0
    max_error: float = 0.0
    directions: int = 0

    def __repr__(self) -> str:
        return "\n".join([self._head(), *(x for row in self._rows() for x in wrapped("  " + ": ".join(row), "    "))])

    def _repr_html_(self) -> str:
        return html_table(self._head(), ("compared", "outcome"), self._rows())

    def _head(self) -> str:
        return f"{self.examples} examples ({self.failing} raise), {self.runs} runs, largest error {self.max_error:.1e}"

    def _rows(self) -> list[tuple[str, str]]:
        """(what was compared, outcome)."""
        rows = [(way, "equal") for way in self.ways]
        rows += [("central differences", f"equal (directions: {self.directions})")] if self.directions else []
        found = [(f"fell back to the loop: {why}", way) for way, reasons in self.fallbacks.items() for why in reasons]
        skipped = [*self.skipped.items(), ("compiled", self.not_compiled)]
        found += [(f"not compared ({why})", what) for what, why in skipped if why]
        alike: dict[str, list[str]] = {}
        for outcome, what in found:
            alike.setdefault(outcome, []).append(what)
        more = {why: f" and {len(ways) - 1} more" if ways[1:] else "" for why, ways in alike.items()}
        return rows + [(ways[0] + more[why], why) for why, ways in alike.items()]


@seeded()
def check_equivalence(
    f: Callable[..., Any],
    example_sequences: Sequence[Any],
    shared: dict[str, Any],
    *,
    grad: bool = True,
    ways: Sequence[Way],
    central_differences: bool = True,
) -> EquivalenceReport:
    """`assert_equivalent` on the given ways.

    Each mode runs on all examples, shuffled, in halves and one at a time; twice, where some examples raise:
    with all examples, for the exception; without those, for results and gradients.
    """
    examples, (_, shared) = _examples(example_sequences), unwrap_shared((), shared)
    for leaf in leaves([shared, examples[0]]):
        if library := library_of(type(leaf)):  # type: ignore[arg-type]
            raise UnsupportedError(
                f"{advice('an argument', library)}; ab.testing.assert_same compares a batched function of {library}"
            )
    _check_arguments(undecorated(f), examples[0], shared)
    everyone = Reference(f, examples, shared)
    sound = [i for i in range(len(examples)) if everyone.outcome(i, i).error is None]
    failing = len(examples) - len(sound)
    kept = Reference(f, [examples[i] for i in sound], shared) if failing else everyone
    report = EquivalenceReport(examples=len(examples), failing=failing)
    skip = kept.no_gradient() if grad and sound else "grad=False" if sound else "every example raises"
    if skip:
        report.skipped["gradients"] = skip
    batches = [_Batches(everyone, range(len(examples)), gradients=False)] if failing else []
    batches += [_Batches(kept, sound, gradients=not skip)] if sound else []
    for way in ways:
        if isinstance(way, Compiled) and batches:
            way.begin(f, way.pack(fresh(batches[-1].reference.examples)).args, fresh(shared))
    for way in ways:
        try:
            with noted_fallbacks() as fallbacks:
                for each in batches:
                    _check_way(way, f, shared, each, report)
        except UnfitError as reason:
            if isinstance(way, Compiled):
                report.not_compiled = str(reason)
            else:
                report.skipped[way.name] = str(reason)
        else:
            report.ways.append(way.name)
        if fallbacks:
            report.fallbacks[way.name] = sorted({each.placed for each in fallbacks})
    if central_differences and not skip:
        report.directions = check_directions(kept.function, kept.examples, shared)
    return report


@dataclasses.dataclass
class _Batches:
    """Examples to batch: their reference, their indices in the caller's sequence, and whether to compare gradients."""

    reference: Reference
    labels: Sequence[int]
    gradients: bool


def _examples(sequences: Sequence[Any]) -> list[tuple[Any, ...]]:
    columns = [examples_in(column, "ab.testing.assert_equivalent") for column in sequences]
    lengths = [len(column) for column in columns]
    if not lengths or lengths[0] == 0:
        raise ShapeError("no examples: nothing would be proved; give a non-empty sequence for each argument")
    if len(set(lengths)) > 1:
        raise ShapeError(f"the sequences of examples have lengths {lengths}; expected one example of each argument")
    return list(zip(*columns, strict=True))


def _check_arguments(f: Callable[..., Any], args: Sequence[Any], shared: dict[str, Any]) -> None:
    """Raise a TypeError that says what the function takes, if it takes something else."""
    if not callable(f):
        given = f"a proof takes a function and its examples; got {type(f).__name__} first"
        raise TypeError(f"{given}: write assert_equivalent(f, examples), not assert_equivalent(f(x), examples)")
    with contextlib.suppress(ValueError):  # a C function without a signature
        signature = inspect.signature(f)
        try:
            signature.bind(*args, **shared)
        except TypeError as error:
            raise TypeError(f"{error}: the function takes {signature}; give what is shared by keyword") from None


def orders(count: int) -> Iterator[tuple[str, list[int]]]:
    """The batches to try: a name for each, and its examples in order."""
    everything = list(range(count))
    yield "all examples", everything
    if count > 1:
        shuffled = np.random.default_rng(0).permutation(count).tolist()
        yield "shuffled", shuffled if shuffled != everything else everything[::-1]
        yield "first half", everything[: count // 2]
        yield "second half", everything[count // 2 :]
        for index in sorted({0, count - 1}):
            yield f"example {index} alone", [index]


def _check_way(
    way: Way, f: Callable[..., Any], shared: dict[str, Any], batches: _Batches, report: EquivalenceReport
) -> None:
    """Run one way on every order; raises `AssertionError` for a difference, `UnfitError` if it takes no whole batch."""
    reason: UnfitError | None = None
    for name, order in orders(len(batches.reference)):
        run = _Run(way, f, shared, batches, order, name)
        try:
            run.compare_results(report)
            if batches.gradients:
                run.compare_gradients(report)
        except UnfitError as unfit:
            reason = unfit if len(order) == len(batches.reference) else reason
        else:
            report.runs += 1
    if reason is not None:
        raise reason


class _Run:
    """One mode on one batch."""

    def __init__(
        self,
        way: Way,
        f: Callable[..., Any],
        shared: dict[str, Any],
        batches: _Batches,
        order: Sequence[int],
        name: str,
    ) -> None:
        self.way, self.f, self.shared, self.order = way, f, shared, order
        self.reference = batches.reference
        self.examples = [self.reference.examples[i] for i in order]
        self.labels = [batches.labels[i] for i in order]
        self.title = f"{getattr(f, '__name__', 'function')}: {way.name}, {name}"

    def compare_results(self, report: EquivalenceReport) -> None:
        """Compare values, or the exception of the first example that fails."""
        expected = self.reference.outcomes(self.order)
        first_failing = next((place for place, outcome in enumerate(expected) if outcome.error is not None), None)
        packed = self.way.pack(fresh(self.examples))
        shared = fresh(self.shared)
        try:
            with seeded():
                actual = self.way.call(self.f, packed.args, shared)
        except UnfitError:
            raise
        except Exception as error:
            if first_failing is None:
                self._fail_with(error, "raises, where the loop over the examples does not")
            else:
                self._compare_errors(expected[first_failing].error, error, first_failing)
            return
        if first_failing is not None:
            missing = expected[first_failing].error
            self._fail(first_failing, [f"nothing is raised; the loop raises {_shown(missing)}"])
        if len(actual) != len(expected):
            raise AssertionError(f"{self.title}: {len(actual)} results for {len(expected)} examples")
        for place, (outcome, found) in enumerate(zip(expected, actual, strict=True)):
            self._compare(place, outcome.value, found, "result", report)
        self._compare(None, self.reference.shared_after, shared, "shared arguments after the call", report)

    def compare_gradients(self, report: EquivalenceReport) -> None:
        """Compare gradients with respect to the shared arguments and to each example."""
        expected = self.reference.gradients(self.order)
        weights = self.reference.weights(self.order)
        packed = self.way.pack(fresh(self.examples))
        try:
            actual = gradients(self.way, self.f, packed, fresh(self.shared), weights)
        except Exception as error:
            self._fail_with(error, "raises when differentiated, where the loop over the examples does not")
        for place, (left, right) in enumerate(zip(expected.examples, actual.examples, strict=True)):
            self._compare(place, left, right, "gradient of the example's floats", report)
        shared = [x.to_dense() if hasattr(x, "to_dense") else x for x in actual.shared]
        self._compare(None, expected.shared, shared, "gradient of the shared floats", report)

    def _compare(
        self, place: int | None, expected: object, actual: object, path: str, report: EquivalenceReport
    ) -> None:
        differences = compare(expected, actual, path, self.reference.precision)
        if differences:
            self._fail(place, differences)
        report.max_error = max(report.max_error, largest_error(expected, actual))

    def _compare_errors(self, expected: Exception | None, actual: Exception, place: int) -> None:
        wrong = []
        if type(actual) is not type(expected):
            wrong.append(f"raises {_shown(actual)}; the loop raises {_shown(expected)}")
        elif str(actual) != str(expected):
            wrong.append(
                f"raises {type(actual).__name__} with message {str(actual)!r}; the loop's is {str(expected)!r}"
            )
        note = f"raised for example {place}"
        notes = list(getattr(actual, "__notes__", ()))
        if not wrong and note not in notes:
            wrong.append(f"the exception's notes are {notes}; expected {note!r} among them")
        if wrong:
            self._fail(place, wrong, actual)

    def _fail(self, place: int | None, wrong: Sequence[Difference | str], cause: Exception | None = None) -> NoReturn:
        where = (
            "all examples together"
            if place is None
            else f"example {self.labels[place]} (at place {place} of its batch)"
        )
        lines = [f"{self.title} differs from the loop over the examples", f"  {where}:"]
        lines += first_of(wrong)
        if place is not None and not self.reference.repeats(self.order[place], place):
            lines.append(
                "  called again with this example, the undecorated function itself gives another result: "
                "it keeps state, or draws random numbers from a generator of its own"
            )
        raise AssertionError("\n".join(lines)) from cause

    def _fail_with(self, error: Exception, what: str) -> NoReturn:
        notes = "; ".join(getattr(error, "__notes__", ()))
        raise AssertionError(f"{self.title} {what}: {_shown(error)}" + (f" ({notes})" if notes else "")) from error


def _shown(error: Exception | None) -> str:
    return f"{type(error).__name__}({str(error)!r})"


@contextlib.contextmanager
def _reported(errors: str | None) -> Iterator[None]:
    """The handling of NumPy's errors and of warnings that `errors` of `assert_equivalent` asks for."""
    if errors not in (None, "raise"):
        raise OptionError(f'errors={errors!r:.60}; expected "raise", or None to leave them as they are')
    with contextlib.ExitStack() as stack:
        if errors:
            stack.enter_context(np.errstate(all="raise"))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("error")
        yield


@hiding_frames
def assert_equivalent(
    f: Callable[..., Any],
    *example_sequences: object,
    grad: bool = True,
    central_differences: bool = True,
    errors: str | None = None,
    **shared: object,
) -> EquivalenceReport:
    """Assert that `f` gives in every batched mode what the loop over the examples gives.

    The reference is the undecorated function on plain arrays, one example at a time. It is compared with lock-step on
    a `MaskedBatch` (its padding zero, then poisoned with NaN and extreme integers), lock-step on a `PackedBatch`, and
    `ab.map`: each on all examples, shuffled, split in two, and one at a time. The comparison covers values (exact, but
    floats may differ by re-association in the coarsest float dtype among the arguments), dtypes, shapes,
    structure, exceptions (type, message and the example index), what the call leaves in the shared arguments, and
    gradients along random cotangents of all float outputs, with respect to every float array or `EmbeddingTable` among
    the shared arguments and every float array among the examples. Arguments are copied for each run, so `f` may write
    into them. Not compared: what `f` prints, what it writes into the examples' own arrays, and empty batches.

    Args:
        f: a function of one example; decorated with `ab.batch` or not.
        example_sequences: one sequence per positional argument of `f`, as for `ab.map`. Examples that are not arrays or
            numbers, or trees of them alike in structure, are compared with tracing only; the report says so.
        grad: compare gradients. A function without float outputs has none.
        central_differences: also compare the gradient with the slope of the values, in float64 along a random direction
            of each array: all modes share the vjps, so a wrong one is wrong in all of them. False for an operation
            whose gradient differs on purpose, such as rounding in quantised training.
        errors: "raise" runs everything, the loop too, under `np.errstate(all="raise")` and with warnings as errors, so
            that an overflow, say, is an exception like any other. None: the caller's settings apply.
        shared: the keyword arguments of `f`.

    Returns:
        An `EquivalenceReport`: the modes that ran, those that did not, and why.

    Raises:
        AssertionError: names the mode, the example, the leaf and the first element that differ, with both values.
        ShapeError: no examples, or sequences of different lengths.
        TypeError: `f` does not take these arguments.
        OptionError: `errors` is neither "raise" nor None.

    >>> def scaled(x, w):
    ...     return w * x.sum()
    >>> report = assert_equivalent(scaled, [np.ones(3), np.ones(0), np.ones(2)], w=np.float64(2))
    >>> report.examples
    3

    >>> def product(x):
    ...     return x[0] * x[1]
    >>> report = assert_equivalent(product, [np.array([3, 4]), np.array([2**62, 4])], errors="raise")
    >>> report.failing  # FloatingPointError: overflow encountered in scalar multiply
    1
    """
    ways = [*default_ways(), Compiled()]
    with _reported(errors):
        return check_equivalence(
            f, example_sequences, shared, grad=grad, ways=ways, central_differences=central_differences
        )
