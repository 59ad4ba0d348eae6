"""Bad input: names, definitions, messages and credentials that a caller gets wrong.

The errors that a Kombu caller sees are of two families at once: this package's, and AMQP's, by which Kombu decides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqp.exceptions as amqp
import pytest
from kombu.exceptions import OperationalError

from kombu_opendata import errors
from kombu_opendata.protocol import messages as m

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import connected, declare, refused, send, take_bodies
from ...support.neighbour import Neighbour
from ...support.processes import Children
from ...support.raw import RawClient
from ...support.served import ServedBroker
from ...support.users import user_table, write_users


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q" * 256, "the queue name has 256 bytes, the limit is 255"),
        ("é" * 128, "the queue name has 256 bytes, the limit is 255"),
        ("", "a durable queue needs a name"),
    ],
    ids=["256 letters", "256 bytes", "empty"],
)
def test_queue_names(channel: Any, name: str, text: str) -> None:
    with pytest.raises(errors.RequestError, match=text) as caught:
        declare(channel, name)
    assert isinstance(caught.value, amqp.IrrecoverableChannelError)
    for call in (channel.basic_get, channel.basic_consume, channel.queue_purge, channel.queue_delete):
        with pytest.raises(errors.RequestError, match="the queue name"):
            call(name)
    declare(channel, "é" * 127 + "q")
    send(channel, "é" * 127 + "q", "fits")
    assert take_bodies(channel, "é" * 127 + "q") == ["fits"]


def test_exchange_names_and_routing_keys(channel: Any) -> None:
    with pytest.raises(errors.RequestError, match="the exchange name has 256 bytes"):
        channel.exchange_declare("e" * 256, "direct", durable=True)
    with pytest.raises(errors.AccessRefused, match=r"'amq\.' are reserved") as caught:
        channel.exchange_declare("amq.mine", "direct", durable=True)
    assert isinstance(caught.value, amqp.AccessRefused)
    with pytest.raises(errors.RequestError, match="exchange type 'x-random' is not supported: use "):
        channel.exchange_declare("odd", "x-random", durable=True)
    channel.exchange_declare("e", "topic", durable=True, auto_delete=False)
    with pytest.raises(errors.RequestError, match=r"the routing key has \d+ bytes, the limit is 255"):
        channel.queue_bind("q", "e", "k" * 256)
    channel.queue_bind("q", "e", "#")
    with pytest.raises(errors.RequestError, match=r"65,?535|255"):
        send(channel, "k" * 70_000, "x", exchange="e")
    assert channel._size("q") == 0


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"arguments": {"x-delivery-limit": 5}}, "without x-delivery-limit"),
        ({"durable": False}, "with durable=True"),
        ({"auto_delete": True}, "with auto_delete=False"),
    ],
)
def test_a_queue_declared_again_with_other_arguments(channel: Any, other: dict[str, Any], field: str) -> None:
    send(channel, "q", "kept")
    with pytest.raises(errors.PreconditionFailed, match=f"queue 'q' exists {field}, declared again with") as caught:
        declare(channel, "q", **other)
    assert isinstance(caught.value, amqp.PreconditionFailed)
    assert caught.value.queue == "q"
    assert take_bodies(channel, "q") == ["kept"]


def test_a_queue_declared_again_after_a_restart(
    connect: Callable[..., Any], broker_url: str, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "limited", arguments={"x-delivery-limit": 5})
    EmbeddedBroker(store_folder).kill()
    declare(channel, "limited", arguments={"x-delivery-limit": 5})
    with pytest.raises(amqp.PreconditionFailed, match="x-delivery-limit"):
        declare(channel, "limited", arguments={"x-delivery-limit": 6})


def test_an_exchange_declared_again_with_another_type(channel: Any) -> None:
    channel.exchange_declare("e", "topic", durable=True, auto_delete=False)
    with pytest.raises(
        errors.PreconditionFailed, match="exchange 'e' exists with type='topic', declared again with 'direct'"
    ) as caught:
        channel.exchange_declare("e", "direct", durable=True, auto_delete=False)
    assert isinstance(caught.value, amqp.PreconditionFailed)


@pytest.mark.parametrize("limit", [0, 65_536, "many", -2, True])
def test_a_delivery_limit_that_is_none(channel: Any, limit: Any) -> None:
    with pytest.raises(errors.RequestError, match=r"x-delivery-limit must be an integer from 1 to 65535, or -1"):
        declare(channel, "limited", arguments={"x-delivery-limit": limit})


def test_too_many_headers(channel: Any) -> None:
    headers = {f"h{number}": number for number in range(256)}
    with pytest.raises(errors.InvalidMessage, match="headers; the limit is 255") as caught:
        send(channel, "q", "x", headers=headers)
    assert isinstance(caught.value, amqp.PreconditionFailed)
    assert caught.value.limit == 255
    send(channel, "q", "fits", headers=dict(list(headers.items())[:251]))
    assert take_bodies(channel, "q") == ["fits"]


@pytest.mark.parametrize(("text", "size"), [("x" * 65_536, 65_536), ("é" * 32_768, 65_536)], ids=["letters", "bytes"])
def test_a_header_that_is_too_long(channel: Any, text: str, size: int) -> None:
    with pytest.raises(errors.InvalidMessage, match=f"header 'h' has {size} bytes; the limit is 65535") as caught:
        send(channel, "q", "x", headers={"h": text})
    assert isinstance(caught.value, amqp.PreconditionFailed)
    send(channel, "q", "fits", headers={"h": "x" * 65_535})
    got = channel.basic_get("q")
    assert len(got.headers["h"]) == 65_535
    got.ack()


@pytest.mark.parametrize(
    "bad", [{"headers": {"h": object()}}, {"priority": "urgent"}, {"priority": 256}, {"expiration": "soon"}]
)
def test_a_message_that_can_not_be_encoded(channel: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidMessage):
        send(channel, "q", "x", **bad)
    assert channel._size("q") == 0


def test_a_payload_above_the_configured_maximum(
    started: Children, store_folder: Path, connect: Callable[..., Any]
) -> None:
    listen = ("--listen", "tcp:127.0.0.1:0", "--listen", f"unix:{store_folder}/raw.sock")
    options = ("--store", f"file://{store_folder}", "--max-message-bytes", "100000", *listen)
    served = ServedBroker(store_folder, *options)
    started.add(served)
    url = f"opendata://127.0.0.1:{served.port}"
    neighbour = Neighbour(connect(url), lambda: served.pid)
    channel = connect(url).channel()
    declare(channel, "q")
    with pytest.raises(
        errors.MessageTooLarge, match=r"the message has 100\d{3} bytes and the broker's limit is 100000"
    ) as caught:
        send(channel, "q", b"x" * 100_000)
    assert isinstance(caught.value, amqp.PreconditionFailed)
    assert caught.value.limit == 100_000
    with RawClient(f"{store_folder}/raw.sock") as raw:
        assert raw.hello().max_message_bytes == 100_000
        answer = raw.publish("q", 1, bytes(100_001))
        assert isinstance(answer, m.Failed)
        assert (answer.code, answer.values) == ("message_too_large", {"size": 100_001, "limit": 100_000})
        assert raw.publish("q", 2, bytes(100_000)).queues == 1
    channel.queue_purge("q")
    send(channel, "q", b"y" * 99_000)
    assert [len(body) for body in take_bodies(channel, "q")] == [99_000]
    neighbour.check()
    assert served.terminate() == 0


def test_wrong_credentials(started: Children, store_folder: Path) -> None:
    users = store_folder / "users"
    write_users(users, user_table("alice", "right"))
    options = ("--store", f"file://{store_folder}/s", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
    served = ServedBroker(store_folder, *options)
    started.add(served)
    for login in ("alice:wrong@", "bob:right@", ""):
        error = refused(f"opendata://{login}127.0.0.1:{served.port}")
        assert isinstance(error, errors.AccessRefused)
        assert isinstance(error, amqp.AccessRefused)
        assert "is unknown or the secret is wrong" in str(error)
    with connected(f"opendata://alice:right@127.0.0.1:{served.port}") as connection:
        declare(connection.channel(), "q")
    assert served.terminate() == 0


def test_errors_reach_callers_who_only_know_kombu(channel: Any) -> None:
    """``retry`` gives up on what can't be mended, and raises Kombu's OperationalError only for the rest."""
    with channel.connection.client.Producer() as producer:
        with pytest.raises(amqp.NotFound) as caught:
            producer.publish(
                "x", exchange="no such exchange", routing_key="k", retry=True, retry_policy={"max_retries": 1}
            )
        assert not isinstance(caught.value, OperationalError)
