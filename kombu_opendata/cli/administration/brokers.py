"""Commands of a broker: ``broker start|stop|reload|hand-over``, ``status``, ``ping``, ``maintain`` and ``instance``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...configuration.kinds import Seconds
from ...errors import NotActive, StartError
from ...json_values import moment, with_times
from ...readable_text import shown
from ..exit_codes import NO_BROKER, NOT_NOW, Command, CommandError, CommandGroup
from ..hints import command
from ..option_types import validated
from ..output import Alert, Columns, Part, Reply, Table, local
from ..target import Target, asks_running, at_target, changes, folder_argument, place_argument, reads

if TYPE_CHECKING:
    from ...queue_client import QueueClient

_DUTIES = ("route", "expire_leases", "collect")
_PID_NAME = "broker.pid"
_POLL_SECONDS = 0.05
#: the counts of a maintenance report, with their labels
_COUNTS = {
    "routed": "messages routed",
    "leases_expired": "leases expired",
    "settled_collected": "settled messages collected",
    "expired_removed": "expired messages removed",
    "staged_removed": "staged batches removed",
}


broker_tools = CommandGroup("broker", help="Manage the broker of a folder or a host.")
instance_group = CommandGroup("instance", help="Manage instances, the databases of a broker.")


@click.command(cls=Command, epilog="Example: opendata-queue status /var/lib/app-queue")
@place_argument
@reads
def status(client: QueueClient) -> Reply:
    """Show a running broker's queues, backlogs and consumers.

    The backlog is the number of ready and delayed messages. This starts a broker only with --start.
    """
    report = client.status()
    for instance in report["instances"].values():
        for queue in instance["queues"].values():
            queue["backlog"] = queue["available"]
    return Reply(with_times(report), *_report(report))


_QUEUES = Table(
    {
        "queue": lambda queue: f"{queue['name']} (paused)" if queue.get("paused") else queue["name"],
        "backlog#": "",
        "in flight#": "",
        "consumers#": "",
    },
    none="no queues",
)


def _report(report: dict[str, Any]) -> Iterator[Part]:
    yield "broker {version}, pid {pid}, {state}, connections: {connections}".format(**{"state": "active", **report})
    yield f"store {report['store']}"
    for entry in report.get("standbys", ()):
        yield f"standby {', '.join(map(shown, entry['addresses']))}, since {local(moment(entry['since_ms']))}"
    if report["memory"].get("is_full"):
        yield Alert("MEMORY FULL: publishers wait (--memory-limit)")
    for name, instance in report["instances"].items():
        yield ""
        rows = [{"name": queue, "consumers": 0, **values} for queue, values in sorted(instance["queues"].items())]
        yield _QUEUES.of(rows)._replace(title=f"instance {name}", none=f"instance {name}: no queues")
        yield from _about(instance)
        if instance["stalled_seconds"]:
            seconds = f"{instance['stalled_seconds']:g} s"
            causes = "disk full, or does the bucket not answer?"
            yield Alert(f"STALLED: the store has taken no writes for {seconds} ({causes})")


def _about(instance: dict[str, Any]) -> Iterator[str]:
    yield f"since startup: {instance['published']:,} published, {instance['delivered']:,} delivered"
    yield (
        f"sessions: {instance['sessions']}, transient queues: {instance['transient_queues']}, "
        f"journal: {instance['journal_bytes'] >> 20} MiB"
    )
    yield from _about_disk(instance["disk"])
    for duty, last in instance.get("maintenance", {}).items():
        if last["at_ms"]:
            yield f"maintenance: {duty} last at {local(moment(last['at_ms']))} by {last['by']}"


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


@click.command(cls=Command, epilog="Example: opendata-queue ping opendata://queue.example.org --timeout 2")
@place_argument
@click.option("--timeout", type=validated(Seconds(above=0)), default=5, show_default=True, help="how long it may take")
@click.option("--allow-standby", is_flag=True, help="a standby that answers is success, too: for health checks")
@at_target
def ping(timeout: float, allow_standby: bool, target: Target) -> Reply:
    """Connect to a broker, log in and wait for one answer.

    The broker answers when its store has accepted all previous writes. The command never starts a broker. The exit code
    is 3 if no broker is there, 1 if it refuses the login, and 5 if it is a standby or does not answer in time.
    """
    from ...protocol.messages import Ping

    began = time.monotonic()
    try:
        limits: Any = {"connect_timeout": timeout, "close_timeout": min(timeout, 1.0), "patient": False}
        with target.client(read_only=True, **limits) as client:
            connected = time.monotonic()
            client.connections.usable().call(Ping(0), max(began + timeout - connected, 0.001))
            answered = time.monotonic()
    except TimeoutError as exc:
        text = f"the broker let this client in but has not answered within {timeout:g} s: does its store take writes?"
        raise CommandError(text, NOT_NOW) from exc
    except NotActive as exc:
        if not allow_standby:
            raise
        text = f"a standby answered; active is {exc.active or 'no broker that it knows of'}"
        return Reply({"standby": True, "active": exc.active}, text)
    return Reply(
        {"connect_seconds": connected - began, "answer_seconds": answered - connected},
        f"connected in {1000 * (connected - began):.1f} ms, answered in {1000 * (answered - connected):.1f} ms",
    )


@broker_tools.command(epilog="Example: opendata-queue broker reload opendatas://admin@queue.example.org")
@place_argument
@asks_running
def reload(client: QueueClient) -> Reply:
    """Let a running broker read its users file and certificates again.

    A broker reads them automatically within a second of a change. This command does it immediately, and reports a
    mistake in a file: then nothing changes. Open connections of deleted users are closed, and new permissions apply
    immediately. SIGHUP does the same. If the broker has users, this needs the role admin.
    """
    try:
        report = client.reload()
    except StartError as exc:
        raise CommandError(f"the broker keeps what it read from that file before: {exc.text}") from exc
    names = {"added": report.added, "deleted": report.removed, "changed": report.changed}
    lines = [f"users {change}: {', '.join(map(shown, users))}" for change, users in names.items() if users]
    return Reply(
        {"users": names, "certificates": report.certificates},
        *(lines or ["no user changed since the file was last read"]),
        *(["the certificates were read again"] if report.certificates else []),
    )


@broker_tools.command(
    "hand-over", epilog="Example: opendata-queue broker hand-over opendatas://admin@queue.example.org"
)
@place_argument
@asks_running
def hand_over(client: QueueClient) -> Reply:
    """Move the service to the standby, and end the broker.

    The command fails if no standby is connected. Clients resume their sessions at the standby.
    """
    addresses = client.hand_over()
    return Reply({"addresses": addresses}, f"the broker hands over to {', '.join(addresses)}")


@click.command(cls=Command, epilog="Example: opendata-queue maintain collect")
@click.argument("duties", metavar="[DUTY]...", nargs=-1, type=click.Choice(_DUTIES))
@click.option("--timeout", type=validated(Seconds(above=0)), default=60, show_default=True, help="wait this long")
@at_target
def maintain(duties: tuple[str, ...], timeout: float, target: Target) -> Reply:
    """Run the broker's maintenance now, and show what was done.

    A DUTY is route, expire_leases or collect; without one, all are run. If no broker runs for a folder, this starts it.
    """
    from ...client.maintain import maintain as run_maintenance

    with target.client() as client:
        report = run_maintenance(client.connections.usable(), duties, timeout=timeout)
    counts = {label: report[name] for name, label in _COUNTS.items() if name in report}
    joined = f"was already running, and is part of this report: {', '.join(report['joined'])}"
    facts = {**counts, "seconds": f"{report['seconds']:.3f}"}
    return Reply(report, facts, *([joined] if report["joined"] else []))


@instance_group.command(epilog="Example: opendata-queue instance create staging")
@click.argument("name")
@changes
def create(client: QueueClient, name: str) -> Reply:
    """Create an instance.

    Its URL is opendata://host/NAME, or opendata://%2FFOLDER%2Fbroker.sock/NAME while a folder's broker runs.

    --url names the broker with an existing instance, such as the default one. Nothing happens if the new instance
    exists already.
    """
    created = client.create_instance(name)
    outcome = "created" if created else "already exists"
    return Reply({"instance": name, "created": created}, f"instance {name} {outcome}")


@instance_group.command("list", epilog="Example: opendata-queue instance list")
@reads
def list_(client: QueueClient) -> Reply:
    """List the instances of a broker.

    For a store in a bucket, only open instances are listed: those named at startup, or used since.
    """
    rows = [{"instance": name, "open": is_open} for name, is_open in client.list_instances().items()]
    columns: Columns = {"instance": "", "open": lambda row: "yes" if row["open"] else "no"}
    return Reply(rows, Table(columns, none="no instances", rows=rows))


def _folder_of(target: Target, advice: str) -> Path:
    """Return the folder of the broker; ``advice`` is the remedy in the error for a broker without a folder."""
    if not target.folder:
        raise CommandError(f"{target.address} is not a folder on this host: {advice}")
    return Path(target.folder)


@click.command(cls=Command, epilog="Example: opendata-queue broker start /var/lib/app-queue")
@folder_argument
@click.option(
    "--idle-exit",
    type=validated(Seconds()),
    default=0,
    show_default=True,
    help="stop it after this long without a client; 0: never",
)
@at_target
def start(idle_exit: float, target: Target) -> Reply:
    """Start the broker of a folder in the background, as any client does.

    Nothing happens if it runs. It runs until `broker stop` or a restart of the host; a broker that a client started
    ends after a minute without clients. For a broker that always runs, use a service (docs/production.md).
    """
    folder = _folder_of(target, "start that broker where it runs, with its service manager")
    previous_pid = _running(folder)
    with target.client(idle_exit=idle_exit) as client:
        report = client.status()
    pid, url, seconds = report["pid"], target.address.as_uri(), report.get("idle_exit_seconds", 0)
    action = "runs already" if pid == previous_pid else "started"
    ending = f"'{command('broker stop', str(folder))}' ends it"
    if seconds:
        ending = f"it ends after {seconds:g} s without clients"
    return Reply(
        {
            "pid": pid,
            "url": url,
            "folder": str(folder),
            "socket": target.address.socket_path,
            "started": pid != previous_pid,
            "idle_exit_seconds": seconds,
        },
        f"broker {action}: pid {pid}, {url}; {ending}",
    )


@click.command(cls=Command, epilog="Example: opendata-queue broker stop /var/lib/app-queue")
@folder_argument
@click.option(
    "--timeout", type=validated(Seconds()), default=30, show_default=True, help="how long to wait for its end"
)
@at_target
def stop(timeout: float, target: Target) -> Reply:
    """Stop the broker of a folder, and wait for it to end.

    The broker stops cleanly (SIGTERM). The next client that needs it starts it again. A broker on another host must be
    stopped on that host.
    """
    folder = _folder_of(
        target,
        "stop that broker where it runs, with its service manager or with kill -TERM and the pid that "
        "'opendata-queue broker status' shows",
    )
    pid = _running(folder)
    if pid is None:
        raise CommandError(f"no broker runs for {folder}", NO_BROKER)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError as exc:
        raise CommandError(f"the broker (pid {pid}) belongs to another user: stop it as that user") from exc
    deadline = time.monotonic() + timeout
    while _running(folder) == pid:
        if time.monotonic() >= deadline:
            text = f"the broker (pid {pid}) has not stopped within {timeout:g} s: see {folder}/broker.log"
            raise CommandError(text, NOT_NOW)
        time.sleep(_POLL_SECONDS)
    return Reply({"pid": pid, "folder": str(folder), "stopped": True}, f"broker {pid} stopped")


def _running(folder: Path) -> int | None:
    """Return the pid of the process that holds the store's lock; where locks are not visible, that of the pid file."""
    from ...offline.files.store_location import running_broker

    holder = running_broker(folder)
    if holder:
        return holder
    if holder is None and os.path.exists("/proc/locks"):
        return None
    try:
        if any(os.lstat(place).st_uid != os.geteuid() for place in (folder, folder / _PID_NAME)):
            return None  # another user could have written any pid
        pid = int((folder / _PID_NAME).read_text().split()[0])
        os.kill(pid, 0)
    except (OSError, IndexError, ValueError):
        return None
    return pid


for _command in (start, stop, status):
    broker_tools.add_command(_command)
