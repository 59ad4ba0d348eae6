"""Command ``queue top``: a live view of the queues, the busiest first."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...configuration.kinds import Seconds, WholeNumberKind
from ...errors import ConnectionLost, StartError
from ...json_values import plain
from ...readable_text import age, counted
from ..exit_codes import Command
from ..option_types import every_queue_option, listed, validated
from ..output import (
    JsonLines,
    Table,
    cells_of,
    console,
    cut_middle,
    fitted,
    print_json,
    print_table,
    rich_table,
    room_for_text,
    say,
)
from ..target import Target, json_option, start_option, target_options

if TYPE_CHECKING:
    from ...queue_client.metrics import QueueMetrics

_WAITING = "no broker answers; waiting for one"
#: maximum duration of one wait for a key
_SLICE_SECONDS = 0.25
_SORTS = ("rate", "length", "age", "name")

#: waits this many seconds; returns whether the user wants to quit
Pause = Callable[[float], bool]


class QueueLine(NamedTuple):
    """A queue in a frame; the rates are messages per second since the last frame."""

    metrics: QueueMetrics
    sent: float
    delivered: float
    acked: float


_TABLE = Table(
    {
        "queue": lambda line: f"{line.metrics.queue}{' (paused)' if line.metrics.paused else ''}",
        "ready#": "metrics.ready", "delayed#": "metrics.delayed", "in flight#": "metrics.in_flight",
        "sent/s#": "sent", "deliv/s#": "delivered", "acked/s#": "acked",
        "oldest#": lambda line: age(line.metrics.oldest_age_seconds),
        "failed#": "metrics.failed",
        "cons#": "metrics.consumers",
    },
    none="no queues",
    spare=("deliv/s", "failed", "cons", "delayed", "acked/s", "oldest", "sent/s", "in flight"),
)  # fmt: skip


@click.command(cls=Command, epilog="Example: opendata-queue queue top --interval 5 --sort length")
@click.option("--interval", type=validated(Seconds(0.1)), default=2, show_default=True, help="time between updates")
@click.option("--sort", type=click.Choice(_SORTS), default="rate", show_default=True, help="which queues come first")
@click.option("--once", is_flag=True, help="show one update, with the rates of the last minute")
@click.option("--count", type=validated(WholeNumberKind(1)), help="end after this many updates")
@every_queue_option
@target_options
@start_option
@json_option
def top(interval: float, sort: str, once: bool, count: int | None, every: bool, target: Target, as_json: bool) -> None:
    """Show lengths, rates and ages live, until q or Ctrl-C.

    Rates are those between two updates. If stdout is not a terminal, each update is printed below the previous one;
    with --json, each is a separate document on its line.
    """
    live = not once and not as_json and sys.stdout.isatty()
    with target.client(read_only=True) as client, _keyboard() if live else nullcontext(_sleep) as pause:
        frames = _frames(lambda: listed(client.metrics_all(), every), interval, 1 if once else count, sort, pause)
        try:
            if live:
                _show_live(frames)
            else:
                _show(frames, as_json)
        except KeyboardInterrupt:
            return  # the normal end


def _show(frames: Iterator[list[QueueLine] | None], as_json: bool) -> None:
    for lines in frames:
        if as_json:
            if lines is not None:
                at = lines[0].metrics.at if lines else None
                print_json(JsonLines([{"at": at, "queues": list(map(_document, lines))}]))
        elif lines is None:
            say(_WAITING)
        else:
            for text in _title(lines, console().width):
                say(text)
            print_table(_TABLE.of(lines))
        sys.stdout.flush()


def _show_live(frames: Iterator[list[QueueLine] | None]) -> None:
    from rich.live import Live

    screen = console()
    with Live(console=screen, screen=True, auto_refresh=False) as display:
        for lines in frames:
            display.update(_WAITING if lines is None else draw(lines, screen.width, screen.height), refresh=True)


def _frames(
    read: Callable[[], dict[str, QueueMetrics]], interval: float, count: int | None, sort: str, pause: Pause
) -> Iterator[list[QueueLine] | None]:
    """Yield the queues at each update; None while a broker that has answered before is unavailable."""
    previous: dict[str, QueueMetrics] = {}
    number = 0
    next_at = time.monotonic()
    while True:
        try:
            queues = read()
        except (ConnectionLost, StartError):
            if not number:
                raise
            yield None
        else:
            yield sorted((_line(metrics, previous.get(name)) for name, metrics in queues.items()), key=_order(sort))
            previous, number = queues, number + 1
        if number == count:
            return
        next_at = max(next_at + interval, time.monotonic())
        if pause(next_at - time.monotonic()):
            return


def _line(now: QueueMetrics, before: QueueMetrics | None) -> QueueLine:
    """Return the rates between two updates; for a first update or a recreated queue, those that the broker reports."""
    if before is None or now.at is None or before.at is None or now.counted_since != before.counted_since:
        return QueueLine(now, now.sent_per_second, now.delivered_per_second, now.acked_per_second)
    seconds = max((now.at - before.at).total_seconds(), 0.001)

    def rate(name: str) -> float:
        return max(0.0, (now.counts.get(name, 0) - before.counts.get(name, 0)) / seconds)

    return QueueLine(now, rate("published"), rate("delivered"), rate("acked"))


def _order(sort: str) -> Callable[[QueueLine], Any]:
    keys: dict[str, Callable[[QueueLine], float]] = {
        "rate": lambda line: line.sent + line.delivered + line.acked,
        "length": lambda line: line.metrics.length,
        "age": lambda line: line.metrics.oldest_age_seconds or 0.0,
        "name": lambda _line: 0.0,
    }
    return lambda line: (-keys[sort](line), line.metrics.queue)


def _document(line: QueueLine) -> dict[str, Any]:
    rates = {"sent_per_second": line.sent, "delivered_per_second": line.delivered, "acked_per_second": line.acked}
    rounded = {name: round(value, 3) for name, value in rates.items()}
    return {**plain(line.metrics), "visible": line.metrics.ready, **rounded}


def _sleep(seconds: float) -> bool:
    time.sleep(max(0.0, seconds))
    return False


@contextmanager
def _keyboard() -> Iterator[Pause]:
    """Provide a pause that the key q ends, if there is a keyboard; Ctrl-C raises KeyboardInterrupt as usual."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()

    def pause(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            # In slices, because a Ctrl-C just before the call does not interrupt it.
            if select.select([terminal], [], [], min(left, _SLICE_SECONDS))[0]:
                keys = os.read(terminal, 1024)
                if not keys or b"q" in keys.lower():  # no keys: the terminal is closed
                    return True
        return False

    settings = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield pause
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


#: lines of a screen besides title and queues: the headings, the line below them, and the last line
_OTHER_LINES = 3
_GAP = "  "


def draw(lines: list[QueueLine], width: int, height: int) -> Any:
    """Return a frame for a screen of this size, with a line for each queue; long names are cut in the middle."""
    from rich.console import Group
    from rich.text import Text

    title = _title(lines, width)
    listed_lines = lines[: max(1, height - _OTHER_LINES - len(title))]
    names, *others = fitted(cells_of(_TABLE.of(listed_lines)), width, _TABLE.spare)
    name_width = room_for_text([names, *others], width)
    body = rich_table([names._replace(texts=[cut_middle(name, name_width) for name in names.texts]), *others])
    hidden = f"and {len(lines) - len(listed_lines):,} more{_GAP}" if len(listed_lines) < len(lines) else ""
    return Group(*map(Text, title), body, Text(f"{hidden}q: quit", style="dim"))


def _title(lines: list[QueueLine], width: int) -> list[str]:
    """Return the totals of all queues, on as few lines as the width allows."""
    at = next((line.metrics.at for line in lines if line.metrics.at is not None), None)
    ready, delayed = (sum(getattr(line.metrics, name) for line in lines) for name in ("ready", "delayed"))
    in_flight = sum(line.metrics.in_flight for line in lines)
    sent, acked = sum(line.sent for line in lines), sum(line.acked for line in lines)
    parts = [] if at is None else [at.astimezone().strftime("%H:%M:%S")]
    parts += [counted(len(lines), "queue"), f"{ready:,} ready", f"{delayed:,} delayed", f"{in_flight:,} in flight"]
    texts = [""]
    for part in (*parts, f"{sent:,.1f} sent/s", f"{acked:,.1f} acked/s"):
        longer = f"{texts[-1]}{_GAP}{part}" if texts[-1] else part
        if len(longer) <= width:
            texts[-1] = longer
        else:
            texts.append(part)
    return texts
