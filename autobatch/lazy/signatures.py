"""`Signature`: what two recorded calls must share to run in one launch, and what is known of their result."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from autobatch.blocks.program import Program
from autobatch.core.abstract_eval import Aval, Weak
from autobatch.core.op import Op
from autobatch.lazy.grouping.any_length import AnyLength
from autobatch.ops.rules.index_rule import shown

_LARGE = 8192  # bytes


class BlockCall:
    """What a signature says beside its op where it is a block's.

    Attributes:
        program: what runs; outs: the `Aval` of each output.
        shared: for each input of the program the value that all examples share; None for one of each example's own.
        own: the positions of the latter.
        tail: what a call adds to `GraphSegment.sigs`: the signature's number, and -1 for each further output.
        views: (output, output that it is a view of, how), for `array.link_views`.
    """

    __slots__ = ("outs", "own", "program", "shared", "tail", "views")

    def __init__(self, program: Program, shared: Sequence[Any], index: int) -> None:
        self.program = program
        self.outs = program.results
        self.shared = tuple(shared)
        self.own = tuple([slot for slot, value in enumerate(self.shared) if value is None])
        self.views = tuple([(at, base, (None, *how)) for at, (base, *how) in program.views.items()])
        self.tail = (index, *[-1] * (len(self.outs) - 1))

    def text(self, avals: Sequence[Any]) -> str:
        """What reports show of a call whose own operands are of these kinds."""
        own = iter(avals)
        kinds = zip(self.program.inputs, self.shared, strict=True)
        shown_kinds = [repr(next(own)) if value is None else f"{kind!r}s" for kind, value in kinds]
        return f"{', '.join(shown_kinds)}: {', '.join([step.op.name for step in self.program.steps])}"


@dataclasses.dataclass(slots=True, eq=False)
class Signature:
    """What two calls must share to run together, and what is known of the result.

    Attributes:
        avals: for each operand its `Aval`, or `Weak` for a Python number; out: that of the result.
        index: its number in the trace.
        where: the user's line that first recorded it.
        errors: NumPy's handling of floating-point errors there (`np.errstate`), which its launches follow.
        base: the signature under the handling that is in force around the whole run; None if it is this one.
        block: what there is more to say of a block.
        shared: no operand belongs to one example, so one call serves all.
        nbytes: what a call takes of the memory budget.
        family: what `ragged.family_of` found; False as long as nobody asked.
        parts: what `lazy.grouping` keeps of a block that is taken apart, or is one of several.
        any_length: what there is more to say of calls whose lengths are found at the launch; `avals`, `out` and `block`
            are then those of one length.
    """

    op: Op
    params: dict[str, Any]
    avals: Sequence[Any]
    out: Aval
    index: int
    where: tuple[str, int]
    errors: Any
    base: "Signature | None" = None
    block: BlockCall | None = None
    shared: bool = dataclasses.field(init=False)
    nbytes: int = dataclasses.field(init=False)
    family: Any = dataclasses.field(init=False, default=False)
    _text: str = dataclasses.field(init=False, default="")
    parts: dict[Any, Any] = dataclasses.field(init=False, default_factory=dict)
    any_length: AnyLength | None = None

    def __post_init__(self) -> None:
        avals = self.avals = tuple(self.avals)
        self.nbytes = self.out.nbytes
        self.shared = all(aval.shared for aval in avals)
        if self.op.kind == "index" and self.nbytes < _LARGE and any(type(aval) is Weak for aval in avals):
            self.shared = False  # which row is read depends on the example; a large one is rather an operand of its own

    def copied(self) -> "Signature":
        """Another one like it, of which nothing has been found out."""
        out = object.__new__(Signature)  # `copy` takes five times as long
        out.op, out.params, out.avals, out.out, out.block = self.op, self.params, self.avals, self.out, self.block
        out.index, out.where, out.errors, out.base = self.index, self.where, self.errors, self.base
        out.shared, out.nbytes, out.any_length = self.shared, self.nbytes, self.any_length
        out.family, out.parts, out._text = False, {}, ""
        return out

    @property
    def tail(self) -> tuple[int, ...]:
        """What a call adds to `GraphSegment.sigs`."""
        return (self.index,) if self.block is None else self.block.tail

    @property
    def text(self) -> str:
        """What reports show."""
        if not self._text:
            self._text = self._described() if self.block is None else self.block.text(self.avals)
        return self._text

    def _described(self) -> str:
        attributes = [
            shown(value) if name == "spec" and type(value) is tuple else f"{name}={value!r}"  # an index; einsum's text
            for name, value in self.params.items()
        ]
        return ", ".join([*map(repr, self.avals), *attributes])
