from __future__ import annotations

from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.key_parser import ParsedKey, parse


def test_binding_has_three_names() -> None:
    parsed = parse(keys.binding_key("e\x00", "q\x01", "k.ÿ"))
    assert parsed == ParsedKey(keys.RecordKind.BINDING, "e\x00", queue="q\x01", routing_key="k.ÿ")


def test_name_that_is_not_utf8_comes_back_to_the_same_key() -> None:
    stored = bytes.fromhex("01027101037800")
    name = parse(stored).name
    assert name == "q\udcffx"
    assert keys.active_key(name) == stored
