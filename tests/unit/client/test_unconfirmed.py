"""A message that is published again after an uncertain refusal gets its first number."""

from __future__ import annotations

from typing import Any

from kombu_opendata.client.session.session import ClientSession
from kombu_opendata.client.session.unconfirmed import PublishInFlight
from kombu_opendata.errors import FailedPublish, QueueFull, StoreStalled
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.messages import Failed, Publish, PublishConfirm


def message(body: bytes, timestamp: int = 1) -> Publish:
    envelope = encode_envelope(body, "text/plain", "utf-8", {"a": 1}, {"timestamp": timestamp}, "", "q")
    return Publish(0, 0, "", "q", envelope, {}, 0, timestamp, 0, -1, False, False)


def publish(session: ClientSession, body: bytes, *, error: str = "", timestamp: int = 1, **values: Any) -> int:
    """Publish a message and receive the answer; returns its number."""
    sent = message(body, timestamp)
    session.start_publish(sent)
    session.receive([Failed(sent.rid, error, "text", values) if error else PublishConfirm(sent.rid, 1, 1)])
    session.answers.pop(sent.rid)
    return sent.seq


def test_the_same_message_keeps_its_number_until_it_is_stored() -> None:
    session = ClientSession(bytes(16))
    assert publish(session, b"x", error=StoreStalled.code, uncertain=True) == 1
    assert publish(session, b"y") == 2
    assert publish(session, b"x", error=StoreStalled.code, uncertain=False, timestamp=2) == 1
    assert publish(session, b"x", timestamp=3) == 1
    assert publish(session, b"x") == 3  # another one


def test_other_refusals_are_certain() -> None:
    session = ClientSession(bytes(16))
    assert publish(session, b"x", error=StoreStalled.code, uncertain=False) == 1
    assert publish(session, b"x", error=QueueFull.code) == 2
    assert publish(session, b"x") == 3


def test_a_number_that_the_broker_has_forgotten_is_not_used_again() -> None:
    session = ClientSession(bytes(16))
    publish(session, b"x", error=StoreStalled.code, uncertain=True)
    for _ in range(1000):
        last = publish(session, b"y")
    assert publish(session, b"x") == last + 1


def test_a_forgotten_number_behind_a_newer_one_is_not_used_again() -> None:
    session = ClientSession(bytes(16))
    bodies = [b"x", b"y", *(b"%d" % number for number in range(50)), b"x"]
    in_flight = [message(body) for body in bodies]
    for sent in in_flight:
        session.start_publish(sent)
    session.receive([Failed(sent.rid, StoreStalled.code, "text", {"uncertain": True}) for sent in in_flight])
    while (last := publish(session, b"z")) < 1040:
        pass
    assert publish(session, b"y") == last + 1


def test_pipelined_publishes_are_noted_too() -> None:
    session = ClientSession(bytes(16))
    failures: list[FailedPublish] = []
    sent = message(b"x")
    session.start_publish(sent)
    session.in_flight.add(sent.rid, PublishInFlight(1, "", "q", "", "", failures))
    session.receive([Failed(sent.rid, StoreStalled.code, "text", {"uncertain": True})])
    assert isinstance(failures[0].error, StoreStalled)
    assert publish(session, b"x") == sent.seq
