"""`ab.map` of `ab.grad(f)`, compiled: the value and the gradient of each example, in one pass over all."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.grad import Gradient
from autobatch.compiled.compiled_call import Arguments, ColumnPlace, CompiledCall
from autobatch.compiled.compiled_map import CompiledForm, Run, check, prepared
from autobatch.compiled.taping import backward
from autobatch.compiled.translation.exact_types import Scalar, Tuple, Type, Union
from autobatch.compiled.value_layout import unpack
from autobatch.errors import Unsupported


def prepared_gradient(
    gradient: Gradient, columns: Sequence[Any], shared: dict[str, Any], arguments_of: Arguments | None, first: int = 0
) -> tuple[CompiledCall, CompiledForm | None, backward.TapedCode | None]:
    """The call's data, and the compiled forms for its types, forward and for gradients; None if there are no examples.

    Raises:
        Unsupported: the function, this call of it, or these gradients have no compiled form.
    """
    call, form = prepared(gradient.function, columns, shared, arguments_of, first)
    if form is None:
        return call, None, None
    if form.module is None:
        raise Unsupported(form.reason)
    kinds = form.module.root.kinds
    if not all(0 <= position < len(kinds) for position in gradient.positions):
        raise Unsupported("argnums names an argument that was not given")
    for kind in [kinds[position] for position in gradient.positions]:
        if not backward.differentiable(kind):
            raise Unsupported(f"the gradient with respect to a {kind} is not compiled")
    if not _is_scalar(_result(gradient, form.module.result)):
        raise Unsupported(f"the gradient of a {form.module.result} is not compiled")
    return call, form, backward.taped_form(form, [position in gradient.positions for position in range(len(kinds))])


def _result(gradient: Gradient, kind: Type) -> Type:
    """The type of what is differentiated."""
    if not gradient.has_aux:
        return kind
    return kind.items[0] if isinstance(kind, Tuple) and len(kind.items) == 2 else None


def _is_scalar(kind: Type) -> bool:
    scalars = kind.scalars if isinstance(kind, Union) else {kind}
    return any(isinstance(each, Scalar) and each.kind == "f" for each in scalars)


def compiled_gradient_map(
    gradient: Gradient, in_python: Callable[..., Any], columns: Sequence[Any], shared: dict[str, Any],
    arguments_of: Arguments | None = None, first: int = 0,
) -> list[Any]:  # fmt: skip
    """What a gradient function returns for each example.

    Args:
        gradient: the gradient function; in_python: the same, on a tape in Python.
        columns, shared, arguments_of, first: as for `compiled_map`.

    Raises:
        Unsupported: there is no compiled form, or not yet; nothing has run.
        Exception: the exception of the first example that raises, with a note that names the example.
    """
    call, form, taped = prepared_gradient(gradient, columns, shared, arguments_of, first)
    if form is None or taped is None:
        return []
    taped.require_ready()
    assert form.module is not None
    assert taped.module is not None
    place = 2 if isinstance(_result(gradient, form.module.result), Union) else 0
    cotangents = backward.Cotangents(
        {k: np.ones(call.count) for k in taped.module.seeded},
        {k: np.arange(call.count) if k == place else np.full(call.count, -1) for k in taped.module.seeded},
    )
    try:
        done = backward.run_backward(call, form, taped, cotangents, 0, call.count, True)
    except OverflowError:
        raise Unsupported("an int of more than 64 bits") from None
    outs = done.outs if isinstance(done.outs, tuple) else ()
    values = unpack(form.module.result, outs, call.count - len(done.failed))
    python = dataclasses.replace(call, function=in_python)  # type: ignore[arg-type]
    results = _assembled(gradient, call, form, values, done, taped)
    if isinstance(_result(gradient, form.module.result), Union):  # an int result has no gradient: Python raises
        given = iter([value[0] if gradient.has_aux else value for value in values])
        bad = set(done.failed)
        kinds = [index in bad or isinstance(next(given), float | np.floating) for index in range(call.count)]
        done.failed += [index for index, is_float in enumerate(kinds) if not is_float]
    run = Run(results, sorted({*done.failed, *done.inexact}), lambda first, last: None)
    if not taped.checked:
        taped.checked = check(python, taped, run, f"the gradient of {gradient.function.__qualname__}", True)
    run.finish(python.in_python)
    return results


def _assembled(
    gradient: Gradient, call: CompiledCall, form: CompiledForm, values: list[Any], done: backward.Backward,
    taped: backward.TapedCode,
) -> list[Any]:  # fmt: skip
    """The results, in the form in which the gradient function returns them."""
    assert form.module is not None
    assert taped.module is not None
    kinds, varying = form.module.root.kinds, form.module.varying
    shared = taped.module.shared
    shared_leaves, own_leaves, tables = iter(done.leaves[:shared]), iter(done.leaves[shared:]), iter(done.tables)
    trees: dict[int, list[Any]] = {}
    for position in sorted(set(gradient.positions)):
        value = call.values[position]
        if varying[position]:
            if not isinstance(value, ColumnPlace):
                raise Unsupported("the gradient with respect to an argument that is partly shared is not compiled")
            trees[position] = backward.gradients_of(kinds[position], call.examples(value.column), own_leaves, tables)
        else:
            trees[position] = backward.gradients_of(kinds[position], [value] * call.count, shared_leaves, tables)
    if gradient.single:
        grads: Sequence[Any] = trees[gradient.positions[0]]
    else:
        grads = list(zip(*(trees[position] for position in gradient.positions), strict=True))
    given = iter(values)
    bad = set(done.failed)
    return [None if index in bad else gradient.result(next(given), grads[index]) for index in range(call.count)]
