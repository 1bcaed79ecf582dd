"""Which arrays a function makes itself and writes into, and which of them may have aliases, from its normal form."""

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autobatch.facts.call_effects import ARRAY_SHARERS, functions_of, mutators
from autobatch.program import normal_form as nf
from autobatch.program.effects import ARRAY_METHODS, UNKNOWN, EffectReader, updated, usual_meaning
from autobatch.program.liveness import binds, captured

SHARERS = (ARRAY_SHARERS | {"transpose"}) - {"array"}
"""Functions whose result may share memory: `np.array` only with `copy=`; `np.transpose` is `permute_dims`."""
_MAKERS = frozenset(function.__name__ for function in functions_of("creates"))
_KEEPERS = mutators(list, collections.deque, dict) & {"append", "appendleft", "insert", "setdefault"}
_FRESH = nf.SINGLE | nf.ARITHMETIC | {"not", "list", "dict"}
_BOXES = frozenset({"list", "tuple", "set", "dict", "item"})
_READERS = frozenset(
    ("len", "sum", "min", "max", "abs", "int", "float", "bool", "print", "round", "range", "any", "all")
)


def stored_names(body: Sequence[nf.Statement]) -> set[str]:
    """Names of arrays written by item assignment (`name[a][b] = value`) or by NumPy (`np.add.at(name, ...)`)."""
    out: set[str] = set()
    reader = EffectReader((), (), usual_meaning)
    kept: dict[str, nf.Value] = {}  # what temporary names stand for
    for node in nf.walk(body):
        written: list[nf.Value] = []
        if isinstance(node, nf.Bind) and isinstance(node.target, str) and isinstance(node.value, nf.Name | nf.Read):
            kept[node.target] = node.value
        elif isinstance(node, nf.Write) and not isinstance(node.key, str):
            written = [node.base]
        elif isinstance(node, nf.Call) and _is_numpys(reader, node):
            written = [each for each in reader.changed(node) if each is not None]
        for base in written:
            while True:
                if isinstance(base, nf.Read) and not isinstance(base.key, str):
                    base = base.base
                elif isinstance(base, nf.Name) and base.id.startswith(nf.TEMPORARY) and base.id in kept:
                    base = kept[base.id]
                else:
                    break
            if isinstance(base, nf.Name):
                out.add(base.id)
    return out


def _is_numpys(reader: EffectReader, call: nf.Call) -> bool:
    """True for a call of a NumPy function, or of a method that only arrays have."""
    if reader.value_of(call.function) is not UNKNOWN:
        return True
    return isinstance(call.function, nf.Read) and call.function.key in ARRAY_METHODS


class Ownership:
    """The names whose arrays the function made itself and writes into, and which of them may have aliases.

    Attributes:
        written: names whose items are assigned, here or in a nested function, or that are updated in place.
        own: names in `written` whose array has no alias: a loop, which carries a value only under its name, may
            write into it for some of the lanes, unless views of it are alive.
        views: names that may hold a view of, or be another name for, an array.
        carried: names in `written` that are local to the function, not to an enclosing one: a loop may rebind them.
    """

    def __init__(self, function: nf.Closure) -> None:
        nodes = list(nf.walk(function.body))
        parameters = set(function.parameters.names)
        seen = captured(function)
        changed = {name for node in nodes if isinstance(node, nf.Bind) and updated(node) for name in _targets(node)}
        inner = [stored_names(node.body) - {*node.parameters.names} for node in nodes if isinstance(node, nf.Closure)]
        self.written = stored_names(function.body) | changed | (seen & set().union(*inner))
        self._values: dict[str, list[nf.Value]] = {}
        self._filled = {node.fills for node in nodes if isinstance(node, nf.Loop)}
        for node in nodes:
            if isinstance(node, nf.Bind) and isinstance(node.target, str) and node.value is not None:
                self._values.setdefault(node.target, []).append(node.value)
            elif isinstance(node, nf.Bind) and isinstance(node.target, nf.Unpack) and isinstance(node.value, nf.Call):
                for target, value in zip(node.target.targets, node.value.args, strict=False):
                    if node.value.symbol == "tuple" and isinstance(target, str):
                        self._values.setdefault(target, []).append(value)
        self.views = {name for node in nodes for name in self._bound_otherwise(node)}
        given = parameters - self._rebound_to_fresh(function.body)
        aliased = self._aliased(nodes)
        bound = {name for node in nodes for name in _targets(node)}
        self.own = (self.written & bound) - (aliased | self.views | given | seen)
        self.carried = self.written & (parameters | bound)
        elsewhere = _may_write_to_aliases(nodes, self.views | given)
        known = aliased | _viewed(nodes) if elsewhere else set()
        held = [part for node in nodes for part in self._held(node, known, elsewhere)]
        self._makes = {id(each) for part in held for each in self._behind(part) if is_maker(each)}
        for name in list(self.written):
            for value in self._values.get(name, ()):
                self._makes.update(id(each) for each in self._behind(value))

    def makes(self, value: nf.Value) -> bool:
        """True if an array made here will be written into, or be held by a container, an object or the caller: a later
        write has to find one array per lane."""
        return id(value) in self._makes

    def _behind(self, value: nf.Value) -> Iterator[nf.Value]:
        """The values that a temporary name, kept or decided by a branch, stands for; any other value itself."""
        if isinstance(value, nf.Name) and value.id.startswith(nf.TEMPORARY) and value.id not in self._filled:
            for each in self._values.get(value.id, ()):
                yield from self._behind(each)
        elif isinstance(value, nf.Sugar) and value.how == "if":
            yield from value.parts[1:]
        else:
            yield value

    def _is_fresh(self, value: nf.Value) -> bool:
        return is_fresh(value) or (isinstance(value, nf.Name) and value.id in self._filled)

    def _bound_otherwise(self, node: nf.Node) -> Iterator[str]:
        """Names that a statement may bind to a view of an existing array, or to the array itself."""
        match node:
            case nf.Bind(target=str(), value=value) if value is not None and (self._is_fresh(value) or updated(node)):
                return
            case nf.Bind(target=nf.Unpack(targets=targets, starred=-1), value=nf.Call(args=values) as value) if (
                value.symbol == "tuple" and len(targets) == len(values)
            ):
                for target, each in zip(targets, values, strict=True):
                    if not self._is_fresh(each) or not isinstance(target, str):
                        yield from nf.target_names(target)
            case _:
                yield from _targets(node)

    def _rebound_to_fresh(self, body: Sequence[nf.Statement]) -> set[str]:
        """Names that every call rebinds to a fresh array (`x = x.copy()`) before a write can reach the old one."""
        out: set[str] = set()
        touched: set[str] = set()
        for node in body:
            if isinstance(node, nf.Bind) and isinstance(node.target, str) and node.value is not None:
                out |= {node.target} - touched if self._is_fresh(node.value) else set()
            touched |= binds([node]) | stored_names([node])
        return out

    def _held(self, node: nf.Node, aliased: set[str], in_containers: bool) -> Sequence[nf.Value]:
        """Values put into an attribute, a name in `aliased` or a loop, or, if `in_containers`, a container."""
        match node:
            case nf.Loop(target=target, over=over) if target is not None:
                changed = stored_names(node.body) | binds(node.body)
                return [over, *getattr(over, "args", ())] if changed.intersection(nf.target_names(target)) else []
            case nf.Write(key=str(), value=nf.Value() as value):
                return [value]
            case nf.Write(base=nf.Name(id=base), value=nf.Value() as value) if base in self._filled and in_containers:
                return [value]
            case nf.Bind(target=str(name), value=nf.Value() as value) if name in aliased:
                return [value]
            case nf.Call() if in_containers and node.symbol in _BOXES:
                return node.args
            case nf.Sugar(how="list" | "dict", parts=parts) if in_containers:
                return parts
            case nf.Call(function=nf.Read(key=key), args=args) if in_containers and key in _KEEPERS:
                return args
        return []

    def _aliased(self, nodes: list[nf.Node]) -> set[str]:
        """Names that may have aliases: those mentioned other than as an operand or as an indexed array."""
        harmless = {id(part) for node in nodes for part in _harmless(node)}
        kept: list[tuple[str, str]] = []
        for node in nodes:
            match node:
                case nf.Bind(target=str(target), value=nf.Name(id=name) as value) if target.startswith(nf.TEMPORARY):
                    kept.append((name, target))
                    harmless.add(id(value))
        found = {node.id for node in nodes if isinstance(node, nf.Name) and id(node) not in harmless}
        return found | {name for name, temporary in kept if temporary in found}


def _harmless(node: nf.Node) -> Sequence[nf.Value]:
    """The parts of a node that it does not make another name of."""
    match node:
        case nf.Return(value=nf.Value() as value):
            return [value, *(value.args if isinstance(value, nf.Call) and value.symbol == "tuple" else ())]
        case nf.Write(key=nf.Value() as key):
            return [node.base, key]
        case nf.Read(base=base, key=nf.Value() as key):
            return [base, key]
        case nf.Read(base=base, key="shape" | "ndim" | "size" | "dtype"):
            return [base]
        case nf.Call(function=nf.Read(base=base, key=str() as key), args=args):
            if _may_not_copy(node):
                return []
            is_module = isinstance(base, nf.Name) and base.id in ("np", "numpy", "math")
            # A ufunc's third one may be the output array, which it returns.
            return [base, *(args[:2] if is_module and key not in SHARERS else ())]
        case nf.Call(function=nf.Name(id=name), args=args) if name in _READERS:
            return args
        case nf.Call(args=args) if node.symbol and node.symbol not in _BOXES:
            return args
        case nf.Sugar(how="compare", parts=parts):
            return parts
    return []


def _targets(node: nf.Node) -> Iterable[str]:
    """The names that a statement itself binds; not those of `def`, `except` and the like."""
    if isinstance(node, nf.Loop) or (isinstance(node, nf.Bind) and not isinstance(node.value, nf.Closure | None)):
        return nf.target_names(node.target)
    return nf.target_names(getattr(node, "target", None)) if not isinstance(node, nf.Bind | nf.Unpack) else ()


def _may_write_to_aliases(nodes: list[nf.Node], unclear: set[str]) -> bool:
    """True if a write may reach an array that is held in a container or known by several names."""
    for node in nodes:
        base: Any = None
        if isinstance(node, nf.Bind) and updated(node) is not None:
            base = node.value.args[0]  # type: ignore[union-attr]
        elif isinstance(node, nf.Write) and not isinstance(node.key, str):
            base = node.base
        if base is not None and (not isinstance(base, nf.Name) or base.id in unclear):
            return True
    return False


def _viewed(nodes: list[nf.Node]) -> set[str]:
    """Names of values of which an item or attribute is assigned to another target."""
    values = (node.value for node in nodes if isinstance(node, nf.Bind | nf.Write))
    return {x.base.id for x in values if isinstance(x, nf.Read) and isinstance(x.base, nf.Name)}


def is_maker(call: nf.Value) -> bool:
    """True if a call makes an array that is not derived from others, as `np.zeros` does; any module name counts."""
    return isinstance(call, nf.Call) and isinstance(call.function, nf.Read) and call.function.key in _MAKERS


def is_fresh(value: nf.Value) -> bool:
    """True if a value is new, so that nothing else refers to it."""
    if isinstance(value, nf.Call) and isinstance(value.function, nf.Read):
        key, module = value.function.key, value.function.base
        if _may_not_copy(value):
            return False
        is_numpy = isinstance(module, nf.Name) and module.id in ("np", "numpy")
        return key in ("copy", "astype") or (is_numpy and key not in SHARERS)
    if isinstance(value, nf.Call | nf.Sugar):
        return (value.symbol if isinstance(value, nf.Call) else value.how) in _FRESH
    return isinstance(value, nf.Constant | nf.Closure)


def _may_not_copy(call: nf.Call) -> bool:
    """True if a call that usually copies may return the array itself."""
    key = getattr(call.function, "key", None)
    return key in ("conj", "conjugate") or any(name in ("copy", "") for name, _ in call.keywords)
