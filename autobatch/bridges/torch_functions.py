"""`ab.torch_function`: turns a NumPy function of one example into a function of torch tensors, within autograd."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.api.batch import BatchFunction, batch
from autobatch.api.transforms import taped
from autobatch.autodiff.grad import vjp
from autobatch.batches.any_batch import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.bridges.frameworks import FRAMEWORKS, imported
from autobatch.core.batched import Batched, Lengths
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.pytree import flatten, map_tree, unflatten
from autobatch.errors import DTypeError, ShapeError, UnsupportedError


@hiding_frames
def torch_function(f: Callable[..., Any], *, in_dims: object = None) -> Callable[..., Any]:
    """A function of one example, in NumPy, as a function of torch tensors: batched, and `.backward()` works through it.

    A jagged tensor (`torch.nested`) is a batch: its examples run together, as in a call of `ab.batch(f)` on batches, in
    the fastest mode. Every other tensor is shared by all examples, unless `in_dims` says that its first axis counts
    examples. Without a batch `f` runs once, on the tensors' arrays.

    Args:
        f: a function of one example; decorated with `ab.batch` or not.
        in_dims: as for `torch.func.vmap`: 0 for each positional argument whose tensors have a leading axis of examples,
            None for the others; one value, or a tuple. Jagged tensors are always batches.

    Returns:
        A function of the same arguments, with tensors, or trees of them (dicts, lists, tuples, dataclasses,
        `torch.nn.ParameterDict`, `ParameterList`), in place of arrays. It returns the tree that `f` returns, with
        tensors; for a batch, with a leading axis of examples: a jagged tensor if the first dimension varies by example,
        a list of tensors if others do.

    Raises:
        UnsupportedError: a tensor that is not dense and on the CPU; a module in place of its parameters; a gradient
            that is itself differentiated, or of a complex result; forward mode (`torch.func.jvp`).
        DTypeError: a tensor of a dtype that NumPy does not have, such as bfloat16; a complex one that requires a
            gradient.
        ShapeError: batches of different sizes; examples of a `vmap` that give results of different shapes.

    `f` gets the tensors' own memory, so it must not write into it. Gradients are those of `ab.grad`. `torch.func.grad`,
    `vjp`, `jacrev` and `vmap` can transform the function, in any order: the examples of a `vmap` run together.

    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> def score(x, w):
    ...     return np.tanh(x @ w).sum()
    >>> x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    >>> w = torch.zeros(3, requires_grad=True)
    >>> torch_function(score)(x, w).sum().backward()
    >>> w.grad
    tensor([3., 3., 3.])
    """
    decorated = f if isinstance(f, BatchFunction) else batch(f)
    plain = taped(f)

    def call(*args: Any, **kwargs: Any) -> Any:
        return _Call(decorated, plain, in_dims, args, kwargs).result()

    return functools.wraps(f)(hiding_frames(call))


class _Call:
    """One call of the function: passes its tensors as arrays, and returns its result as tensors.

    Attributes:
        tensors: those among the arguments' leaves; of a jagged tensor, its values.
        is_batched: whether any argument is a batch.
        is_differentiated: whether gradients may be asked for.
        back: from cotangents of the result to gradients of the float tensors; set by a run with `is_differentiated`.
    """

    def __init__(self, decorated: Any, plain: Any, in_dims: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.torch = imported("torch")
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        if len(dims) != len(args) or any(dim not in (None, 0) for dim in dims):
            raise ShapeError(f"in_dims={in_dims!r} for {len(args)} arguments; expected None or 0 for each of them")
        self._tree_leaves: list[Any] = []
        self._structures: list[Any] = []
        for dim, arg in [*zip(dims, args, strict=True), (None, kwargs)]:
            values, structure = flatten(self._unpack_parameters(arg))
            self._tree_leaves += [(value, dim == 0) for value in values]
            self._structures.append(structure)
        self.tensors: list[Any] = []
        self._as_inputs: list[Callable[[np.ndarray], Any]] = []  # per tensor: array -> input of `f`
        self.is_batched = False
        self._boxes: list[tuple[bool, Any]] = [self._box(value, counts) for value, counts in self._tree_leaves]
        self._functions = plain, decorated
        self._floats = [i for i, x in enumerate(self.tensors) if x.dtype.is_floating_point]
        self.is_differentiated = False
        self.back: Any = None

    def _unpack_parameters(self, tree: object) -> Any:
        """A tree with torch's containers of parameters replaced by dicts and lists."""
        nn = self.torch.nn

        def unpacked(leaf: Any) -> Any:
            if isinstance(leaf, nn.ParameterDict):
                return {name: self._unpack_parameters(value) for name, value in leaf.items()}
            if isinstance(leaf, nn.ParameterList):
                return [self._unpack_parameters(value) for value in leaf]
            if isinstance(leaf, nn.Module):
                raise UnsupportedError(
                    f"an argument is a {type(leaf).__name__}; expected its parameters: dict(module.named_parameters())"
                )
            return leaf

        return map_tree(unpacked, tree)

    def _box(self, leaf: Any, counts: bool) -> tuple[bool, Any]:
        """For a leaf of the arguments: (True, index of its input) if it is a tensor, else (False, the leaf)."""
        torch = self.torch
        if not isinstance(leaf, torch.Tensor):
            return False, leaf
        if leaf.dtype == torch.bfloat16:
            raise DTypeError(f"a tensor has dtype {leaf.dtype}, which NumPy does not have; write x.float()")
        offsets = None
        if leaf.is_nested:
            if leaf.layout != torch.jagged:
                raise UnsupportedError(
                    "a nested tensor has the layout torch.strided; make it with layout=torch.jagged; if more than one "
                    "dimension varies, give ab.map a list of tensors"
                )
            if leaf.lengths() is not None:
                raise UnsupportedError("a jagged tensor has holes between its examples; write x.contiguous()")
            offsets = leaf.offsets().numpy()
            leaf = leaf.values()
        is_batch = offsets is not None or counts
        self.is_batched |= is_batch
        if is_batch and not leaf.ndim:
            raise ShapeError("a tensor without dimensions, where in_dims says that its first axis counts examples")

        self.tensors.append(leaf)
        packed = None if offsets is None else lambda array: PackedBatch(array, offsets)
        self._as_inputs.append(packed or (_counted if is_batch else np.asarray))
        return True, len(self.tensors) - 1

    def _run(self, inputs: Sequence[Any]) -> Any:
        values = iter([inputs[x] if own else x for own, x in self._boxes])
        *args, kwargs = [
            unflatten(structure, [next(values) for _ in range(structure.num_leaves)]) for structure in self._structures
        ]
        return self._functions[self.is_batched](*args, **kwargs)

    def part(self, is_mapped: Sequence[bool]) -> "_Call":
        """The call below a `vmap`: of all examples, which mapped tensors have as a leading axis, or of one example."""
        new = copy.copy(self)
        new.back = None
        new.is_batched |= any(is_mapped)
        new._as_inputs = [_counted if own else each for own, each in zip(is_mapped, self._as_inputs, strict=True)]
        return new

    def forward(self, tensors: Sequence[Any]) -> list[Any]:
        """Run the function on these tensors; returns the tensors of the result."""
        arrays = [FRAMEWORKS["torch"].numpy(x) for x in tensors]
        inputs = [boxed(array) for boxed, array in zip(self._as_inputs, arrays, strict=True)]
        if self.is_differentiated:

            def run(floats: Sequence[Any]) -> Any:
                given = list(inputs)
                for i, x in zip(self._floats, floats, strict=True):
                    given[i] = x
                return self._run(given)

            result, self.back = vjp(run, [inputs[i] for i in self._floats])
        else:
            result = self._run(inputs)
        self._result, self._result_tree = flatten(result)
        outputs = [array for leaf in self._result if (array := _data_of(leaf)) is not None]
        owned: list[np.ndarray] = []
        for x in outputs:  # no memory of the tape's: torch does not see what is written into it
            shared = self.is_differentiated or any(x is each for each in outputs[: len(owned)])
            owned.append(np.array(x, order="C") if shared else _ownable(x))
        return [self.torch.from_numpy(x) for x in owned]

    def backward(self, cotangents: Sequence[Any]) -> list[Any]:
        """The gradients of the tensors; None for those that are not floats."""
        if any(ct is not None and ct.is_complex() for ct in cotangents):
            raise UnsupportedError("the gradient of a complex result; return its real and imaginary parts, as floats")
        cts = iter(cotangents)
        found = [next(cts) if _data_of(leaf) is not None else None for leaf in self._result]
        grads = self.back([None if ct is None else ct.detach().numpy() for ct in found])
        own = dict(zip(self._floats, (self.torch.from_numpy(np.asarray(g)) for g in grads), strict=True))
        return [own.get(i) for i in range(len(self.tensors))]

    def apply(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Run the function within torch's autograd; returns the tensors of the result."""
        self.is_differentiated = self.torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if self.is_differentiated and any(x.requires_grad and x.is_complex() for x in tensors):
            raise DTypeError(
                "a complex tensor requires a gradient; give its real and imaginary parts, as floats, or x.detach()"
            )
        return tuple(_function_of(self.torch).apply(self, *tensors)) if tensors else tuple(self.forward(()))

    def apply_mapped(self, size: int, is_mapped: Sequence[bool], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Like `apply`, for a `vmap` over `size` examples; a call with a batch runs once for each of them."""
        if self.is_batched:
            parts = [self.part([False] * len(tensors)) for _ in range(size)]
            rows = [part.apply(_row(i, is_mapped, tensors)) for i, part in enumerate(parts)]
            out = tuple(self.torch.stack(each) for each in zip(*rows, strict=True))
        else:
            parts = [self.part(is_mapped)]
            out = parts[0].apply(tensors)
        self._result, self._result_tree = [_vmap_placeholder(leaf) for leaf in parts[0]._result], parts[0]._result_tree
        return out

    def result(self) -> Any:
        """Run the call; returns its result, with tensors for arrays."""
        tensors = iter(self.apply(self.tensors))
        made = [leaf if _data_of(leaf) is None else self._unpadded(leaf, next(tensors)) for leaf in self._result]
        return unflatten(self._result_tree, [x.examples() if isinstance(x, ObjectBatch) else x for x in made])

    def _unpadded(self, leaf: Any, tensor: Any) -> Any:
        """The tensor of a batch's data without padding: jagged if the first dimension varies, a list if others do."""
        torch = self.torch
        if isinstance(leaf, PackedBatch):
            return torch.nested.nested_tensor_from_jagged(tensor, torch.from_numpy(np.array(leaf.offsets)))
        if not isinstance(leaf, MaskedBatch) or not leaf.is_ragged:
            return tensor
        first, *others = leaf.sizes
        if isinstance(first, Lengths) and not any(isinstance(size, Lengths) for size in others):
            offsets = np.concatenate([[0], np.cumsum(first.values)])
            values = tensor[torch.from_numpy(np.array(first.mask(tensor.shape[1])))]
            return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets))
        return [tensor[(i, *map(slice, np.shape(x)))] for i, x in enumerate(leaf.examples())]


def _counted(array: np.ndarray) -> Any:
    return MaskedBatch.of(Batched(array, array.shape[1:]))


def _row(i: int, is_mapped: Sequence[bool], tensors: Sequence[Any]) -> list[Any]:
    return [x[i] if own else x for own, x in zip(is_mapped, tensors, strict=True)]


def _mapped_axis_first(tensors: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Tensors with the mapped axis of a `vmap` moved to the front."""
    return [x if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=True)]


def _vmap_placeholder(leaf: Any) -> Any:
    """A placeholder for a leaf whose examples torch has in one tensor under `vmap`; raises if their shapes differ."""
    if _data_of(leaf) is None:
        return leaf
    if isinstance(leaf, PackedBatch) or (isinstance(leaf, MaskedBatch) and leaf.is_ragged):
        raise ShapeError(
            "the examples give results of different shapes, which torch.func.vmap has no tensor for; pad them to one, "
            "or give a jagged tensor, without vmap"
        )
    return np.empty(0)


def _data_of(leaf: Any) -> np.ndarray | None:
    """The array of a leaf of a result; None if the leaf is not numeric."""
    if isinstance(leaf, MaskedBatch):
        return np.asarray(leaf.data)
    if isinstance(leaf, PackedBatch):
        if isinstance(leaf.values, Batch):
            raise UnsupportedError("nested lists have no jagged tensor; return their values and lengths separately")
        return np.asarray(leaf.values)
    return np.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biufc" else None


def _ownable(x: np.ndarray) -> np.ndarray:
    """The array, or a copy, for a tensor to take over: writeable, contiguous, and not a view."""
    return np.array(x) if x.base is not None or not x.flags.writeable or not x.flags.c_contiguous else x


@functools.lru_cache(maxsize=1)
def _function_of(torch: Any) -> Any:
    """The `torch.autograd.Function` of calls; made here, since its base class exists only once torch is imported."""

    class Ours(torch.autograd.Function):
        @staticmethod
        def forward(call: _Call, *tensors: Any) -> Any:
            return tuple(call.forward(tensors))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.call = inputs[0]
            ctx.save_for_backward(*inputs[1:])
            ctx.mark_non_differentiable(*(x for x in output if not (x.is_floating_point() or x.is_complex())))
            ctx.set_materialize_grads(False)

        @staticmethod
        def vmap(info: Any, in_dims: Any, call: _Call, *tensors: Any) -> Any:
            is_mapped = [dim is not None for dim in in_dims[1:]]
            out = call.apply_mapped(info.batch_size, is_mapped, _mapped_axis_first(tensors, in_dims[1:]))
            return out, (0,) * len(out)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            saved = ctx.saved_tensors  # torch raises here if one was modified since
            if ctx.call.back is not None and not torch.is_grad_enabled():
                return None, *ctx.call.backward(cotangents)
            present = [ct is not None for ct in cotangents]  # create_graph=True, or torch.func
            given = [ct for ct in cotangents if ct is not None]
            return None, *_first_gradients_of(torch).apply(ctx.call, present, *given, *saved)

        @staticmethod
        def jvp(ctx: object, *tangents: Any) -> Any:
            raise UnsupportedError(
                "ab.torch_function has no forward mode (torch.func.jvp, jacfwd); write torch.func.jacrev, or ab.jvp of "
                "the function in NumPy"
            )

    return Ours


@functools.lru_cache(maxsize=1)
def _first_gradients_of(torch: Any) -> Any:
    """The `torch.autograd.Function` of the gradients of calls, which itself cannot be differentiated."""

    class FirstGradients(torch.autograd.Function):
        @staticmethod
        def forward(call: _Call, present: Sequence[bool], *tensors: Any) -> Any:
            given = iter(tensors[: sum(present)])
            if call.back is None:  # below a `vmap`, where another call object ran
                call.is_differentiated = True
                call.forward(tensors[sum(present) :])
            return tuple(call.backward([next(given) if each else None for each in present]))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """No tensor is saved, since there is no second derivative."""

        @staticmethod
        def vmap(info: Any, in_dims: Any, call: _Call, present: Sequence[bool], *tensors: Any) -> Any:
            size, count, is_mapped = info.batch_size, sum(present), [dim is not None for dim in in_dims[2:]]
            given = _mapped_axis_first(tensors, in_dims[2:])
            if call.is_batched or not any(is_mapped[count:]):
                rows = []
                for i in range(size):
                    one = call.part([False] * len(call.tensors)) if any(is_mapped[count:]) else call
                    rows.append(FirstGradients.apply(one, present, *_row(i, is_mapped, given)))
                found = [None if each[0] is None else torch.stack(each) for each in zip(*rows, strict=True)]
            else:  # each example has its own gradient of tensors that are the same for all
                every = [x if own else x.expand(size, *x.shape) for own, x in zip(is_mapped, given, strict=True)]
                found = FirstGradients.apply(call.part([True] * len(call.tensors)), present, *every)
            return tuple(found), tuple(None if g is None else 0 for g in found)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            raise UnsupportedError(
                "a gradient of ab.torch_function is differentiated again, which torch cannot; take second derivatives "
                "in NumPy, with ab.grad(ab.grad(f)) or ab.jvp"
            )

    return FirstGradients
