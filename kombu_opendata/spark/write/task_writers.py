"""Writing a frame: each partition's messages become one staged batch, the driver's commit makes all visible at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ...errors import ConnectionLost, OpenDataError, RequestError, RetryLater, StartError, wire_code
from ...staging import BatchInfo, BatchWriter, JobInfo, StagingTarget
from ...staging.job import MAX_JOB_ID_BYTES, check_job_id
from ..broker_access import BrokerAccess
from ..encode.plan import Plan
from ..encode.row_encoder import RowEncoder

#: local properties that Spark gives to the tasks of a micro-batch
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_AFTER_PREFIX_BYTES = len(f"/{UUID(int=0)}/{2**63 - 1}")
_MAX_ATTEMPT = 0xFFFF_FFFF
#: how long the driver tries to commit while the broker does not answer or takes nothing
COMMIT_PATIENCE_SECONDS = 300.0
_PAUSE_SECONDS = 1.0
_AWAY = (ConnectionLost, RetryLater, StartError)


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver: its batch, and what must be declared for it."""

    job_id: str
    batch: BatchInfo
    declare: tuple[Any, ...] = field(default=())


class _Writer:
    """What a batch job and a streaming query have in common. Pickled to the executors."""

    def __init__(self, plan: Plan, access: BrokerAccess) -> None:
        self._plan = plan
        self._access = access
        with access.connect() as broker:
            broker.check(plan.declared())
            self._target: StagingTarget = broker.staging.staging_target()

    def _write(self, plan: Plan, batches: Iterable[pa.RecordBatch], job_id: str) -> Written:
        """One attempt of one partition. A task that fails takes its object with it; one that is killed leaves it for
        the broker's maintenance."""
        context = _context()
        partition, attempt = context.partitionId(), context.taskAttemptId() & _MAX_ATTEMPT
        encoder = RowEncoder(plan, job_id, partition, _now_ms)
        writer = BatchWriter(self._target, job_id, partition, attempt)
        try:
            for batch in batches:
                for messages in encoder.encode(batch):
                    columns = messages._asdict()
                    writer.add_many(
                        columns.pop("envelopes"), columns.pop("headers"), created_at_ms=_now_ms(), **columns
                    )
            info = writer.close()
        except BaseException:
            writer.abort()
            raise
        declare = {entity: None for template in encoder.used.values() for entity in template.declare}
        return Written(job_id, info, tuple(declare))

    def _commit(self, job_id: str, messages: list[Written]) -> JobInfo:
        """Ids follow the partitions' numbers, whatever order the tasks ended in."""
        batches = sorted((message.batch for message in messages), key=lambda info: info.partition)
        entities = {repr(entity): entity for message in messages for entity in message.declare}

        def commit() -> JobInfo:
            with self._access.connect() as broker:
                broker.declare(entities.values())
                return broker.staging.commit_job(job_id, batches)

        return _patiently(commit)

    def _abort(self, messages: list[Any]) -> None:
        """Only what these attempts wrote: another run of the same job may be under way."""
        written = [message for message in messages if isinstance(message, Written)]
        with self._access.connect() as broker:
            for job_id in dict.fromkeys(message.job_id for message in written):
                batches = [message.batch for message in written if message.job_id == job_id]
                broker.staging.abort_job(job_id, batches)


class TaskWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch frame.

    Args:
        report: a file on the driver's host that gets the commit's answer, or the refusal, as JSON; empty for none.
    """

    def __init__(self, plan: Plan, access: BrokerAccess, job_id: str, report: str = "") -> None:
        super().__init__(plan, access)
        self._job_id = job_id
        self._report = report

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(self._plan, iterator, self._job_id)

    def commit(self, messages: list[Any]) -> None:
        written = [message for message in messages if message is not None]
        if len(written) != len(messages):
            raise RequestError("a partition was not written, so the job is not committed")
        try:
            job = self._commit(self._job_id, written)
        except OpenDataError as exc:
            self._tell({"refused": {"code": wire_code(exc), "text": exc.text}})
            raise
        rows = [[message.batch.partition, message.batch.rows] for message in written]
        self._tell({"job": asdict(job), "partitions": sorted(rows)})

    def _tell(self, report: dict[str, Any]) -> None:
        if self._report:
            Path(self._report).write_text(json.dumps(report))

    def abort(self, messages: list[Any]) -> None:
        self._abort(messages)


class TaskStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches, each a job of its own: ``<query id>/<number of the micro-batch>``, below a prefix if given.

    The query's id is the checkpoint's, so another checkpoint, which counts from 0 again, makes other jobs.
    """

    def __init__(self, plan: Plan, access: BrokerAccess, prefix: str = "") -> None:
        check_prefix(prefix)
        super().__init__(plan, access)
        self._prefix = f"{prefix}/" if prefix else ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query, number = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or number is None:
            raise RequestError("Spark does not say which micro-batch this is")
        # a query runs for months: what counts from the submission counts from the micro-batch's
        return self._write(self._plan.at(_now_ms()), iterator, f"{self._prefix}{query}/{number}")

    def commit(self, messages: list[Any], batchId: int) -> None:
        """A micro-batch without rows leaves no job to be remembered."""
        written = [message for message in messages if message is not None and message.batch.rows]
        for job_id in dict.fromkeys(message.job_id for message in written):
            self._commit(job_id, [message for message in written if message.job_id == job_id])

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._abort(messages)


def check_prefix(prefix: str) -> None:
    """See that there is room for what follows a prefix of a stream's job ids; raises RequestError."""
    limit = MAX_JOB_ID_BYTES - _AFTER_PREFIX_BYTES
    if prefix:
        check_job_id(prefix)
    if len(prefix.encode()) > limit:
        raise RequestError(
            f"job_id has {len(prefix.encode())} bytes and can have {limit}, as the query's id and a number follow it",
            option="job_id",
            limit=limit,
        )


def _patiently(commit: Callable[[], JobInfo]) -> JobInfo:
    """A broker that is away comes back; the work of a whole job is worth waiting for it."""
    deadline = time.monotonic() + COMMIT_PATIENCE_SECONDS
    while True:
        try:
            return commit()
        except _AWAY:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RequestError("rows are written by Spark's tasks only")
    return context


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
