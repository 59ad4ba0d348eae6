"""Commands of the broker: ``broker start|status|reload|stop|hand-over``, ``status`` and ``maintain``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ...configuration.kinds import Seconds
from ...json_values import moment, with_times
from ...readable_text import shown
from ..exit_codes import Command, CommandError, CommandGroup
from ..option_types import Bounded
from ..target import Target, call_options, look_options
from ..terminal.output import local, print_facts, print_json, say
from ..terminal.tables import Column, console, print_table
from .start_stop import start, stop

_DUTIES = ("route", "expire_leases", "collect")
#: the counts of a maintenance report, with their labels
_COUNTS = {
    "routed": "messages routed",
    "leases_expired": "leases expired",
    "settled_collected": "settled messages collected",
    "expired_removed": "expired messages removed",
    "staged_removed": "staged batches removed",
}


@click.group("broker", cls=CommandGroup)
def broker_tools() -> None:
    """Manage the broker of a folder or a host."""


@click.command(cls=Command, epilog="Example: opendata-queue status /var/lib/app-queue")
@click.argument("place", required=False, metavar="[URL|FOLDER]")
@look_options
def status(place: str | None, target: Target, as_json: bool) -> None:
    """Show a running broker's queues, depths and consumers.

    This starts a broker only with --start.
    """
    with target.or_at(place).client(looks=True) as client:
        report = client.status()
    if as_json:
        print_json(with_times(report))
    else:
        _print_report(report)


_COLUMNS: list[Column] = [
    ("queue", False), ("waiting", True), ("in flight", True), ("consumers", True), ("buckets in memory", True),
    ("buckets on disk", True),
]  # fmt: skip
#: the fields of these columns in the report
_FIGURES = ("available", "in_flight", "consumers", "loaded_buckets", "cold_buckets")


def _print_report(report: dict[str, Any]) -> None:
    say("broker {version}, pid {pid}, {state}, connections: {connections}".format(**{"state": "active", **report}))
    say(f"store {report['store']}")
    for entry in report.get("standbys", ()):
        say(f"standby {', '.join(map(shown, entry['addresses']))}, since {local(moment(entry['since_ms']))}")
    if report["memory"].get("is_full"):
        console().print("MEMORY FULL: publishers wait (--memory-limit)", style="bold red")
    for name, instance in report["instances"].items():
        say("")
        rows = [
            (f"{queue} (paused)" if figures.get("paused") else queue, *(figures.get(entry, 0) for entry in _FIGURES))
            for queue, figures in sorted(instance["queues"].items())
        ]
        print_table(
            _COLUMNS, rows, title=f"instance {name}", none=f"instance {name}: no queues",
            spare=("buckets on disk", "buckets in memory"),
        )  # fmt: skip
        for line in _about(instance):
            say(line)
        if instance["stalled_seconds"]:
            seconds = f"{instance['stalled_seconds']:g} s"
            stalled = (
                f"STALLED: the store has taken no writes for {seconds} (disk full, or does the bucket not answer?)"
            )
            console().print(stalled, style="bold red")


def _about(instance: dict[str, Any]) -> Iterator[str]:
    yield f"since the start: {instance['published']:,} published, {instance['delivered']:,} delivered"
    yield (
        f"sessions: {instance['sessions']}, transient queues: {instance['transient_queues']}, "
        f"journal: {instance['journal_bytes'] >> 20} MiB"
    )
    yield from _about_disk(instance["disk"])
    for duty, last in instance.get("maintenance", {}).items():
        if last["at_ms"]:
            yield f"{duty} last at {local(moment(last['at_ms']))} by {last['by']}"


def _about_disk(disk: dict[str, Any]) -> Iterator[str]:
    live, replaced = (f"{disk[name] / (1 << 20):,.1f} MiB" for name in ("live_bytes", "waiting_bytes"))
    yield f"tables: {live} in use, {replaced} replaced but not yet deleted"
    if disk["limit_bytes"]:
        early = f"; {disk['removed_early']:,} settled messages were removed early" if disk["removed_early"] else ""
        stuck = ", and there are no settled messages left to remove" if disk["is_stuck"] else ""
        size, limit = (f"{disk[name] / (1 << 20):,.1f} MiB" for name in ("size_bytes", "limit_bytes"))
        yield f"store: {size}; limit for settled messages: {limit} (--retention-bytes){early}{stuck}"
    for checkpoint in disk["checkpoints"]:
        if checkpoint["name"]:
            expires_at_ms = checkpoint["expires_at_ms"]
            until = f"until {local(moment(expires_at_ms))}" if expires_at_ms else "without expiry"
            yield f"replaced tables are kept for {shown(checkpoint['name'])}, {until}"


@broker_tools.command(epilog="Example: opendata-queue broker reload opendatas://admin@queue.example.org")
@click.argument("place", required=False, metavar="[URL|FOLDER]")
@call_options
def reload(place: str | None, target: Target, as_json: bool) -> None:
    """Let a running broker read its users file and certificates again.

    A broker reads them automatically within a second of a change. This command does it immediately, and reports a
    mistake in a file: then nothing changes. Open connections of removed users are closed, and new permissions apply
    immediately. SIGHUP does the same. If the broker has users, this needs the role admin.
    """
    from ...errors import StartError

    with target.or_at(place).client(looks=True) as client:
        try:
            report = client.reload()
        except StartError as exc:
            raise CommandError(f"the broker keeps what it read from that file before: {exc.text}") from exc
    names = {"added": report.added, "removed": report.removed, "changed": report.changed}
    if as_json:
        print_json({"users": names, "certificates": report.certificates})
        return
    for change, users in names.items():
        if users:
            say(f"users {change}: {', '.join(map(shown, users))}")
    if not any(names.values()):
        say("no user changed since the file was last read")
    if report.certificates:
        say("the certificates were read again")


@broker_tools.command(
    "hand-over", epilog="Example: opendata-queue broker hand-over opendatas://admin@queue.example.org"
)
@click.argument("place", required=False, metavar="[URL|FOLDER]")
@call_options
def hand_over(place: str | None, target: Target, as_json: bool) -> None:
    """Move the service to the standby, and end the broker.

    The command fails if no standby is connected. Clients resume their sessions at the standby.
    """
    with target.or_at(place).client(looks=True) as client:
        addresses = client.hand_over()
    if as_json:
        print_json({"addresses": addresses})
    else:
        say(f"the broker hands over to {', '.join(addresses)}")


@click.command(cls=Command, epilog="Example: opendata-queue maintain collect")
@click.argument("duties", metavar="[DUTY]...", nargs=-1, type=click.Choice(_DUTIES))
@click.option(
    "--timeout",
    type=Bounded(Seconds(above=0)),
    default=60,
    show_default=True,
    help="how long to wait for the report",
)
@call_options
def maintain(duties: tuple[str, ...], timeout: float, target: Target, as_json: bool) -> None:
    """Run the broker's maintenance now, and show what was done.

    A DUTY is route, expire_leases or collect; without one, all are run. If no broker runs for a folder, this starts it.
    """
    from ...client.maintain import maintain as run_maintenance

    with target.connection() as connection:
        report = run_maintenance(connection, duties, timeout=timeout)
    if as_json:
        print_json(report)
        return
    counts = {label: report[name] for name, label in _COUNTS.items() if name in report}
    print_facts({**counts, "seconds": f"{report['seconds']:.3f}"})
    if report["joined"]:
        say(f"was already running, and is part of this report: {', '.join(report['joined'])}")


for _command in (start, stop, status):
    broker_tools.add_command(_command)
