"""The report as HTML, a Chrome trace, a graph: each says what the report says."""

import html.parser
import json
import re

import numpy as np
import pytest

import autobatch as ab
from tests.law import normal
from tests.report import tagger

VOID = {"meta", "br", "img", "input"}


@pytest.fixture(scope="module")
def report():
    with ab.options(way="fly"):
        return ab.explain(tagger.loss, *tagger.sentences(8), p=tagger.parameters())


class Reader(html.parser.HTMLParser):
    """Holds a page to its grammar: each element is closed, in its order. Collects texts and what is loaded."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.loads = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_a_notebook_shows_a_table_of_the_lines(report):
    text = report._repr_html_()
    page = Reader(text)
    assert page.loads == []
    for line in report.lines:
        assert not line.text.strip() or line.text in page.texts


def test_a_phone_breaks_the_lines_of_a_report_itself(report, tmp_path):
    """Advice is one text, not lines of a terminal; numbers stay whole; the saved page has the width of the screen."""
    report.save(tmp_path / "report.html")
    page = Reader((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert '<meta name="viewport" content="width=device-width">' in (tmp_path / "report.html").read_text("utf-8")
    assert report.head() in page.texts
    assert max(map(len, report.summary().splitlines())) <= 80 < max(map(len, page.texts))
    times = re.findall(r'white-space:pre">([^<]*s)</td>', report._repr_html_())
    assert len(times) >= sum(line.how != "" for line in report.lines)


def test_a_saved_page_shows_each_line_once(report, tmp_path):
    """In the table, which also has what belongs to no line, and names the file; the text below has the rest."""
    report.save(tmp_path / "report.html")
    page = Reader((tmp_path / "report.html").read_text(encoding="utf-8"))
    longest = max((line.text for line in report.lines), key=len)
    assert sum(longest.strip()[:20] in text for text in page.texts if text not in report.summary()) == 1
    assert any(tagger.__file__ in text for text in page.texts)
    assert report.overheads
    assert all(each.text in page.texts for each in report.overheads)
    assert "signature" in page.texts[-1]


def test_source_is_shown_as_text():
    def compares(x):
        return x[x < 3] if "<b>" != "&amp;" else x

    page = Reader(ab.explain(compares, [np.arange(3), np.arange(5)])._repr_html_())
    assert any('if "<b>" != "&amp;"' in text for text in page.texts)


def test_the_page_is_one_file_that_loads_nothing(report, tmp_path):
    report.save(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Reader(text)
    assert page.loads == []
    assert not re.search(r"@import|url\(", text)
    assert str(report).splitlines()[0] in text


def test_the_chrome_trace_is_of_the_format(report, tmp_path):
    report.chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    assert len(events) == len(report.spans)
    end = 0.0
    for event in events:
        assert set(event) == {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert event["ts"] >= end - 2e-3  # one thread: nothing begins before what ran before it has ended
        end = event["ts"] + event["dur"]
    assert sum(event["dur"] for event in events) == pytest.approx(report.seconds * 1e6, rel=0.05)
    assert {"python", "library", "launch"} <= {event["cat"] for event in events}
    names = {event["name"] for event in events if event["cat"] == "launch"}
    assert any(name.startswith("block tagger.py:") for name in names)


def test_the_graph_of_launches(report):
    networkx = pytest.importorskip("networkx")
    graph = report.to_networkx()
    assert len(graph) == report.launches
    assert networkx.is_directed_acyclic_graph(graph)
    assert sum(data["calls"] for _, data in graph.nodes(data=True)) == report.calls
    (last,) = [node for node, data in graph.nodes(data=True) if data["label"] == "add" and not graph.out_degree(node)]
    assert {graph.nodes[each]["label"] for each in graph.predecessors(last)} == {"logsumexp", "getitem", "add"}


def test_the_graph_of_lines():
    pytest.importorskip("networkx")

    def model(x, w):
        y = x @ w
        for row in y:
            w = np.tanh(row + w)
        return w.sum() + y.sum()

    with ab.options(way="loop"):
        report = ab.explain(model, [normal(3, 4), normal(2, 4)], w=normal(4, 4))
    graph = report.to_networkx()
    edges = {(graph.nodes[a]["label"], graph.nodes[b]["label"]) for a, b in graph.edges}
    assert ("y = x @ w", "for row in y:") in edges
    assert ("for row in y:", "w = np.tanh(row + w)") in edges
    assert ("w = np.tanh(row + w)", "return w.sum() + y.sum()") in edges
    assert ("y = x @ w", "return w.sum() + y.sum()") in edges


def test_nothing_to_show(tmp_path):
    report = ab.explain(lambda x: x, [])
    report.save(tmp_path / "empty.html")
    report.chrome_trace(tmp_path / "empty.json")
    Reader((tmp_path / "empty.html").read_text(encoding="utf-8"))
    assert len(report.to_networkx()) == 0
