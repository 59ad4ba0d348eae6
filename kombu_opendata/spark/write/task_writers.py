"""Writers for Spark: each partition becomes a staged batch, and the driver's commit makes all of them visible."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
from kombu.utils.functional import retry_over_time
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ...bucket_credentials import bucket_settings
from ...celery_integration.broker_access import BrokerAccess, load_app
from ...errors import ConnectionLost, OpenDataError, RequestError, RetryLater, StartError, wire_code
from ...protocol.messages import JobInfo
from ...staging.batch_writer import BatchWriter
from ...staging.job import MAX_JOB_ID_BYTES, MAX_PART, BatchInfo, StagingTarget, check_job_id
from ..encode.plan import JobPlan
from ..encode.row_encoder import RowEncoder, now_ms
from .bad_rows import BadRowWriter, delete_bad_rows, write_index
from .completion import completion_envelope
from .job_digest import check_same, with_rows

#: local properties of Spark's tasks in a micro-batch
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_AFTER_PREFIX_BYTES = len(f"/{UUID(int=0)}/{2**63 - 1}")
#: seconds for which the driver retries a commit while the broker does not answer or accepts nothing
COMMIT_PATIENCE_SECONDS = 300.0
_AWAY = (ConnectionLost, RetryLater, StartError)


@dataclass
class Written(WriterCommitMessage):
    """Message of one of Spark's tasks to the driver: its batch, and the queues and exchanges to declare for it.

    Attributes:
        bad_rows: the number of its rows that can't be sent.
        bad_path: the path of the object with these rows; empty if there are none.
    """

    job_id: str
    batch: BatchInfo
    declare: tuple[Any, ...] = field(default=())
    bad_rows: int = 0
    bad_path: str = ""


class _JobWriter:
    """Base class of batch and stream writers. It is pickled for the executors."""

    def __init__(self, plan: JobPlan, access: BrokerAccess) -> None:
        self._plan = plan
        self._access = access
        with access.connect() as broker:
            broker.check(plan.declared())
            self._target: StagingTarget = broker.staging.staging_target()

    def _write(self, plan: JobPlan, batches: Iterable[pa.RecordBatch], job_id: str) -> Written:
        """Write one attempt of a partition; delete its object if it fails.

        The broker's maintenance deletes the objects of killed tasks.
        """
        context = task_context()
        partition, attempt = context.partitionId(), context.taskAttemptId() & MAX_PART
        target = self._target
        bad = BadRowWriter(target, job_id, partition, attempt)
        if plan.collects_bad_rows and plan.app_path:
            load_app(plan.app_path)  # its absence is no error of a row
        refuse = bad.add if plan.collects_bad_rows else None
        encoder = RowEncoder(plan, job_id, partition, now_ms, target.max_message_bytes, refuse)
        with bucket_settings(self._access.bucket), bad, BatchWriter(target, job_id, partition, attempt) as writer:
            for batch in batches:
                for messages in encoder.encode(batch):
                    writer.add_many(messages.envelopes, messages.headers, **messages.fields, created_at_ms=now_ms())
            info, bad_path = writer.close(), bad.close()
        declare = {entity: None for template in encoder.used.values() for entity in template.declare}
        return Written(job_id, info, tuple(declare), bad.rows, bad_path)

    def _commit(self, job_id: str, messages: list[Written]) -> JobInfo:
        """Commit the batches. Message ids follow the order of partitions, not the order in which tasks ended."""
        batches = sorted((message.batch for message in messages), key=lambda info: info.partition)
        entities = {repr(entity): entity for message in messages for entity in message.declare}
        plan = self._plan
        rows = sum(message.batch.rows + message.bad_rows for message in messages)
        digest = with_rows(plan.digest, rows) if plan.digest else ""
        if bad_paths := [message.bad_path for message in messages if message.bad_path]:
            sent = [info for info in batches if info.rows]
            totals = sum(info.rows for info in sent), len(sent), sum(info.bytes for info in sent)
            with bucket_settings(self._access.bucket):
                write_index(self._target, job_id, totals, digest, bad_paths)
        rate_limit, on_complete = plan.rate_limit, b""
        if plan.on_complete is not None:
            entities |= {repr(entity): entity for entity in plan.on_complete.declared()}
            now = now_ms()
            on_complete = completion_envelope(plan.on_complete.at(now), job_id, now)

        def commit() -> JobInfo:
            with self._access.connect() as broker:
                broker.declare(entities.values())
                return broker.staging.commit_job(
                    job_id, batches, digest=digest, rate_limit=rate_limit, on_complete=on_complete
                )

        # so that the work of the whole job is not lost
        job: JobInfo = retry_over_time(
            commit, _AWAY, timeout=COMMIT_PATIENCE_SECONDS, interval_start=1, interval_step=0
        )
        if not job.added and plan.digest and not plan.returns_existing:
            check_same(job, plan.digest, rows)  # another driver may have committed it while this one was writing
        return job

    def abort(self, messages: list[Any], batchId: int = 0) -> None:
        """Remove only the batches of these attempts, because another run of the same job may be in progress."""
        partitions = [message for message in messages if isinstance(message, Written)]
        with bucket_settings(self._access.bucket), self._access.connect() as broker:
            for job_id in dict.fromkeys(message.job_id for message in partitions):
                batches = [message.batch for message in partitions if message.job_id == job_id]
                broker.staging.abort_job(job_id, batches)
            delete_bad_rows(self._target, [message.bad_path for message in partitions if message.bad_path])


class CommitReport(msgspec.Struct):
    """Outcome of a commit, for ``submit_tasks``.

    Attributes:
        job: the job; None if the commit was refused.
        partitions: the number of messages by partition.
        bad_rows: the number of rows that were not sent.
        refused: the code and the text of the error.
    """

    job: JobInfo | None = None
    partitions: list[tuple[int, int]] = []
    bad_rows: int = 0
    refused: tuple[str, str] | None = None


class TaskWriter(_JobWriter, DataSourceArrowWriter):
    """Writer of a batch frame.

    The broker's reply to the commit is written to the file ``report_path``, if there is one, for ``submit_tasks``:
    Spark returns nothing from a commit, and hides errors in a traceback.
    """

    def __init__(self, plan: JobPlan, access: BrokerAccess, job_id: str, report_path: str) -> None:
        super().__init__(plan, access)
        if not plan.returns_existing and (known := access.committed_job(job_id)):
            check_same(known, plan.digest)
        self._job_id = job_id
        self._report_path = report_path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(self._plan, iterator, self._job_id)

    def commit(self, messages: list[Any]) -> None:
        partitions = [message for message in messages if message is not None]
        if len(partitions) != len(messages):
            raise RequestError("a partition was not written, so the job is not committed")
        try:
            job = self._commit(self._job_id, partitions)
        except OpenDataError as exc:
            self._report(CommitReport(refused=(wire_code(exc), exc.text)))
            raise
        rows = sorted((message.batch.partition, message.batch.rows) for message in partitions)
        self._report(CommitReport(job, rows, sum(message.bad_rows for message in partitions)))

    def _report(self, report: CommitReport) -> None:
        if self._report_path:
            Path(self._report_path).write_bytes(msgspec.json.encode(report))
        elif job := report.job:
            added = "added" if job.added else "which an earlier commit added"
            text = f"opendata: job {job.job_id!r} has {job.rows:,} tasks in {job.bytes:,} bytes, {added}"
            sys.stderr.write(f"{text}; {report.bad_rows:,} rows can't be sent\n" if report.bad_rows else f"{text}\n")


class TaskStreamWriter(_JobWriter, DataSourceStreamArrowWriter):
    """Writer of micro-batches. Each is a job, whose id is ``[<prefix>/]<query id>/<number of the micro-batch>``.

    The query's id is in its checkpoint. A new checkpoint numbers micro-batches from 0 again, but has a new query id.
    """

    def __init__(self, plan: JobPlan, access: BrokerAccess, prefix: str = "") -> None:
        check_prefix(prefix)
        super().__init__(plan, access)
        self._prefix = f"{prefix}/" if prefix else ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = task_context()
        query, number = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or number is None:
            raise RequestError("Spark does not say which micro-batch this is")
        # a query runs for months, so relative times count from the micro-batch
        return self._write(self._plan.at(now_ms()), iterator, f"{self._prefix}{query}/{number}")

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commit the job of a micro-batch; one without rows creates no job."""
        partitions = [
            message for message in messages if message is not None and (message.batch.rows or message.bad_rows)
        ]
        for job_id in dict.fromkeys(message.job_id for message in partitions):
            self._commit(job_id, [message for message in partitions if message.job_id == job_id])


def check_prefix(prefix: str) -> None:
    """Raise RequestError if a prefix of a stream's job ids is too long for the rest of the ids."""
    limit = MAX_JOB_ID_BYTES - _AFTER_PREFIX_BYTES
    if prefix:
        check_job_id(prefix)
    if len(prefix.encode()) > limit:
        text = f"job_id has {len(prefix.encode())} bytes and may have {limit}, as the query's id and a number follow"
        raise RequestError(text, option="job_id", limit=limit)


def task_context() -> TaskContext:
    """Return the context of the Spark task of this process; raise RequestError if it runs none."""
    context = TaskContext.get()
    if context is None:
        raise RequestError("rows can only be written in a task of Spark")
    return context
