"""The pytest plugin: the fixtures `equivalent` and `same`, and `--autobatch-explain`, which explains each test's calls.

It is a module of its own beside the package, because pytest imports the plugins of every installed package in every
run: importing `autobatch.testing.plugin` would import NumPy and Numba in projects that do not use this one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

_EXPLAINED = "autobatch-explain"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("autobatch").addoption(
        "--autobatch-explain",
        action="store_true",
        help="say of each test which way its calls of autobatch ran, and which lines of the model took most",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Watch the calls of a test. A report goes with its properties, so that it comes from other processes too."""
    if not item.config.getoption("--autobatch-explain"):
        yield
        return
    from autobatch.report.explain import watching  # noqa: PLC0415 - heavy, and only here needed

    with watching() as watched:
        yield
    if watched.ran:
        item.user_properties.append((_EXPLAINED, watched.report().summary()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what became of the calls of each test."""
    found = [
        (report.nodeid, text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == _EXPLAINED
    ]
    if found:
        terminalreporter.section("autobatch explain")
    for nodeid, text in found:
        terminalreporter.write_line(f"{nodeid}\n{text}\n")


@pytest.fixture
def equivalent(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`autobatch.testing.assert_equivalent`, with its report kept in the test's properties (JUnit XML shows them).

    A test of a model is then one line::

        def test_model(equivalent):
            equivalent(model, sentences, params=params)
    """
    from autobatch.testing.equivalence import assert_equivalent  # noqa: PLC0415 - heavy, and only here needed

    def check(f: Callable[..., Any], *example_sequences: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        report = assert_equivalent(f, *example_sequences, **options)
        request.node.user_properties.append(("autobatch", str(report)))
        return report

    return check


@pytest.fixture
def same(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`autobatch.testing.assert_same`, for a batched function of your own, with its report kept likewise.

    A test of it is one line::

        def test_encoder(same):
            same(encode, encode_batch, sentences)
    """
    from autobatch.testing.own_batch_proof import assert_same  # noqa: PLC0415 - heavy, and only here needed

    def check(per_example: Callable[..., Any], batched: Callable[..., Any], examples: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        report = assert_same(per_example, batched, examples, **options)
        request.node.user_properties.append(("autobatch", str(report)))
        return report

    return check
