"""What an import costs beside Numba's, and how soon a second process is at full speed.

Run as a program it is that process: it imports the library, runs the Tree-LSTM's forward pass again and again, and
prints how long after the import the first run began that took no longer than the later ones do; what the first one
compiled is on disk. With `--import` it prints the first part alone, with `--proof` what the first proof of a small
model takes where nothing compiled is on disk.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BAR = 1.0  # seconds after the import
BAR_OF_NUMBA = 1.3  # times what importing Numba takes
BAR_OF_PROOF = 3.0  # seconds
_RUNS = 40
_IMPORTS = 9
_ROOT = Path(__file__).resolve().parent.parent
_SLACK = 1.2


def measure() -> dict[str, Any]:
    """Seconds of the import, also over Numba's, and from there to full speed, in the second of two processes."""
    command = [sys.executable, "-m", "benchmarks.startup"]
    outs = [subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    found = json.loads(outs[-1])
    return {**found, **import_costs(), "wanted": BAR, "reached": found["full_speed"] <= BAR}


def import_costs() -> dict[str, float]:
    """The least seconds of processor time of new processes that import the library's usual names, and over Numba's.

    The library's bytecode is on disk, as pip writes it and has written Numba's.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ours, numbas = "from autobatch import batch, map", "import numba"
    least = dict.fromkeys((ours, numbas), float("inf"))
    for _ in range(_IMPORTS):
        for statement in least:
            code = f"{statement}; import time; print(time.process_time())"
            command = [sys.executable, "-c", code]
            run = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=True)
            least[statement] = min(least[statement], float(run.stdout))
    return {"import_cpu": least[ours], "over_numba": least[ours] / least[numbas]}


def full_speed(starts: list[float], durations: list[float]) -> float:
    """When the first run began that was as fast as the later half of them.

    >>> full_speed([0.0, 3.0, 4.0, 5.0], [3.0, 1.0, 1.0, 1.0])
    3.0
    """
    usual = statistics.median(durations[len(durations) // 2 :])
    return next(start for start, took in zip(starts, durations, strict=True) if took <= _SLACK * usual)


_PROOF = """
import time
import numpy as np
import autobatch as ab
def sentiment(words, params):
    h = np.zeros(params["u"].shape[0], np.float32)
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return h @ params["out"]
rng = np.random.default_rng(0)
shapes = {"emb": (100, 8), "w": (8, 16), "u": (16, 16), "out": (16, 2)}
params = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
begin = time.perf_counter()
ab.testing.assert_equivalent(sentiment, [rng.integers(0, 100, n) for n in (5, 2, 0, 9)], params=params)
print(time.perf_counter() - begin)
"""


def first_proof() -> dict[str, float]:
    """Seconds of the first proof of the README's model, gradients included, in a process that finds no kernels."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "proof.py"  # a function without a file has no source
        script.write_text(_PROOF, encoding="utf-8")
        environment = {**os.environ, "AUTOBATCH_CACHE_DIR": str(Path(folder) / "kernels"), "PYTHONPATH": str(_ROOT)}
        command = [sys.executable, str(script)]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {"first_proof": float(run.stdout), "wanted": BAR_OF_PROOF}


def main() -> None:
    if "--proof" in sys.argv:
        print(json.dumps(first_proof()))
        return
    if "--import" in sys.argv:
        print(json.dumps({**import_costs(), "wanted": BAR_OF_NUMBA}))
        return
    begin = time.perf_counter()
    from autobatch import batch, map  # noqa: F401, PLC0415 - their import is what is timed

    imported = time.perf_counter()
    from benchmarks.workloads import tree_lstm  # noqa: PLC0415

    case = tree_lstm.WORKLOAD.case("H=64 forward", "full")
    run = tree_lstm.MODEL.on_the_fly(case).run
    ready = time.perf_counter()
    starts, durations = [], []
    for _ in range(_RUNS):
        start = time.perf_counter()
        run()
        starts.append(start - ready)
        durations.append(time.perf_counter() - start)
    print(
        json.dumps({"import": imported - begin, "first_run": durations[0], "full_speed": full_speed(starts, durations)})
    )


if __name__ == "__main__":
    main()
