"""The broker of staged jobs that tests kill, and a driver that waits for the next one. A test module has its sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.staging_client import StagingClient

from ..support.batches import Sink
from ..support.broker import EmbeddedBroker


@pytest.fixture
def broker(store_folder: Path, sink: Sink) -> EmbeddedBroker:
    return EmbeddedBroker(store_folder)


@pytest.fixture
def client(broker: EmbeddedBroker, store_folder: Path) -> Iterator[StagingClient]:
    options = Options(name="driver", start_timeout=60, reconnect_timeout=60)
    with StagingClient(f"opendata://{store_folder}", options) as found:
        yield found
