"""The embedded broker of a store's folder, seen from outside."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import GetStatus
from kombu_opendata.url import parse

from .processes import is_running, tail, wait_until


class EmbeddedBroker:
    """Known by its pid file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "broker.log"

    def pid(self) -> int | None:
        """The process that runs now."""
        try:
            pid = int((self.folder / "broker.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        return pid if is_running(pid) else None

    def wait_up(self, other_than: int | None = None, seconds: float = 60) -> int:
        """The pid of the broker, once it is another one than this."""
        wait_until(lambda: self.pid() not in (None, other_than), seconds, lambda: f"a broker:\n{tail(self.log)}")
        pid = self.pid()
        assert pid is not None, tail(self.log)
        return pid

    def answers(self) -> bool:
        """Whether one accepts connections; none is started."""
        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(str(self.folder / "broker.sock")) == 0

    def kill(self) -> int:
        """``kill -9``; returns the pid, when it has ended."""
        pid = self.wait_up()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid), 60, f"end of process {pid}")
        return pid

    def terminate(self) -> None:
        """SIGTERM, and wait for the end."""
        pid = self.wait_up()
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_running(pid), 60, lambda: f"end of broker {pid}:\n{tail(self.log)}")

    def report(self) -> dict[str, Any]:
        """What the broker says of the default instance; one that was killed is started again."""
        watch = Watch(self.folder)
        try:
            return watch.report()
        finally:
            watch.close()

    def queue(self, name: str) -> tuple[int, int]:
        """Available and in flight."""
        figures = self.report()["queues"][name]
        return figures["available"], figures["in_flight"]

    def wait_queue(self, name: str, available: int, in_flight: int, seconds: float = 60) -> None:
        """Until the queue has so many messages available and in flight."""
        wanted = (available, in_flight)
        wait_until(lambda: self.queue(name) == wanted, seconds, lambda: f"{wanted} in {name}: {self.queue(name)}")


class Watch:
    """One connection that asks for the report again and again: a new one each time would itself cause commits."""

    def __init__(self, folder: Path) -> None:
        self._connection = BrokerConnection(
            parse(f"opendata://{folder}"), Options(name="watch", start_timeout=60, reconnect_timeout=60)
        )
        self._connection.connect()

    def report(self) -> dict[str, Any]:
        instance: dict[str, Any] = self._connection.call(GetStatus(0)).report["instances"]["default"]
        return instance

    def close(self) -> None:
        self._connection.close()
