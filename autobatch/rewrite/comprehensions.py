"""The pass that turns comprehensions into loops of the runtime."""

import ast
from typing import Any

from autobatch.errors import NeedsLoop
from autobatch.syntax.quote import expression, is_generated, name
from autobatch.syntax.scopes import target_names

_EAGER = frozenset({"sum", "min", "max", "list", "tuple", "sorted", "set", "any", "all", "frozenset", "dict", "join"})
"""Functions that read a generator to its end, or for which only its items count: these take it as a comprehension."""
_KINDS = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict", ast.GeneratorExp: "list"}
_ADD = {
    "list": "_ab_call(_ab_out.append, VALUE)",
    "set": "_ab_call(_ab_out.add, VALUE)",
    "dict": "_ab_setitem_in(_ab_out, KEY, VALUE)",
}


class Comprehensions(ast.NodeTransformer):
    """Reads comprehensions, and generator expressions that a function reads to their end; leaves calls.

    `[F(x) for x in XS if C(x)]` becomes
    ```
    _ab_comprehension("list", lambda _ab_out: _ab_each(XS, lambda x: _ab_call(_ab_out.append, F(x)) if C(x) else None))
    ```
    so each part keeps its scope. Comprehensions with `:=`, which binds outside of them, keep their form; what they run
    over must be shared by all lanes (`_ab_shared`). `any` and `all` of a generator stop for each lane where it knows. A
    generator that is read otherwise than to its end is not for lock-step. Runs after the loops, before the displays.
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
            return self._until(node, only, called)
        if called in _EAGER:
            node.args[0] = self._convert(only)
            node.keywords = [self.visit(keyword) for keyword in node.keywords]
            return node
        return self.generic_visit(node)

    def _until(self, node: ast.Call, generator: ast.GeneratorExp, called: str) -> ast.expr:
        """`any(C(x) for x in XS)` as `_ab_any(any, XS, lambda x: C(x))`: each lane goes on until it knows."""
        value = self.visit(generator.elt)
        for place in range(len(generator.generators) - 1, -1, -1):
            each = generator.generators[place]
            for test in reversed(each.ifs):
                skip = ast.copy_location(ast.Constant(called == "all"), test)
                value = expression("VALUE if TEST else SKIP", test, VALUE=value, TEST=self.visit(test), SKIP=skip)
            parts = {"F": node.func, "ITER": self.visit(each.iter), "STEP": _function_of(each.target, value)}
            value = expression(f"_ab_{called}(F, ITER, STEP)", node if not place else each.iter, **parts)
        return value

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        return self._convert(node) if _convertible(node) else self._keep(node)

    def visit_SetComp(self, node: ast.SetComp) -> Any:
        return self._convert(node) if _convertible(node) else self._keep(node)

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        return self._convert(node) if _convertible(node) else self._keep(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        unpacked = all(isinstance(target, ast.Tuple | ast.List) for target in node.targets)  # so it is read to its end
        if unpacked and isinstance(node.value, ast.GeneratorExp) and _convertible(node.value):
            node.value = self._convert(node.value)
            return node
        return self.generic_visit(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        raise NeedsLoop(f"a generator (line {node.lineno})")

    def _keep(self, node: Any) -> Any:
        self.generic_visit(node)
        for generator in node.generators:
            generator.iter = expression("_ab_shared(ITER)", generator.iter, ITER=generator.iter)
        return node

    def _convert(self, node: Any) -> ast.expr:
        if _captures(node):  # each function sees what the variables are in the end; here each step has its own
            raise NeedsLoop(f"a comprehension that makes functions (line {node.lineno})")
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
    step = _lambda(names[::-1], body, target)  # of equal names, the last one binds
    return _lambda([item], expression("STEP(*_ab_unpack(ITEM))", target, STEP=step, ITEM=name(item, target)), target)


def _lambda(names: list[str], body: ast.expr, at: ast.AST) -> ast.Lambda:
    args = [ast.copy_location(ast.arg(each), at) for each in names]
    arguments = ast.arguments([], args, None, [], [], None, [])
    return ast.copy_location(ast.Lambda(arguments, body), at)


def _captures(node: Any) -> bool:
    """Whether a comprehension makes functions of its variables."""
    bound = {each for generator in node.generators for each in target_names(generator.target)}
    return any(
        isinstance(each, ast.Name) and each.id in bound
        for part in ast.walk(node)
        if isinstance(part, ast.Lambda)
        for each in ast.walk(part)
    )
