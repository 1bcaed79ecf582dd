"""The figures of a whole run as tables in Markdown: `python -m benchmarks.summary FILE.json` prints them.

docs/figures.md holds those of `benchmarks/measured.json`, between two markers; `--write` puts them there.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.declare import OURS
from benchmarks.startup import BAR

PAGE = Path(__file__).resolve().parent.parent / "docs" / "figures.md"
MEASURED = Path(__file__).resolve().parent / "measured.json"
MARKERS = ("<!-- figures -->\n", "<!-- end of figures -->\n")

_SIZE = re.compile(r"(?: of | )?(?:H=|10\^)?\d+(?![\d.^])")
_OWN = ("loop",)
_PEERS = {
    "loop": ("loop",),
    "NumPy": ("NumPy", "reduceat", "SciPy", "trusted"),
    "torch": ("torch",),
    "DyNet": ("DyNet",),
    "JAX": ("JAX",),
}


def kind(case: str) -> tuple[str, str]:
    """A case's name without the size in it, and the size.

    >>> kind("H=64 forward"), kind("sum of 16, runs of 5"), kind("10^3 nodes")
    (('forward', 'H=64'), ('sum, runs of 5', '16'), ('nodes', '10^3'))
    """
    found = _SIZE.search(case)
    if found is None:
        return case, ""
    rest = case[: found.start()] + case[found.end() :]
    return rest.strip(" ,"), found.group().removeprefix(" of").strip()


def table(measured: dict[str, Any]) -> str:
    """The machine, a row for each kind of work, and the bars that were not reached."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in measured["rows"]:
        if row["cores"] == 1:
            groups.setdefault((row["workload"], kind(row["case"])[0]), []).append(row)
    twos = {(row["workload"], row["case"]): row for row in measured["rows"] if row["cores"] > 1}
    head = ["work", "sizes", "autobatch", *_PEERS, *(["two cores", "two cores: best"] if twos else [])]
    lines = [_machine(measured["machine"]), "", _line(head), _line(["---"] * 3 + ["---:"] * (len(head) - 3))]
    for (workload, name), rows in groups.items():
        own = [_seconds(row["timings"][OURS]["median"]) for row in rows if row["timings"][OURS]["median"]]
        pairs = [(row, twos.get((workload, row["case"]))) for row in rows]
        both = [_several([_gain(*pair) for pair in pairs]), _several([_best(two) for _, two in pairs])] if twos else []
        sizes = ", ".join(dict.fromkeys(kind(row["case"])[1] for row in rows))
        peers = [_several([_fastest(row, ways) for row in rows]) for ways in _PEERS.values()]
        lines.append(_line([f"{workload}: {name}", sizes, _ends(own), *peers, *both]))
    return "\n".join([*lines, "", _bars(measured), ""])


def _machine(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"{about['processor']}, {about['cores']} cores; Python {about['python']}, {versions}."


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fastest(row: dict[str, Any], prefixes: tuple[str, ...]) -> float | None:
    """How many times our time the fastest of some ways took."""
    found = [timing["ratio"] for way, timing in row["timings"].items() if way.startswith(prefixes)]
    return min((ratio for ratio in found if ratio is not None), default=None)


def _best(row: dict[str, Any] | None) -> float | None:
    """How many times our time the fastest way of all other libraries took."""
    return (
        None
        if row is None
        else _fastest(row, tuple(way for name in _PEERS if name not in _OWN for way in _PEERS[name]))
    )


def _gain(one: dict[str, Any], two: dict[str, Any] | None) -> float | None:
    """Our time on one core by that on several."""
    if two is None or not one["timings"][OURS]["median"] or not two["timings"][OURS]["median"]:
        return None
    return one["timings"][OURS]["median"] / two["timings"][OURS]["median"]


def _several(ratios: Sequence[float | None]) -> str:
    """Up to three figures as they are; of more, their geometric mean and range.

    >>> _several([1.234, None, 23.4]), _several([1.0, 2.0, 4.0, 1.0])
    ('1.23 / - / 23', '1.68 (1.00-4.00)')
    """
    found = [ratio for ratio in ratios if ratio is not None]
    if not found:
        return ""
    if len(ratios) <= 3:
        return " / ".join("-" if ratio is None else _digits(ratio) for ratio in ratios)
    return f"{_digits(statistics.geometric_mean(found))} ({_digits(min(found))}-{_digits(max(found))})"


def _digits(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}"


def _ends(times: Sequence[str]) -> str:
    if not times:
        return ""
    return " / ".join(times) if len(times) <= 3 else f"{times[0]} to {times[-1]}"


def _seconds(seconds: float) -> str:
    """
    >>> _seconds(2.63), _seconds(0.0123), _seconds(2.5e-5)
    ('2.63 s', '12.3 ms', '25 µs')
    """
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _bars(measured: dict[str, Any]) -> str:
    """How many bars were reached, and each that was not."""
    found = [
        (f"{row['workload']} {row['case']}", verdict)
        for row in measured["rows"]
        for verdict in row["verdicts"]
        if verdict["reached"] is not None
    ]
    found += [
        (f"{name}, geometric mean", verdict)
        for name, verdicts in measured["means"].items()
        for verdict in verdicts
        if verdict["reached"] is not None
    ]
    missed = [
        f"{where} {verdict['got']:.2f} ({verdict['over']} {'≤' if verdict['share'] else '≥'} {verdict['wanted']:g})"
        for where, verdict in found
        if not verdict["reached"]
    ]
    text = f"We set ourselves {len(found)} bars; {len(found) - len(missed)} are reached."
    if missed:
        text += f" Not reached: {'; '.join(missed)}."
    if (started := measured.get("startup")) is not None:
        text += (
            f" A second process imports the library in {started['import']:.2g} s and runs the Tree-LSTM at full speed"
            f" {started['full_speed']:.2g} s later (bar: {BAR:g} s)."
        )
    return text


def between(text: str, part: str | None = None, markers: tuple[str, str] = MARKERS) -> str:
    """What stands between the markers of a page; or the page with `part` there instead."""
    before, rest = text.split(markers[0])
    inside, after = rest.split(markers[1])
    return inside if part is None else before + markers[0] + part + markers[1] + after


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.summary", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=MEASURED, help="what --json of the benchmarks wrote")
    parser.add_argument("--write", action="store_true", help="put them into docs/figures.md")
    options = parser.parse_args(arguments)
    measured = json.loads(options.file.read_text(encoding="utf-8"))
    if options.write:
        PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), table(measured)), encoding="utf-8")
    else:
        print(table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
