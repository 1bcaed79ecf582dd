"""The graph of a call: launches and the results that they read, or lines if nothing was recorded."""

import html
import os
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from autobatch.errors import shown_file
from autobatch.program.scopes import target_names
from autobatch.report.source_lines import enclosing_loops, names_read, source_of

if TYPE_CHECKING:
    from autobatch.report.report import Report

_MOST_DRAWN = 60  # nodes; if there are more, the launches of one line are drawn as one node


def to_networkx(report: "Report", by_line: bool = False) -> Any:
    """The graph of a report; see `Report.to_networkx`.

    Args:
        by_line: launches of one line as one node.
    """
    import networkx  # noqa: PLC0415 - heavy, and only for what a person looks at

    graph = networkx.DiGraph()
    if not report.nodes:
        return _line_graph(report, graph)
    names: list[Hashable] = []
    for at, node in enumerate(report.nodes):
        file, line = node.place
        key: Hashable = (node.op, file, line) if by_line else at
        names.append(key)
        if key in graph:
            graph.nodes[key]["calls"] += node.calls
            graph.nodes[key]["seconds"] += node.seconds
        else:
            graph.add_node(key, label=node.op, file=file, line=line, calls=node.calls, seconds=node.seconds)
        for read in node.reads:
            if names[read] != key:
                graph.add_edge(names[read], key)
    return graph


def _line_graph(report: "Report", graph: Any) -> Any:
    """A graph of the lines that ran, with edges from the lines that bind a name to those that read it."""
    bound: dict[tuple[str, str, str], list[int]] = {}
    ran = [line for line in report.lines if line.how and line.seconds > 0.0]
    reads: list[tuple[int, tuple[str, str, str], bool]] = []
    for at, line in enumerate(ran):
        label = line.text.strip()
        graph.add_node(at, label=label, file=line.file, line=line.line, calls=line.calls, seconds=line.seconds)
        source = source_of(line.file)
        node = source.statement(line.line)
        if node is None:
            continue
        body = getattr(node, "body", None)
        head = [each for each in (getattr(node, name, None) for name in ("test", "iter", "target")) if each is not None]
        parts = head if body is not None else [node]
        looped = bool(enclosing_loops(source, node))
        for part in parts:
            reads += [(at, (line.file, line.function, name), looped) for name in sorted(names_read(part))]
        for part in parts:
            for name in target_names(part):
                bound.setdefault((line.file, line.function, name), []).append(at)
    for at, key, looped in reads:
        makers = bound.get(key, [])
        before = [maker for maker in makers if maker < at]
        if before:
            graph.add_edge(before[-1], at)
        later = [maker for maker in makers if maker > at]
        if looped and later:  # from the previous step
            graph.add_edge(later[-1], at)
    return graph


def shown_time(seconds: float) -> str:
    """Seconds in the unit that suits them, as text."""
    digits, scale, unit = (2, 1, "s") if seconds >= 1 else (1, 1e3, "ms") if seconds >= 1e-3 else (0, 1e6, "µs")
    return f"{seconds * scale:.{digits}f} {unit}"


def svg_graph(report: "Report") -> str:
    """The graph as an SVG picture in layers; results flow downwards."""
    graph = to_networkx(report, by_line=len(report.nodes) > _MOST_DRAWN)
    slowest = sorted(graph, key=lambda node: -graph.nodes[node]["seconds"])[:_MOST_DRAWN]
    order = {node: at for at, node in enumerate(graph) if node in set(slowest)}
    graph = graph.subgraph(slowest)
    if not graph:
        return ""
    layers = _layers(graph, order)
    high, gap = 34, 26
    boxes = {node: max(90.0, 6.6 * len(data["label"]) + 16) for node, data in graph.nodes(data=True)}
    rows = {depth: sum(boxes[node] + gap for node in nodes) for depth, nodes in layers.items()}
    wide = max(rows.values()) + gap  # at the right side, edges lead back
    places = {}
    for depth, nodes in layers.items():
        left = (wide - rows[depth]) / 2
        for node in nodes:
            places[node] = left + boxes[node] / 2, depth * (high + gap) + 6
            left += boxes[node] + gap
    most = max(data["seconds"] for _, data in graph.nodes(data=True)) or 1.0
    scale = report.warm / (report.seconds - report.preparing) if report.warm else 1.0  # as the times of lines
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" class="tip"/></marker></defs>'
    ]
    for a, b in graph.edges:
        (x1, y1), (x2, y2) = places[a], places[b]
        if y2 > y1:
            path = f"M{x1:.0f},{y1 + high} C{x1:.0f},{y1 + high + gap} {x2:.0f},{y2 - gap} {x2:.0f},{y2}"
        else:  # an edge back, to the next step of a loop
            right = x1 + boxes[a] / 2, x2 + boxes[b] / 2
            side = min(max(right) + 20, wide - 2)
            path = f"M{right[0]:.0f},{y1 + high / 2} C{side:.0f},{y1} {side:.0f},{y2} {right[1]:.0f},{y2 + high / 2}"
        parts.append(f'<path d="{path}" class="edge" marker-end="url(#tip)"/>')
    for node, (x, y) in places.items():
        data, box, label = graph.nodes[node], boxes[node], graph.nodes[node]["label"]
        where = f"{os.path.basename(shown_file(data['file']))}:{data['line']}"
        heat, seconds = 0.06 + 0.6 * data["seconds"] / most, shown_time(data["seconds"] * scale)
        parts.append(
            f"<g><title>{html.escape(f'{label} ({where})')}</title>"
            f'<rect x="{x - box / 2:.0f}" y="{y}" width="{box:.0f}" height="{high}" rx="4" class="node" '
            f'style="--heat:{heat:.0%}"/>'
            f'<text x="{x:.0f}" y="{y + 14}" class="name">{html.escape(label)}</text>'
            f'<text x="{x:.0f}" y="{y + 28}" class="small">line {data["line"]}: {seconds}</text></g>'
        )
    height = max(y for _, y in places.values()) + high + 8
    return f'<svg class="graph" width="{wide:.0f}" viewBox="0 0 {wide:.0f} {height}" role="img">{"".join(parts)}</svg>'


def _layers(graph: Any, order: dict[Any, int]) -> dict[int, list[Any]]:
    """Nodes by the length of the longest path to them; edges back, to a loop's next step, are ignored.

    Args:
        order: in which they ran first.
    """
    import networkx  # noqa: PLC0415 - heavy, and only for what a person looks at

    ahead = graph.edge_subgraph([(a, b) for a, b in graph.edges if order[a] < order[b]]).copy()
    ahead.add_nodes_from(graph)
    layers = networkx.topological_generations(ahead)
    return {depth: sorted(nodes, key=order.__getitem__) for depth, nodes in enumerate(layers)}
