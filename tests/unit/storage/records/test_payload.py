from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, payload

KEY = keys.payload_key(1)


def test_inline_takes_65535_bytes_and_no_more() -> None:
    body = bytes(65535)
    assert payload.decode(KEY, payload.encode_inline(body)) == body
    with pytest.raises(RequestError):
        payload.encode_inline(bytes(65536))


@pytest.mark.parametrize("value", [b"", b"\x00\x00\x00", b"\x03\x00\x00", b"\x01\x01\x00", b"\x01\x00\x00x"])
def test_decode_refuses(value: bytes) -> None:
    with pytest.raises(CorruptRecord):
        payload.decode(KEY, value)


def test_chunks_uri() -> None:
    assert payload.chunks_uri(2, 70000) == "chunks:2:70000"
    assert payload.parse_chunks_uri("chunks:2:70000") == (2, 70000)
    for uri in (
        "s3://bucket/x",
        "chunks:",
        "chunks:0:1",
        "chunks:-1:1",
        "chunks:1:1 ",
        "chunks:٣:1",
        "chunks:1:" + "9" * 5000,
    ):
        assert payload.parse_chunks_uri(uri) is None
    for count, size in ((0, 0), (2**32, 1), (1, -1)):
        with pytest.raises(RequestError):
            payload.chunks_uri(count, size)
