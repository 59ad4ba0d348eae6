from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.storage.records import decode_any, field_types, keys, payload, results
from kombu_opendata.storage.records.kinds import ParsedKey
from kombu_opendata.storage.records.payload import encode_uri
from kombu_opendata.storage.records.payload_places import EnvelopePlace

RESULT = results.Result(results.FINAL, 1769385600000, b"\x00value\xff")
CHORD = results.Chord(0, -1, 2, b"header")
PLACE = EnvelopePlace("segments/0123456789abcdef-7.segment", 4096, 65_536, 0xCAFE, 300)


@pytest.mark.parametrize(
    ("key", "value", "stored", "decoded"),
    [
        (
            keys.result_key(b"k"),
            results.encode_result(RESULT),
            "010200a499f79b01000007000000" + "0076616c7565ff",
            RESULT,
        ),
        (keys.result_expiry_key(7, b"k"), field_types.VERSION_ONLY, "01", None),
        (
            keys.chord_key(b"g"),
            results.encode_chord(CHORD),
            "01" + "00" * 8 + "ff" * 8 + "02" + "00" * 7 + "06000000" + "686561646572",
            CHORD,
        ),
        (
            keys.chord_key(b"g"),
            results.encode_chord(CHORD._replace(body=b"id")),
            "02" + "00" * 8 + "ff" * 8 + "02" + "00" * 7 + "06000000" + "686561646572" + "020000006964",
            CHORD._replace(body=b"id"),
        ),
        (
            keys.chord_key(b"g"),
            results.encode_chord(CHORD._replace(members=(b"one", b"two"))),
            "03"
            + "00" * 8
            + "ff" * 8
            + "02"
            + "00" * 7
            + "06000000"
            + "686561646572"
            + "00000000"
            + "02000000"
            + "030000006f6e65"
            + "0300000074776f",
            CHORD._replace(members=(b"one", b"two")),
        ),
        (keys.chord_part_key(b"g", 1, b"m"), results.encode_part(b"part"), "010400000070617274", b"part"),
        (
            keys.large_value_key(keys.result_key(b"k")),
            results.encode_large_value(payload.Chunks(3, 2**21 + 1)),
            "01" + "03000000" + "0100200000000000",
            payload.Chunks(3, 2**21 + 1),
        ),
        (
            keys.large_value_key(keys.result_key(b"k")),
            results.encode_large_value(PLACE),
            "024500" + b"segment:segments/0123456789abcdef-7.segment:4096:300:0:65536:0000cafe".hex(),
            PLACE,
        ),
    ],
)
def test_bytes(key: bytes, value: bytes, stored: str, decoded: object) -> None:
    assert value.hex() == stored
    assert decode_any(key, value) == decoded


def test_a_part_says_whose_it_is() -> None:
    key = keys.chord_part_key(b"g\x00", 7, b"\xff")
    assert keys.parse(key) == ParsedKey(keys.RecordKind.CHORD_PART, chord=b"g\x00", header_index=7, result=b"\xff")


def test_parts_sort_by_index() -> None:
    ordered = [keys.chord_part_key(b"g", index, b"m") for index in (0, 1, 255, 256, results.NO_INDEX)]
    assert sorted(ordered) == ordered


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.result_key(b"k"), b"\x02" + bytes(9)),
        (keys.result_key(b"k"), b"\x01\x03" + bytes(8)),
        (keys.result_key(b"k"), b"\x01"),
        (keys.result_expiry_key(1, b"k"), b"\x02"),
        (keys.chord_key(b"g"), b"\x00" * 25),
        (keys.chord_part_key(b"g", 1, b"m"), b""),
        (keys.chord_part_key(b"g", 1, b"m"), b"\x02"),
        (keys.large_value_key(b"k"), b"\x03" + bytes(12)),
        (keys.large_value_key(b"k"), encode_uri("chunks:1:1")),
        (keys.large_value_key(b"k"), encode_uri("batch:job/0-0-00000000.batch:0:1:00000000")),
        (keys.large_value_key(b"k"), encode_uri(PLACE.segment_uri) + b"x"),
        (keys.large_value_key(b"k"), encode_uri(PLACE.segment_uri)[:-1]),
    ],
)
def test_damage_names_the_key(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptRecord) as caught:
        decode_any(key, value)
    assert caught.value.key == key
