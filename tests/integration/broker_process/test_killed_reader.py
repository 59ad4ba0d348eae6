"""A process that reads for a time and is killed: what it held is seen, and returned."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kombu_opendata import QueueClient

from ...support.processes import wait_until

READER = """
import sys
from kombu_opendata import QueueClient
client = QueueClient(sys.argv[1], name="reader")
print(len(client.read("q", 3600, 2)), flush=True)
sys.stdin.read()
"""


@contextmanager
def a_reader(url: str) -> Iterator[subprocess.Popen[str]]:
    """It holds two messages."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "2\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["reclaim", "release"])
def test_what_a_killed_reader_held_is_returned(broker_url: str, how: str) -> None:
    with QueueClient(broker_url, name="operator") as client:
        client.create("q")
        client.send_batch("q", range(3))

        def reader() -> tuple[bool, int]:
            (worker,) = [worker for worker in client.workers() if worker.name == "reader"]
            return worker.connected, worker.held

        with a_reader(broker_url) as process:
            assert reader() == (True, 2)
            assert client.reclaim_messages() == 0
            process.kill()
            wait_until(lambda: reader() == (False, 2), 60, "the broker to see that the reader is gone")
            if how == "reclaim":
                assert client.reclaim_messages("q") == 2
            else:
                (worker,) = [worker for worker in client.workers() if worker.name == "reader"]
                assert client.release_worker_messages(worker.id) == 2
        attempts = 2 if how == "reclaim" else 1
        assert [message.attempts for message in client.read("q", 60, 3)] == [attempts, attempts, 1]
