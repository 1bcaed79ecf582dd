"""`ab.jax_function`: turns a NumPy function of one example into a function of JAX arrays, under grad, jit and vmap."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.api.batch import BatchFunction, batch
from autobatch.api.transforms import taped
from autobatch.autodiff.grad import vjp
from autobatch.batches.any_batch import Batch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.bridges.frameworks import imported
from autobatch.core.batched import Batched
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.pytree import TreeDef, flatten, unflatten
from autobatch.errors import DTypeError, ShapeError, UnsupportedError


@hiding_frames
def jax_function(f: Callable[..., Any], *, in_axes: object = None, result: object = None) -> Callable[..., Any]:
    """A function of one example, in NumPy, as a function of JAX arrays, which `jax.grad`, `jit` and `vmap` take.

    It runs on the host by `jax.pure_callback`; a custom vjp gives it the gradients of `ab.grad`. Under `jax.vmap`, or
    where `in_axes` says so, the examples run together, as in a call of `ab.batch(f)` on batches.

    Args:
        f: a function of one example that returns arrays or numbers, or a tree of them; decorated with `ab.batch` or
            not.
        in_axes: as for `jax.vmap`: 0 for each positional argument whose arrays have a leading axis of examples, None
            for the others; one value, or a tuple. The result has that axis too, so all examples must give one shape.
        result: a tree of arrays or `jax.ShapeDtypeStruct` with the form of the result for one example. By default, if
            JAX does not know the arguments' values yet (under `jit` and `vmap`), `f` is run once on ones of their
            shapes; give `result` for a function that cannot take ones.

    Returns:
        A function of the same arguments, with JAX arrays, or pytrees of them, in place of arrays; batches of this
        library may be among them, as constants.

    Raises:
        UnsupportedError: a gradient that is itself differentiated, or of a complex result. TypeError: forward mode
            (`jax.jvp`). DTypeError: arrays of a dtype that NumPy does not have, such as bfloat16; a gradient with
            respect to a complex one. ShapeError: a result of another structure or shape than was announced; examples
            of a batch that give results of different shapes.

    JAX has no ragged arrays. Pass examples of different lengths as a padded array and their lengths, and slice in the
    function: `jax_function(lambda x, n, w: f(x[:n], w), in_axes=(0, 0, None))(padded, lengths, w)`.

    Without x64 JAX has no float64: results and gradients have the dtype that JAX uses instead.

    >>> import pytest
    >>> jax = pytest.importorskip("jax")
    >>> def score(x, w):
    ...     return np.tanh(x @ w).sum()
    >>> xs = np.ones((4, 2, 3), np.float32)
    >>> w = jax.numpy.zeros(3)
    >>> jax.grad(lambda w: jax_function(score, in_axes=(0, None))(xs, w).sum())(w)
    Array([8., 8., 8.], dtype=float32)
    """
    decorated = f if isinstance(f, BatchFunction) else batch(f)
    functions = decorated, taped(f)
    forms: dict[Any, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        return _call(functions, args, kwargs, in_axes, result, forms)

    return functools.wraps(f)(hiding_frames(call))


_Shapes = list[tuple[tuple[int, ...], np.dtype]]
_ARRAY = object()  # in the form of a result, the place of an array: None is a value that a function may return


def _call(
    functions: tuple[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: object, result: Any, forms: Any
) -> Any:
    jax = imported("jax")
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
    if len(axes) != len(args) or any(axis not in (None, 0) for axis in axes):
        raise ShapeError(f"in_axes={in_axes!r} for {len(args)} arguments; expected None or 0 for each of them")
    host = _HostCall(functions, [*zip(axes, args, strict=True), (None, kwargs)], jax)
    arrays = host.arrays
    if not _any_traced(jax, arrays):
        outputs = host.forward([np.asarray(x) for x in arrays])
        return host.tree([jax.numpy.asarray(x) for x in outputs])
    return host.tree(_differentiable(jax, host, result, forms)(arrays))


def _any_traced(jax: Any, arrays: Sequence[Any]) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in arrays)


class _HostCall:
    """The part of a call that runs on the host: the function and its arguments, but for the values of their arrays.

    Attributes:
        arrays: the JAX arrays among the leaves of the arguments.
        counted: for each array, True if its first axis counts examples.
        floats: the indices of the arrays that are differentiated.
        form: the structure of the result, and its leaves, with `_ARRAY` for each leaf that is an array.
        shapes: the shapes and dtypes of the result's arrays, as JAX is told.
    """

    def __init__(self, functions: tuple[Any, Any], arguments: Sequence[tuple[Any, Any]], jax: Any) -> None:
        self._decorated, self._plain = functions
        self._jax = jax
        values: list[Any] = []
        counted: list[bool] = []
        self._structures: list[TreeDef] = []
        for axis, arg in arguments:
            found, structure = flatten(arg)
            values += found
            counted += [axis == 0] * len(found)
            self._structures.append(structure)
        self._where = [i for i, x in enumerate(values) if isinstance(x, jax.Array | np.ndarray | np.generic)]
        for i in self._where:
            if values[i].dtype.kind not in "biufc":
                raise DTypeError(
                    f"an array has dtype {values[i].dtype}, which NumPy does not have; write x.astype('float32')"
                )
            if counted[i] and not values[i].ndim:
                raise ShapeError("an array without dimensions, where in_axes says that its first axis counts examples")
        self._static = [None if i in set(self._where) else x for i, x in enumerate(values)]
        self.counted = [counted[i] for i in self._where]
        self.arrays = [jax.numpy.asarray(values[i]) for i in self._where]
        self.floats = [i for i, x in enumerate(self.arrays) if x.dtype.kind == "f"]
        self._ranks = [x.ndim for x in self.arrays]
        self.form: tuple[TreeDef, list[Any]] | None = None
        self.shapes: _Shapes = []

    @property
    def key(self) -> Any:
        """Cache key: shapes, dtypes and static arguments, which determine the form of the result."""
        shapes = tuple((x.shape, x.dtype) for x in self.arrays)
        return repr((shapes, self.counted, self._structures, self._static))

    # Results.

    def read(self, result: object) -> list[Any]:
        """The arrays of a result, which must have the structure of the first result."""
        values, tree = flatten(result)
        is_array = [isinstance(x, Batch | np.ndarray | np.generic | bool | int | float | complex) for x in values]
        if self.form is None:
            self.form = tree, [_ARRAY if a else x for a, x in zip(is_array, values, strict=True)]
        elif tree != self.form[0]:
            raise ShapeError("the function returned a different structure than before, or than result= says")
        return [_data_of(x) for a, x in zip(is_array, values, strict=True) if a]

    def shape(self, outputs: Sequence[Any]) -> None:
        """Record the shapes of a result's arrays, and the dtypes that JAX has for them."""
        self.shapes = [(np.shape(x), np.dtype(self._jax.dtypes.canonicalize_dtype(x.dtype))) for x in outputs]

    def tree(self, outputs: Sequence[Any]) -> Any:
        """The result, with these arrays as its leaves."""
        assert self.form is not None
        structure, others = self.form
        new = iter(outputs)
        return unflatten(structure, [next(new) if x is _ARRAY else x for x in others])

    # On the host.

    def run(self, boxed: Sequence[Any]) -> Any:
        """Call the function with these arrays and batches in place of the arguments' arrays."""
        values = list(self._static)
        for i, x in zip(self._where, boxed, strict=True):
            values[i] = x
        rest = iter(values)
        *args, kwargs = [unflatten(each, [next(rest) for _ in range(each.num_leaves)]) for each in self._structures]
        is_batched = any(isinstance(x, Batch) for x in values)
        return (self._decorated if is_batched else self._plain)(*args, **kwargs)

    def forward(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays of the result, for arrays without the further axes of a `vmap`."""
        return [np.asarray(x) for x in self.read(self.run(self._boxed(arrays)))]

    def differentiated(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Callable[..., list[Any]]]:
        """`forward`, and a function from cotangents of the float results to gradients of `floats`."""
        return self._vjp(self._boxed(arrays))

    def _boxed(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        pairs = zip(arrays, self.counted, strict=True)
        return [MaskedBatch.of(Batched(x, x.shape[1:])) if counts else x for x, counts in pairs]

    def _vjp(self, boxed: list[Any]) -> tuple[list[np.ndarray], Callable[..., list[Any]]]:
        def run(floats: list[Any]) -> Any:
            given = list(boxed)
            for i, x in zip(self.floats, floats, strict=True):
                given[i] = x
            return self.run(given)

        result, back = vjp(run, [boxed[i] for i in self.floats])
        outputs = [np.asarray(x) for x in self.read(result)]
        assert self.form is not None
        is_output = [x is _ARRAY for x in self.form[1]]

        def gradients(cotangents: Sequence[Any]) -> list[Any]:
            cts = iter(cotangents)
            each = iter([next(cts) if x.dtype.kind == "f" else None for x in outputs])
            return back([next(each) if own else None for own in is_output])

        return outputs, gradients

    def mapped(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The results under `jax.vmap`: arrays have more leading axes, of length 1 if they are the same for all."""
        arrays = [np.asarray(x) for x in arrays]
        lead = self._lead(arrays)
        if not lead:
            return self._checked(self.forward(arrays), ())
        if any(self.counted):
            each = [self.forward(own) for own in self._split_lead(arrays, lead)]
            return self._checked([np.stack(x) for x in zip(*each, strict=True)], lead)
        boxed = [self._batched_over(x, rank, lead, False) for x, rank in zip(arrays, self._ranks, strict=True)]
        return self._checked([np.asarray(x) for x in self.read(self.run(boxed))], lead)

    def mapped_gradients(self, arrays: Sequence[Any], cotangents: Sequence[Any]) -> list[np.ndarray]:
        """The gradients for `mapped`, each with all leading axes, even for arrays that are the same for all."""
        arrays, cotangents = [np.asarray(x) for x in arrays], [np.asarray(x) for x in cotangents]
        wanted = [shape for shape, dtype in self.shapes if dtype.kind == "f"]
        lead = np.broadcast_shapes(
            self._lead(arrays), *(x.shape[: x.ndim - len(shape)] for x, shape in zip(cotangents, wanted, strict=True))
        )
        cts = [np.broadcast_to(x, (*lead, *shape)) for x, shape in zip(cotangents, wanted, strict=True)]
        if not lead:
            return [np.asarray(g) for g in self.differentiated(arrays)[1](cts)]
        flat = [x.reshape((-1, *shape)) for x, shape in zip(cts, wanted, strict=True)]
        if any(self.counted) or any(isinstance(x, Batch) for x in self._static):
            rows = self._split_lead(arrays, lead)
            each = [self.differentiated(own)[1]([x[i] for x in flat]) for i, own in enumerate(rows)]
            found = [np.stack(x) for x in zip(*each, strict=True)]
        else:
            boxed = [
                self._batched_over(x, rank, lead, i in self.floats)
                for i, (x, rank) in enumerate(zip(arrays, self._ranks, strict=True))
            ]
            found = self._vjp(boxed)[1](flat)
        shapes = [arrays[i].shape[arrays[i].ndim - self._ranks[i] :] for i in self.floats]
        return [np.asarray(g).reshape((*lead, *shape)) for g, shape in zip(found, shapes, strict=True)]

    def _lead(self, arrays: Sequence[np.ndarray]) -> tuple[int, ...]:
        return np.broadcast_shapes(*(x.shape[: x.ndim - r] for x, r in zip(arrays, self._ranks, strict=True)))

    def _batched_over(self, x: np.ndarray, rank: int, lead: tuple[int, ...], always: bool) -> Any:
        """An array as a batch over the leading axes; without those axes, if it is the same for all."""
        own = x.shape[x.ndim - rank :]
        if not always and all(size == 1 for size in x.shape[: x.ndim - rank]) and lead != (1,) * len(lead):
            return x.reshape(own)
        data = np.ascontiguousarray(np.broadcast_to(x, (*lead, *own))).reshape((-1, *own))
        return MaskedBatch.of(Batched(data, own))

    def _split_lead(self, arrays: Sequence[np.ndarray], lead: tuple[int, ...]) -> list[list[np.ndarray]]:
        """For each index into the leading axes, the arrays there."""
        pairs = zip(arrays, self._ranks, strict=True)
        whole = [np.broadcast_to(x, (*lead, *x.shape[x.ndim - rank :])) for x, rank in pairs]
        return [[x[index] for x in whole] for index in np.ndindex(*lead)]

    def _checked(self, outputs: Sequence[np.ndarray], lead: tuple[int, ...]) -> list[np.ndarray]:
        """The results, in the dtypes that JAX was told; raises ShapeError if their shapes are not those."""
        out = []
        for x, (shape, dtype) in zip(outputs, self.shapes, strict=True):
            given = x.shape[1:] if lead else x.shape
            if given != shape:
                raise ShapeError(
                    f"the function returned an array of shape {given} where JAX was told {shape}: the shape of a "
                    "result may not depend on values here; pass result=, or pad all results to one shape"
                )
            out.append(x.astype(dtype, copy=False).reshape((*lead, *shape)))
        return out


def _data_of(leaf: object) -> Any:
    """The array of a leaf of a result; if the leaf is a batch, of all examples."""
    if isinstance(leaf, MaskedBatch) and not leaf.is_ragged:
        return np.asarray(leaf.data)
    if isinstance(leaf, Batch):
        raise ShapeError("the examples give results of different shapes; pad them to one, as JAX arrays need")
    return np.asarray(leaf)


def _differentiable(jax: Any, host: _HostCall, result: Any, forms: dict[Any, Any]) -> Any:
    """The function of a list of arrays, with a custom vjp, that JAX transforms."""

    def told() -> list[Any]:
        _find_form(jax, host, result, forms)
        return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in host.shapes]

    @jax.custom_vjp
    def call(arrays: list[Any]) -> list[Any]:
        found: list[Any] = jax.pure_callback(
            lambda *values: host.mapped(values), told(), *arrays, vmap_method="expand_dims"
        )
        return found

    @jax.custom_jvp
    def gradients(arrays: list[Any], cotangents: list[Any]) -> list[Any]:
        like = [jax.ShapeDtypeStruct(arrays[i].shape, arrays[i].dtype) for i in host.floats]
        found: list[Any] = jax.pure_callback(host.mapped_gradients, like, arrays, cotangents, vmap_method="expand_dims")
        return found

    @gradients.defjvp
    def refuse(primals: object, tangents: object) -> Any:
        raise UnsupportedError(
            "a gradient of ab.jax_function is differentiated again, which a callback cannot; take second derivatives "
            "in NumPy, with ab.grad(ab.grad(f)) or ab.jvp"
        )

    def forward(primals: list[Any]) -> Any:
        arrays = [primal.value for primal in primals]
        if any(primal.perturbed and x.dtype.kind == "c" for primal, x in zip(primals, arrays, strict=True)):
            raise DTypeError(
                "a gradient with respect to a complex array; give its real and imaginary parts, as floats, or "
                "jax.lax.stop_gradient(x)"
            )
        if _any_traced(jax, arrays):
            return call(arrays), (arrays, _Opaque(None))
        outputs, back = host.differentiated([np.asarray(x) for x in arrays])
        host.shape(outputs)
        return [jax.numpy.asarray(x) for x in outputs], (arrays, _Opaque(back))

    def backward(kept: Any, cotangents: list[Any]) -> Any:
        arrays, back = kept
        is_zero = [isinstance(ct, jax.custom_derivatives.SymbolicZero) for ct in cotangents]
        if any(not zero and ct.dtype.kind == "c" for zero, ct in zip(is_zero, cotangents, strict=True)):
            raise UnsupportedError("the gradient of a complex result; return its real and imaginary parts, as floats")
        cotangents = [
            jax.numpy.zeros(ct.shape, ct.dtype) if zero and ct.dtype.kind == "f" else ct
            for zero, ct in zip(is_zero, cotangents, strict=True)
        ]
        cts = [ct for ct, (_, dtype) in zip(cotangents, host.shapes, strict=True) if dtype.kind == "f"]
        if back.value is None or _any_traced(jax, [*arrays, *cts]):
            found = gradients(arrays, cts)
        else:
            found = [jax.numpy.asarray(g) for g in back.value([np.asarray(ct) for ct in cts])]
        own = dict(zip(host.floats, found, strict=True))
        return ([own[i] if i in own else np.zeros(x.shape, jax.dtypes.float0) for i, x in enumerate(arrays)],)

    _register(jax)
    call.defvjp(forward, backward, symbolic_zeros=True)  # which say what is differentiated
    return call


class _Opaque:
    """State for the backward pass that is not a JAX array: a pytree node without leaves."""

    def __init__(self, value: Any) -> None:
        self.value = value


@functools.lru_cache(maxsize=1)
def _register(jax: Any) -> None:
    jax.tree_util.register_pytree_node(_Opaque, lambda kept: ((), kept.value), lambda value, _: _Opaque(value))


def _find_form(jax: object, host: _HostCall, result: object, forms: dict[Any, Any]) -> None:
    """Set the form of the result: from `result=`, from an earlier call, or by running the function on ones."""
    if host.shapes:
        return
    if result is not None:
        outputs, tree = flatten(result)
        host.form = tree, [_ARRAY] * len(outputs)
        host.shape([np.empty(x.shape, x.dtype) for x in outputs])
        sizes = {x.shape[0] for x, counts in zip(host.arrays, host.counted, strict=True) if counts}
        host.shapes = [((*sizes, *shape), dtype) for shape, dtype in host.shapes]
        return
    key = host.key
    if key not in forms:
        try:
            host.shape(host.forward([np.ones(x.shape, x.dtype) for x in host.arrays]))
        except Exception as error:
            error.add_note(
                "raised for an input of ones, by which ab.jax_function finds the form of a result; pass result= instead"
            )
            raise
        forms[key] = host.form, host.shapes
    host.form, host.shapes = forms[key]
