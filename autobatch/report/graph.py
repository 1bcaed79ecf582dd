"""The graph of a call: launches and the results that they read, or lines if nothing was recorded."""

from typing import TYPE_CHECKING, Any

from autobatch.program.scopes import target_names
from autobatch.report.source_lines import enclosing_loops, names_read, source_of

if TYPE_CHECKING:
    from autobatch.report.report import Report


def to_networkx(report: "Report") -> Any:
    """The graph of a report; see `Report.to_networkx`."""
    import networkx  # noqa: PLC0415 - heavy, and only for what a person looks at

    graph = networkx.DiGraph()
    if not report.nodes:
        return _line_graph(report, graph)
    for at, node in enumerate(report.nodes):
        file, line = node.place
        graph.add_node(at, label=node.op, file=file, line=line, calls=node.calls, seconds=node.seconds)
        graph.add_edges_from((read, at) for read in node.reads)
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
