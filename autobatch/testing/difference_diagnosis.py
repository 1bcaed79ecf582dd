"""Diagnoses why a batched function differs: experiments show which changes of a batch affect an example's result."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.pytree import leaves, map_tree
from autobatch.testing.calling import Padding
from autobatch.testing.own_batch import BatchDiffersError, Pair, modules_of

_QUESTIONS = {  # each asks for a change of the batch: does it change the result of the example that differs?
    "repeated": "calling it again",
    "others": "other examples in its batch",
    "place": "another place in the batch",
    "further": "padding the batch further",
    "high": "large values in the padding",
    "low": "large negative values in the padding",
}


def diagnosis(pair: Pair, found: BatchDiffersError) -> list[str]:
    """Lines of text: the experiments, their results, and a conclusion."""
    if not found.examples or found.what == "error":
        return []
    place = found.place or 0
    seen = _Experiments(pair, found, place)
    answers = seen.answers()
    lines = ["what changes the result of this example in the batched function:"]
    lines += [f"  {what}: {'yes' if answers[name] else 'no'}" for name, what in _QUESTIONS.items() if name in answers]
    lines.append(f"  alone and without padding it {'differs' if answers['alone'] else 'is right'}")
    return [*lines, "so: " + _conclusion(pair, found, answers, seen)]


class _Experiments:
    """Runs of the batched function around one mismatch."""

    def __init__(self, pair: Pair, found: BatchDiffersError, place: int) -> None:
        self.pair, self.found, self.place = pair, found, place
        self.example = found.examples[place]
        columns = list(zip(*pair.convention.lengths(found.examples), strict=True))
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

    def answers(self) -> dict[str, bool]:
        """The answers to the questions that can be asked; "alone": it differs also by itself, without padding."""
        convention, found = self.pair.convention, self.found
        batch = self.result(found.examples, found.padding, self.place)
        alone = self.result([self.example], Padding())
        again = [self.result(found.examples, found.padding, self.place) for _ in range(2)]
        out = {
            "repeated": any(self.differ(batch, each) for each in again),
            "alone": self.differ(self.pair.reference(self.example), alone),
        }
        if len(found.examples) > 1:
            out["others"] = self.differ(self.result([self.example], self.same_width), batch)
            turned = list(reversed(found.examples))
            at = len(turned) - 1 - self.place
            out["place"] = at != self.place and self.differ(self.result(turned, found.padding, at), batch)
            out["permuted"] = self._is_permuted()
            change = self._scaled_by(2.0, leaves(self.example))
            changed = [x if x is self.example else map_tree(change, x) for x in found.examples]
            if any(x is not y for x, y in zip(leaves(changed), leaves(found.examples), strict=True)):
                out["values"] = self.differ(self.result(changed, found.padding, self.place), batch)
        if convention.pads:
            out["further"] = self.differ(self.result([self.example], self.padded), alone)
            for filling in ("high", "low") if convention.knows_padding else ():
                filled = self.result([self.example], Padding(filling, least=self.padded.least))
                out[filling] = self.differ(filled, alone)
        return out

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
        paddings = [Padding(filling, least=self.padded.least) for filling in ("high", "low")]
        return self.differ(*[self.result([self.example], padding) for padding in paddings])

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
            if length == width:
                continue
            ratio = length / width
            wanted = [[x * ratio if _is_number(x) else x for x in leaves(self.pair.reference(self.example))]]
            with contextlib.suppress(Exception):  # the user's function may reject scaled values
                wanted.append(leaves(self.pair.reference(map_tree(self._scaled_by(ratio), self.example))))
            if any(_is_close(x, y) for each in wanted for x, y in zip(each, leaves(padded), strict=False)):
                return True
        return False

    def _scaled_by(self, ratio: float, ids: Sequence[Any] = ()) -> Callable[[Any], Any]:
        """Multiplies floats; integers, which may be ids, become those of `ids`, leaves of an example."""
        source = self.pair.convention.source
        known = {x.dtype: x for x in map(source.numpy, ids) if np.size(x) and np.ndim(x) and x.dtype.kind in "iu"}

        def scaled(x: object) -> Any:
            plain = source.numpy(x)
            if np.ndim(plain) and plain.dtype in known:
                new = np.resize(known[plain.dtype], plain.shape)
                return x if (new == plain).all() else source.array(new, x)
            return source.array((plain * ratio).astype(plain.dtype), x) if _is_number(plain) and np.ndim(plain) else x

        return scaled


def _is_number(x: object) -> bool:
    return isinstance(x, np.ndarray | np.generic | float) and np.asarray(x).dtype.kind == "f"


def _is_close(x: Any, y: Any) -> bool:
    return _is_number(x) and np.shape(x) == np.shape(y) and bool(np.any(x)) and np.allclose(x, y, rtol=1e-3)


_TRAINING = ("Dropout", "BatchNorm", "SyncBatchNorm", "InstanceNorm")


def _in_training(pair: Pair, names: Sequence[str]) -> str:
    """The class name of a torch module in training mode whose class name starts with one of `names`; "" if none."""
    parts = [part for module in modules_of(pair.batched) for part in module.modules() if part.training]
    return next((name for part in parts if (name := type(part).__name__).startswith(tuple(names))), "")


def _conclusion(pair: Pair, found: BatchDiffersError, seen: dict[str, bool], runs: _Experiments) -> str:
    if seen["repeated"]:
        if dropout := _in_training(pair, ["Dropout"]):
            return f"{dropout} is in training mode; call .eval() on the model before comparing"
        return (
            "it is not a function of its arguments: it draws random numbers (dropout in training mode?) or keeps state"
        )
    norm = _in_training(pair, _TRAINING[1:])
    if norm and (seen["alone"] or seen.get("others")):
        return (
            f"{norm} is in training mode: it normalises by the mean and variance of the whole batch, so examples see "
            "each other and the padding; call .eval(), or use a norm of one example (LayerNorm)"
        )
    if seen.get("permuted"):
        return (
            "the results come in another order than the examples, as after sorting by length: put them back "
            "(results[np.argsort(order)])"
        )
    if found.what == "gradient":
        return _of_gradients(found)
    if seen["alone"]:
        if any(": dtype is " in line for line in found.lines):
            return "the two functions compute in different dtypes: give both the same, or cast the result"
        return (
            "the two functions do not compute the same for one example alone, where there is nothing to pad or to mix: "
            "compare them there first"
        )
    pads = pair.convention.pads
    high, low = seen.get("high", False), seen.get("low", False)
    reads = (high or low) and (not seen["further"] or high is not low or runs.reads_values())
    if runs.is_mean_over_padding() and (not seen.get("others") or not pads):
        return (
            f"it divides by the padded length, as {_first_argument(pair)}.mean(1) does: sum an example's own elements "
            "and divide by its length"
        )
    if seen.get("others"):
        if not pads and not seen.get("values", True):
            return (
                "the result of an example depends on how long the others in its batch are, not on their values: it "
                "takes in padding, as a maximum, a sum or a last element does"
            )
        more = "" if pads or "values" in seen else ", or on the padding that they bring, as a sum does"
        return (
            "the result of an example depends on the other examples of its batch: a reduction, sort or norm over axis "
            f"0, which counts the examples{'; and on the padding' if seen.get('further') or reads else more}"
        )
    if seen.get("further") or reads:
        return _of_padding(pair, seen, reads)
    if seen.get("place"):
        return "the result of an example depends on its place in the batch: an index or a state runs over axis 0"
    return "the examples differ only together, in this batch"


def _first_argument(pair: Pair) -> str:
    return pair.convention.arguments[0] if pair.convention.arguments else "padded"


def _of_padding(pair: Pair, seen: dict[str, bool], reads: bool) -> str:
    name = _first_argument(pair)
    if pair.convention.poisons_with_nan and reads and not seen["low"]:
        return "padding is multiplied by the mask, and 0 * NaN is NaN: select instead (np.where(mask, x, 0))"
    if reads and not (seen["high"] and seen["low"]):
        extreme, value = ("max", "-inf") if seen["high"] else ("min", "inf")
        return f"a {extreme} runs over the padding: fill it with {value} first (np.where(mask, x, {value}))"
    if reads:
        return (
            "the values of the padding reach the result, as in a sum over it (select with the mask first: "
            f"np.where(mask, x, 0).sum(1)), in its last element ({name}[:, -1]), in attention without a mask (-inf for "
            "padding, before the softmax), or in a recurrence or a window that runs on over the padding"
        )
    if pair.convention.knows_padding:
        return (
            "the values of the padding do not matter, but how much there is of it does: a position, or a size, is "
            f"counted from the end of the padded array ({name}.shape[1]), or a window reads over an example's end"
        )
    return (
        "how far the batch is padded changes the result, and the function is not told what is padding: give it lengths "
        f"or a mask (def batched({name}, lengths)), for attention too"
    )


def _of_gradients(found: BatchDiffersError) -> str:
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
