"""The figures as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Plan, Row, Verdict
from benchmarks.machine import describe


def as_json(
    plan: Plan, rows: Sequence[Row], means: dict[str, list[Verdict]], startup: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The machine, the settings, and every row with its times in seconds."""
    return {
        "machine": describe(),
        "settings": {"size": plan.size, "cores": list(plan.cores), "seconds": plan.seconds},
        "rows": [
            {
                **dataclasses.asdict(row),
                "verdicts": [_verdict(verdict) for verdict in row.verdicts],
            }
            for row in rows
        ],
        "means": {name: [_verdict(verdict) for verdict in verdicts] for name, verdicts in means.items()},
        "startup": startup,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {**dataclasses.asdict(verdict), "reached": verdict.reached}


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at once, so that a run that is interrupted leaves the last whole one."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)
