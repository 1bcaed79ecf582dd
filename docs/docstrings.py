"""What the site's reference makes of docstrings: doctests as code, `Source:` as a paragraph of its own."""

import re
from typing import Any

import griffe

_TESTS = re.compile(r"(?:^>>>.*\n?(?:(?!\s*$).*\n?)*\s*)+", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Doctests stand bare in the docstrings; Markdown would take `>>>` for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _TESTS.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n\n", obj.docstring.value)
            obj.docstring.value = re.sub(r"^Source: ", "**Source:** ", text, flags=re.MULTILINE)
