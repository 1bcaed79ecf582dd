"""What the site's pages are given when it is built: every public name has its place in the reference."""

import pathlib
import re
import sys
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_REST = "<!-- every other public name -->"
_MODULES = {"nn", "optim", "testing", "extend", "config", "segments", "tables"}  # shown member by member


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the names that no page of the reference has on the page that asks for them."""
    return markdown.replace(_REST, "\n\n".join(f"::: autobatch.public.{name}" for name in names_left()))


def names_left() -> list[str]:
    """The public names that no page of docs/api shows."""
    sys.path.insert(0, str(_ROOT))
    try:
        import autobatch  # noqa: PLC0415  (a site is built without its being installed, too)
    finally:
        sys.path.remove(str(_ROOT))
    text = "".join(page.read_text(encoding="utf-8") for page in (_ROOT / "docs" / "api").glob("*.md"))
    shown = re.findall(r"^::: autobatch\.public\.(\w+)$", text, re.MULTILINE)
    return sorted(set(dir(autobatch)) - set(shown) - _MODULES - {"__version__"})
