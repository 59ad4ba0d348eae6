"""A broker that serves metrics, and what it is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ...support.kombu_client import connected
from ...support.processes import Children
from ...support.served import ServedBroker

Serve = Callable[..., ServedBroker]


@pytest.fixture
def serve(store_folder: Path, started: Children) -> Serve:
    """Runs ``opendata-queue broker`` on the test's store with metrics at a free port."""

    def run(*options: str, metrics: str = "127.0.0.1:0") -> ServedBroker:
        listen = ("--listen", f"unix:{store_folder}/by-hand.sock", "--listen", "tcp:127.0.0.1:0")
        child = ServedBroker(
            store_folder, "--store", f"file://{store_folder}/store", *listen, "--metrics", metrics, *options
        )
        started.add(child)
        return child

    return run


@pytest.fixture
def served(serve: Serve) -> ServedBroker:
    return serve()


@pytest.fixture
def channel(served: ServedBroker) -> Iterator[Any]:
    """A channel of a client of that broker."""
    with connected(f"opendata://127.0.0.1:{served.port}") as connection, connection.channel() as opened:
        yield opened
