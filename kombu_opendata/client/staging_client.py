"""Driver's side of staged batches: target, commit and abort of jobs.

:mod:`kombu_opendata.staging` is the side of the executors. All calls may be repeated: after a break the
connection is resumed and the call sent again, and a commit that was applied before gets its reply again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Self

from msgspec.structs import astuple

from ..errors import RequestError
from ..protocol import messages as m
from ..protocol.messages.message_base import MAX_ITEMS, Reply, Request
from ..staging.batch_writer import merge_inline
from ..staging.job import BatchInfo, StagingTarget, check_job_id
from ..url import Address, parse
from .connection_options import DEFAULTS, Options
from .job_calls import JobCalls
from .session.broker_connection import BrokerConnection

#: limit for the batches of one commit, which are one list in its request
MAX_BATCHES = MAX_ITEMS


class StagingClient(JobCalls):
    """Client for the staged jobs of one broker: a URL, an address, or a connection, which :meth:`close` leaves open."""

    def __init__(self, broker: str | Address | BrokerConnection, options: Options = DEFAULTS) -> None:
        self._own: BrokerConnection | None = None
        if isinstance(broker, BrokerConnection):
            self._connection: BrokerConnection = broker
        else:
            address = parse(broker) if isinstance(broker, str) else broker
            self._connection = self._own = BrokerConnection(address, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def _request(self, message: Request[Reply]) -> Reply:
        return self._connection.call(message)

    # ------------------------------------------------------------ calls
    def staging_target(self) -> StagingTarget:
        """Return the target to which the executors of a job write; it can be pickled.

        Raises:
            RequestError: the broker's store can't hold staged batches.
            StoreError: the broker lacks a package for its store; the text names the extra.
        """
        answer: m.StagingInfo = self._connection.call(m.GetStagingTarget(0))
        return StagingTarget(*astuple(answer)[1:])

    def commit_job(
        self,
        job_id: str,
        batches: Iterable[BatchInfo],
        *,
        digest: str = "",
        rate_limit: float = 0.0,
        on_complete: bytes = b"",
        timeout: float | None = None,
    ) -> m.JobInfo:
        """Commit all messages of these batches, atomically and exactly once.

        If the job id was committed before, nothing is added, whatever the batches are now, and the reply is the
        existing job with ``added`` False. This holds after a lost reply, after a restart of the broker, and for two
        drivers that commit at the same time. The broker remembers a job until a week after its last message was
        settled. Batches that were not part of the commit stay invisible and are collected.

        Args:
            batches: one for each partition, in the order that their messages' ids will have.
            digest: a digest of what the job is made from, up to 64 bytes. ``same`` in the reply is False if the job was
                committed before with another digest.
            rate_limit: the number of tasks that the broker puts into queues in a second; 0 for no limit.
            on_complete: the envelope of a task, sent when all tasks of the job have ended for the first time; see
                :class:`kombu_opendata.protocol.messages.CommitJob`.
            timeout: seconds to wait for the reply. After a timeout the job may be committed nevertheless: call again.

        Raises:
            RequestError, NotFound: the job id or a batch is not valid, or a batch is missing; nothing was added.
            CorruptRecord: a batch is damaged; nothing was added.
            StoreFull, StoreError: the store accepts no writes now; nothing was added.
            TimeoutError: no reply in time.
        """
        check_job_id(job_id)
        non_empty = [info for info in batches if info.rows]
        if len(non_empty) > MAX_BATCHES:
            raise RequestError(
                f"{len(non_empty)} batches: a job has at most {MAX_BATCHES}; use fewer partitions", limit=MAX_BATCHES
            )
        non_empty = self._fit_commit(job_id, non_empty)
        rows = [(info.uri, info.rows, info.bytes, info.checksum, info.data) for info in non_empty]
        message = m.CommitJob(0, job_id, rows, digest, rate_limit, on_complete)
        report: m.JobReport = self._connection.call(message, timeout)
        return report.info

    def _fit_commit(self, job_id: str, batches: list[BatchInfo]) -> list[BatchInfo]:
        """Write adjacent inline batches as one object if they exceed the limits of a commit, or any is an object."""
        if not any(info.data for info in batches):
            return batches
        target = self.staging_target()
        inline = (
            all(info.data for info in batches)
            and sum(max(info.bytes, info.contents_bytes) for info in batches) <= target.inline_bytes
            and sum(info.rows for info in batches) <= target.inline_rows
        )
        if inline:
            return batches
        fitting: list[BatchInfo] = []
        for is_inline, group in groupby(batches, key=lambda info: bool(info.data)):
            adjacent = list(group)
            fitting += [merge_inline(adjacent, target, job_id)] if is_inline else adjacent
        return fitting

    def abort_job(self, job_id: str, batches: Iterable[BatchInfo | None] | None = None) -> int:
        """Remove the staged batches of a job and return the number of their objects.

        Args:
            batches: remove only these, without the None that Spark passes for a failed task; by default all.

        Raises:
            PreconditionFailed: the job is committed, so its batches are in use.
        """
        check_job_id(job_id)
        selection = [info for info in batches or () if info is not None]
        uris = [info.uri for info in selection if info.uri and not info.data]
        if batches is not None and not uris:
            return 0
        count: int = self._connection.call(m.AbortJob(0, job_id, uris)).count
        return count

    def job_status(self, job_id: str) -> m.JobInfo:
        """Return the job; its state is ``unknown`` if the broker does not remember such a job."""
        check_job_id(job_id)
        report: m.JobReport = self._connection.call(m.GetJob(0, job_id))
        return report.info
