"""Calls a user's own batched function: makes its arguments from examples, and splits its result by example.

`Convention` derives the calling convention from the function's parameters, once. `Convention.pack` makes the arguments
of one call, and `rows` splits the return value into one result per example.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, batch_size_of
from autobatch.batches.data.collate import collate as collated
from autobatch.batches.stacking import lanes_of
from autobatch.bridges.frameworks import Framework
from autobatch.core.pytree import children_of, flatten, is_node, leaves, paths, unflatten
from autobatch.errors import OptionError, ShapeError, UnsupportedError
from autobatch.testing.compared_ways import PackedArguments, corner, is_float

LAYOUTS = ("padded", "list", "packed", "batch")

_WORDS = {  # the meaning of a parameter with this name, or whose name ends with it
    **dict.fromkeys(("lengths", "length", "lens", "sizes"), "lengths"),
    **dict.fromkeys(("key_padding_mask", "padding_mask", "pad_mask"), "padding"),
    **dict.fromkeys(("attention_mask", "mask", "valid"), "mask"),
    **dict.fromkeys(("offsets", "cu_seqlens"), "offsets"),
    "segment_ids": "segments",
}
_WHOLE_BATCH = ("seq", "sequence", "src", "key", "input", "x", "token", "batch")  # prefixes for the whole batch


@dataclasses.dataclass(frozen=True)
class Padding:
    """The contents of the padding.

    Attributes:
        filling: the values: "given" (the user's padding value), "high" or "low".
        extra: the number of positions beyond the longest example.
        least: the minimum padded size, by dimension.
    """

    filling: str = "given"
    extra: int = 0
    least: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        text = {"given": "", "high": "large values in the padding", "low": "large negative values in the padding"}
        extra = f"padded {self.extra} positions further" if self.extra else ""
        return ", ".join(each for each in (text[self.filling], extra) if each)


def example_arguments(examples: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Each example as a tuple of positional arguments; a plain tuple already is one."""
    return [x if type(x) is tuple else (x,) for x in examples]


class _ArgumentLeaf:
    """One leaf of the examples: an array, or another value, of every example.

    Attributes:
        like: the first example's leaf.
        sizes: for each dimension, its index in `Convention._sizes` if its size varies; None if it is fixed.
        values: all elements, flat. shapes: the shape in each example. is_array: False if it is not an array or number.
    """

    def __init__(self, column: list[Any], framework: Framework) -> None:
        self.like = column[0]
        arrays = [framework.numpy(x) for x in column]
        self.is_array = all(isinstance(x, np.ndarray | np.generic | bool | int | float | complex) for x in arrays)
        self.sizes: tuple[int | None, ...] = ()
        self.dtype = np.dtype(object)
        self.shapes: list[tuple[int, ...]] = []
        self.values = np.zeros(0)
        if self.is_array:
            arrays = [np.asarray(x) for x in arrays]
            self.dtype = np.result_type(*{x.dtype for x in arrays})
            self.shapes = [x.shape for x in arrays]
            if len(set(map(len, self.shapes))) > 1:
                raise ShapeError(
                    f"examples of ranks {sorted(set(map(len, self.shapes)))} in one argument; expected one"
                )
            self.values = np.concatenate([x.ravel() for x in arrays])

    def filler(self, filling: str, padding: object) -> Any:
        """A padding value unlike the user's, but plausible: an integer, which may be an id, occurs in the examples."""
        if filling == "given" or not self.values.size or self.dtype.kind not in "biufc":
            return np.asarray(padding).astype(self.dtype) if self.dtype.kind in "biufc" else 0
        if self.dtype.kind == "b":
            return filling == "high"
        if self.dtype.kind in "iu":
            return self.values.max() if filling == "high" else self.values.min()
        size = 10 * float(np.abs(self.values[np.isfinite(self.values)]).max(initial=0.0)) + 3.0
        return self.dtype.type(size if filling == "high" else -size)


class Convention:
    """The calling convention of `batched`.

    Args:
        batched: the user's function of a batch.
        examples: all examples, as returned by `example_arguments`, each with the same number of arguments.
        framework, source: the library of the arrays that `batched` takes, and that of the examples' arrays.
        shared: keyword arguments.
        layout: one of `LAYOUTS`; None: derive it from the parameters.
        padding: the user's padding value.
        collate: a function that makes the arguments from a list of examples, in place of a layout.
        poison: "finite" or "nan".

    Attributes:
        knows_padding: True if the function gets lengths or a mask, which tell it what is padding.
        layout: the layout in use.
        poisons_with_nan: True if "high" padding is NaN.

    Raises:
        UnsupportedError, OptionError: a parameter with an unknown meaning; an unknown layout.
        ShapeError: examples that differ in structure or rank.
    """

    def __init__(
        self,
        batched: Callable[..., Any],
        examples: Sequence[tuple[Any, ...]],
        framework: Framework,
        source: Framework,
        shared: dict[str, Any],
        *,
        layout: str | None = None,
        padding: object = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        poison: str = "finite",
    ) -> None:
        if layout is not None and layout not in LAYOUTS:
            raise OptionError(f"layout={layout!r}; expected one of {', '.join(map(repr, LAYOUTS))}")
        if poison not in ("finite", "nan"):
            raise OptionError(f"poison={poison!r}; expected 'finite' or 'nan'")
        self.framework, self.source = framework, source
        self._padding, self._collate, self.poisons_with_nan = padding, collate, poison == "nan"
        flat = [flatten(x) for x in examples]
        self._structure = flat[0][1]
        for i, (_, structure) in enumerate(flat):
            if structure != self._structure:
                raise ShapeError(f"example {i} differs from example 0 in structure; expected examples of one structure")
        self._leaves = [_ArgumentLeaf([values[i] for values, _ in flat], source) for i in range(len(flat[0][0]))]
        self._floats = [i for i, leaf in enumerate(self._leaves) if leaf.dtype.kind == "f"]
        self._paths = list(paths(self._structure))
        self._count = len(examples[0])
        self._extra: list[tuple[str, str, int]] = []  # further parameters: (name, meaning, index of the leaf)
        parameters = _parameters(batched)
        self.arguments = [each.name for each in parameters[: self._count]]
        self._name_sizes()
        if layout is None and collate is None:
            layout = _layout_of(batched, parameters[: self._count])
        self._read(parameters[self._count :], shared, batched, collate is not None)
        kinds = {meaning for _, meaning, _ in self._extra}
        self.layout = layout or ("packed" if kinds & {"offsets", "segments"} else "padded")
        self.knows_padding = self.layout == "padded" and bool(kinds)
        if self.knows_padding and not self._ragged():
            self._vary_first()

    @property
    def pads(self) -> bool:
        """True if there is padding."""
        return self.layout == "padded" and self._collate is None and self._ragged()

    @property
    def takes_none(self) -> bool:
        """True if arguments can be made for a batch of no examples."""
        return self._collate is None and self.layout != "batch"

    def is_size(self, column: Sequence[int]) -> bool:
        """True if these sizes, one per example, are those of a padded dimension."""
        return tuple(column) in self._sizes

    def _ragged(self) -> bool:
        return any(size is not None for leaf in self._leaves for size in leaf.sizes)

    def _name_sizes(self) -> None:
        """Number the varying dimensions; those of equal sizes in all examples are one, as of words and tags."""
        self._sizes: list[tuple[int, ...]] = []
        for leaf in self._leaves:
            found: list[int | None] = []
            for column in zip(*leaf.shapes, strict=True):
                if len(set(column)) > 1 and column not in self._sizes:
                    self._sizes.append(column)
                found.append(self._sizes.index(column) if len(set(column)) > 1 else None)
            leaf.sizes = tuple(found)

    def _vary_first(self) -> None:
        """Treat the first dimension as varying, though all examples have one length: the function takes lengths."""
        first = next((leaf for leaf in self._leaves if leaf.shapes and leaf.shapes[0]), None)
        if first is None:
            return
        column = tuple(shape[0] for shape in first.shapes)
        self._sizes.append(column)
        for leaf in self._leaves:
            if leaf.sizes and tuple(shape[0] for shape in leaf.shapes) == column:
                leaf.sizes = (0, *leaf.sizes[1:])

    def _read(self, more: Sequence[inspect.Parameter], shared: dict[str, Any], f: object, collates: bool) -> None:
        kinds = {each.name: self._meaning(each.name)[0] for each in more if each.name not in shared}
        for parameter in more:
            name = parameter.name
            optional = parameter.default is not parameter.empty
            if optional and kinds.get(name) == "mask" and "padding" in kinds.values():
                continue  # a mask of pairs of positions, as in torch's layers
            if name in shared or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            meaning, leaf = self._meaning(name)
            if meaning and not collates:
                self._extra.append((name, meaning, leaf))
            elif not optional and not collates:
                raise UnsupportedError(
                    f"{_name(f)} takes {name!r}, beside {self._count} argument{'s' * (self._count > 1)} of an example; "
                    "expected lengths, mask, attention_mask, key_padding_mask, offsets or segment_ids (or one of these "
                    f"behind the name of an argument, such as {self.arguments[0]}_lengths), or a name that is passed "
                    f"to ab.testing.assert_same, {name}=...; collate= makes the arguments of a list of examples"
                )

    def _meaning(self, name: str) -> tuple[str, int]:
        """The meaning of a further parameter, and its leaf; ("", 0) for an unknown one."""
        for word, meaning in _WORDS.items():
            prefix = name.removesuffix(word).removesuffix("_")
            if name == word or (name.endswith(f"_{word}") and prefix in _WHOLE_BATCH and prefix not in self.arguments):
                return meaning, self._first_leaf(None)
            if name.endswith(f"_{word}") and prefix in self.arguments:
                return meaning, self._first_leaf(self.arguments.index(prefix))
        return "", 0

    def _first_leaf(self, argument: int | None) -> int:
        """The first leaf that varies, of an argument or of all; else the first array."""
        places = range(len(self._leaves))
        if argument is not None:
            start = sum(child.num_leaves for child in self._structure.children[:argument])
            places = range(start, start + self._structure.children[argument].num_leaves)
        varying = [i for i in places if self._leaves[i].sizes and self._leaves[i].sizes[0] is not None]
        return (varying or [i for i in places if self._leaves[i].sizes] or [0])[0]

    # From examples to arguments.

    def lengths(self, examples: Sequence[tuple[Any, ...]]) -> list[tuple[int, ...]]:
        """The sizes of the varying dimensions of each example, ordered by their index."""
        out = []
        for example in examples:
            values = leaves(example)
            found: dict[int, int] = {}
            for leaf, value in zip(self._leaves, values, strict=True):
                for axis, size in enumerate(leaf.sizes):
                    if size is not None:
                        found[size] = np.shape(self.source.numpy(value))[axis]
            out.append(tuple(found[i] for i in sorted(found)))
        return out

    def cut(self, example: tuple[Any, ...], lengths: Sequence[int]) -> tuple[Any, ...]:
        """An example with its varying dimensions cut to these lengths."""
        values = leaves(example)
        for i, leaf in enumerate(self._leaves):
            if any(size is not None for size in leaf.sizes):
                index = tuple(slice(None) if size is None else slice(lengths[size]) for size in leaf.sizes)
                values[i] = values[i][index]
        out: tuple[Any, ...] = unflatten(self._structure, values)
        return out

    def floats(self, example: tuple[Any, ...]) -> list[np.ndarray]:
        """The float arrays of one example."""
        values = leaves(example)
        return [np.asarray(self.source.numpy(values[i])) for i in self._floats]

    @property
    def float_paths(self) -> list[str]:
        """The paths of an example's float arrays."""
        return [self._paths[i] for i in self._floats]

    def pack(self, examples: Sequence[tuple[Any, ...]], padding: Padding) -> PackedArguments:
        """The arguments of one call.

        `floats` of the result are (array, like) pairs; `rebuild` takes arrays of the framework in their place, and
        returns (positional arguments, keyword arguments).
        """
        if self._collate is not None or self.layout in ("list", "batch"):
            return self._pack_each(examples)
        return self._pack_end_to_end(examples) if self.layout == "packed" else self._pack_padded(examples, padding)

    def _columns(self, examples: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        rows = [[self.source.numpy(x) for x in leaves(example)] for example in examples]
        return [[row[i] for row in rows] for i in range(len(self._leaves))]

    def _pack_padded(self, examples: Sequence[tuple[Any, ...]], padding: Padding) -> PackedArguments:
        columns = self._columns(examples)
        data: list[Any] = []
        for leaf, column in zip(self._leaves, columns, strict=True):
            data.append(self._padded(leaf, column, padding) if leaf.is_array else column)

        def split(arrays: list[Any]) -> list[list[Any]]:
            return [
                [array[corner(b, np.shape(columns[i][b]))] for i, array in zip(self._floats, arrays, strict=True)]
                for b in range(len(examples))
            ]

        return self._packed(examples, data, split, padding)

    def _packed(
        self, examples: Sequence[tuple[Any, ...]], data: list[Any], split: Any, padding: Padding | None = None
    ) -> PackedArguments:
        """The arguments made from these arrays, and the lengths, masks and other parameters that describe them."""

        def rebuild(floats: list[Any]) -> Any:
            new = dict(zip(self._floats, floats, strict=True))
            values = [
                new[i] if i in new else self.framework.array(data[i], leaf.like) if leaf.is_array else data[i]
                for i, leaf in enumerate(self._leaves)
            ]
            more = {name: self._extra_argument(what, leaf, examples, padding, name) for name, what, leaf in self._extra}
            return unflatten(self._structure, values), more

        return PackedArguments((), [(data[i], self._leaves[i].like) for i in self._floats], rebuild, split)

    def outside(self, examples: Sequence[tuple[Any, ...]], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The padding of padded arrays, in the order of the floats."""
        out = []
        for i, array in zip(self._floats, arrays, strict=True):
            mask = np.ones(array.shape, bool)
            for b, example in enumerate(examples):
                mask[corner(b, np.shape(self.source.numpy(leaves(example)[i])))] = False
            out.append(array[mask])
        return out

    def _padded(self, leaf: _ArgumentLeaf, column: list[Any], padding: Padding) -> np.ndarray:
        least = dict(padding.least)
        shapes = [np.shape(x) for x in column]
        whole = []
        for axis, size in enumerate(leaf.sizes):
            longest = max((shape[axis] for shape in shapes or leaf.shapes), default=0)
            whole.append(longest if size is None else max(longest, least.get(size, 0)) + padding.extra)
        meaning = padding.filling if self._told_of(leaf) else "given"
        filler = leaf.filler(meaning, self._padding)
        if self.poisons_with_nan and meaning == "high" and leaf.dtype.kind == "f":
            filler = np.nan
        out = np.full((len(column), *whole), filler, leaf.dtype)
        for b, x in enumerate(column):
            out[corner(b, np.shape(x))] = x
        return out

    def _told_of(self, leaf: _ArgumentLeaf) -> bool:
        """True if the function gets this leaf's lengths or mask, and so must not depend on values in its padding."""
        known = {size for _, _, i in self._extra for size in self._leaves[i].sizes if size is not None}
        return bool(known) and {size for size in leaf.sizes if size is not None} <= known

    def _extra_argument(
        self, meaning: str, at: int, examples: Sequence[tuple[Any, ...]], padding: Padding | None, name: str = ""
    ) -> Any:
        leaf = self._leaves[at]
        shapes = [np.shape(self.source.numpy(leaves(example)[at])) for example in examples]
        axes = [axis for axis, size in enumerate(leaf.sizes) if size is not None] or [0]
        lengths = np.array([[shape[axis] for axis in axes] for shape in shapes], np.int64).reshape(
            len(shapes), len(axes)
        )
        if meaning in ("offsets", "segments"):
            first = np.array([shape[0] for shape in shapes], np.int64)
            if meaning == "segments":
                return self.framework.array(np.repeat(np.arange(len(first)), first))
            offsets = np.concatenate([[0], np.cumsum(first)])
            return self.framework.array(offsets.astype(np.int32) if name.endswith("cu_seqlens") else offsets)
        if meaning == "lengths":
            return self.framework.array(lengths[:, 0] if len(axes) == 1 else lengths)
        whole = self._padded(leaf, [np.zeros(shape) for shape in shapes], padding or Padding()).shape
        mask = np.zeros((len(shapes), *whole[1 : axes[-1] + 2]), bool)
        for b, shape in enumerate(shapes):
            mask[corner(b, shape[: axes[-1] + 1])] = True
        if meaning == "padding":
            return self.framework.array(~mask)
        return self.framework.array(mask.astype(np.int64) if name.endswith("attention_mask") else mask)

    def _pack_each(self, examples: Sequence[tuple[Any, ...]]) -> PackedArguments:
        """The examples one by one; every float array of every example is differentiable."""
        flat = [leaves(example) for example in examples]

        def is_differentiable(x: object) -> bool:
            return is_float(self.source.numpy(x))

        def rebuild(floats: list[Any]) -> Any:
            new = iter(floats)
            rows = []
            for values in flat:
                own = [next(new) if is_differentiable(x) else self._foreign(x) for x in values]
                rows.append(unflatten(self._structure, own))
            if self.layout == "batch" and self._collate is None:
                return tuple(collated([row[i] for row in rows]) for i in range(self._count)), {}
            given = [row if self._count > 1 else row[0] for row in rows]
            if self._collate is None:
                return ([[row[i] for row in rows] for i in range(self._count)]), {}
            made = self._collate(given)
            return ((), made) if isinstance(made, dict) else (made if isinstance(made, tuple) else (made,), {})

        counts = [sum(map(is_differentiable, values)) for values in flat]

        def split(arrays: list[Any]) -> list[list[Any]]:
            rest = iter(arrays)
            return [[next(rest) for _ in range(count)] for count in counts]

        floats = [(self.source.numpy(x), x) for values in flat for x in values if is_differentiable(x)]
        return PackedArguments((), floats, rebuild, split)

    def _foreign(self, x: object) -> Any:
        """A leaf of an example, converted to an array of the framework."""
        plain = self.source.numpy(x)
        return self.framework.array(np.asarray(plain), x) if isinstance(plain, np.ndarray | np.generic) else x

    def _pack_end_to_end(self, examples: Sequence[tuple[Any, ...]]) -> PackedArguments:
        columns = self._columns(examples)
        data = [
            np.concatenate(
                [np.asarray(x, leaf.dtype) for x in column] or [np.zeros((0, *leaf.shapes[0][1:]), leaf.dtype)]
            )
            if leaf.sizes
            else np.array(column, leaf.dtype)
            for leaf, column in zip(self._leaves, columns, strict=True)
        ]

        def split(arrays: list[Any]) -> list[list[Any]]:
            out: list[list[Any]] = [[] for _ in examples]
            for i, array in zip(self._floats, arrays, strict=True):
                at = 0
                for b, x in enumerate(columns[i]):
                    size = len(x) if self._leaves[i].sizes else 1
                    out[b].append(array[at : at + size] if self._leaves[i].sizes else array[b])
                    at += size
            return out

        return self._packed(examples, data, split)


def _parameters(f: Any) -> list[inspect.Parameter]:
    forward = getattr(f, "forward", None)  # the signature of a torch module; its __call__ takes anything
    try:
        return list(inspect.signature(f if forward is None or inspect.isfunction(f) else forward).parameters.values())
    except (TypeError, ValueError):  # compiled code without a signature
        return []


def _layout_of(f: object, parameters: Sequence[inspect.Parameter]) -> str | None:
    """The layout stated by a function's class or annotations; None if neither does."""
    if hasattr(type(f), "_ab_batch"):
        return "batch"
    for parameter in parameters:
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        origin = getattr(annotation, "__origin__", annotation)
        if origin in (list, Sequence) or re.match(r"(typing\.)?(list|List|Sequence|Iterable)\b", text):
            return "list"
        if text.endswith(("MaskedBatch", "PackedBatch")):
            return "batch"
    return None


def _name(f: object) -> str:
    return getattr(f, "__name__", type(f).__name__)


def rows(result: object, references: Sequence[Any], is_varying: Callable[[int, int], bool]) -> list[Any]:
    """One result per example.

    Args:
        result: the return value of the batched function.
        references: the results of the function of one example, which determine structure and sizes.
        is_varying: `is_varying(leaf number, axis)`: True if that size differs between examples.

    Raises:
        ShapeError: the number of examples or the structure differs.
    """
    count = len(references)
    if isinstance(result, Batch) or batch_size_of(result) is not None:
        return lanes_of(result, count)
    if hasattr(result, "unbind") and getattr(result, "is_nested", False):
        return list(result.unbind())
    structure = flatten(references[0])[1]
    if isinstance(result, list) and len(result) == count and flatten(result[0])[1] == structure:
        return [_cut_row(each, reference, is_varying) for each, reference in zip(result, references, strict=True)]
    found = leaves_like(result, references[0])
    for leaf in found:
        if not np.ndim(leaf) or len(leaf) != count:
            shape = tuple(getattr(leaf, "shape", ()))
            raise ShapeError(
                f"the batched function returned an array of shape {shape} for {count} examples; expected "
                f"({count}, ...), the axis of examples in front"
            )
    out = []
    for b, reference in enumerate(references):
        own = [
            _cut_leaf(leaf[b], ref, i, is_varying)
            for i, (leaf, ref) in enumerate(zip(found, leaves(reference), strict=True))
        ]
        out.append(unflatten(structure, own))
    return out


def leaves_like(result: object, reference: object) -> list[Any]:
    """The leaves of a result in the order of a reference's, which dicts and dataclasses may have in another one.

    Raises:
        ShapeError: the structures differ; lists and tuples count as one.
    """
    if not is_node(result) and not is_node(reference):
        return [result]
    if is_node(result) and is_node(reference):
        keys, wanted = children_of(reference)
        found = dict(zip(*children_of(result), strict=True))
        if found.keys() == set(keys):
            pairs = [(found[key], each) for key, each in zip(keys, wanted, strict=True)]
            return [leaf for pair in pairs for leaf in leaves_like(*pair)]
    raise ShapeError(
        f"the batched function returned {flatten(result)[1]}, that of one example {flatten(reference)[1]}; expected "
        "the same structure, each array with an axis of examples in front, or a list of one result per example"
    )


def _cut_row(row: object, reference: object, is_varying: Callable[[int, int], bool]) -> Any:
    values, structure = flatten(row)
    pairs = zip(values, leaves(reference), strict=True)
    return unflatten(structure, [_cut_leaf(x, ref, i, is_varying) for i, (x, ref) in enumerate(pairs)])


def _cut_leaf(row: Any, reference: Any, at: int, is_varying: Callable[[int, int], bool]) -> Any:
    """An example's row without the padding: varying dimensions are cut to the size in the reference."""
    shape, own = tuple(np.shape(row)), tuple(np.shape(reference))
    if len(shape) != len(own) or shape == own:
        return row
    index = []
    for axis, (size, wanted) in enumerate(zip(shape, own, strict=True)):
        index.append(slice(wanted) if size > wanted and is_varying(at, axis) else slice(None))
    return row[tuple(index)]
