"""Formatting for display: values as short text, types in signatures, and small HTML tables for notebooks."""

import html
import math
import pprint
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike
    from numpy.typing import DTypeLike as DTypeLike
else:  # what signatures show: NumPy's are unions, which `help` and `?` write out in twenty lines

    class ArrayLike:
        """`numpy.typing.ArrayLike`: what NumPy makes an array of."""

    class DTypeLike:
        """`numpy.typing.DTypeLike`: what NumPy makes a dtype of."""

    ArrayLike.__module__ = DTypeLike.__module__ = "numpy.typing"

_CELL = "padding:1px 8px;text-align:left;vertical-align:top;font-family:monospace;white-space:pre"
SHOWN_ROWS = 8  # in a notebook, where each value has a few lines


def shown_value(value: object) -> str:
    """A value as short text; large arrays are summarised.

    >>> shown_value(np.zeros(100))
    '[0. 0. ... 0. 0.]'
    """
    with np.printoptions(threshold=20, edgeitems=2, precision=4, linewidth=75):
        text = repr(value) if hasattr(value, "_ab_rank") else str(value)
    return text if len(text) <= 400 else text[:399] + "…"


def columns() -> int:
    """The width for printed text: the terminal's or that of the variable COLUMNS, 80 where there is neither."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def wrapped(text: str, indent: str) -> list[str]:
    """The lines of a paragraph, within `columns()` and easy to read; those after the first one are indented."""
    return textwrap.wrap(text, min(columns(), 100), subsequent_indent=indent, break_on_hyphens=False)


def few_rows(value: object, *arrays: object) -> str:
    """`repr(value)`, with at most six rows of each array in it; `arrays`: those in it.

    >>> few_rows({"w": np.arange(7.0)}), few_rows(np.zeros((9, 1))).count("[0.]")
    ("{'w': array([0., 1., 2., 3., 4., 5., 6.])}", 6)
    """
    shapes = [getattr(each, "shape", ()) for each in arrays or (value,)]
    tall = any(math.prod(shape[:-1]) > 6 for shape in shapes)
    with np.printoptions(threshold=6 if tall else 36, edgeitems=3 - 2 * any(len(s) > 2 for s in shapes), linewidth=56):
        return pprint.pformat(dict(value), sort_dicts=False) if isinstance(value, dict) else repr(value)


def public_names(self: object) -> list[str]:
    """The `__dir__` of classes: without the names in their `_ab_own_names`, which only the library uses."""
    internal = {name for each in type(self).__mro__ for name in vars(each).get("_ab_own_names", "").split()}
    return [name for name in object.__dir__(self) if name not in internal]


def layer_repr(layer: Any) -> str:
    """The `__repr__` of layers. Not a method of theirs: their code is read as the user's, and this asks for classes."""
    bias = ", bias=False" if getattr(layer, "bias", layer) is None else ""
    return f"{type(layer).__name__}({', '.join(map(str, layer._made_from()))}{bias})"


def shown_bytes(count: float) -> str:
    """A number of bytes with a unit.

    >>> shown_bytes(10), shown_bytes(12_345), shown_bytes(3e9)
    ('10 B', '12.3 kB', '3.0 GB')
    """
    power = min((len(str(int(count))) - 1) // 3, 3)
    return f"{count / 1000**power:.{min(power, 1)}f} {('B', 'kB', 'MB', 'GB')[power]}"


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], count: int = 0) -> str:
    """An HTML table with a caption.

    Args:
        head: column names; rows: values, strings shown unchanged; count: the rows that there are with those left out.

    >>> html_table("none", ["id"], [])
    '<div style="overflow-x:auto"><b>none</b><table><thead><tr><th>id</th></tr></thead><tbody></tbody></table></div>'
    """
    heads = "".join(f"<th>{html.escape(each)}</th>" for each in head)
    cells = ["".join(_cell(each if isinstance(each, str) else shown_value(each)) for each in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    below = f"<div>and {count - len(cells)} more</div>" if count > len(cells) else ""
    return (
        f'<div style="overflow-x:auto"><b>{html.escape(caption)}</b><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table>{below}</div>"
    )


def _cell(text: str) -> str:
    """On a phone a number stays whole, and a table of long texts scrolls before its words are broken."""
    style = f"{_CELL}-wrap;overflow-wrap:anywhere;min-width:26ch" if len(text) > 16 else _CELL
    return f'<td style="{style}">{html.escape(text)}</td>'
