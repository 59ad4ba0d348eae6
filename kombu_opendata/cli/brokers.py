"""``broker status``, ``broker stop``, ``status`` and ``maintain``: the broker itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from .exit_codes import NO_BROKER, NOT_NOW, Command, Failure, Group
from .target import find, json_option, target_options
from .terminal.output import (
    Column,
    console,
    local,
    moment,
    print_facts,
    print_json,
    print_table,
    say,
    shown,
    with_times,
)

_DUTIES = ("route", "expire_leases", "collect")
#: what a report of maintenance counts, in words
_COUNTS = {
    "routed": "messages routed",
    "leases_expired": "leases expired",
    "settled_collected": "settled messages collected",
    "expired_removed": "expired messages removed",
    "staged_removed": "staged batches removed",
}
_PID_NAME = "broker.pid"
_POLL_SECONDS = 0.05


@click.group("broker", cls=Group)
def broker_tools() -> None:
    """The broker of a folder or a host."""


@click.command(cls=Command)
@click.argument("place", required=False, metavar="[URL|FOLDER]")
@target_options
@json_option
def status(place: str | None, url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """Show a running broker's queues, depths and consumers.

    A broker that does not run is not started.
    """
    from ..status import ask

    with find(place or url, tls_ca).connection(looks=True) as connection:
        report = ask(connection)
    if as_json:
        print_json(with_times(report))
    else:
        _print_report(report)


_COLUMNS: list[Column] = [
    ("queue", False), ("waiting", True), ("in flight", True), ("consumers", True), ("buckets in memory", True),
    ("buckets on disk", True),
]  # fmt: skip
#: what the report calls them
_FIGURES = ("available", "in_flight", "consumers", "loaded_buckets", "cold_buckets")


def _print_report(report: dict[str, Any]) -> None:
    say("broker {version}, pid {pid}, connections: {connections}".format(**report))
    say(f"store {report['store']}")
    for name, instance in report["instances"].items():
        say("")
        rows = [
            (queue, *(figures.get(one, 0) for one in _FIGURES)) for queue, figures in sorted(instance["queues"].items())
        ]
        print_table(
            _COLUMNS, rows, title=f"instance {name}", none=f"instance {name}: no queues",
            spare=("buckets on disk", "buckets in memory"),
        )  # fmt: skip
        for line in _about(instance):
            say(line)
        if instance["stalled_seconds"]:
            stalled = f"STALLED: the store has taken no writes for {instance['stalled_seconds']:g} s (disk full?)"
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
    live, waiting = (f"{disk[name] / (1 << 20):,.1f} MiB" for name in ("live_bytes", "waiting_bytes"))
    yield f"tables: {live} in use, {waiting} replaced and not deleted yet"
    if disk["limit_bytes"]:
        early = f"; {disk['removed_early']:,} settled messages went early" if disk["removed_early"] else ""
        stuck = ", and no settled message is left to remove" if disk["is_stuck"] else ""
        yield f"limit: {disk['limit_bytes'] / (1 << 20):,.1f} MiB{early}{stuck}"
    for one in disk["checkpoints"]:
        if one["name"]:
            until = f"until {local(moment(one['expires_at_ms']))}" if one["expires_at_ms"] else "for ever"
            yield f"replaced tables are kept for {shown(one['name'])}, {until}"


@broker_tools.command()
@click.argument("place", required=False, metavar="[FOLDER]")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    default=30,
    show_default=True,
    help="how long to wait for its end",
)
@target_options
def stop(place: str | None, timeout: float, url: str | None, tls_ca: str | None) -> None:
    """Stop the broker of a folder, and wait for its end.

    It stops cleanly (SIGTERM). The next client that needs it starts it again. Stop a broker on another host there.
    """
    target = find(place or url, tls_ca)
    if not target.folder:
        raise Failure(
            f"{target.address} is not a folder of this host: stop that broker where it runs, by its service manager or "
            "with kill -TERM and the pid that 'opendata-queue broker status' shows"
        )
    folder = Path(target.folder)
    pid = _running(folder)
    if pid is None:
        raise Failure(f"no broker runs for {folder}", NO_BROKER)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError as exc:
        raise Failure(f"the broker (pid {pid}) belongs to another user: stop it as that user") from exc
    if not _wait(lambda: _running(folder) != pid, timeout):
        raise Failure(f"the broker (pid {pid}) has not stopped within {timeout:g} s: see {folder}/broker.log", NOT_NOW)
    click.echo(f"broker {pid} stopped")


def _running(folder: Path) -> int | None:
    """The process that holds the store's lock; where locks can't be seen, the one of the pid file."""
    from ..offline.records.offline_store import running_broker

    holder = running_broker(folder)
    if holder:
        return holder
    if holder is None and os.path.exists("/proc/locks"):
        return None
    try:
        if any(os.lstat(place).st_uid != os.geteuid() for place in (folder, folder / _PID_NAME)):
            return None  # somebody else may name any process there
        pid = int((folder / _PID_NAME).read_text().split()[0])
        os.kill(pid, 0)
    except (OSError, IndexError, ValueError):
        return None
    return pid


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


@click.command(cls=Command)
@click.argument("duties", metavar="[DUTY]...", nargs=-1, type=click.Choice(_DUTIES))
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="seconds to wait for the report",
)
@target_options
@json_option
def maintain(duties: tuple[str, ...], timeout: float, url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """Do the broker's maintenance now, and show what was done.

    A DUTY is one of route, expire_leases and collect; all are done when none is named. A broker in a folder is
    started when none runs.
    """
    from ..client.calls.maintain import maintain as run_maintenance

    with find(url, tls_ca).connection() as connection:
        report = run_maintenance(connection, duties, timeout=timeout)
    if as_json:
        print_json(report)
        return
    counts = {words: report[name] for name, words in _COUNTS.items() if name in report}
    print_facts({**counts, "seconds": f"{report['seconds']:.3f}"})
    if report["joined"]:
        say(f"joined what was under way: {', '.join(report['joined'])}")


broker_tools.add_command(status)
