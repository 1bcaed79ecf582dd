"""Every statement that writes into an array `h`, made of the table of calls, in each way that it can be said.

Only those that do change a sample are given, so the same list serves arrays of any dtype.
"""

import inspect
import warnings

import numpy as np

from autobatch.facts.call_effects import _METHODS, _effect, effect_of
from autobatch.facts.operators import ARITHMETIC

_BEFORE = {  # the arguments before `out`, where they are not `h` and the defaults after it
    "clip": "h, 1, 2", "take": "h, [0] * len(h)", "compress": "[True] * len(h), h",
    "choose": "0 * h.astype(int), [h + 1]",
    "dot": "h, 2", "outer": None, "percentile": None, "quantile": None,
}  # fmt: skip
_ALWAYS = {
    "copyto": "h, 1 + h[::-1]", "put": "h, [0], 5", "place": "h, h > 1, [5]", "putmask": "h, h > 1, 5",
    "fill_diagonal": None, "put_along_axis": "h, np.array([0]), 5, 0",
}  # fmt: skip
_METHOD_ARGUMENTS = {
    "fill": "3", "partition": "1", "put": "[0], 5", "sort": "", "byteswap": "True", "round": "0, h", "clip": "1, 2, h",
    "setfield": "1, h.dtype", "take": "[0] * len(h), None, h", "dot": "2, h",
}  # fmt: skip
_SWITCHED = ("np.nan_to_num(h, copy=False)", "np.nan_to_num(h, False)", "np.median(h, overwrite_input=True)")


def candidates():
    for operator in ARITHMETIC:
        yield f"h {operator.symbol}= 2"
    for name in sorted(dir(np)):
        function = getattr(np, name)
        if isinstance(function, np.ufunc) and function.nout == 1 and not function.signature:
            inputs = ", ".join(["h", "2"][: function.nin])
            yield f"np.{name}({inputs}, h)"
            yield f"np.{name}({inputs}, out=h)"
            yield f"np.{name}({inputs}, out=(h,))"
            if function.nin == 2:
                yield f"np.{name}.accumulate(h, 0, None, h)"
                yield f"np.{name}.at(h, [0], 2)"
            continue
        effect = effect_of(function) if callable(function) and not isinstance(function, type) else None
        if effect is None or not effect.changes_nothing_outside:
            continue
        if effect.always_writes and _ALWAYS.get(name):
            yield f"np.{name}({_ALWAYS[name]})"
        elif "out" in effect.writes and _BEFORE.get(name, "h"):
            before = _BEFORE.get(name, "h")
            yield f"np.{name}({before}, out=h)"
            yield f"np.{name}({', '.join([before, *between(function, before)])}, h)"
    for name, effect in [(name, _effect(entry)) for name, entry in _METHODS[np.ndarray].items()]:
        if not name.startswith("_") and name in _METHOD_ARGUMENTS:
            yield f"h.{name}({_METHOD_ARGUMENTS[name]})"
        elif "out" in effect.writes:
            yield f"h.{name}(out=h)"
            yield f"h.{name}({', '.join([*between(getattr(np.ndarray, name), 'self'), 'h'])})"
    yield from (
        "h[0] = 7",
        "h[1:] += 2",
        "h[:] = h[::-1].copy()",
        "h.sort()",
        "h.flat[0] = 7",
        "h.T[0] = 7",
        *_SWITCHED,
    )


def between(function, before):
    """The defaults of the positional arguments up to `out`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return []
    names = [each.name for each in parameters]
    if "out" not in names:
        return []
    given = len(before.split(", ")) if before != "self" else 1
    defaults = [each.default for each in parameters[given : names.index("out")]]
    return ["None" if default is inspect.Parameter.empty else repr(default) for default in defaults]


def writing_statements(sample):
    """Those of the statements that change an array like `sample`."""
    out = []
    for text in candidates():
        h = sample.copy()
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                exec(text, {"np": np, "h": h})
        except Exception:
            continue
        if h.tobytes() != sample.tobytes():
            out.append(text)
    return list(dict.fromkeys(out))


def module_of(tmp_path_factory, name, text):
    """A module with this source, from a file, since functions are found by their source."""
    path = tmp_path_factory.mktemp(name) / f"{name}.py"
    path.write_text(text)
    names = {"__name__": name, "__file__": str(path)}
    exec(compile(text, str(path), "exec"), names)
    return names
