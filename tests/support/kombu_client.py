"""What tests do with a Kombu connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kombu.connection import Connection

import kombu_opendata  # noqa: F401 - registers the URLs
from kombu_opendata.errors import OpenDataError

PATIENCE_SECONDS = 60


def open_connection(url: str, **options: Any) -> Any:
    """A kombu.Connection that is not connected yet; ``options`` are transport options, and ``ssl``."""
    ssl = options.pop("ssl", None)
    options = {"idle_exit": 5, "start_timeout": 60, "reconnect_timeout": 60, **options}
    return Connection(url, ssl=ssl, transport_options=options)  # type: ignore[no-untyped-call]


@contextmanager
def connected(url: str, **options: Any) -> Iterator[Any]:
    """A connected kombu.Connection, closed at the end."""
    connection = open_connection(url, **options)
    try:
        connection.connect()
        yield connection
    finally:
        connection.close()


def refused(url: str, **options: Any) -> Any:
    """The error of a client that can't connect."""
    with pytest.raises(OpenDataError) as caught, open_connection(url, **options) as connection:
        connection.connect()
    return caught.value


def drain_until(connection: Any, condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Handle events until the condition holds; the test fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        rest = deadline - time.monotonic()
        assert rest > 0, f"the condition did not hold within {seconds:g} s"
        try:
            connection.drain_events(timeout=min(rest, 0.5))
        except TimeoutError:
            continue


def drain_quiet(connection: Any, seconds: float = 0.3) -> None:
    """Handle events until none came for some time: to see that nothing more comes."""
    while True:
        try:
            connection.drain_events(timeout=seconds)
        except TimeoutError:
            return


def send(channel: Any, queue: str, *bodies: str | bytes, exchange: str = "", **properties: Any) -> None:
    """Publish texts to a queue by its name, or through an exchange with ``queue`` as the routing key."""
    headers = properties.pop("headers", None)
    for body in bodies:
        message = channel.prepare_message(body, headers=headers, properties=dict(properties))
        channel.basic_publish(message, exchange=exchange, routing_key=queue)


def take(channel: Any, queue: str) -> list[Any]:
    """Get messages until there are none; they are not acknowledged."""
    taken = []
    while (message := channel.basic_get(queue)) is not None:
        taken.append(message)
    return taken


def take_bodies(channel: Any, queue: str) -> list[Any]:
    """Get and acknowledge all messages of a queue."""
    taken = take(channel, queue)
    for message in taken:
        message.ack()
    return [message.body for message in taken]


def declare(channel: Any, queue: str, **properties: Any) -> Any:
    """A durable queue, unless said otherwise."""
    return channel.queue_declare(queue, **{"durable": True, "auto_delete": False, **properties})


class Inbox(list[Any]):
    """The messages that consumers got."""

    def consume(self, channel: Any, queue: str, **options: Any) -> str:
        """Start a consumer; returns its tag."""
        return str(channel.basic_consume(queue, callback=self.append, **options))

    @property
    def bodies(self) -> list[Any]:
        return [message.body for message in self]
