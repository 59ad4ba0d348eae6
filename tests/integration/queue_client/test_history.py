"""History through the queue client, and what its other calls leave in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from kombu_opendata import errors
from kombu_opendata.queue_client.queue_options import QueueOptions

from ...support.processes import wait_until


def statuses(client: Any, queue: str) -> list[tuple[int, str | None]]:
    """Id and status of all messages of a queue, the oldest first."""
    return [(one.id, one.status(queue)) for one in client.iter_messages(queues=[queue], order="asc", limit=2)]


def outcomes(client: Any, queue: str) -> list[tuple[int, str, bool]]:
    return [(one.message_id, one.outcome, one.manual) for one in client.iter_attempts(queues=[queue], order="asc")]


def test_a_message_from_its_sending_to_its_end(client: Any, queue: str) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    first, second = client.send_batch(queue, ["a", "b"], [{"tenant": "t"}, {"tenant": "u"}])
    assert statuses(client, queue) == [(first, "available"), (second, "available")]
    (message,) = client.read(queue, 60)
    (shown,) = client.list_messages(queues=[queue], statuses=["in_flight"]).items
    (status,) = shown.queues
    assert (shown.id, status.attempts) == (first, 1)
    assert status.consumer, "whoever reads is known by a name"
    client.archive(queue, message)
    assert statuses(client, queue) == [(first, "done"), (second, "available")]
    (attempt,) = client.list_attempts(queues=[queue]).items
    assert (attempt.message_id, attempt.outcome, attempt.manual) == (first, "acked", False)
    assert attempt.consumer == status.consumer
    assert client.retrieve_attempt(attempt.id) == attempt
    assert client.retrieve_message(first).headers["tenant"] == "t"
    assert [one.id for one in client.list_messages(headers={"tenant": ["t", "u"]}, queues=[queue]).items] == [
        second,
        first,
    ]
    window = {"gte": before, "lt": datetime.now(UTC) + timedelta(seconds=5), "bucket_seconds": 1}
    assert sum(one.count for one in client.count_messages(queues=[queue], **window)) == 2
    assert sum(one.count for one in client.count_attempts(queues=[queue], **window)) == 1


def test_a_redriven_message_is_available_again(client: Any, queue: str) -> None:
    id = client.send(queue, "x")
    (message,) = client.read(queue, 60)
    client.reject(queue, message)
    assert statuses(client, queue) == [(id, "failed")]
    client.redrive(queue)
    assert statuses(client, queue) == [(id, "available")]
    assert client.list_messages(queues=[queue], statuses=["failed"]).items == ()
    assert outcomes(client, queue) == [(id, "rejected", False), (id, "redriven", True)]
    assert [one.outcome for one in client.list_attempts(queues=[queue], manual=True).items] == ["redriven"]
    client.pop(queue)
    assert statuses(client, queue) == [(id, "done")]


def test_a_message_that_was_redriven_to_another_queue(client: Any, queue: str) -> None:
    other = f"{queue}-other"
    client.create(other)
    id = client.send(queue, "x")
    (message,) = client.read(queue, 60)
    client.reject(queue, message)
    client.redrive(queue, target=other)
    shown = client.retrieve_message(id)
    assert (shown.status(queue), shown.status(other)) == ("removed", "available")
    assert [one.id for one in client.list_messages(queues=[other], statuses=["available"]).items] == [id]


def test_what_was_settled_by_id_was_done_by_hand(client: Any, queue: str) -> None:
    kept, gone = (client.send(queue, body) for body in "ab")
    client.archive(queue, kept)
    client.delete(queue, gone)
    assert statuses(client, queue)[0] == (kept, "done")
    assert (gone, "available") not in statuses(client, queue)
    assert outcomes(client, queue) == [(kept, "acked", True)]


def test_a_replayed_queue_has_its_messages(client: Any, queue: str) -> None:
    ids = client.send_batch(queue, range(3))
    later = f"{queue}-later"
    client.create(later, QueueOptions(filter=f"routing_key = '{queue}'", start="first"))
    wait_until(lambda: len(statuses(client, later)) >= 3, 60, lambda: f"three messages: {statuses(client, later)}")
    assert statuses(client, later) == statuses(client, queue) == [(id, "available") for id in ids]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"limit": 0}, errors.LimitOutOfRange),
        ({"limit": 10**9}, errors.LimitOutOfRange),
        ({"limit": "x"}, errors.InvalidFilter),
        ({"statuses": ["lost"]}, errors.InvalidFilter),
        ({"queues": "q"}, errors.InvalidFilter),
        ({"gte": "yesterday"}, errors.InvalidFilter),
        ({"gte": 1.5}, errors.InvalidFilter),
        ({"next": "x"}, errors.MalformedCursor),
        ({"next": "x", "prev": "x"}, errors.TooManyCursors),
        ({"ids": ["x"]}, errors.RequestError),
        ({"ids": [1 << 70]}, errors.RequestError),
        ({"headers": {"a": "\ud800"}}, errors.RequestError),
        ({"order": None}, errors.InvalidFilter),
        ({"queue": "q"}, TypeError),
    ],
)
def test_what_is_refused(client: Any, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        client.list_messages(**wrong)
    assert client.list_messages(limit=1).items is not None, "the client goes on"


def test_an_attempt_shows_its_message(client: Any, queue: str) -> None:
    client.bind(queue, "amq.topic", f"{queue}.*")
    sent = {"amount": 5, "name": "é"}
    id = client.publish(sent, {"tenant": "t"}, exchange="amq.topic", routing_key=f"{queue}.paid").id
    (message,) = client.read(queue, 60)
    client.archive(queue, message)
    (attempt,) = client.list_attempts(queues=[queue]).items
    event = attempt.event
    assert (event.exchange, event.topic, event.headers["tenant"]) == ("amq.topic", f"{queue}.paid", "t")
    stored = client.retrieve_message(id)
    assert (event.created_at_ms, event.received_at_ms, event.visible_at_ms) == (
        stored.created_at_ms, stored.received_at_ms, stored.visible_at_ms,
    )  # fmt: skip
    assert event.headers == stored.headers
    assert event.body is None, "it was not asked for"
    (with_body,) = client.list_attempts(queues=[queue], bodies=True).items
    assert with_body.event.body == sent
    assert client.retrieve_attempt(attempt.id) == attempt
    assert client.retrieve_attempt(attempt.id, bodies=True) == with_body
    client.delete_settled(queue, ids=[id])
    wait_until(lambda: client.retrieve_attempt(attempt.id).event is None, 60, "the message to be collected")
    assert client.retrieve_attempt(attempt.id, bodies=True) == replace(attempt, event=None)
    with pytest.raises(errors.InvalidFilter):
        client.list_attempts(queues=[queue], bodies="yes")


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_attempts_with_bodies_are_bounded(client: Any, queue: str, order: str) -> None:
    """Each page has what fits, and none is lost between them, forwards and backwards."""
    bodies = [bytes([number]) * (1 << 20) for number in range(10)] + [b"small", bytes(6 << 20), b"last"]
    client.send_batch(queue, bodies)
    taken: list[Any] = []
    while len(taken) < len(bodies):
        taken += client.pop(queue, len(bodies))
    asked = {"queues": [queue], "order": order, "bodies": True, "limit": 8}
    pages = [client.list_attempts(**asked)]
    while pages[-1].next is not None:
        pages.append(client.list_attempts(**asked, next=pages[-1].next))
    expected = bodies if order == "asc" else bodies[::-1]
    assert [one.event.body for page in pages for one in page.items] == expected
    assert max(sum(len(one.event.body) for one in page.items[:-1]) for page in pages) <= 4 << 20
    back = [pages[-1]]
    while back[-1].prev is not None:
        back.append(client.list_attempts(**asked, prev=back[-1].prev))
    assert [one.event.body for page in reversed(back) for one in page.items] == expected
    assert len(client.list_attempts(**{**asked, "bodies": False}).items) == 8
