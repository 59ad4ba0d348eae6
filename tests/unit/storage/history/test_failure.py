"""Cursors of lists of failures."""

from __future__ import annotations

import msgspec
import pytest

from kombu_opendata.errors import CursorOfOtherFilters, CursorVersionMismatch, MalformedCursor
from kombu_opendata.storage.history import failure, query

NO_FILTERS = failure.check_filters()
POSITION = failure.FailurePosition(1_769_385_600_000, 7, "café")
CURSOR = failure.make_cursor(NO_FILTERS, POSITION, descending=True)


def test_a_cursor_has_the_position_after_which_the_next_page_begins() -> None:
    assert failure.read_cursor(CURSOR, NO_FILTERS, descending=True) == POSITION


def test_a_cursor_belongs_to_its_filters_and_order() -> None:
    for filters, descending in ((NO_FILTERS, False), (failure.check_filters(queues=["a"]), True)):
        with pytest.raises(CursorOfOtherFilters):
            failure.read_cursor(CURSOR, filters, descending=descending)


def test_a_cursor_of_another_version_is_refused() -> None:
    text = query.cursor_text(msgspec.msgpack.encode((2, NO_FILTERS.digest(), True, *POSITION)))
    with pytest.raises(CursorVersionMismatch):
        failure.read_cursor(text, NO_FILTERS, descending=True)


@pytest.mark.parametrize(
    "packed",
    [
        query.cursor_bytes(CURSOR).replace("é".encode(), b"\xff\xfe"),  # a queue's name that is not UTF-8
        query.cursor_bytes(CURSOR)[:-1],
        query.cursor_bytes(CURSOR) + b"\x00",
        msgspec.msgpack.encode((1, NO_FILTERS.digest(), True, "now", 7, "a")),
        msgspec.msgpack.encode({"version": 1}),
        b"",
    ],
)
def test_bytes_that_are_no_cursor_are_malformed(packed: bytes) -> None:
    with pytest.raises(MalformedCursor):
        failure.read_cursor(query.cursor_text(packed), NO_FILTERS, descending=True)


@pytest.mark.parametrize("text", ["***", "é", "a"])
def test_a_text_that_is_not_base64_is_malformed(text: str) -> None:
    with pytest.raises(MalformedCursor):
        failure.read_cursor(text, NO_FILTERS, descending=True)
