"""Dry run of ``submit_tasks``: the first messages, the checks and an estimate, without sending or staging anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from ...queue_client.message_models import Message, message_of
from ...staging.batch_writer import BatchWriter
from ...staging.job import StagingTarget
from ..encode.plan import JobPlan
from ..encode.row_encoder import BadRow, RowEncoder, now_ms

#: limits for the rows that a dry run encodes, and for the bytes of their messages
SAMPLE_ROWS = 1000
_SAMPLE_BYTES = 16 << 20
#: limits for the messages and bad rows that it returns
_SHOWN_ROWS = 10
_SHOWN_BYTES = 1 << 20
#: larger than any batch: a batch that may be sent inline is not written to the store
_INLINE = 1 << 62


@dataclass(frozen=True)
class DryRun:
    """Outcome of a dry run.

    Attributes:
        job_id: the id of the job; empty if it would be random.
        rows: the number of rows, those included that can't be sent.
        messages: the first messages as they would be sent, with headers, properties and decoded body. Their id is 0,
            and the queue is empty if an exchange routes them. Without a job id, generated task ids are examples.
        checks: what was checked, one sentence each.
        bad_rows: the first rows that can't be sent, of about 1,000 rows.
        bytes: an estimate of the bytes that the job takes in the store.
        core_seconds: an estimate of the time that one core of the executors needs to encode the rows, without that of
            computing them.
    """

    job_id: str
    rows: int
    messages: list[Message]
    checks: list[str]
    bad_rows: list[BadRow]
    bytes: int
    core_seconds: float


class _Sample(msgspec.Struct):
    """Measurements of the first rows."""

    rows: int = 0
    measured: int = 0  # of these rows
    size: int = 0  # in a batch object
    seconds: float = 0.0
    envelopes: list[bytes] = []
    bad_rows: list[BadRow] = []
    bad_count: int = 0

    def add_bad(self, row: BadRow) -> None:
        self.bad_count += 1
        if len(self.bad_rows) < _SHOWN_ROWS:
            self.bad_rows.append(row)


def rehearsal(frame: DataFrame, plan: JobPlan, target: StagingTarget, job_id: str | None, checks: list[str]) -> DryRun:
    """Return the outcome for a frame that the driver has checked: executors encode its first rows, and count all."""
    sample = _sample(frame, plan, target, job_id or "dry run")
    rows = frame.count() if sample.rows >= SAMPLE_ROWS else sample.rows
    factor = rows / max(sample.measured, 1)
    messages = [message_of(0, "", envelope) for envelope in sample.envelopes]
    messages = [message if message.exchange else replace(message, queue=message.routing_key) for message in messages]
    sendable = f"{sample.measured - sample.bad_count:,} of {sample.measured:,} rows can be sent"
    return DryRun(
        job_id=job_id or "",
        rows=rows,
        messages=messages,
        checks=[*checks, sendable],
        bad_rows=sample.bad_rows,
        bytes=round(sample.size * factor),
        core_seconds=sample.seconds * factor,
    )


def _sample(frame: DataFrame, plan: JobPlan, target: StagingTarget, job_id: str) -> _Sample:
    """Encode the first rows on an executor, as a partition is encoded."""

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sample = _Sample()
        encoder = RowEncoder(plan, job_id, 0, now_ms, target.max_message_bytes, sample.add_bad)
        writer = BatchWriter(replace(target, inline_bytes=_INLINE, inline_rows=_INLINE), job_id, 0, 0)
        encoded = shown = 0
        started_at = time.process_time()
        for batch in batches:
            sample.rows += batch.num_rows
            if encoded >= _SAMPLE_BYTES:
                continue
            sample.measured += batch.num_rows
            for messages in encoder.encode(batch):
                writer.add_many(messages.envelopes, messages.headers, **messages.fields)
                encoded += sum(map(len, messages.envelopes))
                for envelope in messages.envelopes[: _SHOWN_ROWS - len(sample.envelopes)]:
                    shown += len(envelope)
                    if shown <= _SHOWN_BYTES or not sample.envelopes:
                        sample.envelopes.append(envelope)
        sample.size = writer.close().bytes
        sample.seconds = time.process_time() - started_at
        yield pa.record_batch([pa.array([msgspec.msgpack.encode(sample)], pa.binary())], ["sample"])

    # Spark omits the limit of a frame that surely has fewer rows, and then leaves them in several partitions
    samples = frame.limit(SAMPLE_ROWS).coalesce(1).mapInArrow(encode, "sample binary").collect()
    return msgspec.msgpack.decode(samples[0][0], type=_Sample) if samples else _Sample()
