"""Staged batches: many messages that are written as one object next to the store and committed together.

Executors write, a driver commits, and the broker routes in the background. docs/rfcs/0008-staged-batches.md describes
the formats and the protocol. This package needs no broker, SlateDB or PySpark, so it runs where the rows are::

    # on the driver (kombu_opendata.client.staging_client)
    with StagingClient("opendata:///var/lib/app-queue") as client:
        target = client.staging_target()                      # picklable: ship it to the executors
        …
        # on an executor, once for each attempt of a partition
        writer = BatchWriter(target, job_id, partition, attempt)
        try:
            for row in rows:
                writer.add(envelope, headers, exchange="", routing_key="celery", priority=0,
                           created_at_ms=…, visible_at_ms=0, ttl_ms=-1)
            info = writer.close()                             # a BatchInfo: small, picklable
        except BaseException:
            writer.abort()
            raise
        …
        # on the driver again
        job = client.commit_job(job_id, infos)                # a JobInfo; the same job id again adds nothing
        client.job_status(job_id)                             # counts per queue: routed, done, failed, removed
        client.abort_job(job_id)                              # removes its uncommitted batches

``envelope`` and ``headers`` are those of a publish: :func:`kombu_opendata.transport.kombu_message.encode` and
:func:`kombu_opendata.protocol.envelope.metadata_headers`. ``priority`` is Kombu's (0 to 255, higher first), times are
ms since the epoch. A ``visible_at_ms`` of 0 means immediately. ``ttl_ms`` counts from the commit; -1 means no TTL.

:meth:`BatchWriter.add_many` takes columns, which is faster: a list of envelopes, and for each other column either one
value for all rows or a list of as many values. A row whose header is None does not have the header.

A partition without rows yields a ``BatchInfo`` with ``rows`` 0 and no object. A small batch contains its bytes
(``data``) and has no object either. Both are committed like any other. The messages of a job get consecutive ids,
``first_id`` to ``first_id + rows - 1``, in the order of the batches in the commit and of the rows in each batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.messages import Blocked, JobInfo, JobQueueCounts, TaskCounts
from .job import BatchInfo, StagingTarget

if TYPE_CHECKING:
    from .batch_writer import BatchWriter

__all__ = ["BatchInfo", "BatchWriter", "Blocked", "JobInfo", "JobQueueCounts", "StagingTarget", "TaskCounts"]


def __getattr__(name: str) -> Any:
    if name == "BatchWriter":  # every client uses the states of jobs, but few write batches
        from .batch_writer import BatchWriter

        return BatchWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
