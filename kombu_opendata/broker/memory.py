"""In-process brokers for unit tests (``opendata+memory://name``): a broker on a memory store in a thread."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any, Protocol

from ..errors import RequestError
from .process.server import Server
from .wire.broker_settings import BrokerSettings

_lock = threading.Lock()
_pid = os.getpid()
_brokers: dict[str, InProcessBroker] = {}


class InProcessBroker(Protocol):
    """A broker in this process, which serves the clients of one name."""

    def connect(self) -> socket.socket:
        """Return a socket that is connected to the broker."""

    def stop(self) -> None: ...


class MemoryBroker:
    """Broker in a daemon thread of this process, by default on a memory store."""

    def __init__(self, name: str, settings: BrokerSettings | None = None) -> None:
        self._settings = settings or BrokerSettings(store=f"memory://{name}", create_instances=True)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=f"opendata-{name}", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    async def _serve(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
            self.server = Server(self._settings)
            await self.server.instances.get("default")
        except BaseException as exc:
            self._error = exc
            return
        finally:
            self._started.set()
        await self.server.run()

    def connect(self) -> socket.socket:
        """Return a socket that is connected to the broker."""
        client_socket, broker_socket = socket.socketpair()
        broker_socket.setblocking(False)

        async def accept() -> Any:
            slot = self.server.connections.admission.take("", "this process")
            return await self._loop.connect_accepted_socket(lambda: self.server.connection(slot), broker_socket)

        asyncio.run_coroutine_threadsafe(accept(), self._loop).result(timeout=10)
        return client_socket

    def stop(self) -> None:
        """Stop the broker; the name of its store stays in use until the process ends."""
        self._loop.call_soon_threadsafe(self.server.stop, "stop")
        self._thread.join(timeout=30)


def connect(name: str) -> socket.socket:
    """Return a socket that is connected to the in-process broker of this name; start the broker on first use.

    Raise RequestError in a forked child.
    """
    if os.getpid() != _pid:
        raise RequestError("a broker in memory stays in the process that started it: use opendata:///folder with forks")
    with _lock:
        broker = _brokers.get(name)
        if broker is None:
            broker = _brokers[name] = MemoryBroker(name)
    return broker.connect()


def register(name: str, broker: InProcessBroker) -> None:
    """Let a broker that the caller has made serve this name until :func:`stop`."""
    with _lock:
        _brokers[name] = broker


def stop(name: str) -> None:
    """Stop the in-process broker of this name, if there is one."""
    with _lock:
        broker = _brokers.pop(name, None)
    if broker is not None:
        broker.stop()
