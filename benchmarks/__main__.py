"""`make bench`, or `python -m benchmarks [NAME ...]`: run workloads beside their peers and print the ratios."""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks import declare, harness, machine, results, startup, table

_BUSY = 0.3  # load on each core above which other work disturbs a measurement that needs all of them


def main(arguments: list[str] | None = None) -> int:
    """0 where every way that could run gave equal results, else 1. A bar that is not reached is no failure."""
    options = parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    known = declare.names()
    if options.list:
        for name in known:
            console.print(f"{name:<16} {declare.load(name).about}")
        return 0
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        console.print(f"unknown: {', '.join(unknown)}; the workloads are {', '.join(known)}", style="red")
        return 2
    plan = harness.Plan(
        size="small" if options.quick else options.size,
        cores=tuple(options.cores or dict.fromkeys((1, machine.available_cores()))),
        seconds=0.2 if options.quick else options.seconds,
        picked=lambda case: options.case in case,
        ways=lambda way: options.peers is None or way.startswith(tuple(options.peers)),
    )
    about = machine.describe()
    console.print(f"{about['processor']}, {about['cores']} cores, {about['system']}, Python {about['python']}")
    console.print(", ".join(f"{name} {version}" for name, version in about["versions"].items()))
    console.print("a run: median ± half the quartiles' distance; x: how many times longer than autobatch", style="dim")
    console.print("1 core: processor time; more: the clock's", style="dim")
    if (about["load"] or 0) > _BUSY * about["cores"]:
        console.print(
            f"the load average is {about['load']}: figures for several cores are those of a busy machine",
            style="bold red",
        )
    start = time.perf_counter()
    rows: list[harness.Row] = []
    means: dict[str, list[harness.Verdict]] = {}
    for name in options.names or known:
        workload = declare.load(name)
        own: list[harness.Row] = []
        with console.status(name) as status:
            for row in harness.run(workload, plan, status.update):
                own.append(row)
        if not own:
            continue
        rows += own
        means[name] = harness.judge(workload, own)
        table.print_workload(console, workload, own)
        if options.json:
            results.write(options.json, results.as_json(plan, rows, means))
    if not options.names and plan.size == "full":
        started = startup.measure()
        table.print_startup(console, started)
        if options.json:
            results.write(options.json, results.as_json(plan, rows, means, started))
    if not rows:
        console.print(f"no case has {options.case!r} in its name", style="red")
        return 2
    table.print_accounts(console, rows)
    table.print_bars(console, rows, means)
    console.print(f"{time.perf_counter() - start:.0f} s in all", style="dim")
    return 1 if any(row.failed for row in rows) else 0


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    out.add_argument("names", nargs="*", metavar="NAME", help="workloads; all by default")
    out.add_argument("--list", action="store_true", help="name the workloads")
    out.add_argument("--quick", action="store_true", help="small cases for a fraction of a second each")
    out.add_argument("--size", choices=("full", "small"), default="full")
    out.add_argument("--case", default="", metavar="TEXT", help="only cases whose name contains this")
    out.add_argument("--peers", nargs="*", metavar="PREFIX", help="only peers whose names begin so")
    out.add_argument("--cores", type=int, nargs="+", help="numbers of cores; by default 1 and all")
    out.add_argument("--seconds", type=float, default=0.5, help="how long each way is measured in each case")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return out


if __name__ == "__main__":
    sys.exit(main())
