"""Frames that would take long to decode are refused before they are decoded."""

from __future__ import annotations

import time
import typing
from typing import Any

import msgspec
import pytest

from kombu_opendata.errors import InvalidMessage, OpenDataError, ProtocolError, RequestError
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import MAX_OPENED_BYTES, open_envelope
from kombu_opendata.protocol.framing import (
    LARGE,
    SMALL_FRAME_BYTES,
    FrameReader,
    Refused,
    client_messages,
    frame,
    frame_parts,
    large_frame,
    publish_frame,
)
from kombu_opendata.protocol.messages.message_base import MAX_ITEMS
from kombu_opendata.protocol.unique_key import UniqueKey


def read(message: Any) -> Any:
    """What a broker gets of a message."""
    (found,) = FrameReader(client_messages, bounded=True).feed(frame(message))
    return found


def headers(count: int) -> dict[str, str]:
    return {f"h{number}": "v" for number in range(count)}


def publish(count: int, body: bytes = b"e") -> m.Publish:
    return m.Publish(7, 1, "", "q", body, headers(count), 0, 1)


def send(messages: int, count: int) -> m.Send:
    return m.Send(7, 1, "", "q", [(b"e", headers(count), 0, 0, -1)] * messages, 1)


NESTED = {"x": [[0] * 1000] * 1000}


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (publish(256), InvalidMessage, "a message may have at most 255 headers"),
        (publish(300_000), InvalidMessage, "a message may have at most 255 headers"),
        (send(2, 256), InvalidMessage, "a message may have at most 255 headers"),
        (send(10_000, 26), InvalidMessage, "a batch may have at most 250000 headers in all, not 260000: send several"),
        (send(MAX_ITEMS + 1, 0), RequestError, "a list in this call has more than 100000 items"),
        (m.DeclareQueue(7, "q", True, False, False, NESTED, False), RequestError, "at most 262144 bytes, not 1003"),
        (m.Bind(7, "q", "e", "k", NESTED), RequestError, "number 9"),
        (m.Consume(7, 1, "t", "q", False, False, NESTED), RequestError, "number 11"),
        (m.GetResults(7, [b"r"] * (MAX_ITEMS + 1)), RequestError, "more than 100000 items"),
        (m.CommitJob(7, "j", [("u", 1, 1, 1, b"")] * (MAX_ITEMS + 1)), RequestError, "more than 100000 items"),
        (m.GetMetrics(7, ["q"] * (MAX_ITEMS + 1)), RequestError, "more than 100000 items"),
    ],
)
def test_too_much(message: Any, error: type[OpenDataError], text: str) -> None:
    refused = read(message)
    assert type(refused) is Refused
    assert refused.rid == 7
    assert type(refused.error) is error
    assert text in refused.error.text


def test_too_much_in_a_message_that_is_cut_off_before_its_end() -> None:
    damaged = bytearray(frame(m.WatchResults(-(1 << 31) - 1, [], 0))[4:])
    damaged[8:8] = b"\0\0\0\xdd"  # the list's length is read from other bytes now
    with pytest.raises(ProtocolError, match="does not decode"):
        list(FrameReader(client_messages, bounded=True).feed(len(damaged).to_bytes(4, "little") + damaged))


@pytest.mark.parametrize("message", [m.Settle(7, 0, 1, [("q", 1, 1)] * (MAX_ITEMS + 1)), publish(256)])
def test_too_much_in_a_message_that_has_no_answer(message: Any) -> None:
    if isinstance(message, m.Publish):
        message.rid = 0
    with pytest.raises(ProtocolError, match=r"more than 100000 items|at most 255 headers"):
        read(message)


@pytest.mark.parametrize(
    "message",
    [
        publish(255, bytes(5 * SMALL_FRAME_BYTES)),
        m.Publish(7, 1, "", "q", b"e", dict.fromkeys(headers(100), "x" * 60_000), 0, 1),
        send(10_000, 25),
        m.Settle(7, 0, 1, [("q", 1, 1)] * MAX_ITEMS),
        m.Resume(7, [(1, "q", number, 1) for number in range(2 * MAX_ITEMS)], []),
        m.StoreResult(7, b"name", 1, bytes(5 * SMALL_FRAME_BYTES), 0),
        m.DeclareQueue(7, "q", True, False, False, {"x": "y" * 60_000}, False),
        m.AskRoutes(7, "", "q", bytes(5 * SMALL_FRAME_BYTES), headers(3)),
    ],
)
def test_what_is_allowed_arrives(message: Any) -> None:
    assert read(message) == message


@pytest.mark.parametrize("size", [0, 100_000, SMALL_FRAME_BYTES + 1])
def test_a_frame_is_the_same_in_parts_and_in_its_place(size: int) -> None:
    message = m.Publish(7, 8, "", "queue", bytes(size), {"name": "text"}, 0, 1, 0, -1)
    assert b"".join(frame_parts(message)) == large_frame(message) == frame(message)


@pytest.mark.parametrize("size", [1 << 16, SMALL_FRAME_BYTES + 1])
@pytest.mark.parametrize("unique", [None, UniqueKey("key")])
def test_a_large_publish_has_the_frame_of_any_message(size: int, unique: UniqueKey | None) -> None:
    message = m.Publish(7, 8, "é", "queue" * 60, bytes(size), {"name": "text"}, 0, 1, 0, -1, True, False, unique)
    assert publish_frame(message) == frame(message)


def test_frames_behind_one_that_is_refused() -> None:
    frames = [publish(1), publish(256), publish(2), publish(100_000), publish(3)]
    found = list(FrameReader(client_messages, bounded=True).feed(b"".join(map(frame, frames))))
    assert [type(message) for message in found] == [m.Publish, Refused, m.Publish, Refused, m.Publish]


def settle(*ids: int, outcome: int = 0) -> m.Settle:
    return m.Settle(ids[-1], outcome, 1, [("q", id, 1) for id in ids])


def test_successive_settlements_of_a_client_are_joined() -> None:
    frames = [settle(1), settle(2, 3), publish(1), settle(4), settle(5, outcome=1), settle(6, outcome=1), publish(2)]
    joined = [settle(1, 2, 3), publish(1), settle(4), settle(5, 6, outcome=1), publish(2)]
    data = b"".join(map(frame, frames))
    assert list(FrameReader(client_messages, bounded=True).feed(data)) == joined
    assert list(FrameReader(client_messages, bounded=True).feed(data[:-1])) == joined[:-1]
    many: list[Any] = list(FrameReader(client_messages, bounded=True).feed(frame(settle(1)) * 40))
    assert [len(message.leases) for message in many] == [16, 16, 8]


@pytest.mark.parametrize("taken", range(1, 5))
def test_a_reader_that_is_closed_early_continues_with_the_next_message(taken: int) -> None:
    frames = [settle(1), settle(2), publish(1), settle(3), settle(4, outcome=1)]
    joined = [settle(1, 2), publish(1), settle(3), settle(4, outcome=1)]
    reader: FrameReader[Any] = FrameReader(client_messages, bounded=True)
    messages = reader.feed(b"".join(map(frame, frames)))
    found = [next(messages) for _ in range(taken)]
    messages.close()
    assert [*found, *reader.feed(b"")] == joined


def test_settlements_before_a_damaged_frame_are_returned() -> None:
    messages = FrameReader(client_messages, bounded=True).feed(frame(settle(1)) + frame(settle(2)) + b"\x01\0\0\0\xc1")
    assert next(messages) == settle(1, 2)
    with pytest.raises(ProtocolError):
        next(messages)


@pytest.mark.parametrize(
    "data", [b"\xc1" * 300_000, b"\x93" + bytes(300_000), b"\xdc\xff\xff" + bytes(300_000), b"\x90"]
)
def test_large_garbage(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(FrameReader(client_messages, bounded=True).feed(len(data).to_bytes(4, "little") + data))


def test_half_a_million_headers_are_not_decoded() -> None:
    """They would be 5 MB and a long time; what is counted is the processor's time, with a wide margin."""
    data = frame(publish(500_000))
    began = time.process_time()
    assert msgspec.msgpack.decode(data[4:])[0] == 3
    decoded = time.process_time()
    found: list[Any] = list(FrameReader(client_messages, bounded=True).feed(data))
    assert type(found[0]) is Refused
    assert time.process_time() - decoded < (decoded - began) / 5


def test_an_envelope_with_endless_headers_is_none() -> None:
    def envelope(fields: Any) -> bytes:
        return msgspec.msgpack.encode([b"b", "t", "e", fields, {}, "x", "k"])

    opened = open_envelope(envelope({"a": 1, "long": "x" * 65_535}))
    assert opened is not None
    assert opened[3]["a"] == 1
    for fields in (headers(200_000), {"a": [0] * (2 * MAX_OPENED_BYTES)}):
        assert open_envelope(envelope(fields)) is None
        assert open_envelope(envelope(fields), 1 << 30) is not None


def kinds() -> list[type]:
    """Every message of a client."""
    found: list[type] = []
    waiting: list[Any] = [m.ClientMessage]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type):
            found.append(kind)
        else:
            waiting += typing.get_args(kind)
    return found


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_list_of_a_message_that_may_be_large_has_a_limit(kind: type) -> None:
    shape = msgspec.inspect.type_info(kind)
    assert isinstance(shape, msgspec.inspect.StructType)
    limits = []
    for each in shape.fields:
        options = each.type.types if isinstance(each.type, msgspec.inspect.UnionType) else (each.type,)
        containers = (msgspec.inspect.ListType, msgspec.inspect.DictType, msgspec.inspect.CollectionType)
        limits += [getattr(option, "max_length", None) for option in options if isinstance(option, containers)]
    if shape.tag in LARGE:
        assert None not in limits
    elif kind is not m.Explain:
        assert MAX_ITEMS not in limits, "its list could not be that long: name it in LARGE"


def test_only_exactly_one_small_valid_frame_is_read_at_once() -> None:
    reader: FrameReader[Any] = FrameReader(client_messages, bounded=True)
    data = frame(publish(2))
    assert reader.single(data) == publish(2)
    assert reader.single(memoryview(data)) == publish(2)
    for other in (b"", data[:3], data[:-1], data + data, data + b"x", b"\x01\0\0\0\xc1", frame(publish(300))):
        assert reader.single(other) is None
        assert not reader.rest, "nothing was read"
    large = frame(publish(1, bytes(SMALL_FRAME_BYTES)))
    assert reader.single(large) is None, "it is checked first"
    assert FrameReader(client_messages).single(large) == publish(1, bytes(SMALL_FRAME_BYTES))
    assert list(reader.feed(data[:-1])) == []
    assert reader.single(data) is None, "a frame has begun"
    assert list(reader.feed(data[-1:])) == [publish(2)]
    reader.max_frame_bytes = len(data) - 5
    assert reader.single(data) is None
