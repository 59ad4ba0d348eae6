"""Output of commands: lines, facts and tables for people, JSON for machines.

Names and bodies are untrusted. For people, characters that a terminal could interpret as a command, or that change the
direction of the text, are shown as escapes; JSON is pure ASCII. Times are local with their zone for people, ISO 8601 in
UTC in JSON. There are no colours unless stdout is a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..json_values import plain
from ..readable_text import counted, number, shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

#: width of a table in a file or a pipe, where nothing is cut
_WIDE = 100_000
#: spaces between two columns
_GAP = 3
#: widths of a column of texts: the minimum, and the one for which spare columns are left out
_SHORTEST_TEXT, _EASY_TEXT = 8, 20


# ---------------------------------------------------------------------- lines
def local(at: datetime | None) -> str:
    """Format a time in the user's zone, with the offset."""
    return "" if at is None else at.astimezone().isoformat(" ", "seconds")


def say(text: str) -> None:
    """Print a line on stdout, made safe for terminals."""
    _never_fail_on_a_character()
    print(shown(text))


def note(text: str) -> None:
    """Print a line for people on stderr: stdout has only the requested output."""
    print(shown(text), file=sys.stderr)


def _never_fail_on_a_character() -> None:
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


# ---------------------------------------------------------------------- JSON
class JsonLines(NamedTuple):
    """Documents that are printed as JSON, each on its line."""

    documents: Iterable[Any]


def print_json(value: Any) -> None:
    """Print a document; for JsonLines, each document on its line."""
    is_lines = isinstance(value, JsonLines)
    indent = None if is_lines else 2
    for document in value.documents if is_lines else (value,):
        print(json.dumps(plain(document), indent=indent, default=str))


# ---------------------------------------------------------------------- tables
Columns = Mapping[str, str | Callable[[Any], Any]]


class Table(NamedTuple):
    """Table of objects.

    Attributes:
        columns: for each heading, the name of an attribute (by default, the heading), or a function that returns the
            cell of an object. A heading that ends with ``#`` has numbers, which are never folded.
        none: the line that is printed instead of an empty table.
        spare: the headings of columns that are left out on a narrow terminal, the first one first.
        rare: the headings of columns that are left out if they have no values.
    """

    columns: Columns
    none: str
    spare: Sequence[str] = ()
    rare: Sequence[str] = ()
    title: str = ""
    rows: Iterable[Any] = ()

    def of(self, rows: Iterable[Any]) -> Table:
        """Return the table with these objects as rows."""
        return self._replace(rows=rows)


class Cells(NamedTuple):
    """Column of a table, as texts that are safe for terminals; it is not folded if ``is_whole``."""

    heading: str
    texts: list[str]
    is_number: bool
    is_whole: bool

    def width(self, text_width: int) -> int:
        """Return the least width: the full width of numbers and times, at most ``text_width`` for texts."""
        from rich.cells import cell_len

        width = max(map(cell_len, (self.heading, *self.texts)))
        return width if self.is_whole else min(width, text_width)


def print_table(table: Table) -> None:
    """Print a table.

    If the terminal is too narrow, the spare columns are left out in their order, with a note on stderr. A table that is
    still too wide is wrapped by the terminal, not cut.
    """
    columns = cells_of(table)
    if not columns[0].texts:
        say(table.none)
        return
    screen = console()
    fitted_columns = fitted(columns, screen.width, table.spare)
    screen.width = max(screen.width, _width(fitted_columns, _SHORTEST_TEXT))
    screen.print(rich_table(fitted_columns, table.title), crop=False)
    left_out = {column.heading for column in columns} - {column.heading for column in fitted_columns}
    if left_out:
        names = ", ".join(heading for heading in table.spare if heading in left_out)
        note(f"the terminal is too narrow to show: {names}; --json has everything")


def cells_of(table: Table) -> list[Cells]:
    """Return the columns of a table as texts."""
    rows, columns = list(table.rows), []
    for name, value in table.columns.items():
        heading, is_number = name.rstrip("#"), name.endswith("#")
        read = value if callable(value) else _reader(value or heading.replace(" ", "_"))
        values = [read(row) for row in rows]
        if heading not in table.rare or any(values):
            is_whole = is_number or any(isinstance(value, datetime) for value in values)
            columns.append(Cells(heading, list(map(_cell, values)), is_number, is_whole))
    return columns


def _reader(name: str) -> Callable[[Any], Any]:
    """Return a function that reads an item of a mapping, or an attribute."""
    read_item, read_attribute = itemgetter(name), attrgetter(name)
    return lambda row: (read_item if isinstance(row, Mapping) else read_attribute)(row)


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return local(value)
    return "" if value is None else number(value) if type(value) in (int, float) else shown(value)


def fitted(columns: Sequence[Cells], width: int, spare: Sequence[str]) -> list[Cells]:
    """Leave out spare columns, the first one first, until the texts of the table are readable."""
    remaining = list(columns)
    for heading in spare:
        if _width(remaining, _EASY_TEXT) <= width:
            break
        remaining = [column for column in remaining if column.heading != heading]
    return remaining


def _width(columns: Sequence[Cells], text_width: int) -> int:
    return sum(column.width(text_width) for column in columns) + _GAP * (len(columns) - 1)


def room_for_text(columns: Sequence[Cells], width: int) -> int:
    """Return the maximum width of the first column, a text, beside the others."""
    return max(_SHORTEST_TEXT, width - _GAP - _width(columns[1:], _SHORTEST_TEXT))


def rich_table(columns: Sequence[Cells], title: str = "") -> RichTable:
    """Return a table for a console."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(
        title=Text(shown(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.is_whole,
            min_width=column.width(_SHORTEST_TEXT),
        )
    for row in zip(*(column.texts for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def console() -> Console:
    """Return a console for stdout, as wide as the terminal, or unbounded if there is none."""
    from rich.console import Console

    unbounded = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    _never_fail_on_a_character()
    return Console(
        file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=False, width=_WIDE if unbounded else None
    )


def cut_middle(text: str, width: int) -> str:
    """Return the beginning and the end of a text that is safe for terminals, in at most ``width`` columns."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - tail)}…{set_cell_size(text[::-1], tail)[::-1]}"


# ---------------------------------------------------------------------- replies
class Alert(str):
    """Line that is red on a terminal."""

    __slots__ = ()


Part = str | Mapping[str, Any] | Table


class Reply:
    """Result of a command.

    Args:
        document: the result for ``--json``.
        parts: the result for people: lines, facts and tables, in this order.
        notes: further lines for people, on stderr.
        error: raised after the output: the reason of an exit code that is not 0.
        check: returns that error, if it is known only after the output.
    """

    def __init__(
        self,
        document: Any,
        *parts: Part,
        notes: Iterable[str] = (),
        error: Exception | None = None,
        check: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self._document = document
        self._parts = parts
        self._notes = notes
        self._error = error
        self._check = check

    def print(self, as_json: bool) -> None:
        """Print the result, then raise its error."""
        if as_json:
            print_json(self._document)
        else:
            for part in self._parts:
                if isinstance(part, Alert):
                    console().print(part, style="bold red")
                elif isinstance(part, str):
                    say(part)
                elif isinstance(part, Table):
                    print_table(part)
                else:
                    width = max(map(len, part), default=0)
                    for name, value in part.items():
                        text = number(value) if type(value) is int and not name.endswith("id") else _cell(value)
                        say(f"{name:<{width}}  {text}".rstrip())
            for text in self._notes:
                note(text)
        error = self._error or self._check()
        if error is not None:
            raise error


def page_reply(
    list_page: Callable[..., Any],
    iterate: Callable[..., Iterable[Any]],
    table: Table,
    document: Callable[[Any], Any],
    query: Mapping[str, Any],
    *,
    everything: bool,
    hint: Callable[[Any], str] | None = None,
) -> Reply:
    """Return a page of a list with the options of the next and previous pages, or everything from the page on.

    Args:
        query: the arguments of the call. A cursor is only valid for the same window (``gte``, ``lte``), so the options
            of other pages have times in place of ``--since 2h``.
        hint: returns a further note about the first item.
    """
    if everything:
        items = iterate(**{**query, "limit": 1000})
        return Reply(JsonLines(map(document, items)), table.of(items))
    page = list_page(**query)
    window = {"since": query["gte"], "until": query["lte"]}
    cursors = {name: getattr(page, name) for name in ("next", "prev") if hasattr(page, name)}
    times = "".join(f"--{name} {plain(at)} " for name, at in window.items() if at is not None)
    notes = [hint(page.items[0])] if hint is not None and page.items else []
    notes += [f"{name} page: {times}--{name} {cursor}" for name, cursor in cursors.items() if cursor]
    document_of_page = {"items": [document(item) for item in page.items], **cursors, **window}
    return Reply(document_of_page, table.of(page.items), notes=notes)


def hidden_queues(queues: int) -> Iterator[str]:
    """Yield a note about the number of Celery's queues that a table leaves out, unless it is 0."""
    if queues:
        yield f"without {counted(queues, 'queue')} of Celery for events and remote control: --all"
