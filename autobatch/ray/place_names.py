"""`place_name`: a place in a tree as one plain name, for columns and variables."""

import re

_STEP = re.compile(r"\['?(.*?)'?\]|\.(\w+)")


def place_name(path: str, between: str, whole: str) -> str:
    """The name of a place, as `pytree.paths` says it.

    Args:
        between: what stands between a key and the next. whole: the name of the tree itself.

    >>> place_name("['tables'][0].users", "/", "params"), place_name("", ".", "result")
    ('tables/0/users', 'result')
    """
    return between.join(key or attribute for key, attribute in _STEP.findall(path)) or whole
