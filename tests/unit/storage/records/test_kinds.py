"""Kinds of records and the parser of keys."""

from __future__ import annotations

from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.kinds import ParsedKey, RecordKind, parse


# ---- kinds
def test_every_kind_has_a_prefix_and_leaves_07_to_0f_free() -> None:
    assert {kind.prefix[0] for kind in RecordKind} == {1}
    assert not {kind.prefix[1] for kind in RecordKind} & set(range(0x07, 0x10))


def test_no_two_kinds_share_a_prefix_but_those_of_the_rfc() -> None:
    shared = {RecordKind.METADATA, RecordKind.SEQ_BLOCK}  # their whole keys, or ids, tell them from the others
    others = [kind.prefix for kind in RecordKind if kind not in shared]
    assert len(set(others)) == len(others)


# ---- key parser
def test_binding_has_three_names() -> None:
    parsed = parse(keys.binding_key("e\x00", "q\x01", "k.ÿ"))
    assert parsed == ParsedKey(keys.RecordKind.BINDING, "e\x00", queue="q\x01", routing_key="k.ÿ")


def test_name_that_is_not_utf8_comes_back_to_the_same_key() -> None:
    stored = bytes.fromhex("01027101037800")
    name = parse(stored).name
    assert name == "q\udcffx"
    assert keys.active_key(name) == stored
