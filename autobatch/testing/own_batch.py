"""`Pair` runs a user's own batched function and the function of one example, and compares their results.

The check, the search for the smallest batch that differs, and the diagnosis use it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.bridges.frameworks import Framework, reachable
from autobatch.core.pytree import flatten, leaves, map_tree, paths, unflatten
from autobatch.testing.calling import Convention, Padding, leaves_like, rows
from autobatch.testing.compare import Difference, coarsest, compare
from autobatch.testing.compared_ways import fresh, is_float
from autobatch.testing.equivalence import is_refusal
from autobatch.testing.gradients import cotangents


class BatchDiffersError(Exception):
    """The batched function differs on one batch.

    Attributes:
        examples: the batch; padding: the padding that was used.
        place: the index in the batch of the example that differs; None if it is a shared value.
        lines: descriptions of the differences.
        what: "value" (of the result), "gradient" or "error".
    """

    def __init__(
        self,
        examples: Sequence[tuple[Any, ...]],
        padding: Padding,
        place: int | None,
        lines: Sequence[str],
        what: str = "value",
    ) -> None:
        super().__init__(*lines)
        self.examples, self.padding, self.place, self.lines, self.what = examples, padding, place, lines, what


class Pair:
    """The two functions.

    Args:
        per_example, batched: the two functions.
        convention: how `batched` is called; its `source` is the library of the examples.
        own: the library whose arrays `per_example` takes.
        examples: all of them, as positional arguments.
        shared: the keyword arguments of both.
    """

    def __init__(
        self,
        per_example: Callable[..., Any],
        batched: Callable[..., Any],
        convention: Convention,
        own: Framework,
        examples: Sequence[tuple[Any, ...]],
        shared: dict[str, Any],
    ) -> None:
        self.per_example, self.batched, self.convention, self.own = per_example, batched, convention, own
        self.examples, self.shared = list(examples), shared
        self._references: dict[int, tuple[Any, Any]] = {}  # by id(example); holding the example keeps the id valid
        values, self._shared_tree = flatten(shared)
        self._shared = [convention.source.numpy(x) for x in values]
        self._shared_like = values
        self._shared_floats = [i for i, x in enumerate(self._shared) if is_float(x)]
        self.parameters = _common_parameters(per_example, batched) if own is convention.framework else []
        own_values = (x for e in examples for x in map(convention.source.numpy, leaves(e)))
        self.precision = coarsest([*self._shared, *own_values])
        self._varying = self._find_varying()

    def _find_varying(self) -> dict[tuple[int, int], bool]:
        columns: dict[tuple[int, int], list[int]] = {}
        for example in self.examples:
            for at, leaf in enumerate(leaves(self.reference(example))):
                for axis, size in enumerate(np.shape(leaf)):
                    columns.setdefault((at, axis), []).append(size)
        return {at: len(set(sizes)) > 1 or self.convention.is_size(sizes) for at, sizes in columns.items()}

    def reference(self, example: tuple[Any, ...]) -> Any:
        """The result of the function of one example, with NumPy arrays; the function's exceptions are raised."""
        kept = self._references.get(id(example))
        if kept is None:
            args = self._convert(self.own, fresh(example))
            result = self.own.call(self.per_example, args, self._keywords(self.own))
            kept = self._references[id(example)] = (example, map_tree(self.own.numpy, result))
        return kept[1]

    def _convert(self, framework: Framework, tree: object) -> Any:
        """A tree with the examples' arrays converted to another library's."""
        source = self.convention.source
        if framework is source:
            return tree
        return map_tree(lambda x: framework.array(source.numpy(x), x) if source.owns(x) else x, tree)

    def _keywords(self, framework: Framework, floats: Sequence[Any] | None = None) -> dict[str, Any]:
        """The shared arguments as arrays of this library; `floats`, if given, replace the float arrays."""
        values = []
        new = iter(floats or ())
        for i, (plain, like) in enumerate(zip(self._shared, self._shared_like, strict=True)):
            if floats is not None and i in self._shared_floats:
                values.append(next(new))
            else:
                is_array = isinstance(plain, np.ndarray | np.generic)
                values.append(framework.array(plain, like) if is_array and framework.name != "numpy" else fresh(plain))
        out: dict[str, Any] = unflatten(self._shared_tree, values)
        return out

    def run(self, examples: Sequence[tuple[Any, ...]], padding: Padding) -> list[Any]:
        """The batched function's results, one per example, with NumPy arrays."""
        framework = self.convention.framework
        references = [self.reference(example) for example in examples]
        packed = self.convention.pack(examples, padding)
        args, more = packed.rebuild([framework.array(x, like) for x, like in packed.floats])
        result = framework.call(self.batched, args, {**more, **self._keywords(framework)})
        if not examples:
            is_ours = hasattr(result, "examples") or getattr(result, "is_nested", False)
            is_without = is_ours or (isinstance(result, list) and not result)
            own = [] if is_without else leaves_like(result, self.reference(self.examples[0]))
            return [framework.numpy(x) for x in own]
        return [map_tree(framework.numpy, x) for x in rows(result, references, self.is_varying)]

    def is_varying(self, at: int, axis: int) -> bool:
        """True if the size of this axis of a leaf of the result varies with the example."""
        return self._varying.get((at, axis), False)

    def compare(self, reference: object, found: object, path: str = "result") -> list[Difference]:
        """The differences between two results for one example."""
        return compare(*_in_common_dtypes(reference, found, self.convention.framework), path, self.precision)

    def check(self, examples: Sequence[tuple[Any, ...]], padding: Padding) -> None:
        """Compare values, dtypes, shapes and structure.

        Raises:
            BatchDiffersError: they differ, or the batched function raises.
        """
        references = [self.reference(example) for example in examples]
        try:
            found = self.run(examples, padding)
        except Exception as error:
            line = f"the batched function raises {type(error).__name__}: {error}"
            raise BatchDiffersError(examples, padding, None, [line], "error") from error
        if not examples:
            return self._check_empty(found, padding)
        for place, (reference, own) in enumerate(zip(references, found, strict=True)):
            differences = self.compare(reference, own)
            if differences:
                raise BatchDiffersError(examples, padding, place, list(map(str, differences)))
        return None

    def _check_empty(self, found: Sequence[Any], padding: Padding) -> None:
        wanted = leaves(self.reference(self.examples[0]))
        for leaf, own in zip(wanted, found, strict=False):
            wanted_dtype = _in_common_dtypes(leaf, own, self.convention.framework)[0].dtype
            if not hasattr(own, "shape") or own.shape[:1] != (0,) or own.dtype != wanted_dtype:
                what = f"{getattr(own, 'shape', ())} of {getattr(own, 'dtype', type(own).__name__)}"
                text = f"a batch of no examples gives an array of shape {what}; expected (0, ...) of {wanted_dtype}"
                raise BatchDiffersError([], padding, None, [text], "error")

    # Gradients.

    def no_gradient(self) -> str:
        """Why gradients cannot be compared; "" if they can."""
        if not any(is_float(x) for x in leaves(self.reference(self.examples[0]))):
            return "no float outputs"
        if not self._shared_floats and not self.parameters and not self.convention.floats(self.examples[0]):
            return "no float inputs"
        for what, framework, run in (
            ("the function of one example", self.own, lambda: self._own_gradient(self.examples[0], 0)),
            (
                "the batched function",
                self.convention.framework,
                lambda: self._batch_gradient(self.examples[:1], Padding()),
            ),
        ):
            try:
                run()
            except Exception as error:
                if framework.name == "numpy" or is_refusal(error):  # compiled code, or an operation without a gradient
                    return f"{what} cannot be differentiated: {error}"
        return ""

    def _own_gradient(self, example: tuple[Any, ...], place: int) -> list[Any]:
        """Gradients of the example's floats, of the shared floats and of the parameters, in one list."""
        framework, source = self.own, self.convention.source
        values, tree = flatten(example)
        where = [i for i, x in enumerate(values) if is_float(source.numpy(x))]
        f = framework.differentiable(self.per_example)

        def run(floats: list[Any]) -> Any:
            args = list(self._convert(framework, values))
            for i, x in zip(where, floats, strict=False):
                args[i] = x
            result = f(*unflatten(tree, args), **self._keywords(framework, floats[len(where) :]))
            return result, [x for x, ct in zip(leaves(result), weights, strict=True) if ct is not None]

        weights = cotangents(self.reference(example), place)
        given = [(np.asarray(source.numpy(values[i])), values[i]) for i in where] + self._shared_pairs()
        return framework.vjp(run, given, [w for w in weights if w is not None], self.parameters)

    def _shared_pairs(self) -> list[tuple[Any, Any]]:
        return [(np.asarray(self._shared[i]), self._shared_like[i]) for i in self._shared_floats]

    def _batch_gradient(
        self, examples: Sequence[tuple[Any, ...]], padding: Padding
    ) -> tuple[list[Any], list[Any], Any]:
        """(gradients of each example's floats, of the shared floats and parameters, of the padding)."""
        framework = self.convention.framework
        references = [self.reference(example) for example in examples]
        weights = [cotangents(reference, place) for place, reference in enumerate(references)]
        packed = self.convention.pack(examples, padding)
        count = len(packed.floats)
        f = framework.differentiable(self.batched)

        def run(floats: list[Any]) -> Any:
            args, more = packed.rebuild(floats[:count])
            result = f(*args, **more, **self._keywords(framework, floats[count:]))
            found = rows(result, references, self.is_varying)
            pairs = (
                (x, ct) for row, cts in zip(found, weights, strict=True) for x, ct in zip(leaves(row), cts, strict=True)
            )
            return result, [x for x, ct in pairs if ct is not None]

        flat = [ct for cts in weights for ct in cts if ct is not None]
        grads = framework.vjp(run, [*packed.floats, *self._shared_pairs()], flat, self.parameters)
        outside = self.convention.outside(examples, grads[:count]) if self.convention.knows_padding else []
        return packed.split(grads[:count]), grads[count:], outside

    def check_gradients(self, examples: Sequence[tuple[Any, ...]], padding: Padding) -> None:
        """Compare the gradients of all float outputs, for random cotangents.

        Raises:
            BatchDiffersError: gradients differ, or the padding has a nonzero gradient.
        """
        own = [self._own_gradient(example, place) for place, example in enumerate(examples)]
        try:
            found, common, outside = self._batch_gradient(examples, padding)
        except Exception as error:
            line = f"differentiating the batched function raises {type(error).__name__}: {error}"
            raise BatchDiffersError(examples, padding, None, [line], "gradient") from error
        count = len(self.convention.floats(examples[0]))
        for place, (wanted, given) in enumerate(zip(own, found, strict=True)):
            for path, left, right in zip(self.convention.float_paths, wanted[:count], given, strict=False):
                self._verify(examples, padding, place, left, right, f"gradient of the example's own example{path}")
        for i, right in enumerate(common):
            parts = [wanted[count + i] for wanted in own]
            left = np.sum(np.stack([np.asarray(x) for x in parts]), axis=0, dtype=np.float64).astype(parts[0].dtype)
            self._verify(examples, padding, None, left, right, f"gradient of {self._shared_name(i)}")
        for part in outside:
            if not (part == 0).all():
                line = f"gradient of the padding is {part[part != 0][0]!r}; expected 0"
                raise BatchDiffersError(examples, padding, None, [line], "gradient")

    def _shared_name(self, i: int) -> str:
        if i >= len(self._shared_floats):
            return f"parameter {i - len(self._shared_floats)} of the modules that both functions use"
        names = [f"{name}{path}" for name, value in self.shared.items() for path in paths(flatten(value)[1])]
        return names[self._shared_floats[i]]

    def _verify(
        self, examples: Any, padding: Padding, place: int | None, left: object, right: object, path: str
    ) -> None:
        differences = self.compare(np.asarray(left), np.asarray(right), path)
        if differences:
            raise BatchDiffersError(examples, padding, place, list(map(str, differences)), "gradient")


def _in_common_dtypes(reference: object, found: object, framework: Framework) -> tuple[Any, Any]:
    """Convert both results to arrays in dtypes of the batched function's library.

    A Python number becomes an array in a batch, and JAX without x64 has no float64.
    """
    structure = flatten(reference)[1]
    values, other = flatten(found)
    if other != structure:
        return reference, found
    pairs = [_arrays(x, y, framework) for x, y in zip(leaves(reference), values, strict=True)]
    return unflatten(structure, [x for x, _ in pairs]), unflatten(structure, [y for _, y in pairs])


def _arrays(x: object, y: object, framework: Framework) -> tuple[Any, Any]:
    numbers = bool | int | float | complex
    if not isinstance(y, np.ndarray | np.generic | numbers) or not isinstance(x, np.ndarray | np.generic | numbers):
        return x, y
    left, right = np.asarray(x), np.asarray(y)
    if framework.name == "jax":
        left = left.astype(sys.modules["jax"].dtypes.canonicalize_dtype(left.dtype))
    if left.dtype.kind == right.dtype.kind and isinstance(x, numbers) and not isinstance(x, np.generic):
        left = left.astype(right.dtype)
    return left, right


def _common_parameters(per_example: object, batched: object) -> list[Any]:
    """The tensors with `requires_grad` to which both functions refer, also as parameters of torch modules."""
    torch = _torch()
    if torch is None:
        return []
    found: list[dict[int, Any]] = []
    for f in (per_example, batched):
        own: dict[int, Any] = {}
        for x in reachable(f):
            parts = x.parameters() if isinstance(x, torch.nn.Module) else [x] if isinstance(x, torch.Tensor) else []
            own |= {id(part): part for part in parts if part.requires_grad and part.is_leaf}
        found.append(own)
    return [part for key, part in found[0].items() if key in found[1]]


def modules_of(f: object) -> list[Any]:
    """The torch modules that a function is or refers to."""
    torch = _torch()
    return [] if torch is None else [x for x in reachable(f) if isinstance(x, torch.nn.Module)]


def _torch() -> Any:
    """The module torch, if it is imported, and whole."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "nn") else None


@contextlib.contextmanager
def unchanged(*functions: object) -> Iterator[None]:
    """Restore on exit what these functions change: buffers of torch modules, random states of torch and NumPy."""
    buffers = {id(b): b for f in functions for module in modules_of(f) for b in module.buffers()}
    kept = [(b, b.detach().clone()) for b in buffers.values()]
    random = np.random.get_state()
    torch: Any = sys.modules.get("torch") if kept or modules_of(functions[0]) or modules_of(functions[-1]) else None
    state = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        for buffer, before in kept:
            buffer.data.copy_(before)
        np.random.set_state(random)
        if state is not None:
            torch.set_rng_state(state)
