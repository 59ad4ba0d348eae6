"""The checked-in bytes of an idempotency key's record."""

from __future__ import annotations

from kombu_opendata.storage.records import decode_any, idempotency, keys
from kombu_opendata.storage.records.idempotency import Sending, UniqueHold, Until

NAME = bytes.fromhex("e1bed05b40cf4ef67f46176b58fabf63")
VALUE = bytes.fromhex(
    "01020000000068e5cf8b010000000102030405060708090a0b0c0d0e0f020002000100610200c3a90000070000"
    "0000000000ffffffffffffffff"
)
SENDING = Sending((7, -1), 1_700_000_000_000, bytes(range(16)), (("a", "é"), ()))
UNIQUE_VALUE = bytes.fromhex(
    "02010000000068e5cf8b01000000000000000000000000000000000000010002000100610100620700000000000000"
    "02010300742d3100000000000000000500000002000000"
)
UNIQUE = Sending(
    (7,), 1_700_000_000_000, bytes(16), (("a", "b"),), UniqueHold(Until.DONE, True, "t-1", (0, (2 << 32) + 5))
)


def test_the_name_of_a_key() -> None:
    assert idempotency.name_of("x", "a.b", "order-1") == NAME
    assert keys.idempotency_key(NAME) == b"\x01\x1d" + NAME
    assert keys.parse(b"\x01\x1d" + NAME).hash == NAME
    assert (
        idempotency.name_of("", "q", "ab") != idempotency.name_of("q", "", "ab") != idempotency.name_of("", "qa", "b")
    )


def test_the_record() -> None:
    assert idempotency.encode(SENDING) == VALUE
    assert decode_any(keys.idempotency_key(NAME), VALUE) == SENDING


def test_the_record_of_a_unique_key() -> None:
    assert idempotency.unique_name_of("order-1", "x", "a.b") == bytes.fromhex("95144d8425045157596b676ed2fe553c")
    assert idempotency.encode(UNIQUE) == UNIQUE_VALUE
    assert decode_any(keys.idempotency_key(NAME), UNIQUE_VALUE) == UNIQUE
