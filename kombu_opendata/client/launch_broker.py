"""Startup of a folder's embedded broker, and the connection to it.

Many processes may connect concurrently. One of them holds the start lock and starts the broker; the others keep trying
to connect. If two brokers start nevertheless, only one of them gets the lock of the store. The other one reports
``store_in_use``, and its client keeps trying to connect.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..errors import ConnectionLost, StartError, StartInterrupted, StoreInUse, StoreUnwritable, from_wire
from ..local_users import is_trusted, sharer_of, user_name
from ..private_folder import PrivateFolder
from ..url import LOG_NAME, Address
from .socket.connect import check_socket_path, connect_unix
from .socket.poll import poll

if TYPE_CHECKING:
    from .client_clock import ClientClock
    from .connection_options import Options

START_LOCK_NAME = "broker.start.lock"
CONNECT_INTERVAL_SECONDS = 0.02
RESTART_INTERVAL_SECONDS = 0.2
LOG_TAIL_BYTES = 2000

#: threads that are starting a broker, by process and folder; a forked child is another process
_starting: dict[tuple[int, str], object] = {}


def attach(address: Address, options: Options, clock: ClientClock) -> socket.socket:
    """Return a socket that is connected to the folder's broker; start the broker if none runs.

    Raises:
        SocketPathTooLong, StoreUnwritable: the folder can't be used.
        UnsafeFolder, AccessRefused: the folder, a file in it or the listening process does not belong to this user.
        ConnectionLost: no broker runs, and the options forbid starting one.
        StartInterrupted: the broker was not ready in time, or was killed at each startup.
        StartError: the broker reported an error at startup; the exception has the reported class.
    """
    check_socket_path(address.socket_path)
    deadline = clock.monotonic() + options.start_timeout
    start_error: StoreInUse | StartInterrupted | None = None
    while True:
        sock = _try_connect(address, options)
        if sock is not None:
            return sock
        if not options.may_start:
            raise ConnectionLost(
                f"no broker runs for {address.folder}: the next client that may start one will do so",
                folder=address.folder,
            )
        if (owner := sharer_of(address.folder)) is not None:
            raise ConnectionLost(
                f"no broker runs for {address.folder}, which {user_name(owner)} shares with you: only that user's "
                "processes start it; to have it always, run it as a service with --listen and --socket-group",
                folder=address.folder,
            )
        if clock.monotonic() >= deadline:
            raise _too_late(address, options, start_error)
        pause = CONNECT_INTERVAL_SECONDS
        with PrivateFolder(address.folder) as folder, _start_lock(folder) as has_lock:
            if has_lock:
                # the previous holder of the lock may have just started it
                sock = _try_connect(address, options)
                if sock is not None:
                    return sock
                try:
                    start_broker(folder, address, options, deadline, clock)
                except (StoreInUse, StartInterrupted) as exc:
                    start_error = start_error or exc
                    pause = RESTART_INTERVAL_SECONDS
                else:
                    continue
        clock.sleep(pause)


def start_broker(
    folder: PrivateFolder, address: Address, options: Options, deadline: float, clock: ClientClock
) -> None:
    """Start the folder's broker and wait until it is ready.

    Raises:
        StoreInUse: another broker uses the store.
        StartInterrupted: the new broker ended without a report, or the deadline passed.
        StartError, StoreError: the new broker reported this error.
    """
    import subprocess

    log = folder.open_file(LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log_size = os.fstat(log).st_size
    read_fd, write_fd = os.pipe()
    try:
        try:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "kombu_opendata.cli", "broker",
                    "--store", f"file://{quote(address.folder)}",
                    "--listen", f"unix:{address.socket_path}",
                    "--embedded",
                    "--ready-fd", str(write_fd),
                    "--idle-exit", f"{options.idle_exit:g}",
                    *(f"--{name.replace('_', '-')}={value}" for name, value in (options.broker_options or {}).items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_fd,),
                start_new_session=True,
                cwd=Path(__file__).parents[2],  # it must import this package, and nothing from the user's folder
            )  # fmt: skip
        except OSError as exc:
            raise StartError(f"the broker process can't be started: {exc}") from exc
        finally:
            os.close(write_fd)
            os.close(log)
        line = _read_line(read_fd, deadline, clock)
    finally:
        os.close(read_fd)
    with suppress(subprocess.TimeoutExpired):  # the process exits immediately: the broker is its child
        process.wait(5)
    _check_report(line, folder, address, options, log_size)


def _check_report(line: bytes | None, folder: PrivateFolder, address: Address, options: Options, log_size: int) -> None:
    import msgspec

    if line is None:
        raise _too_late(address, options, None)
    try:
        report = msgspec.json.decode(line)
        if report.get("ready"):
            return
        error = from_wire(str(report["code"]), str(report["text"]), dict(report.get("values") or {}))
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError) as exc:
        raise StartInterrupted(
            f"the broker of {address.folder} ended before it was ready; the end of its log {address.log_path}: "
            + _log_tail(folder, log_size),
            folder=address.folder,
        ) from exc
    raise error


def _try_connect(address: Address, options: Options) -> socket.socket | None:
    try:
        return connect_unix(
            address.socket_path,
            options.connect_timeout,
            trusted=lambda uid: is_trusted(uid) or uid == sharer_of(address.folder),
        )
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except ConnectionLost as exc:
        if isinstance(exc.__cause__, NotADirectoryError):
            return None  # PrivateFolder raises a better error for it
        raise


@contextmanager
def _start_lock(folder: PrivateFolder) -> Iterator[bool]:
    """Yield True if this process may start the broker. The lock ends with its holder, even if that is killed.

    A forked child does not inherit the POSIX lock. The lock does not exclude other threads of the process, and a thread
    that closes the file releases it for all of them. Therefore only one thread of a process takes it (``_starting``).
    """
    import fcntl

    key, token = (os.getpid(), folder.path), object()
    if _starting.setdefault(key, token) is not token:
        yield False
        return
    try:
        fd = folder.open_file(START_LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                yield False
            else:
                yield True
        finally:
            os.close(fd)
    finally:
        del _starting[key]


def _read_line(fd: int, deadline: float, clock: ClientClock) -> bytes | None:
    """Return the first line of a pipe, or its contents if it was closed before; None after the deadline."""
    data = b""
    while not data.endswith(b"\n"):
        if not poll((fd,), (), max(0.0, deadline - clock.monotonic())):
            return None
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        data += chunk
    return data


def _log_tail(folder: PrivateFolder, start: int) -> str:
    """Return the end of the log after its first ``start`` bytes."""
    try:
        with open(folder.open_file(LOG_NAME, os.O_RDONLY), "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(start, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip() or "(nothing)"
    except (OSError, StoreUnwritable) as exc:
        return f"(unreadable: {exc})"


def _too_late(address: Address, options: Options, error: StoreInUse | StartInterrupted | None) -> StartInterrupted:
    why = f"see {address.log_path}"
    if isinstance(error, StartInterrupted):
        return error
    if error is not None:
        why = f"another broker has this store but does not listen there ({error})"
    return StartInterrupted(
        f"no broker answered at {address.socket_path} within {options.start_timeout:g} s: {why}",
        folder=address.folder,
        timeout=options.start_timeout,
    )
