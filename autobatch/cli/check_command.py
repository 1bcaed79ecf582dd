"""`autobatch check`: proves that batching a function, named as MODULE:FUNCTION, changes none of its results."""

import argparse
import sys
from typing import Any

from autobatch.cli.users_code import add_arguments, check_call, examples, importing_from_cwd, object_named, shared
from autobatch.testing.equivalence import assert_equivalent
from autobatch.testing.own_batch_proof import assert_same

_DESCRIPTION = """\
Prove that batching a function changes nothing: every execution mode, or your
own batched function (--batched), against the function of one example. Exit
status 0 if all agree, 1 if not, 2 for wrong usage.

  autobatch check models.tree:logits --examples models.tree:trees --shared params=models.tree:params
  autobatch check models:pooled --batched models:pooled_in_torch --examples xs.npz
"""


def add_check(commands: Any) -> None:
    """Add the command to the result of `ArgumentParser.add_subparsers`; `run_check` runs it.

    >>> parser = argparse.ArgumentParser()
    >>> add_check(parser.add_subparsers(dest="command"))
    >>> parser.parse_args(["check", "models:f", "--examples", "models:xs"]).examples
    ['models:xs']
    """
    check = commands.add_parser(
        "check",
        help="prove that batching a function changes nothing",
        description=_DESCRIPTION,
    )
    add_arguments(check)
    check.add_argument("--batched", metavar="MODULE:FUNCTION", help="your own function of a batch, to prove instead")
    check.add_argument("--no-grad", action="store_true", help="compare no gradients")
    check.add_argument("--errors", choices=["raise"], help="run under np.errstate(all='raise'), warnings as errors")
    check.set_defaults(run=run_check)


def run_check(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status: 0, 1 or 2, as in `_DESCRIPTION`."""
    try:
        with importing_from_cwd():
            function = object_named(options.function)
            batched = object_named(options.batched) if options.batched else None
            columns, keywords = examples(options), shared(options)
            if batched and options.errors:
                raise ValueError("--errors compares autobatch's modes; it does not go with --batched")
            check_call(function, columns, keywords)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        with importing_from_cwd():
            if batched is None:
                report = assert_equivalent(
                    function, *columns, grad=not options.no_grad, errors=options.errors, **keywords
                )
            else:
                rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
                report = assert_same(function, batched, rows, grad=not options.no_grad, **keywords)
    except AssertionError as difference:
        print(difference)
        return 1
    except (TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0
