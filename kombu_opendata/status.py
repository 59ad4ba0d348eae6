"""Asks a running broker for its report and shows it, and what its maintenance did.

Never starts a broker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from .client.connection import BrokerConnection
from .client.options import Options
from .protocol.messages import GetStatus, Status
from .url import parse


def read_report(url: str) -> dict[str, Any]:
    """The report of the broker at a URL, or of the one that serves a folder.

    Raises:
        ConnectionLost: no broker runs there.
        OpenDataError: the URL is wrong, or the broker refuses.
    """
    address = parse(url if "://" in url else f"opendata://{url}")
    connection = BrokerConnection(address, Options(name="opendata-queue status", may_start=False, reconnect_timeout=0))
    try:
        connection.connect()
        return ask(connection)
    finally:
        connection.close()


def ask(connection: BrokerConnection) -> dict[str, Any]:
    """The report of the broker at the other end."""
    answer: Status = connection.call(GetStatus(0))
    return answer.report


#: what a queue's row shows: the figure's name in the report, the column's heading
_COLUMNS = (
    ("available", "waiting"),
    ("in_flight", "in flight"),
    ("consumers", "consumers"),
    ("loaded_buckets", "buckets\nin memory"),
    ("cold_buckets", "buckets\non disk"),
)


def print_report(report: dict[str, Any], *, as_json: bool) -> None:
    """Print a broker's report, as JSON or as tables."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    console.print(
        "broker {version}, pid {pid}, connections: {connections}\nstore {store}".format(**report), markup=False
    )
    for name, instance in report["instances"].items():
        console.print()
        console.print(_queues(name, instance["queues"]) if instance["queues"] else f"instance {name}: no queues")
        for line in _about(instance):
            console.print(line, markup=False)
        if instance["stalled_seconds"]:
            stalled = f"STALLED: the store has taken no writes for {instance['stalled_seconds']:g} s (disk full?)"
            console.print(stalled, markup=False, style="bold red")


def _queues(instance: str, queues: dict[str, dict[str, int]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"instance {instance}"), title_justify="left")
    table.add_column("queue", overflow="fold")
    for _, heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for queue, figures in sorted(queues.items()):
        table.add_row(Text(queue), *(f"{figures.get(name, 0):,}" for name, _ in _COLUMNS))
    return table


def _about(instance: dict[str, Any]) -> Iterator[str]:
    yield f"since its start: {instance['published']:,} published, {instance['delivered']:,} delivered"
    yield (
        f"sessions: {instance['sessions']}, transient queues: {instance['transient_queues']}, "
        f"journal: {instance['journal_bytes'] >> 20} MiB"
    )
    for duty, last in instance.get("maintenance", {}).items():
        if last["at_ms"]:
            yield f"{duty} last at {_local_time(last['at_ms'])} by {last['by']}"


def _local_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(" ", "seconds")


#: what a maintenance report counts, in words
_COUNTS = {
    "routed": "messages routed",
    "leases_expired": "leases expired",
    "settled_collected": "settled messages collected",
    "expired_removed": "expired messages removed",
    "staged_removed": "staged batches removed",
}


def print_maintenance(report: dict[str, Any], *, as_json: bool) -> None:
    """Print what maintenance did, as JSON or as a table."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, words in _COUNTS.items():
        if name in report:
            table.add_row(words, f"{report[name]:,}")
    table.add_row("seconds", f"{report['seconds']:.3f}")
    console.print(table)
    if report["joined"]:
        console.print(f"under way already, and waited for: {', '.join(report['joined'])}", markup=False)
