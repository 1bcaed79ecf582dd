"""DyNet's options, which it reads once, when it is imported."""

import dynet_config


def set_options(autobatch: int) -> None:
    """How it groups operations: 1 by agenda, 2 by depth, 0 not at all."""
    dynet_config.set(mem="2048", autobatch=autobatch, random_seed=1)
