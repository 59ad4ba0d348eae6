"""Altering, pausing and resuming queues: what an operator sets is over what apps declare."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.protocol.queue_arguments import KNOWN
from kombu_opendata.queue_client.queue_options import QueueOptions
from tests.support.processes import wait_until
from tests.support.ticks import wait_tick

from ..conftest import Reach
from .conftest import options_of, wait_connected

KINDS = pytest.mark.parametrize("durable", [True, False])


# ---------------------------------------------------------------------- what is declared and what is in effect
@KINDS
def test_a_declaration_neither_fails_nor_undoes_it(client: Any, name: str, durable: bool) -> None:
    declared = QueueOptions(durable=durable, max_length=10, overflow="reject-publish")
    client.create(name, declared)
    client.alter(name, {"x-max-length": 2})
    client.create(name, declared)
    info = client.get_queue(name)
    assert info.arguments == {"x-max-length": 10, "x-overflow": "reject-publish"}
    assert info.overrides == {"x-max-length": 2}
    assert info.effective == {"x-max-length": 2, "x-overflow": "reject-publish"}
    client.send_batch(name, [1, 2])
    with pytest.raises(errors.QueueFull, match="its maximum is 2 messages"):
        client.send(name, 3)
    client.create(name, QueueOptions(durable=durable, max_length=2, overflow="reject-publish"))  # apps may follow
    with pytest.raises(errors.PreconditionFailed, match="x-max-length=10"):
        client.create(name, QueueOptions(durable=durable, max_length=3, overflow="reject-publish"))


@KINDS
def test_unset_null_and_reset(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable, max_length=1, message_ttl_seconds=60))
    altered = client.alter(name, {"x-max-length": None, "x-message-ttl": 1000, "x-retry-delay": 5})
    assert altered.after == {"x-message-ttl": 1000, "x-retry-delay": 5}
    assert altered.overrides["x-max-length"] is None
    client.send_batch(name, [1, 2])
    assert client.metrics(name).ready == 2
    altered = client.alter(name, unset=["x-message-ttl", "x-expires"])
    assert altered.after == {"x-message-ttl": 60_000, "x-retry-delay": 5}
    with pytest.raises(errors.PreconditionFailed, match="1 message exceed"):
        client.alter(name, reset=True)
    altered = client.alter(name, reset=True, force=True)
    assert (altered.overrides, altered.after) == ({}, {"x-message-ttl": 60_000, "x-max-length": 1})
    assert client.metrics(name).ready == 1


def test_every_argument_can_be_altered_or_says_why(client: Any, name: str) -> None:
    values: dict[str, Any] = {
        "x-message-ttl": 60_000, "x-expires": 60_000, "x-max-length": 10, "x-max-length-bytes": 100_000,
        "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
        "x-single-active-consumer": True, "x-delivery-limit": 3, "x-retry-delay": 100, "x-retry-max-delay": 1000,
        "x-done-retention": 60, "x-failed-retention": 60, "x-lease": 90, "x-filter": "a = 'b'",
        "x-filter-mode": "all", "x-partition-by": "tenant", "x-partition-weights": {"gold": 4, "*": 1},
        "x-partition-concurrency": 2, "x-partition-rate": "100/m", "x-concurrency": 5, "x-rate": "100/m:20",
    }  # fmt: skip
    client.create(name)
    client.create(f"{name}-memory", QueueOptions(durable=False))
    assert client.alter(name, values).after == values
    assert client.alter(name, reset=True).after == {}
    for argument in KNOWN:
        alone = {"x-retry-delay": 100, "x-dead-letter-exchange": "", "x-filter": "a = 'b'"}
        if argument.cannot_alter:
            value = argument.low or (argument.choices[0] if argument.choices else "x")
            with pytest.raises(errors.RequestError, match=argument.cannot_alter) as caught:
                client.alter(name, {argument.name: value})
            assert caught.value.argument == argument.name
        elif argument.stored_only:
            with pytest.raises(errors.RequestError, match="a queue that is not stored"):
                client.alter(f"{name}-memory", {argument.name: values[argument.name]})
        else:
            given = alone | {argument.name: values[argument.name]}
            assert client.alter(f"{name}-memory", given).after == given
            client.alter(f"{name}-memory", reset=True)


@pytest.mark.parametrize(
    ("arguments", "unset", "text"),
    [
        ({}, [], "say which arguments"),
        ({"x-max-length": "5"}, [], "x-max-length must be an integer from 0 up, not '5'"),
        ({"x-max-lenght": 5}, [], "did you mean 'x-max-length'"),
        ({"max-length": 5}, [], "did you mean 'x-max-length'"),
        ({}, ["x-max-lenght"], "did you mean 'x-max-length'"),
        ({"color": "red"}, [], "there is no argument 'color'"),
        ({"durable": False}, [], "the queue's nature"),
        ({"auto_delete": True}, [], "the queue's nature"),
        ({"x-max-length": 5}, ["x-max-length"], "both set and unset"),
        ({"x-retry-max-delay": 5}, [], "x-retry-max-delay must be given with an x-retry-delay"),
        ({"x-retry-delay": 5000}, [], "x-retry-max-delay must be 5000 or more, not 1000"),
        ({"x-filter-mode": "all"}, [], "give both"),
        ({"x-filter": "a = "}, [], "x-filter"),
        ({"x-filter": "a = '" + "x" * 70_000 + "'"}, [], "the limit is"),
        ({"x-dead-letter-routing-key": "x" * 300}, [], "the limit is 255"),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(
    client: Any, name: str, arguments: dict[str, Any], unset: list[str], text: str
) -> None:
    declared = {"x-retry-delay": 10, "x-retry-max-delay": 1000} if "x-retry-delay" in arguments else {}
    client.create(name, QueueOptions(arguments=declared))
    with pytest.raises(errors.RequestError, match=text):
        client.alter(name, arguments, unset=unset)
    assert client.get_queue(name).effective == declared


def test_a_queue_that_is_not_there(client: Any, name: str) -> None:
    for call in (client.alter, client.pause, client.resume):
        with pytest.raises(errors.NotFound):
            call(name, **({"reset": True} if call == client.alter else {}))


@pytest.mark.parametrize("odd", ["a/b", 'it\'s "quoted"', "queue 🐘", "x-y-1"])
def test_names(client: Any, name: str, odd: str) -> None:
    queue = f"{name} {odd}"
    client.create(queue)
    assert client.alter(queue, {"x-filter": "a = 'b'"}).after == {"x-filter": "a = 'b'"}
    assert client.pause(queue).deliveries
    assert client.get_queue(queue).paused
    assert client.resume(queue).changed


# ---------------------------------------------------------------------- messages that wait already
@KINDS
def test_a_lower_maximum_drops_only_by_force(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.create(f"{name}-dead")
    client.send_batch(name, list(range(10)))
    client.alter(name, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"})
    with pytest.raises(errors.PreconditionFailed, match="7 messages exceed the new maximum and become dead") as caught:
        client.alter(name, {"x-max-length": 3})
    assert caught.value.values["dropped"] == 7
    would = client.alter(name, {"x-max-length": 3}, force=True, dry_run=True)
    assert (would.counts["dropped"], would.counts["waiting"]) == (7, 10)
    assert client.metrics(name).ready == 10
    assert client.get_queue(name).overrides.keys() == {"x-dead-letter-exchange", "x-dead-letter-routing-key"}
    did = client.alter(name, {"x-max-length": 3}, force=True)
    assert did == would
    assert [message.body for message in client.read(name, 30, 20)] == [7, 8, 9]
    assert [message.body for message in client.read_with_poll(f"{name}-dead", 30, 7, max_poll_seconds=20)]


@KINDS
def test_a_lower_maximum_of_a_queue_that_refuses(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable, overflow="reject-publish"))
    client.send_batch(name, list(range(10)))
    did = client.alter(name, {"x-max-length": 3})
    assert (did.counts["dropped"], did.counts["excess"]) == (0, 7)
    with pytest.raises(errors.QueueFull):
        client.send(name, 1)
    wait_tick(client, name)  # which drops what exceeds a maximum
    with pytest.raises(errors.PreconditionFailed, match="7 messages exceed"):
        client.alter(name, {"x-overflow": "drop-head"})
    assert [message.body for message in client.read(name, 30, 20)] == list(range(10))


@KINDS
def test_bytes_are_counted_from_then_on(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send_batch(name, ["x" * 1000] * 20)
    would = client.alter(name, {"x-max-length-bytes": 10_000}, force=True, dry_run=True)
    assert 10 < would.counts["dropped"] < 15
    did = client.alter(name, {"x-max-length-bytes": 10_000}, force=True)
    assert client.metrics(name).ready == 20 - did.counts["dropped"]
    client.send(name, "y" * 1000)
    assert client.metrics(name).ready == 20 - did.counts["dropped"]
    client.alter(name, unset=["x-max-length-bytes"])
    client.send_batch(name, ["z" * 1000] * 5)
    assert client.metrics(name).ready == 25 - did.counts["dropped"]


@KINDS
def test_a_ttl_counts_for_new_messages(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send(name, "old")
    did = client.alter(name, {"x-message-ttl": 1})
    assert did.notes == ["1 message that wait keep their deadlines: x-message-ttl counts for new messages"]
    client.send(name, "new")
    wait_until(lambda: client.metrics(name).counts["expired"] == 1, 10, "the end of the new message")
    assert [message.body for message in client.read(name, 30, 5)] == ["old"]


@KINDS
def test_a_filter_leaves_what_waits(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable, filter=f"tenant = '{name}'", filter_mode="all"))
    client.send_batch(name, [1, 2, 3], [{"tenant": name}] * 3)
    did = client.alter(name, {"x-filter": f"tenant = '{name}-other'"})
    assert (did.counts["examined"], did.counts["unmatched"]) == (3, 3)
    assert "3 do not match the queue's filter or bindings any more; they stay" in did.notes[0]
    with pytest.raises(errors.Unroutable):
        client.send(name, 4, {"tenant": name})
    client.send(name, 5, {"tenant": f"{name}-other"})
    assert [message.body for message in client.read(name, 30, 9)] == [1, 2, 3, 5]
    client.alter(name, {"x-filter": None, "x-filter-mode": None})
    client.send(name, 6)


def test_a_shorter_retention_deletes_only_by_force(client: Any, name: str) -> None:
    client.create(name)
    client.send_batch(name, [1, 2, 3])
    client.reject_many(name, client.read(name, 30, 2))
    client.archive_many(name, client.read(name, 30, 1))
    shorter = {"x-failed-retention": 1, "x-done-retention": 1}  # the shortest ones, of a second

    def both_are_over() -> bool:
        counts = client.alter(name, shorter, force=True, dry_run=True).counts
        return (counts["done"], counts["failed"]) == (1, 2)

    wait_until(both_are_over, 60, "the end of a second")
    with pytest.raises(errors.PreconditionFailed, match="2 failed messages are past the new retention") as caught:
        client.alter(name, shorter)
    assert (caught.value.values["done"], caught.value.values["failed"]) == (1, 2)
    client.alter(name, {"x-failed-retention": 1}, force=True)


def test_attempts_delays_and_dead_letters(client: Any, name: str) -> None:
    client.create(name)
    client.create(f"{name}-dead")
    client.send_batch(name, [1, 2])
    client.alter(name, {"x-delivery-limit": 1, "x-retry-delay": 60_000})
    client.reject_many(name, client.read(name, 30), requeue=True)
    assert client.metrics(name).failed == 1
    client.alter(name, {"x-delivery-limit": -1})
    client.reject_many(name, client.read(name, 30), requeue=True)
    assert client.metrics(name).delayed == 1


# ---------------------------------------------------------------------- pausing
@KINDS
def test_a_paused_queue_gives_nothing_and_takes_publishes(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send_batch(name, [1, 2, 3], [{"g": "a"}] * 3)
    (held,) = client.read(name, 30)
    paused = client.pause(name)
    assert (paused.deliveries, paused.publishes, paused.changed) == (True, False, True)
    again = client.pause(name)
    assert (again.since, again.changed) == (paused.since, False)
    assert client.read(name, 30, 5) == client.read_with_poll(name, 30, 5, max_poll_seconds=0.2) == []
    assert client.pop(name) == client.read(name, 30, 5, where="g = 'a'") == []
    client.archive(name, held)
    client.send(name, 4)
    assert (client.metrics(name).ready, client.metrics(name).paused) == (3, True)
    info = client.get_queue(name)
    assert (info.paused, info.publishes_paused, info.paused_at) == (True, False, paused.since)
    assert client.resume(name).changed
    assert not client.resume(name).changed
    assert [message.body for message in client.read(name, 30, 5)] == [2, 3, 4]


@KINDS
def test_publishes_are_refused_in_all_queues(client: Any, name: str, durable: bool) -> None:
    for queue in (name, f"{name}-other"):
        client.create(queue, QueueOptions(durable=durable))
        client.bind(queue, "amq.fanout")
    try:
        client.pause(name, publishes=True)
        for call in (
            partial(client.send, name, 1),
            partial(client.send_batch, name, [1, 2]),
            partial(client.send, name, 1, delay=60),
            partial(client.publish, 1, exchange="amq.fanout"),
        ):
            with pytest.raises(errors.QueuePaused, match="takes no publishes") as caught:
                call()
            assert (caught.value.queue, isinstance(caught.value, errors.RetryLater)) == (name, True)
        assert client.metrics(f"{name}-other").length == client.metrics(name).length == 0
        assert client.pause(name).publishes  # pausing again resumes nothing
        part = client.resume(name, publishes_only=True)
        assert (part.deliveries, part.publishes, part.changed) == (True, False, True)
        client.publish(1, exchange="amq.fanout")
        assert client.read(name, 30) == []
        assert len(client.read(f"{name}-other", 30)) == 1
    finally:
        client.delete_queue(name)
        client.delete_queue(f"{name}-other")


@pytest.mark.parametrize("how", [{}, {"where": "a = 'b'"}, {"header": "a"}])
def test_a_read_that_waits_gets_its_message_after_the_resume(
    client: Any, name: str, how: dict[str, Any], reach: Reach
) -> None:
    client.create(name, QueueOptions(partition_by="a"))
    client.pause(name)
    client.send(name, 1, {"a": "b"})
    with QueueClient(reach.url, name="waiting", **options_of(reach)) as other, ThreadPoolExecutor() as pool:
        read: Any = other.read_grouped if "header" in how else other.read_with_poll
        reading = pool.submit(read, name, 30, max_poll_seconds=60, **how)
        wait_connected(client, "waiting")
        assert not reading.done()
        client.resume(name)
        assert [message.body for message in reading.result(30)] == [1]


def test_dead_letters_come_into_a_paused_queue_and_redrives_do_not(client: Any, name: str) -> None:
    client.create(f"{name}-dead")
    client.create(name, QueueOptions(dead_letter_exchange="", dead_letter_routing_key=f"{name}-dead"))
    client.pause(f"{name}-dead", publishes=True)
    client.send(name, 1)
    client.reject_many(name, client.read(name, 30))
    wait_until(lambda: client.metrics(f"{name}-dead").ready == 1, 10, "the dead letter")
    client.pause(name, publishes=True)
    with pytest.raises(errors.QueuePaused):
        client.redrive(name)
    client.resume(name)
    assert client.redrive(name).moved == 1


def test_a_replay_waits_for_the_resume(client: Any, name: str) -> None:
    client.create(name)
    client.send_batch(name, list(range(5)))
    client.create(f"{name}-copy", QueueOptions(filter=f"routing_key = '{name}'"))
    client.pause(f"{name}-copy", publishes=True)
    client.replay(f"{name}-copy", "first")
    wait_until(lambda: client.replay_progress([f"{name}-copy"])[0]["waiting"], 20, "the replay, which waits")
    assert client.metrics(f"{name}-copy").length == 0
    client.resume(f"{name}-copy")
    wait_until(lambda: client.metrics(f"{name}-copy").ready == 5, 20, "the five messages")
