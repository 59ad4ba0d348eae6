"""A connection, a channel and a queue for each way to reach a broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from ...support.kombu_client import connected, declare
from ..conftest import Reach


@pytest.fixture
def another(reach: Reach, stack: ExitStack) -> Callable[[], Any]:
    """Opens further connections."""
    return lambda: stack.enter_context(connected(reach.url, **reach.options))


@pytest.fixture
def connection(another: Callable[[], Any]) -> Any:
    return another()


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


@pytest.fixture
def queue(channel: Any, name: str) -> str:
    """A durable queue."""
    declare(channel, name)
    return name
