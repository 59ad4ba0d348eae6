"""What restricted users may do, over TCP with logins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest

from kombu_opendata import PublishFailed, batch, errors

from ...support.kombu_client import connected, declare, refused, take_bodies
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


def test_in_a_batch_only_the_refused_publishes_fail(url: str, app: Any) -> None:
    channel = app.channel()
    bound(channel, "app.batch")
    producer = app.Producer(channel)

    def publish_all() -> None:
        with batch(app):
            for number in range(30):
                exchange = "app.batch" if number % 3 else "not mine"
                producer.publish(str(number), exchange=exchange, routing_key="app.batch")

    with pytest.raises(PublishFailed) as caught:
        publish_all()
    failed = caught.value.failed
    assert [(one.exchange, type(one.error).__name__) for one in failed] == 10 * [("not mine", "AccessRefused")]
    assert sorted(map(int, take_bodies(channel, "app.batch"))) == [number for number in range(30) if number % 3]


def test_a_refusal_is_amqps_in_kombus_terms_and_nothing_else_of_the_connection_is_lost(app: Any) -> None:
    channel = app.channel()
    with pytest.raises(amqp.AccessRefused) as caught:
        channel.queue_declare("other")
    assert caught.value.code == 403
    assert caught.value.values == {
        "right": "configure", "kind": "queue", "name": "other", "user": "app", "instance": "default",
    }  # fmt: skip
    declare(channel, "app")


def test_queues_that_the_broker_names(url: str, app: Any) -> None:
    with pytest.raises(errors.AccessRefused, match=r"may not configure queue 'amq\.gen-"):
        app.channel().queue_declare("", exclusive=True, durable=False)
    with connected(url % "root") as admin:
        assert admin.channel().queue_declare("", exclusive=True, durable=False).queue.startswith("amq.gen-")


def test_the_exclusive_queue_of_another_connection_keeps_its_bindings(url: str, app: Any) -> None:
    with connected(url % "root") as admin:
        channel = admin.channel()
        channel.exchange_declare("app.direct", "direct")
        channel.queue_declare("app.own", exclusive=True, durable=False)
        channel.queue_bind("app.own", "app.direct", "key")
        with pytest.raises(errors.AccessRefused, match="is exclusive to another connection"):
            app.channel().queue_unbind("app.own", "app.direct", "key")
        send = admin.Producer(channel)
        send.publish("1", exchange="app.direct", routing_key="key")
        assert take_bodies(channel, "app.own") == [b"1"]
