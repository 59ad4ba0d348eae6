"""A client of staged jobs, and what tests of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.messages import (
    Consume,
    JobInfo,
)
from kombu_opendata.staging.job import StagingTarget

from ...support.batches import Sink, as_objects
from ...support.processes import children, wait_until
from ...support.served import ServedBroker


@pytest.fixture(scope="module")
def shared_broker(module_store_folder: Path) -> Iterator[str]:
    """The URL of a broker that a module's tests share; each has an instance of its own."""
    folder = module_store_folder
    listen = ("--store", f"file://{folder}/store", "--listen", f"unix:{folder}/b.sock", "--create-instances")
    with children() as started:
        started.add(broker := ServedBroker(folder, *listen))
        yield f"opendata://{quote(str(folder / 'b.sock'), safe='')}"
        assert broker.terminate() == 0


@pytest.fixture
def url(request: pytest.FixtureRequest, name: str) -> str:
    """An instance without jobs and queues; a test that looks at the store's folder has an embedded broker there."""
    if "store_folder" in request.fixturenames:
        return f"opendata://{request.getfixturevalue('store_folder')}"
    return f"{request.getfixturevalue('shared_broker')}/{name}"


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
