"""A standby of a bucket: the active record, claims, hand-over, and what a fenced broker does."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import NotActive

from ...support.pair import Pair, greet, took_over, url
from ...support.processes import children
from ...support.s3 import BUCKET, S3, s3_server

DELAY_SECONDS = 0.02
FENCED = 4


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    with children() as processes, s3_server(processes, tmp_path) as server:
        server.proxy.delay_seconds = DELAY_SECONDS
        yield server


@pytest.fixture
def pair(tmp_path: Path, s3: S3) -> Iterator[Pair]:
    with children() as started:
        yield Pair(f"s3://{BUCKET}/pair", tmp_path, started)


def record() -> dict[str, object]:
    """The active record."""
    store = obstore.store.from_url(f"s3://{BUCKET}/pair")
    found: dict[str, object] = json.loads(bytes(obstore.get(store, "broker.active").bytes()))
    return found


def test_a_standby_takes_over_from_a_killed_broker(pair: Pair) -> None:
    first = pair.start()
    pair.wait_active(first)
    with QueueClient(url(first)) as client:
        client.create("letters")
        client.send("letters", {"to": "you"})
    second = pair.start()
    refused = greet(second.port)
    assert isinstance(refused, NotActive)
    assert refused.active == f"127.0.0.1:{first.port}"
    killed_at = time.monotonic()
    first.kill()
    assert pair.wait_active(second) - killed_at < 8
    assert record()["addresses"] == [f"127.0.0.1:{second.port}"]
    with QueueClient(url(second)) as client:
        assert [message.body for message in client.pop("letters")] == [{"to": "you"}]


def test_a_frozen_broker_is_replaced_and_ends_when_it_wakes_up(pair: Pair) -> None:
    first = pair.start()
    pair.wait_active(first)
    second = pair.start()
    pair.wait_connected(first)
    os.kill(first.pid, signal.SIGSTOP)
    pair.wait_active(second)
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(10) == FENCED
    second.check()
    assert took_over(second)


def test_sigterm_hands_over_to_the_standby(pair: Pair) -> None:
    first = pair.start()
    pair.wait_active(first)
    second = pair.start()
    pair.wait_connected(first)
    assert first.terminate() == 0
    pair.wait_active(second)
    assert second.terminate() == 0
    assert record()["state"] == "stopped"
