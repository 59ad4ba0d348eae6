"""``queue top``: the queues live, the busiest first."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors import ConnectionLost, StartError
from .failures import Command
from .output import Column, age, console, counted, number, plain, print_json_line, table
from .target import find, json_option, target_options

if TYPE_CHECKING:
    from ..queue_client.models import QueueMetrics

#: lines of a screen that are not queues: the title, the headings with their lines, what was left out
_OTHER_LINES = 6
_WAITING = "no broker answers; waiting for one"
_SORTS = ("rate", "length", "age", "name")


class Line(NamedTuple):
    """A queue in a frame; rates are messages a second since the last frame."""

    metrics: QueueMetrics
    sent: float
    delivered: float
    acked: float


@click.command(cls=Command)
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="seconds between looks")
@click.option("--sort", type=click.Choice(_SORTS), default="rate", show_default=True, help="what comes first")
@click.option("--once", is_flag=True, help="one look, with rates of the last minute")
@click.option("--count", type=click.IntRange(1), help="end after so many looks")
@target_options
@json_option
def top(
    interval: float,
    sort: str,
    once: bool,
    count: int | None,
    url: str | None,
    tls_ca: str | None,
    as_json: bool,
) -> None:
    """Show depths, rates and ages live, until Ctrl-C. Rates are those between two looks.

    Where stdout is no terminal, each look is printed below the one before; with --json, a line each.
    """
    with find(url, tls_ca).client(looks=True) as client:
        frames = _frames(client.metrics_all, interval, 1 if once else count, sort)
        try:
            _show(frames, as_json, live=not once and sys.stdout.isatty())
        except KeyboardInterrupt:
            return  # that is how it ends


def _show(frames: Iterator[list[Line] | None], as_json: bool, *, live: bool) -> None:
    if as_json:
        for lines in frames:
            if lines is None:
                continue
            print_json_line(
                {"at": lines[0].metrics.at if lines else None, "queues": [_as_json(line) for line in lines]}
            )
            sys.stdout.flush()
        return
    screen = console()
    if not live:
        for lines in frames:
            screen.print(_WAITING if lines is None else draw(lines, screen.width), crop=False)
            sys.stdout.flush()
        return
    from rich.live import Live

    with Live(console=screen, screen=True, auto_refresh=False) as display:
        for lines in frames:
            display.update(_WAITING if lines is None else draw(lines, screen.width, screen.height), refresh=True)


def _frames(
    look: Callable[[], dict[str, QueueMetrics]], interval: float, count: int | None, sort: str
) -> Iterator[list[Line] | None]:
    """The queues at each look; None where the broker is away, which is no end once there was one."""
    before: dict[str, QueueMetrics] = {}
    waiting = threading.Event()
    number = 0
    next_at = time.monotonic()
    while True:
        try:
            found = look()
        except (ConnectionLost, StartError):
            if not number:
                raise
            yield None
        else:
            yield sorted((_line(one, before.get(name)) for name, one in found.items()), key=_order(sort))
            before, number = found, number + 1
        if number == count:
            return
        next_at = max(next_at + interval, time.monotonic())
        waiting.wait(next_at - time.monotonic())


def _line(now: QueueMetrics, before: QueueMetrics | None) -> Line:
    """Rates between two looks; at the first, or when the broker was restarted in between, the broker's own."""
    if before is None or now.at is None or before.at is None or now.counted_since != before.counted_since:
        return Line(now, now.sent_per_second, now.delivered_per_second, now.acked_per_second)
    seconds = max((now.at - before.at).total_seconds(), 0.001)

    def rate(name: str) -> float:
        return max(0.0, (now.counts.get(name, 0) - before.counts.get(name, 0)) / seconds)

    return Line(now, rate("published"), rate("delivered"), rate("acked"))


def _order(sort: str) -> Callable[[Line], Any]:
    keys: dict[str, Callable[[Line], float]] = {
        "rate": lambda line: line.sent + line.delivered + line.acked,
        "length": lambda line: line.metrics.length,
        "age": lambda line: line.metrics.oldest_age_seconds or 0.0,
        "name": lambda _line: 0.0,
    }
    return lambda line: (-keys[sort](line), line.metrics.queue)


def _as_json(line: Line) -> dict[str, Any]:
    rates = {"sent_per_second": line.sent, "delivered_per_second": line.delivered, "acked_per_second": line.acked}
    return {**plain(line.metrics), **{name: round(value, 3) for name, value in rates.items()}}


# ---------------------------------------------------------------------- drawing
_COLUMNS: list[Column] = [
    ("queue", False), ("visible", True), ("delayed", True), ("in flight", True), ("sent/s", True), ("deliv/s", True),
    ("acked/s", True), ("oldest", True), ("failed", True), ("cons", True),
]  # fmt: skip
#: what fits into 80 columns beside names of 20 characters
_NARROW = 110
#: between two columns, and what is left of a name
_GAP = 3
_SHORTEST_NAME = 8
_LEFT_OUT_WHEN_NARROW = {"deliv/s", "failed"}


def draw(lines: list[Line], width: int, height: int = 0) -> Any:
    """A frame that fits a terminal of so many columns, and lines (0: any number)."""
    from rich.console import Group
    from rich.text import Text

    shown = lines[: max(1, height - _OTHER_LINES)] if height else lines
    used = [n for n, (name, _) in enumerate(_COLUMNS) if width >= _NARROW or name not in _LEFT_OUT_WHEN_NARROW]
    rows = [[_cells(line)[n] for n in used] for line in shown]
    columns = [_COLUMNS[n] for n in used]
    made = table(columns, rows)
    if height:
        _keep_numbers_whole(made, columns, rows, width)
    parts: list[Any] = [Text(_title(lines)), made]
    if len(shown) < len(lines):
        parts.append(Text(f"and {len(lines) - len(shown)} more"))
    return Group(*parts)


def _keep_numbers_whole(made: Any, columns: list[Column], rows: list[list[Any]], width: int) -> None:
    """Where the screen is narrow, names are cut: a line a queue."""
    left = width
    for at, (heading, _) in enumerate(columns[1:], 1):
        cells = (row[at] for row in rows)
        texts = (number(cell) if type(cell) in (int, float) else str(cell) for cell in cells)
        left -= _GAP + max(len(heading), *(len(text) for text in texts), 0)
    name = made.columns[0]
    name.max_width, name.no_wrap, name.overflow = max(_SHORTEST_NAME, left), True, "ellipsis"


def _title(lines: list[Line]) -> str:
    at = next((line.metrics.at for line in lines if line.metrics.at is not None), None)
    clock = "" if at is None else at.astimezone().strftime("%H:%M:%S  ")
    waiting = sum(line.metrics.visible + line.metrics.delayed for line in lines)
    held = sum(line.metrics.in_flight for line in lines)
    sent, acked = sum(line.sent for line in lines), sum(line.acked for line in lines)
    queues = counted(len(lines), "queue")
    return f"{clock}{queues}  {waiting:,} waiting  {held:,} in flight  {sent:,.1f} sent/s  {acked:,.1f} acked/s"


def _cells(line: Line) -> tuple[Any, ...]:
    one = line.metrics
    counted = one.visible, one.delayed, one.in_flight
    return (
        one.queue,
        *counted,
        line.sent,
        line.delivered,
        line.acked,
        age(one.oldest_age_seconds),
        one.failed,
        one.consumers,
    )
