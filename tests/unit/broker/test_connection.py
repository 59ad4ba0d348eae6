"""A broker's side of a connection."""

from __future__ import annotations

import asyncio
import socket
import uuid
from typing import Any

import pytest
import uvloop

from kombu_opendata.broker.server import BrokerSettings, Server


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_tcp_client_that_vanishes_is_noticed_by_the_system(run: Any) -> None:
    async def main() -> None:
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}", create_instances=True))
        try:
            port = await server.listen_tcp("127.0.0.1", 0)
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(10):
                while not server.connections:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.005)
            (connection,) = server.connections
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
