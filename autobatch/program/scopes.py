"""Scopes: the names that a piece of syntax reads and binds, what names mean, and guards that they still mean it."""

import ast
import builtins
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def local_nodes(tree: ast.AST | Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes in a tree's own scope; nested functions and classes are yielded but not entered."""
    stack = [tree] if isinstance(tree, ast.AST) else list(tree)[::-1]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            stack += [*node.decorator_list, *_defaults(node.args)]
        elif isinstance(node, ast.Lambda):
            stack += _defaults(node.args)
        elif not isinstance(node, ast.ClassDef):
            stack += list(ast.iter_child_nodes(node))[::-1]


def _defaults(args: ast.arguments) -> list[ast.expr]:
    return [*args.defaults, *(default for default in args.kw_defaults if default is not None)]


def reads(tree: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Names that a piece of syntax may read in its own scope."""
    out: set[str] = set()
    inner: set[int] = set()  # names local to a comprehension; its first iterable is outside of it
    for node in local_nodes(tree):
        if isinstance(node, _COMPREHENSIONS):
            bound = {name for generator in node.generators for name in target_names(generator.target)}
            outside = {id(part) for part in ast.walk(node.generators[0].iter)}
            names = (part for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in bound)
            inner.update(id(part) for part in names if id(part) not in outside)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store) and id(node) not in inner:
            out.add(node.id)
    return out


def bound_names(tree: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Names that a piece of syntax may bind or delete in its own scope; of a comprehension only those of `:=`."""
    out: set[str] = set()
    inner: set[int] = set()
    for node in local_nodes(tree):
        if isinstance(node, _COMPREHENSIONS):
            inner.update(id(name) for generator in node.generators for name in ast.walk(generator.target))
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in inner:
            out.add(node.id)
        elif isinstance(node, _NAMED):
            out |= {node.name} if node.name else set()
        elif isinstance(node, ast.MatchMapping) and node.rest:
            out.add(node.rest)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            out.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return out


def target_names(target: ast.AST) -> set[str]:
    """The plain names that an assignment to this target binds."""
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """The names of all its parameters."""
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    every += [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return {arg.arg for arg in every}


def is_dotted(steps: Any) -> bool:
    """True if a path's steps are all attributes, as in `np.linalg.norm`."""
    return all(how == "attr" for how, _ in steps)


def binds(node: ast.AST) -> bool:
    """True if an expression cannot be moved into another function: it binds names by `:=`, yields or awaits."""
    return any(isinstance(part, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await) for part in ast.walk(node))


_KNOWN = (types.ModuleType, types.FunctionType)
MISSING = object()


@dataclasses.dataclass(slots=True, eq=False)
class Guard:
    """A global name that must still mean what it meant when the block was made, such as `np.tanh`.

    Attributes:
        scope: the globals; name, attributes: ("np", ("tanh",)); root: the object `np` then; value: `np.tanh` then.
    """

    scope: dict[str, Any]
    name: str
    attributes: Sequence[str]
    root: Any
    value: Any

    def holds(self) -> bool:
        """True if it still means the same; `ab` may be another module by now, as long as its `nn` is the same."""
        value = self.scope.get(self.name, MISSING)
        if value is MISSING:
            value = _builtin(self.scope, self.name)
        for name in self.attributes:
            value = getattr(value, name, MISSING) if type(value) in _KNOWN else MISSING
        return value is self.value


def _builtin(scope: dict[str, Any], name: str) -> Any:
    builtins = scope.get("__builtins__")
    space = builtins if type(builtins) is dict else getattr(builtins, "__dict__", {})
    return space.get(name, MISSING)


@dataclasses.dataclass(slots=True, eq=False)
class Scope:
    """The meaning of names at the place of an expression.

    Attributes:
        globals: the function's globals; local: names local to the function or to enclosing ones.
        bound: names of `local` that are certainly bound; rebindable: names of `local` that other code may rebind.
        helper: returns the guards of a user function that a block may call; None if a block may not call it.
    """

    globals: dict[str, Any]
    local: frozenset[str]
    bound: frozenset[str]
    rebindable: frozenset[str]
    helper: Callable[[Any], list[Guard] | None]

    def with_names(self, local: frozenset[str], bound: frozenset[str], rebindable: frozenset[str]) -> "Scope":
        """The same globals, and other names."""
        return dataclasses.replace(self, local=local, bound=bound, rebindable=rebindable)

    def binding(self, name: str) -> Any:
        """The object that a global name is bound to now."""
        found = self.globals.get(name, MISSING)
        return vars(builtins).get(name, MISSING) if found is MISSING else found
