"""`ab.source`: a function as the user wrote it, each line marked with how it runs; or the code that runs instead."""

import inspect
import itertools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from autobatch.batches.any_batch import Batch
from autobatch.compiled.compiled_map import prepared
from autobatch.core.formatting import wrapped
from autobatch.errors import NeedsLoop, Reason, Unsupported, UnsupportedError
from autobatch.lazy.block_forms import block_source
from autobatch.lazy.recorders.generated_recorders import recorder_text
from autobatch.lockstep.lockstep_forms import block_lines
from autobatch.lockstep.lockstep_forms import source as lock_step_source
from autobatch.program.python_text import printed
from autobatch.program.source import normal_form
from autobatch.report.source_lines import plain_function, source_of


def source(function: Callable[..., Any], *, rewritten: bool = False, blocks: bool = False) -> str:
    """The source of a function, each line marked with what lock-step does with it.

    `block`: part of a run of array expressions that is one launch; `parts`: examples may take different
    branches here, each of which runs for those that take it; `steps`: a loop, each step of which runs for all examples
    still in it; `refused`: it cannot run batched, and the examples fall back to tracing: the reason is given below.

    Args:
        function: the function, decorated with `ab.batch` or not, or an object with a method `__call__`.
        rewritten: show the code that lock-step runs instead; the functions that it calls are in `lockstep/runtime.py`.
            A condition is an object that gives each of its branches the examples that take it; the variables that they
            assign are joined at its end.
        blocks: show the code that `ab.map` runs instead, in which each straight-line run of array expressions is one
            call of a recorder.

    Returns:
        Text: of marked lines, or Python source.

    Raises:
        UnsupportedError: the function has no source; the message says why.

    >>> import autobatch as ab
    >>> def clipped(x):
    ...     if x > 1:
    ...         x = 1.0
    ...     return x
    >>> print(ab.source(clipped))
       1           def clipped(x):
       2  parts        if x > 1:
       3                   x = 1.0
       4               return x
    >>> print(ab.source(clipped, rewritten=True))
    def clipped(x):
        _ab_if_1 = _ab_if(_ab_gt(x, 1), (x,), False, False)
        for _ab_arm_1 in _ab_if_1:
            if _ab_arm_1:
                x = 1.0
            if _ab_if_1.split:
                _ab_if_1.end((x,))
        if _ab_if_1.split:
            x, = _ab_if_1.join()
        return x
    """
    plain = plain_function(function)
    return block_source(plain) if blocks else lock_step_source(plain) if rewritten else "\n".join(_marked(plain))


def stages(f: Any, args: Sequence[object], shared: dict[str, Any], batched: bool) -> dict[str, str]:
    """What each mode makes of a function for such a call, in the order of its life: {what it is: text}.

    Where there is nothing, the text says why.
    """
    plain = plain_function(f)
    writers = {
        "normal form": lambda: printed(normal_form(plain)),
        "blocks": lambda: source(plain),
        "lock-step": lambda: source(plain, rewritten=True),
        "tracing": lambda: source(plain, blocks=True),
        "recorder": lambda: recorder_text(plain),
        "compiled": lambda: compiled_text(f, args, shared, batched),
    }
    found = {}
    for name, write in writers.items():
        try:
            found[name] = write()
        except (Unsupported, UnsupportedError) as error:
            found[name] = f"none: {error}"
    return found


def compiled_text(f: Any, args: Sequence[object], shared: dict[str, Any], batched: bool) -> str:
    """The text that the compiled mode compiles for such a call.

    Raises:
        Unsupported: there is none; the message says why.
    """
    is_column = [not batched or isinstance(each, Batch) for each in args]

    def arguments_of(given: Sequence[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        places = iter(given)
        return [next(places) if own else each for own, each in zip(is_column, args, strict=True)], named

    _, form = prepared(inspect.unwrap(f), list(itertools.compress(args, is_column)), shared, arguments_of)
    if form is None or form.module is None:
        raise Unsupported(form.reason if form else "no examples")
    return form.module.text


def _marked(function: FunctionType) -> list[str]:
    code = function.__code__
    written = source_of(code.co_filename, code)
    section = written.section(code.co_firstlineno, code.co_name)
    refused: Reason | None = None
    found: list[range] = []
    try:
        found = block_lines(function)
    except NeedsLoop as error:
        refused = error.reason
    if not written.text(section.first):
        raise UnsupportedError(str(refused or f"{function.__qualname__} has no source ({code.co_filename})"))
    blocks = {line for lines in found for line in lines}
    at = section.first
    if refused is not None and refused.where is not None and refused.where in section:
        at = refused.where[1]
    out = []
    for number, text in written.shown(section):
        mark = "block" if number in blocks and text.strip() else ""
        if not mark and section.name != "<lambda>":
            mark = written.mark(number)
        if refused is not None and number == at:
            mark = "refused"
        elif refused is not None:
            mark = ""
        out.append(f"{number:4d}  {mark:<7}  {text}".rstrip())
        if mark == "refused" and refused is not None:
            says = f"{refused}{f' → {refused.instead}' if refused.instead else ''}"
            out += wrapped(f"{' ' * 15}^ {says}", " " * 17)
    return out
