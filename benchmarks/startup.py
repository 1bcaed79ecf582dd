"""What an import costs beside Numba's, and how soon a second process is at full speed.

Run as a program it is that process: it imports the library, runs the Tree-LSTM's forward pass again and again, and
prints how long after the import the first run began that took no longer than the later ones do; what the first one
compiled is on disk. With `--import` it prints the first part alone, with `--proof` what the first proofs of small
models take where nothing compiled is on disk.
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


_SET_UP = """
import sys
import time
import numpy as np
import autobatch as ab
rng = np.random.default_rng(0)
def arrays(**shapes):
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
def recurrent(words, params):
    h = np.zeros(params["u"].shape[0], np.float32)
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return h @ params["out"]
def tree(node, params):
    if isinstance(node, int):
        return np.tanh(params["emb"][node])
    h = np.concatenate([tree(node[0], params), tree(node[1], params)])
    gate = ab.nn.sigmoid(h @ params["u"])
    return gate * np.tanh(h @ params["w"])
class Tagger:
    def __init__(self):
        self.emb, self.norm = ab.nn.Embedding(100, 8, seed=1), ab.nn.LayerNorm(8)
        self.attend, self.out = ab.nn.MultiHeadAttention(8, 2, seed=2), ab.nn.Linear(8, 3, seed=3)
    def __call__(self, words):
        x = self.emb(words)
        return self.out(self.norm(x + self.attend(x)))
def layers(words, model):
    return model(words)
words = [rng.integers(0, 100, n) for n in (5, 2, 1, 9)]
trees = [3, (1, 2), ((4, 5), (6, (7, 8))), (9, (1, 1))]
cases = {
    "recurrent": lambda: (recurrent, words, {"params": arrays(emb=(100, 8), w=(8, 16), u=(16, 16), out=(16, 2))}),
    "tree": lambda: (tree, trees, {"params": arrays(emb=(100, 8), w=(16, 8), u=(16, 8))}),
    "layers": lambda: (layers, words, {"model": Tagger()}),
}
f, examples, shared = cases[sys.argv[1]]()
begin = time.perf_counter()
ab.testing.assert_equivalent(f, examples, **shared)
print(time.perf_counter() - begin)
"""
PROVED = ("recurrent", "tree", "layers")


def first_proofs() -> dict[str, float]:
    """Seconds of the first proof of small models, gradients included, each in a process that finds no kernels.

    The models: that of the README, a recursion over trees, layers of `ab.nn` in an object. What is compiled is another
    process's work, and not there yet: the report says so, and names the compiled way as not compared.
    """
    found = {}
    for model in PROVED:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "proof.py"  # a function without a file has no source
            script.write_text(_SET_UP, encoding="utf-8")
            environment = {**os.environ, "AUTOBATCH_CACHE_DIR": str(Path(folder) / "kernels"), "PYTHONPATH": str(_ROOT)}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            command = [sys.executable, str(script), model]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[model] = float(run.stdout)
    return {**found, "wanted": BAR_OF_PROOF}


def main() -> None:
    if "--proof" in sys.argv:
        print(json.dumps(first_proofs()))
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
