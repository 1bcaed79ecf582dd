"""Diagnoses why a batched function differs: experiments show which changes of a batch affect an example's result."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.pytree import leaves, map_tree
from autobatch.testing.calling import Padding
from autobatch.testing.own_batch import BatchDiffersError, Pair, modules_of


@dataclasses.dataclass
class _Evidence:
    """The changes that affect the differing example's result; None if one could not be tried.

    Attributes:
        alone: True if it differs also in a batch of its own without padding; the others: what changes its result.
        values: the values of the other examples, at the same lengths; tried where `others` may also change the padding.
    """

    repeated: bool = False
    alone: bool = False
    permuted: bool = False
    others: bool | None = None
    values: bool | None = None
    place: bool | None = None
    further: bool | None = None
    high: bool | None = None
    low: bool | None = None


def diagnosis(pair: Pair, found: BatchDiffersError) -> list[str]:
    """Lines of text: the experiments, their results, and a conclusion."""
    if not found.examples or found.what == "error":
        return []
    place = found.place or 0
    seen = _Experiments(pair, found, place)
    evidence = seen.evidence()
    lines = ["what changes the result of this example in the batched function:"]
    shown = [
        ("calling it again", evidence.repeated),
        ("other examples in its batch", evidence.others),
        ("other values in these, at the same lengths", evidence.values),
        ("another place in the batch", evidence.place),
        ("padding the batch further", evidence.further),
        ("large values in the padding", evidence.high),
        ("large negative values in the padding", evidence.low),
    ]
    lines += [f"  {what}: {'yes' if answer else 'no'}" for what, answer in shown if answer is not None]
    lines.append(f"  alone and without padding it {'differs' if evidence.alone else 'is right'}")
    return [*lines, "so: " + _conclusion(pair, found, evidence, seen)]


class _Experiments:
    """Runs of the batched function around one mismatch."""

    def __init__(self, pair: Pair, found: BatchDiffersError, place: int) -> None:
        self.pair, self.found, self.place = pair, found, place
        self.example = found.examples[place]
        convention = pair.convention
        columns = list(zip(*convention.lengths(found.examples), strict=True))
        self.least = tuple((size, max(column) + found.padding.extra) for size, column in enumerate(columns))
        self.padded = Padding(least=tuple((size, most + 2) for size, most in self.least))
        self.same_width = Padding(found.padding.filling, least=self.least)

    def result(self, examples: Sequence[Any], padding: Padding, place: int = 0) -> Any:
        """The result of one example; the exception if it raises."""
        try:
            return self.pair.run(examples, padding)[place]
        except Exception as error:
            return error

    def differ(self, left: object, right: object) -> bool:
        """True if two results differ, or only one is an exception, or their exceptions have different types."""
        if isinstance(left, Exception) or isinstance(right, Exception):
            return type(left) is not type(right)
        return bool(self.pair.compare(left, right))

    def evidence(self) -> _Evidence:
        """Run all experiments that apply."""
        convention, found = self.pair.convention, self.found
        out = _Evidence()
        batch = self.result(found.examples, found.padding, self.place)
        out.repeated = any(self.differ(batch, self.result(found.examples, found.padding, self.place)) for _ in range(2))
        reference = self.pair.reference(self.example)
        alone = self.result([self.example], Padding())
        out.alone = self.differ(reference, alone)
        if len(found.examples) > 1:
            out.others = self.differ(self.result([self.example], self.same_width), batch)
            if out.others and not convention.pads and self.is_padded():
                out.values = self._sees_values(batch)
            turned = list(reversed(found.examples))
            at = len(turned) - 1 - self.place
            out.place = at != self.place and self.differ(self.result(turned, found.padding, at), batch)
            out.permuted = self._is_permuted()
        if convention.pads:
            plain = self.result([self.example], self.padded)
            out.further = self.differ(plain, alone)
            if convention.knows_padding:
                width = self.padded.least
                out.high = self.differ(self.result([self.example], Padding("high", least=width)), alone)
                out.low = self.differ(self.result([self.example], Padding("low", least=width)), alone)
        return out

    def is_padded(self) -> bool:
        """True if a longer example is in the batch."""
        own = self.pair.convention.lengths([self.example])[0]
        return any(length < most for length, (_, most) in zip(own, self.least, strict=True))

    def _sees_values(self, batch: object) -> bool | None:
        """True if other floats in the other examples change the result; None if there are none."""
        examples = [map_tree(self._scaled_by(-3.0), each) for each in self.found.examples]
        examples[self.place] = self.example
        if not any(_is_number(x) and np.size(x) for i, x in enumerate(examples) if i != self.place for x in leaves(x)):
            return None
        return self.differ(self.result(examples, self.found.padding, self.place), batch)

    def _is_permuted(self) -> bool:
        """True if the results are right but in another order than the examples."""
        try:
            results = self.pair.run(self.found.examples, self.found.padding)
        except Exception:
            return False
        wanted = [self.pair.reference(x) for x in self.found.examples]
        right = [not self.differ(x, y) for x, y in zip(wanted, results, strict=True)]
        same = [[not self.differ(x, y) for y in results] for x in wanted]
        return not all(right) and all(map(any, same)) and all(map(any, zip(*same, strict=True)))

    def reads_values(self) -> bool:
        """True if the values in the padding change the result, not only its amount."""
        width = self.padded.least
        high, low = (self.result([self.example], Padding(filling, least=width)) for filling in ("high", "low"))
        return self.differ(high, low)

    def is_mean_over_padding(self) -> bool:
        """True if the padded result is length / padded length times the right one, or the result of x scaled by it."""
        pads = self.pair.convention.pads
        padded = self.result(
            *(([self.example], self.padded) if pads else (self.found.examples, self.found.padding, self.place))
        )
        if isinstance(padded, Exception):
            return False
        own = self.pair.convention.lengths([self.example])[0]
        for length, (_, width) in zip(own, self.padded.least if pads else self.least, strict=True):
            ratio = length / width
            wanted = [[x * ratio if _is_number(x) else x for x in leaves(self.pair.reference(self.example))]]
            with contextlib.suppress(Exception):  # the user's function may reject scaled values
                wanted.append(leaves(self.pair.reference(map_tree(self._scaled_by(ratio), self.example))))
            if any(_is_close(x, y) for each in wanted for x, y in zip(each, leaves(padded), strict=False)):
                return True
        return False

    def _scaled_by(self, ratio: float) -> Callable[[Any], Any]:
        source = self.pair.convention.source

        def scaled(x: object) -> Any:
            plain = source.numpy(x)
            return source.array((plain * ratio).astype(plain.dtype), x) if _is_number(plain) and np.ndim(plain) else x

        return scaled

    def shift(self, further: int) -> Any:
        """The change of the result by high values in so much more padding; None if low values change it differently."""
        width = tuple((size, most + further) for size, most in self.least)
        runs = [self.result([self.example], Padding(filling, least=width)) for filling in ("high", "given", "low")]
        if any(isinstance(x, Exception) for x in runs):
            return None
        high, plain, low = (np.concatenate([np.ravel(x).astype(np.float64) for x in leaves(run)]) for run in runs)
        up, down = high - plain, plain - low
        linear = np.any(up) and np.allclose(up, down, rtol=1e-2, atol=1e-3 * np.abs(up).max())
        return up if linear else None

    def moved(self) -> str:
        """The elements of an element-wise result that change with the padding: "all", those at the "end", or ""."""
        own = self.pair.convention.lengths([self.example])[0]
        filling = "high" if self.pair.convention.knows_padding else "given"
        plain = self.pair.reference(self.example)
        padded = self.result([self.example], Padding(filling, least=self.padded.least))
        if isinstance(padded, Exception):
            return ""
        for at, (x, y) in enumerate(zip(leaves(plain), leaves(padded), strict=True)):
            if self.pair.is_varying(at, 0) and np.shape(x) == np.shape(y) and own[:1] == (len(x),):
                moved = [bool(self.pair.compare(a, b)) for a, b in zip(np.asarray(x), np.asarray(y), strict=True)]
                if any(moved):
                    return "all" if moved[0] or len(moved) < 2 else "end"
        return ""


def _is_number(x: object) -> bool:
    return isinstance(x, np.ndarray | np.generic | float) and np.asarray(x).dtype.kind == "f"


def _is_close(x: Any, y: Any) -> bool:
    return _is_number(x) and np.shape(x) == np.shape(y) and bool(np.any(x)) and np.allclose(x, y, rtol=1e-3)


_TRAINING = ("Dropout", "BatchNorm", "SyncBatchNorm", "InstanceNorm")


def _in_training(pair: Pair, names: Sequence[str]) -> str:
    """The class name of a torch module in training mode whose class name starts with one of `names`; "" if none."""
    for module in modules_of(pair.batched):
        for part in module.modules():
            if part.training and type(part).__name__.startswith(tuple(names)):
                return type(part).__name__
    return ""


def _conclusion(pair: Pair, found: BatchDiffersError, seen: _Evidence, runs: _Experiments) -> str:
    if seen.repeated:
        dropout = _in_training(pair, ["Dropout"])
        if dropout:
            return f"{dropout} is in training mode; call .eval() on the model before comparing"
        return (
            "it is not a function of its arguments: it draws random numbers (dropout in training mode?) or keeps state"
        )
    norm = _in_training(pair, _TRAINING[1:])
    if norm and (seen.alone or seen.others):
        return (
            f"{norm} is in training mode: it normalises by the mean and variance of the whole batch, so examples see "
            "each other and the padding; call .eval(), or use a norm of one example (LayerNorm)"
        )
    if seen.permuted:
        return (
            "the results come in another order than the examples, as after sorting by length: put them back "
            "(results[np.argsort(order)])"
        )
    if found.what == "gradient":
        return _of_gradients(pair, found, seen)
    if seen.alone:
        return _of_one_example(pair, found)
    reads = bool(seen.high or seen.low) and (seen.further is False or seen.high is not seen.low or runs.reads_values())
    if seen.others and not pair.convention.pads and seen.values is not True and runs.is_padded():
        return _of_lengths(seen, runs)
    if seen.others:
        return (
            "the result of an example depends on the other examples of its batch: a reduction, sort or norm over axis "
            f"0, which counts the examples{'; and on the padding' if seen.further or reads else ''}"
        )
    if seen.further or reads:
        return _of_padding(pair, seen, runs, reads)
    if seen.place:
        return "the result of an example depends on its place in the batch: an index or a state runs over axis 0"
    return "the examples differ only together, in this batch"


def _of_one_example(pair: Pair, found: BatchDiffersError) -> str:
    if any(": dtype is " in line for line in found.lines):
        return "the two functions compute in different dtypes: give both the same, or cast the result"
    return (
        "the two functions do not compute the same for one example alone, where there is nothing to pad or to mix: "
        "compare them there first"
    )


def _of_lengths(seen: _Evidence, runs: _Experiments) -> str:
    """Where the user's own function pads, so that another batch is other padding."""
    if runs.is_mean_over_padding():
        return "it divides by the padded length: sum an example's own elements and divide by its length"
    if seen.values is None:
        return "the result of an example depends on the other examples of its batch, or on the padding that they bring"
    return (
        "the result of an example depends on how long the other examples of its batch are, not on what they hold: the "
        "padding reaches it"
    )


def _of_padding(pair: Pair, seen: _Evidence, runs: _Experiments, reads: bool) -> str:
    name = pair.convention.arguments[0] if pair.convention.arguments else "padded"
    if pair.convention.poisons_with_nan and reads and not seen.low:
        return "padding is multiplied by the mask, and 0 * NaN is NaN: select instead (np.where(mask, x, 0))"
    if runs.is_mean_over_padding():
        return (
            f"it divides by the padded length, as {name}.mean(1) does: sum an example's own elements and divide by its "
            "length"
        )
    if reads and not (seen.high and seen.low):
        extreme, value = ("max", "-inf") if seen.high else ("min", "inf")
        return f"a {extreme} runs over the padding: fill it with {value} first (np.where(mask, x, {value}))"
    moved = runs.moved()
    if moved == "end":
        return (
            "only the elements near an example's end change with the padding: a convolution, or a pass from the right, "
            "reads over the end; fill the padding with what one example has there (zeros), or start at its length"
        )
    near, far = (runs.shift(2), runs.shift(4)) if reads else (None, None)
    if near is not None and far is not None:
        if np.allclose(near, far):
            return f"an element is taken at the end of the padding, as {name}[:, -1] does: take it at length - 1"
        return "a sum over an example takes its padding in: select with the mask first (np.where(mask, x, 0).sum(1))"
    if moved == "all" and (reads or not pair.convention.knows_padding):
        return (
            "every element of an example changes with the padding, as in attention without a mask (give it to the "
            "scores: -inf where there is padding, before the softmax), or in a pass from the right that begins there"
        )
    if reads:
        return (
            "the values of the padding reach the result, as in a mean over the padded length, attention (a softmax) "
            "without a mask, or a recurrence that runs on over the padding"
        )
    if pair.convention.knows_padding:
        return (
            "the values of the padding do not matter, but how much there is of it does: a position, or a size, is "
            f"counted from the end of the padded array ({name}.shape[1]), or a mean divides by it; take the "
            "example's own length"
        )
    return (
        "how far the batch is padded changes the result, and the function is not told what is padding: give it lengths "
        f"or a mask (def batched({name}, lengths))"
    )


def _of_gradients(pair: Pair, found: BatchDiffersError, seen: _Evidence) -> str:
    text = found.lines[0]
    if "nan" in text:
        return (
            "values agree, and the gradient is NaN: padding went through a function whose slope is infinite there "
            "(sqrt, log, x / 0) and was masked afterwards, and 0 * inf is NaN; put a harmless value in before "
            "(f(np.where(mask, x, 1)))"
        )
    if "padding is" in text:
        return "values agree, but the padding gets a gradient: the result depends on it, where no value tried showed it"
    if " is 0.0" in text or "(0.0)" in text.partition("expected")[0]:
        return "values agree, but no gradient arrives: .detach(), .item(), .numpy(), no_grad or a copy cuts it off"
    return "values agree, but gradients do not: a custom backward (autograd.Function, custom_vjp) or an in-place write"
