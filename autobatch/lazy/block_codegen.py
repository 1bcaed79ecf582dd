"""Block calls: their signatures, and a fast recorder in generated Python, specialised to the first call's input kinds.

The generated recorder is straight-line Python: it reads the inputs, looks the signature up, appends one node and makes
the outputs. A call with inputs of another kind takes the slow path (`Block.record`). An input may be a list or tuple
of recorded arrays; its structure is then part of the signature's key.
"""

import functools
import os
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.block_inputs import FAULTS, Key
from autobatch.blocks.launch import launch
from autobatch.blocks.program import Program
from autobatch.core.abstract_eval import WEAK, Aval, aval_of, freeze
from autobatch.core.diagnostics import handling
from autobatch.core.op import Op
from autobatch.errors import Unsupported, shown_file
from autobatch.facts.types import stored_in
from autobatch.lazy.array import LazyArray, link_views
from autobatch.lazy.grouping.signatures import BlockCall, Signature
from autobatch.lazy.trace import Trace

ID_KIND = aval_of((), np.dtype(np.int64), True)
Where = tuple[str, int, int]


def signature(
    trace: Trace, program: Program, avals: Sequence[Any], shared: Sequence[LazyArray], where: Where
) -> Signature:
    """The signature of a block call; equal for all blocks with the same program and the same shared values.

    Args:
        avals: the kind of each input of the program; shared: the handles of the shared inputs, in order.
        where: (file, first line, last line).
    """
    trace.refuse_caught_warnings()
    given = iter(shared)
    values = [next(given).source if aval.shared and type(aval) is Aval else None for aval in avals]
    key = (program, *avals)
    found = trace.interned.get(key)
    if found is None:
        own = [aval for aval, value in zip(avals, values, strict=True) if value is None]
        found = Signature(_op(where), {}, own, program.results[0], len(trace.table), where[:2], trace.errors)
        found.block = BlockCall(program, values, found.index)
        found.shared = not own
        found.nbytes = sum(program.avals[step.out].nbytes for step in program.steps)
        trace.table.append(found)
        trace.interned[key] = found
    return found


@functools.lru_cache(maxsize=4096)
def _op(where: Where) -> Op:
    """The op that stands for a block in reports, named by its lines."""
    file, first, last = where
    lines = str(first) if first == last else f"{first}-{last}"
    return Op(f"block {os.path.basename(shown_file(file))}:{lines}", launch, kind="block")


_MOST = 16  # arrays in one input; longer lists would need a program for each length
_known_trees: dict[Any, "Tree"] = {}


class Tree:
    """The structure of one input, interned.

    Attributes:
        leaves: the `Aval` of each array, in order.
    """

    __slots__ = ("_structure", "leaves")

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self.leaves = tuple(_leaves(structure))

    def unflatten(self, values: Iterator[Any]) -> Any:
        """The same structure with other arrays as leaves, taken in order from `values`."""
        return _unflatten(self._structure, values)


def flatten(trace: Trace, value: Any) -> tuple[Tree | None, list[int]]:
    """The structure of a list or tuple and the references of its arrays; (None, []) if it cannot be a block's input.

    It may contain only non-shared arrays recorded in this trace, nested in lists and tuples.
    """
    refs: list[int] = []
    structure = _structure(trace, value, refs)
    if structure is None or len(refs) > _MOST:
        return None, []
    found = _known_trees.get(structure)
    if found is None:
        if len(_known_trees) > 1 << 12:
            _known_trees.clear()
        found = _known_trees.setdefault(structure, Tree(structure))
    return found, refs


def _structure(trace: Trace, value: Any, refs: list[int]) -> Any:
    segment = trace.segment
    out: list[Any] = [type(value)]
    for part in value:
        kind = type(part)
        if kind is LazyArray:
            if part.aval.shared or (part.segment is not segment and not trace.enter(part)):
                return None
            refs.append(part.ref)
            out.append(part.aval)
        elif (kind is tuple or kind is list) and len(part) <= _MOST:
            inner = _structure(trace, part, refs)
            if inner is None:
                return None
            out.append(inner)
        else:
            return None
    return tuple(out)


def _leaves(structure: Any) -> Iterator[Aval]:
    for part in structure[1:]:
        if type(part) is tuple:
            yield from _leaves(part)
        else:
            yield part


def _unflatten(structure: Any, values: Iterator[Any]) -> Any:
    kind, *parts = structure
    return kind([_unflatten(part, values) if type(part) is tuple else next(values) for part in parts])


def recorder(
    block: Any, arguments: Sequence[Any], values: Sequence[Any], kinds: Sequence[str], outs: int
) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
    """Generate a fast recorder for calls like this one: a factory that takes the slow path and returns the recorder.

    None for a kind of call that always takes the slow path.

    Args:
        arguments: the arguments of this call; values: the value of each slot; kinds: the kind of each slot.
        outs: how many outputs the block has.
    """
    made = _Source(block, arguments)
    try:
        made.guards()
        made.read(values, kinds)
        made.append(values, kinds, outs)
    except Unsupported:
        return None
    return made.compiled()


class _Operands:
    """What the code that records a node names, as text.

    Attributes:
        key: the parts of the key by which its signature is found; refs: its operands' references.
        arrays, sources, constants, trees: the variables of each kind; owner: one whose trace records the node.
    """

    def __init__(self, key: str) -> None:
        self.key, self.refs, self.owner = [key], list[str](), ""
        self.arrays, self.sources, self.constants, self.trees = list[str](), list[str](), list[str](), list[str]()


class _Source:
    """The generated source, and the objects that it refers to."""

    def __init__(self, block: Any, arguments: Sequence[Any]) -> None:
        self.block = block
        self.arguments = arguments
        self.parameters = ", ".join(f"_a{i}" for i in range(len(arguments)))
        self.slow = f"return _slow({self.parameters})"
        self.reads: list[str] = []
        self.rest: list[str] = []
        self.objects: dict[str, Any] = {
            "_lazy": LazyArray,
            "_constant": Trace.constant,
            "_handling": handling,
            "_new": object.__new__,
            "_type": type,
            "_len": len,
            "_freeze": freeze,
            "_weak": WEAK,
            "_flatten": flatten,
            "_link_views": link_views,
            "_faults": FAULTS,
        }
        self._known: dict[Any, str] = {}
        self.slots: list[tuple[str, ...]] = []

    def refer(self, value: Any) -> str:
        """The name by which the generated source refers to an object."""
        key = ("object", id(value))
        if key not in self._known:
            self._known[key] = f"_o{len(self.objects)}"
            self.objects[self._known[key]] = value
        return self._known[key]

    def check(self, test: str) -> None:
        """Emit: take the slow path if this expression is true."""
        line = f"if {test}: {self.slow}"
        if line not in self.reads:
            self.reads.append(line)

    def guards(self) -> None:
        """Emit checks that global names, and each part of a dotted one, still refer to the same objects."""
        tests: dict[str, str] = {}
        for guard in self.block.guards:
            value = guard.root
            text = guard.name if guard.scope is self.block.scope else f"{self.refer(guard.scope)}[{guard.name!r}]"
            tests[text] = f"{text} is not {self.refer(value)}"
            for name in guard.attributes:
                # a module with a `__getattr__`, such as NumPy, is read faster through its dict
                by_dict = type(value) is types.ModuleType
                text = f"{self.refer(vars(value))}[{name!r}]" if by_dict else f"{text}.{name}"
                value = getattr(value, name)
                tests[text] = f"{text} is not {self.refer(value)}"
        if tests:
            self.check(" or ".join(tests.values()))

    def follow(self, root: Any, steps: Sequence[tuple[str, Any]]) -> tuple[str, Any]:
        """Emit code that follows a path; returns (variable that holds its value, value in this call)."""
        is_argument = type(root) is int
        name = f"_a{root}" if is_argument else root
        value = self.arguments[root] if is_argument else self.block.scope[root]
        for i, (how, part) in enumerate(steps):
            key = (root, tuple(steps[: i + 1]))
            if key not in self._known:
                kind = type(value)
                if how == "attr" and kind is not types.ModuleType:
                    self.check(f"not {self.refer(stored_in(part))}.get(_type({name}))")
                else:
                    self.check(f"_type({name}) is not {self.refer(kind)}")
                self._known[key] = f"_r{len(self._known)}"
                self.reads.append(f"{self._known[key]} = {name}[{part!r}]" if how == "key" else
                                  f"{self._known[key]} = {name}.{part}")  # fmt: skip
            name = self._known[key]
            value = value[part] if how == "key" else getattr(value, part)
        return name, value

    def index(self, index: Any) -> tuple[str, Any]:
        """Emit code that computes an index; returns (variable that holds it, value in this call)."""
        if type(index) is not Key:
            return self.follow(*index)
        parts = [self.follow(*path) for path in index.paths]
        for name, value in parts:
            self.check(f"_type({name}) is not {self.refer(type(value))}")
        key = ("key", index)
        if key not in self._known:
            self._known[key] = f"_r{len(self._known)}"
            self.reads.append(
                f"{self._known[key]} = {self.refer(index.function)}({', '.join(name for name, _ in parts)})"
            )
        return self._known[key], index.function(*[value for _, value in parts])

    def read(self, values: Sequence[Any], kinds: Sequence[str]) -> None:
        """Emit code that reads each input into a variable and checks its type."""
        for slot, value, kind in zip(self.block.slots, values, kinds, strict=True):
            name, base = self.follow(slot.root, slot.steps)
            if kind == "shared constant" or (kind == "constant" and type(value) is not np.ndarray):
                raise Unsupported
            if kind in ("row", "shared") and type(base) is not LazyArray and (kind == "row" or slot.index is None):
                raise Unsupported  # a plain array that all examples share: each trace has its own handle of it
            if slot.index is not None:
                index, at = self.index(slot.index)
                self.check(f"_type({index}) is not {self.refer(type(at))}")
                if kind == "row":
                    self.check(f"_type({name}) is not _lazy")
                    self.slots.append((name, index))
                    continue
                self.check(f"_type({name}) is not {self.refer(type(base))}")
                if type(base) not in (list, tuple, dict, np.ndarray):
                    raise Unsupported
                self.reads.append(f"_i{len(self.slots)} = {name}[{index}]")
                name = f"_i{len(self.slots)}"
            self.check(f"_type({name}) is not {'_lazy' if type(value) is LazyArray else self.refer(type(value))}")
            self.slots.append((name,))

    def append(self, values: Sequence[Any], kinds: Sequence[str], outs: int) -> None:
        """Emit code that looks the signature up, records the node and makes the outputs."""
        found = self._operands(values, kinds)
        arrays, sources = dict.fromkeys(found.arrays), ", ".join(found.sources)
        self.rest += [
            f"_trace = {found.owner}.trace",
            "_segment = _trace.segment",
            *[f"_c{i}, _d{i} = _constant(_trace, {name})" for i, name in enumerate(found.constants)],
            *[f"_t{i}, _f{i} = _flatten(_trace, {name})" for i, name in enumerate(found.trees)],
            f"_sig = _trace.of_blocks.get(({', '.join(found.key)},))",
            f"if _sig is None or _handling() is not _trace._handling: {self.slow}",
            *[f"if {x}.segment is not _segment and not _trace.enter({x}): {self.slow}" for x in arrays],
            "_call = _sig.block",
            f"({', '.join(f'_v{i}' for i in range(outs))},) = _call.outs",
            *[f"if not 0 <= {at[0]} < {name}.aval.shape[0]: {self.slow}" for name, *at in self.slots if at],
        ]
        if sources:
            self.rest += ["_sources = _segment.sources", "_n = -1 - _len(_sources)", f"_sources += ({sources},)"]
        self.rest += ["_refs = _segment.refs", f"_refs += ({', '.join(found.refs)},)"]
        self.rest += ["_sigs = _segment.sigs", "_ref = _len(_sigs)", "_sigs += _call.tail"]
        results = [f"_x{i}" for i in range(outs)]
        for i, each in enumerate(results):
            ref = f"_ref + {i}" if i else "_ref"
            fields = {"trace": "_trace", "aval": f"_v{i}", "segment": "_segment", "ref": ref, "source": "None"}
            self.rest += [f"{each} = _new(_lazy)", *[f"{each}.{name} = {text}" for name, text in fields.items()]]
        if outs > 1:
            self.rest.append(f"if _call.views: _link_views(_call.views, ({', '.join(results)},))")
        self.rest += ["_trace._room -= _sig.nbytes", "if _trace._room < 0: _trace._overflow()"]
        self.rest.append(f"return {', '.join(results)}")

    def _operands(self, values: Sequence[Any], kinds: Sequence[str]) -> "_Operands":
        out = _Operands(self.refer(self.block.kinds_key(kinds)))
        for (name, *index), kind, value in zip(self.slots, kinds, values, strict=True):
            if kind == "number":
                out.key.append(f"_weak[_type({name})]")
            elif kind == "static":
                out.key.append(name if type(value) is int else f"(_type({name}), _freeze({name}))")
            elif kind == "tree":
                out.key.append(f"_t{len(out.trees)}")
                out.refs.append(f"*_f{len(out.trees)}")
                out.trees.append(name)
            elif kind == "constant":
                out.key.append(f"_c{len(out.constants)}")
                out.refs.append(f"_d{len(out.constants)}")
                out.constants.append(name)
            else:
                out.key.append(f"{name}.aval")
                out.owner = name if kind == "array" and not out.arrays else out.owner or name
            if kind == "array":
                out.arrays.append(name)
                out.refs.append(f"{name}.ref")
            elif kind in ("row", "number"):
                if kind == "row":
                    out.key.append(self.refer(ID_KIND))
                out.sources.append(index[0] if index else name)
                out.refs.append(f"_n - {len(out.sources) - 1}" if len(out.sources) > 1 else "_n")
        if not out.refs or not out.owner:
            raise Unsupported
        return out

    def compiled(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Compile: a factory (slow path -> recorder); the recorder's globals are those of the user's function."""
        lines = [
            f"def _make(_slow, {', '.join(self.objects)}):",
            f" def _record({self.parameters}):",
            "  try:",
            *[f"   {line}" for line in self.reads],
            f"  except _faults: {self.slow}",
            *[f"  {line}" for line in self.rest],
            " return _record",
        ]
        space: dict[str, Any] = {}
        exec("\n".join(lines), self.block.scope, space)
        return lambda slow: space["_make"](slow, **self.objects)
