"""What restricted users may do, over TCP with logins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import errors

from ...support.kombu_client import connected, declare, refused
from ...support.processes import children
from ...support.served import ServedBroker
from ...support.users import user_table, write_users

PATTERNS = {"configure": "^app", "write": "^app", "read": "^app"}


@pytest.fixture(scope="module")
def url(module_store_folder: Path) -> Iterator[str]:
    folder = module_store_folder
    users = write_users(
        folder / "users",
        user_table("root", "x", {}, roles=("admin",)),
        user_table("app", "x", {"default": PATTERNS}),
    )
    with children() as started:
        options = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
        broker = ServedBroker(folder, *options, "--instance", "default", "--instance", "other")
        started.add(broker)
        yield f"opendata://%s:x@127.0.0.1:{broker.port}"
        assert broker.terminate() == 0


@pytest.fixture
def app(url: str) -> Iterator[Any]:
    with connected(url % "app") as connection:
        yield connection


def bound(channel: Any, name: str) -> None:
    """A queue bound to an exchange by its name."""
    declare(channel, name)
    channel.exchange_declare(name, "direct")
    channel.queue_bind(name, name, name)


def test_an_instance_without_an_entry_is_refused(url: str) -> None:
    error = refused(f"{url % 'app'}/other")
    assert isinstance(error, errors.AccessRefused)
    assert "user 'app' may not use instance 'other'" in error.text
    with connected(f"{url % 'root'}/other") as admin:
        admin.channel()


def test_a_user_publishes_declares_and_consumes_within_its_patterns(url: str, app: Any) -> None:
    with connected(url % "root") as admin:
        bound(admin.channel(), "other")
    channel = app.channel()
    bound(channel, "app")
    producer = app.Producer(channel)
    producer.publish("1", exchange="app", routing_key="app")
    producer.publish("2", exchange="", routing_key="app")
    assert [channel.basic_get("app", no_ack=True) is not None for _ in range(3)] == [True, True, False]
    for exchange, key in (("other", "other"), ("", "other")):
        with pytest.raises(errors.AccessRefused, match="its write pattern is '\\^app'"):
            producer.publish("3", exchange=exchange, routing_key=key)
    with pytest.raises(errors.AccessRefused, match="may not read from queue 'other'"):
        channel.basic_get("other")
    with pytest.raises(errors.AccessRefused, match="may not read from queue 'other'"):
        channel.basic_consume("other", callback=print)
    with pytest.raises(errors.AccessRefused, match="may not configure queue 'other'"):
        channel.queue_declare("other")
    with pytest.raises(errors.AccessRefused, match="may not configure exchange 'another'"):
        channel.exchange_declare("another", "direct")
    with connected(url % "root") as admin:
        assert admin.channel().basic_get("other") is None
