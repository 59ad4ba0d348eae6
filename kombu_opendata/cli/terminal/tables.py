"""Tables on a terminal, fitted to its width."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ...readable_text import number, shown
from .output import local, never_fail_on_a_character, note, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: width of a table in a file or a pipe, where nothing is cut
_WIDE = 100_000
#: spaces between two columns
_GAP = 3
#: minimum widths of a text: folding stops at the first; below the second, other columns are left out
_SHORTEST_TEXT, _EASY_TEXT = 8, 20

#: a column: its heading, and whether it holds numbers
Column = tuple[str, bool]


class Fitted(NamedTuple):
    """A table that fits the terminal, and the headings of the columns that were left out for it."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    left_out: list[str]


def console() -> Console:
    """Return a console for stdout, as wide as the terminal, or unbounded if there is none."""
    from rich.console import Console

    unbounded = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    never_fail_on_a_character()
    return Console(
        file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=False, width=_WIDE if unbounded else None
    )


def table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, title: str = "") -> Table:
    """Return a table whose cells are safe for terminals. Numbers and times are never folded, texts never left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    all_rows = list(rows)
    result = Table(
        title=Text(shown(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for at, ((heading, is_number), width) in enumerate(
        zip(columns, _widths(columns, all_rows, _SHORTEST_TEXT), strict=True)
    ):
        justify: Any = "right" if is_number else "left"
        result.add_column(
            heading, justify=justify, overflow="fold", no_wrap=_is_whole(columns, all_rows, at), min_width=width
        )
    for row in all_rows:
        result.add_row(*(Text(_cell(cell)) for cell in row))
    return result


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return local(value)
    return "" if value is None else number(value) if type(value) in (int, float) else shown(value)


def _is_whole(columns: Sequence[Column], rows: Sequence[Sequence[Any]], at: int) -> bool:
    """Return True if a column holds numbers or times, which must not be folded."""
    return columns[at][1] or any(isinstance(row[at], datetime) for row in rows)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Any]], text_width: int) -> list[int]:
    """Return the least width of each column: the full width of numbers and times, at most ``text_width`` for texts."""
    from rich.cells import cell_len

    widths = [
        max([cell_len(heading), *(cell_len(_cell(row[at])) for row in rows)]) for at, (heading, _) in enumerate(columns)
    ]
    return [width if _is_whole(columns, rows, at) else min(width, text_width) for at, width in enumerate(widths)]


def _whole_width(columns: Sequence[Column], rows: Sequence[Sequence[Any]], text_width: int) -> int:
    return sum(_widths(columns, rows, text_width)) + _GAP * (len(columns) - 1)


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    *,
    title: str = "",
    none: str,
    spare: Sequence[str] = (),
) -> None:
    """Print a table, or the line ``none`` if it would be empty.

    If the terminal is too narrow, the ``spare`` columns are left out in their order, with a note on stderr. A table
    that is still too wide is wrapped by the terminal, not cut.
    """
    all_rows = list(rows)
    if not all_rows:
        say(none)
        return
    screen = console()
    columns, fitted_rows, left_out = fitted(columns, all_rows, screen.width, spare)
    screen.width = max(screen.width, _whole_width(columns, fitted_rows, _SHORTEST_TEXT))
    screen.print(table(columns, fitted_rows, title=title), crop=False)
    if left_out:
        note(f"the terminal is too narrow to show: {', '.join(left_out)}; --json has everything")


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int, spare: Sequence[str]) -> Fitted:
    """Leave out ``spare`` columns, the first one first, until the texts of the table are readable."""
    left_out: list[str] = []
    for heading in (spare_heading for spare_heading in spare if spare_heading in [name for name, _ in columns]):
        if _whole_width(columns, rows, _EASY_TEXT) <= width:
            break
        kept = [at for at, (name, _) in enumerate(columns) if name != heading]
        columns, rows = [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]
        left_out.append(heading)
    return Fitted(columns, rows, left_out)


def room_for_text(columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int) -> int:
    """Return the maximum width of the first column, a text, beside the others."""
    others = [row[1:] for row in rows]
    return max(_SHORTEST_TEXT, width - _GAP - _whole_width(columns[1:], others, _SHORTEST_TEXT))


def cut_middle(text: str, width: int) -> str:
    """Return the beginning and the end of a text, on one line of at most ``width`` columns."""
    from rich.cells import cell_len, set_cell_size

    safe_text = shown(text)
    if cell_len(safe_text) <= width:
        return safe_text
    tail = (width - 1) // 2
    return f"{set_cell_size(safe_text, width - 1 - tail)}…{set_cell_size(safe_text[::-1], tail)[::-1]}"
