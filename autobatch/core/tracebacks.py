"""Tracebacks as the user's own program would have them: without the frames of the library.

A public function that runs the user's code hands its errors on so::

    try:
        ...
    except Exception as error:
        hide_frames(error)
        raise

A bare `raise` goes on with the traceback that the error has then, and adds no entry for the frame that it is in. So
what is left is the user's: his call, and the lines of his function that led to the error, NumPy's included. The error
itself, its notes and its causes stay as they are. `ab.options(traceback="full")`, or AUTOBATCH_TRACEBACK=full in the
environment, leaves all frames.

Source: JAX's traceback filtering (jax._src.traceback_util), which removes frames in the same way.
"""

from types import TracebackType

from autobatch.core.config import config
from autobatch.core.diagnostics import is_own_file

__all__ = ["hide_frames"]


def hide_frames(error: BaseException) -> None:
    """Take the library's frames out of the traceback of an error, and of those that it came from.

    >>> def fails():
    ...     raise ValueError("bad")
    >>> try:
    ...     fails()
    ... except ValueError as error:
    ...     hide_frames(error)
    ...     print(error.__traceback__.tb_next.tb_frame.f_code.co_name)
    fails
    """
    if config.traceback == "full":
        return
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _of_user(each.__traceback__)
            found += [each.__cause__, each.__context__]


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    hidden = False
    while trace is not None:
        if is_own_file(trace.tb_frame.f_code.co_filename):
            hidden = True
        else:
            kept.append(trace)
        trace = trace.tb_next
    if not hidden:
        return kept[0] if kept else None
    out: TracebackType | None = None
    for each in reversed(kept):
        out = TracebackType(out, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return out
