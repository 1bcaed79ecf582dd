"""Measures where the time of a call goes: seconds, launches and bytes by line of the user's code, and a timeline.

Rewritten code keeps the user's line numbers in every mode, so Python's own tracing shows which line runs. Launches are
observed when one of the few functions that launch (`_WATCHED`) returns. Without a profile the library does no extra
work. Time spent in the profiler is not counted, but Python code runs two to four times slower while it is watched; so
lines can be compared with each other, but not with times measured elsewhere.
"""

import dataclasses
import functools
import inspect
import math
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from autobatch.autodiff.tape import Tape
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.blocks import kernel_codegen, tracing
from autobatch.blocks.launch import LaunchCode
from autobatch.blocks.scan import Scan
from autobatch.compiled.compiled_map import compiled_map, wait_for
from autobatch.core.current_region import run_loop
from autobatch.core.diagnostics import is_library, is_library_file
from autobatch.core.op import Op
from autobatch.core.pytree import leaves
from autobatch.lazy import block_forms, launching, taped_forms
from autobatch.lazy.fibers import Fibers, active_trace
from autobatch.lockstep import lockstep_forms
from autobatch.lockstep.block_launch import LaneBlock
from autobatch.program.source import written_lines

Place = tuple[str, int]
"""(file, line)."""

LIBRARY: Place = ("", 0)  # recording, scheduling, packing and unpacking, which belong to no line
PREPARING: Place = ("", 1)  # rewriting, tracing and loading code, once
BACKWARD: Place = ("", 2)  # the backward pass of a tape

Then = Callable[[Any, float, float], None]
"""Called with a function's result, its seconds, and the time at which it returned."""

_LINES = re.compile(r":(\d+)(?:-(\d+))?$")


@dataclasses.dataclass(slots=True)
class Figures:
    """The cost of one line.

    Attributes:
        runs: how often it ran; seconds: its time, including its launches.
        launches: the number of batched calls made for it; calls: the number of examples' calls that these ran.
        nbytes: the size of the results of the launches.
        last: the last line of the block that begins here; 0 for none. compiled: True if part of it ran compiled.
    """

    runs: int = 0
    seconds: float = 0.0
    calls: int = 0
    launches: int = 0
    nbytes: int = 0
    last: int = 0
    compiled: bool = False


class Span(NamedTuple):
    """An interval of the timeline: what ran (`kind` is "python", "launch", "compiled" or "library"), its start in
    seconds since the beginning of the call, and its duration in seconds."""

    name: str
    kind: str
    start: float
    seconds: float
    place: Place


class LaunchNode(NamedTuple):
    """A launch in the graph: its op, line, number of calls, seconds, and the nodes whose results it reads."""

    op: str
    place: Place
    calls: int
    seconds: float
    reads: tuple[int, ...]


def is_users_code(code: CodeType) -> bool:
    """True for the user's own code: not the library's, NumPy's or another package's, nor generated without a source.

    >>> is_users_code(is_users_code.__code__), is_users_code(eval("lambda: 1").__code__)
    (False, False)
    """
    if code.co_filename.startswith("<"):  # a prompt, or `python -c`
        return any(name.startswith("_ab_") for name in code.co_freevars) or bool(written_lines(code))
    return not is_library(code.co_filename) and not is_library_file(code.co_filename)


class LineProfile:
    """Watches what this thread runs within a `with` block.

    Attributes:
        lines: the figures of each line, and of what belongs to none.
        spans: the timeline; nodes: the traced launches and what they read, in order.
        codes: of the user's functions that ran.
        seconds: all of the time.
        seen: the examples that were watched, where those of a loop took longer than `most` seconds; else 0.
    """

    def __init__(self, most: float = math.inf) -> None:
        self.lines: dict[Place, Figures] = defaultdict(Figures)
        self.spans: list[Span] = []
        self.nodes: list[LaunchNode] = []
        self.codes: dict[tuple[str, int, str], CodeType] = {}
        self.seconds = 0.0
        self._place = LIBRARY
        self._quiet = 0  # > 0 in a launch or its preparation, where no line of the user runs
        self._kinds: dict[int, tuple[CodeType, Any]] = {id(code): (code, how) for code, how in _WATCHED}
        self._makers: dict[int, int] = {}  # the node that made each buffer of the segment being launched
        self._start = self._last = 0.0
        self._before: Any = None
        self.seen, self._most = 0, most
        self._loop: FrameType | None = None

    def __enter__(self) -> "LineProfile":
        self._before = sys.gettrace()
        self._start = self._last = time.perf_counter()
        self._most += self._start
        self._backward = Tape.backward
        Tape.backward = self._timed_only(Tape.backward)  # type: ignore[method-assign]
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        Tape.backward = self._backward  # type: ignore[method-assign]
        self._charge(time.perf_counter())
        self.seconds = sum(each.seconds for each in self.lines.values())

    def _charge(self, now: float, kind: str = "", name: str = "") -> None:
        """Add the time since the last event to the line that is running, unless watching has ended."""
        if self.seen:
            return
        seconds, place = now - self._last, self._place
        self._last = now
        self.lines[place].seconds += seconds
        spans = self.spans
        if len(spans) >= 20_000:  # maximum length of a timeline, as much as a browser can show
            return
        kind = kind or ("library" if place[0] == "" else "python")
        start = now - seconds - self._start
        if spans and not name and spans[-1].place == place and spans[-1].kind == kind:
            last = spans[-1]
            spans[-1] = Span(last.name, kind, last.start, start + seconds - last.start, place)
        elif seconds > 1e-7 or kind != "library":
            spans.append(Span(name or _NAMES.get(place, ""), kind, start, seconds, place))

    def _resume(self) -> None:
        """Exclude the time spent in this profiler from the call."""
        now = time.perf_counter()
        self._start += now - self._last
        self._last = now

    def _timed_only(self, backward: Callable[..., Any]) -> Any:
        """The backward pass, which belongs to no line: in this thread it runs at full speed, and is timed."""
        thread = threading.get_ident()

        @functools.wraps(backward)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._place == BACKWARD or threading.get_ident() != thread:
                return backward(*args, **kwargs)
            self._charge(time.perf_counter())
            tracer, before, self._place = sys.gettrace(), self._place, BACKWARD
            sys.settrace(None)
            try:
                return backward(*args, **kwargs)
            finally:
                self._charge(time.perf_counter())
                self._place = before
                sys.settrace(tracer)

        return timed

    # Trace functions, which the interpreter calls.

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        now = time.perf_counter()
        code = frame.f_code
        known = self._kinds.get(id(code))
        if known is None:
            known = self._kinds[id(code)] = (code, _watcher_of(code))
        how: Any = known[1]
        if how is None or (self._quiet and (how is not _watch_preparing or self._place == PREPARING)):
            spent = time.perf_counter() - now
            self._last += spent
            self._start += spent
            return None
        self._charge(now)
        if how is True:
            loop = self._loop
            if now > self._most and loop is not None and frame.f_back is loop and loop.f_locals["results"]:
                self.seen = len(loop.f_locals["results"])
                return sys.settrace(None)
            self.codes[code.co_filename, code.co_firstlineno, code.co_name] = code
            out: Any = self._on_line
        else:
            frame.f_trace_lines = False
            out = how(self, frame)
        self._resume()
        return out

    def _on_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            now = time.perf_counter()
            self._charge(now)
            self._place = place = (frame.f_code.co_filename, frame.f_lineno)
            self.lines[place].runs += 1
            self._resume()
        elif event == "return":
            self._charge(time.perf_counter())
            self._place = self._line_around(frame.f_back)
            self._resume()
        return self._on_line

    def _line_around(self, frame: FrameType | None) -> Place:
        """The innermost running line of the user's code, searched from a frame outwards."""
        while frame is not None:
            known = self._kinds.get(id(frame.f_code))
            if known is not None and known[1] is True:
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return LIBRARY

    def _until_return(self, then: Then, place: Place | None = None, quiet: int = 1) -> Any:
        """A trace function for a library frame, whose time until it returns is added to `place`."""
        before, self._place = self._place, self._place if place is None else place
        self._quiet += quiet
        began = self._last

        def on_return(frame: FrameType, event: str, argument: object) -> Any:
            if event == "return":
                now = time.perf_counter()
                then(argument, now - began, now)
                self._charge(now)
                self._quiet -= quiet
                self._place = before
                self._resume()
            return on_return

        return on_return


_NAMES = {LIBRARY: "recording, scheduling, packing", PREPARING: "preparing code", BACKWARD: "backward"}


# Observers of the functions that launch: called when such a function is called; return the trace function of its frame.


def _launch(profile: LineProfile, frame: FrameType) -> Any:
    """Observe the launch of a group of recorded calls, and the buffers that it reads and makes."""
    sig, launches = frame.f_locals["sig"], frame.f_locals["self"]
    place: Place = getattr(sig, "where", LIBRARY)  # a call merged from others may belong to more than one line
    at, made = launches._at, launches._number

    def then(count: object, seconds: float, now: float) -> None:
        if not isinstance(count, int):  # it raised
            return
        figures = profile.lines[place]
        figures.calls += count
        figures.launches += 1
        figures.nbytes += getattr(sig, "nbytes", sig.avals[0].nbytes if sig.avals else 0) * count
        lines = _LINES.search(sig.op.name) if sig.block is not None else None
        if lines is not None:
            figures.last = max(figures.last, int(lines[2] or lines[1]))
        profile._charge(now, "launch", f"{sig.op.name}, {count} call{'s'[: count != 1]}")
        if len(profile.nodes) < 2_000:  # maximum size of a graph
            makers = profile._makers
            reads = {makers[buffer] for buffer in np.unique(launches._which[at : launches._at]) if buffer in makers}
            makers.update(dict.fromkeys(range(made, launches._number), len(profile.nodes)))
            profile.nodes.append(LaunchNode(sig.op.name, place, count, seconds, tuple(sorted(reads))))

    return profile._until_return(then, place)


def _segment(profile: LineProfile, frame: FrameType) -> Any:
    """Observe the start of a graph segment, whose buffers are numbered again."""
    profile._makers = {}
    return profile._until_return(lambda *_: None, LIBRARY, quiet=0)


def _loop(profile: LineProfile, frame: FrameType) -> Any:
    """Observe the loop over the examples; not where it is part of another mode, or of what is differentiated."""
    if not profile.codes and not profile.nodes and profile._loop is None:
        profile._loop = frame
    return None


def _step(profile: LineProfile, frame: FrameType) -> Any:
    """Observe that a waiting example continues."""
    waiting = getattr(frame.f_locals["fiber"], "gr_frame", None)
    return profile._until_return(lambda *_: None, profile._line_around(waiting), quiet=0)


def _block(profile: LineProfile, frame: FrameType) -> Any:
    """Observe a block in lock-step, at its first line."""
    body = frame.f_locals["self"].body.__code__
    lines = [line for _, _, line in body.co_lines() if line is not None]
    place = (body.co_filename, min(lines))

    def then(results: object, seconds: float, now: float) -> None:
        if results is None:  # its statements run one by one
            return
        figures = profile.lines[place]
        figures.last = max(figures.last, *lines)
        _add_results(profile, figures, results, frame.f_locals["region"].count)
        profile._charge(now, "launch", f"block, {len(lines)} lines" if len(lines) > 1 else "block")

    return profile._until_return(then)


def _scan(profile: LineProfile, frame: FrameType) -> Any:
    """Observe that the remaining steps of a loop ran as one op."""

    def then(results: object, seconds: float, now: float) -> None:
        _add_results(profile, profile.lines[profile._place], results, 1)
        profile._charge(now, "launch", "the steps of a loop")

    return profile._until_return(then)


def _op(profile: LineProfile, frame: FrameType) -> Any:
    """Observe an op that computes on arrays, for all examples."""
    place, name = profile._place, frame.f_locals["self"].name
    if place[0] == "" or active_trace() is not None:  # recorded ops are counted when they are launched
        return None

    def then(result: object, seconds: float, now: float) -> None:
        if isinstance(result, np.ndarray):
            _add_results(profile, profile.lines[place], result, len(result) if result.ndim else 1)
            profile._charge(now, "launch", name)

    return profile._until_return(then, place, quiet=0)


def _add_results(profile: LineProfile, figures: Figures, results: object, count: int) -> None:
    arrays: list[Any] = [each.data if isinstance(each, MaskedBatch) else each for each in leaves(results)]
    figures.nbytes += sum(getattr(each, "nbytes", 0) for each in arrays)
    figures.launches += 1
    figures.calls += count


def _compiled(profile: LineProfile, frame: FrameType) -> Any:
    """Observe a compiled run of the user's function, which gives no times of single lines."""
    function = frame.f_locals.get("function")
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    place = LIBRARY if code is None else (code.co_filename, code.co_firstlineno)

    def then(results: object, seconds: float, now: float) -> None:
        profile.lines[place].compiled = True
        profile._charge(now, "compiled", getattr(function, "__name__", "function"))

    return profile._until_return(then, place, quiet=0)


def _watch_preparing(profile: LineProfile, frame: FrameType) -> Any:
    return profile._until_return(lambda *_: None, PREPARING)


def _watcher_of(code: CodeType) -> Any:
    """True for the user's code, the observer of a library function, None for code that is not observed."""
    file = code.co_filename
    if f"{os.sep}numba{os.sep}" in file or file.startswith("<frozen importlib"):
        return _watch_preparing  # Numba code that runs in Python compiles or loads compiled code
    return True if is_users_code(code) else None


_WATCHED: list[tuple[CodeType, Any]] = [
    (inspect.unwrap(function).__code__, how)  # type: ignore[arg-type]
    for how, functions in {
        _launch: (launching.Launches.run,),
        _segment: (launching._launch,),
        _step: (Fibers._step,),
        _loop: (run_loop,),
        _block: (LaneBlock.__call__,),
        _scan: (Scan.run,),
        _op: (Op.__call__,),
        _compiled: (compiled_map,),
        _watch_preparing: (
            lockstep_forms._convert, block_forms._form, taped_forms._form, tracing.trace, LaunchCode.__init__,
            kernel_codegen.fuse, wait_for,
        ),
    }.items()
    for function in functions
]  # fmt: skip
