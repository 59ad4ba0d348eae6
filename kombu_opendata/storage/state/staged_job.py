"""A staged job and a batch object in memory (docs/rfcs/0008-staged-batches.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..records import staged

#: the indexes of a queue's counts in :attr:`StagedJob.queues`
ROUTED, DONE, FAILED, REMOVED = range(4)
#: queues that a job counts individually; further ones are counted together, under an empty name
_MAX_QUEUES = 500


class StagedBatch(NamedTuple):
    """One batch of a job as its commit names it. Without a ``path`` it was part of the call, so there is no object."""

    path: str
    rows: int
    bytes: int
    checksum: int


@dataclass(slots=True, eq=False)
class StagedJob:
    """A committed job.

    Attributes:
        routed: the number of rows that were routed so far, unroutable and damaged ones included: the cursor.
        queues: name → [routed, done, failed, removed].
        settled_at_ms: the time at which its last message was settled; 0 before.
    """

    id: str
    first_id: int
    rows: int
    batches: int
    bytes: int
    committed_at_ms: int
    routed: int = 0
    unroutable: int = 0
    damaged: int = 0
    settled_at_ms: int = 0
    queues: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, id: str, record: staged.JobRecord) -> StagedJob:
        """Build the job from its record."""
        return cls(id, *record[:9], {name: list(counts) for name, counts in record.queues.items()})

    def record(self) -> staged.JobRecord:
        """Return the record of the job."""
        queues = {name: (a, b, c, d) for name, (a, b, c, d) in self.queues.items()}
        return staged.JobRecord(
            self.first_id, self.rows, self.batches, self.bytes, self.committed_at_ms, self.routed, self.unroutable,
            self.damaged, self.settled_at_ms, queues,
        )  # fmt: skip

    def counts(self, queue: str, *, new: bool = False) -> list[int] | None:
        """Return the counts of a queue; if there are none yet, None or, with ``new``, new ones."""
        queue_counts = self.queues.get(queue)
        if queue_counts is None and (new or "" in self.queues):
            name = queue if len(self.queues) < _MAX_QUEUES else ""
            queue_counts = self.queues.setdefault(name, [0, 0, 0, 0]) if new else self.queues.get("")
        return queue_counts

    @property
    def is_routed(self) -> bool:
        """True if every row was routed."""
        return self.routed == self.rows

    @property
    def is_over(self) -> bool:
        """True if no message of the job is waiting."""
        return self.is_routed and all(counts[0] == sum(counts[1:]) for counts in self.queues.values())

    @property
    def state(self) -> str:
        """The state, named as in :class:`kombu_opendata.staging.JobInfo`."""
        if self.settled_at_ms:
            return "settled"
        return "routed" if self.is_routed else "routing"


@dataclass(slots=True, eq=False)
class StagedObject:
    """A batch object; ``live`` counts its messages that are not collected."""

    first_id: int
    rows: int
    live: int
    bytes: int
    checksum: int
    path: str
    job_id: str

    def record(self) -> staged.Object:
        """Return the record of the object."""
        return staged.Object(self.rows, self.live, self.bytes, self.checksum, self.path, self.job_id)
