"""What commands print: tables for people, JSON for machines.

Names and bodies come from anywhere. In tables, whatever a terminal could take for a command, or that would turn the
direction of the text, is shown as an escape; JSON is pure ASCII. Times are local with their zone in tables, ISO 8601
in UTC in JSON. There are no colours unless stdout is a terminal.
"""

from __future__ import annotations

import json
import math
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: of a table that goes to a file or a pipe: nothing is cut
_WIDE = 100_000
#: between two columns
_GAP = 3
#: a text in a narrow table is not folded to less than this; the second is what makes other columns go first
_SHORTEST_TEXT, _EASY_TEXT = 8, 20
_HARMFUL = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

#: a column: its heading, and whether it has numbers
Column = tuple[str, bool]


class Fitted(NamedTuple):
    """A table that fits, and the headings of the columns that it lost for that."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    left_out: list[str]


# ---------------------------------------------------------------------- texts
def shown(value: Any, limit: int = 0) -> str:
    """A text on one line, harmless on any terminal; with a limit, cut after so many characters."""
    text = str(value)
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(_escaped(one) if unicodedata.category(one) in _HARMFUL else one for one in text)


def shown_lines(text: str) -> str:
    """As :func:`shown`, but lines stay lines."""
    return "\n".join(map(shown, text.split("\n")))


def _escaped(one: str) -> str:
    code = ord(one)
    return _SHORT.get(one) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def value_text(value: Any, limit: int = 0) -> str:
    """A message's body, or a header's value, for a person: a text as it is, anything else as JSON."""
    if isinstance(value, bytes):
        try:
            return shown(value.decode(), limit)
        except UnicodeDecodeError:
            return shown(repr(value[:1000] if limit else value), limit)
    if isinstance(value, str):
        return shown(value, limit)
    return shown(json.dumps(value, ensure_ascii=False, default=str), limit)


def pairs(values: Mapping[str, Any], limit: int = 0) -> str:
    """``name=value`` of each."""
    return shown(" ".join(f"{name}={value_text(value)}" for name, value in values.items()), limit)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Arguments as options take them: ``name=text``, or ``name:=JSON``."""
    return " ".join(
        f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value, default=str)}"
        for name, value in arguments.items()
    )


# ---------------------------------------------------------------------- times
def moment(ms: int) -> datetime | None:
    """Milliseconds since the epoch as a moment; None for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def local(at: datetime | None) -> str:
    """A moment with its zone, as the user's clock shows it."""
    return "" if at is None else at.astimezone().isoformat(" ", "seconds")


def age(seconds: float | None) -> str:
    """A length of time in two units at most: ``3d 4h``."""
    if seconds is None:
        return "-"
    left = max(0, int(seconds))
    units = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        if left >= size or (name == "s" and not parts):
            parts.append(f"{left // size}{name}")
            left %= size
        elif parts:
            break
    return " ".join(parts[:2])


# ---------------------------------------------------------------------- JSON
def plain(value: Any) -> Any:
    """A value of JSON for anything that the clients hand out. Bytes are ``{"base64": …}``; NaN and infinities, which
    JSON has not, are texts.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        from base64 import b64encode

        return {"base64": b64encode(value).decode()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def with_times(value: Any) -> Any:
    """A report in which moments (``…_at``) are in the place of milliseconds (``…_at_ms``, 0 or None for none)."""
    if isinstance(value, Mapping):
        return dict(_timed(str(name), one) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return [with_times(one) for one in value]
    return value


def _timed(name: str, value: Any) -> tuple[str, Any]:
    if f"_{name}".endswith("_at_ms") and (value is None or type(value) is int):
        return name.removesuffix("_ms"), moment(value or 0)
    return name, with_times(value)


def print_json(value: Any) -> None:
    """One document."""
    print(json.dumps(plain(value), indent=2, default=str))


def print_json_line(value: Any) -> None:
    """A document on a line of its own."""
    print(json.dumps(plain(value), default=str))


# ---------------------------------------------------------------------- tables
def console() -> Console:
    """For stdout; as wide as the terminal, and without bounds where there is none."""
    from rich.console import Console

    unbounded = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    _never_fail_on_a_character()
    return Console(
        file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=False, width=_WIDE if unbounded else None
    )


def _never_fail_on_a_character() -> None:
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, title: str = "") -> Table:
    """A table; cells are shown harmlessly. However narrow it must be, numbers and times are whole, texts are there."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    every = list(rows)
    made = Table(
        title=Text(shown(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for at, ((heading, is_number), width) in enumerate(
        zip(columns, _widths(columns, every, _SHORTEST_TEXT), strict=True)
    ):
        justify: Any = "right" if is_number else "left"
        made.add_column(
            heading, justify=justify, overflow="fold", no_wrap=_is_whole(columns, every, at), min_width=width
        )
    for row in every:
        made.add_row(*(Text(_cell(cell)) for cell in row))
    return made


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return local(value)
    return "" if value is None else number(value) if type(value) in (int, float) else shown(value)


def _is_whole(columns: Sequence[Column], rows: Sequence[Sequence[Any]], at: int) -> bool:
    """Whether a column has what must not be folded: numbers or times."""
    return columns[at][1] or any(isinstance(row[at], datetime) for row in rows)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Any]], text_width: int) -> list[int]:
    """How wide each column must be: a number or a time in full, a text as far as it can't be folded."""
    from rich.cells import cell_len

    widths = [
        max([cell_len(heading), *(cell_len(_cell(row[at])) for row in rows)]) for at, (heading, _) in enumerate(columns)
    ]
    return [width if _is_whole(columns, rows, at) else min(width, text_width) for at, width in enumerate(widths)]


def _whole_width(columns: Sequence[Column], rows: Sequence[Sequence[Any]], text_width: int) -> int:
    return sum(_widths(columns, rows, text_width)) + _GAP * (len(columns) - 1)


def number(value: float) -> str:
    """A number with separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def counted(count: int, word: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    *,
    title: str = "",
    none: str,
    spare: Sequence[str] = (),
) -> None:
    """A table, or a line when it would be empty.

    Where the terminal is too narrow for its numbers, the ``spare`` columns are left out, the first one first, and
    stderr says so; what is too wide even then is wrapped by the terminal, not cut.
    """
    every = list(rows)
    if not every:
        say(none)
        return
    screen = console()
    columns, found, left_out = fitted(columns, every, screen.width, spare)
    screen.width = max(screen.width, _whole_width(columns, found, _SHORTEST_TEXT))
    screen.print(table(columns, found, title=title), crop=False)
    if left_out:
        note(f"not shown in so narrow a terminal: {', '.join(left_out)}; --json has all")


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int, spare: Sequence[str]) -> Fitted:
    """A table without those ``spare`` columns, the first one first, that keep texts from being easy to read."""
    left_out: list[str] = []
    for heading in (one for one in spare if one in [name for name, _ in columns]):
        if _whole_width(columns, rows, _EASY_TEXT) <= width:
            break
        kept = [at for at, (name, _) in enumerate(columns) if name != heading]
        columns, rows = [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]
        left_out.append(heading)
    return Fitted(columns, rows, left_out)


def room_for_text(columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int) -> int:
    """How wide the first column, of a text, may be beside the others."""
    others = [row[1:] for row in rows]
    return max(_SHORTEST_TEXT, width - _GAP - _whole_width(columns[1:], others, _SHORTEST_TEXT))


def cut_middle(text: str, width: int) -> str:
    """A text on one line that is at most so many columns wide: its beginning and its end."""
    from rich.cells import cell_len, set_cell_size

    whole = shown(text)
    if cell_len(whole) <= width:
        return whole
    tail = (width - 1) // 2
    return f"{set_cell_size(whole, width - 1 - tail)}…{set_cell_size(whole[::-1], tail)[::-1]}"


def print_facts(facts: Mapping[str, Any], *, title: str = "") -> None:
    """Names and values, a line each."""
    width = max(map(len, facts), default=0)
    if title:
        say(title)
    for name, value in facts.items():
        text = local(value) if isinstance(value, datetime) else "" if value is None else value
        shown_value = number(text) if type(text) is int and not name.endswith("id") else shown(text)
        say(f"{name:<{width}}  {shown_value}".rstrip())


def say(text: str) -> None:
    """A line on stdout; what is in it is harmless already or made so."""
    _never_fail_on_a_character()
    print(shown(text))


def note(text: str) -> None:
    """A line for people, on stderr: stdout has nothing but what was asked for."""
    print(shown(text), file=sys.stderr)
