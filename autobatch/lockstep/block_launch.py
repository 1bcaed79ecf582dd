"""Block launches: a straight-line run of array expressions executes as one launch for all lanes of the region.

Rewritten code calls a block's `LaneBlock` with the values that the block reads. If they are supported (arrays of one
shape in all lanes, arrays and numbers that lanes share, containers of such), the site returns the values that are live
after the block; else None, and the statements run one by one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray, off_tape
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import broadcast
from autobatch.batches.unpadded import Unpadded, padded
from autobatch.blocks.launch import is_plain, launch_padded, launch_rows
from autobatch.blocks.program import Program
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import SHORTEST, WEAK, Affine, aval_of, is_non_c_order
from autobatch.core.batched import Lengths, Size, same_size
from autobatch.core.config import config
from autobatch.core.current_region import current_region
from autobatch.lockstep.lanes.region import Prefix
from autobatch.ops.rules.aliasing import is_contiguous, is_scalar, zero_d
from autobatch.ops.rules.padding import to_width
from autobatch.program.scopes import Guard

_NUMERIC = frozenset("biufc")
_INDEX = (int, bool, str, float, type(None), tuple, type(Ellipsis), slice, type, np.dtype)


def input_signature(value: Any, static: bool, lengths: dict[str, Lengths]) -> tuple[Any, Any] | None:
    """(hashable key, aval for tracing or None for a constant) of a block input; None for unsupported values.

    Args:
        lengths: those of earlier inputs, by the name that an unknown size has for them; new ones are added.
    """
    kind: Any = type(value)
    if kind is MaskedBatch:
        data = padded(value.data)
        plain = type(data) is np.ndarray or (type(data) is TapeArray and type(data._ab_value) is np.ndarray)
        if not plain or data.dtype.kind not in _NUMERIC or value.scalar is not None:
            return None
        scalar = is_scalar(value)
        non_c_order = is_non_c_order(value)
        sizes = tuple([_named(size, lengths) if type(size) is Lengths else size for size in value.sizes])
        shape = tuple([Affine({size: 1}) if type(size) is str else size for size in sizes])
        return ("b", sizes, data.dtype, scalar, non_c_order), aval_of(shape, data.dtype, scalar, non_c_order)
    if kind in WEAK and not static:
        return ("w", kind), WEAK[kind]
    if isinstance(value, np.generic) and not static:
        return (("w", kind), aval_of((), value.dtype, True)) if value.dtype.kind in _NUMERIC else None
    if kind is np.ndarray or (kind is TapeArray and type(value._ab_value) is np.ndarray):
        if value.dtype.kind not in _NUMERIC:
            return None
        non_c_order = is_non_c_order(value)
        return ("s", value.shape, value.dtype, non_c_order), aval_of(value.shape, value.dtype, non_c_order=non_c_order)
    if kind is Unpacked:
        return ("c", kind, value), None
    if kind is tuple and not all(type(part) is int for part in value):
        return None
    return (("c", kind, repr(value)), None) if static and isinstance(value, _INDEX) else None


def _named(size: Lengths, lengths: dict[str, Lengths]) -> str:
    """The name of the unknown size that stands for the lengths of an input; equal lengths have one name."""
    name = next((name for name, known in lengths.items() if same_size(known, size)), f"x{len(lengths)}")
    lengths.setdefault(name, size)
    return name


def _known_size(size: Any, lengths: Mapping[str, Lengths]) -> Any:
    """The lengths that an unknown size stands for in this call; any other size as it is."""
    if type(size) is not Affine:
        return size
    ((name, factor),) = size.factors.items()
    own = lengths[name]
    if factor == 1 and not size.number:
        return own
    if size not in own.derived:
        own.derived[size] = Lengths(size.at({name: own.values}))
    return own.derived[size]


def as_batch(
    rows: Any, kind: tuple[Any, bool, bool], region: Any, lengths: Mapping[str, Lengths] = MappingProxyType({})
) -> Any:
    """Wrap an array that a block computed, one row per lane, as a batch.

    Args:
        kind: (sizes of an example's array, True for a 0-d array, True if it may not be in C order).
        lengths: of the region's lanes, by the names that unknown sizes have for them.
    """
    sizes, zero_dim, non_c_order = kind
    if lengths:
        sizes = tuple([_known_size(size, lengths) for size in sizes])
    batch = MaskedBatch.of_data(rows, sizes, region)
    if non_c_order:
        batch._ab_set_order(True)
    return zero_d(batch) if zero_dim else batch


@dataclasses.dataclass(frozen=True, slots=True)
class Unpacked:
    """The structure of a container whose leaves are inputs of a block: a constant of the block's program.

    Attributes:
        kind: dict, list or tuple; keys: of a dict; parts: for each item its own structure, or None for a leaf.
    """

    kind: type
    keys: tuple[Any, ...]
    parts: tuple["Unpacked | None", ...]

    def packed(self, leaves: Iterator[Any]) -> Any:
        """The container, with these leaves."""
        items = [next(leaves) if part is None else part.packed(leaves) for part in self.parts]
        return dict(zip(self.keys, items, strict=True)) if self.kind is dict else self.kind(items)


_CONTAINERS = frozenset((dict, list, tuple))


def _unpacked(value: Any, leaves: list[Any]) -> Unpacked | None:
    """The structure of a container, whose leaves are added to `leaves`; None for a leaf.

    Raises:
        LookupError: it has too many leaves, or keys that are neither strings nor integers.
    """
    kind = type(value)
    if kind not in _CONTAINERS:
        leaves.append(value)
        return None
    if len(leaves) + len(value) > 64:  # of one container
        raise LookupError
    keys = tuple(value) if kind is dict else ()
    if not all(type(key) is str or type(key) is int for key in keys):
        raise LookupError
    return Unpacked(kind, keys, tuple([_unpacked(part, leaves) for part in (value.values() if keys else value)]))


class _Unreadable:
    """Stands in a traced container for what a block cannot read, such as a table: any use ends the trace."""

    def __getattribute__(self, name: str) -> Any:
        raise TypeError(f"{name} of an input that a block cannot read")


_CONSTANT_LEAVES = frozenset((bool, int, str, type(None), np.dtype))  # a float is an operand: it may change often
_NOT_READ = (("u",), None)  # the signature of a leaf that a block cannot read


_MOST_FAILURES = 4  # in one call; then the statements run one by one
_VAIN = 16  # calls in which it never ran, after which a block is tried in one of so many


@dataclasses.dataclass(slots=True, eq=False)
class LaneBlock:
    """One block in the code of one function.

    Attributes:
        body: the block as a function of its inputs; returns the values that are live after it.
        static: for each input, True if a number there is a constant of the program (an index, an axis).
        guards: the global names whose meaning the block relies on.
        containers: the inputs that may be containers, since helpers get them.
        updates: the inputs that `+=` binds again, and thus have to be numbers: it would write into an array.
        programs: {signature of the inputs: program, None if there is none}; places: the inputs that each program reads.
        seen: the signature of the last call; vain: the number of calls since one in which the block ran.
    """

    body: Callable[..., Any]
    static: Sequence[bool]
    guards: Sequence[Guard] = ()
    containers: Sequence[int] = ()
    updates: Sequence[int] = ()
    programs: dict[Any, Program | None] = dataclasses.field(default_factory=dict)
    places: dict[Any, list[int]] = dataclasses.field(default_factory=dict)
    seen: Any = None
    vain: int = 0

    def unpacked(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values with each container replaced by its structure, and followed by the leaves of all containers.

        In a loop over items, packed arrays are padded; not rows of a table, whose mean is a bag while they are pending.
        """
        if type(current_region()) is Prefix and PackedBatch in map(type, values):
            values = [
                x.to_masked() if type(x) is PackedBatch and x._pending is None and is_plain(x.values) else x
                for x in values
            ]
        if not self.containers or _CONTAINERS.isdisjoint([type(values[i]) for i in self.containers]):
            return values
        out, leaves = list(values), list[Any]()
        for i in self.containers:
            if type(values[i]) in _CONTAINERS:
                own: list[Any] = []
                try:
                    out[i] = _unpacked(values[i], own)
                except LookupError:
                    continue
                leaves += own
        return [*out, *leaves]

    def __call__(self, *values: Any) -> tuple[Any, ...] | None:
        region: Any = current_region()
        if region is None:
            return None
        root = region.root
        run = root.blocks.get(self)
        if run is None:
            root.blocks[self] = run = BlockRun(self)
            self.vain += 1
            run.failures = _MOST_FAILURES if self.vain > _VAIN and self.vain % _VAIN else 0
        if run.failures >= _MOST_FAILURES:
            return None
        values = tuple(self.unpacked(values))
        if run.program is not None and run.suits(values, region):
            return run(values, region)
        return run.start(values, region)

    def promoted(self, key: Any) -> Any:
        """The key of a known program that takes batches where this call has shared arrays of that shape; else None.

        The first step of a loop, whose state is still shared by all lanes, can thus use the other steps' program.
        """
        for known, program in self.programs.items():
            if program is not None and all(map(_promotes, key, known)):
                return known
        return None

    def program(self, key: Any, kinds: Sequence[Any], values: Sequence[Any]) -> Program | None:
        """The program for this key, traced on its second use; else None. `kinds`: avals, None for constants."""
        if key in self.programs:
            return self.programs[key]
        if self.seen != key:  # a single use is not worth tracing
            self.seen = key
            return None
        if len(self.programs) >= 16:  # per site; with more, shapes vary too much for tracing to pay
            return None
        places = [i for i, kind in enumerate(kinds) if kind is not None]
        count = len(self.static)

        def body(*operands: Any) -> Any:
            arguments = [value if i < count else _Unreadable() for i, value in enumerate(values)]
            for i, operand in zip(places, operands, strict=True):
                arguments[i] = operand
            for i in [i for i in range(count, len(values)) if key[i][0] == "c"]:
                arguments[i] = values[i]
            leaves = iter(arguments[count:])
            out = self.body(*[x.packed(leaves) if type(x) is Unpacked else x for x in arguments[:count]])
            out = out if type(out) is tuple else (out,)
            if not all(is_contiguous(x) or (is_non_c_order(x) and getattr(x, "_view", None) is None) for x in out):
                raise ValueError  # only of a new array it is known whether its reshapes are views
            return out if len(out) > 1 else out[0]  # one result is not in a tuple

        program = trace(body, [kinds[i] for i in places])
        if program is not None and any(type(value) is Affine for value in program.constants):
            program = None  # it reads a length as a number
        if program is not None and len(values) > count:  # leave out the leaves that it does not read
            read = {slot for step in program.steps for slot in step.args}
            slots = [slot for slot, i in enumerate(places) if i < count or slot in read]
            program = program.part(slots, program.steps, program.outputs)
            places = [places[slot] for slot in slots]
        if program is not None and not all(program.varying([key[at][0] == "b" for at in places])):
            program = None
        self.places[key] = places  # first: other threads look for the program
        self.programs[key] = program
        return program


def _promotes(own: Any, known: Any) -> bool:
    return own == known or (own[0] == "s" and known == ("b", own[1], own[2], False, own[3]))


class BlockRun:
    """A block in one lock-step call: its current program, and the operands that the program accepts."""

    __slots__ = (
        "batches", "constants", "failures", "fixed", "numbers", "operands", "outputs", "program", "rows", "site",
    )  # fmt: skip

    def __init__(self, site: LaneBlock) -> None:
        self.site = site
        self.failures = 0
        self.program: Program | None = None

    def suits(self, values: Sequence[Any], region: Any) -> bool:
        """True if the current program, found for an earlier step's operands, accepts these too."""
        lengths: dict[str, Lengths] = {}
        for i, constant in self.constants:  # first: where containers differ, so do the places of their leaves
            value = values[i]
            if value is not constant and (type(value) is not type(constant) or value != constant):
                return False
        for i, known, index in self.fixed:
            value = values[i]
            if value is not known or (index is not None and value._ab_index != index):
                return False
        for i, kind in self.numbers:
            if type(values[i]) is not kind:
                return False
        for i, sizes, dtype, scalar, non_c_order in self.batches:
            value = values[i]
            if type(value) is not MaskedBatch or value.data.dtype is not dtype:
                return False
            if value.sizes != sizes and not _are_lengths(region.narrow(value).sizes, sizes, lengths):
                return False
            if value.scalar is not None or (not sizes and is_scalar(value) is not scalar):
                return False
            if (value._view is not None and value._view.non_c_order) is not non_c_order:
                return False
        return True

    def start(self, values: Sequence[Any], region: Any) -> tuple[Any, ...] | None:
        """Find and run a program for these operands; None if there is none."""
        self.program = None
        if not config.blocks:
            return None
        if False in [guard.holds() for guard in self.site.guards]:
            self.failures = _MOST_FAILURES
            return None
        static = self.site.static
        lengths: dict[str, Lengths] = {}
        count = len(static)
        own = [region.narrow(x) if type(x) is MaskedBatch and x.is_ragged else x for x in values[:count]]
        values = [*own, *values[count:]]
        if type(region) is not Prefix and any(type(x) is MaskedBatch and type(x.data) is Unpadded for x in own):
            return None  # only in a loop over items is it faster to pad them, once for all steps
        kinds = [input_signature(value, constant, lengths) for value, constant in zip(values, static)]  # noqa: B905
        kinds += [
            input_signature(value, type(value) in _CONSTANT_LEAVES, lengths) or _NOT_READ
            for value in values[len(static) :]
        ]
        if None in kinds or "b" not in [kind[0][0] for kind in kinds]:  # type: ignore[index]
            self.failures += 1
            return None
        key = tuple([kind[0] for kind in kinds])  # type: ignore[index]
        if not all(key[i][0] == "w" or (key[i][0] == "b" and key[i][3]) for i in self.site.updates):
            self.failures += 1
            return None
        known = None if key in self.site.programs else self.site.promoted(key)
        if known is not None:
            values = [
                broadcast(value, region.count) if own != each else value
                for value, own, each in zip(values, key, known, strict=True)
            ]
            key = known
        program = self.site.program(key, [kind[1] for kind in kinds], values)  # type: ignore[index]
        if program is None:
            self.failures += key in self.site.programs
            return None
        self.failures = self.site.vain = 0
        self.program = program
        self.operands = self.site.places[key]
        self.rows = tuple([key[i][0] == "b" for i in self.operands])
        self.batches = [(i, *each[1:]) for i, each in enumerate(key) if each[0] == "b"]
        self.fixed = [
            (i, values[i], getattr(values[i], "_ab_index", None)) for i, each in enumerate(key) if each[0] == "s"
        ]
        self.numbers = [(i, each[1]) for i, each in enumerate(key) if each[0] == "w"]
        self.constants = [(i, values[i]) for i, each in enumerate(key) if each[0] == "c"]
        self.outputs = [(aval.shape, not aval.ndim and not aval.scalar, aval.non_c_order) for aval in program.results]
        return self(values, region)

    def data(self, values: Sequence[Any], region: Any) -> list[Any]:
        """The program's operands as arrays, restricted to a region's lanes."""
        data = []
        for i in self.operands:
            value = values[i]
            if type(value) is MaskedBatch:
                value = value.data if value.region is region else region.narrow(value).data
            data.append(value)
        return data

    def with_lengths(self, values: Sequence[Any], region: Any) -> tuple[list[Any], dict[str, Lengths]] | None:
        """The operands as arrays, those of equal lengths padded to one width, and the lengths by name.

        None if a block gains nothing: it is for small arrays with little padding.
        """
        assert self.program is not None
        data: list[Any] = []
        lengths: dict[str, Lengths] = {}
        widths: dict[str, int] = {}
        for i, kind in zip(self.operands, self.program.inputs, strict=True):
            value = values[i]
            if type(value) is MaskedBatch:
                batch = value if value.region is region else region.narrow(value)
                value = padded(batch.data)
                for axis, (size, own) in enumerate(zip(kind.shape, batch.sizes, strict=True)):
                    if type(size) is Affine:
                        (name,) = size.factors
                        lengths.setdefault(name, own)
                        width = widths.setdefault(name, value.shape[axis + 1])
                        value = to_width(value, axis + 1, width)
            data.append(value)
        for name, own in lengths.items():
            if widths[name] < SHORTEST or own.values.sum() < 0.25 * region.count * widths[name]:  # of padded data
                return None
        # In larger arrays, Python's time between the ops does not count.
        return None if max([getattr(off_tape(x), "nbytes", 0) for x in data]) > 1 << 19 else (data, lengths)

    def __call__(self, values: Sequence[Any], region: Any) -> tuple[Any, ...] | None:
        assert self.program is not None
        if not self.program.lengths:
            results = launch_rows(self.program, self.data(values, region), self.rows)
            return tuple([as_batch(rows, kind, region) for rows, kind in zip(results, self.outputs, strict=True)])
        found = self.with_lengths(values, region)
        made = None if found is None else launch_padded(self.program, found[0], self.rows, found[1])
        if found is None or made is None:
            self.failures += 1
            self.program = None
            return None
        return tuple([as_batch(*each, region, found[1]) for each in zip(made, self.outputs, strict=True)])


def _are_lengths(own: Sequence[Size], sizes: Sequence[Any], lengths: dict[str, Lengths]) -> bool:
    """True if these sizes are those, or the lengths that names stand for, which are noted in `lengths`."""
    if len(own) != len(sizes):
        return False
    for size, wanted in zip(own, sizes, strict=True):
        if type(wanted) is not str:
            if size is not wanted and size != wanted:
                return False
        elif type(size) is not Lengths or not same_size(lengths.setdefault(wanted, size), size):
            return False
    return True


def launch_without_warnings(program: Program, data: Sequence[Any], rows: Sequence[bool]) -> list[Any] | None:
    """Run a program without floating-point warnings; None if NumPy would have warned."""
    complaints: list[str] = []
    state: Any = {kind: "ignore" if how == "ignore" else "call" for kind, how in np.geterr().items()}
    with np.errstate(**state, call=lambda kind, _: complaints.append(kind)):
        out = launch_rows(program, data, tuple(rows))
    return None if complaints else out
