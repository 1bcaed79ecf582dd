"""`Signature`: the properties that two recorded calls must share to run in one launch, and the kind of their result."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from autobatch.blocks.program import Program
from autobatch.core.abstract_eval import Aval, Weak, unknown_lengths
from autobatch.core.op import Op
from autobatch.lazy.grouping.any_length import AnyLength
from autobatch.ops.rules.index_rule import shown


class BlockCall:
    """Extra information in the signature of a block call.

    Attributes:
        program: the block's program; outs: the `Aval` of each output.
        shared: for each input of the program, the value that all examples share, or None if each has its own.
        own: the positions of the inputs that are None in `shared`.
        tail: the entries that a call adds to `GraphSegment.sigs`: the signature's number, then -1 per further output.
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
        """Text for reports, given the kinds of the non-shared operands."""
        own = iter(avals)
        kinds = zip(self.program.inputs, self.shared, strict=True)
        shown_kinds = [repr(next(own)) if value is None else f"{aval!r}s" for aval, value in kinds]
        return f"{', '.join(shown_kinds)}: {', '.join([step.op.name for step in self.program.steps])}"


@dataclasses.dataclass(slots=True, eq=False)
class Signature:
    """The key under which recorded calls are grouped: op, params and operand kinds; and the kind of the result.

    Attributes:
        avals: for each operand its `Aval`, or `Weak` for a Python number; out: the `Aval` of the result.
        index: its number in the trace.
        where: the user's (file, line) that first recorded it.
        errors: NumPy's floating-point error state (`np.geterr`) of its calls, applied to its launches.
        base: the same signature under the error state of the whole run; None if this is it.
        block: extra information for block calls; None for single ops.
        shared: all operands are shared by the examples, so one call serves all of them.
        nbytes: bytes that a call takes of the memory budget.
        family: cached result of `ragged.family_of`; False if not computed yet.
        groups: cache of `lazy.grouping`, for a block that is split or grouped with others.
        any_length: what runs calls with unknown sizes, whose lengths are found at the launch; None for other calls.
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
    groups: dict[Any, Any] = dataclasses.field(init=False, default_factory=dict)
    any_length: AnyLength | None = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        avals = self.avals = tuple(self.avals)
        self.nbytes = self.out.nbytes
        self.shared = all(aval.shared for aval in avals)
        if any(unknown_lengths(aval.shape) for aval in avals):
            self.any_length = AnyLength(self)
        if self.op.kind == "index" and self.nbytes < 8192 and any(type(aval) is Weak for aval in avals):  # bytes
            self.shared = False  # which row is read depends on the example; a large result is kept shared, not copied

    def copied(self) -> "Signature":
        """A copy with empty caches."""
        out = object.__new__(Signature)  # `copy.copy` takes five times as long
        out.op, out.params, out.avals, out.out, out.block = self.op, self.params, self.avals, self.out, self.block
        out.index, out.where, out.errors, out.base = self.index, self.where, self.errors, self.base
        out.shared, out.nbytes, out.any_length = self.shared, self.nbytes, self.any_length
        out.family, out.groups, out._text = False, {}, ""
        return out

    @property
    def tail(self) -> tuple[int, ...]:
        """The entries that a call adds to `GraphSegment.sigs`."""
        return (self.index,) if self.block is None else self.block.tail

    @property
    def text(self) -> str:
        """Text for reports."""
        if not self._text:
            self._text = self._described() if self.block is None else self.block.text(self.avals)
        return self._text

    def _described(self) -> str:
        attributes = [
            shown(value) if name == "spec" and type(value) is tuple else f"{name}={value!r}"  # an index; einsum's text
            for name, value in self.params.items()
        ]
        return ", ".join([*map(repr, self.avals), *attributes])
