"""Process of the broker: the lock on its store, readiness, signals, exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from ...configuration.addresses import Listen
from ...configuration.options import BrokerOptions
from ...errors import OpenDataError, StartError, StoreFenced, StoreInUse
from ...masking import masked
from ...private_folder import PrivateFolder
from ...version import __version__
from ..standby.active_role import EXIT_FAILED, EXIT_FENCED, ActiveRole
from ..wire.broker_settings import BrokerSettings
from ..wire.connection_limits import raise_descriptor_limit
from . import logs
from .memory_watch import bound_heap, freeze_objects
from .server import Server
from .service_manager import from_environment
from .start_settings import broker_settings, choose_active_role

log = logging.getLogger(__name__)

#: maximum wait for the threads of a broker that has closed its stores
_THREADS_SECONDS = 3.0


class Readiness:
    """Report of the result of the startup, as one JSON line on a file descriptor."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def report(self, message: dict[str, Any]) -> None:
        """Send the line; later calls do nothing."""
        if self._fd is not None:
            try:
                os.write(self._fd, json.dumps(message, default=str).encode() + b"\n")
            except OSError:
                log.debug("the readiness report has no reader")
            os.close(self._fd)
            self._fd = None


def run(options: BrokerOptions, ready_fd: int | None = None, warnings: Sequence[str] = ()) -> int:
    """Run a broker until a signal or idleness ends it; return the exit code.

    The readiness report is written to the descriptor ``ready_fd``. The ``warnings``, about the sources of the options,
    are logged.
    """
    logs.set_up(options.log_format, options.log_level)
    for text in warnings:
        log.warning("%s", text)
    bound_heap()
    raise_descriptor_limit()
    readiness = Readiness(ready_fd)
    try:
        settings = broker_settings(options)
        active_role = choose_active_role(options)
        if options.folder is not None and not settings.socket_access.is_private:
            os.umask(0o077)
            with PrivateFolder(str(options.folder)) as folder:
                folder.hide_entries()  # from users who may enter it to reach the socket
    except OpenDataError as exc:
        return _failed(readiness, exc, options.log_format)
    _log_start(options)
    ending: list[threading.Timer] = []

    async def serve_and_end() -> int:
        exit_code = await _exit_code(options, settings, readiness, active_role)
        ending.append(_end_soon(exit_code))
        return exit_code

    try:
        return int(_new_runner()(serve_and_end()))
    finally:
        for timer in ending:
            timer.cancel()
        active_role.release()


def _end_soon(exit_code: int) -> threading.Timer:
    """End the process after a timeout: a thread that waits for an unresponsive store can't be interrupted."""
    timer = threading.Timer(_THREADS_SECONDS, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
    return timer


async def _exit_code(
    options: BrokerOptions, settings: BrokerSettings, readiness: Readiness, active_role: ActiveRole
) -> int:
    try:
        return await _serve(options, settings, readiness, active_role)
    except OpenDataError as exc:
        return _failed(readiness, exc, options.log_format)
    except Exception as exc:
        log.exception("the broker failed")
        return _failed(readiness, StartError(f"the broker failed: {exc!r}; see its log"), options.log_format)


def _log_start(options: BrokerOptions) -> None:
    text = "kombu-opendata %s (SlateDB %s, Python %s, pid %d) starts on %s: %s"
    versions = __version__, version("slatedb"), platform.python_version()
    log.info(text, *versions, os.getpid(), masked(options.store), ", ".join(options.described()))


def _failed(readiness: Readiness, exc: OpenDataError, log_format: str) -> int:
    exit_code = EXIT_FENCED if isinstance(exc, StoreFenced) else EXIT_FAILED
    readiness.report({"code": exc.code, "text": exc.text, "values": exc.values})
    if log_format == "json":  # no text lines between the JSON lines
        log.error("%s", exc.text, extra=logs.code_of(exc))
        return exit_code
    if not isinstance(exc, StoreInUse):
        log.error("%s", exc.text)
    print(f"opendata-queue: {exc.text}", file=sys.stderr)
    return exit_code


def _new_runner() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


async def _serve(
    options: BrokerOptions, settings: BrokerSettings, readiness: Readiness, active_role: ActiveRole
) -> int:
    loop, server = asyncio.get_running_loop(), Server(settings, active_role)
    server.front.gate.hold()
    report: dict[str, Any] = {}
    with ExitStack() as around:
        server.connections.slow_turns.watch(loop)
        around.callback(server.connections.slow_turns.unwatch, loop)
        # An embedded broker has its client's environment, whose service manager watches the client, not the broker.
        if not options.embedded and (manager := from_environment(server.health, server.reloading)) is not None:
            around.callback(manager.close)
            around.callback(loop.create_task(manager.run()).cancel)
        if options.metrics is not None:
            from ..endpoints.endpoints import Endpoints  # a broker without metrics needs no Prometheus client

            endpoints = Endpoints(
                server.health, server.instances.open, server.measure, options.metrics, options.metrics_max_queues
            )
            around.callback(endpoints.stop)
            report["metrics_port"] = endpoints.port
        if options.open_telemetry:
            from ..endpoints.otel_metrics import export_metrics
            from ..endpoints.scrape import MetricsEndpoint

            metrics = MetricsEndpoint(server.instances.open, server.measure, options.metrics_max_queues)
            export_metrics(metrics.snapshot)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.terminate, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, server.reloading.on_signal)
        reason = await server.run(_begin(server, options, readiness, report))
        log.info("stopped: %s", reason)
        return 0


async def _begin(server: Server, options: BrokerOptions, readiness: Readiness, report: dict[str, Any]) -> None:
    """Listen and serve; raise StartError or StoreError if the broker can't start.

    A standby listens immediately, and serves after a take-over.
    """
    addresses: list[Listen] = []
    report = {"ready": True, "pid": os.getpid(), **report}
    if options.standby:
        addresses = await _listen(server, options)
        readiness.report({**report, "listening": [str(each) for each in addresses]})
    if not await server.become_active(options.advertised(addresses), options.instance):
        return
    if not options.standby:
        addresses = await _listen(server, options)
    await server.active_role.announce(options.advertised(addresses))
    freeze_objects()
    server.front.gate.open()
    readiness.report({**report, "listening": [str(each) for each in addresses]})
    if options.standby:
        log.warning("this broker is the active one now")


async def _listen(server: Server, options: BrokerOptions) -> list[Listen]:
    """Begin to listen; return the addresses, with the chosen ports. Raise StartError if one is not available."""
    addresses = []
    try:
        for listen in options.listen:
            if listen.path:
                await server.listening.unix(listen.path)
                addresses.append(listen)
            else:
                addresses.append(replace(listen, port=await server.listening.tcp(listen.host, listen.port)))
            log.info("listening on %s%s", addresses[-1], " with TLS" if server.settings.tls and not listen.path else "")
    except OSError as exc:
        raise StartError(f"the broker can't listen: {exc.strerror or exc}") from exc
    return addresses
