"""The op: one record that says how a primitive runs plain, batched and backward.

Dispatch looks only at the operands. A library class that stands for an array has `_ab_rank` (the operand with the
highest rank handles the call) and `_ab_apply(op, args, params)`. Plain arrays have neither: if all operands are plain,
the op's implementation runs.

Ranks: a `MaskedBatch` is always above a tape or a trace (`BATCH_RANK`). Tapes and traces nest in the order in which
they are opened, so each takes the next level when it is opened (`next_level`).
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

BATCH_RANK = 1 << 60  # above the level of any tape or trace, which are counted from 0

next_level = itertools.count(1).__next__  # a level above every interpreter opened so far


def rank_of(value: Any) -> int:
    """The rank of the interpreter that `value` belongs to; -1 for a plain value."""
    return value._ab_rank if is_boxed(value) else -1


def is_boxed(value: Any) -> bool:
    """True if `value` stands for an array of some interpreter (a batch, tape or trace)."""
    return hasattr(type(value), "_ab_rank")  # not of the value: an object of the user's may answer every name


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Op:
    """A primitive: arrays by position, static attributes by keyword.

    Attributes:
        name: its name in reports and errors.
        impl: `impl(*arrays, **params) -> array`, on plain NumPy arrays or scalars.
        rule: `rule(op, operands, params) -> Batched`, the batching rule. Operands are `Batched` or shared arrays.
            It is written in NumPy calls and ops on arrays with a leading batch axis, so that a tape can record what it
            does. None: no rule; batches run a loop over the examples.
        vjp: `vjp(position, ct, out, args, params) -> cotangent of args[position]`; None if the op is piecewise
            constant (its result carries no gradient). A cotangent is an array or a `core.cotangent.SparseCotangent`.
        joint: the vjp of an op with several outputs, whose `impl` returns a tuple of arrays:
            `joint(wanted, cts, outs, args, params) -> one cotangent for each position in wanted`, or a list of
            summands; the cotangent of an output that nothing depends on is None.
        ragged: positions of operands whose first length is not part of a lazy signature (bags).
        data_dependent: True if the result's shape depends on operand values, so that a lazy call needs them first.
        layout: `layout(params, non_c_order, rank) -> bool`: True if the result, of this rank, may be in other than C
            order, given whether an operand does (`core.abstract_eval`). None: it may if an operand does.
        kind: the family of ops that it belongs to, such as "elementwise" or "reduction".
        pad: of an elementwise op, a number inside the domain, which it computes with at the padding.
        fused: how a kernel that computes several ops in one pass writes it: the fields of `blocks.kernel_codegen.Rule`.
        identity: `identity(dtype)`, of a reduction and of an op that can be repeated: what changes no other operand.
        each: of an op that takes any number of operands in any order, the vjp of each: `each(ct, out, operand)`.
        ufunc: of a reduction, the ufunc that it repeats; of a function of `math`, the ufunc that does the same.
        number: the function of Python's `math` that computes it for one number, and its name in compiled code.
        operator: True if NumPy has code of its own for scalars, whose warnings say "scalar divide" for "divide".

    >>> twice = Op("twice", lambda x: x + x, vjp=lambda position, ct, out, args, params: ct + ct)
    >>> twice(21), twice
    (42, <op twice>)
    """

    name: str
    impl: Callable[..., Any]
    _: dataclasses.KW_ONLY
    rule: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    joint: Callable[..., Any] | None = None
    ragged: tuple[int, ...] = ()
    data_dependent: bool = False
    layout: Callable[[dict[str, Any], bool, int], bool] | None = None
    kind: str = "op"
    pad: Any = None
    fused: dict[str, Any] | None = None
    identity: Callable[[Any], Any] | None = None
    each: Callable[..., Any] | None = None
    ufunc: Any = None
    number: tuple[Callable[..., Any], str] | None = None
    operator: bool = False

    def __call__(self, *args: Any, **params: Any) -> Any:
        top: Any = None
        rank = -1
        for arg in args:
            arg_rank = getattr(arg, "_ab_rank", -1)
            if arg_rank > rank:
                top, rank = arg, arg_rank
        return self.impl(*args, **params) if top is None else top._ab_apply(self, args, params)

    def __repr__(self) -> str:
        return f"<op {self.name}>"
