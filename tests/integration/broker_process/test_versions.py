"""Clients and brokers of different protocol versions."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import errors
from kombu_opendata.protocol.framing import MAGIC, MAJOR, MINOR

from ...support.kombu_client import open_connection
from ...support.raw import RawClient


def _fake_broker(path: Path, preamble: bytes, stack: ExitStack) -> None:
    """Listens where an embedded broker would, and sends this preamble to everybody."""
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.recv(8)
                    peer.sendall(preamble)
                    peer.recv(1 << 16)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    stack.callback(thread.join, 10)
    stack.callback(listener.shutdown, socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("major", "text"),
    [
        (MAJOR - 1, "the broker is older than this side and must be upgraded"),
        (MAJOR + 1, "this side is older than the broker and must be upgraded"),
    ],
)
def test_a_client_of_another_protocol_version(
    store_folder: Path, broker_url: str, stack: ExitStack, major: int, text: str
) -> None:
    _fake_broker(store_folder / "broker.sock", struct.pack("<4sHH", MAGIC, major, 0), stack)
    connection = open_connection(broker_url)
    with pytest.raises(
        errors.VersionMismatch, match=f"the broker speaks {major}, this side speaks {MAJOR}; {text}"
    ) as caught:
        connection.connect()
    assert isinstance(caught.value, amqp.IrrecoverableConnectionError)
    assert (caught.value.peer_version, caught.value.own_version) == (major, MAJOR)


@pytest.mark.parametrize(
    ("major", "text"),
    [
        (MAJOR - 1, "the client is older than this side and must be upgraded"),
        (MAJOR + 1, "this side is older than the client and must be upgraded"),
    ],
)
def test_a_broker_of_another_protocol_version(
    connect: Callable[..., Any], broker_url: str, store_folder: Path, major: int, text: str
) -> None:
    connect(broker_url)
    with RawClient(f"{store_folder}/broker.sock", preamble=struct.pack("<4sHH", MAGIC, major, 7)) as raw:
        said = raw.last_word()
    assert said is not None
    assert said.code == "version_mismatch"
    assert text in said.text
    assert f"the client speaks {major}, this side speaks {MAJOR}" in said.text


def test_another_minor_version_is_no_obstacle(connect: Callable[..., Any], broker_url: str, store_folder: Path) -> None:
    connect(broker_url)
    with RawClient(f"{store_folder}/broker.sock", preamble=struct.pack("<4sHH", MAGIC, MAJOR, MINOR + 5)) as raw:
        raw.hello()
