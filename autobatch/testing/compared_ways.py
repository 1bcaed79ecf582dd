"""The execution modes of a function over examples: the loop, lock-step on either kind of batch, tracing, compiled.

A mode packs a list of examples (each a tuple of positional arguments) into the arguments of one call, and returns one
plain result per example. `PackedArguments` also lists the float arrays among the arguments, with which the call can be
differentiated, and splits their gradients by example.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.api.batch import BatchFunction, batch
from autobatch.api.call_ways import why_not_compiled
from autobatch.api.run_record import NAMES
from autobatch.api.transforms import map as map_examples
from autobatch.api.transforms import map_with_stats, undecorated
from autobatch.autodiff.tape import active_tape
from autobatch.batches.any_batch import batch_size_of
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import lanes_of, stack_results
from autobatch.compiled.compiled_map import prepared
from autobatch.core.abstract_eval import is_subclass
from autobatch.core.batched import Batched, Lengths
from autobatch.core.config import WayName, options
from autobatch.core.current_region import Example, example
from autobatch.core.diagnostics import noted_fallbacks
from autobatch.core.pytree import flatten, unflatten
from autobatch.errors import Reason, Unsupported, reason_of
from autobatch.lazy.recorders.generated_recorders import why_not_recorded
from autobatch.lazy.taped_forms import per_example_form


class UnfitError(Exception):  # not `Unsupported`, which no mode may raise for a user's function
    """Raised if these examples cannot be run in this way; the message is the reason."""


@dataclasses.dataclass
class PackedArguments:
    """Examples, packed into the arguments of one call.

    Attributes:
        args: the positional arguments.
        floats: the float arrays in them.
        rebuild: makes the arguments with other arrays (such as traced ones) in place of `floats`.
        split: splits arrays of the shapes of `floats` into one list per example, in the order of its float leaves.
    """

    args: tuple[Any, ...]
    floats: list[Any]
    rebuild: Callable[[list[Any]], tuple[Any, ...]]
    split: Callable[[list[Any]], list[list[Any]]]


class Way:
    """One mode of running a function over examples.

    Attributes:
        name: its name in reports.
    """

    name: str = "way"

    def pack(self, examples: Sequence[tuple[Any, ...]]) -> PackedArguments:
        """Pack the examples into the arguments of one call.

        Raises:
            UnfitError: this way cannot run them.
        """
        return _columns(examples)

    def call(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any]) -> list[Any]:
        """Run `f`; returns one result per example."""
        raise TypeError(f"{type(self).__name__} does not say how it runs a function")


class ReferenceLoop(Way):
    """The reference: the undecorated function, one example at a time.

    Args:
        place: the first example's position in its batch, which determines its random numbers.
    """

    name = "the loop over the examples"

    def __init__(self, place: int = 0) -> None:
        self.place = place
        self.random = False  # True if the last call drew random numbers

    def call(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any]) -> list[Any]:
        out = []
        f = per_example_form(f)
        self.random = False
        for place, values in enumerate(zip(*args, strict=True), self.place):
            running = Example(place)
            try:
                with example(running):
                    out.append(f(*values, **shared))
            finally:
                self.random = self.random or running.calls > 0
        return out


def fresh(tree: object) -> Any:
    """A deep copy, so that a function that writes into its arguments starts every run from the same ones."""
    try:
        return copy.deepcopy(tree)
    except (TypeError, RecursionError):  # not copyable, such as a lock or a very deep tree
        return tree


def is_float(leaf: object) -> bool:
    """True for a NumPy array or scalar of floats."""
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind == "f"


def _columns(examples: Sequence[tuple[Any, ...]]) -> PackedArguments:
    """Examples as one list per argument, unchanged; every float leaf of every example is differentiable."""
    flat = [flatten(x) for x in examples]
    counts = [sum(map(is_float, values)) for values, _ in flat]

    def rebuild(floats: list[Any]) -> tuple[Any, ...]:
        new = iter(floats)
        built = [unflatten(tree, [next(new) if is_float(x) else x for x in values]) for values, tree in flat]
        return tuple(list(column) for column in zip(*built, strict=True))

    def split(arrays: list[Any]) -> list[list[Any]]:
        new = iter(arrays)
        return [[next(new) for _ in range(count)] for count in counts]

    floats = [x for values, _ in flat for x in values if is_float(x)]
    return PackedArguments(tuple(list(column) for column in zip(*examples, strict=True)), floats, rebuild, split)


_POISON: dict[str, dict[str, Callable[[np.dtype], Any]]] = {
    "low": {
        "b": lambda dtype: False,
        "i": lambda dtype: np.iinfo(dtype).min,
        "u": lambda dtype: np.iinfo(dtype).max - 1,
        "f": lambda dtype: -np.inf,
        "c": lambda dtype: complex(np.inf, np.nan),
    },
    "high": {
        "b": lambda dtype: True,
        "i": lambda dtype: np.iinfo(dtype).max,
        "u": lambda dtype: np.iinfo(dtype).max,
        "f": lambda dtype: np.nan,
        "c": lambda dtype: complex(np.nan, np.nan),
    },
}


class OnTheFly(Way):
    """`ab.map`."""

    name = "ab.map"

    def call(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any]) -> list[Any]:
        with options(way="fly"):
            return map_examples(f, *args, **shared)


PATIENCE = 0.5  # seconds to wait for the background compiler, after all other modes were compared


class Compiled(Way):
    """`ab.map`, compiled. Raises `UnfitError` if the function does not compile; a gradient is then traced instead."""

    name = "compiled"

    def __init__(self) -> None:
        self._in_vain = False  # True after waiting for the compiler did not help

    def begin(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any]) -> None:
        """Start compiling the function in the background."""
        self._why_not(f, args, shared, 0.0)

    def call(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any]) -> list[Any]:
        reason = self._why_not(f, args, shared, 0.0 if self._in_vain else PATIENCE)
        self._in_vain = bool(reason)
        if reason and active_tape() is None:
            raise UnfitError(Reason(reason).placed)
        with options(way="fly" if reason else "compiled"):
            return map_examples(f, *args, **shared)

    def _why_not(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any], seconds: float) -> str:
        return why_not_compiled(f.__wrapped__ if isinstance(f, BatchFunction) else f, args, shared, seconds=seconds)


class LockStep(Way):
    """A lock-step call on batches.

    Args:
        way: the value of the option `way` for the call.
        packed: use `PackedBatch` for arguments with a varying first length, instead of `MaskedBatch`.
        poison: None, or the values of the padding, which then goes beyond the longest example: "high" is NaN and the
            largest integers, "low" is -inf and the smallest. A dimension that varied in one batch counts as varying
            in later ones, so that a batch of one example has padding too.
    """

    def __init__(self, *, packed: bool = False, poison: str | None = None, way: WayName = "lockstep") -> None:
        self.packed = packed
        self._way = way
        self.poison = poison
        self._varied: set[tuple[int, int]] = set()
        layout = "PackedBatch" if packed else "MaskedBatch"
        self.name = f"{NAMES[way]} on {layout}" + (f", padding poisoned ({poison})" if poison else "")

    def pack(self, examples: Sequence[tuple[Any, ...]]) -> PackedArguments:
        flat = [flatten(x) for x in examples]
        structure = flat[0][1]
        if any(other != structure for _, other in flat):
            raise UnfitError("the examples differ in structure")
        if not flat[0][0]:
            raise UnfitError("the examples have no leaves")
        layouts = [self._layout([values[i] for values, _ in flat], i) for i in range(len(flat[0][0]))]
        if self.packed and not any(isinstance(layout, _PackedLayout) for layout in layouts):
            raise UnfitError("no argument has a varying first length and fixed others")
        arrays = [layout.scalar is None and layout.data.dtype.kind == "f" for layout in layouts]  # not a Python float
        differentiable = [i for i, is_array in enumerate(arrays) if is_array]

        def rebuild(floats: list[Any]) -> tuple[Any, ...]:
            data = [layout.data for layout in layouts]
            for i, new in zip(differentiable, floats, strict=True):
                data[i] = new
            return unflatten(structure, [layout.box(new) for layout, new in zip(layouts, data, strict=True)])

        def split(arrays: list[Any]) -> list[list[Any]]:
            parts = [layouts[i].unbox(new) for i, new in zip(differentiable, arrays, strict=True)]
            return [[part[i] for part in parts] for i in range(len(examples))]

        floats = [layouts[i].data for i in differentiable]
        return PackedArguments(rebuild(floats), floats, rebuild, split)

    def _layout(self, column: list[Any], leaf: int) -> Any:
        scalar = _python_number(column)
        arrays = [np.asarray(x) for x in column]
        first = arrays[0]
        if scalar is None and not all(isinstance(x, np.ndarray | np.generic) for x in column):
            raise UnfitError(f"an argument has leaves of type {type(column[0]).__name__}; lock-step takes arrays")
        if any(map(is_subclass, column)):
            raise UnfitError(
                f"an argument is a {type(column[0]).__name__}, from which a batch would keep only the numbers"
            )
        if first.dtype.kind not in "biufc":
            raise UnfitError(f"an argument has dtype {first.dtype}")
        if any(x.dtype != first.dtype or x.ndim != first.ndim for x in arrays):
            raise UnfitError("the examples differ in dtype or rank")
        if self.packed and first.ndim and all(x.shape[1:] == first.shape[1:] for x in arrays):
            return _PackedLayout(arrays)
        lengths = list(zip(*(x.shape for x in arrays), strict=True))
        varying = {(leaf, axis) for axis, sizes in enumerate(lengths) if len(set(sizes)) > 1}
        if self.poison:
            varying = self._varied = self._varied | varying
        return _MaskedLayout(arrays, scalar, [(leaf, axis) in varying for axis in range(first.ndim)], self.poison)

    def call(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any]) -> list[Any]:
        decorated = f if isinstance(f, BatchFunction) else batch(f)
        with options(way=self._way):
            return lanes_of(decorated(*args, **shared), batch_size_of(args) or 0)


class _MaskedLayout:
    """One leaf of all examples as padded data."""

    def __init__(
        self, arrays: list[np.ndarray], scalar: type | None, varying: Sequence[bool], poison: str | None
    ) -> None:
        self.scalar = scalar
        self.shapes = [x.shape for x in arrays]
        sizes: list[int | Lengths] = []
        padded = []
        for ragged, lengths in zip(varying, zip(*self.shapes, strict=True), strict=True):
            sizes.append(Lengths(lengths) if ragged else lengths[0])
            padded.append(max(lengths) + (2 if poison and ragged else 0))
        self.sizes = tuple(sizes)
        dtype = arrays[0].dtype
        self.data = np.full((len(arrays), *padded), _POISON[poison][dtype.kind](dtype) if poison else 0, dtype)
        for i, x in enumerate(arrays):
            self.data[corner(i, x.shape)] = x

    def box(self, data: object) -> MaskedBatch:
        return MaskedBatch.of(Batched(data, self.sizes, self.scalar))

    def unbox(self, data: Any) -> list[np.ndarray]:
        return [data[corner(i, shape)] for i, shape in enumerate(self.shapes)]


def corner(index: int, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The index of an example of this shape in padded data."""
    return (index, *map(slice, shape))


class _PackedLayout:
    """One leaf of all examples, concatenated."""

    scalar = None

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.offsets = np.cumsum([0, *(len(x) for x in arrays)])
        self.data = np.concatenate(arrays, dtype=arrays[0].dtype)  # of their byte order, too

    def box(self, data: Any) -> PackedBatch:
        return PackedBatch(data, self.offsets)

    def unbox(self, data: Any) -> list[np.ndarray]:
        return [data[start:stop] for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True)]


def _python_number(column: list[Any]) -> type | None:
    kinds = {type(x) for x in column}
    cls = kinds.pop()
    return cls if not kinds and cls in (bool, int, float, complex) else None


def forms(f: Callable[..., Any], *example_sequences: Any, **shared: Any) -> dict[str, str]:
    """Whether each execution mode supports `f` for these examples, and why not.

    Copies of the examples run in lock-step and traced; nothing waits for the compiler.

    Args:
        f: a function of one example, decorated or not.
        example_sequences: one sequence for each positional argument, all of one length.
        shared: the arguments that all examples share, by name.

    Returns:
        For "lockstep", "fly" (traced by a generated recorder, without running Python) and "compiled" the empty string
        if the mode supports it, otherwise the reason, with the user's line where there is one.

    >>> def spread(x, by):
    ...     return float(max(x)) - float(min(x)) if len(x) else by[0]
    >>> found = forms(spread, [np.ones(3), np.arange(4.0)], by=np.zeros(1))
    >>> [mode for mode, why in found.items() if not why]
    ['lockstep', 'compiled']
    """
    f, columns = undecorated(f), [list(column) for column in example_sequences]
    found = {}
    for mode, why_not in {"lockstep": _not_in_lock_step, "fly": _not_recorded, "compiled": _not_written}.items():
        try:
            with noted_fallbacks() as notes:
                reason = Reason(why_not(f, fresh(columns), fresh(shared)))
        except Exception as error:
            is_own = mode == "lockstep" and not isinstance(error, Unsupported)  # the user's code raises, rewritten
            reason = Reason("") if is_own else reason_of(error)
        found[mode] = notes[0].placed if notes else reason.placed if reason else ""
    return found


def _not_in_lock_step(f: Callable[..., Any], columns: list[list[Any]], shared: dict[str, Any]) -> str:
    with options(way="lockstep"):
        batch(f)(*map(stack_results, columns), **shared)
    return ""


def _not_recorded(f: Callable[..., Any], columns: list[list[Any]], shared: dict[str, Any]) -> str:
    for _ in range(3):  # the first examples run, so that the recorder knows what their blocks are given
        with options(way="fly"):
            _, stats = map_with_stats(f, *fresh(columns), **fresh(shared))
        if stats.recorded:
            return ""
    return stats.looped or why_not_recorded(f) or "no example is like those that its recorder is for"


def _not_written(f: Callable[..., Any], columns: list[list[Any]], shared: dict[str, Any]) -> str:
    _, form = prepared(f, columns, shared, None)
    return "" if form is None else form.reason


def default_ways() -> list[Way]:
    """The modes that apply to every function, that is, all but `Compiled`."""
    return [
        LockStep(),
        LockStep(poison="high"),
        LockStep(poison="low"),
        LockStep(packed=True),
        LockStep(poison="high", way="loop"),
        OnTheFly(),
    ]
