"""Heartbeats of a quiet TCP connection."""

from __future__ import annotations

import asyncio

from kombu_opendata.broker.wire.heartbeat import MIN_HEARTBEAT_MS, HeartbeatMonitor
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import frame


class Quiet(asyncio.Protocol):
    """Server that sends heartbeats only."""

    def __init__(self, monitor: HeartbeatMonitor) -> None:
        self._monitor = monitor
        self.heartbeat_ms: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.heartbeat_ms.set_result(self._monitor.start(transport, 1, 60_000))


async def _connect(monitor: HeartbeatMonitor) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Quiet(monitor), "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        beat = frame(m.BrokerHeartbeat())
        assert await reader.readexactly(2 * len(beat)) == 2 * beat
        monitor.stop()
        writer.close()
        await writer.wait_closed()


def test_a_quiet_connection_gets_heartbeats() -> None:
    asyncio.run(_connect(HeartbeatMonitor()))


def test_a_client_cannot_request_very_frequent_heartbeats() -> None:
    async def start() -> int:
        reached: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        monitor = HeartbeatMonitor()

        def protocol() -> Quiet:
            quiet = Quiet(monitor)
            quiet.heartbeat_ms.add_done_callback(lambda found: reached.set_result(found.result()))
            return quiet

        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        async with server, asyncio.timeout(60):
            _reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            heartbeat_ms = await reached
            monitor.stop()
            writer.close()
        return heartbeat_ms

    assert asyncio.run(start()) == MIN_HEARTBEAT_MS


def test_a_connection_without_a_socket_has_none() -> None:
    assert HeartbeatMonitor().start(None, 1_000, 1_000) == 0
