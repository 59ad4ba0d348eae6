"""Commands ``broker start`` and ``broker stop``: the broker of a folder on this host."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from ...configuration.kinds import Seconds
from ..exit_codes import NO_BROKER, NOT_NOW, Command, CommandError
from ..hints import command
from ..option_types import Bounded
from ..output import Reply
from ..target import Target, at_target, folder_argument

_PID_NAME = "broker.pid"
_POLL_SECONDS = 0.05


def _folder_of(target: Target, advice: str) -> Path:
    """Return the folder of the broker; ``advice`` is the hint for a broker without one."""
    if not target.folder:
        raise CommandError(f"{target.address} is not a folder on this host: {advice}")
    return Path(target.folder)


@click.command(cls=Command, epilog="Example: opendata-queue broker start /var/lib/app-queue")
@folder_argument
@click.option("--idle-exit", type=Bounded(Seconds()), default=0, show_default=True,
              help="stop it after this long without a client; 0: never")  # fmt: skip
@at_target
def start(idle_exit: float, target: Target) -> Reply:
    """Start the broker of a folder in the background, as any client does.

    Nothing happens if it runs. It runs until `broker stop` or a restart of the host; a broker that a client started
    ends after a minute without clients. For a broker that always runs, use a service (docs/production.md).
    """
    from ...protocol.messages import GetStatus

    folder = _folder_of(target, "start that broker where it runs, with its service manager")
    previous_pid = _running(folder)
    with target.connection(idle_exit=idle_exit) as connection:
        report = connection.call(GetStatus(0)).report
    pid, url, seconds = report["pid"], target.address.as_uri(), report.get("idle_exit_seconds", 0)
    action = "runs already" if pid == previous_pid else "started"
    ending = f"'{command('broker stop', str(folder))}' ends it"
    if seconds:
        ending = f"it ends after {seconds:g} s without clients"
    return Reply(
        {
            "pid": pid, "url": url, "folder": str(folder), "socket": target.address.socket_path,
            "started": pid != previous_pid, "idle_exit_seconds": seconds,
        },
        f"broker {action}: pid {pid}, {url}; {ending}",
    )  # fmt: skip


@click.command(cls=Command, epilog="Example: opendata-queue broker stop /var/lib/app-queue")
@folder_argument
@click.option("--timeout", type=Bounded(Seconds()), default=30, show_default=True, help="how long to wait for its end")
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
    """Return the process that holds the store's lock.

    Where locks can't be seen, return the process named in the pid file.
    """
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
