"""Random chains of views, copies, element-wise ops and writes, as source text of a function f(x, w) of a (3, 4) array.

Every array that a chain makes is returned, so a write that reaches what it should not, or does not reach what it
should, is seen. A soak run:
    python -m tests.memory_chains --seed 5000 --count 500 [memory] [memory-gradients]
"""

import importlib.util
import pathlib
import random
import sys
import tempfile
import warnings

import numpy as np

import autobatch as ab
from tests.fuzz import by_seed, main

I = "np.array([1, 0])"
MAKERS = [
    "{u}.T", "np.tanh({u})", "{u} + {v}", "{u} * 2.0", "-{u}", "{u}.copy()", "np.copy({u})", "{u}.copy(order='F')",
    "{u}.copy(order='K')", "{u}.ravel()", "{u}.ravel('K')", "{u}.ravel('F')", "{u}.reshape(-1)", "{u}.flatten()",
    "{u}.flatten('F')", "{u}.reshape(-1, order='F')", "{u}.reshape(-1, order='A')", "{u}[::2]", "{u}[1:]", "{u}[::-1]",
    "{u}[0]", "{u}[None]", "np.zeros_like({u})", "np.ones_like({u}, order='C')", "np.full_like({u}, 0.5)",
    "{u}.astype(np.float32).astype(np.float64)", "np.ascontiguousarray({u})", f"{{u}}[{I}]", "np.array({u})",
    "np.asarray({u})", "np.squeeze({u})", "{u}.view()", "np.concatenate([{u}, {v}], axis={axis})",
    "np.stack([{u}, {v}], axis={axis})", "np.where({u} > 0, {u}, {v})", "np.maximum({u}, {v})",
    "np.cumsum({u}, axis={axis})", "np.sort({u}, axis={axis})", "{u}.sum(axis={axis})",
    "{u}.sum(axis={axis}, keepdims=True) * {u}", "np.roll({u}, 1, axis={axis})", "np.flip({u}, {axis})",
    "np.broadcast_to({u}, (2,) + {u}.shape)", "np.diff({u}, axis={axis})", f"np.take({{u}}, {I}, axis={{axis}})",
    "np.repeat({u}, 2, axis={axis})", "np.expand_dims({u}, {axis})", "np.atleast_2d({u})", "np.tile({u}, 2)",
    "np.pad({u}, 1)", "np.linalg.norm({u}, axis={axis})", "{u}.flatten('K')", "np.broadcast_to({u}[:1], {u}.shape)",
    "np.broadcast_to({u}[..., :1], {u}.shape)", "np.full_like({u}, {u}[:1])", "np.nan_to_num({u})",
    "np.partition({u}, 1, axis={axis})", "{u}.astype(np.float32)", "np.array({u}, order='A')",
]  # fmt: skip
OF_MATRICES = [
    "np.transpose({u}, {axes})", "{u}.swapaxes(0, 1)", "np.moveaxis({u}, 0, -1)", "{u}[:, 1:]", "{u}[:, ::2]",
    f"{{u}}[:, {I}]", "{u}[..., 0]", "{u}[:, None]", "{u}.reshape({u}.shape[0], -1)", "{u}.reshape(-1, {u}.shape[-1])",
    "{u}.reshape({u}.shape[0], 2, -1)", "{u} @ {u}.swapaxes(-1, -2)", "{u} + {u}[0]", "{u}[:, :1] + {u}",
    "np.einsum('i...->...i', {u})", "np.einsum('ij,ij->ji', {u}, {v})", "np.einsum('ij,kj->ik', {u}, {v})",
    "{u}[np.ix_([0, 1], [1, 0])]", "np.split({u}, 2, axis=-1)[0]", "np.diagonal({u})", "np.triu({u})", "np.rot90({u})",
    "np.vstack([{u}, {v}])", "np.hstack([{u}, {v}])", "np.take_along_axis({u}, np.argsort({u}, axis=0), axis=0)",
]  # fmt: skip
WRITES = [
    "{u}[...] = 3.0", "{u}[0] = 7.0", "{u} += 1.5", "{u} *= 0.5", "np.add({u}, 1.0, out={u})", "{u}[0] *= 2.0",
    "{u}[-1] = {u}[0]", "{u}.flat[1] = 4.0", "{u}.sort(axis=0)", "np.copyto({u}, {v})", "{u}[{u} > 1.0] = 0.25",
    "{u}[:] = {v} * 2", "np.tanh({v}, out={u})", "{u}.fill(2.0)", "np.put({u}, [0, 1], [5.0, 6.0])",
]  # fmt: skip
WRITES_OF_MATRICES = ["{u}[:, 0] = 8.0", "{u}[0, 1] = 9.0", "{u}[:, 1:] += 1.0", "{u}.T[0] = 1.0"]
ASKED = ["{u}.flags.c_contiguous", "{u}.flags['F_CONTIGUOUS']", "{u}.strides", "np.shares_memory({u}, {v})"]


def write(seed):
    """The source of one chain, each line of which NumPy runs."""
    choices = random.Random(seed)
    known = {"np": np, "x": np.arange(12.0).reshape(3, 4), "w": 0.7}
    lines, names = ["a0 = x * w"], ["a0"]
    exec(lines[0], known)
    length = choices.randint(3, 9)
    while len(lines) < length:
        u = choices.choice(names)
        rank, matrix = known[u].ndim, known[u].ndim > 1
        alike = [name for name in names if known[name].shape == known[u].shape]
        axes = tuple(choices.sample(range(rank), rank))
        words = {"u": u, "v": choices.choice(alike), "axis": choices.randrange(rank), "axes": axes}
        makes = choices.random() < 0.62
        if makes:
            form = choices.choice(MAKERS + 2 * OF_MATRICES * matrix)
        else:
            form = choices.choice(WRITES + WRITES_OF_MATRICES * matrix)
        line = (f"a{len(names)} = " if makes else "") + form.format(**words)
        try:
            exec(line, known)
        except (ValueError, IndexError):
            continue
        if makes:
            made = known.get(f"a{len(names)}")
            if not 0 < made.size <= 400 or not 0 < made.ndim <= 4:
                continue
            names.append(f"a{len(names)}")
        lines.append(line)
    if choices.random() < 0.3:
        lines.append("asked = " + choices.choice(ASKED).format(u=choices.choice(names), v=choices.choice(names)))
        names.append("asked")
    return "".join(f"    {line}\n" for line in ["import numpy as np", *lines, f"return {', '.join(names)},"])


def examples(seed):
    """Three examples; in every third chain of different lengths."""
    random_state = np.random.default_rng(seed)
    return [random_state.normal(size=(3 + (i if seed % 3 == 0 else 0), 4)) for i in range(3)]


def imported(source, name, folder):
    """The module of this source: a file, because what is rewritten has one."""
    path = pathlib.Path(folder, f"{name}.py")
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(seed, grad=False):
    """Compare one chain with NumPy in every way."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = write(seed)
        chain = imported("def chain(x, w):\n" + source, f"chain_{seed}", folder).chain
        try:
            grad = grad and "float32" not in source  # gradients would be compared as the float64 that they are
            ab.testing.assert_equivalent(chain, examples(seed), grad=grad, w=np.float64(0.7))
        except AssertionError as error:
            error.add_note(source)
            raise


FUZZERS = {"memory": by_seed(check), "memory-gradients": by_seed(lambda seed: check(seed, grad=True))}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
