"""The ways to run a program, and the reference for each: the undecorated body on one example's arrays at a time."""

import contextlib
import importlib.util
import sys

import numpy as np

import autobatch as ab
from autobatch.api.extend import Batched
from autobatch.blocks import kernel_codegen
from autobatch.blocks.batched_program import step_by_step
from autobatch.blocks.launch import launch
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import WEAK, aval_of
from tests.inspect import Tape


def kind_of(x, batched):
    """What `trace` takes for an operand: `x` holds a row for each example if `batched`."""
    if type(x) in WEAK:
        return WEAK[type(x)]
    return aval_of(x.shape[1:] if batched else x.shape, x.dtype, isinstance(x, np.generic))


def traced(body, operands, batched):
    return trace(body, [kind_of(x, own) for x, own in zip(operands, batched, strict=True)])


def boxed(operands, batched):
    return [Batched(x, x.shape[1:]) if own else x for x, own in zip(operands, batched, strict=True)]


def example(operands, batched, i):
    return [x[i] if own else x for x, own in zip(operands, batched, strict=True)]


def outputs_of(result):
    return list(result) if isinstance(result, tuple | list) else [result]


def loop(body, operands, batched, size):
    """The outputs of each example, stacked."""
    rows = [outputs_of(body(*example(operands, batched, i))) for i in range(size)]
    return [np.stack([np.asarray(row[k]) for row in rows]) for k in range(len(rows[0]))]


def steps(program, operands):
    return step_by_step(program, operands)


def calls(program, operands):
    with ab.options(kernels=False):
        return launch(program, operands)


def differentiate(run, program, operands, batched, cts):
    """The outputs, and the gradient of each float operand."""
    tape = Tape()
    leaves = [tape.leaf(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else None for x in operands]
    data = [x if leaf is None else leaf for x, leaf in zip(operands, leaves, strict=True)]
    results = run(program, [Batched(x, x.shape[1:]) if own else x for x, own in zip(data, batched, strict=True)])
    heads = [(x, ct) for x, ct in zip(results, cts, strict=True) if getattr(x, "_ab_tape", None) is tape]
    kept = [leaf for leaf in leaves if leaf is not None]
    found = (
        tape.backward([x for x, _ in heads], [ct for _, ct in heads], [leaf._ab_index for leaf in kept])
        if heads
        else [None] * len(kept)
    )
    gradients = [
        np.zeros(leaf.shape, leaf.dtype) if ct is None else ct.to_dense() if hasattr(ct, "to_dense") else ct
        for leaf, ct in zip(kept, found, strict=True)
    ]
    return [getattr(x, "_ab_value", x) for x in results], gradients


def close(got, want, what):
    assert len(got) == len(want), what
    for a, b in zip(got, want, strict=True):
        a = np.asarray(a)
        assert a.dtype == b.dtype, f"{what}: {a.dtype}, expected {b.dtype}"
        assert a.shape == b.shape, f"{what}: {a.shape}, expected {b.shape}"
        if b.dtype.kind == "f":
            tolerance = 2e-4 if b.dtype == np.float32 else 1e-9
            scale = np.max(np.abs(b[np.isfinite(b)]), initial=1.0)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=what)
        else:
            np.testing.assert_array_equal(a, b, err_msg=what)


class Uncompiled:
    """A kernel as plain Python: the same source, its vector functions in NumPy."""

    failed = False

    def __init__(self, text, number):
        name = f"uncompiled_kernel_{number}"
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, None))
        sys.modules[name] = module
        exec(compile(text, name, "exec"), vars(module))
        for key, value in list(vars(module).items()):
            if hasattr(value, "plain"):
                setattr(module, key, value.plain)
        self.entry = getattr(module.kernel, "py_func", module.kernel)
        self.lanes = module.LANES
        self.text = text

    def poll(self):
        return True


@contextlib.contextmanager
def uncompiled_kernels():
    """Fused forms use their kernels at once, as plain Python; the texts of those that were made."""
    made = []

    def kernel_of(text):
        made.append(text)
        return Uncompiled(text, len(made))

    before = kernel_codegen.kernel_of
    kernel_codegen.kernel_of = kernel_of
    try:
        yield made
    finally:
        kernel_codegen.kernel_of = before
