"""What a client may say about the broker that it starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kombu_opendata import AsyncQueueClient, QueueClient, errors
from kombu_opendata.cli.administration.serve import broker
from kombu_opendata.client.connection_options import check_broker_options


@pytest.mark.parametrize("size", [0, 1 << 40, "1073741824", "500M", "20G", "1t"])
def test_a_size_is_written_as_for_the_broker(size: Any) -> None:
    assert check_broker_options({"retention_bytes": size}) == {"retention_bytes": str(size)}
    words = ["--retention-bytes", str(size), "--store", "x"]
    assert "Error: --listen is missing" in CliRunner().invoke(broker, words).output, "the broker takes it"


@pytest.mark.parametrize("size", ["lots", -1, 1.5, "20GB", "20 G"])
def test_what_is_no_size_is_refused_as_by_the_broker(size: Any) -> None:
    with pytest.raises(errors.RequestError, match="retention_bytes"):
        check_broker_options({"retention_bytes": size})
    words = ["--retention-bytes", str(size), "--store", "x"]
    assert "is not a size" in CliRunner().invoke(broker, words).output


@pytest.mark.parametrize("given", ["text", {"users": "users.txt"}, {"log_level": "LOUD"}])
def test_a_queue_client_takes_what_the_transport_takes(given: Any, tmp_path: Path) -> None:
    async def make() -> None:
        AsyncQueueClient(f"opendata://{tmp_path}/q", broker_options=given)

    with pytest.raises(errors.RequestError, match="broker_options"):
        QueueClient(f"opendata://{tmp_path}/q", broker_options=given)
    with pytest.raises(errors.RequestError, match="broker_options"):
        asyncio.run(make())
