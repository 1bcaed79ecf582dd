"""Products with the rows of an array that a loop runs over are made before the loop, for all rows at once.

    for x in rows:                                   ahead = rows @ w
        h = np.tanh(x @ w + h @ u)        ->         for k in range(len(rows)):
                                                         h = np.tanh(ahead[k] + h @ u)

A tall product takes a fraction of the time of as many products of vectors, and has one record on a gradient's tape.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from autobatch.compiled.translation import arrays
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.typed_text import Value
from autobatch.program import normal_form as nf
from autobatch.program.liveness import binds


def row_products(reader: Any, loop: nf.Loop) -> dict[nf.Value, Sequence[nf.Call]]:
    """The products `x @ w` that each round makes of an item x and of what the loop does not bind, by x's iterable."""
    inside = list(nf.walk(loop.body))
    if any(isinstance(each, nf.Jump | nf.Return) for each in inside):
        return {}  # some rows may not be reached
    always = [part for each in loop.body if isinstance(each, nf.Bind | nf.Write) for part in _parts(each)]
    changed = binds(loop) | {_root(each.base) for each in inside if isinstance(each, nf.Write)} | {""}
    out: dict[nf.Value, Sequence[nf.Call]] = {}
    for name, over in _items(reader, loop.target, loop.over):
        of_name = [each for each in always if isinstance(each, nf.Call) and each.symbol == "@"]
        of_name = [each for each in of_name if isinstance(each.args[0], nf.Name) and each.args[0].id == name]
        if name not in binds(loop.body):
            out[over] = [each for each in of_name if _root(each.args[1]) not in changed]
    return out


def _items(reader: Any, target: nf.Target | None, over: Any) -> Iterator[tuple[str, nf.Value]]:
    """The names that a loop binds to items of an iterable, each with the iterable."""
    over = reader.given.get(getattr(over, "id", None), over)
    called = over.function.id if isinstance(over, nf.Call) and isinstance(over.function, nf.Name) else ""
    if isinstance(target, str):
        yield target, over
    elif target is not None and called in ("zip", "enumerate"):
        for each, own in zip(target.targets, [over.function, *over.args][called == "zip" :], strict=False):
            yield from _items(reader, each, own)


def _parts(node: nf.Node) -> Iterator[nf.Value]:
    for value in nf.values_of(node):
        yield value
        yield from _parts(value)


def _root(node: nf.Node) -> str:
    """The variable that a value is, or is a part of by a constant key; "" for others."""
    while isinstance(node, nf.Read) and isinstance(node.key, str | nf.Constant):
        node = node.base
    return node.id if isinstance(node, nf.Name) else ""


def made_ahead(reader: Any, rows: Value, products: Sequence[nf.Call]) -> dict[nf.Call, Value]:
    """Write products of a matrix before its rows are taken, as far as nothing writes into the factors; their values."""
    out = {}
    for call in products if _is_kept(reader, rows) and rows.kind.ndim == 2 else ():
        known = reader.env.get(_root(call.args[1]))
        if known is not None and not known.maybe_unbound and isinstance(known.kind, types.Array | types.Struct):
            factor = reader.held(reader.expr(call.args[1]))
            if _is_kept(reader, factor) and 0 < factor.kind.ndim < 3:
                out[call] = reader.held(arrays.matmul(reader, rows, factor, call))
    return out


def _is_kept(reader: Any, value: Value) -> bool:
    """True for an array of floats that nothing writes into, as far as the program is read; else that is read again."""
    kind = value.kind
    if not isinstance(kind, types.Array) or not kind.dtype.startswith("float"):
        return False
    given = kind.given & types.OWN
    return not reader.program.may_change(kind) if given else bool(kind.given) or kind.dtype not in reader.program.fills
