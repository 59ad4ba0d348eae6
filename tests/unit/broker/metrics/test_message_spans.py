"""Rows that come faster than spans can be made, and errors: spans are missing, and the broker continues."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry import trace

from kombu_opendata.broker.delivery.rate_limited_log import Notices
from kombu_opendata.broker.metrics import message_spans
from kombu_opendata.broker.metrics.message_spans import MessageSpans, ThreadTimes
from kombu_opendata.errors import CorruptRecord
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.commit.measurements import MeasuredCommit
from kombu_opendata.storage.records import metadata
from kombu_opendata.storage.state.history_log import LogChunk

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def chunk(number: int) -> LogChunk:
    """Three new messages: one is traced, one is not sampled, one has no trace."""
    headers = [{"traceparent": SAMPLED}, {"traceparent": SAMPLED[:-1] + "0"}, {}]
    return LogChunk(0, 3 * number, headers=dict(enumerate(headers, 3 * number)))


def spans_of_chunks(read: Any = None) -> tuple[MessageSpans, deque[LogChunk]]:
    chunks: deque[LogChunk] = deque()
    history, payloads = SimpleNamespace(watch=lambda: chunks), SimpleNamespace(unstored_metadata=read)
    engine = SimpleNamespace(history=history, payloads=payloads, store=None, clock=SystemClock())
    return MessageSpans("default", cast(Any, engine), Notices(logging.getLogger("spans"), lambda: 0.0)), chunks


def test_the_oldest_rows_are_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    spans, chunks = spans_of_chunks()
    chunks.extend(map(chunk, range(message_spans.MAX_CHUNKS + 5)))
    spans.skip_some()
    assert [chunks[0].first_row, len(chunks)] == [15, message_spans.MAX_CHUNKS]
    assert [record.getMessage()[:28] for record in caplog.records] == ["10 traced messages have no s"]


def test_rows_are_also_skipped_while_spans_are_made_and_damaged_records_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting: list[int] = []

    def read(_id: int) -> bytes:
        """Store five chunks while the spans of one are made."""
        waiting.append(len(chunks))
        if len(waiting) == 50:
            raise asyncio.CancelledError
        chunks.extend(map(chunk, range(5)))
        raise CorruptRecord("the metadata of a message is damaged")

    spans, chunks = spans_of_chunks(read)
    chunks.append(chunk(0))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(spans.run())
    assert max(waiting) < message_spans.MAX_CHUNKS
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if "spans are missing" in text and "is damaged" in text]


def test_clients_do_not_fill_the_log_by_invalid_headers(caplog: pytest.LogCaptureFixture) -> None:
    def read(id: int) -> bytes:
        if id:
            raise asyncio.CancelledError
        return metadata.encode(id, 1, 1, 1, 0, {"traceparent": SAMPLED, "tracestate": "=\n" * 100})

    spans, chunks = spans_of_chunks(read)
    chunks.extend(map(chunk, range(2)))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(spans.run())
    assert not caplog.records


def test_an_error_of_the_sdk_does_not_end_the_brokers_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start_span(*_args: Any, **_options: Any) -> Any:
        raise ValueError("a processor is broken")

    tracer = SimpleNamespace(start_span=start_span)
    monkeypatch.setattr(trace, "get_tracer", lambda *_args: tracer)
    spans, _chunks = spans_of_chunks()
    spans.slow_commit(MeasuredCommit(1.0, 1, 1, 0.0))
    (record,) = caplog.records
    assert "a processor is broken" in record.getMessage()


@pytest.mark.parametrize(
    ("elapsed", "used", "waited", "permitted"),
    [
        (0.010, 0.001, 0.0, True),
        (0.010, 0.005, 0.0, False),
        (0.110, 0.055, 0.0, True),
        (0.200, 0.190, 0.0, False),
        (0.210, 0.200, 0.0, True),
        (0.500, 0.020, 0.480, False),
        (4.000, 0.200, 3.800, True),
    ],
    ids=["idle", "half", "idle for long", "busy", "used enough", "little CPU", "enough of it"],
)
def test_a_slice_waits_for_idle_time_or_for_the_use_of_cpu(
    elapsed: float, used: float, waited: float, permitted: bool
) -> None:
    assert ThreadTimes(elapsed, used, waited).permit_slice(ThreadTimes(0.0, 0.0, 0.0)) is permitted


def test_the_times_of_a_thread_are_those_of_its_work() -> None:
    start = ThreadTimes.now()
    while (now := ThreadTimes.now()).used < start.used + 0.01:
        pass
    assert now.elapsed > start.elapsed
    assert now.waited >= start.waited >= 0
