"""`Batch`, the abstract base of all batch classes, with functions on batches in trees and the registry of the classes.

The classes construct one another: a padded batch whose lanes come to differ in rank becomes a batch of objects, and a
batch of objects whose lanes agree becomes padded. To avoid import cycles they look each other up in `FORMS`.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from autobatch.batches.exports import Exports
from autobatch.core.current_region import asks_batches, current_region
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import SHOWN_ROWS, html_table, public_names, shown_value
from autobatch.core.op import BATCH_RANK, is_boxed
from autobatch.core.pytree import is_node, leaves, leaves_of_kind, map_tree
from autobatch.errors import NeedsLoop, ShapeError, UnsupportedError, note_example
from autobatch.facts import operators
from autobatch.facts.types import NUMBERS

Form = TypeVar("Form")

FORMS: dict[str, Any] = {}
"""The batch classes, `collate` and `Examples` by name; importing the folder fills it."""
_DIFFER = "the examples differ in structure, rank or dtype, so no op takes them together"


def mixed_reason(args: object) -> str:
    """The reason why no op takes these objects together, with advice if Python numbers are mixed with arrays."""
    for each in leaves(args):
        values = each.values if isinstance(each, FORMS["objects"]) else ()
        number = next((value for value in values if type(value) in NUMBERS), None)
        array = next((value for value in values if hasattr(value, "dtype")), None)
        if number is not None and array is not None:
            dtype, shape = np.dtype(array.dtype).name, np.shape(array)
            start = f"np.zeros({shape}, np.{dtype})" if shape else f"np.{dtype}({number!r})"
            return f"{_DIFFER}: {number!r}, a Python {type(number).__name__}, and {dtype}; start from {start} instead"
    return _DIFFER


COMPARISONS = frozenset(each.name for each in operators.COMPARISONS)
BINARY_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{each.name: each.function for each in operators.BINARY},
    "divmod": divmod,
}
"""Python's binary operators by the name within their methods: "add" for `__add__` and `__radd__`."""
UNARY_OPERATORS: dict[str, Callable[..., Any]] = {**{each.name: each.function for each in operators.UNARY}, "abs": abs}


SLOTS = ("__weakref__", "_frozen", "region")
"""The slots of every batch class; no base can hold them, since bases with slots do not combine."""
ARRAY_SLOTS = (*SLOTS, "_view", "_views")
_SHOWN = 4  # examples in a repr


def _asking(function: Callable[[Any], Form]) -> Callable[[Any], Form]:
    """The method by which Python asks a batch for one value."""
    return hiding_frames(lambda batch: batch._unanimous(function))


class Batch(Exports):
    """One value per example. Abstract; the classes are `MaskedBatch`, `PackedBatch` and `ObjectBatch`.

    Attributes:
        region: the lock-step region that the batch was made in, whose lanes it has; None outside lock-step.
        batch_size: the number of lanes.
    """

    __slots__ = ()
    _ab_rank: ClassVar[int] = BATCH_RANK
    _varies: ClassVar[str] = "a dimension whose length differs by example"  # the reason in errors of len() and iter()

    region: Any

    @property
    def batch_size(self) -> int:
        raise TypeError(f"{type(self).__name__} does not say its batch size")

    def examples(self) -> list[Any]:
        """The plain value of each example.

        Returns:
            A list with one value per example, in the order of the batch.
        """
        return [self._lane(i) for i in range(self.batch_size)]

    @hiding_frames
    def example(self, index: int) -> Any:
        """One example without its padding; `batch[index]`, in contrast, is element `index` of each example.

        Args:
            index: the example's position in the batch; negative positions count from the end.

        Returns:
            The example's value; an array is a view.

        Raises:
            IndexError: there is no such example.
        """
        return self._lane(example_number(index, self.batch_size))

    def _repr_html_(self) -> str:
        """HTML for notebooks: the first examples, without padding."""
        count = self.batch_size
        rows = []
        for at in range(min(count, SHOWN_ROWS)):
            value = self._lane(at)
            what = f"{value.shape} {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
            rows.append((str(at), what, repr(value) if is_boxed(value) else value))
        examples = "1 example" if count == 1 else f"{count} examples"
        return html_table(f"{type(self).__name__}: {examples}", ("example", "what it is", "value"), rows, count)

    def _lane(self, index: int) -> Any:
        """The value of one example; an array is a view."""
        raise TypeError(f"{type(self).__name__} does not define `_lane`")

    def _take(self, index: object, memo: dict[Any, Any]) -> Any:
        """The lanes `index` (integers), in that order, as a batch of the current region; `memo` as in `take_lanes`."""
        raise TypeError(f"{type(self).__name__} does not say how lanes are taken")

    def _prefix(self, count: int, memo: dict[Any, Any]) -> Any:
        """The first `count` lanes, as a view, as a batch of the current region."""
        raise TypeError(f"{type(self).__name__} does not say how lanes are taken")

    def _between(self, start: int, stop: int) -> Any:
        """The lanes from `start` up to `stop`, copied, so that the result does not keep the other lanes alive."""
        return self._take(np.arange(start, stop), {})

    __bool__, __int__, __float__ = _asking(bool), _asking(int), _asking(float)
    __complex__, __index__ = _asking(complex), _asking(operator.index)

    def _unanimous(self, function: Callable[[Any], Any]) -> Any:
        """In lock-step the Python value that `function` gives for every lane; an error if they differ, and outside."""
        self._refuse_outside(f"{function.__name__}()")
        values: list[Any] = []
        try:
            values.extend(map(function, narrowed(self).examples()))
        except Exception as error:
            note_lane(error, len(values))
            raise
        if not values or any(value != values[0] for value in values[1:]):
            raise refusal(f"{function.__name__}() of a value that differs by example")
        return values[0]

    def _shown(self, lengths: np.ndarray) -> str:
        """The lengths, and the first examples without padding, on lines of their own if they are long."""
        some = range(self.batch_size if self.batch_size <= _SHOWN else _SHOWN - 1)
        first = [shown_value(self._lane(i)) for i in some] + ["..."] * (self.batch_size > _SHOWN)
        line, item = ("\n  ", "\n    ") if sum(map(len, first)) > 20 else (" ", "")
        examples = f",{item or ' '}".join([each.replace("\n", "\n    ") for each in first])
        return f",{line}lengths={shown_value(lengths)},{line}examples=[{item}{examples}]"

    __dir__ = public_names
    _ab_own_names = (
        "from_masked guard_data in_region is_ragged of of_data pending rank region scalar size_of_first sizes stacked "
        "unguarded"
    )

    def _refuse_outside(self, what: str) -> None:
        """Raise outside of converted code, where what may be one value today need not be one tomorrow."""
        if current_region() is None and not asks_batches.get():
            raise UnsupportedError(
                f"{what} of a batch, which holds {self.batch_size} examples: write ab.mean(batch), or another of the "
                "library's reductions, for one number, batch.examples() for a list, or batch.example(i) for one "
                f"example; inside a function decorated with ab.batch, {what} is one value per example"
            )

    def __hash__(self) -> int:
        raise refusal("a batch is not hashable: its examples may differ")

    @hiding_frames
    def __format__(self, spec: str) -> str:
        if current_region() is not None:
            raise refusal("formatting a value that differs by example")
        if spec:
            self._refuse_outside(f"format {spec!r}")
        return repr(self)

    def _no_len(self) -> UnsupportedError:
        return refusal("len() of a batch: write .batch_size, or len(ab.Examples(batch))", f"len() of {self._varies}")

    def _no_iteration(self) -> UnsupportedError:
        advice = (
            ".examples() lists the examples, np.concatenate(batch.examples()) joins them, ab.sum(batch) adds; or "
            "decorate the function of one with @ab.batch"
        )
        return refusal(f"iteration over a batch: {advice}", f"iteration over {self._varies}")


def example_number(index: Any, count: int) -> int:
    """The position of an example, from 0; raises IndexError if there is none, TypeError for what is not an integer."""
    at = operator.index(index)
    if not -count <= at < count:
        raise IndexError(f"there is no example {at}: there are {count}, counted from 0")
    return at + count if at < 0 else at


def register_form(name: str) -> Callable[[Form], Form]:
    """Decorator that registers a class, or function, in `FORMS` under this name."""
    return lambda cls: FORMS.setdefault(name, cls)


class Shared:
    """The result of `ab.shared`: a value that is the same in every example.

    Attributes:
        value: that value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"shared({self.value!r})"


def unwrap_shared(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call without the marks of `ab.shared`."""
    if Shared in map(type, args):
        args = tuple([each.value if type(each) is Shared else each for each in args])
    if kwargs and Shared in map(type, kwargs.values()):
        kwargs = {name: each.value if type(each) is Shared else each for name, each in kwargs.items()}
    return args, kwargs


def is_batched(leaf: object) -> bool:
    """True if a leaf is a batch (of any class), False if all examples share it."""
    return isinstance(leaf, Batch)


def narrowed(leaf: object) -> Any:
    """A batch restricted to the lanes of the current region; any other value unchanged."""
    if isinstance(leaf, Batch):
        region = current_region()
        if region is not None and leaf.region is not region:
            return region.narrow(leaf)
    return leaf


def common_size(batches: Any) -> int:
    """The common batch size of these batches.

    Raises:
        ShapeError: two of them differ.
    """
    size = -1
    for batch in batches:
        if size >= 0 and batch.batch_size != size:
            raise ShapeError(
                f"batches of {size} and {batch.batch_size} examples were used together; "
                "every batch in one call needs the same examples, in the same order"
            )
        size = batch.batch_size
    return size


def refusal(message: str, inside: str | None = None) -> UnsupportedError:
    """The error to raise where one Python value would have to stand for all lanes; in lock-step it asks for the loop.

    `inside` is the text in lock-step; without it that is `message`, which may advise on code outside `@ab.batch`.
    """
    return UnsupportedError(message) if current_region() is None else NeedsLoop(inside or message)


def batch_size_of(tree: object) -> int | None:
    """The number of examples in a tree; None if no leaf is a batch.

    Raises:
        ShapeError: the batches differ in size.
    """
    size = common_size(batches_in(tree))
    return None if size < 0 else size


def has_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if any argument, or any leaf of one, is a batch."""
    for arg in args:
        if isinstance(arg, Batch) or (is_node(arg) and leaves_of_kind(arg, Batch)):
            return True
    return bool(kwargs) and has_batch(tuple(kwargs.values()), {})


def batches_in(tree: object) -> Iterator[Batch]:
    """The batches of any class in a tree (slices included), left to right."""
    if isinstance(tree, Batch):
        yield tree
    elif is_node(tree):
        for leaf in leaves_of_kind(tree, (Batch, slice)):
            yield from batches_in(leaf)
    elif isinstance(tree, slice):
        yield from batches_in((tree.start, tree.stop, tree.step))


def lane(tree: Any, index: int, seen: dict[int, Any] | None = None) -> Any:
    """The tree as one example sees it: each batch replaced by that example's value, other leaves unchanged.

    `seen` holds the value of each batch, since a batch that is in the tree twice is one object to the example.
    """
    seen = {} if seen is None else seen
    if isinstance(tree, Batch):
        return seen[id(tree)] if id(tree) in seen else seen.setdefault(id(tree), tree._lane(index))
    cls = type(tree)
    if cls is list or cls is tuple:
        return cls(lane(child, index, seen) for child in tree)
    if cls is slice:
        return slice(*(lane(part, index, seen) for part in (tree.start, tree.stop, tree.step)))
    return map_tree(lambda leaf: lane(leaf, index, seen), tree) if is_node(tree) else tree


def narrow_tree(tree: object) -> Any:
    """A tree with each batch restricted to the lanes of the current region."""
    if is_node(tree):
        return map_tree(narrow_tree, tree)
    if isinstance(tree, slice):
        return slice(narrowed(tree.start), narrowed(tree.stop), narrowed(tree.step))
    return narrowed(tree)


def per_lane(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Call a function once per lane of the current region; returns the list of plain results (`map_lanes` stacks them).

    A lane's error is raised with a note that names its example.
    """
    args, kwargs = narrow_tree(list(args)), narrow_tree(kwargs)
    return per_narrowed_lane(function, args, kwargs, batch_size_of((args, kwargs)) or 0)


def per_narrowed_lane(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], batch_size: int
) -> list[Any]:
    """`per_lane` for arguments that are narrowed to the current region already, which has `batch_size` lanes."""
    out = []
    for i in range(batch_size):
        try:
            own, named = lane((args, kwargs), i)
            out.append(function(*own, **named))
        except Exception as error:
            note_lane(error, i)
            raise
    if out and leaves_of_kind(out[0], Batch):
        raise NeedsLoop("the function called for each example holds the values of all")
    return out


def raise_own(error: ValueError, op: Any, args: Sequence[Any], params: dict[str, Any]) -> NoReturn:
    """Raise what the first example that fails raises: the shapes that `error` shows may be those of all of them."""
    if current_region() is None and "together with shapes" in str(error):
        per_lane(op.impl, args, params)
    raise error


def note_lane(error: BaseException, index: int) -> None:
    """Add a note that names the failing example; a region knows the example of a lane, outside one it is `index`."""
    region: Any = current_region()
    note_example(error, index if region is None else region.example_of(index))
