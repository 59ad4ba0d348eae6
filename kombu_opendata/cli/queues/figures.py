"""Command ``queue figures``: metrics of the last ten minutes, from the broker's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...errors import NotFound
from ..exit_codes import Command
from ..target import Target, look_options, queues_argument
from ..terminal.output import local, print_json
from ..terminal.tables import Column, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...queue_client.queue_models import FigureSeries, RecentFigures

_COLUMNS: list[Column] = [
    ("time", False), ("sent/s", True), ("delivered/s", True), ("acked/s", True), ("failed/s", True), ("visible", True),
    ("in flight", True), ("delayed", True),
]  # fmt: skip
_SPARE = ("delivered/s", "delayed", "in flight")


@click.command(cls=Command, epilog="Example: opendata-queue queue figures orders")
@queues_argument
@look_options
def figures(queues: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Show rates and lengths of the last ten minutes.

    Without QUEUE, of all queues together. The broker keeps them in memory, a point every five seconds, until it ends.
    """
    with target.client(looks=True) as client:
        recent = client.figures(queues)
    if missing := [name for name in queues if name not in recent.queues]:
        raise NotFound(f"no queue {missing[0]!r}", queue=missing[0])
    if as_json:
        print_json(recent)
        return
    series_by_name = recent.queues if queues else {"all queues": recent.total}
    for name, series in series_by_name.items():
        rows = [] if series is None else list(_rows(recent, series))
        print_table(_COLUMNS, rows, title=name, none="no figures yet", spare=_SPARE)


def _rows(found: RecentFigures, series: FigureSeries) -> Iterator[tuple[Any, ...]]:
    rates = (
        series.published_per_second, series.delivered_per_second, series.acked_per_second, series.failed_per_second,
    )  # fmt: skip
    levels = series.ready, series.in_flight, series.delayed
    for at, *values in zip(found.times, *rates, *levels, strict=True):
        yield local(at), *("" if value is None else value for value in values)
