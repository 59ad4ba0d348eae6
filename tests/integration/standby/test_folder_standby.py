"""A standby of a folder: a second process on the same host, which waits for the folder's lock."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata.errors import NotActive
from kombu_opendata.queue_client import QueueClient

from ...support.pair import Pair, greet, url
from ...support.processes import children
from ...support.served import COMMAND


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with children() as started:
        yield Pair(str(tmp_path / "store"), tmp_path, started)


def test_a_standby_sends_clients_to_the_active_broker_and_takes_over(pair: Pair, tmp_path: Path) -> None:
    first = pair.start()
    pair.wait_active(first)
    with QueueClient(url(first)) as client:
        client.create("letters")
        client.send("letters", {"to": "you"})
    second = pair.start()
    refused = greet(second.port)
    assert isinstance(refused, NotActive)
    assert refused.active == f"127.0.0.1:{first.port}"
    assert json.loads((tmp_path / "store/broker.active").read_text())["addresses"] == [f"127.0.0.1:{first.port}"]
    killed_at = time.monotonic()
    first.kill()
    assert pair.wait_active(second) - killed_at < 3
    with QueueClient(url(second)) as client:
        assert [message.body for message in client.pop("letters")] == [{"to": "you"}]


def test_a_hand_over_by_command_takes_less_than_a_second(pair: Pair) -> None:
    first = pair.start()
    pair.wait_active(first)
    alone = hand_over(url(first))
    assert alone.returncode == 1
    assert "no standby is connected" in alone.stderr
    second = pair.start()
    pair.wait_connected(first)
    began_at = time.monotonic()
    done = hand_over(url(first))
    answered_at = time.monotonic()
    assert (done.returncode, done.stdout) == (0, f"the broker hands over to 127.0.0.1:{second.port}\n")
    assert pair.wait_active(second) - answered_at < 1, began_at
    assert first.wait(10) == 0


def hand_over(url: str) -> subprocess.CompletedProcess[str]:
    command = [str(COMMAND), "broker", "hand-over", "--url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
