"""The metadata headers that the broker derives from envelopes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.errors import InvalidMessage
from kombu_opendata.protocol import envelope as protocol
from kombu_opendata.protocol.envelope import broker_headers, encode_envelope, metadata_headers

VALUES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=20)
HEADERS = st.dictionaries(
    st.text(max_size=10) | st.sampled_from(["argsrepr", "exchange", "priority"]),
    VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=3), VALUES, max_size=2),
    max_size=8,
)


def permit(_exchange: str, _key: str) -> bool:
    return True


def refuse(_exchange: str, _key: str) -> bool:
    return False


@given(headers=HEADERS, padding=st.sampled_from([0, 3000]))
def test_the_broker_derives_what_a_client_makes(headers: dict[str, Any], padding: int) -> None:
    if padding:
        headers["nested"] = ["x" * padding]
    made = encode_envelope(b"body", "application/json", "utf-8", headers, {}, "x", "k")
    texts, envelope = broker_headers(made, "x", "k", 7, refuse)
    assert texts == metadata_headers(headers, "x", "k", 7, "application/json")
    assert envelope is made


@pytest.mark.parametrize("padding", ["", "x" * 3000])
def test_the_address_is_that_of_the_publish(padding: str) -> None:
    forged = {"exchange": "theirs", "routing_key": "theirs", "priority": 9, "task": "safe", "pad": padding}
    made = encode_envelope(b"body", None, None, forged, {"priority": 9}, "theirs", "theirs")
    texts, envelope = broker_headers(made, "own", "key", 0, refuse)
    about = {name: texts[name] for name in ("exchange", "routing_key", "priority", "task")}
    assert about == {"exchange": "own", "routing_key": "key", "priority": "0", "task": "safe"}
    assert protocol.decode(envelope)[5:] == ("own", "key")
    assert protocol.decode(envelope)[:5] == protocol.decode(made)[:5]
    assert broker_headers(made, "own", "key", 0, permit) == (texts, made)


def test_bytes_that_are_no_envelope_have_the_own_headers_of_the_broker_only() -> None:
    own = {"exchange": "x", "routing_key": "k", "priority": "0"}
    for data in (b"", b"\xc1", msgspec.msgpack.encode([b"b", None, None, {}, {}, "x"])):
        assert broker_headers(data, "x", "k", 0, refuse) == (own, data)


@pytest.mark.parametrize("padding", [0, 3000])
def test_what_only_a_consumer_can_decode_is_refused(padding: int) -> None:
    """The key is a UUID for consumers; the broker can't decode it, so it would see no header and no property."""
    encode = msgspec.msgpack.encode
    key = encode(msgspec.msgpack.Ext(5, b"c74d96ae-c452-4656-89d4-8f5b252f3b63"))
    claims = encode("task") + encode("danger") + encode("user_id") + encode("other")
    fields = msgspec.Raw(b"\x83" + claims + key + encode(1))
    before, after = (b"b" * padding, None, None), ("theirs", "theirs")
    headers, properties = encode((*before, fields, {}, *after)), encode((*before, {}, fields, *after))
    assert protocol.decode(headers)[3]["task"] == "danger"
    with pytest.raises(InvalidMessage, match="headers can't be decoded"):
        broker_headers(headers, "x", "k", 0, refuse)
    assert protocol.decode(properties)[4]["user_id"] == "other"
    with pytest.raises(InvalidMessage, match="properties can't be decoded"):
        protocol.open_properties(properties, (b"user_id",))
    assert protocol.open_properties(properties, (b"absent",)) == {}


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        ({f"h{number}": "v" for number in range(256)}, "259 headers"),
        ({f"h{number}": None for number in range(1001)}, "more than 1000 headers"),
        ({"x": [0] * (1 << 20)}, "the limit is 1048576"),
        ({"long": "x" * 65_536}, "65536 bytes"),
    ],
)
def test_headers_that_cant_be_stored_or_take_long_to_decode_are_refused(headers: dict[str, Any], what: str) -> None:
    made = encode_envelope(b"body", None, None, headers, {}, "x", "k")
    with pytest.raises(InvalidMessage, match=what):
        broker_headers(made, "x", "k", 0, refuse)


@pytest.mark.parametrize("array", [b"\x97", b"\xdc\0\x07", b"\xdd\0\0\0\x07"])
def test_a_large_body_is_never_searched_for_its_end(array: bytes) -> None:
    """A body of many items would take as long as decoding it; a text or bytes say how long they are."""
    encode, rest = msgspec.msgpack.encode, b"\xc0\xc0\x81\xa1h\xa1v\x80\xa1x\xa1k"
    for body in (b"b" * 70_000, "t" * 70_000, b"b" * 300, "t" * 20, b"b" * 3000):
        pad = b"\x82\xa3pad" + encode("p" * 3000) + b"\xa1h\xa1v"
        for headers in (b"\x81\xa1h\xa1v", pad):
            made = array + encode(body) + b"\xc0\xc0" + headers + b"\x80\xa1x\xa1k"
            texts, _envelope = broker_headers(made, "x", "k", 0, refuse)
            assert texts["h"] == "v"
    with pytest.raises(InvalidMessage, match="must be bytes or text"):
        broker_headers(array + encode([0] * 3000) + rest, "x", "k", 0, refuse)
    made = array + encode(b"") + b"\xc0\xc0\x80" + encode({"p": [0] * (2 << 20)}) + b"\xa1x\xa1k"
    with pytest.raises(InvalidMessage, match="the limit is 1048576"):
        broker_headers(made, "x", "k", 0, refuse)


def test_headers_that_are_nested_too_deeply_for_the_broker_are_refused() -> None:
    """A consumer with more room on its stack might decode them, and see what no filter saw."""
    nested = b"\x97\xc4\x01b\xc0\xc0" + b"\x81\xa1a" * 100_000 + b"\xc0\x80\xa1x\xa1k"
    with pytest.raises(InvalidMessage, match="nested too deeply"):
        broker_headers(nested, "x", "k", 0, refuse)


@pytest.mark.parametrize(
    ("headers", "trace_id"),
    [
        (
            {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
            "0af7651916cd43dd8448eb211c80319c",
        ),
        ({"traceparent": "short"}, None),
        ({"traceparent": 7}, None),
        ({"traceparent": f"00-{'0af7651916cd43dd' * 2}"}, "0af7651916cd43dd" * 2),
        ({"traceparent": f"00-{'0af7651916cd43dg' * 2}-b7ad6b7169203331-01"}, None),
        ({"traceparent": f"00-{'0AF7651916CD43DD' * 2}-b7ad6b7169203331-01"}, None),
        ({"traceparent": f"00-{'٠١٢٣' * 8}-b7ad6b7169203331-01"}, None),
        ({"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"}, None),
        ({"trace_id": "own", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "own"),
        ({}, None),
    ],
)
def test_the_trace_is_a_header_of_its_own(headers: dict[str, Any], trace_id: str | None) -> None:
    assert metadata_headers(headers, "", "q", 0, None).get("trace_id") == trace_id
