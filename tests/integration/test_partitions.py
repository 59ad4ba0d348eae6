"""Partitioned queues with a real broker: fair order, restarts, kill -9, alterations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import RequestError
from kombu_opendata.queue_client import QueueOptions

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected, declare, send, take_bodies
from ..support.processes import wait_until

BY_TENANT = QueueOptions(partition_by="tenant")


def fill(client: QueueClient, tenants: str, start: int = 0, queue: str = "q") -> None:
    """Send a message for each letter, whose body is the letter and a number."""
    messages = [(f"{tenant}{start + number}", {"tenant": tenant}) for number, tenant in enumerate(tenants)]
    client.send_batch(queue, [body for body, _headers in messages], [headers for _body, headers in messages])


def drain(client: QueueClient, count: int, queue: str = "q") -> list[str]:
    """Read and settle the next messages, one after the other; return their bodies."""
    bodies: list[str] = []
    while len(bodies) < count:
        messages = client.read_with_poll(queue, vt=600, max_poll_seconds=60)
        assert messages
        client.ack(messages[0])
        bodies.append(str(messages[0].body))
    return bodies


def tenants_of(bodies: list[str]) -> str:
    return "".join(body[0] for body in bodies)


@pytest.fixture
def client(broker_url: str) -> Any:
    with QueueClient(broker_url, start_timeout=60, connect_timeout=60) as opened:
        yield opened


def test_a_tenant_with_one_message_waits_for_a_round(client: QueueClient) -> None:
    client.create("q", BY_TENANT)
    fill(client, "a" * 500)
    assert tenants_of(drain(client, 2)) == "aa"
    fill(client, "b", 1000)
    assert "b" in tenants_of(drain(client, 2))


def test_kombu_declares_and_consumes_it(broker_url: str) -> None:
    with connected(broker_url) as connection:
        channel = connection.channel()
        arguments = {"x-partition-by": "tenant", "x-partition-weights": {"gold": 3, "*": 1}}
        declare(channel, "q", arguments=arguments)
        for tenant, number in (("gold", 30), ("other", 30), (None, 10)):
            for _ in range(number):
                send(channel, "q", str(tenant), headers={} if tenant is None else {"tenant": tenant})
        bodies = [str(body) for body in take_bodies(channel, "q")]
        assert len(bodies) == 70
        assert Counter(bodies[:25]) == {"gold": 15, "other": 5, "None": 5}


@pytest.mark.parametrize("transient", [{"durable": False}, {"auto_delete": True}, {"exclusive": True}], ids=str)
def test_a_transient_queue_with_partitions_is_refused(broker_url: str, transient: dict[str, bool]) -> None:
    with connected(broker_url) as connection:
        channel = connection.channel()
        declare(channel, "existing", **transient)
        for name in ("new", "existing"):
            with pytest.raises(RequestError, match="only a durable queue has partitions"):
                declare(channel, name, **transient, arguments={"x-partition-by": "tenant"})


@pytest.mark.parametrize("kills", [True, False], ids=["kill", "restart"])
def test_partitions_survive_the_broker(client: QueueClient, store_folder: Path, kills: bool) -> None:
    client.create("q", BY_TENANT)
    fill(client, "aaaaaaaaaabbbbbcccdd" * 5)
    assert len(drain(client, 10)) == 10
    broker = EmbeddedBroker(store_folder)
    if kills:
        broker.kill()
    else:
        broker.terminate()
    fill(client, "e" * 5, 1000)
    bodies = drain(client, 95)
    assert len(set(bodies)) == 95
    assert Counter(tenants_of(bodies[:25])) == {"a": 5, "b": 5, "c": 5, "d": 5, "e": 5}
    for tenant in "abcde":
        numbers = [int(body[1:]) for body in bodies if body[0] == tenant]
        assert numbers == sorted(numbers), "the order within a partition"
    assert client.pop("q") == []


def test_partitions_are_added_changed_and_removed_live(client: QueueClient, store_folder: Path) -> None:
    client.create("q")
    fill(client, "a" * 300 + "b" * 30)
    client.alter("q", {"x-partition-by": "tenant"})
    broker = EmbeddedBroker(store_folder)
    # the messages of b are in the last bucket, which is moved in one step
    wait_until(lambda: partitions(broker) == 2, 60, "messages in their partitions")
    bodies = drain(client, 20)
    assert 9 <= tenants_of(bodies).count("b") <= 11
    broker.kill()
    client.alter("q", {"x-partition-by": "no_such_header"})
    bodies += drain(client, 10)
    client.alter("q", {"x-partition-by": None})
    wait_until(lambda: partitions(broker) == 0, 60, "a queue without partitions")
    bodies += drain(client, 300)
    assert len(set(bodies)) == 330
    assert bodies[30:] == sorted(bodies[30:], key=lambda body: int(body[1:]))
    assert client.pop("q") == []


def partitions(broker: EmbeddedBroker) -> int:
    return int(broker.report()["queues"]["q"]["partitions"])


def test_moved_messages_go_to_their_partitions_without_a_reader(client: QueueClient) -> None:
    client.create("source")
    client.create("q", BY_TENANT)
    fill(client, "aab", queue="source")
    assert client.move_messages("source", "q").count == 3

    def backlogs() -> dict[str, tuple[int, str]]:
        return {each.key: (each.backlog, each.limited_by) for each in client.list_partitions("q").partitions}

    wait_until(lambda: backlogs() == {"a": (2, ""), "b": (1, "")}, 60, "messages in their partitions")
