"""A timeline as a Chrome trace.

Source: the Trace Event Format of Chrome's tracing, of which complete events ("X") are used.
"""

import os
from collections.abc import Sequence
from typing import Any

from autobatch.report.line_profile import Span

_ROWS = ("python", "launch", "compiled", "library")


def _label(span: Span) -> str:
    if span.name:
        return span.name
    return f"{os.path.basename(span.place[0])}:{span.place[1]}" if span.place[0] else span.kind


def trace_events(spans: Sequence[Span], name: str) -> dict[str, Any]:
    """The timeline in Chrome's format, with a track for Python and one for launches.

    Args:
        name: of the function, which the process is called.
    """
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": name or "autobatch"}}
    ]
    for at, kind in enumerate(_ROWS):
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": at, "args": {"name": kind}})
    for span in spans:
        where = {"file": span.place[0], "line": span.place[1]} if span.place[0] else {}
        events.append(
            {
                "name": _label(span), "cat": span.kind, "ph": "X", "pid": 1, "tid": _ROWS.index(span.kind),
                "ts": round(span.start * 1e6, 3), "dur": round(span.seconds * 1e6, 3), "args": where,
            }
        )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}
