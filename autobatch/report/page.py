"""A report as HTML: the table that a notebook shows, and a page of its own, with the timeline and the graph."""

import html
import os
from typing import TYPE_CHECKING

from autobatch.report.graph import svg_graph
from autobatch.report.timeline import svg_timeline

if TYPE_CHECKING:
    from autobatch.report.report import Line, Report

_COLOURS = {
    "one launch": "#e3f2e1", "launches": "#fdf0dd", "block": "#e3f2e1", "compiled": "#d9ecd6", "all lanes": "#eef4fb",
    "lane by lane": "#fbdcd7", "loop": "#fbdcd7", "Python": "#fdf0dd",
}  # fmt: skip

_STYLE = """
.ab-report { font: 14px/1.45 system-ui, sans-serif; color: #1d1d1f; }
.ab-report table { border-collapse: collapse; }
.ab-report .source td { padding: 0 8px; border: 0; text-align: right; white-space: nowrap; vertical-align: top; }
.ab-report .source td.code { text-align: left; white-space: pre; background: none;
  font: 12.5px/1.55 ui-monospace, Menlo, Consolas, monospace; }
.ab-report .source td.says { text-align: left; white-space: normal; max-width: 62em; color: #8a3b12;
  padding-left: 24px; }
.ab-report .source .of td { padding-top: 12px; color: #666; }
.ab-report .how { border-radius: 3px; padding: 0 6px; font-size: 12px; }
.ab-report .heat { background: linear-gradient(90deg, #f5a65b var(--share), transparent var(--share)); }
.ab-report .dear { margin: 8px 0; padding: 8px 12px; border-left: 4px solid #f58518; background: #fff8f0; }
.ab-report .dear code { font: 12.5px ui-monospace, Menlo, Consolas, monospace; }
.ab-report .ways td, .ab-report .ways th { padding: 1px 12px 1px 0; text-align: left; border: 0; background: none; }
.ab-report tr { background: none !important; }
"""

_PAGE_STYLE = """
body { max-width: 1180px; margin: 24px auto; padding: 0 20px; background: #fff; }
h1 { font: 600 22px system-ui, sans-serif; margin: 0 0 4px; }
h2 { font: 600 16px system-ui, sans-serif; margin: 28px 0 8px; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #333; }
svg .row { fill: #666; } svg .tick { fill: #888; font-size: 10px; } svg .rule { stroke: #eee; }
svg .edge { fill: none; stroke: #999; stroke-width: 1; } svg .tip { fill: #999; } svg .node { stroke: #c9c9c9; }
svg .name, svg .small { text-anchor: middle; } svg .small { fill: #666; font-size: 10px; }
.scroll { overflow-x: auto; } pre { font: 12.5px/1.5 ui-monospace, Menlo, Consolas, monospace; overflow-x: auto; }
"""


def notebook_table(report: "Report") -> str:
    """A report as HTML for a notebook."""
    return f'<div class="ab-report"><style>{_STYLE}</style>{_summary(report)}{_source(report)}</div>'


def page(report: "Report") -> str:
    """A report as a self-contained HTML page."""
    title = html.escape(report.name or "ab.explain")
    parts = [_summary(report), "<h2>Source</h2>", f'<div class="scroll">{_source(report)}</div>']
    timeline, graph = svg_timeline(report.spans), svg_graph(report)
    if timeline:
        parts += ["<h2>Timeline</h2>", timeline]
    if graph:
        parts += ["<h2>Graph</h2>", graph]
    parts += ["<h2>As text</h2>", f"<pre>{html.escape(str(report))}</pre>"]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}{_PAGE_STYLE}</style></head>"
        f'<body class="ab-report"><h1>{title}</h1>{"".join(parts)}</body></html>'
    )


def _summary(report: "Report") -> str:
    parts = [f"<div>{html.escape(report.head())}</div>"]
    rows = [
        f"<tr><td>{html.escape(way)}</td><td>{seconds * 1e6:,.1f} µs an example</td>"
        f"<td>{f'taken: {html.escape(report.why)}' if way == report.way else ''}</td></tr>"
        for way, seconds in report.costs.items()
    ]
    if report.way not in report.costs and report.why:
        rows.insert(0, f"<tr><td>{html.escape(report.way)}</td><td></td><td>taken: {html.escape(report.why)}</td></tr>")
    rows += [
        f"<tr><td>{html.escape(way)}</td><td>not possible</td><td>{html.escape(why)}</td></tr>"
        for way, why in report.refusals.items()
        if way not in report.costs
    ]
    if report.untried:
        rows.append(f"<tr><td>{', '.join(report.untried)}</td><td>not run on such inputs yet</td><td></td></tr>")
    parts.append(f'<table class="ways">{"".join(rows)}</table>')
    for line in report.dearest[:1]:
        says = " ".join(each for each in (_how(line), html.escape(line.reason)) if each)
        remedy = f"<br>→ <b>{html.escape(line.remedy)}</b>" if line.remedy else ""
        parts.append(
            f'<div class="dear">{line.share:.0%} of the time is in '
            f"{html.escape(os.path.basename(line.file))}:{line.line}: <code>{html.escape(line.text.strip())}</code><br>"
            f"{says}{remedy}</div>"
        )
    return "".join(parts)


def _how(line: "Line") -> str:
    if not line.how:
        return ""
    return f'<span class="how" style="background:{_COLOURS.get(line.how, "#eee")}">{line.how}</span>'


def _source(report: "Report") -> str:
    most = max((line.share for line in report.lines), default=0.0) or 1.0
    rows = []
    teller = {line.remedy: line for line in sorted(report.lines, key=lambda line: line.seconds)}  # the dearest says it
    function = ""
    for line in report.lines:
        if line.function != function:
            function = line.function
            rows.append(f'<tr class="of"><td colspan="5"></td><td class="code">{html.escape(function)}</td></tr>')
        ms, share = (f"{line.seconds * 1e3:.2f}", f"{line.share:.0%}") if line.how else ("", "")
        rows.append(
            f'<tr><td>{line.line}</td><td class="heat" style="--share:{100 * line.share / most:.0f}%">{ms}</td>'
            f"<td>{share}</td><td>{line.times or ''}</td><td>{_how(line)}</td>"
            f'<td class="code">{html.escape(line.text)}</td></tr>'
        )
        if line.reason:
            says = f"{line.reason} → {line.remedy}" if line.remedy and teller[line.remedy] is line else line.reason
            rows.append(f'<tr><td colspan="5"></td><td class="says">{html.escape(says)}</td></tr>')
    head = "<tr><td>line</td><td>ms</td><td>%</td><td>times</td><td></td><td></td></tr>"
    return f'<table class="source">{head}{"".join(rows)}</table>' if rows else ""
