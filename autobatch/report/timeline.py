"""A timeline as a Chrome trace, and as a picture.

Source: the Trace Event Format of Chrome's tracing, of which complete events ("X") are used.
"""

import html
import os
from collections.abc import Sequence
from typing import Any

from autobatch.report.line_profile import Span

_ROWS = ("python", "launch", "compiled", "library")
_COLOURS = {"python": "#4c78a8", "launch": "#f58518", "compiled": "#54a24b", "library": "#b8b8b8"}
_MOST_DRAWN = 4_000


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


def svg_timeline(spans: Sequence[Span], width: int = 1100) -> str:
    """The timeline as an SVG picture: a row for each kind of work, a title for each span."""
    if not spans:
        return ""
    end = max(span.start + span.seconds for span in spans) or 1.0
    left, height = 70, 26
    scale = (width - left - 10) / end
    parts = []
    for at, kind in enumerate(_ROWS):
        y = at * height
        parts.append(f'<text x="0" y="{y + 16}" class="row">{kind}</text>')
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y + 22}" y2="{y + 22}" class="rule"/>')
    longest = sorted(spans, key=lambda span: -span.seconds)[:_MOST_DRAWN]
    for span in sorted(longest, key=lambda span: span.start):
        y = _ROWS.index(span.kind) * height
        wide = max(span.seconds * scale, 0.4)
        title = html.escape(f"{_label(span)}  {span.seconds * 1e3:.3f} ms")
        parts.append(
            f'<rect x="{left + span.start * scale:.2f}" y="{y + 3}" width="{wide:.2f}" height="18" '
            f'fill="{_COLOURS[span.kind]}"><title>{title}</title></rect>'
        )
    bottom = len(_ROWS) * height
    for tick in range(6):
        x = left + (width - left - 10) * tick / 5
        anchor = "end" if tick == 5 else "middle"
        parts.append(
            f'<text x="{x:.0f}" y="{bottom + 14}" class="tick" text-anchor="{anchor}">'
            f"{end * tick / 5 * 1e3:.2f} ms</text>"
        )
    return f'<svg class="timeline" viewBox="0 0 {width} {bottom + 22}" role="img">{"".join(parts)}</svg>'
