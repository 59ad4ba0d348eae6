"""The delay of a task's queue from within the task; tests/acceptance has it with a worker and partitions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from kombu_opendata import QueueClient
from kombu_opendata.broker import memory
from kombu_opendata.celery_integration.delay_key import delay_key
from kombu_opendata.celery_integration.task_requests import DELIVERED
from kombu_opendata.errors import RequestError


@pytest.fixture
def url() -> Iterator[str]:
    name = f"delays-{uuid.uuid4().hex}"
    yield f"opendata+memory://{name}"
    memory.stop(name)


def test_a_delay_and_its_removal(url: str) -> None:
    with QueueClient(url) as client, Celery("delays", broker=url, set_as_current=False) as app:
        client.create("q")
        (id,) = client.send_batch("q", ["a"])

        @app.task(bind=True)
        def delaying(self: Any, seconds: float | timedelta) -> datetime | None:
            self.request.properties = {DELIVERED: ("q", id)}
            return delay_key(seconds)

        delay, before = timedelta(minutes=10), datetime.now(UTC)
        end = delaying.apply((delay,)).get()
        assert before - timedelta(milliseconds=1) <= end - delay <= datetime.now(UTC)
        assert client.read("q") == []
        assert delaying.apply((60,)).get() == end, "the later end stays"
        assert delaying.apply((0,)).get() is None
        assert [message.id for message in client.read("q")] == [id]


def test_it_is_refused_where_no_message_was_delivered(url: str) -> None:
    with pytest.raises(RequestError, match="call it within the task"):
        delay_key(1)
    with Celery("delays", broker=url, set_as_current=False) as app:

        @app.task
        def eager() -> None:
            delay_key(1)

        with pytest.raises(RequestError, match="call it within the task"):
            eager.apply().get()
