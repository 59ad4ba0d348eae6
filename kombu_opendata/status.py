"""``opendata-queue status``: asks a running broker for its report and shows it. Never starts a broker."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from .client.connection import BrokerConnection
from .client.options import Options
from .errors import ConnectionLost
from .protocol.messages import GetStatus, Status
from .url import Address, parse


def read_report(url: str) -> dict[str, Any]:
    """The report of the broker at a URL, or of the one that serves a folder.

    Raises:
        ConnectionLost: no broker runs there.
        OpenDataError: the URL is wrong, or the broker refuses.
    """
    address = parse(url if "://" in url else f"opendata://{url}")
    _check_running(address)
    connection = BrokerConnection(address, Options(name="opendata-queue status", reconnect_timeout=0))
    try:
        connection.connect()
        answer: Status = connection.call(GetStatus(0))
        return answer.report
    finally:
        connection.close()


def _check_running(address: Address) -> None:
    if address.kind != "embedded":
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address.socket_path)
        except OSError as exc:
            raise ConnectionLost(
                f"no broker runs for {address.folder} ({exc.strerror}): the next client starts it",
                folder=address.folder,
            ) from exc


def print_report(report: dict[str, Any], *, as_json: bool) -> None:
    """Print a report, as JSON or as tables."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout)
    console.print(
        "broker {version}, pid {pid}, {connections} connections, store {store}".format(**report),
        highlight=False,
    )
    for name, instance in report["instances"].items():
        table = Table("queue", title=f"instance {name}", title_justify="left")
        for column in ("available", "in flight", "buckets loaded", "buckets cold"):
            table.add_column(column, justify="right")
        for queue, figures in sorted(instance["queues"].items()):
            counts = ("available", "in_flight", "loaded_buckets", "cold_buckets")
            table.add_row(queue, *(f"{figures[count]:,}" for count in counts))
        console.print(table)
        console.print(
            f"{instance['published']:,} published and {instance['delivered']:,} delivered since it started, "
            f"{instance['sessions']} sessions, {instance['transient_queues']} transient queues, "
            f"journal {instance['journal_bytes'] >> 20} MiB"
            + (f", STALLED for {instance['stalled_seconds']:g} s" if instance["stalled_seconds"] else ""),
            highlight=False,
        )
