"""The report for a person: a table per workload, the times of each way beside how many times slower than ours it is."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.account import PHASES
from benchmarks.declare import OURS, Workload
from benchmarks.harness import Row, Timing, Verdict


def print_workload(console: Console, workload: Workload, rows: Sequence[Row]) -> None:
    """Times, ratios and bars of the rows of one workload."""
    table = Table(title=f"{workload.name}: {workload.about}", title_justify="left", title_style="bold")
    table.add_column("case")
    table.add_column("cores", justify="right")
    ways = [way.name for way in workload.ways if any(way.name in row.timings for row in rows)]
    for way in ways:
        table.add_column(way, justify="right")
    bars = any(row.verdicts for row in rows)
    if bars:
        table.add_column("bar")
    for row in rows:
        cells = [Text(row.case), Text(str(row.cores))]
        cells += [_cell(row.timings.get(way), way) for way in ways]
        if bars:
            cells.append(Text("\n").join(_verdict(verdict) for verdict in row.verdicts))
        table.add_row(*cells)
    console.print(table)
    for row in rows:
        for way, timing in row.timings.items():
            if timing.status != "ok" and timing.failed:
                text = f"FAILED {row.workload} · {row.case} · {row.cores} · {way}: {timing.status}"
                console.print(text, style="bold red", markup=False)


def _cell(timing: Timing | None, way: str) -> Text:
    if timing is None:
        return Text("")
    if timing.median is None:
        return Text("FAILED" if timing.failed else timing.status, style="red" if timing.failed else "dim")
    assert timing.low is not None
    assert timing.high is not None
    half = (timing.high - timing.low) / 2
    text = Text(f"{_time(timing.median)} ±{half / timing.median:.0%}" if timing.median else "0")
    if way != OURS and timing.ratio is not None:
        text.append(f"\n{timing.ratio:.2f}x", style="green" if timing.ratio >= 1 else "yellow")
    return text


def _time(seconds: float) -> str:
    """Three digits of a time.

    >>> _time(0.0123456)
    '12.3 ms'
    """
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
    unit, factor = next((one for one in units if seconds * one[1] >= 1), units[-1])
    return f"{seconds * factor:.3g} {unit}"


def _verdict(verdict: Verdict) -> Text:
    name = f"{verdict.over} {'≤' if verdict.share else '≥'}{verdict.wanted:g}"
    if verdict.reached is None:
        return Text(f"{name}: no figure", style="dim")
    return Text(
        f"{name}: {verdict.got:.2f} {'reached' if verdict.reached else 'not reached'}",
        style="green" if verdict.reached else "red",
    )


def print_accounts(console: Console, rows: Sequence[Row]) -> None:
    """What our own runs launched, and where their time went, on one core."""
    rows = [row for row in rows if row.account.get("launches")]  # what ran no batch has nothing to tell
    if not rows:
        return
    table = Table(title="autobatch: launches of one run, and shares of its time", title_justify="left")
    table.add_column("case")
    for name in (
        "launches", "calls", "mean group", "vjps", "padding", "first run", "peak MB", *PHASES, "of products"
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        account = row.account
        first = row.timings[OURS].first
        mean = account["mean_group"]
        table.add_row(
            f"{row.workload} {row.case}",
            str(account["launches"]),
            str(account["calls"]),
            f"{mean:.1f}" if mean else "",
            str(account["backward_launches"] or ""),
            f"{account['padding']:.0%}" if account["padding"] else "",
            _time(first) if first else "",
            f"{account['peak'] / 1e6:.0f}" if account.get("peak") else "",
            *(f"{account['shares'].get(name, 0):.0%}" for name in PHASES),
            _of_products(account["shares"]),
        )
    console.print(table)


def print_startup(console: Console, found: dict[str, Any]) -> None:
    """How soon a second process is at full speed."""
    text = Text(
        f"a second process: import {_time(found['import'])} ({found['over_numba']:.2f} of Numba's), "
        f"first run {_time(found['first_run'])}, "
        f"at full speed {_time(found['full_speed'])} after the import: "
    )
    reached = found["reached"]
    style = "green" if reached else "red"
    console.print(text.append(f"{'' if reached else 'not '}reached (at most {found['wanted']:g} s)", style=style))


def print_bars(console: Console, rows: Sequence[Row], means: dict[str, list[Verdict]]) -> None:
    """How many bars were reached, and each that was not."""
    found = [(f"{row.workload} {row.case}", verdict) for row in rows for verdict in row.verdicts]
    found += [(f"{name}, geometric mean", verdict) for name, verdicts in means.items() for verdict in verdicts]
    judged = [(where, verdict) for where, verdict in found if verdict.reached is not None]
    if not judged:
        return
    console.print(f"{sum(bool(verdict.reached) for _, verdict in judged)} of {len(judged)} bars reached")
    for where, verdict in judged:
        if not verdict.reached:
            console.print(Text(f"{where}: ").append_text(_verdict(verdict)))


def _of_products(shares: dict[str, float]) -> str:
    """How many times the matrix products' own time it takes to run forward what was recorded."""
    products = shares.get("products", 0)
    running = products + shares.get("gathering", 0) + shares.get("elementwise", 0)
    return f"{running / products:.1f}x" if products and not shares.get("backward") else ""
