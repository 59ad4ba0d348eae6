"""A broker process with little memory, or with users that have limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ...support.processes import Children, children
from ...support.raw import RawClient
from ...support.served import ServedBroker


@pytest.fixture
def started() -> Iterator[Children]:
    with children() as found:
        yield found


@pytest.fixture
def serve(tmp_path: Path, started: Children) -> Callable[..., ServedBroker]:
    """Runs ``opendata-queue broker``, listening on ``s``."""

    def run(*options: str) -> ServedBroker:
        child = ServedBroker(tmp_path, "--store", str(tmp_path / "q"), "--listen", f"unix:{tmp_path}/s", *options)
        started.add(child)
        return child

    return run


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Callable[[], RawClient]]:
    """Connects a client that has not said Hello."""
    opened: list[RawClient] = []

    def connect() -> RawClient:
        opened.append(RawClient(str(tmp_path / "s")))
        return opened[-1]

    yield connect
    for raw in opened:
        raw.sock.close()


@pytest.fixture
def client(stranger: Callable[[], RawClient]) -> Callable[..., RawClient]:
    """Connects a client that has said Hello."""

    def connect(**hello: Any) -> RawClient:
        raw = stranger()
        raw.hello(**hello)
        return raw

    return connect
