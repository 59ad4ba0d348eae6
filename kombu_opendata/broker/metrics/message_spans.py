"""OpenTelemetry spans of the messages of one instance (docs/monitoring.md#opentelemetry).

The history log has each event of each message. Every checkpoint passes the rows that it stored to a background task,
which makes spans for the messages whose header ``traceparent`` has the sampled flag. A span therefore exists only for a
stored event, and only once, also after a crash. Publishes and deliveries never wait for spans.

=============  ====================================================  ==================================================
span           from … to                                             parent
=============  ====================================================  ==================================================
publish        sent by the client … received by the broker           the span in ``traceparent``
queue wait     ready (due, or returned) … claimed or removed         publish, or that span if publish is not known
deliver        claimed … ended                                       as above
settle         the time of the acknowledgement, rejection, …         as above
slow commit    begin … end                                           none
=============  ====================================================  ==================================================

**Cost.** The task uses the event loop in slices of 1 ms; the SDK's thread then needs about twice as long to export the
spans of a slice. If the loop was idle for most of a pause, the next slice follows after 10 ms. Else it follows when the
loop's thread has used 200 ms of CPU, or was idle for 50 ms in all. The time for which the thread waits for a processor
is neither, so spans take the same small share of a broker that gets little CPU. If rows are stored faster than their
spans are made, the oldest rows are skipped, and the number of messages without spans is logged. Messages that were
published before the broker started are looked up in the store, a few in each slice.

Attributes: the semantic conventions for messaging, version 1.37.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ...protocol.task_reports import STATES
from ...storage.clock import Clock, TimeSlice
from ...storage.commit.measurements import MeasuredCommit, stopwatch
from ...storage.engine import Engine
from ...storage.read.stored_messages import read_metadata
from ...storage.records.history_log import ACKED, DETAILED, MANUAL, OUTCOMES, REASONS, Attempt, Left
from ...storage.records.metadata import Metadata
from ...storage.state.history_log import HeaderColumns, LogChunk
from ...version import __version__
from ..delivery.rate_limited_log import Notices

SYSTEM = "opendata_queue"
R = TypeVar("R", Attempt, Left)
#: maximum time that one slice uses the event loop
_SLICE_SECONDS = 0.001
#: pause between looks for new rows
_PAUSE_SECONDS = 0.1
#: pause after a slice, the share of it for which an idle loop has nothing to do, and the pauses of another loop
_SHORT_PAUSE_SECONDS, _IDLE_SHARE, _LONG_PAUSE_SECONDS = 0.01, 0.8, 0.05
#: time for which a loop that is not idle runs, or is idle, between two slices
_RUN_SECONDS, _IDLE_SECONDS = 0.2, 0.05
#: chunks that wait; 4,096 messages or attempts each
MAX_CHUNKS = 64
#: maximum number of messages whose publish is remembered
_MAX_MESSAGES = 20_000
#: maximum number of reads of older messages from the store in one slice
_MAX_READS = 32
#: number of messages that are read together
_READS = 16
_SAMPLED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
_FAILED = frozenset({"failed", "rejected", "expired"})
_FROM_HEADERS = TraceContextTextMapPropagator().extract


class _TracedMessage:
    """The context of a message's spans, and the time from which it waits in each queue."""

    __slots__ = ("context", "ready_at_ms", "returned_at_ms")

    def __init__(self, context: Context, ready_at_ms: int) -> None:
        self.context, self.ready_at_ms = context, ready_at_ms
        self.returned_at_ms: dict[str, int] = {}


class ThreadTimes(NamedTuple):
    """Seconds since some start: elapsed, used by this thread, and in which it waited for a processor (Linux only)."""

    elapsed: float
    used: float
    waited: float

    @classmethod
    def now(cls) -> ThreadTimes:
        waited_ns = 0
        with suppress(OSError, ValueError, IndexError):
            waited_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
        return cls(time.monotonic(), time.thread_time(), waited_ns / 1e9)

    def permit_slice(self, since: ThreadTimes) -> bool:
        """Return True if the loop's thread was idle, or has run long enough, since the end of the last slice."""
        elapsed, used = self.elapsed - since.elapsed, self.used - since.used
        idle = elapsed - used - (self.waited - since.waited)
        return idle >= min(_IDLE_SHARE * elapsed, _IDLE_SECONDS) or used >= _RUN_SECONDS


class MessageSpans:
    """The spans of one instance's messages. :meth:`run` makes them until it is cancelled."""

    def __init__(self, name: str, engine: Engine, notices: Notices) -> None:
        self._engine, self._notices = engine, notices
        self._clock: Clock = engine.clock
        self._own = {"messaging.system": SYSTEM, "opendata_queue.instance": name}
        self._tracer = trace.get_tracer("kombu_opendata", __version__)
        self._chunks = engine.history.watch()
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)  # it warns of each invalid `tracestate`
        self._messages: OrderedDict[int, _TracedMessage] = OrderedDict()
        self._known_from: int | None = None  # messages from this id on are in `_messages` if they are traced
        self._reads = 0

    async def run(self) -> None:
        """Make spans of stored rows, in slices. An error is logged: a broker does not stop for want of spans."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            self._reads = _MAX_READS
            while self._chunks:
                self.skip_some()
                try:
                    await self._export(self._chunks.popleft())
                except Exception as exc:
                    self._log_missing(exc)

    def slow_commit(self, commit: MeasuredCommit) -> None:
        """Make the span of a slow commit; an error is logged."""
        end_ms = self._clock.now_ms() - int(1000 * (stopwatch() - commit.ended_at))
        attributes = {"opendata_queue.commit.effects": commit.effects, "opendata_queue.commit.bytes": commit.size}
        try:
            self._span("slow commit", Context(), end_ms - int(1000 * commit.seconds), end_ms, attributes=attributes)
        except Exception as exc:  # of the SDK
            self._log_missing(exc)

    def _log_missing(self, error: Exception) -> None:
        self._notices.say(logging.ERROR, "missing spans", "some spans are missing: %r", error)

    def skip_some(self) -> None:
        """Skip the oldest rows if too many wait; log the number of their messages with a trace, sampled or not."""
        skipped = 0
        while len(self._chunks) > MAX_CHUNKS:
            headers = self._chunks.popleft().headers.values()
            skipped += sum(1 for each in headers if each and "traceparent" in each)
        if skipped:
            text = "%d traced messages have no spans, as the broker has no time for them: sample fewer traces"
            self._notices.say(logging.WARNING, "skipped spans", text, skipped)

    # ------------------------------------------------------------------ rows
    async def _export(self, chunk: LogChunk) -> None:
        piece = TimeSlice(_SLICE_SECONDS)
        if chunk.headers and self._known_from is None:
            self._known_from = next(iter(chunk.headers))
        published = _traced_ids(chunk)
        while ids := list(islice(published, _READS)):
            for id, message in sorted((await self._read(ids)).items()):
                self._publish(id, message)
            await self._pause(piece)
        async for traced, row in self._traced(chunk.attempts, piece):
            self._attempt(traced, row)
        async for traced, left in self._traced(chunk.left, piece):
            self._removal(traced, left)

    async def _traced(self, rows: Sequence[R], piece: TimeSlice) -> AsyncIterator[tuple[_TracedMessage, R]]:
        """Yield the rows of traced messages, with a pause after each slice."""
        for number, row in enumerate(rows):
            if not number % _READS:
                await self._look_up(each.message_id for each in rows[number : number + _READS])
            if (traced := self._messages.get(row.message_id)) is not None:
                yield traced, row
            await self._pause(piece)

    async def _pause(self, piece: TimeSlice) -> None:
        if piece.is_over:
            since, seconds = ThreadTimes.now(), _SHORT_PAUSE_SECONDS
            while True:
                await asyncio.sleep(seconds)
                if ThreadTimes.now().permit_slice(since):
                    break
                seconds = _LONG_PAUSE_SECONDS
            await piece.rest()
            self._reads = _MAX_READS

    async def _read(self, ids: list[int]) -> dict[int, Metadata]:
        return await read_metadata(self._engine.store, self._engine.payloads, ids)

    async def _look_up(self, ids: Iterable[int]) -> None:
        """Look up those messages in the store that are older than the messages in memory."""
        before = self._known_from
        old = [id for id in ids if id not in self._messages and (before is None or id < before)]
        if old and self._reads:
            self._reads -= 1
            for id, message in (await self._read(old)).items():
                if _SAMPLED.fullmatch(message.headers.get("traceparent", "")):
                    self._note(id, message, _FROM_HEADERS(message.headers))

    def _note(self, id: int, message: Metadata, context: Context) -> _TracedMessage:
        ready_at_ms = max(message.received_at_ms, message.visible_at_ms)
        traced = self._messages[id] = _TracedMessage(context, ready_at_ms)
        if len(self._messages) > _MAX_MESSAGES:
            oldest, _traced = self._messages.popitem(last=False)
            self._known_from = max(oldest + 1, self._known_from or 0)
        return traced

    # ------------------------------------------------------------------ spans
    def _publish(self, id: int, message: Metadata) -> None:
        headers = message.headers
        name = headers.get("exchange") or headers.get("routing_key", "")
        attributes = self._about(id, name) | {
            "messaging.operation.name": "publish", "messaging.operation.type": "send",
            "opendata_queue.routing_key": headers.get("routing_key", ""),
        }  # fmt: skip
        end = message.received_at_ms
        span = self._span(
            f"publish {name}", _FROM_HEADERS(headers), min(message.created_at_ms or end, end), end, attributes
        )
        self._note(id, message, trace.set_span_in_context(span))

    def _attempt(self, traced: _TracedMessage, row: Attempt) -> None:
        queue, context = row.queue, traced.context
        outcome = OUTCOMES[row.outcome & ~MANUAL]
        about = self._about(row.message_id, queue)
        after = {**about, "messaging.client.id": row.consumer, "opendata_queue.outcome": outcome}
        if row.state:
            after["opendata_queue.task.state"] = STATES[row.state & ~DETAILED]
        if row.exception:
            after["error.type"] = row.exception
        start = traced.returned_at_ms.get(queue, traced.ready_at_ms)
        traced.returned_at_ms[queue] = row.ended_at_ms
        if not row.outcome & MANUAL:
            about["opendata_queue.attempt"] = after["opendata_queue.attempt"] = row.number
            self._span(f"queue wait {queue}", context, min(start, row.claimed_at_ms), row.claimed_at_ms, about)
            operation = {"messaging.operation.name": "deliver", "messaging.operation.type": "receive"}
            error = row.exception or (outcome if outcome in _FAILED else "")
            self._span(f"deliver {queue}", context, row.claimed_at_ms, row.ended_at_ms, after | operation, error)
        name = "ack" if row.outcome & ~MANUAL == ACKED else outcome
        operation = {"messaging.operation.name": name, "messaging.operation.type": "settle"}
        self._span(f"settle {queue}", context, row.ended_at_ms, row.ended_at_ms, after | operation)

    def _removal(self, traced: _TracedMessage, row: Left) -> None:
        attributes = self._about(row.message_id, row.queue) | {"opendata_queue.outcome": REASONS[row.reason]}
        start = traced.returned_at_ms.pop(row.queue, traced.ready_at_ms)
        self._span(f"queue wait {row.queue}", traced.context, start, row.at_ms or start, attributes)

    def _about(self, id: int, name: str) -> dict[str, Any]:
        return {"messaging.message.id": str(id), "messaging.destination.name": name}

    def _span(
        self, name: str, context: Context, start_ms: int, end_ms: int, attributes: Mapping[str, Any], error: str = ""
    ) -> trace.Span:
        kind = SpanKind.INTERNAL if name.startswith(("queue", "slow")) else SpanKind.SERVER
        span = self._tracer.start_span(
            name, context, kind, attributes={**self._own, **attributes}, start_time=start_ms * 1_000_000
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(max(start_ms, end_ms) * 1_000_000)
        return span


def _traced_ids(chunk: LogChunk) -> Iterator[int]:
    """Yield the chunk's new messages whose trace is sampled."""
    for id, headers in chunk.headers.items():
        if not headers or isinstance(headers, HeaderColumns):  # rows of staged jobs have no span of their publish
            continue
        if "traceparent" in headers and _SAMPLED.fullmatch(headers["traceparent"]):
            yield id
