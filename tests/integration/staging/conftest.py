"""A client of staged jobs, and what tests of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.messages import (
    Consume,
)
from kombu_opendata.staging import JobInfo, StagingTarget

from ...support.batches import Sink, as_objects
from ...support.processes import wait_until


@pytest.fixture
def url(store_folder: Path) -> str:
    return f"opendata://{store_folder}"


@pytest.fixture
def sink(url: str) -> Iterator[Sink]:
    found = Sink(url)
    found.declare("q")
    yield found
    found.close()


@pytest.fixture
def client(sink: Sink) -> StagingClient:
    return StagingClient(sink.connection)


@pytest.fixture
def target(client: StagingClient) -> StagingTarget:
    """Nothing goes inline."""
    return as_objects(client.staging_target())


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def consume(sink: Sink, queue: str = "q") -> None:
    sink.connection.consume(Consume(0, 1, f"sink-{queue}", queue, False, False, {}))


def when(client: StagingClient, job_id: str, condition: Callable[[JobInfo], object]) -> JobInfo:
    """The job, once this is so."""
    wait_until(lambda: condition(client.job_status(job_id)), 60, lambda: repr(client.job_status(job_id)))
    return client.job_status(job_id)


def objects(folder: Path) -> list[Path]:
    return sorted((folder / "default.staged").rglob("*.batch*"))
