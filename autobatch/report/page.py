"""A report as HTML: the table that a notebook shows, and a page of its own, with the graph."""

import html
import os
from typing import TYPE_CHECKING

from autobatch.errors import shown_file
from autobatch.report.graph import svg_graph

if TYPE_CHECKING:
    from autobatch.report.report import Line, Report

_MEANINGS = {  # of the colours, by what is said of a line
    "good": "compiled, or one launch for all examples: one launch, block, compiled",
    "some": "several launches, or Python: launches, Python, all examples",
    "slow": "one example after the other: one by one, loop",
}
_KINDS = {
    "one launch": "good", "block": "good", "compiled": "good", "launches": "some", "Python": "some",
    "all examples": "some", "one by one": "slow", "loop": "slow",
}  # fmt: skip

# Text and lines take the colour of what is around them, and fills let the background through: a notebook's theme,
# which the browser does not know, may be dark or light. The page itself follows the browser.
_STYLE = """
.ab-report { font: 14px/1.45 system-ui, sans-serif; --ab-code: ui-monospace, Menlo, Consolas, monospace;
  color: var(--jp-ui-font-color1, var(--vscode-editor-foreground, inherit)); }
.ab-report table { border-collapse: collapse; color: inherit; }
.ab-report tr, .ab-report td { background: none !important; color: inherit; border: 0; }
.ab-report .scroll { overflow-x: auto; max-width: 100%; }
.ab-report .source td { padding: 0 8px; text-align: right; white-space: nowrap; vertical-align: top; }
.ab-report .source td.code { text-align: left; white-space: pre; font: 12.5px/1.55 var(--ab-code); }
.ab-report .source td.says { text-align: left; white-space: normal; max-width: 62em; padding-left: 24px; }
.ab-report .source .of td { padding-top: 12px; opacity: .7; }
.ab-report .how { border-radius: 3px; padding: 0 6px; font-size: 12px; white-space: nowrap; }
.ab-report .good { background: rgba(60, 160, 70, .28); } .ab-report .some { background: rgba(245, 160, 50, .28); }
.ab-report .slow { background: rgba(225, 70, 50, .32); }
.ab-report .source td.heat { background: linear-gradient(90deg, rgba(245, 133, 24, .5) var(--share),
  transparent var(--share)) !important; }
.ab-report .share { margin: 8px 0; padding: 6px 12px; border-left: 4px solid #f58518; overflow-wrap: anywhere;
  background: rgba(245, 133, 24, .1); }
.ab-report code { font: 12.5px var(--ab-code); background: none; color: inherit; }
.ab-report .modes td { padding: 1px 12px 1px 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
.ab-report .modes td:first-child { white-space: nowrap; }
.ab-report .legend { font-size: 12px; margin: 8px 0; } .ab-report .legend span { margin-right: 14px; }
"""

_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 1180px; margin: 24px auto; padding: 0 16px; }
h1 { font: 600 22px system-ui, sans-serif; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font: 600 16px system-ui, sans-serif; margin: 28px 0 8px; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
svg .edge { fill: none; stroke: currentColor; opacity: .5; } svg .tip { fill: currentColor; }
svg .node { stroke: currentColor; stroke-opacity: .35; fill: color-mix(in srgb, #f58518 var(--heat), Canvas); }
svg .name, svg .small { text-anchor: middle; } svg .small { opacity: .75; font-size: 10px; }
pre { font: 12.5px/1.5 var(--ab-code); overflow-x: auto; }
"""


def notebook_table(report: "Report") -> str:
    """A report as HTML for a notebook."""
    return f'<div class="ab-report"><style>{_STYLE}</style>{_summary(report)}{_source(report)}</div>'


def page(report: "Report") -> str:
    """A report as a self-contained HTML page."""
    title = html.escape(report.name or "ab.explain")
    parts = [_summary(report), "<h2>Source</h2>", _source(report)]
    graph = svg_graph(report)
    if graph:
        parts += ["<h2>Graph</h2><div>Launches or lines, and what reads their results; the fuller the colour, the more",
                  f' time.</div><div class="scroll">{graph}</div>']  # fmt: skip
    parts += ["<h2>As text</h2>", f"<pre>{html.escape(str(report))}</pre>"]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}{_PAGE_STYLE}</style></head>"
        f'<body class="ab-report"><h1>{title}</h1>{"".join(parts)}</body></html>'
    )


def _summary(report: "Report") -> str:
    parts = [f"<div>{html.escape(report.head())}</div>"]
    for line in report.shares[:3]:
        says = " ".join(each for each in (_how(line), html.escape(line.reason)) if each)
        place = f"{html.escape(os.path.basename(shown_file(line.file)))}:{line.line}: " if line.file else ""
        text = f"<code>{html.escape(line.text.strip())}</code>" if line.file else html.escape(line.text)
        remedy = f"<br>→ <b>{html.escape(line.remedy)}</b>" if line.remedy else ""
        parts.append(f'<div class="share">{line.share:.0%} of the time: {place}{text}<br>{says}{remedy}</div>')
    rows = [f"<tr><td>{html.escape(way)}</td><td>{html.escape(says)}</td></tr>" for way, says in report.modes()]
    return "".join([*parts, f'<table class="modes">{"".join(rows)}</table>'])


def _how(line: "Line") -> str:
    return f'<span class="how {_KINDS.get(line.how, "")}">{line.how}</span>' if line.how else ""


def _source(report: "Report") -> str:
    most = max((line.share for line in report.lines), default=0.0) or 1.0
    rows = []
    teller = {line.remedy: line for line in sorted(report.lines, key=lambda line: line.seconds)}  # the slowest says it
    function = ""
    for line in report.lines:
        if line.function != function:
            function = line.function
            rows.append(f'<tr class="of"><td colspan="5"></td><td class="code">{html.escape(function)}</td></tr>')
        ms, share = (report.time_of(line), f"{line.share:.0%}") if line.how else ("", "")
        rows.append(
            f'<tr><td>{line.line}</td><td class="heat" style="--share:{100 * line.share / most:.0f}%">{ms}</td>'
            f"<td>{share}</td><td>{line.times or ''}</td><td>{_how(line)}</td>"
            f'<td class="code">{html.escape(line.text)}</td></tr>'
        )
        if line.reason:
            says = f"{line.reason} → {line.remedy}" if line.remedy and teller[line.remedy] is line else line.reason
            rows.append(f'<tr><td colspan="5"></td><td class="says">{html.escape(says)}</td></tr>')
    if not rows:
        return ""
    head = "<tr><td>line</td><td>time</td><td>%</td><td>times</td><td></td><td></td></tr>"
    legend = "".join(f'<span><span class="how {tone}">&nbsp;</span>{says}</span>' for tone, says in _MEANINGS.items())
    legend += "<span>bar: share of the time</span>"
    table = f'<div class="scroll"><table class="source">{head}{"".join(rows)}</table></div>'
    return f'<div class="legend">{legend}</div>{table}'
