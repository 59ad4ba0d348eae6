from __future__ import annotations

from kombu_opendata.storage.records.kinds import PREFIXES, RecordKind


def test_every_kind_has_a_prefix_and_leaves_07_to_0f_free() -> None:
    assert set(PREFIXES) == set(RecordKind)
    assert {prefix[0] for prefix in PREFIXES.values()} == {1}
    assert not {prefix[1] for prefix in PREFIXES.values()} & set(range(0x07, 0x10))
