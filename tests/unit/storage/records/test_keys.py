from __future__ import annotations

from collections.abc import Callable

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.keys import RecordKind

SESSION = bytes(range(16))


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        (keys.STORE_HEADER_KEY, "0110"),
        (keys.exchange_key("e"), "01116500"),
        (keys.binding_key("e", "q", ""), "01126500710000"),
        (keys.options_key("q"), "01137100"),
        (keys.producer_key(SESSION), "0114" + SESSION.hex()),
        (keys.session_key(SESSION), "0115" + SESSION.hex()),
        (keys.chunk_key(258, 3), "0116000000000000010200000003"),
        (keys.routes_block_key(258), "01290000000000000001"),
        (keys.JOURNAL_POSITION_KEY, "0118"),
        (keys.NEWEST_TIME_KEY, "012b"),
        (keys.result_key(b"k\x00"), "01196b010100"),
        (keys.result_expiry_key(258, b"k"), "011a00000000000001026b00"),
        (keys.chord_key(b"g"), "011e6700"),
        (keys.chord_part_key(b"g", 3, b"m"), "011f6700000000036d00"),
        (keys.large_value_key(b"\x01\x19k\x00"), "0130" + "0102" + "196b" + "0101" + "00"),
        (keys.value_chunk_key(b"\x01\x19k\x00", 3), "0131" + "0102" + "196b" + "0101" + "00" + "00000003"),
    ],
)
def test_our_own_keys(key: bytes, stored: str) -> None:
    assert key.hex() == stored
    keys.parse(key)


def test_bucket_0_has_no_suffix() -> None:
    for build in (keys.active_key, keys.done_key, keys.failed_key):
        assert build("q", 1) == build("q") + bytes(7) + b"\x01"
        assert build("q", 0) == build("q")


@pytest.mark.parametrize("build", [keys.payload_key, keys.metadata_key, keys.attempts_key, keys.routes_block_key])
@pytest.mark.parametrize("message_id", [-1, 0x6F << 56, 2**64])
def test_message_ids_are_bounded(build: Callable[[int], bytes], message_id: int) -> None:
    with pytest.raises(RequestError):
        build(message_id)


def test_payloads_sort_before_metadata() -> None:
    assert keys.payload_key(keys.MAX_MESSAGE_ID - 1) < keys.metadata_key(0)


def test_other_ranges() -> None:
    with pytest.raises(RequestError):
        keys.active_key("q", 2**64)
    with pytest.raises(RequestError):
        keys.active_key("q", -1)
    with pytest.raises(RequestError):
        keys.chunk_key(1, 2**32)
    with pytest.raises(RequestError):
        keys.session_key(bytes(15))
    with pytest.raises(RequestError):
        keys.active_key("\ud800")


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "01",
        "0101",
        "010100000000000001",  # a message id of 7 bytes
        "01010000000000000102ff",
        "0129006f000000000000",  # a block of message ids that are not allowed
        "01016f00000000000000",  # a payload with the first id that is not allowed
        "0101ff00000000000000",
        "01016f70656e6461746100",
        "010271",  # a name without its end
        "01027100" + "00" * 7,
        "01027100" + "00" * 8,  # a suffix for bucket 0
        "01027100" + "01" * 9,
        "01056f00000000000000",
        "0106",
        "0107",
        "010f00",
        "011000",
        "0112650071",
        "01126500710000ff",
        "0114" + "00" * 15,
        "0115" + "00" * 17,
        "01160000000000000102000000",
        "0119",
        "02010000000000000102",
    ],
)
def test_parse_refuses(stored: str) -> None:
    with pytest.raises(CorruptRecord) as caught:
        keys.parse(bytes.fromhex(stored))
    assert caught.value.values["key"] == bytes.fromhex(stored)
    assert stored in str(caught.value)


def test_sequence_block_is_no_active_record() -> None:
    assert keys.parse(keys.SEQ_BLOCK_KEY).kind is RecordKind.SEQ_BLOCK
    assert keys.parse(keys.active_key("")) == keys.ParsedKey(RecordKind.ACTIVE, "", 0)
    start, end = keys.kind_range(RecordKind.ACTIVE)
    assert not start <= keys.SEQ_BLOCK_KEY < end


def test_prefix_range() -> None:
    assert keys.prefix_range(b"\x01\x02") == (b"\x01\x02", b"\x01\x03")
    assert keys.prefix_range(b"\x01\xff\xff") == (b"\x01\xff\xff", b"\x02")
    for prefix in (b"", b"\xff\xff"):
        with pytest.raises(RequestError):
            keys.prefix_range(prefix)


def test_a_queues_range_has_its_buckets_and_no_other_queues() -> None:
    start, end = keys.prefix_range(keys.active_key("a"))
    found = [key for key in (keys.active_key("a", 2**64 - 1), keys.active_key("a")) if start <= key < end]
    assert len(found) == 2
    assert not start <= keys.active_key("ab") < end
    assert not start <= keys.active_key("a\x00") < end
