"""Bad input: what no client of this package would send over the socket."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.framing import HELLO_MAX_FRAME_BYTES, PREAMBLE, frame

from ...support.broker import EmbeddedBroker
from ...support.neighbour import Neighbour
from ...support.raw import RawClient

MIB = 1 << 20


def test_a_frame_over_the_limit_before_the_hello(raw: RawClient) -> None:
    raw.send_bytes(struct.pack("<I", HELLO_MAX_FRAME_BYTES + 1))
    said = raw.last_word()
    assert said is not None
    assert said.code == "frame_too_large"
    assert said.values == {"size": HELLO_MAX_FRAME_BYTES + 1, "limit": HELLO_MAX_FRAME_BYTES}


def test_a_frame_over_the_limit_after_the_hello(raw: RawClient) -> None:
    limit = raw.hello().max_frame_bytes
    raw.send_bytes(struct.pack("<I", limit + 1) + b"begin of it")
    said = raw.last_word()
    assert said is not None
    assert said.code == "frame_too_large"
    assert f"a frame of {limit + 1} bytes exceeds the limit of {limit}" in said.text


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"ODQ\1\1\0\0\0", b"\x16\x03\x01\x02\x00", bytes(64)])
def test_something_else_than_the_protocol(neighbour: Neighbour, module_store_folder: Path, data: bytes) -> None:
    with RawClient(f"{module_store_folder}/broker.sock", preamble=data) as raw:
        received = b""
        while chunk := raw.sock.recv(4096):
            received += chunk
    assert b"protocol_error" in received
    assert (b"began with TLS" if data[0] == 0x16 else b"does not speak the opendata protocol") in received


NESTED = b"\x91" * 5000 + b"\x90"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\xff" * 100,
        b"\x93\x01",
        msgspec.msgpack.encode({"op": 1}),
        msgspec.msgpack.encode([999, 1]),
        msgspec.msgpack.encode(["publish", 1]),
        msgspec.msgpack.encode([4, 1, 7, True, False, False, {}, False]),
        msgspec.msgpack.encode([3, 1, 1, "", "q", b"e", {"a": 1}, 0, 0]),
        msgspec.msgpack.encode([3, 1, 1, "", "q", b"e", {}, 1 << 63, 0])[:-3],
        msgspec.msgpack.encode([11, 1]),
        msgspec.msgpack.encode([6, -(1 << 63), "q"]),
        b"\x93\x06\x01\xa2\xff\xfe",
        b"\x98\x04\x01\xa1q\xc3\xc2\xc2\x81\xa1a" + NESTED + b"\xc2",
        msgspec.msgpack.encode([1, 9, b"s" * 16, "again"]),
        msgspec.msgpack.encode([101, 1, "", 1, 1, 1, 1, 1]),
    ],
    ids=[
        "empty", "never used byte", "noise", "cut short", "a map", "unknown number", "no number", "wrong type",
        "header not text", "truncated", "fields missing", "negative number", "not UTF-8", "deep nesting",
        "second Hello", "a broker's message",
    ],
)  # fmt: skip
def test_garbage_in_a_frame(raw: RawClient, body: bytes) -> None:
    raw.hello()
    raw.declare("q")
    raw.send_frame(body)
    said = raw.last_word()
    assert said is not None
    assert said.code == "protocol_error"


@pytest.mark.parametrize("first", [[2], [15, 1, 0, 1, []], [17, 1]])
def test_a_first_message_that_is_no_hello(raw: RawClient, first: list[Any]) -> None:
    raw.send_array(*first)
    said = raw.last_word()
    assert said is not None
    assert "the first message must be a Hello" in said.text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"session": b"short"}, "a session id has 16 bytes"),
        ({"instance": "../etc"}, "instance name '../etc'"),
        ({"instance": ""}, "instance name ''"),
        ({"instance": "default.journal"}, "without '.journal'"),
        ({"name": "n" * 256}, "at most 255 bytes"),
    ],
)
def test_a_hello_that_can_not_be_welcomed(raw: RawClient, fields: dict[str, Any], text: str) -> None:
    answer = raw.call(m.Hello(0, **{"session": bytes(16), "name": "raw", **fields}))
    assert isinstance(answer, m.Failed)
    assert answer.code == "bad_request"
    assert text in answer.text
    assert raw.receive() is None


def test_half_a_frame_and_then_nothing(neighbour: Neighbour, module_store_folder: Path) -> None:
    for data in (PREAMBLE[:3], PREAMBLE, PREAMBLE + b"\x10\0\0\0half"):
        with RawClient(f"{module_store_folder}/broker.sock", preamble=data):
            pass


@pytest.mark.parametrize(
    "message",
    [
        m.Publish(0, 1, "", "q", b"e", {}, 256, 1),
        m.Publish(0, 1, "", "q", b"e", {}, -1, 1),
        m.Publish(0, 0, "", "q", b"e", {}, 0, 1),
        m.Publish(0, 1 << 63, "", "q", b"e", {}, 0, 1),
        m.Publish(0, 1, "", "q", b"e", {}, 0, 1 << 60),
        m.Publish(0, 1, "", "q", b"e", {}, 0, 1, -(1 << 40)),
        m.Publish(0, 1, "", "q", b"e", {}, 0, 1, 0, -2),
        m.Publish(0, 1, "", "q", b"e", {f"h{number}": "" for number in range(256)}, 0, 1),
        m.Publish(0, 1, "", "q", encode_envelope(b"", None, None, {"long": "x" * 65_536}, {}, "", "q"), {}, 0, 1),
        m.Publish(0, 1, "", "q", encode_envelope(b"", None, None, {"x" * 65_536: "long"}, {}, "", "q"), {}, 0, 1),
    ],
    ids=[
        "priority 256", "priority -1", "number 0", "number 2^63", "created", "visible", "ttl", "256 headers",
        "long header", "long header name",
    ],
)  # fmt: skip
def test_a_publish_that_no_client_of_ours_would_send(raw: RawClient, message: m.Publish) -> None:
    raw.hello()
    raw.declare("q")
    answer = raw.call(message)
    assert isinstance(answer, m.Failed), answer
    assert answer.code == "invalid_message"
    assert raw.publish("q", 7, b"good").queues == 1
    assert raw.declare("q").ready == 1


@pytest.mark.parametrize("depth", [21, 100, 900])
def test_arguments_that_are_nested_too_deeply(raw: RawClient, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    raw.hello()
    answer = raw.call(m.DeclareQueue(0, "deep", True, False, False, {"x": value}, False))
    assert isinstance(answer, m.Failed)
    assert answer.code == "bad_request"
    assert "nested more than 20 levels deep" in answer.text


@pytest.mark.parametrize("value", [b"bytes", float("nan"), "x" * 60_001], ids=["bytes", "nan", "long"])
def test_arguments_that_can_not_be_stored(raw: RawClient, value: Any) -> None:
    raw.hello()
    answer = raw.call(m.DeclareQueue(0, "odd", True, False, False, {"x": value}, False))
    assert isinstance(answer, m.Failed)
    assert answer.code == "bad_request"
    assert "the arguments of queue 'odd'" in answer.text


def test_stale_and_invented_leases_are_ignored(raw: RawClient) -> None:
    raw.hello()
    raw.declare("q")
    raw.publish("q", 1)
    raw.consume("q")
    lease = raw.wait_deliveries(1)[0].lease
    invented = [("q", lease[1], lease[2] + 1), ("q", 1 << 60, 1), ("q", -5, -5), ("nowhere", 1, 1)]
    raw.send(m.Settle(4, m.Outcome.ACK, 1, invented))
    raw.send(m.Settle(6, m.Outcome.REQUEUE, 1, [lease, lease]))
    again = raw.wait_deliveries(2)[1]
    assert (again.id, again.attempts) == (lease[1], 2)
    raw.send(m.Settle(7, m.Outcome.ACK, 99, [again.lease]))
    assert raw.declare("q").ready == 0


def test_a_client_that_asks_and_does_not_read(raw: RawClient, broker: EmbeddedBroker) -> None:
    """The broker stops reading its requests; otherwise the answers, gigabytes of them, would be in its memory."""
    raw.hello()
    for number in range(20):
        raw.call(m.DeclareQueue(0, f"flood-{number}", False, True, False, {}, False))
    requests = frame(m.ListBindings(1)) + frame(m.GetStatus(1)) * 1000
    raw.sock.settimeout(5)
    with pytest.raises(TimeoutError):
        flood(raw, requests)
    pages = int(Path(f"/proc/{broker.pid()}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 400 * MIB


def flood(raw: RawClient, requests: bytes) -> None:
    """Send the same again and again; a TimeoutError says that nothing was taken for a while."""
    for _ in range(1000):
        raw.sock.sendall(requests)
