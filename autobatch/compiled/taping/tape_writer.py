"""Gradients of compiled code: a pass over its lines writes the place on the tape of each number that may carry one.

The lines that readers write consist of small steps whose meaning is known (`typed_text.Applied`). The pass keeps each
step, so values, guards and errors are the same, and writes beside it what happens to the places. The places of an
array are one number, the first, if they follow each other, as those of an operation's results and their parts do, or
are all of constants. Else, as where items are written, an item of the array has its place at the same index of an
array of places. A list has a list of places, a tuple a tuple of them. Where numbers are computed with, a node with the
partial derivatives is pushed (`kernels.compiled_code.gradient_tape`).

    t5 = v_x_0[t4]                 t5_p = v_x_0_p[t4]
    t6 = t5 * v_w_1                t6_p = push_2(tape, t5_p, v_w_1, v_w_1_p, t5)
    v_h_2[t4] = t6                 v_h_2_p[t4] = t6_p

Which variables have places is found first: whatever is computed from the inputs that are differentiated, and whatever
may share memory with it. What has no derivative, or may be changed unseen by this pass, raises `Unsupported`.
"""

import collections
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from networkx.utils import UnionFind

from autobatch.compiled.taping.carried_types import ZERO, carries, held_type, in_memory, is_single, zero_places
from autobatch.compiled.taping.derivatives import CONSTANT, is_constant, meaning_of, partials_of
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import FLOAT, INT, NONE
from autobatch.compiled.translation.source_program import Instance, Lines, SourceProgram, flat
from autobatch.compiled.translation.typed_text import Applied, assigned, code, item_text, rep
from autobatch.errors import Unsupported
from autobatch.ops.rules.dispatch import CONSTANT_SOURCES

_NOWHERE = "operand_in_row(int64(0), 0)"
_MOVED = frozenset({
    "[]", ".T!", ".copy", ".ravel", ".reshape", ".transpose", ".pop", "np.ascontiguousarray", "np.broadcast_to",
    "broadcast_aligned", "list_item", "reserve",
})  # fmt: skip
"""What is at the same places of the first operand, which the result may share memory with."""
_CASTS = frozenset({"float64", "float32", "np.float64", "np.float32", "opaque"})
_MADE = frozenset({"np.zeros", "np.ones", "np.empty"})
_FORM = frozenset({".shape!", ".size!"})
SEED = "SEED"
_ENDS = "ENDS"
_MADE_PLACES = re.compile(r"(\w+_p) = (?:tape_\w+|taped_where)\(")
_VIEW = re.compile(r"(\w+_p) = (?:operand_aligned\(tape, )?(\w+_p)(?:, .*)?")
_RESULT = "return"  # stands for what a function returns, among the names of its variables
_HEADERS = ("if ", "elif ", "while ", "return ")


def _codes(body: Lines) -> Iterator[Applied]:
    """The lines of known structure, of all depths."""
    for line in body:
        if isinstance(line, list):
            yield from _codes(line)
        elif isinstance(line, Applied):
            yield line


def _root(text: str) -> str:
    """The variable that a value is, or is a part of."""
    while isinstance(text, Applied):
        text = text.operands[0]
    return text


def _aligned(text: str) -> Applied | None:
    """The part `broadcast_aligned(array, shape)` of a text that is one, or a vector of its elements; else None."""
    inner = text.operands[0] if getattr(text, "head", "") == ".ravel" else text  # type: ignore[attr-defined]
    return inner if isinstance(inner, Applied) and inner.head == "broadcast_aligned" else None


def _names(text: str) -> set[str]:
    """The names whose values a text mentions; the form of an array is none of its values."""
    return set(re.findall(r"(?<!\w)(?<!len\()[^\W\d]\w*(?!\w|\.(?:size|shape|flags|ctypes)\b)", text))


class Shadows:
    """The functions of a program and its kernel, rewritten with places.

    Args:
        program: the program.
        kernel: the kernel; cotangents go in where it has the line `SEED`.
        given: the kernel's parameters, into which nothing is written.
        inputs: those of them whose elements are leaves; their places have the same names with `_p`.
        tables: the kernel's variables that hold differentiated tables. The place of the k-th is k + 1; a look-up in it
            is an operation of the tape, whose cotangents are kept by id.
    """

    def __init__(
        self, program: SourceProgram, kernel: Instance, given: Sequence[str], inputs: Sequence[str],
        tables: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.program = program
        self.constant = {*program.captured, "True", "False", "INF", "NAN"}
        self.containers: dict[str, Any] = {}
        self.makers: dict[str, str] = {}
        self.functions = {each.name: _ShadowedFunction(self, each) for each in program.written()}
        self.kernel = _ShadowedFunction(self, kernel, frozenset(given))
        self.kernel.active |= {*inputs, *tables}
        self.tables = {name: number for number, name in enumerate(tables, 1)}
        functions = (self.kernel, *self.functions.values())
        self.sharing = UnionFind()  # variables of functions that may share memory
        written = [node for function in functions for node in function.share()]
        self.written = {self.sharing[node] for node in written}
        self.carrying: set[tuple[str, str]] = set()  # those of `sharing` of which one carries a gradient
        while sum(function.spread() for function in functions):
            pass
        kinds = [each for function in functions for each in function.active_kinds()]
        self.real = "float32" if all(map(is_single, kinds)) else "float64"
        for function in functions:
            function.start_rows()
        while sum(function.keep_rows() for function in functions):
            pass

    def seeds(self) -> list[str]:
        """The arrays of results that carry a gradient, in order."""
        return sorted((name for name in self.kernel.active if name.startswith("out")), key=lambda name: int(name[3:]))

    def text(self) -> str:
        """The text of all functions but the kernel."""
        written = [function.written() for function in self.functions.values()]
        made = [
            f"@jit\ndef {name}_p():\n    return [{zero_places(held_type(kind))} for _ in range({count})]\n"
            for name, kind in self.containers.items()
            for count in [int(isinstance(kind, types.Object))]  # an object is a list of one tuple
        ]
        return "\n".join([*made, *self.makers.values(), *written])


class _ShadowedFunction:
    """One function, rewritten with places."""

    def __init__(self, shadows: Shadows, instance: Instance, given: frozenset[str] = frozenset()) -> None:
        self.shadows, self.instance, self.given = shadows, instance, given
        self.kinds: Mapping[str, Any] = instance.variables
        self.active: set[str] = set()
        self.result = False
        self.count = 0
        self.seeding: Lines = []
        self.ends: list[dict[str, str]] = []  # for each element-wise operation, the places of its operands
        self.filled: set[int] = set()  # the lines that make an array, and the array loops after them that fill it
        self.fills: set[int] = set()
        self.rows: set[str] = set()  # arrays whose places are one number, the first
        aligned = [line.operands for line in _codes(instance.body) if line.head == "=" and _aligned(line.operands[1])]
        self.operands = {name for name, _ in aligned}  # that element-wise operations alone read: places of an operand
        self._find_fills(instance.body)

    # --- which variables carry a gradient

    def active_kinds(self) -> list[Any]:
        """The types of what carries a gradient."""
        found = [self.kinds.get(name) for name in self.active if not (self.given and name not in self.kinds)]
        return [each for kind in found for each in types.within(kind)]

    def _find_fills(self, body: Lines) -> None:
        """Find the array loops that fill an array which the line before has made."""
        before: Any = None
        for line in body:
            if isinstance(line, list):
                self._find_fills(line)
            elif (
                isinstance(line, Applied) and isinstance(before, Applied) and self._array_loop(line.head, line.operands)
            ):
                name, made = before.operands[0], before.operands[-1]
                if before.head == "=" and name == _root(line.operands[-1]) and made.startswith("np.empty("):
                    self.filled.add(id(before))
                    self.fills.add(id(line))
            before = line

    def spread(self) -> bool:
        """Find more variables that carry a gradient; returns whether there were any."""
        before = len(self.active), self.result
        for line in _codes(self.instance.body):
            self._spread(line.head, *line.operands)
        for name in (*self.kinds, _RESULT):
            if self.shadows.sharing[self._node(name)] in self.shadows.carrying:
                self._activate(name)
        return (len(self.active), self.result) != before

    def _activate(self, name: str) -> None:
        kind = self._kind(name)
        if name == _RESULT:
            self.result = True
        elif carries(kind) and name not in self.given and name not in self.shadows.constant:
            self.active.add(name)
        else:
            return
        if in_memory(kind):
            self.shadows.carrying.add(self.shadows.sharing[self._node(name)])

    def _spread(self, head: str, *operands: str) -> None:
        match head, operands:
            case (("=" | "+=" | "for"), (target, value)) if self.carries(value):
                self._activate(_root(target))
            case "call", (_, name, called, *given) if not self._is_constant(called):
                callee = self.shadows.functions[called]
                for parameter, argument in zip(callee.instance.parameters, given, strict=True):
                    if self.carries(argument):
                        callee._activate(parameter)
                if callee.result:
                    self._activate(name)
            case ".append" | ".insert" | "list_put" | "fill_parts", (holder, *_, value) if self.carries(value):
                self._activate(_root(holder))
            case "return", (_, value) if not self.given and self.carries(value):
                self._activate(_RESULT)
            case _, (*_, out) if (known := self._array_loop(head, operands)) is not None and not is_constant(known[0]):
                if any(map(self.carries, known[1:])):
                    self._activate(_root(out))

    # --- which arrays have places in a row

    def share(self) -> Iterator[tuple[str, str]]:
        """Note which variables may share memory; yields those whose items are written where they are."""
        for line in _codes(self.instance.body):
            match line.head, line.operands:
                case "=", (target, value) if not isinstance(target, Applied):
                    self._share(self, target, value)
                case "=" | "+=", (Applied() as target, value):
                    yield self._node(_root(target))
                    if not isinstance(self.kinds.get(_root(target)), types.Array):
                        self._share(self, _root(target), value)
                case "for", (name, items):
                    self._share(self, name, items)
                case ".append" | ".insert" | "list_put", (holder, *_, value):
                    self._share(self, _root(holder), value)
                case "call", (_, name, called, *given) if not self._is_constant(called):
                    callee = self.shadows.functions[called]
                    if in_memory(self.kinds.get(name)):
                        self.shadows.sharing.union(self._node(name), callee._node(_RESULT))
                    for parameter, argument in zip(callee.instance.parameters, given, strict=True):
                        self._share(callee, parameter, argument)
                case "return", (_, value) if not self.given:
                    self._share(self, _RESULT, value)
                case "reorder", (holder, *_):
                    yield self._node(_root(holder))
                case head, (*_, out) if self._array_loop(head, line.operands) and id(line) not in self.fills:
                    yield self._node(_root(out))

    def _node(self, name: str) -> tuple[str, str]:
        return self.instance.name, name

    def _share(self, other: "_ShadowedFunction", name: str, value: str) -> None:
        """Note that a variable of the `other` function may share memory with a value."""
        if isinstance(value, Applied):
            for each in value.operands if value.head == "()" else value.operands[:1] if value.head in _MOVED else ():
                self._share(other, name, each)
        elif value.isidentifier() and in_memory(self.kinds.get(value)) and in_memory(other._kind(name)):
            self.shadows.sharing.union(other._node(name), self._node(value))

    def _kind(self, name: str) -> Any:
        return self.instance.result if name == _RESULT else self.kinds.get(name)

    def _is_written(self, name: str) -> bool:
        """True if items of an array, or of one that may share its memory, are written where they are."""
        return self.shadows.sharing[self._node(name)] in self.shadows.written

    def start_rows(self) -> None:
        """Take all arrays that are not written for `rows`."""
        names = [name for name in self.active - self.operands if name not in self.given] + [_RESULT] * self.result
        self.rows = {name for name in names if isinstance(self._kind(name), types.Array) and not self._is_written(name)}

    def keep_rows(self) -> bool:
        """Remove arrays from `rows`, and those of functions that are called; returns whether there were any."""
        functions = self.shadows.functions
        before = len(self.rows) + sum(len(each.rows) for each in functions.values())
        for line in _codes(self.instance.body):
            match line.head, line.operands:
                case (("=" | "for"), (name, value)) if name in self.rows and id(line) not in self.filled:
                    if self.row(value) is None:
                        self.rows.remove(name)
                case "call", (_, name, called, *given):
                    callee = functions[called]
                    if _RESULT not in callee.rows:
                        self.rows.discard(name)
                    for parameter, argument in zip(callee.instance.parameters, given, strict=True):
                        if parameter in callee.rows and self.row(argument) is None:
                            callee.rows.remove(parameter)
                case "return", ("1", value) if _RESULT in self.rows and self.row(value) is None:
                    self.rows.remove(_RESULT)
        return len(self.rows) + sum(len(each.rows) for each in functions.values()) < before

    def row(self, text: str) -> str | None:
        """The text of the first place of an array, 0 for constants; None if its places may not be in a row."""
        if text in self.rows:
            return f"{text}_p"
        if not self.carries(text):
            return ZERO
        match getattr(text, "head", ""), getattr(text, "operands", ()):
            case "[]", (array, where):
                found = self._part(array, where)
                return found[0] if found and found[1] else None
            case ".copy" | ".ravel" | ".reshape" | "np.ascontiguousarray", (array, *_):  # the same numbers, too
                return self.row(array)
            case "table_rows", (table, ids):
                return f"taped_rows(tape, {self.place(table)}, {ids}, {table}.shape[1])"
            case "table_row", (table, k):
                return f"taped_rows(tape, {self.place(table)}, np.full(1, {k}), {table}.shape[1])"
            case "sum_rows", (rows,):
                return f"taped_sum_rows(tape, {rows}.shape, {self._operand(rows)})"
            case "reduced_rows", (address, _, rows, "0") if self._ufunc(address) is np.add:
                return f"taped_sum_rows(tape, {rows}.shape, {self._operand(rows)})"
            case "taken", (array, places):
                first = self.row(array)
                if first is not None:
                    return f"taped_taken(tape, {first}, {array}.shape, {places})"
                return f"row_of(tape, taken({self.place(array)}, {places}), True)"
            case "np.concatenate", (Applied() as joined, *axis):
                firsts = list(map(self.row, joined.operands)) if axis in ([], ["0"]) else [None]
                if None not in firsts:
                    sizes = (f"{each}.size" for each in joined.operands)
                    return f"taped_joined(tape, ({', '.join(firsts)}, ), ({', '.join(sizes)}, ))"  # type: ignore[arg-type]
                own = code("np.concatenate", code("()", *map(self._of_array, joined.operands)), *axis)
                return f"row_of(tape, {own}, True)"
            case "where_aligned", (condition, *choices):
                return f"taped_where(tape, {condition}, {', '.join(map(self._operand, choices))})"
            case (("product_22" | "product_21" | "product_12"), (one, other, _)):
                return self._product(text, one, other)  # type: ignore[arg-type]
        return None

    def _part(self, array: str, where: str) -> tuple[str, int] | None:
        """For a part of an array with places in a row: the text of its first place, its rank; None if it is none."""
        kind, (start, *rest) = self.kinds.get(array), where.split(", ")
        if not isinstance(kind, types.Array) or array not in self.rows or len(rest) >= kind.ndim:
            return None
        first, *end = start.split(":")
        if len(end) > 1 or set(rest) - {":"} or not re.fullmatch(r"\w*", first):
            return None
        if isinstance(self.kinds.get(first), types.Array):
            return None
        rank = kind.ndim - (not end)
        return (f"row_from({array}_p, {first}, {array}.shape[0], {array}.size)" if first else f"{array}_p"), rank

    def _operand(self, text: str) -> str:
        """The text of an array as an operand of an operation."""
        aligned, first = _aligned(text), self.row(text)
        if first is not None:
            return _NOWHERE if first == ZERO else f"operand_in_row({first}, {text}.size)"
        if aligned is None:
            return f"{text}_p" if text in self.operands else f"operand_at(tape, {self.place(text)})"
        array, shape = aligned.operands
        if array in self.operands:
            return f"{array}_p"
        first = self.row(array) or f"row_of(tape, {self.place(array)}, False)"
        return f"operand_aligned(tape, {first}, {array}.shape, {shape})"

    def _product(self, text: Applied, one: str, other: str) -> str:
        factors = []
        for axis, each in enumerate((one, other)):
            first = self.row(each)
            if first is not None:
                factors += [each, f"factor_in_row(tape, {first})"]
            elif text.head[8 + axis] == "1":
                factors += [each, f"factor_at(tape, np.expand_dims({self.place(each)}, {axis}), False)"]
            else:
                factors += [each, f"factor_at(tape, {self.place(each)}, {axis == 1})"]
        return f"taped_{text.head}(tape, {', '.join(factors)})"

    def kind_of(self, text: str) -> Any:
        """The type of a variable or of a known part of it; None for anything else."""
        match text:
            case Applied(head="[]", operands=(value, place)) if place.isdigit():
                kind = self.kind_of(value)
                if isinstance(kind, types.Tuple | types.Struct):
                    return kind.items[int(place)]
                if isinstance(kind, types.Union):
                    return (INT, INT, FLOAT)[int(place)]
                if isinstance(kind, types.Maybe):
                    return (INT, kind.inner)[int(place)]
        return self.kinds.get(text)

    def carries(self, text: str) -> bool:
        """True if a value may carry a gradient."""
        if not isinstance(text, Applied):
            return text in self.active or not self.active.isdisjoint(_names(text))
        head, operands = text.head, text.operands
        if head in CONSTANT or head in _MADE or head in _FORM or head.startswith("new_"):
            return False
        if head in ("scalar_1", "scalar_2", "reduced") and is_constant(self._ufunc(operands[0])):
            return False
        if head == ".astype" and np.dtype(operands[1].rpartition(".")[2].strip("_")).kind != "f":
            return False
        if head in _MOVED or head[0] == ".":
            return self.carries(operands[0]) and (head != "[]" or carries(self.kind_of(text)))
        return any(map(self.carries, operands[1:] if head == "select" else operands))

    def _is_constant(self, called: str) -> bool:
        """True if no gradient goes through the result of one of the functions."""
        return self.shadows.functions[called].instance.function in CONSTANT_SOURCES

    def _array_loop(self, head: str, operands: Sequence[str]) -> list[Any] | None:
        """For a call that runs a ufunc over arrays, into its last argument: the ufunc, and the operands."""
        if head in ("apply_1", "apply_2"):
            return [self._ufunc(operands[0]), *operands[2:-1]]
        return [getattr(np, head.split("_")[1]), *operands[:-1]] if head.startswith("each_") else None

    def _ufunc(self, address: str) -> Any:
        """The ufunc whose loop has this address, which is `table[2 k]`."""
        return self.shadows.program.ufuncs[int(address[6:-1]) // 2][0]

    # --- writing

    def refuse(self, text: str, why: str, instead: str = "") -> Unsupported:
        """The exception to raise where there is no gradient, with the user's line."""
        own = self.instance.function.__code__
        lines = [self.instance.lines[name] for name in re.findall(r"\w+", text) if name in self.instance.lines]
        what = f"the gradient of {self.instance.function.__qualname__}"
        where = own.co_filename, lines[0] if lines else own.co_firstlineno
        return Unsupported(f"{what}: {why}", where=where, instead=instead)

    def written(self) -> str:
        """The text of the function."""
        if not self.active and not self.result:
            return self.shadows.program.function(self.instance, self.instance.body)
        places = [f"{name}_p" for name in self.instance.parameters if name in self.active]
        return self.shadows.program.function(self.instance, self.body(), ["tape", *places])

    def body(self) -> Lines:
        """The lines of the function."""
        body = self._block(self.instance.body)
        return self._with_ends(body, collections.Counter(re.findall(r"\w+_p\b", "\n".join(flat(body)))))

    def _with_ends(self, body: Lines, counts: Mapping[str, int]) -> Lines:
        """Say of each element-wise operation which of its operands' places were made for it alone."""
        out: Lines = []
        own: set[str] = set()
        for line in body:
            if isinstance(line, list):
                out.append(self._with_ends(line, counts))
                continue
            if made := _MADE_PLACES.match(line):
                own.add(made[1])
            elif (view := _VIEW.fullmatch(line)) and view[2] in own and counts[view[2]] == 2:
                own.add(view[1])
            head, mark, rest = line.partition(_ENDS)
            if mark:
                number, close, rest = rest.partition(")")
                places = self.ends[int(number)].items()
                ends = sum(1 + (x == "y") for x, each in places if each in own and counts[each] == 2)
                line = f"{head}{ends}{close}{rest}"
            out.append(line)
        return out

    def _block(self, body: Lines) -> Lines:
        out: Lines = []
        start: Lines = []
        for line in body:
            if isinstance(line, list):
                out.append([*start, *self._block(line)])
                start = []
            elif isinstance(line, Applied) and line.head == "for" and line.operands[0] in self.active:
                name, items = line.operands
                k = self._fresh()
                out.append(f"for {k} in range(len({items})):")
                found = self._part(items, k)
                places = found[0] if found and (name in self.rows or not found[1]) else f"{self.place(items)}[{k}]"
                start = [f"{name} = {items}[{k}]", f"{name}_p = {places}"]
            else:
                out += self._line(line)
        return out

    def _fresh(self) -> str:
        self.count += 1
        return f"p{self.count}"

    def _line(self, line: str) -> Lines:
        if not isinstance(line, Applied):
            if line == SEED:
                return self.seeding
            is_header = line.startswith(_HEADERS) or (line.startswith("for ") and " in range(" in line)
            if not is_header and self.carries(line):
                raise self.refuse(line, f"`{line}` has none here")
            return [line]
        match line.head, line.operands:
            case "=", (name, _) if self.given and name in self.shadows.tables:
                return [line, f"{name}_p = int64({self.shadows.tables[name]})"]
            case "=", (name, value):
                self._check(value)
                if name in self.active:
                    return [line] if id(line) in self.filled else self._assign(name, value, line)
                if isinstance(name, Applied) and self.carries(name.operands[0]):
                    return [line, assigned(self.place(name), self._into(name.operands[0], value))]
                if self.carries(value) and carries(self.kind_of(name)) and not name.isidentifier():
                    raise self.refuse(line, "it is kept where no gradient goes")
            case "+=", (target, value):
                if self.carries(target):
                    where = self.place(target)
                    return [line, f"{where} = push_2(tape, {where}, 1.0, {self.scalar(value)}, 1.0)"]
            case "call", (status, name, called, *given):
                return self._user_call(self.shadows.functions[called], status, name, given)
            case "return", (status, value) if self.result:
                if _RESULT in self.rows:
                    return [f"{line}, {self.row(value) if status == '1' else ZERO}"]
                if status != "1":
                    self._container(self.instance.result)
                    return [f"{line}, {zero_places(self.instance.result)}"]
                return [f"{line}, {self.place(value, self.instance.result, own=self._is_written(_RESULT))}"]
            case "for" | "return", _:
                return [line]
            case head, operands:
                return self._effect(head, operands, line)
        return [line]

    def _check(self, text: str) -> None:
        """Refuse what Python refuses of a number with a gradient: making an int of it."""
        if isinstance(text, Applied):
            if text.head in ("int64", "uint64") and self.carries(text.operands[0]):
                raise self.refuse(text, "an int is made of a number that carries it")
            for each in text.operands:
                self._check(each)

    def _container(self, kind: Any) -> None:
        """Register the types of lists within a type, so that functions which make lists of places are written."""
        match kind:
            case types.List() | types.Object():
                self.shadows.containers[f"new_{rep(kind)}"] = kind
                self._container(held_type(kind))
            case types.Tuple() | types.Struct():
                for each in kind.items:
                    self._container(each)
            case types.Maybe():
                self._container(kind.inner)

    def _assign(self, name: str, value: str, line: str) -> Lines:
        kind = self.kinds.get(name)
        if isinstance(value, Applied) and value.head.startswith("new_"):
            if not isinstance(kind, types.List | types.Object):
                raise self.refuse(value, f"a {type(kind).__name__.lower()} of numbers that carry it")
            self._container(kind)
            return [line, f"{name}_p = {value.head}_p()"]
        own, is_row = self._is_written(name), name in self.rows
        if name in self.operands:
            return [line, f"{name}_p = {self._operand(value)}"]
        if name in _names(value):
            held = self._fresh()
            places = self.row(value) if is_row else self.place(value, kind, own=own)
            return [f"{held} = {places}", line, f"{name}_p = {held}"]
        return [line, f"{name}_p = {self.row(value) if is_row else self.place(value, kind, name, own)}"]

    def _user_call(self, callee: "_ShadowedFunction", status: str, name: str, given: Sequence[str]) -> Lines:
        parameters = callee.instance.parameters
        places = [
            self.row(argument) or "" if parameter in callee.rows
            else self.place(argument, callee.kinds.get(parameter), own=callee._is_written(parameter))
            for parameter, argument in zip(parameters, given, strict=True)
            if parameter in callee.active
        ]  # fmt: skip
        more = ["tape", *places] if callee.active or callee.result else []
        targets = [status, name, *([f"{name}_p" if name in self.active else "_"] if callee.result else [])]
        called = f"{callee.instance.name}({', '.join(given)}@extra@{''.join(', ' + each for each in more)})"
        return [f"{', '.join(targets)} = {called}"]

    def _effect(self, head: str, operands: Sequence[str], line: Applied) -> Lines:
        known = self._array_loop(head, operands)
        if known is not None:
            ufunc, *sources = known
            if is_constant(ufunc) or not self.carries(operands[-1]):
                return [line]
            return [line, self._loop(ufunc, sources, operands[-1], id(line) in self.fills)]
        holder, *given = operands
        if self.carries(holder):
            if head == "list_put":
                return [line, f"list_put({self.place(holder)}, {given[0]}, {self._into(holder, given[1])})"]
            if head == "fill_parts":
                held = self._fresh()
                filled = f"{held} = np.zeros({holder}.size, np.int64)", f"fill_parts({held}, {self.place(given[0])})"
                return [line, *filled, self._made(holder, f"row_of(tape, {held}, True)")]
            if head == "reorder":
                return [line, f"reorder({self.place(holder)}, {given[0]})"]
            if isinstance(self.kind_of(holder), types.List):
                if head in (".append", ".insert"):
                    where = "".join(f"{each}, " for each in given[:-1])
                    return [line, f"{self.place(holder)}{head}({where}{self._into(holder, given[-1])})"]
                if head in (".clear", ".reverse", ".pop"):
                    return [line, f"{self.place(holder)}{head}({', '.join(given)})"]
        if any(map(self.carries, operands)):
            raise self.refuse(line, f"{head.rpartition('.')[2]} of numbers that carry it")
        return [line]

    def _into(self, holder: str, value: str) -> str:
        """The text of the places of a value that is stored into a list or an array."""
        kind = self.kind_of(holder)
        if isinstance(kind, types.List | types.Object):
            return self.place(value, held_type(kind), own=self._is_written(_root(holder)))
        return self.place(value)

    def _made(self, name: str, first: str) -> str:
        """The line for the places of an array that an operation has made, from the first of them."""
        return f"{name}_p = {first if name in self.rows else self._array(first, name, self._is_written(name))}"

    def _array(self, first: str, like: str, own: bool = False) -> str:
        """The text of an array of places in a row, for an array; if it is to be its own, they may be written into."""
        places = f"places_of(tape, {first}, {like}.shape)"
        return f"{places}.copy()" if own else places

    def _loop(self, ufunc: np.ufunc, operands: Sequence[str], out: str, fills: bool) -> str:
        """The line for an element-wise operation, one op of the tape: a call of the function written for its form.

        Args:
            fills: the line before has made `out`.
        """
        found = partials_of(ufunc, len(operands))
        if found is None:
            raise self.refuse(out, f"np.{ufunc.__name__} has none here")
        given = dict(zip("xy", operands, strict=False))
        kinds = {x: self.kind_of(each) for x, each in given.items()}
        numbers = {x for x, kind in kinds.items() if isinstance(kind, types.Scalar) and kind != NONE}
        active = [x for x, each in given.items() if self.carries(each)]
        if not active:  # into an array that carries a gradient elsewhere
            return self._made(_root(out), ZERO) if fills else f"put_places({self.place(out)}, {ZERO})"
        values = [x if x in numbers else f"{x}[k]" for x in given]
        partials = {x: text.format(*values, y="out[k]") for x, text in zip(given, found[0], strict=True) if x in active}
        wide = [x for x, text in partials.items() if "[k]" in text]
        read = [x for x in given if any(re.search(rf"\b{x}\b", text) for text in partials.values())]
        sides = [f"{x}_p, {x in wide}" if x in active else f"{_NOWHERE}, False" for x in "xy"]
        name = f"tape_{ufunc.__name__}_{''.join('an'[x in numbers] for x in given)}_{''.join(active)}"
        body: Lines = [
            "out = made.ravel()",
            *(f"{x} = stretched({x}, out.size)" for x in read if x not in numbers),
            f"first, to_x, to_y, of_x, of_y = push_elements(tape, out.size, {', '.join(sides)}, {found[1]}, ends)",
        ]
        for x, partial in partials.items():
            power = _power_of(partial)
            loop: Lines = [f"to_{x}[k] = {power or partial}"]
            body += [f"for k in range(to_{x}.size):", loop]
            if power:  # NumPy's loop finds several at once; of less than `least` it is zero, but it would set a flag
                types_of_exp, least = ("f->f", -104.0) if self.shadows.real == "float32" else ("d->d", -746.0)
                exp = 2 * self.shadows.program.ufunc(np.exp, types_of_exp)
                loop.append(f"to_{x}[k] = real(-INF) if to_{x}[k] < real({least}) else to_{x}[k]")
                body.append(f"apply_1(table[{exp}], table[{exp + 1}], to_{x}, to_{x})")
            body.append(f"join(tape, of_{x}, to_{x})")
        body.append("return first")
        head = f"def {name}({', '.join(['tape', 'table', 'made', *(f'{x}_p' for x in active), *read, 'ends'])}):"
        self.shadows.makers[name] = "\n".join(flat(["@jit", head, body, ""]))
        whole = _root(out) if fills else out
        sources = [
            f"operand_in_row({self.place(given[x])}, 1)" if x in numbers else self._operand(given[x]) for x in active
        ]
        self.ends.append({x: f"{given[x]}_p" for x in active if x not in numbers})
        texts = [whole, *sources, *(given[x] for x in read), f"{_ENDS}{len(self.ends) - 1}"]
        call = f"{name}(tape, table, {', '.join(texts)})"
        return self._made(whole, call) if fills else f"put_places({self.place(out)}, {call})"

    def _reduced(self, ufunc: np.ufunc, values: str, start: str) -> str:
        into = self.scalar(start)
        if ufunc is np.add:
            return f"taped_sum(tape, {into}, {values}.size, {self._operand(values)})"
        places = self._of_array(values)
        if ufunc is np.multiply:
            return f"taped_product(tape, {into}, {start}, {places}, {values})"
        if ufunc not in (np.maximum, np.minimum):
            raise self.refuse(values, f"np.{ufunc.__name__}.reduce has none here")
        return f"taped_extreme({into}, {start}, {places}, {values}, {1 if ufunc is np.maximum else -1})"

    def _pushed(self, function: Any, operands: Sequence[str], text: str, out: str) -> str:
        """The text of the place of a number that is computed from others: a push onto the tape."""
        found = partials_of(function, len(operands))
        if found is None:
            raise self.refuse(text, f"{getattr(function, '__name__', f'`{text}`')} has none here")
        values = [f"({each})" for each in operands]
        parts = []
        for partial, place in zip(found[0], map(self.scalar, operands), strict=True):
            if place != ZERO:
                parts += ["-" * found[1] + place, partial.format(*values, y=out or f"({text})")]
        if len(parts) == 2 and parts[1] == "real(1.0)":
            return parts[0]
        parts += [ZERO, "real(0.0)"] * (len(parts) == 2)
        return f"push_2(tape, {', '.join(parts)})"

    def scalar(self, text: str) -> str:
        """The text of the place of a number, which is zero if it carries no gradient."""
        return self.place(text) if self.carries(text) else ZERO

    def place(self, text: str, kind: Any = None, out: str = "", own: bool = False) -> str:
        """The text of the places of a value: of an array, an array.

        Args:
            kind: the type of the value, or of the variable that it goes into.
            out: the variable that already holds the value, if any; own: its places may be written into.
        """
        head, operands = (text.head, text.operands) if isinstance(text, Applied) else ("", ())
        if head == "()":
            parts = kind.items if isinstance(kind, types.Tuple | types.Struct) else (None,) * len(operands)
            places = [self.place(each, part, own=own) for each, part in zip(operands, parts, strict=True)]
            return f"({''.join(place + ', ' for place in places)})"
        if not self.carries(text):
            return self._constant(text, kind, out)
        if text in self.rows:
            return self._array(f"{text}_p", text, own)
        if text in self.active:
            return f"{text}_p"
        function = self._ufunc(operands[0]) if head in ("scalar_1", "scalar_2") else meaning_of(head, len(operands))
        if function is not None:
            return self._pushed(function, operands[2:-1] if head in ("scalar_1", "scalar_2") else operands, text, out)
        part = self._part(*operands) if head == "[]" and len(operands) == 2 else None
        if part is not None and not part[1]:
            return part[0]
        row = self.row(text)
        if row is not None:
            return self._array(row, out or text, own)
        if head in _MOVED:
            first, rest = self.place(operands[0]), operands[1:]
            return str(code("np.broadcast_to" if head == "broadcast_aligned" else head, first, *rest))
        if head in _CASTS:
            return self.place(operands[0])
        match head, operands:
            case "reduced", (address, _, values, start):
                return self._reduced(self._ufunc(address), values, start)
            case "select", (condition, one, other):
                return f"select({condition}, {self.scalar(one)}, {self.scalar(other)})"
            case "np.full", (shape, number, _):
                return f"np.full({shape}, {self.scalar(number)}, np.int64)"
            case ("extreme_rows", (rows, _)) | ("reduced_rows", (_, _, rows, "1")):
                return f"taped_extreme_rows({self.place(rows)}, {rows}, {out or text})"
            case "array_of", (items, _):
                return f"array_of({self.place(items)}, {ZERO})"
            case "product_11", (one, other, _):
                return self._product(text, one, other)  # type: ignore[arg-type]
            case ".astype", (array, _):
                return f"{self.place(array)}.copy()"
            case _, (items, "1") if head.startswith("list_as_") and _is_list_of_numbers(kind):
                return f"listed({self.place(items)})"
        if head.startswith("list_as_"):
            raise self.refuse(text, "a list is made of numbers that carry it")
        what = f"{head.rpartition('.')[2]} of numbers that carry it" if head else f"`{text}` has none here"
        raise self.refuse(text, what)

    def _of_array(self, text: str) -> str:
        return self.place(text) if self.carries(text) else f"np.zeros({text}.shape, np.int64)"

    def _constant(self, text: str, kind: Any, out: str) -> str:
        """The text of places for a value that carries no gradient: zeros, in the value's form."""
        nested = types.Tuple | types.Struct | types.Union | types.Maybe | types.List
        own = kind if isinstance(kind, nested) else self.kind_of(text)
        if isinstance(text, Applied) and (text.head in _MADE or text.head == "np.full"):
            return f"np.zeros({text.operands[0]}, np.int64)"
        return self._zeros(out or text, own if isinstance(own, types.Array | nested) else kind)

    def _zeros(self, text: str, kind: Any) -> str:
        match kind:
            case types.Array() if carries(kind):
                return f"np.zeros({text}.shape, np.int64)"
            case types.Tuple() | types.Struct() if carries(kind):
                return str(code("()", *(self._zeros(item_text(text, k), x) for k, x in enumerate(kind.items))))
            case types.Maybe() if carries(kind):
                return f"({ZERO}, {self._zeros(item_text(text, 1), kind.inner)})"
            case types.List() if carries(kind):
                if in_memory(kind.elem):
                    raise self.refuse(text, "a list of arrays meets one whose numbers carry it")
                name = f"zeros_of_{rep(kind)}"
                self.shadows.makers[name] = (
                    f"@jit\ndef {name}(items):\n    return [{self._zeros('x', kind.elem)} for x in items]\n"
                )
                return f"{name}({text})"
            case types.Set() | types.Dict() | types.Object() if carries(kind):
                raise self.refuse(text, f"a {type(kind).__name__.lower()} of numbers that carry it")
        return zero_places(kind)


def _power_of(text: str) -> str:
    """The argument, if a text is a call of `math.exp`."""
    depth = list(itertools.accumulate((each == "(") - (each == ")") for each in text))
    is_call = text.startswith("math.exp(") and depth.index(0, 8) == len(text) - 1
    return text[9:-1] if is_call else ""


def _is_list_of_numbers(kind: Any) -> bool:
    return isinstance(kind, types.List) and types.is_number(kind.elem)
