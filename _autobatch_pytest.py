"""The pytest plugin: the fixtures `equivalent` and `same`.

It is a module of its own beside the package, because pytest imports the plugins of every installed package in every
run: importing `autobatch.testing.plugin` would import NumPy and Numba in projects that do not use this one.
"""

from collections.abc import Callable
from typing import Any

import pytest


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
    from autobatch.testing.sameness import assert_same  # noqa: PLC0415 - heavy, and only here needed

    def check(per_example: Callable[..., Any], batched: Callable[..., Any], examples: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        report = assert_same(per_example, batched, examples, **options)
        request.node.user_properties.append(("autobatch", str(report)))
        return report

    return check
