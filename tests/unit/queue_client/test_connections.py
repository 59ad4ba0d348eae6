"""The connections of a client: which read a stop is for."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

from kombu_opendata import QueueClient
from kombu_opendata.protocol.messages import Read

from ...support.processes import wait_until


def test_a_stop_that_comes_late_does_not_end_the_next_read_on_the_connection() -> None:
    with QueueClient(f"opendata+memory://{uuid.uuid4().hex}") as client, ThreadPoolExecutor() as pool:
        client.create("q")
        client.send("q", "first")
        calls = client.calls
        answered = Read(0, "q", 1, 60_000, 60_000)
        assert len(calls.read(answered).messages) == 1
        (connection,) = client.connections._idle
        waiting = Read(0, "q", 1, 60_000, 60_000)
        found = pool.submit(calls.read, waiting)
        wait_until(lambda: waiting.rid in connection.session.unanswered, 60, "the second read")
        connection.stop_waiting(answered)
        client.send("q", "second")
        assert len(found.result(60).messages) == 1
