"""Changes of stored messages that a frame selects: run their tasks again, move, archive or purge them."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import Any, Unpack

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..bucket_credentials import bucket_settings
from ..celery_integration.broker_access import BrokerArguments, JobBroker, access_of
from ..errors import InvalidMessage, QueueFull
from ..protocol import messages as m
from ..protocol.retried_task import retried_task
from ..staging.batch_writer import BatchWriter
from ..staging.job import MAX_PART, BatchInfo, StagingTarget
from .encode.plan import ColumnNames, JobPlan
from .encode.row_encoder import now_ms, partition_prefix
from .option_text import bucket_options, check_column
from .result import SubmitResult
from .source import read_table
from .write.job_digest import check_same, digest_of, with_rows
from .write.task_arguments import TaskArguments, check_frame
from .write.task_writers import task_context

#: ids of one request; the broker takes fewer of messages that it settles
_IDS, _SETTLED_IDS = 10_000, 1_000
#: of all jobs of :func:`resubmit`, and of no other job, as they have no task
RESUBMISSION = digest_of(JobPlan(ColumnNames()))


def resubmit(
    df: DataFrame,
    *,
    queue: str | Column | None = None,
    job_id: str | None = None,
    bucket: Mapping[str, str] | None = None,
    **broker: Unpack[BrokerArguments],
) -> SubmitResult:
    """Run the tasks of stored messages again, whatever their state, as a new job.

    The new messages keep arguments, callbacks, the rest of the chain, headers and priority. Their task ids are new, and
    ``parent_id`` is the old one. A member of a chord runs without its group, because the chord has counted it.

    Args:
        df: a frame with a column ``message_id``; repeated ids count once.
        queue: a queue, or a column of queues; by default, messages are routed as they were. Missing ones are created.
        job_id: a resubmission whose id was committed before is returned, and nothing is added. Random by default.
        bucket: as in ``submit_tasks``.
        broker: ``broker_url``, or ``app``, and ``transport_options``, as in ``submit_tasks``.

    Raises:
        RequestError: there is no such column, or an argument is refused.
        PreconditionFailed: the id is that of another job.
        pyspark.errors.PySparkException: a message is not stored any more, or is not a task. Nothing was sent.
        OpenDataError: the broker refuses the job.
    """
    check_frame(df, streams=False)
    TaskArguments("resubmit", queue=queue).check(job_id)
    check_column("message_id", df.columns)
    bucket_options(bucket)
    spark, settings = df.sparkSession, dict(bucket or {})
    access = replace(access_of(**broker), bucket=settings)
    if known := access.committed_job(job_id):
        check_same(known, RESUBMISSION)
        return SubmitResult(spark, access, known)
    job_id = job_id or str(uuid.uuid4())
    to = queue if isinstance(queue, Column) else F.lit(queue or "")
    ids = df.select("message_id", to.alias("queue")).dropDuplicates(["message_id"])
    ids = ids.localCheckpoint()  # computed again from the store of a running broker, it may have other rows
    ((first, last),) = ids.agg(F.min("message_id"), F.max("message_id")).collect()
    bounds: dict[str, Any] = {"first_id": first or 0, "last_id": last or 0, **access.store_arguments()}
    stored = read_table(spark, table="messages", columns=["message_id", "payload"], **bounds)
    frame = ids.join(stored, "message_id", "left").sortWithinPartitions("message_id")
    parts = frame.select("message_id", "payload", "queue").mapInArrow(
        partial(_write_retried, access.staging_target(), job_id, settings), "part binary"
    )
    written: list[tuple[BatchInfo, set[str]]] = [pickle.loads(bytes(row.part)) for row in parts.collect()]
    batches = sorted((batch for batch, _queues in written), key=lambda batch: batch.partition)
    with access.connect() as connection:
        connection.create_queues({name for _batch, queues in written for name in queues})
        digest = with_rows(RESUBMISSION, sum(batch.rows for batch in batches))
        job = connection.staging.commit_job(job_id, batches, digest=digest)
    check_same(job, RESUBMISSION)  # another driver may have committed another job since
    return SubmitResult(spark, access, job, [(batch.partition, batch.rows) for batch in batches] if job.added else None)


def _write_retried(
    target: StagingTarget, job_id: str, bucket: Mapping[str, str], rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write a partition of messages as a batch, for ``mapInArrow``; yield the batch and its queues, pickled."""
    context = task_context()
    partition, attempt = context.partitionId(), context.taskAttemptId() & MAX_PART
    prefix, queues = partition_prefix(job_id, partition), set()
    with bucket_settings(bucket), BatchWriter(target, job_id, partition, attempt) as writer:
        for batch in rows:
            for id, envelope, queue in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                message = _retried(id, envelope, f"{prefix}{writer.rows:012x}", job_id, queue or "")
                queues.add(queue or "")
                writer.add(
                    message.envelope, message.headers, exchange=message.exchange, routing_key=message.routing_key,
                    priority=message.priority, created_at_ms=message.created_at_ms, ttl_ms=message.ttl_ms,
                )  # fmt: skip
        info = writer.close()
    yield pa.RecordBatch.from_pydict({"part": [pickle.dumps((info, queues - {""}))]})


def _retried(id: int | None, envelope: bytes | None, task_id: str, job_id: str, queue: str) -> m.Publish:
    if envelope is None:
        raise InvalidMessage(f"message {id} is not stored any more: leave it out", message_id=id)
    message = retried_task(envelope, now_ms(), new_id=task_id, job_id=job_id, queue=queue)
    if message is None:
        raise InvalidMessage(f"message {id} is not a task: leave it out, or call move_messages", message_id=id)
    return message


def move_messages(df: DataFrame, target: str, **broker: Unpack[BrokerArguments]) -> int:
    """Move ready and delayed messages to another queue; return their number.

    They keep their ids. A repeated call moves the rest.

    Args:
        df: a frame with the columns ``queue`` and ``message_id``, such as the table ``backlog``. A row without one of
            them, such as that of a collected message, has no effect.
        target: an existing queue.
        broker: ``broker_url``, or ``app``, and ``transport_options``, as in ``submit_tasks``.

    Raises:
        RequestError: there is no such column.
        NotFound: there is no such queue.
        QueueFull: the target has reached its maximum length; some messages may have been moved.
    """

    def move(connection: JobBroker, queue: str, ids: list[int]) -> int:
        moved = connection.call(m.MoveMessages(0, queue, target, ids=ids))
        if moved.is_full:
            text = f"queue {target!r} has reached its maximum length: the rest of the messages stays where it is"
            raise QueueFull(text, queue=target)
        return int(moved.count)

    return _change(df, broker, move)


def archive_failed(df: DataFrame, **broker: Unpack[BrokerArguments]) -> int:
    """Archive failed messages, which no retention removes then; return their number.

    Arguments and errors are those of :func:`move_messages`.
    """
    return _change(df, broker, lambda connection, queue, ids: connection.call(m.ArchiveFailed(0, queue, ids=ids)).count)


def purge_messages(df: DataFrame, **broker: Unpack[BrokerArguments]) -> int:
    """Delete messages from their queues, unless they are in flight; return their number.

    Ready, delayed, done, failed and archived ones are deleted. The attempts stay in the history. Arguments and errors
    are those of :func:`move_messages`.
    """

    def purge(connection: JobBroker, queue: str, ids: list[int]) -> int:
        count = 0
        for at in range(0, len(ids), _SETTLED_IDS):
            items = [(id, 0) for id in ids[at : at + _SETTLED_IDS]]
            count += len(connection.call(m.SettleMessages(0, queue, m.Ending.DELETE, items)).done)
        for state in ("done", "failed", "archived_failed"):
            count += connection.call(m.DeleteSettled(0, queue, state, ids=ids)).count
        return count

    return _change(df, broker, purge)


def _change(df: DataFrame, broker: BrokerArguments, change: Callable[[JobBroker, str, list[int]], int]) -> int:
    """Call a function with the ids of each queue, in parts, and return the sum of its results."""
    check_frame(df, streams=False)
    for name in ("queue", "message_id"):
        check_column(name, df.columns)
    rows = df.select("queue", "message_id").dropna().distinct().orderBy("queue", "message_id").toLocalIterator()
    count = 0
    with access_of(**broker).connect() as connection:
        for queue, group in groupby(rows, lambda row: row.queue):
            while ids := [row.message_id for row in islice(group, _IDS)]:
                count += change(connection, queue, ids)
    return count
