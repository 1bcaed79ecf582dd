"""`ArrayBatch`: the common base of padded and packed batches of arrays, which dispatches ops on them."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from autobatch.batches.any_batch import FORMS, Batch, common_size, mixed_reason, narrowed, raise_own, refusal
from autobatch.batches.packing import SCALAR_DTYPES
from autobatch.batches.stacking import loop_over_examples, map_lanes, stack_numbers
from autobatch.core.abstract_eval import check_operands, is_non_c_order, may_leave_c_order, ndim_of
from autobatch.core.batched import Packed
from autobatch.core.diagnostics import at_users_line, hiding_frames
from autobatch.core.op import Op
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.aliasing import NON_C_ORDER, set_order
from autobatch.ops.rules.dispatch import no_rule_message
from autobatch.ops.rules.op_kinds import words_of

if TYPE_CHECKING:  # to a type checker a batch is an array whose operators give batches

    class _Mixin(np.ndarray[Any, np.dtype[Any]]):
        def _unary(self) -> Self: ...
        def _binary(self, other: object) -> Self: ...

        __neg__ = __pos__ = __abs__ = __invert__ = _unary
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _binary  # type: ignore[assignment]
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _binary  # type: ignore[assignment]
        __lt__ = __le__ = __gt__ = __ge__ = _binary

else:
    from autobatch.ops.array_protocols import ArrayMixin as _Mixin


def as_masked(value: object) -> Any:
    """A packed batch converted to a padded one; any other value unchanged."""
    return value.to_masked() if isinstance(value, Packed) else value  # type: ignore[attr-defined]


def collated(examples: object) -> Any:
    """A batch of arrays or numbers from data other than a list: another library's column, an array, an iterator."""
    out = FORMS["collate"](examples)
    are_numbers = isinstance(out, FORMS["objects"]) and stack_numbers(out.values) is not None
    if not isinstance(out, ArrayBatch) and not are_numbers:
        raise UnsupportedError(
            f"the examples in this {type(examples).__name__} are not arrays; ab.collate gives a tree of batches"
        )
    return out


class ArrayBatch(Batch, _Mixin):
    """A batch of arrays or Python numbers with the interface of an array; functions without a rule loop over examples.

    Batches are the outermost level: a batch's data may be on a tape or trace, but no tape or trace holds a batch. So
    the batch handles an op that has both as operands.
    """

    __slots__ = ()
    __hash__ = Batch.__hash__  # type: ignore[assignment]  # an array has none

    @property
    def _ab_non_c_order(self) -> bool:
        return getattr(getattr(self, "_view", None), "non_c_order", False)

    def _ab_set_order(self, non_c_order: bool) -> None:
        self._view = NON_C_ORDER if non_c_order else None  # each subclass has this slot

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Run an op on batches of any class, made in this region or an enclosing one, and on shared operands."""
        check_operands(args)
        args = [narrowed(arg) for arg in args]
        common_size(arg for arg in args if isinstance(arg, Batch))
        if FORMS["objects"] in map(type, args):
            return loop_over_examples(op, args, params, mixed_reason(args))
        first: Any = next((arg for arg in args if isinstance(arg, Packed)), None)
        try:
            out: Any = None if first is None else at_users_line(first._on_values, op, args, params)
        except ValueError as error:
            raise_own(error, op, args, params)
        if out is None:
            if op.rule is None:
                return loop_over_examples(op, args, params, f"{op.name} has no batching rule")
            padded = [arg if i in op.ragged else as_masked(arg) for i, arg in enumerate(args)]
            if first is not None and not any(isinstance(arg, Packed) for arg in padded):
                out = op(*padded, **params)
            else:
                out = words_of(op, padded)(op.rule, op, padded, params)
                packed = isinstance(out, Packed)
                out = FORMS["packed"].of(out.values, out.offsets) if packed else FORMS["masked"].of(out)
        return (
            set_order(out, True) if may_leave_c_order(op, params, any(map(is_non_c_order, args)), ndim_of(out)) else out
        )

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        return loop_over_examples(function, args, kwargs, no_rule_message(function, reason))

    @hiding_frames
    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if FORMS["objects"] in types:
            return loop_over_examples(func, args, kwargs, mixed_reason(args))
        return super().__array_function__(func, types, args, kwargs)

    @hiding_frames
    def __array__(self, dtype: Any = None, copy: object = None) -> np.ndarray:  # type: ignore[override]
        raise refusal(
            "a batch is not one array; .examples() lists arrays, .data (PackedBatch: .values) is one; code for one "
            "takes it with @ab.batch, NumPy functions take the batch as it is, scikit-learn takes ab.Examples(batch)",
            "a value that differs by example is used as a plain array (of a list of such values write np.stack([...]))",
        )

    def __contains__(self, value: object) -> bool:
        self._refuse_outside("`in`")
        return super().__contains__(value)

    @property
    def size(self) -> Any:
        """The number of elements of an example: an int if the shape is static, else an int per example."""
        return math.prod(self.shape)

    def item(self, *index: Any) -> Any:
        """`x.item(*index)` of each example, as a Python scalar per lane."""
        return map_lanes(lambda x, *at: x if type(x) in SCALAR_DTYPES else x.item(*at), self, *index)

    def tolist(self) -> Any:
        """Each example as nested lists of Python scalars."""
        return map_lanes(lambda x: x.tolist(), self)
