"""Calls of the queue client whose answers come late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kombu_opendata.client.connection_options import Options
from kombu_opendata.protocol.messages import queue_messages as q
from kombu_opendata.queue_client.connections import ClientConnection
from kombu_opendata.url import Address


def test_a_break_does_not_make_a_read_wait_longer(store_folder: Path, peer: Any) -> None:
    connection = ClientConnection(Address("embedded", folder=str(store_folder)), Options(reconnect_timeout=5.0))
    try:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(connection.call_waiting, q.Read(0, "q", 1, 1000, wait_ms=50))
            first = peer.accept()
            first.welcome()
            first.receive(q.Read)
            first.close()
            second = peer.accept()
            second.welcome()
            again = second.receive(q.Read)
            assert second.receive(q.StopReading).read_rid == again.rid  # though this broker would wait for more
            second.close()
            third = peer.accept()
            third.welcome()
            assert third.receive(q.Read).rid == third.receive(q.StopReading).read_rid == again.rid
            third.send(q.ReadMessages(again.rid, []))
            assert reading.result(10).messages == []
    finally:
        connection.abandon()
