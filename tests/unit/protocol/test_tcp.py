from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from kombu_opendata.protocol import tcp


def info(*, probes: int = 0, unacknowledged: int = 0, last_ack_ms: int = 0) -> bytes:
    data = bytearray(60)
    data[3] = probes
    data[24:28] = unacknowledged.to_bytes(4, "little")
    data[56:60] = last_ack_ms.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("told", "gone"),
    [
        (info(last_ack_ms=60_000), False),  # idle: that is keepalive's
        (info(unacknowledged=3, last_ack_ms=1_999), False),
        (info(unacknowledged=3, last_ack_ms=2_001), True),
        (info(probes=1, last_ack_ms=60_000), False),  # it does not read, and answers the probes, which get rare
        (info(probes=3, last_ack_ms=60_000), True),
    ],
)
def test_a_peer_is_gone_when_its_kernel_does_not_answer(told: bytes, gone: bool) -> None:
    assert tcp.says_gone(told, 2.0) is gone


def test_a_peer_that_does_not_read_is_not_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        near, _ = server.accept()
        with near:
            tcp.set_tcp_options(near, user_timeout_ms=None)
            assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
            near.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    near.send(bytes(1 << 20))
            assert not tcp.peer_is_gone(near, 5.0)
