"""Bad input: frames that would keep the broker busy for seconds. Their sender is told; the others notice nothing."""

from __future__ import annotations

import msgspec

from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.messages import queue_messages as q

from ...support.raw import RawClient


def test_a_publish_with_three_million_headers(raw: RawClient) -> None:
    raw.hello()
    raw.declare("q")
    answer = raw.publish("q", 1, headers={f"h{number}": "v" for number in range(3_000_000)})
    assert isinstance(answer, m.Failed)
    assert answer.code == "invalid_message"
    assert answer.text == "a message may have at most 255 headers (up to five of them are the broker's own)"
    assert raw.publish("q", 1, b"good").queues == 1
    assert raw.declare("q").ready == 1


def test_a_batch_with_two_million_headers(raw: RawClient) -> None:
    raw.hello()
    raw.declare("q")
    headers = {f"h{number}": "v" for number in range(200)}
    answer = raw.call(q.Send(0, 1, "", "q", [(b"e", headers, 0, 0, -1)] * 10_000, 1))
    assert isinstance(answer, m.Failed)
    assert answer.code == "invalid_message"
    assert "at most 250000 headers in all, not 2000000" in answer.text
    assert raw.declare("q").ready == 0


def test_a_declaration_of_megabytes(raw: RawClient) -> None:
    raw.hello()
    answer = raw.call(m.DeclareQueue(0, "q2", True, False, False, {"x": [{"a": "b"}] * 500_000}, False))
    assert isinstance(answer, m.Failed)
    assert answer.code == "bad_request"
    assert "may have at most 262144 bytes" in answer.text
    assert raw.publish("q2", 1, mandatory=True).code == "unroutable"


def test_settlements_without_end(raw: RawClient) -> None:
    raw.hello()
    raw.send(m.Settle(200_000, m.Outcome.ACK, 1, [("q", 1, 1)] * 200_000))
    said = raw.last_word()
    assert said is not None
    assert (said.code, "more than 100000 items" in said.text) == ("protocol_error", True)


def test_headers_that_take_long_to_decode_are_refused(raw: RawClient) -> None:
    raw.hello()
    raw.declare("q")
    for seq, headers in enumerate(({"x": [0] * 2_000_000}, {f"h{number}": None for number in range(2000)}), 1):
        envelope = msgspec.msgpack.encode([b"b", "t", "e", headers, {}, "", "q"])
        answer = raw.call(m.Publish(0, seq, "", "q", envelope, {}, 0, 1))
        assert (type(answer), answer.code) == (m.Failed, "invalid_message")


def test_a_headers_exchange_goes_by_the_envelope_whatever_is_nested_in_it(raw: RawClient) -> None:
    raw.hello()
    raw.declare("q")
    raw.call(m.DeclareExchange(0, "e", "headers", True, False, {}, False))
    raw.call(m.Bind(0, "q", "e", "", {"x-match": "all", "kind": "bill", "x": None}))
    for seq, kind in enumerate(("bill", "other"), 1):
        envelope = msgspec.msgpack.encode([b"b", "t", "e", {"kind": kind, "x": [0] * 200_000}, {}, "e", ""])
        answer = raw.call(m.Publish(0, seq, "e", "", envelope, {"kind": "bill"}, 0, 1))
        assert (type(answer), answer.queues) == (m.PublishConfirm, int(kind == "bill"))
