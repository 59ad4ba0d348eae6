"""One broker that the tests share, and a neighbour of it who sees whether they did it harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import connected, declare
from ...support.neighbour import Neighbour
from ...support.raw import RawClient


@pytest.fixture(scope="module")
def shared_url(module_store_folder: Path) -> Iterator[str]:
    """A broker that most of the tests share: none of them may harm it."""
    url = f"opendata://{module_store_folder}"
    with connected(url):
        yield url


@pytest.fixture
def broker(module_store_folder: Path) -> EmbeddedBroker:
    return EmbeddedBroker(module_store_folder)


@pytest.fixture
def neighbour(shared_url: str, broker: EmbeddedBroker) -> Iterator[Neighbour]:
    with connected(shared_url) as connection:
        found = Neighbour(connection, broker.pid)
        yield found
        found.check()


@pytest.fixture
def channel(neighbour: Neighbour, shared_url: str) -> Iterator[Any]:
    """The channel of the caller who does it wrong; it must stay usable. There is an empty queue ``q``."""
    with connected(shared_url) as connection:
        opened = connection.channel()
        declare(opened, "q")
        yield opened
        for queue in ("q", "limited"):
            opened.queue_delete(queue)
        opened.exchange_delete("e")


@pytest.fixture
def raw(channel: Any, module_store_folder: Path) -> Iterator[RawClient]:
    """A client that sends what no real one would."""
    with RawClient(f"{module_store_folder}/broker.sock") as client:
        yield client
