"""Commands ``broker start`` and ``broker stop``: the broker of a folder on this host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import click

from ...configuration.kinds import Seconds
from ..exit_codes import NO_BROKER, NOT_NOW, Command, CommandError
from ..hints import command
from ..option_types import Bounded
from ..target import Target, call_options
from ..terminal.output import print_json, say

_PID_NAME = "broker.pid"
_POLL_SECONDS = 0.05

_place_argument = click.argument("place", required=False, metavar="[FOLDER]")


def _folder_of(target: Target, advice: str) -> Path:
    """Return the folder of the broker; ``advice`` is the hint for a broker without one."""
    if not target.folder:
        raise CommandError(f"{target.address} is not a folder on this host: {advice}")
    return Path(target.folder)


@click.command(cls=Command, epilog="Example: opendata-queue broker start /var/lib/app-queue")
@_place_argument
@click.option(
    "--idle-exit",
    type=Bounded(Seconds()),
    default=0,
    show_default=True,
    help="stop it after this long without a client; 0: never",
)
@call_options
def start(place: str | None, idle_exit: float, target: Target, as_json: bool) -> None:
    """Start the broker of a folder in the background, as any client does.

    Nothing happens if it runs. It runs until `broker stop` or a restart of the host; a broker that a client started
    ends after a minute without clients. For a broker that always runs, use a service (docs/production.md).
    """
    from ...protocol.messages import GetStatus

    target = target.or_at(place)
    folder = _folder_of(target, "start that broker where it runs, with its service manager")
    previous_pid = _running(folder)
    with target.connection(idle_exit=idle_exit) as connection:
        report = connection.call(GetStatus(0)).report
    pid, url = report["pid"], target.address.as_uri()
    stays = report.get("idle_exit_seconds", 0)
    if as_json:
        facts = {"pid": pid, "url": url, "folder": str(folder), "socket": target.address.socket_path}
        print_json({**facts, "started": pid != previous_pid, "idle_exit_seconds": stays})
        return
    action = "runs already" if pid == previous_pid else "started"
    if stays:
        ending = f"it ends after {stays:g} s without clients"
    else:
        ending = f"'{command('broker stop', str(folder))}' ends it"
    say(f"broker {action}: pid {pid}, {url}; {ending}")


@click.command(cls=Command, epilog="Example: opendata-queue broker stop /var/lib/app-queue")
@_place_argument
@click.option(
    "--timeout", type=Bounded(Seconds()), default=30, show_default=True, help="how long to wait for it to end"
)
@call_options
def stop(place: str | None, timeout: float, target: Target, as_json: bool) -> None:
    """Stop the broker of a folder, and wait for it to end.

    The broker stops cleanly (SIGTERM). The next client that needs it starts it again. A broker on another host must be
    stopped on that host.
    """
    folder = _folder_of(
        target.or_at(place),
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
    if not _wait(lambda: _running(folder) != pid, timeout):
        raise CommandError(
            f"the broker (pid {pid}) has not stopped within {timeout:g} s: see {folder}/broker.log", NOT_NOW
        )
    if as_json:
        print_json({"pid": pid, "folder": str(folder), "stopped": True})
    else:
        say(f"broker {pid} stopped")


def _running(folder: Path) -> int | None:
    """Return the process that holds the store's lock.

    Where locks can't be seen, return the process named in the pid file.
    """
    from ...offline.files.location import running_broker

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


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
