"""The proof, for one function, some examples and some ways, that each way equals the loop."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from autobatch.core.diagnostics import noted_fallbacks
from autobatch.errors import ShapeError
from autobatch.lazy.fibers import examples_in
from autobatch.testing.compare import Difference, compare, largest_error
from autobatch.testing.gradients import fresh, gradients
from autobatch.testing.reference import Reference, undecorated
from autobatch.testing.ways import Unfit, Way

__all__ = ["Report", "check_equivalence"]

__tracebackhide__ = True  # what pytest shows of a failure is the user's line and the message

_SHOWN = 3  # differences in one message


@dataclasses.dataclass
class Report:
    """What `assert_equivalent` did.

    Attributes:
        ways: the ways that ran.
        skipped: the ways (and "gradients") that did not, and why.
        fallbacks: by way, what ran as a loop over the examples, and why: right, but no proof of the batched code.
        examples: how many examples there were, and `failing`, how many of them raise.
        runs: how many batches were run.
        max_error: the largest difference of two floats, relative to the largest value of its array.

    >>> import autobatch as ab
    >>> report = ab.testing.assert_equivalent(ab.batch(lambda x: x.sum()), [np.ones(2), np.ones(3)])
    >>> report.examples, report.failing, report.ways[-1]
    (2, 0, 'ab.map')
    """

    ways: list[str] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    fallbacks: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    examples: int = 0
    failing: int = 0
    runs: int = 0
    max_error: float = 0.0

    def __str__(self) -> str:
        lines = [
            f"{self.examples} examples ({self.failing} raise), {self.runs} runs, largest error {self.max_error:.1e}"
        ]
        lines += [f"  {way}: equal" for way in self.ways]
        lines += [
            f"  {way} fell back to the loop: {reason}" for way in self.fallbacks for reason in self.fallbacks[way]
        ]
        lines += [f"  {what}: not compared ({why})" for what, why in self.skipped.items()]
        return "\n".join(lines)


def check_equivalence(
    f: Callable[..., Any],
    example_sequences: Sequence[Any],
    shared: dict[str, Any],
    *,
    grad: bool = True,
    ways: Sequence[Way],
) -> Report:
    """As `assert_equivalent`, on the ways given.

    Each way runs on all examples, shuffled, in halves and one at a time. Where some examples raise, that is done twice:
    with all examples, for the exception; without those, for results and gradients.
    """
    examples = _examples(example_sequences)
    signature = _signature(undecorated(f))
    if signature is not None:
        signature.bind(*examples[0], **shared)
    everyone = Reference(f, examples, shared)
    sound = [i for i in range(len(examples)) if everyone.outcome(i, i).error is None]
    failing = len(examples) - len(sound)
    kept = Reference(f, [examples[i] for i in sound], shared) if failing else everyone
    report = Report(examples=len(examples), failing=failing)
    skip = kept.no_gradient() if grad and sound else "grad=False" if sound else "every example raises"
    if skip:
        report.skipped["gradients"] = skip
    batches = [_Batches(everyone, range(len(examples)), gradients=False)] if failing else []
    batches += [_Batches(kept, sound, gradients=not skip)] if sound else []
    for way in ways:
        try:
            with noted_fallbacks() as fallbacks:
                for each in batches:
                    _check_way(way, f, shared, each, report)
        except Unfit as reason:
            report.skipped[way.name] = str(reason)
        else:
            report.ways.append(way.name)
        if fallbacks:
            report.fallbacks[way.name] = sorted(set(fallbacks))
    return report


@dataclasses.dataclass
class _Batches:
    """Examples to make batches of: their reference, what the caller calls each of them, and what to compare."""

    reference: Reference
    labels: Sequence[int]
    gradients: bool


def _examples(sequences: Sequence[Any]) -> list[tuple[Any, ...]]:
    columns = [examples_in(column, "ab.testing.assert_equivalent") for column in sequences]
    lengths = [len(column) for column in columns]
    if not lengths or lengths[0] == 0:
        raise ShapeError(
            "no examples: nothing would be proved; give one non-empty sequence per argument of the function"
        )
    if len(set(lengths)) > 1:
        raise ShapeError(f"the sequences of examples have lengths {lengths}; expected one example of each argument")
    return list(zip(*columns, strict=True))


def _signature(f: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(f)
    except ValueError:  # a C function that does not say
        return None


def _orders(count: int) -> Iterator[tuple[str, list[int]]]:
    """Batches to try: what to call each, and which examples it has, in order."""
    everything = list(range(count))
    yield "all examples", everything
    if count > 1:
        shuffled = np.random.default_rng(0).permutation(count).tolist()
        yield "shuffled", shuffled if shuffled != everything else everything[::-1]
        yield "first half", everything[: count // 2]
        yield "second half", everything[count // 2 :]
        for index in sorted({0, count - 1}):
            yield f"example {index} alone", [index]


def _check_way(way: Way, f: Callable[..., Any], shared: dict[str, Any], batches: _Batches, report: Report) -> None:
    """Run one way on every order; raise `AssertionError` at the first that differs, `Unfit` if not all fit together."""
    reason: Unfit | None = None
    for name, order in _orders(len(batches.reference)):
        run = _Run(way, f, shared, batches, order, name)
        try:
            run.compare_results(report)
            if batches.gradients:
                run.compare_gradients(report)
        except Unfit as unfit:
            reason = unfit if len(order) == len(batches.reference) else reason
        else:
            report.runs += 1
    if reason is not None:
        raise reason


class _Run:
    """One way on one batch."""

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

    def compare_results(self, report: Report) -> None:
        """Values, or the exception of the first example that fails."""
        expected = self.reference.outcomes(self.order)
        first_failing = next((place for place, outcome in enumerate(expected) if outcome.error is not None), None)
        packed = self.way.pack(fresh(self.examples))
        shared = fresh(self.shared)
        try:
            actual = self.way.call(self.f, packed.args, shared)
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

    def compare_gradients(self, report: Report) -> None:
        """Gradients with respect to the shared arguments, and to each example."""
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

    def _compare(self, place: int | None, expected: Any, actual: Any, path: str, report: Report) -> None:
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
        lines += [f"    {difference}" for difference in wrong[:_SHOWN]]
        if len(wrong) > _SHOWN:
            lines.append(f"    and {len(wrong) - _SHOWN} more")
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
