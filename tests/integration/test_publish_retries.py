"""Several publishes in flight and a connection that breaks: what is sent again is stored once, and a refusal stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.messages import queue_messages as q

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import declare, take_bodies
from ..support.raw import RawClient, publish

pytestmark = pytest.mark.contract(1)


def summary(answer: Any) -> str | int:
    """How many queues got it, -1 where it was stored before, or the error."""
    return answer.code if isinstance(answer, m.Failed) else int(answer.queues)


@pytest.mark.parametrize("killed", [False, True], ids=["same broker", "after a kill"])
def test_a_refused_publish_is_not_taken_for_stored_because_later_ones_are(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path, killed: bool
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    channel.queue_declare("passing", durable=False, auto_delete=False)
    requests: list[tuple[str, int, dict[str, Any]]] = [
        ("q", 1, {}),
        ("nowhere", 2, {"mandatory": True}),
        ("q", 3, {}),
        ("passing", 4, {}),
        ("nowhere", 5, {}),
        ("q", 6, {}),
    ]
    first = [1, "unroutable", 1, 1, 0, 1]

    def send_all(raw: RawClient) -> list[str | int]:
        rids = [raw.send(publish(queue, seq, b"%d" % seq, **fields)) for queue, seq, fields in requests]
        return [summary(raw.answer(rid)) for rid in rids]

    path = f"{store_folder}/broker.sock"
    with RawClient(path) as raw:
        raw.hello()
        assert send_all(raw) == first
    if killed:
        broker.kill()
        channel.queue_declare("passing", durable=False, auto_delete=False)
    with RawClient(path) as again:
        assert again.hello(raw.session, resume=True).last_seq == 6
        repeated = send_all(again)
    applied = -1
    passing = 1 if killed else applied  # what was in a transient queue went with the broker
    assert repeated == [applied, "unroutable", applied, passing, 0, 1]
    assert (channel._size("q"), channel._size("passing")) == (3, 1)


def test_a_prefix_that_was_applied_is_not_applied_again(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as raw:
        raw.hello()
        last = [raw.publish("q", seq) for seq in (1, 2, 3)][-1]
    broker.kill()
    assert channel._size("q") == 3
    with RawClient(path) as again:
        again.hello(raw.session, resume=True)
        answers = [again.publish("q", seq) for seq in range(1, 6)]
    assert [summary(answer) for answer in answers] == [-1, -1, 1, 1, 1]
    assert answers[2].message_id == last.message_id < answers[3].message_id < answers[4].message_id
    assert channel._size("q") == 5


def test_a_send_that_was_applied_is_answered_with_its_ids_and_queues(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    message: q.Outgoing = (b"envelope", {}, 0, 0, -1)
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as raw:
        raw.hello()
        first = raw.answer(raw.send(q.Send(0, 1, "", "q", [message] * 3, 1, to_queue=True)))
    broker.kill()
    assert channel._size("q") == 3
    with RawClient(path) as again:
        again.hello(raw.session, resume=True)
        repeated = again.answer(again.send(q.Send(0, 1, "", "q", [message] * 3, 1, to_queue=True)))
    assert (repeated.ids, repeated.queues, repeated.repeated) == (first.ids, first.queues, False)
    assert channel._size("q") == 3


def test_a_send_that_was_applied_is_answered_so_when_its_queue_is_gone(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    declare(channel, "all", arguments={"x-filter": "tenant = 'a'"})
    envelope = encode_envelope(b"body", None, None, {"tenant": "a"}, {}, "", "q")
    send = q.Send(0, 1, "", "q", [(envelope, {}, 0, 0, -1)], 1, to_queue=True)
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as raw:
        raw.hello()
        first = raw.answer(raw.send(send))
    broker.kill()
    channel.queue_delete("q")
    with RawClient(path) as again:
        again.hello(raw.session, resume=True)
        repeated = again.answer(again.send(send))
    assert (repeated.ids, repeated.queues) == (first.ids, [["all"]])
    assert channel._size("all") == 1


def test_what_was_refused_once_may_be_stored_when_it_is_sent_again(
    connect: Callable[..., Any], broker_url: str, store_folder: Path
) -> None:
    from kombu_opendata.transport.kombu_message import encode

    channel = connect(broker_url).channel()
    declare(channel, "q")
    bodies = [encode(text, None, None, {}, {}, "", "") for text in ("one", "two")]
    with RawClient(f"{store_folder}/broker.sock") as raw:
        raw.hello()
        assert summary(raw.publish("later", 1, bodies[0], mandatory=True)) == "unroutable"
        assert summary(raw.publish("q", 2, bodies[1])) == 1
        declare(channel, "later")
        assert summary(raw.publish("later", 1, bodies[0], mandatory=True)) == 1
        assert summary(raw.publish("later", 1, bodies[0], mandatory=True)) == -1
    assert (take_bodies(channel, "later"), take_bodies(channel, "q")) == (["one"], ["two"])
