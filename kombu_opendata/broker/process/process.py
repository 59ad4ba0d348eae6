"""The broker's process: the lock on its store, readiness, signals, a clean exit."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import logging
import os
import platform
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import OpenDataError, StartError, StoreInUse
from ...private_folder import PrivateFolder
from ...url import LOCK_NAME, masked
from ...version import __version__
from ..wire.broker_settings import BrokerSettings
from ..wire.connection_limits import raise_descriptor_limit
from . import logs
from .broker_options import LOOPBACK, BrokerOptions, Listen
from .server import Server

if TYPE_CHECKING:
    from ..metrics.scrape import Metrics

log = logging.getLogger(__name__)

PID_NAME = "broker.pid"
EXIT_FAILED = 1
#: how often the broker checks that the store's folder is still there
_WATCH_SECONDS = 0.5
# from malloc.h; blocks of this size are returned to the system at once, and so is this much at the end of the heap
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_BYTES, _TRIM_BYTES = 256 << 10, 1 << 20


class StoreLock:
    """The lock on a store's folder: an flock, which the kernel releases when the process ends, also by a crash."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._folder: PrivateFolder | None = None
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock and write the pid file.

        Raises:
            StoreUnwritable: the folder can't be created or written.
            UnsafeFolder: other users own or may write to the folder or something in it.
            StoreInUse: another broker has the lock.
        """
        self._folder = folder = PrivateFolder(str(self._path))
        folder.check_entries()
        self._fd = folder.open_file(LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            os.close(self._fd)
            raise StoreInUse(
                f"another broker (pid {folder.read_text(PID_NAME) or 'unknown'}) owns {folder.path}: "
                "connect to it, or stop it first",
                path=folder.path,
            ) from exc
        with open(folder.open_file(PID_NAME, os.O_WRONLY | os.O_CREAT), "w") as file:
            file.truncate()
            file.write(f"{os.getpid()}\n")

    @property
    def lost(self) -> bool:
        """Whether the lock's file is gone: the folder was deleted or replaced."""
        try:
            return not os.path.samestat(os.lstat(self._path / LOCK_NAME), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Remove the pid file and release the lock."""
        if self._folder is not None:
            self._folder.remove(PID_NAME)
            self._folder.close()
        os.close(self._fd)


class Readiness:
    """Reports whether the broker has started, as one JSON line on a file descriptor."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def report(self, message: dict[str, Any]) -> None:
        """Send the line, once."""
        if self._fd is not None:
            try:
                os.write(self._fd, json.dumps(message, default=str).encode() + b"\n")
            except OSError:
                log.debug("nobody reads the readiness report")
            os.close(self._fd)
            self._fd = None


def run(options: BrokerOptions) -> int:
    """Run a broker until a signal or idleness ends it; returns the exit code."""
    logs.set_up(options.log_format, options.log_level)
    _bound_memory()
    raise_descriptor_limit()
    readiness = Readiness(options.ready_fd)
    folder = options.folder
    lock = StoreLock(folder) if folder is not None else None
    try:
        settings = options.settings()
        if lock is not None:
            lock.acquire()
    except OpenDataError as exc:
        return _failed(readiness, exc, options.log_format)
    _say_start(options)
    try:
        return int(_new_runner()(_serve(options, settings, readiness, lock)))
    except OpenDataError as exc:
        return _failed(readiness, exc, options.log_format)
    except Exception as exc:
        log.exception("the broker failed")
        return _failed(readiness, StartError(f"the broker failed: {exc!r}; see its log"), options.log_format)
    finally:
        if lock is not None:
            lock.release()


def _say_start(options: BrokerOptions) -> None:
    text = "kombu-opendata %s (SlateDB %s, Python %s, pid %d) starts on %s: %s"
    versions = __version__, version("slatedb"), platform.python_version()
    log.info(text, *versions, os.getpid(), masked(options.store), ", ".join(options.described()))


def _failed(readiness: Readiness, exc: OpenDataError, log_format: str) -> int:
    readiness.report({"code": exc.code, "text": exc.text, "values": exc.values})
    if log_format == "json":  # no text lines between the JSON lines
        log.error("%s", exc.text, extra=logs.code_of(exc))
        return EXIT_FAILED
    if not isinstance(exc, StoreInUse):
        log.error("%s", exc.text)
    print(f"opendata-queue: {exc.text}", file=sys.stderr)
    return EXIT_FAILED


def _bound_memory() -> None:
    """Make glibc return memory to the system.

    With an arena for each of SlateDB's threads, freed memory would not be reused. And glibc raises its thresholds when
    a large block is freed, unless they are set: then memory that SlateDB needs briefly to write a file would be kept.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.debug("no mallopt in this C library")
        return
    mallopt(_M_ARENA_MAX, 2)
    mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def _new_runner() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


async def _watch(lock: StoreLock) -> None:
    """End the process when its store is deleted. A clean close would write to a new folder."""
    while not lock.lost:  # noqa: ASYNC110 - there is no event for a deleted folder
        await asyncio.sleep(_WATCH_SECONDS)
    log.critical("the store's folder was deleted or replaced while the broker ran: it ends at once")
    os._exit(EXIT_FAILED)


def _serve_metrics(server: Server, at: Listen, max_queues: int) -> Metrics:
    """Begin to answer scrapes.

    Raises:
        StartError: the address is not available.
    """
    from ..metrics.scrape import Metrics  # a broker without metrics needs no Prometheus client

    metrics = Metrics(server.instances.open, server.measure, at.host, at.port, max_queues)
    metrics.start()
    shown = str(Listen(host=at.host, port=metrics.port)).removeprefix("tcp:")
    log.info("metrics at http://%s/metrics", shown)
    if at.host not in LOOPBACK:
        log.warning("whoever reaches %s can read the metrics, names of queues included", shown)
    return metrics


async def _serve(options: BrokerOptions, settings: BrokerSettings, readiness: Readiness, lock: StoreLock | None) -> int:
    server = Server(settings)
    if options.metrics is None:
        return await _run(server, options, readiness, lock, {})
    metrics = _serve_metrics(server, options.metrics, options.metrics_max_queues)
    try:
        return await _run(server, options, readiness, lock, {"metrics_port": metrics.port})
    finally:
        metrics.stop()


async def _run(
    server: Server, options: BrokerOptions, readiness: Readiness, lock: StoreLock | None, report: dict[str, Any]
) -> int:
    watching = asyncio.get_running_loop().create_task(_watch(lock)) if lock is not None else None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop, signal.Signals(number).name)
    addresses = []
    try:
        for name in options.instances:
            await server.instances.get(name)
        for listen in options.listen:
            if listen.path:
                await server.listen_unix(listen.path)
                addresses.append(f"unix:{listen.path}")
            else:
                port = await server.listen_tcp(listen.host, listen.port)
                host = f"[{listen.host}]" if ":" in listen.host else listen.host
                addresses.append(f"tcp:{host}:{port}")
            log.info("listening on %s%s", addresses[-1], " with TLS" if server.settings.tls and not listen.path else "")
    except OSError as exc:
        await server.close()
        raise StartError(f"the broker can't listen: {exc.strerror or exc}") from exc
    except BaseException:
        await server.close()
        raise
    readiness.report({"ready": True, "pid": os.getpid(), "listening": addresses, **report})
    reason = await server.run()
    if watching is not None:
        watching.cancel()
    log.info("stopped: %s", reason)
    return 0
