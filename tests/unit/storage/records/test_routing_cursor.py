from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, InvalidMessage
from kombu_opendata.storage.records import keys, routing_cursor
from kombu_opendata.storage.records.routing_cursor import Cursor

KEY = keys.cursor_key("q")


def test_round_trip_and_what_it_says_of_itself() -> None:
    value = Cursor(1, 5, 9, 10, 20, 30, 40, 4, 2, True, True, "a = 'é'")
    assert routing_cursor.decode(KEY, routing_cursor.encode(value)) == value
    assert not value.is_done
    assert value._replace(position=9).is_done


@pytest.mark.parametrize("damage", ["version", "flags", "short", "long", "text"])
def test_damage_is_told(damage: str) -> None:
    good = routing_cursor.encode(Cursor(1, 5, 9, selector="a"))
    bad = {
        "version": b"\2" + good[1:],
        "flags": good[:1] + b"\4" + good[2:],
        "short": good[:40],
        "long": good + b"x",
        "text": good[:-1] + b"\xff",
    }[damage]
    with pytest.raises(CorruptRecord):
        routing_cursor.decode(KEY, bad)


def test_a_selector_that_is_too_long() -> None:
    with pytest.raises(InvalidMessage):
        routing_cursor.encode(Cursor(1, 5, 9, selector="a" * 65_536))
