"""Gradients of compiled text: a second pass writes the place on the tape of each number that may carry a gradient.

The text that readers write consists of small steps whose meaning is known. The second pass keeps each step, so values,
guards and errors are the same, and writes beside it what happens to the places. An item of an array has its place at
the same index of an array of places; a list has a list of places, a tuple a tuple of them. Where numbers are computed
with, a node with the partial derivatives is pushed (`kernels.compiled_code.gradient_tape`).

    t5 = v_x_0[t4]                 t5_p = v_x_0_p[t4]
    t6 = t5 * v_w_1                t6_p = push_2(tape, t5_p, v_w_1, v_w_1_p, t5)
    v_h_2[t4] = t6                 v_h_2_p[t4] = t6_p

Which variables have places is found first: whatever is computed from the inputs that are differentiated, and whatever
may share memory with it. What has no derivative, or may be changed unseen by this pass, raises `Unsupported`.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.compiled.taping.derivatives import CONSTANT, NAMED, is_constant, partials_of
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import FLOAT, INT, NONE
from autobatch.compiled.translation.source_program import Instance, Lines, SourceProgram, flat
from autobatch.compiled.translation.typed_text import rep
from autobatch.errors import Unsupported

_ZERO = "int64(0)"
_ALIKE = frozenset({"np.ascontiguousarray", "broadcast_to", "broadcast_aligned", "list_item", "reserve"})
_MADE = frozenset({"np.zeros", "np.ones", "np.empty"})
_METHODS = frozenset({"copy", "ravel", "reshape", "pop"})
_MODULES = frozenset({"np", "math", "heapq"})
_CONSTANT_ATTRIBUTES = frozenset({"shape", "size", "ndim", "itemsize", "ctypes", "dtype", "flags", "strides"})


def carries(kind: Any) -> bool:
    """True if a value of a type may carry a gradient."""
    return any(map(_is_float, types.within(kind)))


def _is_float(kind: Any) -> bool:
    if isinstance(kind, types.Scalar | types.Union):  # None also stands for an unknown type
        return any(each.kind == "f" for each in types.members(kind)) or kind == NONE
    return np.dtype(kind.dtype).kind == "f" if isinstance(kind, types.Array) else kind is None


def in_memory(kind: Any) -> bool:
    """True if two names of a value of a type share its memory, so that each sees what is written through the other."""
    in_place = types.Array | types.List | types.Set | types.Dict
    return any(each is None or each == NONE or isinstance(each, in_place) for each in types.within(kind))


def _index(index: ast.expr) -> str:
    """An index as text."""
    if isinstance(index, ast.Tuple) and index.elts:
        return ", ".join(map(ast.unparse, index.elts)) + ("," if len(index.elts) == 1 else "")
    return ast.unparse(index)


class Shadows:
    """The functions of a program and its kernel, rewritten with places.

    Args:
        program: the program.
        kernel: the text of the kernel; cotangents go in where it has the line `SEED`.
        kinds: the types of the kernel's variables.
        inputs: the arrays passed to the kernel whose elements are leaves; their places have the same names with `_p`.
        root: the function that the kernel calls.
    """

    def __init__(
        self, program: SourceProgram, kernel: str, kinds: Mapping[str, Any], inputs: Sequence[str], root: Instance
    ) -> None:
        self.program = program
        extra = program.extra()
        self.containers: dict[str, Any] = {}
        self.functions: dict[str, _ShadowedFunction] = {}
        for instance in program.instances.values():
            if instance in program.done:
                text = instance.text.replace("@extra@", extra)
                self.functions[instance.name] = _ShadowedFunction(self, text, instance.variables, instance)
        self.kernel = _ShadowedFunction(self, kernel, kinds, root)
        self.kernel.active |= set(inputs)
        changed = True
        while changed:
            changed = self.kernel.spread()
            for function in self.functions.values():
                changed |= function.spread()

    def seeds(self) -> list[str]:
        """The arrays of results that carry a gradient, in order."""
        return sorted((name for name in self.kernel.active if name.startswith("out")), key=lambda name: int(name[3:]))

    def text(self, seeding: Lines) -> str:
        """The text of all functions; `seeding` takes the place of `SEED`."""
        self.kernel.seeding = seeding
        written = [function.written() for function in (*self.functions.values(), self.kernel)]
        made = [
            f"@jit\ndef {name}_p():\n    return [{zero_places(kind.elem)} for _ in range(0)]\n"
            for name, kind in self.containers.items()
        ]
        return "\n".join([*made, *written])


def zero_places(kind: Any) -> str:
    """The text of the places of a value without a gradient: all zero."""
    if not carries(kind):
        return _ZERO
    match kind:
        case types.Union():
            return f"({_ZERO}, {_ZERO}, {_ZERO})"
        case types.Array():
            return f"np.zeros(({'0, ' * kind.ndim}), np.int64)"
        case types.Tuple() | types.Struct():
            return f"({''.join(zero_places(item) + ', ' for item in kind.items)})"
        case types.Maybe():
            return f"({_ZERO}, {zero_places(kind.inner)})"
        case types.List():
            return f"new_{rep(kind)}_p()"
    return _ZERO


class _ShadowedFunction:
    """One function, rewritten with places."""

    def __init__(self, shadows: Shadows, text: str, kinds: Mapping[str, Any], instance: Instance) -> None:
        self.shadows, self.kinds, self.instance = shadows, kinds, instance
        tree = ast.parse(text).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.tree = tree
        self.parameters = [arg.arg for arg in tree.args.args]
        self.active: set[str] = set()
        self.result = False
        self.count = 0
        self.seeding: Lines = []

    # --- which variables carry a gradient

    def spread(self) -> bool:
        """Find more variables that carry a gradient, until there are no more; returns whether there were any."""
        before = len(self.active), self.result
        size = -1
        while size != len(self.active):
            size = len(self.active)
            for node in ast.walk(self.tree):
                self._spread(node)
        return (len(self.active), self.result) != before

    def _activate(self, name: str) -> None:
        given = name in self.shadows.program.captured or (self is self.shadows.kernel and name in self.parameters)
        if carries(self.kinds.get(name)) and not given:  # nothing is written into arrays that are passed in
            self.active.add(name)

    def _reach(self, node: ast.expr) -> None:
        """Activate the variables that may share memory with a value."""
        match node:
            case ast.Name(id=name):
                if in_memory(self.kinds.get(name)):
                    self._activate(name)
            case ast.Subscript(value=value):
                self._reach(value)
            case ast.Attribute(value=value, attr=attr) if attr not in _CONSTANT_ATTRIBUTES:
                self._reach(value)
            case ast.Tuple(elts=elts):
                for each in elts:
                    self._reach(each)
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _METHODS:
                self._reach(value)
            case ast.Call(func=func, args=[first, *_]) if ast.unparse(func) in _ALIKE:
                self._reach(first)

    def _spread(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if self.carries(value):
                    self._activate(name)
                if name in self.active and in_memory(self.kinds.get(name)):
                    self._reach(value)
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=name)])], value=ast.Call() as call):
                callee = self._callee(call)
                if callee is not None:
                    self._spread_call(callee, call)
                    if callee.result:
                        self._activate(name)
                    if name in self.active and in_memory(self.kinds.get(name)):
                        callee.result = True
            case (
                ast.Assign(targets=[ast.Subscript(value=holder)], value=value)
                | ast.AugAssign(target=ast.Subscript(value=holder), value=value)
            ):
                self._put(holder, value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=holder, attr=attr), args=args)) if args:
                if attr in ("append", "insert"):
                    self._put(holder, args[-1])
            case ast.Expr(value=ast.Call(func=ast.Name(id="list_put"), args=[holder, _, value])):
                self._put(holder, value)
            case ast.Expr(value=ast.Call(func=ast.Name(id="fill_rows"), args=[out, value])):
                self._put(out, value)
            case ast.Expr(value=ast.Call() as call) if (known := self._array_loop(call)) is not None:
                ufunc, *operands = known
                if not is_constant(ufunc):
                    for each in operands:
                        self._put(call.args[-1], each)
            case ast.For(target=ast.Name(id=name), iter=items):
                if self.carries(items):
                    self._activate(name)
                if name in self.active:
                    self._reach(items)
            case ast.Return(value=ast.Tuple(elts=[_, value])) if self is not self.shadows.kernel:
                if self.carries(value):
                    self.result = True
                if self.result and in_memory(self.instance.result):
                    self._reach(value)

    def _put(self, holder: ast.expr, value: ast.expr) -> None:
        """Activate `holder` if `value`, stored in it, carries a gradient; and an item stored in an active list."""
        if self.carries(value):
            self._reach(holder)
        root = holder
        while isinstance(root, ast.Subscript | ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.active:
            kind = self.kinds.get(root.id)
            if isinstance(kind, types.List) and in_memory(kind.elem):
                self._reach(value)

    def _callee(self, call: ast.Call) -> "_ShadowedFunction | None":
        return self.shadows.functions.get(call.func.id) if isinstance(call.func, ast.Name) else None

    def _spread_call(self, callee: "_ShadowedFunction", call: ast.Call) -> None:
        for name, arg in zip(callee.parameters[2:], call.args[2:], strict=True):
            if self.carries(arg):
                callee._activate(name)
            if name in callee.active and in_memory(callee.kinds.get(name)):
                self._reach(arg)

    def kind_of(self, node: ast.expr) -> Any:
        """The type of a simple expression; None for any other."""
        match node:
            case ast.Name(id=name):
                return self.kinds.get(name)
            case ast.Subscript(value=value, slice=ast.Constant(value=int(k))):
                kind = self.kind_of(value)
                if isinstance(kind, types.Tuple | types.Struct):
                    return kind.items[k]
                if isinstance(kind, types.Union):
                    return (INT, INT, FLOAT)[k]
                if isinstance(kind, types.Maybe):
                    return (INT, kind.inner)[k]
            case ast.Constant(value=float()):
                return FLOAT
            case ast.Constant():
                return INT
        return None

    def carries(self, node: ast.expr) -> bool:
        """True if the value of an expression may carry a gradient."""
        match node:
            case ast.Name(id=name):
                return name in self.active
            case ast.Constant() | ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return False
            case ast.Attribute(value=value, attr=attr):
                return attr not in _CONSTANT_ATTRIBUTES and self.carries(value)
            case ast.Subscript(value=value):
                return self.carries(value) and carries(self.kind_of(node))
            case ast.BinOp(left=left, right=right):
                return self.carries(left) or self.carries(right)
            case ast.UnaryOp(operand=operand):
                return self.carries(operand)
            case ast.IfExp(body=body, orelse=orelse):
                return self.carries(body) or self.carries(orelse)
            case ast.Tuple(elts=elts):
                return any(map(self.carries, elts))
            case ast.ListComp(elt=elt, generators=generators):
                return self.carries(elt) or any(self.carries(each.iter) for each in generators)
            case ast.Call(func=func, args=args):
                return self._call_carries(ast.unparse(func), func, args)
        return False

    def _call_carries(self, name: str, func: ast.expr, args: Sequence[ast.expr]) -> bool:
        if name in CONSTANT or name in _MADE:
            return False
        if name in ("scalar_1", "scalar_2") and is_constant(self._ufunc(args[0])):
            return False
        if isinstance(func, ast.Attribute) and not (isinstance(func.value, ast.Name) and func.value.id in _MODULES):
            if func.attr in ("any", "all", "items", "keys"):
                return False
            if func.attr == "astype" and np.dtype(ast.unparse(args[0]).rpartition(".")[2].strip("_")).kind != "f":
                return False
            return self.carries(func.value)
        if name in self.shadows.functions:
            return self.shadows.functions[name].result
        return any(map(self.carries, args))

    def _array_loop(self, call: ast.Call) -> list[Any] | None:
        """For a call that runs a ufunc over arrays, into its last argument: the ufunc, and the operands."""
        name = ast.unparse(call.func)
        if name in ("apply_1", "apply_2", "reduce_1"):
            return [self._ufunc(call.args[0]), *call.args[2:-1]]
        return [getattr(np, name.split("_")[1]), *call.args[:-1]] if name in self.shadows.program.loops else None

    def _ufunc(self, address: ast.expr) -> Any:
        """The ufunc whose loop has this address, which is `table[2 k]`."""
        assert isinstance(address, ast.Subscript)
        assert isinstance(address.slice, ast.Constant)
        place = address.slice.value
        assert isinstance(place, int)
        return self.shadows.program.ufuncs[place // 2][0]

    # --- writing

    def refuse(self, node: ast.AST, why: str, instead: str = "") -> Unsupported:
        """The exception to raise where there is no gradient, with the user's line."""
        code = self.instance.function.__code__
        names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
        line = next((self.instance.lines[name] for name in names if name in self.instance.lines), code.co_firstlineno)
        what = f"the gradient of {self.instance.function.__qualname__}"
        return Unsupported(f"{what}: {why}", where=(code.co_filename, line), instead=instead)

    def written(self) -> str:
        """The text of the function."""
        is_kernel = self is self.shadows.kernel
        body = self._block(self.tree.body)
        parameters = list(self.parameters)
        if not is_kernel:
            if not self.active and not self.result:
                return ast.unparse(self.tree) + "\n"
            parameters += ["tape", *(f"{name}_p" for name in self.parameters if name in self.active)]
        start = ["tape = parents, partials, state, values, operands"] if is_kernel else []
        return "\n".join(flat(["@jit", f"def {self.tree.name}({', '.join(parameters)}):", [*start, *body]])) + "\n"

    def call_of_root(self) -> Lines:
        """The kernel's lines that call the function, to run it again for another window of the tape."""
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and self._callee(node.value) is not None
            ):
                return self._statement(node)
        raise AssertionError

    def _block(self, body: Sequence[ast.stmt]) -> Lines:
        out: Lines = []
        for node in body:
            out += self._statement(node)
        return out or ["pass"]

    def _statement(self, node: ast.stmt) -> Lines:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                self._check(test)
                return [
                    f"if {ast.unparse(test)}:",
                    self._block(body),
                    *(["else:", self._block(orelse)] if orelse else []),
                ]
            case ast.While(test=test, body=body):
                return [f"while {ast.unparse(test)}:", self._block(body)]
            case ast.For(target=target, iter=items, body=body):
                return self._for(node, target, items, body)
        text = ast.unparse(node)
        self._check(node)
        match node:
            case ast.Expr(value=ast.Name(id="SEED")):
                return self.seeding
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in self.active:
                    return self._assign(name, value, text)
            case ast.Assign(targets=[ast.Tuple(elts=[ok, ast.Name(id=name)])], value=ast.Call() as call):
                callee = self._callee(call)
                if callee is not None and (callee.active or callee.result):
                    return self._user_call(callee, ast.unparse(ok), name, call)
            case ast.Assign(targets=[ast.Subscript(value=holder, slice=index)], value=value):
                if self.carries(holder):
                    where = f"{self.place(holder)}[{_index(index)}]"
                    return [text, f"{where} = {self._into(holder, value)}"]
            case ast.AugAssign(target=ast.Subscript(value=holder, slice=index), value=value):
                if self.carries(holder):
                    where = f"{self.place(holder)}[{_index(index)}]"
                    return [text, f"{where} = push_2(tape, {where}, 1.0, {self.scalar(value)}, 1.0)"]
            case ast.Expr(value=ast.Call() as call):
                return self._effect(call, text)
            case ast.Return(value=ast.Tuple(elts=[ok, value])) if self is not self.shadows.kernel and self.result:
                if not isinstance(ok, ast.Constant) or ok.value != 1:
                    return [f"return {ast.unparse(ok)}, {ast.unparse(value)}, {self._zeros_of(self.instance.result)}"]
                return [f"return 1, {ast.unparse(value)}, {self.place(value, self.instance.result)}"]
        return [text]

    def _check(self, node: ast.AST) -> None:
        """Refuse what Python refuses of a number with a gradient: making an int of it."""
        for each in ast.walk(node):
            is_int = isinstance(each, ast.Call) and ast.unparse(each.func) in ("int64", "uint64")
            if is_int and any(map(self.carries, each.args)):  # type: ignore[attr-defined]
                raise self.refuse(node, "an int is made of a number that carries it")

    def _zeros_of(self, kind: Any) -> str:
        self._container(kind)
        return zero_places(kind)

    def _container(self, kind: Any) -> None:
        """Register the types of lists within a type, so that functions which make lists of places are written."""
        match kind:
            case types.List():
                self.shadows.containers[f"new_{rep(kind)}"] = kind
                self._container(kind.elem)
            case types.Tuple() | types.Struct():
                for item in kind.items:
                    self._container(item)
            case types.Maybe():
                self._container(kind.inner)

    def _for(self, node: ast.For, target: ast.expr, items: ast.expr, body: Sequence[ast.stmt]) -> Lines:
        if not self.carries(items):
            return [f"for {ast.unparse(target)} in {ast.unparse(items)}:", self._block(body)]
        if not (isinstance(items, ast.Name) and isinstance(target, ast.Name)):
            raise self.refuse(node, f"a loop over {ast.unparse(items)}")
        self.count += 1
        k = f"p{self.count}"
        item = [f"{target.id} = {items.id}[{k}]", f"{target.id}_p = {items.id}_p[{k}]"]
        return [f"for {k} in range(len({items.id})):", [*item, *self._block(body)]]

    def _assign(self, name: str, value: ast.expr, text: str) -> Lines:
        kind = self.kinds.get(name)
        if isinstance(value, ast.Call) and ast.unparse(value.func).startswith("new_"):
            if not isinstance(kind, types.List):
                raise self.refuse(value, f"a {type(kind).__name__.lower()} of numbers that carry it")
            self._container(kind)
            return [text, f"{name}_p = {ast.unparse(value.func)}_p()"]
        place = self.place(value, kind, name)
        if any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(value)):
            self.count += 1
            held = f"p{self.count}"
            return [f"{held} = {self.place(value, kind)}", text, f"{name}_p = {held}"]
        return [text, f"{name}_p = {place}"]

    def _user_call(self, callee: "_ShadowedFunction", ok: str, name: str, call: ast.Call) -> Lines:
        places = [
            self.place(arg, callee.kinds.get(parameter))
            for parameter, arg in zip(callee.parameters[2:], call.args[2:], strict=True)
            if parameter in callee.active
        ]
        given = ", ".join([*map(ast.unparse, call.args), "tape", *places])
        targets = f"{ok}, {name}"
        if callee.result:
            targets += f", {name}_p" if name in self.active else ", _"
        return [f"{targets} = {callee.tree.name}({given})"]

    def _effect(self, call: ast.Call, text: str) -> Lines:
        function, args = ast.unparse(call.func), call.args
        match call.func, args:
            case ast.Name(id="list_put"), [holder, index, value] if self.carries(holder):
                return [text, f"list_put({self.place(holder)}, {ast.unparse(index)}, {self._into(holder, value)})"]
            case ast.Name(id="fill_rows"), [out, rows] if self.carries(out):
                return [text, f"fill_rows({self.place(out)}, {self.place(rows)})"]
            case _, [*_, out] if (known := self._array_loop(call)) is not None:
                ufunc, *operands = known
                if is_constant(ufunc) or not self.carries(out):
                    return [text]
                if function == "reduce_1":
                    return self._reduction(ufunc.__name__, operands[0], out, text)
                return [text, *self._loop(ufunc, operands, out)]
            case ast.Attribute(value=ast.Name() as holder, attr=attr), _ if self.carries(holder):
                if isinstance(self.kinds.get(holder.id), types.List):
                    if attr == "append":
                        return [text, f"{self.place(holder)}.append({self._into(holder, args[0])})"]
                    if attr == "insert":
                        where = ast.unparse(args[0])
                        return [text, f"{self.place(holder)}.insert({where}, {self._into(holder, args[1])})"]
                    if attr in ("clear", "reverse", "pop"):
                        return [text, f"{self.place(holder)}.{attr}({', '.join(map(ast.unparse, args))})"]
        if any(map(self.carries, args)) or (isinstance(call.func, ast.Attribute) and self.carries(call.func.value)):
            raise self.refuse(call, f"{function.rpartition('.')[2]} of numbers that carry it")
        return [text]

    def _into(self, holder: ast.expr, value: ast.expr) -> str:
        """The text of the places of a value that is stored into a list or an array."""
        kind = self.kind_of(holder)
        return self.place(value, kind.elem if isinstance(kind, types.List) else None)

    def _loop(self, ufunc: Any, operands: Sequence[ast.expr], out: ast.expr) -> Lines:
        """The lines for an element-wise operation, one op of the tape: its places, and loops for the partials."""
        found = partials_of(ufunc, len(operands))
        if found is None:
            raise self.refuse(out, f"np.{ufunc.__name__} has none here")
        partials, is_root = found
        self.count += 1
        k = f"p{self.count}"
        names: dict[str, str] = {}
        values: list[str] = []
        sides: list[str] = []
        for number, each in enumerate([*operands, out]):
            name = f"{k}_{number}"
            kind = self.kind_of(each)
            is_number = isinstance(kind, types.Scalar) and kind != NONE
            names[name] = f"{name} = {ast.unparse(each)}{'' if is_number else '.ravel()'}"
            at = k if len(operands) == 1 or each is out else f"({k} if {name}.size > 1 else 0)"
            values.append(name if is_number else f"{name}[{at}]")
            if each is not out and self.carries(each):
                place = self.place(each)
                sides.append(f"np.full(1, {place})" if is_number else f"{place}.ravel()")
            elif each is not out:
                sides.append("np.empty(0, np.int64)")
        texts = [partial.format(*values[:-1], y=values[-1]) for partial in partials]
        wide = [f"[{k}]" in text or f"({k} " in text for text in texts]
        if len(texts) == 1:
            sides, wide = [*sides, "np.empty(0, np.int64)"], [*wide, False]
        given = f"{sides[0]}, {wide[0]}, {sides[1]}, {wide[1]}, {is_root}"
        lines: Lines = [line for name, line in names.items() if any(name in text for text in texts)]
        lines.append(f"{k}_a, {k}_b = push_elements(tape, {self.place(out)}.ravel(), {given})")
        for start, text, is_wide, side in zip("ab", texts, wide, sides, strict=False):
            if side != "np.empty(0, np.int64)":
                many = f"{ast.unparse(out)}.size" if is_wide else "1"
                loop = f"for {k} in range({many} if {k}_{start} >= 0 else 0):"
                lines += [loop, [f"tape[3][{k}_{start} + {k}] = {text}"]]
        return lines

    def _reduction(self, name: str, values: ast.expr, out: ast.expr, text: str) -> Lines:
        into, own = f"{self.place(out)}[0]", ast.unparse(values)
        places = self.place(values) if self.carries(values) else f"np.zeros({own}.size, np.int64)"
        self.count += 1
        start = f"p{self.count}"
        match name:
            case "add":
                found = f"taped_sum(tape, {into}, {places})"
            case "multiply":
                found = f"taped_product(tape, {into}, {start}, {places}, {own})"
            case "maximum" | "minimum":
                found = f"taped_extreme({into}, {start}, {places}, {own}, {1 if name == 'maximum' else -1})"
            case _:
                raise self.refuse(out, f"np.{name}.reduce has none here")
        return [f"{start} = {ast.unparse(out)}[0]", text, f"{into} = {found}"]

    def _pushed(self, function: Any, operands: Sequence[ast.expr], node: ast.expr, out: str) -> str:
        """The text of the place of a number that is computed from others: a push onto the tape."""
        found = partials_of(function, len(operands))
        if found is None:
            raise self.refuse(node, f"{getattr(function, '__name__', f'`{ast.unparse(node)}`')} has none here")
        values = [f"({ast.unparse(each)})" for each in operands]
        parts = []
        for partial, place in zip(found[0], map(self.scalar, operands), strict=True):
            if place != _ZERO:
                parts += [place, partial.format(*values, y=out or f"({ast.unparse(node)})")]
        if len(parts) == 2 and parts[1] == "1.0":
            return parts[0]
        return f"push_{'root' if found[1] else len(parts) // 2}(tape, {', '.join(parts)})"

    def scalar(self, node: ast.expr) -> str:
        """The text of the place of a number, which is zero if it carries no gradient."""
        return self.place(node) if self.carries(node) else _ZERO

    def place(self, node: ast.expr, kind: Any = None, out: str = "") -> str:
        """The text of the places of a value.

        Args:
            kind: the type of the value, or of the variable that it goes into.
            out: the variable that already holds the value, if any.
        """
        if isinstance(node, ast.Tuple):
            items = kind.items if isinstance(kind, types.Tuple | types.Struct) else (None,) * len(node.elts)
            places = [self.place(each, item) for each, item in zip(node.elts, items, strict=True)]
            return f"({''.join(place + ', ' for place in places)})"
        if not self.carries(node):
            return self._constant(node, kind)
        match node:
            case ast.Name(id=name):
                return f"{name}_p"
            case ast.Subscript(value=value, slice=index):
                return f"{self.place(value)}[{_index(index)}]"
            case ast.Attribute(value=value, attr="T"):
                return f"{self.place(value)}.T"
            case ast.ListComp():
                return self._comprehension(node)
            case ast.BinOp(op=op, left=left, right=right):
                if not any(isinstance(self.kind_of(each), types.Array) for each in (left, right)):
                    return self._pushed(NAMED[type(op).__name__], [left, right], node, out)
            case ast.UnaryOp(op=op, operand=operand):
                if not isinstance(self.kind_of(operand), types.Array):
                    return self._pushed(NAMED[type(op).__name__], [operand], node, out)
            case ast.Call():
                return self._call(node, kind, out)
        raise self.refuse(node, f"`{ast.unparse(node)}` has none here")

    def _call(self, node: ast.Call, kind: Any, out: str) -> str:
        name, args = ast.unparse(node.func), node.args
        if name in ("float64", "float32", "np.float64", "np.float32", "opaque"):
            return self.place(args[0])
        if name == "select":
            return f"select({ast.unparse(args[0])}, {self.scalar(args[1])}, {self.scalar(args[2])})"
        if name in ("scalar_1", "scalar_2"):
            return self._pushed(self._ufunc(args[0]), args[2:-1], node, out)
        if name in NAMED:
            return self._pushed(NAMED[name], args, node, out)
        if name in _ALIKE:
            return f"{name}({', '.join([self.place(args[0]), *map(ast.unparse, args[1:])])})"
        if name == "np.full":
            return f"np.full({ast.unparse(args[0])}, {self.scalar(args[1])}, np.int64)"
        if name == "np.array":
            return f"np.array({self.place(args[0])}, np.int64)"
        if name == "np.concatenate":
            assert isinstance(args[0], ast.Tuple)
            parts = [self._of_array(each) for each in args[0].elts]
            return f"np.concatenate(({''.join(part + ', ' for part in parts)}))"
        if name == "where_aligned":
            return f"taped_where(tape, {ast.unparse(args[0])}, {', '.join(map(self._of_array, args[1:]))})"
        if name.startswith("product_"):
            both = [text for each in args[:2] for text in (ast.unparse(each), self._of_array(each))]
            return f"taped_{name}(tape, {', '.join(both)})"
        if isinstance(node.func, ast.Attribute):
            holder, attr = node.func.value, node.func.attr
            if attr in _METHODS:
                return f"{self.place(holder)}.{attr}({', '.join(map(ast.unparse, args))})"
            if attr == "astype":
                return f"{self.place(holder)}.copy()"
        raise self.refuse(node, f"{name.rpartition('.')[2]} of numbers that carry it")

    def _of_array(self, node: ast.expr) -> str:
        return self.place(node) if self.carries(node) else f"np.zeros({ast.unparse(node)}.shape, np.int64)"

    def _comprehension(self, node: ast.ListComp) -> str:
        if len(node.generators) != 1 or node.generators[0].ifs or not isinstance(node.generators[0].target, ast.Name):
            raise self.refuse(node, "a list is made of numbers that carry it")
        items, name = node.generators[0].iter, node.generators[0].target.id
        if not self.carries(items):
            return f"[{self.place(node.elt)} for {name} in {ast.unparse(items)}]"
        elt = node.elt
        while isinstance(elt, ast.Call) and ast.unparse(elt.func) in ("float64", "float32"):
            elt = elt.args[0]
        if not (isinstance(elt, ast.Name) and elt.id == name and isinstance(self.kind_of(items), types.List)):
            raise self.refuse(node, "a list is made of numbers that carry it")
        return f"[{name}_p for {name}_p in {self.place(items)}]"

    def _constant(self, node: ast.expr, kind: Any) -> str:
        """The text of places for a value that carries no gradient: zeros, in the value's form."""
        nested = types.Tuple | types.Struct | types.Union | types.Maybe | types.List
        own = kind if isinstance(kind, nested) else self.kind_of(node)
        if isinstance(node, ast.Call) and (ast.unparse(node.func) in _MADE or ast.unparse(node.func) == "np.full"):
            return f"np.zeros({ast.unparse(node.args[0])}, np.int64)"
        return self._zeros(ast.unparse(node), own if isinstance(own, types.Array | nested) else kind, node)

    def _zeros(self, text: str, kind: Any, node: ast.expr) -> str:
        match kind:
            case types.Array() if carries(kind):
                return f"np.zeros({text}.shape, np.int64)"
            case types.Tuple() | types.Struct() if carries(kind):
                items = [self._zeros(f"{text}[{k}]", item, node) for k, item in enumerate(kind.items)]
                return f"({''.join(item + ', ' for item in items)})"
            case types.Maybe() if carries(kind):
                return f"({_ZERO}, {self._zeros(f'{text}[1]', kind.inner, node)})"
            case types.List() if carries(kind):
                if in_memory(kind.elem):
                    raise self.refuse(node, "a list of arrays meets one whose numbers carry it")
                return f"[{self._zeros('x', kind.elem, node)} for x in {text}]"
            case types.Set() | types.Dict() if carries(kind):
                raise self.refuse(node, f"a {type(kind).__name__.lower()} of numbers that carry it")
        return zero_places(kind)
