"""Decoded values as JSON can express them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from kombu_opendata.offline.records.record_view import preview, readable
from kombu_opendata.storage.records.payload import PayloadURI


class Point(NamedTuple):
    x: int
    y: bytes


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Point(1, b"a"), {"x": 1, "y": "a"}),
        (PayloadURI("chunks:1:2"), {"uri": "chunks:1:2"}),
        ({b"k": (1, None, True)}, {"k": [1, None, True]}),
        ({1: 2.5}, {"1": 2.5}),
        ("a\udcffb", "a\\udcffb"),
        (b"\xff\0", {"bytes": 2, "hex": "ff00"}),
        (b"x" * 300, {"bytes": 300, "text": "x" * 256}),
        (b"a\nb", {"bytes": 3, "text": "a\nb"}),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_values(value: Any, shown: Any) -> None:
    assert readable(value) == shown
    json.dumps(readable(value)).encode()


def test_a_cut_character_does_not_make_a_text_hexadecimal() -> None:
    assert preview("ä".encode() * 10, 5) == {"bytes": 20, "text": "ää"}
