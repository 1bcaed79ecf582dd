"""The main job: train three models of one function on the functions of this Python's standard library.

    python -m examples.demo [folder] [--quick] [--seed N] [--validation N]

`folder` names other sources. `--quick` trains for one epoch on at most 200 functions: a check that all runs, not a
result. `--validation` judges the models by files chosen among the training files: their sizes, learning rates, epochs
and shares of words left out were chosen so, without a look at the files that are held out. The exit status is 1 where
a batched result differs from the loop's, and, on the standard library without these options, where a model does not
reach twice the accuracy of always answering the most frequent word.
"""

import argparse
import dataclasses
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

import autobatch as ab
from examples.task import Example, Task, load
from examples.train import MODELS, Model, Speed, accuracy, fit, labels_of, measure_speed, predict


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a model after its run."""

    model: Model
    params: Any
    accuracy: float
    speed: Speed
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", help="Python sources (default: the standard library)")
    parser.add_argument("--quick", action="store_true", help="one epoch on at most 200 functions, little timing")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the order (default: 0)")
    parser.add_argument("--validation", type=int, metavar="N", help="judge by files chosen among the training files")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    print("The task: guess the first word of a function's name from its body.", flush=True)
    try:
        task = load(options.folder, seed=options.seed, validation=options.validation)
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    describe(task, time.perf_counter() - start)
    models, timing = MODELS, 0.5
    if options.quick:
        timing = 0.2
        task = dataclasses.replace(task, train=task.train[:200], held_out=task.held_out[:50])
        models = tuple(dataclasses.replace(model, epochs=1, batch_size=16) for model in MODELS)
    majority = task.majority()
    outcomes = [run(model, task, options.seed, timing) for model in models]
    print(table(outcomes, majority))
    print()
    print(predictions(outcomes, task))
    print(f"\n{time.perf_counter() - start:.0f} s in all.")
    judged = options.folder is None and options.validation is None and not options.quick
    missed = [outcome.model.name for outcome in outcomes if judged and outcome.accuracy < 2 * majority]
    if missed:
        print(f"error: less than twice the majority class: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def describe(task: Task, seconds: float) -> None:
    words = textwrap.fill(" ".join(task.labels), 76, initial_indent="  ", subsequent_indent="  ")
    kept = len(task.train) + len(task.held_out)
    print(
        f"Read {task.read:,} functions in {seconds:.0f} s, and kept {kept:,}: no near-duplicates, and\n"
        f"only names that begin with one of the {len(task.labels)} most frequent words,\n"
        f"{words}\n"
        f"{len(task.train):,} are for training; {len(task.held_out):,}, from other files, are held out: the most\n"
        f"frequent word would be right for {task.majority():.1%} of these.\n"
    )


def run(model: Model, task: Task, seed: int, timing: float) -> Outcome:
    """Train, prove and time one model, for so many seconds; the mode of its calls is left to the library."""
    start = time.perf_counter()
    print(f"{model.name[0].upper()}{model.name[1:]}", flush=True)
    params = fit(model, task, seed=seed)
    print(f"  training  {model.epochs} epoch{'s' * (model.epochs > 1)} in {time.perf_counter() - start:.0f} s")
    right = accuracy(model, task.held_out, params)
    print(f"  accuracy  {right:.1%} of the held-out functions", flush=True)
    few = sorted(task.train, key=lambda example: len(example.tokens))[:: max(1, len(task.train) // 6)][:6]
    xs, labels = [model.inputs(example) for example in few], [example.label for example in few]
    report = ab.testing.assert_equivalent(model.loss, *zip(*xs, strict=True), labels, params=params)
    print(f"  proof     values and gradients of {report.examples} functions equal the plain loop's", flush=True)
    speed = measure_speed(model, task, seconds=timing, seed=seed)  # of what the training has set up
    print(f"  speed     {speed.batched:,.0f} functions a second in batches, {speed.loop:,.0f} in a loop\n", flush=True)
    return Outcome(model, params, right, speed, time.perf_counter() - start)


def table(outcomes: Sequence[Outcome], majority: float) -> str:
    """One row per model: accuracy beside the majority class, and training speed compared with the loop's."""
    rows = [f"{'':<18} {'accuracy':>8} {'of always ' + format(majority, '.1%'):>21} {'speed of the loop':>26}"]
    for outcome in outcomes:
        better, speed, target = outcome.accuracy / max(majority, 0.01), outcome.speed, outcome.model.target
        rows.append(
            f"{outcome.model.name:<18} {outcome.accuracy:8.1%} {better:8.2f}x, bar 2x {verdict(better >= 2)} "
            f"{speed.ratio:11.1f}x, bar {target:>2.0f}x {verdict(speed.ratio >= target)}"
        )
    rows.append('("always": the most frequent word as the answer to everything)')
    return "\n".join(rows)


def verdict(reached: bool) -> str:
    return "PASS" if reached else "MISS"


def predictions(outcomes: Sequence[Outcome], task: Task, count: int = 8) -> str:
    """A few held-out functions: what they are called, and what each model would call them."""
    chosen: list[Example] = task.held_out[:: max(1, len(task.held_out) // count)][:count]
    guesses = [predict(outcome.model, chosen, outcome.params) for outcome in outcomes]
    names = [outcome.model.name for outcome in outcomes]
    rows = [f"{'a held-out function':<30} {'begins':<9}" + "".join(f" {name.split()[-1]:<12}" for name in names)]
    for place, (example, truth) in enumerate(zip(chosen, labels_of(chosen), strict=True)):
        where = example.function.name
        where = where if len(where) <= 30 else f"...{where[-27:]}"
        answers = (int(guess[place]) for guess in guesses)
        marked = (f"{task.labels[answer]}{' *' if answer == truth else ''}" for answer in answers)
        rows.append(f"{where:<30} {task.labels[truth]:<9}" + "".join(f" {answer:<12}" for answer in marked).rstrip())
    rows.append("* right")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
