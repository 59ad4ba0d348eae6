"""Reading by groups: in order within each, and one lot of a group at a time."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.queue_client.queue_options import QueueOptions

from .conftest import options_of

BY_GROUP = QueueOptions(partition_by="group_id")
GROUPS = ["a", "a", "b", "a", "c", "b"]


@pytest.fixture
def filled(client: QueueClient, name: str) -> Any:
    """Makes the queue with a message for each group named; the bodies are a0, a1, b0 …"""

    def fill(groups: list[str] = GROUPS) -> None:
        client.create(name, BY_GROUP)
        seen: dict[str, int] = defaultdict(int)
        for group in groups:
            client.send(name, f"{group}{seen[group]}", {"group_id": group})
            seen[group] += 1

    return fill


def bodies(messages: list[Any]) -> list[Any]:
    return [message.body for message in messages]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fill", ["a0", "a1", "a2", "b0", "b1"]),
        ("round_robin", ["a0", "b0", "c0", "a1", "b1"]),
        ("head", ["a0", "b0", "c0"]),
    ],
)
def test_orders(client: QueueClient, name: str, filled: Any, order: Any, expected: list[str]) -> None:
    filled()
    assert bodies(client.read_grouped(name, qty=5, order=order)) == expected


def test_a_group_waits_until_what_it_gave_is_settled(client: QueueClient, name: str, filled: Any) -> None:
    filled()
    first, second = client.read_grouped(name, qty=2)
    assert bodies([first, second]) == ["a0", "a1"]
    assert bodies(client.read_grouped(name, qty=1)) == ["b0"]
    assert bodies(client.read_grouped(name, qty=9)) == ["c0"]
    client.ack(first)
    assert client.read_grouped(name, qty=9) == []
    client.release(name, second)
    assert bodies(client.read_grouped(name, qty=9)) == ["a1", "a2"]


def test_a_delayed_message_holds_back_what_comes_after_it_in_its_group(
    client: QueueClient, name: str, filled: Any
) -> None:
    filled(["a", "b"])
    client.send(name, "later", {"group_id": "a"}, delay=600)
    client.send(name, "after", {"group_id": "a"})
    client.send(name, "b1", {"group_id": "b"})
    assert bodies(client.read_grouped(name, qty=9)) == ["a0", "b0", "b1"]


def test_messages_without_the_header_are_one_group(client: QueueClient, name: str) -> None:
    client.create(name, BY_GROUP)
    client.send_batch(name, ["x", "y"])
    client.send(name, "z", {"group_id": 7})
    assert bodies(client.read_grouped(name, qty=1)) == ["x"]
    assert bodies(client.read_grouped(name, qty=9)) == ["z"]


def test_a_read_that_waits_gets_the_group_when_it_is_free(
    client: QueueClient, reach: Any, name: str, filled: Any
) -> None:
    filled(["a", "a"])
    (first,) = client.read_grouped(name)
    found: list[Any] = []
    with QueueClient(reach.url, **options_of(reach)) as other:
        waiting = threading.Thread(target=lambda: found.extend(other.read_grouped(name, qty=5, max_poll_seconds=60)))
        waiting.start()
        client.ack(first)
        waiting.join(60)
    assert bodies(found) == ["a1"]


def test_readers_side_by_side_keep_the_order_of_each_group(client: QueueClient, reach: Any, name: str) -> None:
    client.create(name, BY_GROUP)
    client.send_batch(name, list(range(400)), [{"group_id": n % 7} for n in range(400)])
    taken: dict[int, list[int]] = defaultdict(list)

    def work() -> None:
        with QueueClient(reach.url, **options_of(reach)) as reader:
            while messages := reader.read_grouped(name, qty=5, max_poll_seconds=1):
                for message in messages:
                    taken[message.body % 7].append(message.body)
                reader.archive_many(name, messages)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(n for line in taken.values() for n in line) == list(range(400))
    assert all(line == sorted(line) for line in taken.values())


def test_groups_in_a_long_queue(client: QueueClient, name: str) -> None:
    """Most of its buckets are not in memory."""
    client.create(name, BY_GROUP)
    for start in range(0, 15_000, 5000):
        client.send_batch(name, list(range(start, start + 5000)), [{"group_id": "a"}] * 5000)
    client.send(name, "x", {"group_id": "x"})
    assert bodies(client.read_grouped(name, qty=3)) == [0, 1, 2]
    assert bodies(client.read_grouped(name, qty=3)) == ["x"]


def test_what_is_refused(client: QueueClient, name: str) -> None:
    client.create(name, BY_GROUP)
    with pytest.raises(errors.RequestError, match="in the order fill, round_robin, head, not 'random'"):
        client.read_grouped(name, order="random")  # type: ignore[arg-type]
    with pytest.raises(errors.RequestError, match="header"):
        client.read_grouped(name, header="")
    with pytest.raises(errors.PreconditionFailed, match="by 'tenant': alter its x-partition-by"):
        client.read_grouped(name, header="tenant")
    with pytest.raises(errors.NotFound):
        client.read_grouped(f"{name}-none")
