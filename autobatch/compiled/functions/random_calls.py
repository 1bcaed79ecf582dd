"""`np.random.default_rng(seed)`, and the methods of a generator."""

import numpy as np

from autobatch.compiled.functions.numpy_calls import shape_of
from autobatch.compiled.functions.python_sources import method
from autobatch.compiled.translation import arrays
from autobatch.compiled.translation.calls import calls, methods
from autobatch.compiled.translation.exact_types import FIXED, FLOAT, INT, NONE, OWN, Array, RandomStream, Scalar
from autobatch.compiled.translation.number_operators import cast
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import NO_CONSTANT, Value, assigned, code, item_text
from autobatch.errors import DRAW_BEFORE
from autobatch.ops.rules.dispatch import leave_to_python
from autobatch.program import normal_form as nf

_WHOLE = Scalar("int64", False)


@calls(np.random.default_rng)
def default_rng(reader: Reader, node: nf.Node, seed: Value | None = None) -> Value:
    """`np.random.default_rng` of a seed."""
    if seed is None or not isinstance(seed.kind, Scalar) or seed.kind.kind not in "iu":
        if seed is not None and isinstance(seed.kind, RandomStream):
            return seed
        raise reader.refuse("a random generator whose seed is not one int", node)
    text = reader.temp(reader.index(seed, node), INT).text
    reader.fail_if(f"{text} < 0")
    return reader.temp(f"new_stream({text})", RandomStream())


def _used(reader: Reader, stream: Value, node: nf.Node) -> None:
    """Record that a generator advances; refuse a shared one, which each example finds where the last one left it."""
    if stream.kind.given & FIXED:
        raise reader.refuse("a random generator that examples share, and use in their order", node, instead=DRAW_BEFORE)
    if stream.kind.given & OWN:
        reader.program.note_write(stream.kind)


def _float(reader: Reader, value: Value | None, default: float, node: nf.Node) -> str:
    if value is None:
        return repr(default)
    if not isinstance(value.kind, Scalar) or value.kind == NONE:
        raise reader.refuse(f"a distribution with {value.kind} as parameter", node)
    return reader.temp(cast(value, FLOAT), FLOAT).text


def _drawn(reader: Reader, node: nf.Node, stream: Value, size: Value | None, one: str, kind: Scalar = FLOAT) -> Value:
    """A random number, or an array of them of this size."""
    _used(reader, stream, node)
    if size is None or size.kind == NONE:
        return reader.temp(one, kind)
    text, rank = shape_of(reader, size, node)
    out = reader.temp(f"np.empty({text}, np.{kind.name})", Array(kind.name, rank))
    flat = reader.temp(code(".ravel", out.text), Array(kind.name, 1))
    reader.emit(f"for i in range({flat.text}.size):", [assigned(item_text(flat.text, "i"), one)])
    return out


def _distribution(name: str, one: str, *parameters: tuple[str, float]) -> None:
    """Register a method: `one` is a number's text, of `stream`, the parameters, and `wide`, which must not be negative.

    Args:
        parameters: each with its name and its default.
    """

    @methods(RandomStream, name)
    def call(reader: Reader, node: nf.Node, stream: Value, *args: Value, **named: Value) -> Value:
        names = [*(each for each, _ in parameters), "size"]
        given = {**dict(zip(names, args, strict=False)), **named}
        if len(args) > len(names) or not set(given) <= set(names):
            raise reader.refuse("with these arguments it is not compiled", node)
        texts = {each: _float(reader, given.get(each), default, node) for each, default in parameters}
        if parameters:
            wide = f"{texts['high']} - {texts['low']}" if "high" in texts else texts["scale"]
            texts["wide"] = reader.temp(wide, FLOAT).text
            reader.fail_if(f"not {texts['wide']} >= 0.0")
        return _drawn(reader, node, stream, given.get("size"), one.format(stream=stream.text, **texts))


_distribution("random", "next_float({stream})")
_distribution("standard_normal", "next_normal({stream})")
_distribution("standard_exponential", "next_exponential({stream})")
_distribution("uniform", "{low} + {wide} * next_float({stream})", ("low", 0.0), ("high", 1.0))
_distribution("normal", "{loc} + {wide} * next_normal({stream})", ("loc", 0.0), ("scale", 1.0))
_distribution("exponential", "{wide} * next_exponential({stream})", ("scale", 1.0))


@methods(RandomStream, "integers")
def integers(
    reader: Reader, node: nf.Node, stream: Value, low: Value, high: Value | None = None, size: Value | None = None,
    endpoint: Value | None = None,
) -> Value:  # fmt: skip
    """`Generator.integers`."""
    if endpoint is not None and endpoint.constant is NO_CONSTANT:
        raise reader.refuse("endpoint= that is not a constant", node)
    more = "0" if endpoint is not None and endpoint.constant else "1"
    first = reader.temp(reader.index(low, node), INT).text
    if high is None or high.kind == NONE:
        start, end = "0", first
    else:
        start, end = first, reader.temp(reader.index(high, node), INT).text
    reader.fail_if(f"{start} < -4611686018427387904 or {end} > 4611686018427387904")
    most = reader.temp(f"{end} - {more} - {start}", INT).text
    reader.fail_if(f"{most} < 0 or {most} >= 4294967295")
    return _drawn(reader, node, stream, size, f"next_whole({stream.text}, int64({start}), {most})", _WHOLE)


@methods(RandomStream, "shuffle")
def shuffle(reader: Reader, node: nf.Node, stream: Value, x: Value) -> Value:
    """`Generator.shuffle` of a vector."""
    _used(reader, stream, node)
    if not isinstance(x.kind, Array) or x.kind.ndim != 1:
        raise reader.refuse(f"shuffling a {x.kind}", node)
    arrays.writable(reader, x, node)
    places = reader.temp(f"shuffle_places({stream.text}, {x.text}.size)", Array("int64", 1))
    reader.emit(assigned(item_text(x.text, ":"), item_text(x.text, places.text)))
    return Value(NONE, "0", None)


@method(RandomStream, "choice")
def choice(generator, a, size=None, replace=True, p=None):
    if p is not None or not (replace or size is None):
        leave_to_python()
    if isinstance(a, (int, np.integer)):
        return int(generator.integers(a)) if size is None else generator.integers(a, size=size)
    values = np.asarray(a)
    if values.ndim != 1:
        leave_to_python()
    return values[generator.integers(len(values), size=size)]


@method(RandomStream, "permutation")
def permutation(generator, x):
    out = x.copy() if isinstance(x, np.ndarray) else np.arange(x)
    generator.shuffle(out)
    return out
