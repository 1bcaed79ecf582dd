"""The passes over expressions: conditional operands, operators, reads, displays, calls and identity tests."""

import ast
from typing import Any

from autobatch.errors import MAKE_A_LIST, Unsupported
from autobatch.facts import operators
from autobatch.facts.python_functions import FRAME_READERS, PAUSES
from autobatch.program.quote import expression, is_generated, name
from autobatch.program.scopes import target_names

_SYMBOLS = {each.syntax: each.symbol for each in operators.COMPARISONS}


class Choices(ast.NodeTransformer):
    """Rewrites `A if T else B`, `A and B`, `A or B`, `not A`, `A < B < C` to calls of the runtime.

    Operands that only some lanes evaluate become lambdas: `_ab_choose(T, lambda: A, lambda: B)`. If such an operand
    binds a name by `:=`, or calls `super()`, the function cannot run in lock-step. Runs after the comprehensions.
    """

    removes = "`and`, `or`, `not`, a ternary or a chained comparison that does not ask the runtime"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Not)
        return isinstance(node, ast.BoolOp | ast.IfExp) or (isinstance(node, ast.Compare) and _chained(node))

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        _require_movable(node.body, node.orelse)
        self.generic_visit(node)
        return expression("_ab_choose(T, lambda: A, lambda: B)", node, T=node.test, A=node.body, B=node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        _require_movable(*node.values[1:])
        self.generic_visit(node)
        both = isinstance(node.op, ast.And)
        call: ast.Call = expression("_ab_and(A)" if both else "_ab_or(A)", node, A=node.values[0])
        call.args += [expression("lambda: B", each, B=each) for each in node.values[1:]]
        return call

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return expression("_ab_not(A)", node, A=node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if not _chained(node):
            return node
        _require_movable(*node.comparators)
        symbols = ast.copy_location(
            ast.Tuple([ast.copy_location(ast.Constant(_SYMBOLS[type(op)]), node) for op in node.ops], ast.Load()), node
        )
        call: ast.Call = expression("_ab_chain(A, SYMBOLS)", node, A=node.left, SYMBOLS=symbols)
        call.args += [expression("lambda: B", each, B=each) for each in node.comparators]
        return call


def _chained(node: ast.Compare) -> bool:
    return len(node.ops) > 1 and all(type(op) in _SYMBOLS for op in node.ops)


def _require_movable(*nodes: ast.expr) -> None:
    """Raise NeedsLoop if an operand must stay in the function's scope, so that it cannot become a lambda."""
    for part in (part for node in nodes for part in ast.walk(node)):
        if isinstance(part, ast.NamedExpr) or (isinstance(part, ast.Name) and part.id in ("super", "__class__")):
            raise Unsupported("an operand that not all evaluate, with := or super()", part)


class Reads(ast.NodeTransformer):
    """Rewrites `x[i]` to `_ab_getitem(x, i)`, with slices as `_ab_slice(...)`. Runs after the stores."""

    removes = "an item read by brackets"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript | ast.Slice)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        return expression("_ab_getitem(X, I)", node, X=node.value, I=node.slice)

    def visit_Slice(self, node: ast.Slice) -> Any:
        self.generic_visit(node)
        at: ast.AST = node.lower or node.upper or node.step or node
        parts = {
            key: part if part is not None else ast.copy_location(ast.Constant(None), at)
            for key, part in (("A", node.lower), ("B", node.upper), ("C", node.step))
        }
        return expression("_ab_slice(A, B, C)", at, **parts)


class Displays(ast.NodeTransformer):
    """Marks list, dict and set displays as made in this run, so that they may be changed.

    `[A, *B]` becomes `[A, *_ab_tuple(B)]`, and so do starred items of tuples and calls. `{K: V, **M}` becomes
    `_ab_dict((K, V), (_ab_unbound, M))`.
    """

    removes = "a display that is not marked"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.List | ast.Dict | ast.Set) and not (
            hasattr(node, "marked") or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        )

    def _mark(self, node: Any) -> Any:
        self.generic_visit(node)
        node.marked = True
        return expression("_ab_made(DISPLAY)", node, DISPLAY=node)

    def visit_Dict(self, node: ast.Dict) -> Any:
        if all(isinstance(key, ast.Constant) for key in node.keys):
            return self._mark(node)
        self.generic_visit(node)
        pairs = []
        for key, value in zip(node.keys, node.values, strict=True):
            start = ast.copy_location(ast.Name("_ab_unbound", ast.Load()), value) if key is None else key
            pairs.append(ast.copy_location(ast.Tuple([start, value], ast.Load()), value))
        call: ast.Call = expression("_ab_dict()", node)
        call.args += pairs
        return call

    def visit_Set(self, node: ast.Set) -> Any:
        return self._mark(node)

    def visit_List(self, node: ast.List) -> Any:
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        return self._mark(node)

    def visit_Starred(self, node: ast.Starred) -> Any:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = expression("_ab_tuple(ITEMS)", node, ITEMS=node.value)
        return node


class Calls(ast.NodeTransformer):
    """Rewrites calls to `_ab_call(f, ...)`. `super()` and debugger calls stay; a call that reads the frame itself
    refuses lock-step, so that the loop runs."""

    removes = "a call that does not go through the runtime"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and not is_generated(node) and not _is_super(node) and not is_pause(node)

    def visit_Call(self, node: ast.Call) -> Any:
        call: ast.Call
        self.generic_visit(node)
        if is_generated(node) or _is_super(node) or is_pause(node):
            return node
        if isinstance(node.func, ast.Name) and node.func.id in FRAME_READERS:
            what = ast.Constant(f"a call of {node.func.id}")
            return expression("_ab_refuse(WHAT, 'name the variables themselves')", node, WHAT=what)
        call = expression("_ab_call(F)" if not hasattr(node, "owned") else "_ab_create(F)", node, F=node.func)
        call.args += node.args
        call.keywords = node.keywords
        return call


def is_pause(node: ast.AST) -> bool:
    """True for `breakpoint()`, and for `pdb.set_trace()` of any debugger."""
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "id", getattr(node.func, "attr", None)) in PAUSES


def _is_super(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args


_BINARY = {each.syntax: each.word for each in operators.BINARY}
_UNARY = {each.syntax: each.name for each in operators.UNARY}
_MODULES = frozenset({"np", "numpy", "math", "ab", "autobatch"})


class Operators(ast.NodeTransformer):
    """Rewrites operators, comparisons and attribute reads to calls that find a user class's own definitions.

    `A + B` becomes `_ab_add(A, B)`, `A < B` becomes `_ab_lt(A, B)`, `X.name` becomes `_ab_getattr(X, "name")`, unless X
    is the usual name of a module (`np`, `math`). Operators on constants stay. Runs after the guards and the stores.
    """

    removes = "an operator that would call a method as it is written"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.BinOp) and not _is_constant(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        if _is_constant(node):
            return node
        return expression(f"_ab_{_BINARY[type(node.op)]}(A, B)", node, A=node.left, B=node.right)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        kind = type(node.ops[0])
        if len(node.ops) > 1 or kind not in _BINARY:
            return node
        return expression(f"_ab_{_BINARY[kind]}(A, B)", node, A=node.left, B=node.comparators[0])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        if type(node.op) not in _UNARY or _is_constant(node):
            return node
        return expression(f"_ab_{_UNARY[type(node.op)]}(A)", node, A=node.operand)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        base = node.value
        if not isinstance(node.ctx, ast.Load) or (isinstance(base, ast.Name) and _is_known(base.id)):
            return node
        if isinstance(base, ast.Attribute) or getattr(getattr(base, "func", None), "id", "") == "_ab_locals":
            return node  # as in np.linalg.norm: an attribute base that is still unrewritten belongs to a module
        return expression("_ab_getattr(X, NAME)", node, X=base, NAME=ast.Constant(node.attr))


def _is_known(name: str) -> bool:
    return name in _MODULES or name.startswith("_ab_")


def _is_constant(node: ast.expr) -> bool:
    return all(
        isinstance(part, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop) for part in ast.walk(node)
    )


class Guards(ast.NodeTransformer):
    """Rewrites `is`, `in`, `%` and f-strings, which would treat a batch as one object, to calls of the runtime."""

    removes = "`is` and `in`, an f-string"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        if isinstance(node, ast.Compare):
            return not is_generated(node.comparators[0]) and any(
                isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops
            )
        return isinstance(node, ast.JoinedStr)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if is_generated(node.comparators[0]):
            return node
        op = node.ops[0]
        special = {
            ast.Is: "_ab_is(A, B)",
            ast.IsNot: "_ab_is_not(A, B)",
            ast.In: "_ab_in(A, B)",
            ast.NotIn: "_ab_not_in(A, B)",
        }
        if len(node.ops) == 1 and type(op) in special:
            return expression(special[type(op)], node, A=node.left, B=node.comparators[0])
        if any(type(each) in special for each in node.ops):
            return expression("_ab_refuse('a chained comparison by is or in')", node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod):
            return expression("_ab_mod(A, B)", node, A=node.left, B=node.right)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        self.generic_visit(node)
        call: ast.Call = expression("_ab_fstring()", node)
        call.args += node.values
        return call

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        self.generic_visit(node)
        spec = node.format_spec or ast.copy_location(ast.Constant(""), node)
        conversion = ast.copy_location(ast.Constant(node.conversion), node)
        return ast.copy_location(ast.Tuple([node.value, conversion, spec], ast.Load()), node)


_EAGER = frozenset({"sum", "min", "max", "list", "tuple", "sorted", "set", "any", "all", "frozenset", "dict", "join"})
"""Functions that read a generator to its end, or need only its items: their generator can be a comprehension."""
_KINDS = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict", ast.GeneratorExp: "list"}
_ADD = {
    "list": "_ab_call(_ab_out.append, VALUE)",
    "set": "_ab_call(_ab_out.add, VALUE)",
    "dict": "_ab_setitem_in(_ab_out, KEY, VALUE)",
}


class Comprehensions(ast.NodeTransformer):
    """Rewrites comprehensions, and generator expressions that a function reads to their end, to calls of the runtime.

    `[F(x) for x in XS if C(x)]` becomes
    ```
    _ab_comprehension("list", lambda _ab_out: _ab_each(XS, lambda x: _ab_call(_ab_out.append, F(x)) if C(x) else None))
    ```
    so each part keeps its scope. A comprehension with `:=`, which binds a name outside of it, keeps its form; all lanes
    must share its iterable (`_ab_shared`), as they must that of a generator in `any` or `all`, which stop early. Any
    other generator cannot run in lock-step. Runs after the loops, before the displays.
    """

    removes = "a comprehension over anything that is not known to be shared"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.comprehension) and not (
            isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", None) == "_ab_shared"
        )

    def visit_Call(self, node: ast.Call) -> Any:
        only = node.args[0] if node.args else None
        if not isinstance(only, ast.GeneratorExp) or is_generated(node) or not _convertible(only):
            return self.generic_visit(node)
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if called in ("any", "all") and isinstance(node.func, ast.Name) and len(node.args) == 1:
            node.args[0] = self._keep(only)
            return node
        if called in _EAGER:
            node.args[0] = self._convert(only)
            node.keywords = [self.visit(keyword) for keyword in node.keywords]
            return node
        return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        return self._convert(node) if _convertible(node) else self._keep(node)

    def visit_SetComp(self, node: ast.SetComp) -> Any:
        return self._convert(node) if _convertible(node) else self._keep(node)

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        return self._convert(node) if _convertible(node) else self._keep(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        unpacked = all(isinstance(target, ast.Tuple | ast.List) for target in node.targets)  # reads it to its end
        if unpacked and isinstance(node.value, ast.GeneratorExp) and _convertible(node.value):
            node.value = self._convert(node.value)
            return node
        return self.generic_visit(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        raise Unsupported("a generator", node, instead=MAKE_A_LIST)

    def _keep(self, node: Any) -> Any:
        self.generic_visit(node)
        for generator in node.generators:
            generator.iter = expression("_ab_shared(ITER)", generator.iter, ITER=generator.iter)
        return node

    def _convert(self, node: Any) -> ast.expr:
        if _captures(node):  # in Python these functions see the variables' last values; here each step has its own
            raise Unsupported("a comprehension that makes functions", node)
        kind = _KINDS[type(node)]
        generators: list[ast.comprehension] = node.generators
        if kind == "dict":
            value = expression(_ADD[kind], node, KEY=self.visit(node.key), VALUE=self.visit(node.value))
        else:
            value = expression(_ADD[kind], node, VALUE=self.visit(node.elt))
        for generator in reversed(generators):
            for test in reversed(generator.ifs):
                value = expression("VALUE if TEST else None", test, VALUE=value, TEST=self.visit(test))
            value = expression(
                "_ab_each(ITER, STEP)",
                generator.iter,
                ITER=self.visit(generator.iter),
                STEP=_function_of(generator.target, value),
            )
        return expression("_ab_comprehension(KIND, lambda _ab_out: EACH)", node, KIND=ast.Constant(kind), EACH=value)


def _convertible(node: Any) -> bool:
    if any(isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom) for part in ast.walk(node)):
        return False
    return all(
        not generator.is_async
        and all(
            isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context) for part in ast.walk(generator.target)
        )
        for generator in node.generators
    )


def _function_of(target: ast.expr, body: ast.expr, depth: int = 0) -> ast.expr:
    """`lambda TARGET: BODY`, where a tuple target is unpacked by further lambdas."""
    if isinstance(target, ast.Name):
        return _lambda([target.id], body, target)
    item = f"_ab_item_{depth}"
    assert isinstance(target, ast.Tuple | ast.List)
    names = []
    for position, part in reversed(list(enumerate(target.elts))):
        if isinstance(part, ast.Name):
            names.append(part.id)
        else:
            inner = f"_ab_part_{depth}_{position}"
            unpack = _function_of(part, body, depth + 1)
            body = expression("STEP(PART)", part, STEP=unpack, PART=name(inner, part))
            names.append(inner)
    names = [each if each not in names[:place] else f"_ab_unused_{depth}_{place}" for place, each in enumerate(names)]
    step = _lambda(names[::-1], body, target)  # if a name occurs twice, the last one binds
    return _lambda([item], expression("STEP(*ITEM)", target, STEP=step, ITEM=name(item, target)), target)


def _lambda(names: list[str], body: ast.expr, at: ast.AST) -> ast.Lambda:
    args = [ast.copy_location(ast.arg(each), at) for each in names]
    arguments = ast.arguments([], args, None, [], [], None, [])
    return ast.copy_location(ast.Lambda(arguments, body), at)


def _captures(node: Any) -> bool:
    """True if a comprehension makes lambdas that read its variables."""
    bound = {each for generator in node.generators for each in target_names(generator.target)}
    return any(
        isinstance(each, ast.Name) and each.id in bound
        for part in ast.walk(node)
        if isinstance(part, ast.Lambda)
        for each in ast.walk(part)
    )
