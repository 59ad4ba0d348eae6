"""A broker's side of a connection."""

from __future__ import annotations

import asyncio
import socket
import uuid
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.broker.wire.connection import ConnectionProtocol
from kombu_opendata.broker.wire.connection_limits import ConnectionLimits
from kombu_opendata.protocol.framing import PREAMBLE
from tests.support.waiting import until


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_tcp_client_that_vanishes_is_noticed_by_the_system(run: Any) -> None:
    async def main() -> None:
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}", create_instances=True))
        try:
            port = await server.listening.tcp("127.0.0.1", 0)
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(60):
                await until(lambda: server.connections.open)
            (connection,) = server.connections.open
            assert isinstance(connection, ConnectionProtocol)
            assert connection._transport is not None
            accepted = connection._transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0, "it may be just busy"
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            writer.close()
        finally:
            await server.close()

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_those_that_come_at_once_are_all_told_why_they_are_closed(run: Any) -> None:
    """Also one that loses its place in the same moment in which it got it."""

    async def main() -> None:
        limits = ConnectionLimits(strangers=2)
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}", connections=limits))
        socks = []
        try:
            port = await server.listening.tcp("127.0.0.1", 0)
            for _ in range(120):  # the kernel takes them, and the loop does not run meanwhile
                socks.append(socket.create_connection(("127.0.0.1", port)))
                socks[-1].sendall(PREAMBLE)
                socks[-1].setblocking(False)
            async with asyncio.timeout(60):
                for sock in socks[:-2]:
                    assert b"too_many_connections" in await _read_all(sock)
                await until(lambda: len(server.connections.admission.slots) <= 2)
            assert {connection.slot for connection in server.connections.open} == server.connections.admission.slots
        finally:
            for sock in socks:
                sock.close()
            await server.close()

    run(main())


async def _read_all(sock: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionResetError):
        while chunk := await asyncio.get_running_loop().sock_recv(sock, 4096):
            data += chunk
    return data
