"""The tape: the ops that ran on differentiated values, in order; and `backward`, which walks it in reverse.

A value on a tape is a `TapeArray`; so is a constant that may be written into later (index -1). Its `value` may be an
array of an interpreter opened earlier (a lazy array, an outer tape), so gradients nest with all interpreters.
"""

import contextvars
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import check_operands, is_non_c_order
from autobatch.core.cotangent import Contributions, SparseCotangent, are_finite
from autobatch.core.current_region import clock
from autobatch.core.memory import SavedArrays, library_code
from autobatch.core.op import Op, next_level
from autobatch.core.pytree import leaves, leaves_of_kind, map_tree
from autobatch.core.recorded_array import RecordedArray
from autobatch.errors import ForcedValueError, Unsupported, UnsupportedError
from autobatch.facts.other_libraries import ARRAY, missing
from autobatch.ops.array_protocols import PYTHON_OPERATORS, ArrayMixin
from autobatch.ops.rules.aliasing import stand_in
from autobatch.ops.rules.dispatch import CONSTANT, name_of
from autobatch.ops.rules.op_kinds import words_of

_scalar_p = Op("scalar", np.float64, vjp=lambda position, ct, out, args, params: ct)

_active: contextvars.ContextVar["Tape | None"] = contextvars.ContextVar("autobatch_tape", default=None)
active_tape, set_active = _active.get, _active.set  # the innermost tape that is recording

WITHOUT_GRADIENT = frozenset(
    ("__bool__", "__int__", "__round__", "__floor__", "__ceil__", "__trunc__", "__str__", "__format__")
)  # piecewise constant, or output for people
_NEEDS = {  # method: (the plain value that it needs, what to write instead)
    "__float__": (
        "a Python float",
        "leave out float() or math.*: NumPy functions take the value as it is; instead of writing it into a plain "
        "array, collect values in a list for np.stack, or write into np.zeros_like of such a value",
    ),
    "__complex__": ("a Python complex", "leave out complex(): NumPy functions take the value as it is"),
    "__index__": ("an index", "index with integers, which carry no gradient"),
    "item": ("a Python number", "leave out .item(): a 0-d array computes as a number does"),
    "tolist": ("a list of Python numbers", "iterate over the array, or return it as auxiliary output"),
    "__array__": (
        "a plain array",
        "write np.stack for np.array([...]) and np.stack([...]).mean(0) for np.mean([...], axis=0), assign into "
        "np.zeros_like of such a value instead of a plain array, or return it as auxiliary output (has_aux=True)",
    ),
}
_OF_VALUES = ("shape", "ndim", "dtype", "_ab_gradient", "_ab_ids")  # the last two of tables, of tables with keys
_OF_FLOATS = {"shape": (), "ndim": 0, "dtype": np.dtype(np.float64)}
_ndarray, _may_share = np.ndarray, np.may_share_memory
_WEAK, _INDEX = frozenset((float, int, bool)), attrgetter("_ab_index")
_PLAIN = frozenset((float, int, bool, np.float64, np.float32, np.int64, np.bool_))  # never recorded: skip the dispatch

# A node is (op, out, args, params, parents) with parents as (position, index) pairs, or None for a leaf. If an op has
# several outputs, its node is followed by a leaf per output: the reverse walk has their cotangents before the node's.
_Node = tuple[Op, Any, list[Any], dict[str, Any], list[tuple[int, int]]]


def count_refusals() -> int:
    """How many errors the active tape has raised for want of a gradient."""
    tape = active_tape()
    return 0 if tape is None else len(tape.refusals)


def forget_refusals(since: int) -> None:
    """Forget those after the first `since`: they were raised in a run that is abandoned for another mode."""
    if (tape := active_tape()) is not None:
        del tape.refusals[since:]


def keep_before(writes: Sequence[tuple[Any, Any, Any]]) -> None:
    """Copy what the active tape holds of arrays that are about to be written into, each the first of its write."""
    arrays = [array for array, *_ in writes if type(array) is _ndarray]
    for _, _, args, *_ in filter(None, tape.nodes if arrays and (tape := active_tape()) is not None else ()):
        args[:] = [x.copy() if type(x) is _ndarray and any(_may_share(x, to) for to in arrays) else x for x in args]


class Tape:
    """Ops in the order they ran. The parents of a node have smaller indices.

    Attributes:
        timed: disjoint ranges of nodes in ascending order, (first, end, report): the reverse walk calls `report` with
            the seconds that the range took.
        calls: ranges of nodes likewise, (first, end, by_loop), of calls on many examples. The reverse walk of values
            that all examples have together multiplies by zero what the loop over the examples does not read. So if a
            gradient is not finite, `by_loop` takes the call's place: from {index: cotangent} it gives contributions to
            nodes before `first`, likewise, or None. The calls that a call makes stand before it.
        asked_later: leaf index -> function that says whether the leaf is constant; called only when that matters.
        outer: the tape that was active when this one was made; it may record this tape's reverse walk.
        refusals: the errors raised for want of a gradient. A handler of the user's that takes one for an error of its
            own code would go on where the code without a gradient does not.

    >>> tape = Tape()
    >>> x = tape.leaf(np.array([1.0, 2.0]))
    >>> y = x * x + x
    >>> tape.backward([y], [np.ones(2)], [x._ab_index])
    [array([3., 5.])]
    """

    __slots__ = ("asked_later", "calls", "closed", "kept", "level", "nodes", "outer", "refusals", "timed")

    def __init__(self) -> None:
        self.refusals: list[Exception] = []
        self.kept = SavedArrays()
        self.level = next_level()
        self.nodes: list[_Node | None] = []
        self.timed: list[tuple[int, int, Callable[[float], None]]] = []
        self.calls: list[tuple[int, int, Callable[[dict[int, Any]], dict[int, Any] | None]]] = []
        self.asked_later: dict[int, Callable[[], bool]] = {}
        self.closed = False
        self.outer = active_tape()

    def leaf(self, value: object) -> "TapeArray":
        """A differentiated input."""
        self.nodes.append(None)
        return TapeArray(self, len(self.nodes) - 1, value)

    def constant(self, value: object) -> "TapeArray":
        """An array without a gradient, until a value with one is written into it."""
        return TapeArray(self, -1, value)

    def close(self) -> None:
        """Drop the recording. Values that are still referenced keep their data; further ops on them raise an error."""
        for each in (self.nodes, self.timed, self.calls, self.asked_later, self.refusals, self.kept):
            each.clear()  # the tracebacks of refusals hold what was recorded
        self.closed = True

    @library_code
    @np.errstate(all="ignore")  # no warnings from padding, or from code that the user did not write
    def backward(
        self, outputs: Sequence["TapeArray"], cts: Sequence[Any], places: Sequence[int], *, free: bool = False
    ) -> list[Any]:
        """The cotangents of the leaves at these nodes, given those of `outputs`; None where a leaf influences none.

        Contributions to a value are summed when the walk reaches it; a cotangent is freed once its op was processed.

        Args:
            free: drop each node after its use, to free its arrays early.
        """
        pending = self._pending(outputs, cts, places=places, free=free)
        known = len(pending)
        return [pending[place] if place < known else None for place in places]

    def _pending(
        self, outputs: Sequence["TapeArray"], cts: Sequence[Any], *, places: Sequence[int], free: bool, until: int = 0
    ) -> list[Any]:
        """The cotangents after the walk back to node `until`: if those of `places` are not finite, by the loop."""
        top = max(map(_INDEX, outputs))
        calls = [call for call in self.calls if call[0] >= until] if until else [*self.calls]
        pending, free = _seeded(top + 1, outputs, cts), free and not calls
        for first, end, report in reversed(self.timed):
            if until <= first <= top:
                self._walk(pending, top, end, free)
                begun = clock()
                self._walk(pending, min(top, end - 1), first, free)
                report(clock() - begun)
                top = first - 1
        self._walk(pending, top, until, free)
        known = len(pending)
        places = places if max(places, default=0) < known else [place for place in places if place < known]
        for place in places if until else ():  # the walk has found the totals of those that it passed
            pending[place] = _total(pending[place])
        totals = map(pending.__getitem__, places)
        if not calls or are_finite([ct if type(ct) is _ndarray else off_tape(ct) for ct in totals]):
            return pending
        pending, top = _seeded(len(pending), outputs, cts), len(pending) - 1
        for first, end, by_loop in reversed(calls):
            if first > top:
                continue
            self._walk(pending, top, end, False)
            top = min(top, end - 1)
            given = {index: _dense(ct) for index, ct in enumerate(pending[first : top + 1], first) if ct is not None}
            found = by_loop(given)
            if found is not None:  # else the calls within it may run again
                for index, part in found.items():
                    _contribute(pending, index, part)
                top = first - 1
        self._walk(pending, top, until, False)
        return pending

    def lengths(self) -> "list[tuple[Tape, int]]":
        """The tapes that record, this one first, each with its number of nodes."""
        return [(self, len(self.nodes)), *(self.outer.lengths() if self.outer is not None else ())]

    def read_in(self, given: Sequence[Any]) -> "list[tuple[TapeArray, int, Any]]":
        """The values of this tape in trees: each with its index and what it holds, which a write may change."""
        return [(x, x._ab_index, x._ab_value) for x in leaves_of_kind(given, TapeArray) if x._ab_tape is self]

    def recorded_again(
        self, record: Callable[[], Sequence[tuple[Any, Any]]], first: int, given: "Sequence[tuple[TapeArray, int, Any]]"
    ) -> dict[int, Any]:
        """The contributions to the nodes before `first`, {index: cotangent}, of values and cotangents from `record`.

        What it records is forgotten.

        Args:
            given: values of the tape that it reads, from `read_in` before they may have been written into.

        Raises:
            Unsupported: it reads a later node.
        """
        now = [box.alias() for box, _, _ in given]
        kept: list[list[Any]] = [self.nodes, self.timed, self.calls, self.refusals]
        outer, sizes = active_tape(), list(map(len, kept))
        set_active(self)
        try:
            for box, index, value in given:
                box._ab_rebind(TapeArray(self, index, value))
            found = library_code(record, is_library=False)()
            pairs = [(x, ct) for x, ct in found if type(x) is TapeArray and x._ab_tape is self and x._ab_index >= 0]
            wanted: Any = {"places": range(sizes[0]), "free": True, "until": sizes[0]}
            pending = self._pending(*zip(*pairs, strict=True), **wanted) if pairs else []
        finally:
            set_active(outer)
            for (box, _, _), later in zip(given, now, strict=True):
                box._ab_rebind(later)
            for each, size in zip(kept, sizes, strict=True):
                del each[size:]
        if any(part is not None for part in pending[first : sizes[0]]):
            raise Unsupported("what it reads was written into")
        return {index: _total(part) for index, part in enumerate(pending[:first]) if part is not None}

    def _walk(self, pending: list[Any], last: int, first: int, free: bool) -> None:
        """Run the vjps of the nodes from `last` down to `first`; `pending` holds the cotangent of each node so far."""
        nodes = self.nodes
        for index in range(last, first - 1, -1):
            part, node = pending[index], nodes[index]
            if part is None:
                if node is not None and node[0].joint is not None:
                    _walk_joint(pending, index, node)
                if free:
                    nodes[index] = None
                continue
            if node is None:  # a leaf: its total stays
                pending[index] = part.total() if type(part) is Contributions else part
                continue
            pending[index] = None
            part = part if type(part) is _ndarray else _dense(part)
            op, out, args, params, parents = node
            vjp = op.vjp
            for position, parent in parents:
                found = vjp(position, part, out, args, params)  # type: ignore[misc]
                if pending[parent] is None:
                    pending[parent] = found
                elif found is not None:
                    _contribute(pending, parent, found)
            if free:
                nodes[index] = None


def _contribute(pending: list[Any], index: int, contribution: object) -> None:
    """Add a contribution, if there is one, to the cotangent of node `index`."""
    slot = pending[index]
    if slot is None or contribution is None:
        pending[index] = contribution if slot is None else slot
    elif type(slot) is Contributions:
        slot.add(contribution)
    else:
        pending[index] = Contributions(slot, contribution)


def _seeded(size: int, outputs: Sequence["TapeArray"], cts: Sequence[Any]) -> list[Any]:
    """The cotangents of `size` nodes, before the walk."""
    pending: list[Any] = [None] * size
    for output, ct in zip(outputs, cts, strict=True):
        _contribute(pending, output._ab_index, ct)
    return pending


def _total(part: Any) -> Any:
    return part.total() if type(part) is Contributions else part


def _dense(part: Any) -> Any:
    """A cotangent, from its contributions, as an array; None stays."""
    part = _total(part)
    return part.to_dense() if isinstance(part, SparseCotangent) else part


def _walk_joint(pending: list[Any], index: int, node: _Node) -> None:
    """Run the vjp of an op with several outputs; its outputs are the nodes that follow it."""
    op, outs, args, params, parents = node
    ahead = pending[index + 1 : index + 1 + len(outs)]
    cts = [part if type(part) is _ndarray else _dense(part) for part in ahead]
    cts += [None] * (len(outs) - len(cts))
    if set(map(type, cts)) <= {type(None)}:
        return
    pending[index + 1 : index + 1 + len(ahead)] = [None] * len(ahead)
    found = op.joint([position for position, _ in parents], cts, outs, args, params)  # type: ignore[misc]
    for (_, parent), contribution in zip(parents, found, strict=True):
        for part in contribution if type(contribution) is list else (contribution,):
            _contribute(pending, parent, part)


class TapeArray(RecordedArray, ArrayMixin):
    """An array on a tape. Behaves as the array it holds; every op on it is recorded."""

    __slots__ = ("_ab_index", "_ab_rank", "_ab_tape", "_ab_value")

    def __init__(self, tape: Tape, index: int, value: Any) -> None:
        self._ab_tape = tape
        self._ab_index = index
        self._ab_value = value
        self._ab_rank = tape.level

    def alias(self) -> "TapeArray":
        """The same value as another object: an in-place write to one does not reach the other."""
        return TapeArray(self._ab_tape, self._ab_index, self._ab_value)

    __copy__ = alias

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc in PYTHON_OPERATORS and all(type(off_tape(x)) in _WEAK for x in inputs):  # no operator, but a call
            inputs = (_scalar_p(inputs[0]), *inputs[1:])
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        tape = self._ab_tape
        recorded = op.vjp is not None or op.joint is not None
        values: list[Any] = []
        parents: list[tuple[int, int]] = []
        plain = True
        for position, arg in enumerate(args):
            cls = type(arg)
            if cls is TapeArray and arg._ab_tape is tape:
                if arg._ab_index >= 0:
                    parents.append((position, arg._ab_index))
                arg = arg._ab_value
                cls = type(arg)
            elif cls not in _PLAIN and recorded:
                is_list = not hasattr(arg, "shape") and hasattr(arg, "__len__")  # vjps take arrays only
                arg = np.array(arg) if is_list else tape.kept(arg)
                cls = type(arg)
            if cls is not _ndarray and cls not in _PLAIN:
                plain = False
            values.append(arg)
        if tape.closed and parents:
            raise UnsupportedError(
                f"{op.name} on a value from an ab.grad call that has returned; its gradient can no longer be taken: "
                "return values as auxiliary output (has_aux=True) instead of storing them from inside the function"
            )
        if not plain:
            check_operands(values)
            out = op(*values, **params)
        elif type(self._ab_value) is float and op.impl in PYTHON_OPERATORS and all(type(x) in _WEAK for x in values):
            out = PYTHON_OPERATORS[op.impl](*values)
            out = np.complex128(out) if type(out) is complex else out
        else:
            out = words_of(op, values)(op.impl, *values, **params)
        if not parents:  # a view of a constant is a constant, too
            is_view = out.base is not None if type(out) is _ndarray else hasattr(out, "_ab_rank")
            return tape.constant(out) if is_view else out
        if op.vjp is None:
            if op.joint is not None:
                return self._with_outputs(op, out, values, params, parents)
            if type(out) not in _WEAK and out.dtype.kind == "c":  # piecewise constant for real numbers only (sign)
                self._ab_unsupported(op.impl, args, params, f"{op.name} of complex numbers")
            return out
        if type(out) is not float and out.dtype.kind not in "fc":
            return out
        nodes = tape.nodes
        nodes.append((op, out, values, params, parents))
        return TapeArray(tape, len(nodes) - 1, out)

    def _with_outputs(
        self, op: Op, outs: tuple[Any, ...], args: list[Any], params: dict[str, Any], parents: list[tuple[int, int]]
    ) -> tuple[Any, ...]:
        """Record an op with several outputs: its node, and a leaf-like node for each output."""
        tape = self._ab_tape
        tape.nodes.append((op, outs, args, params, parents))
        leaves = [tape.leaf(out) for out in outs]
        return tuple([leaf if out.dtype.kind in "fc" else out for leaf, out in zip(leaves, outs, strict=True)])

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        if function in CONSTANT or all(type(x) is not TapeArray or x._ab_index < 0 for x in leaves([args, kwargs])):
            plain, named = map_tree(_value_of, list(args)), map_tree(_value_of, dict(kwargs))
            return function(*plain, **named)
        error = UnsupportedError(
            f"no gradient for {name_of(function)}{f': {reason}' if reason else ''}; write it in functions that have "
            "one, or keep it outside the differentiated function"
        )
        self._ab_tape.refusals.append(error)
        raise error

    def _ab_rebind(self, new: Any) -> None:
        """Take over the value of `new`, the result of an in-place write."""
        if type(new) is not TapeArray:
            new = self._ab_tape.constant(new)
        self._ab_tape, self._ab_index = new._ab_tape, new._ab_index
        self._ab_value, self._ab_rank = new._ab_value, new._ab_rank

    @property
    def _ab_non_c_order(self) -> bool:
        return is_non_c_order(self._ab_value)

    @property
    def _ab_plain(self) -> Any:
        """A plain array with the strides of this one; None if there is none."""
        value = self._ab_value
        return value if type(value) is _ndarray else getattr(value, "_ab_plain", None)

    @property
    def flags(self) -> Any:
        return (self._ab_value if (plain := stand_in(self)) is None else plain).flags

    @property
    def strides(self) -> tuple[int, ...]:
        return (self._ab_value if (plain := stand_in(self)) is None else plain).strides

    # The class that `isinstance` sees, and what everything asks for: those of the value, read without a call of Python.
    __class__ = property(attrgetter("_ab_value.__class__"))
    shape, ndim, dtype, _ab_gradient, _ab_ids = (property(attrgetter(f"_ab_value.{name}")) for name in _OF_VALUES)

    def __getitem__(self, index: object) -> Any:
        lookup = self._ab_lookup
        out = super().__getitem__(index) if lookup is None else lookup(self, index, super().__getitem__)
        return self._ab_tape.constant(out) if type(out) is _ndarray else out  # `x[places] += y` writes into it

    @property
    def _ab_lookup(self) -> Any:
        return getattr(self._ab_value, "_ab_lookup", None)

    def _ab_read(self, name: str) -> Any:
        """The plain value, if no gradient is lost by reading it by the method `name`; else raise ForcedValueError."""
        if self._ab_index < 0 or name in WITHOUT_GRADIENT:
            return self._ab_value
        is_constant = self._ab_tape.asked_later.get(self._ab_index)
        if is_constant is not None and is_constant():
            return self._ab_value
        wanted, instead = _NEEDS.get(name, (f".{name}()", "return the array as auxiliary output"))
        error = ForcedValueError(
            f"{wanted} was needed from a value that carries a gradient (shape {self.shape}, {self.dtype}); {instead}"
        )
        self._ab_tape.refusals.append(error)
        raise error

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        value = self._ab_read("__array__")
        if copy:
            return np.array(value, dtype)
        out = np.asarray(value, dtype).view()
        out.flags.writeable = False  # the tape would not see a write into it
        return out

    def __getattr__(self, name: str) -> Any:
        """Other ndarray attributes (`tobytes`) of a constant; for a table with keys, the table's attributes."""
        if name[0] == "_":  # a slot that is unset: the library asks for those
            raise AttributeError(f"'TapeArray' object has no attribute {name!r}")
        if type(self._ab_value) is float and name in _OF_FLOATS:
            return _OF_FLOATS[name]
        keys = getattr(self, "_ab_ids", None)
        if keys is not None:
            return self.__getitem__ if name == "lookup" else getattr(keys.__self__, name)
        if name == "to_device":
            return lambda *args, **kwargs: (self, np.empty(0).to_device(*args, **kwargs))[0]
        if self._ab_index >= 0 and name != "device" and not (name == "base" and self._ab_value.base is None):
            if name != "data" and hasattr(self._ab_value, name):
                self._ab_read(name)  # raises
            raise missing("'TapeArray' object", name, ARRAY)
        return getattr(self._ab_value, name)

    def __repr__(self) -> str:
        return f"TapeArray({self._ab_value!r})"


def _value_of(x: Any) -> Any:
    return x._ab_value if type(x) is TapeArray else x


def off_tape(x: Any, to: Tape | None = None) -> Any:
    """The value without any TapeArray around it, but for one of the tape `to`."""
    while type(x) is TapeArray and x._ab_tape is not to:
        x = x._ab_value
    return x
