"""A broker on a bucket, in a thread of the test, so that its settings and its inside are at hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.storage.engine_settings import EngineSettings

from .s3 import BUCKET


@contextmanager
def bucket_broker(prefix: str, engine: EngineSettings) -> Iterator[tuple[Server, int]]:
    """A broker in a thread; gives its port, too."""
    started: list[tuple[Server, int]] = []
    loops: list[asyncio.AbstractEventLoop] = []
    is_ready = threading.Event()

    async def serve() -> None:
        server = Server(BrokerSettings(f"s3://{BUCKET}/{prefix}", engine=engine))
        await server.instances.get("default")
        started.append((server, await server.listening.tcp("127.0.0.1", 0)))
        loops.append(asyncio.get_running_loop())
        is_ready.set()
        await server.run()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert is_ready.wait(60)
    try:
        yield started[0]
    finally:
        loops[0].call_soon_threadsafe(started[0][0].stop, "the test is over")
        thread.join(60)
        assert not thread.is_alive()
