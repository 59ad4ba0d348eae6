"""The driver's side of staged batches: asks where to write, commits, aborts, and looks how a job goes.

See :mod:`kombu_opendata.staging` for the executors' side and an example. All calls may be repeated: a connection that
breaks is resumed and the call sent again, and a commit that was applied is answered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from ...errors import RequestError
from ...protocol.frame_limits import MAX_ITEMS
from ...protocol.staging_messages import (
    AbortJob,
    CommitJob,
    GetJob,
    GetStagingTarget,
    Job,
    JobReport,
    Jobs,
    ListJobs,
    StagingInfo,
)
from ...staging.batch_writer import write_object
from ...staging.folder_url import open_folder
from ...staging.job import BatchInfo, Blocked, JobInfo, QueueCounts, StagingTarget, check_job_id
from ...url import Address, parse
from ..connection_options import DEFAULTS, Options
from ..session.broker_connection import BrokerConnection

#: batches of one commit: they are one list of a call
MAX_BATCHES = MAX_ITEMS


class StagingClient:
    """The staged jobs of one broker, over a connection of its own or a given one.

    Args:
        broker: a broker URL, an address, or a connection that stays open after :meth:`close`.
    """

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
        """End the connection, if it is this client's own."""
        if self._own is not None:
            self._own.close()

    # ------------------------------------------------------------ calls
    def staging_target(self) -> StagingTarget:
        """Where the executors of a job write. Picklable.

        Raises:
            RequestError: the broker's store can't hold staged batches.
            StoreError: the broker lacks a package for its store; the text names the extra.
        """
        answer: StagingInfo = self._connection.call(GetStagingTarget(0))
        return StagingTarget(
            answer.url, answer.instance, answer.options, answer.max_message_bytes, answer.inline_bytes,
            answer.inline_rows,
        )  # fmt: skip

    def commit_job(self, job_id: str, batches: Iterable[BatchInfo], *, timeout: float | None = None) -> JobInfo:
        """Make all messages of these batches visible, at once and once.

        Of a job id that was committed before nothing is added, whatever the batches are now: the answer is the job as
        it is, with ``added`` False. That holds after a lost answer, a restart of the broker, and for two drivers that
        commit at the same time; a job is remembered until a week after all its messages were settled. Batches that
        were not part of the commit stay invisible and are collected.

        Args:
            batches: one for each partition, in the order that the ids are to have.
            timeout: seconds to wait for the answer, None for ever. Past it the job may be committed all the same: call
                again.

        Raises:
            RequestError: a job id or a batch that can't be; nothing was added. ``NotFound``: a batch is missing.
            CorruptRecord: a batch is damaged; nothing was added.
            StoreFull, StoreError: the store takes no writes now; nothing was added.
            TimeoutError: no answer in time.
        """
        check_job_id(job_id)
        found = [info for info in batches if info.rows]
        if len(found) > MAX_BATCHES:
            raise RequestError(
                f"{len(found)} batches: a job has at most {MAX_BATCHES}; use fewer partitions", limit=MAX_BATCHES
            )
        found = self._as_agreed(found)
        rows = [(info.uri, info.rows, info.bytes, info.checksum, info.data) for info in found]
        return _job(self._connection.call(CommitJob(0, job_id, rows), timeout))

    def _as_agreed(self, batches: list[BatchInfo]) -> list[BatchInfo]:
        """Small batches that together are too much for a commit become objects; so do all, if one is an object."""
        if not any(info.data for info in batches):
            return batches
        target = self.staging_target()
        inline = (
            all(info.data for info in batches)
            and sum(info.bytes for info in batches) <= target.inline_bytes
            and sum(info.rows for info in batches) <= target.inline_rows
        )
        if inline:
            return batches
        folder = open_folder(target.url, target.options)
        return [write_object(folder, info) if info.data else info for info in batches]

    def abort_job(self, job_id: str, batches: Iterable[BatchInfo | None] | None = None) -> int:
        """Remove what was staged for a job; returns how many objects were there.

        Args:
            batches: only these (None among them is ignored, as Spark has it); without it all batches of the job.

        Raises:
            PreconditionFailed: the job is committed: its batches are in use.
        """
        check_job_id(job_id)
        given = [info for info in batches or () if info is not None]
        uris = [info.uri for info in given if info.uri and not info.data]
        if batches is not None and not uris:
            return 0
        count: int = self._connection.call(AbortJob(0, job_id, uris)).count
        return count

    def job_status(self, job_id: str) -> JobInfo:
        """The job as it is now; its state is ``unknown`` if it was never committed, or is forgotten."""
        check_job_id(job_id)
        return _job(self._connection.call(GetJob(0, job_id)))

    def list_jobs(self) -> Iterator[JobInfo]:
        """All jobs that the broker remembers, ordered by their ids."""
        after, more = "", True
        while more:
            answer: Jobs = self._connection.call(ListJobs(0, after))
            yield from (_info(job, blocked=answer.blocked.get(job[0])) for job in answer.jobs)
            more = answer.more
            after = answer.jobs[-1][0] if answer.jobs else after


def _job(report: JobReport) -> JobInfo:
    return _info(report.job, report.added, report.same, report.blocked)


def _info(job: Job, added: bool = False, same: bool = True, blocked: Blocked | None = None) -> JobInfo:
    queues = {name: QueueCounts(*counts) for name, counts in job[10].items()}
    return JobInfo(*job[:10], queues, added, same, blocked)
