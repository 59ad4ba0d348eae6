"""Rows that come faster than spans can be made: the oldest are skipped, and the log counts their traced messages."""

from __future__ import annotations

import logging
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kombu_opendata.broker.delivery.rate_limited_log import Notices
from kombu_opendata.broker.metrics import message_spans
from kombu_opendata.broker.metrics.message_spans import MessageSpans
from kombu_opendata.storage.state.history_log import LogChunk

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def chunk(number: int) -> LogChunk:
    """Three new messages: one is traced, one is not sampled, one has no trace."""
    headers = [{"traceparent": SAMPLED}, {"traceparent": SAMPLED[:-1] + "0"}, {}]
    return LogChunk(0, 3 * number, headers=dict(enumerate(headers, 3 * number)))


def test_the_oldest_rows_are_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    chunks: deque[LogChunk] = deque()
    engine = SimpleNamespace(history=SimpleNamespace(watch=lambda: chunks), clock=None)
    notices = Notices(logging.getLogger("spans"), lambda: 0.0)
    spans = MessageSpans("default", cast(Any, engine), notices)
    chunks.extend(map(chunk, range(message_spans.MAX_CHUNKS + 5)))
    spans.skip_some()
    assert [chunks[0].first_row, len(chunks)] == [15, message_spans.MAX_CHUNKS]
    assert [record.getMessage()[:28] for record in caplog.records] == ["5 traced messages have no sp"]
