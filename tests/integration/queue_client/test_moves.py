"""Waiting messages go to another queue, or into two: what the target does with them, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_opendata import errors
from kombu_opendata.queue_client.queue_options import QueueOptions

NAMES = ("a/b", 'say "hi"', "it's", "🐇 hole", "-x", "--where", "ein Raum")


@pytest.fixture
def target(client: Any, name: str) -> str:
    client.create(f"{name}-target")
    return f"{name}-target"


def bodies(client: Any, queue: str) -> list[Any]:
    return [message.body for message in client.read(queue, 60, 100)]


def states(client: Any, id: int) -> dict[str, str]:
    return {state.queue: state.state for state in client.get(id).states}


def test_a_moved_message_is_in_one_queue_and_a_copy_in_two(client: Any, queue: str, target: str) -> None:
    ids = client.send_batch(queue, range(6), [{"n": number} for number in range(6)])
    later = client.send(queue, "later", delay=3600)
    moved = client.move_messages(queue, target, where="n < 2")
    assert (moved.count, moved.already, moved.is_full) == (2, 0, False)
    copied = client.copy_messages(queue, target, ids=[ids[0], ids[2], later])
    assert (copied.count, copied.already) == (2, 0)
    assert client.copy_messages(queue, target).count == 3
    assert [states(client, id) for id in (ids[0], ids[2])] == [
        {target: "available"}, {queue: "available", target: "available"},
    ]  # fmt: skip
    assert states(client, later) == {queue: "delayed", target: "delayed"}
    assert bodies(client, queue) == [2, 3, 4, 5]
    assert bodies(client, target) == [0, 1, 2, 3, 4, 5]
    figures, gone = client.metrics(target), client.metrics(queue)
    assert (figures.total, figures.delayed, gone.counts["moved"], gone.delayed) == (7, 1, 2, 1)
    (event,) = client.list_messages(ids=[ids[0]]).items
    assert {one.queue: one.status for one in event.queues} == {queue: "moved", target: "in_flight"}


def test_delayed_or_available_ones_and_at_most_so_many(client: Any, queue: str, target: str) -> None:
    client.send_batch(queue, range(3))
    client.send_batch(queue, "xyz", delay=3600)
    assert client.move_messages(queue, target, states=["delayed"], limit=2).count == 2
    assert client.move_messages(queue, target, states=["available"], limit=2).count == 2
    figures = client.metrics(target)
    assert (figures.ready, figures.delayed) == (2, 2)


def test_a_full_target_ends_it_and_the_same_call_goes_on(client: Any, name: str, queue: str) -> None:
    for overflow in ("drop-head", "reject-publish"):
        small = f"{name}-{overflow}"
        client.create(small, QueueOptions(max_length=3, overflow=overflow))
        client.send(small, "first")
        client.send_batch(queue, range(5))
        moved = client.move_messages(queue, small)
        assert (moved.count, moved.is_full) == (2, True)
        assert bodies(client, small) == ["first", 0, 1]
        assert client.move_messages(queue, small).count == 3
        assert bodies(client, small) == [2, 3, 4]


def test_the_target_s_ttl_and_its_filter_hold(client: Any, name: str, queue: str) -> None:
    strict, short = f"{name}-strict", f"{name}-short"
    client.create(strict, QueueOptions(filter="n > 1", filter_mode="all"))
    client.create(short, QueueOptions(message_ttl_seconds=0))
    client.send_batch(queue, range(4), [{"n": number} for number in range(4)])
    copied = client.copy_messages(queue, strict)
    assert (copied.count, copied.unmatched) == (2, 2)
    assert client.move_messages(queue, short).count == 4
    assert client.metrics(short).length == 0
    assert bodies(client, strict) == [2, 3]


def test_a_paused_queue_gives_and_takes_unless_its_publishes_are_paused(client: Any, queue: str, target: str) -> None:
    client.send_batch(queue, range(2))
    client.pause(queue, publishes=True)
    client.pause(target)
    assert client.move_messages(queue, target, limit=1).count == 1
    client.pause(target, publishes=True)
    with pytest.raises(errors.QueuePaused):
        client.move_messages(queue, target)
    client.resume(target)
    assert client.move_messages(queue, target).count == 1
    assert bodies(client, target) == [0, 1]


def test_a_consumer_of_the_target_gets_them_at_once(client: Any, opener: Any, queue: str, target: str) -> None:
    client.send(queue, "now")
    client.move_messages(queue, target)
    (message,) = opener(name="other").read_with_poll(target, 60, max_poll_seconds=60)
    assert (message.body, message.attempts) == ("now", 1)


def test_what_can_t_be_moved_says_why(client: Any, name: str, queue: str) -> None:
    memory = f"{name}-memory"
    client.create(memory, QueueOptions(durable=False))
    for source, target in ((queue, memory), (memory, queue)):
        with pytest.raises(errors.RequestError, match=r"only in memory, .* can't be moved"):
            client.move_messages(source, target)
    with pytest.raises(errors.RequestError, match="name another target"):
        client.copy_messages(queue, queue)
    for source, target in ((queue, f"{name}-nobody"), (f"{name}-nobody", queue)):
        with pytest.raises(errors.NotFound):
            client.move_messages(source, target)
    client.create(f"{name}-there")
    with pytest.raises(errors.RequestError, match="'in_flight' can't be moved"):
        client.move_messages(queue, f"{name}-there", states=["in_flight"])
    with pytest.raises(errors.SelectorError):
        client.move_messages(queue, f"{name}-there", where="n >")
    with pytest.raises(errors.RequestError, match="limit"):
        client.move_messages(queue, f"{name}-there", limit=-1)


def test_names_may_have_anything_in_them(client: Any, name: str) -> None:
    for text in NAMES:
        source, target = f"{name}{text}", f"{name}-to{text}"
        client.create(source)
        client.create(target)
        client.send(source, "x")
        assert client.move_messages(source, target).count == 1
