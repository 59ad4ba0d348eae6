"""Rows in one piece are the pairs that they were made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.storage.slatedb.rows import GAP, TAIL, Pair, Rows, decode_pairs, decode_rows

from ....support.rows import encoded, in_one_piece

LENGTHS = st.sampled_from([0, 1, 2, 3, 9, 255, 256, 257, 512])
ALIKE = st.tuples(LENGTHS, LENGTHS, st.booleans(), st.integers(1, 40))


def pairs_of(shapes: list[tuple[int, int, bool, int]]) -> tuple[list[Pair], set[bytes]]:
    """Rows by the lengths of keys and values, whether they expire, and how many of them; and the keys that do."""
    pairs: list[Pair] = []
    expiring: set[bytes] = set()
    for key_bytes, value_bytes, expires, count in shapes:
        for _ in range(count):
            key = len(pairs).to_bytes(4, "big") + b"k" * key_bytes
            pairs.append((key, bytes((len(pairs) % 256,)) * value_bytes))
            if expires:
                expiring.add(key)
    return pairs, expiring


@given(st.lists(ALIKE, max_size=6))
def test_rows_are_the_pairs(shapes: list[tuple[int, int, bool, int]]) -> None:
    pairs, expiring = pairs_of(shapes)
    data = encoded(pairs, expiring)
    assert decode_pairs(data) == pairs
    for rows in (decode_rows(data), Rows.of(pairs)):
        assert rows.pairs() == pairs
        assert len(rows) == len(pairs) == sum(run[-1] for run in rows.runs)
        assert bool(rows) == bool(pairs)
        if pairs:
            assert rows.last_key == pairs[-1][0]
            start, step, key, value, count = rows.runs[-1]
            assert start + step * (count - 1) + value + TAIL <= len(rows.data)
            assert rows.data[start - GAP - key : start - GAP] == pairs[-count][0]


def test_rows_that_are_alike_are_one_run() -> None:
    pairs, _ = pairs_of([(3, 50, False, 1000)])
    (run,) = in_one_piece(pairs).runs
    assert run[2:] == (7, 50, 1000)


@pytest.mark.parametrize("change", ["key", "value", "expiry", "key for value"])
def test_a_row_that_differs_ends_the_run(change: str) -> None:
    pairs, expiring = pairs_of([(3, 50, False, 100)])
    key, value = pairs[60]
    match change:
        case "key":
            pairs[60] = (key + bytes(256), value)
        case "value":
            pairs[60] = (key, value + bytes(1 << 16))
        case "expiry":
            expiring.add(key)
        case _:
            pairs[60] = (key + b"k", value[1:])
    rows = decode_rows(encoded(pairs, expiring))
    assert [run[-1] for run in rows.runs[:2]] == [60, 1]
    assert rows.pairs() == pairs


@pytest.mark.parametrize("cut", [-1, 1])
def test_a_damaged_batch_is_refused(cut: int) -> None:
    pairs, _ = pairs_of([(3, 50, False, 5)])
    data = encoded(pairs)
    with pytest.raises((ValueError, IndexError)):
        decode_rows(data + b"\0" if cut > 0 else data[:cut])
