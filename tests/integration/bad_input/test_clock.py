"""Bad input: a system clock that is set back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.storage import clock as clocks

from ...support.kombu_client import connected, declare, drain_until, send, take_bodies


class WallClock:
    """Stands in for the ``time`` module of the broker's clock."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def time_ns(self) -> int:
        return time.time_ns() + 1_000_000 * self.offset_ms

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


@contextmanager
def broker_in_thread(folder: Path) -> Iterator[SimpleNamespace]:
    """A broker in this process that serves the folder's socket, as an embedded one does."""
    ready = threading.Event()
    served = SimpleNamespace()

    async def serve() -> None:
        served.loop = asyncio.get_running_loop()
        served.server = Server(BrokerSettings(store=f"file://{folder}", create_instances=True))
        await served.server.instances.get("default")
        await served.server.listening.unix(f"{folder}/broker.sock")
        ready.set()
        await served.server.run()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield served
    finally:
        served.loop.call_soon_threadsafe(served.server.stop, "end of the test")
        thread.join(30)
        assert not thread.is_alive()


def test_a_clock_that_is_set_back(store_folder: Path, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = WallClock()
    monkeypatch.setattr(clocks, "time", wall)
    with broker_in_thread(store_folder), connected(broker_url) as connection:
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", "a", "b")
        send(channel, "q", "ages", expiration="600000")
        held = channel.basic_get("q")
        wall.offset_ms = -3_600_000
        send(channel, "q", "c")
        held.requeue()
        inbox: list[Any] = []
        channel.basic_qos(0, 2, False)
        channel.basic_consume("q", callback=inbox.append)
        drain_until(connection, lambda: len(inbox) == 2)
        assert [message.body for message in inbox] == ["a", "b"]
        inbox[0].ack()
        drain_until(connection, lambda: len(inbox) == 3)
    with broker_in_thread(store_folder), connected(broker_url) as connection:
        channel = connection.channel()
        send(channel, "q", "d")
        assert take_bodies(channel, "q") == ["b", "ages", "c", "d"]
