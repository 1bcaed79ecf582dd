"""The process that runs one way: it answers requests on its standard input, so that ways can take turns.

Requests are pickled tuples; so are the answers, on what was the standard output. An error is an answer too.
"""

import os
import pickle
import sys
import time
import traceback
from typing import Any

from benchmarks import declare, timing


class Session:
    """One way, and the case that it is at."""

    def __init__(self, workload: str, way: str) -> None:
        self.workload = declare.load(workload)
        self.prepare_case = self.workload.way(way).prepare()
        self.runner: Any = None
        self.each = 0.0

    def prepare(self, case: str, size: str) -> dict[str, Any]:
        """Build the data, run once, and give the result and what the first run took."""
        self.runner = None  # lets go of the data of the case before
        self.runner = self.prepare_case(self.workload.case(case, size))
        start = time.perf_counter()
        out = self.runner.run()
        first = time.perf_counter() - start
        return {"first": first, "result": self.runner.result(out)}

    def estimate(self) -> float:
        self.each = timing.estimate(self.runner.run)
        return self.each

    def turn(self, seconds: float) -> list[timing.Sample]:
        return timing.turn(self.runner.run, self.each, seconds)

    def account(self, seconds: float) -> dict[str, Any]:
        """Where the time goes, of a way that is ours."""
        from benchmarks import account  # noqa: PLC0415 - it imports this library, which a peer's process does not need

        return account.account(self.runner.run, seconds)


def serve(workload: str, way: str) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    session: Any = None
    while True:
        try:
            name, *args = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: tuple[str, Any]
        try:
            if name == "start":
                session = Session(workload, way)
                answer = ("ok", None)
            else:
                answer = ("ok", getattr(session, name)(*args))
        except Exception as error:
            traceback.print_exc()
            answer = ("error", f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
