"""A staged job and a batch object in memory (docs/rfcs/0008-staged-batches.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..records import staged

#: where a queue's counts are in :attr:`StagedJob.queues`
ROUTED, DONE, FAILED, REMOVED = range(4)
#: queues that a job counts one by one; further ones are counted together, under an empty name
_MAX_QUEUES = 500


class StagedBatch(NamedTuple):
    """One batch of a job as its commit names it. No ``path``: it came with the call, so there is no object."""

    path: str
    rows: int
    bytes: int
    checksum: int


@dataclass(slots=True, eq=False)
class StagedJob:
    """A committed job.

    Attributes:
        routed: rows that were routed so far, unroutable and damaged ones included: the cursor.
        queues: name → [routed, done, failed, removed].
        settled_at_ms: when its last message was settled; 0 before.
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
        """From its record."""
        return cls(id, *record[:9], {name: list(counts) for name, counts in record.queues.items()})

    def record(self) -> staged.JobRecord:
        """Its record."""
        queues = {name: (a, b, c, d) for name, (a, b, c, d) in self.queues.items()}
        return staged.JobRecord(
            self.first_id, self.rows, self.batches, self.bytes, self.committed_at_ms, self.routed, self.unroutable,
            self.damaged, self.settled_at_ms, queues,
        )  # fmt: skip

    def counts(self, queue: str, *, new: bool = False) -> list[int] | None:
        """The counts of a queue; if there are none yet, None or, with ``new``, new ones."""
        found = self.queues.get(queue)
        if found is None and (new or "" in self.queues):
            name = queue if len(self.queues) < _MAX_QUEUES else ""
            found = self.queues.setdefault(name, [0, 0, 0, 0]) if new else self.queues.get("")
        return found

    @property
    def is_routed(self) -> bool:
        """Whether every row was routed."""
        return self.routed == self.rows

    @property
    def is_over(self) -> bool:
        """Whether no message of it is waiting."""
        return self.is_routed and all(counts[0] == sum(counts[1:]) for counts in self.queues.values())

    @property
    def state(self) -> str:
        """As :class:`kombu_opendata.staging.JobInfo` names it."""
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
        """Its record."""
        return staged.Object(self.rows, self.live, self.bytes, self.checksum, self.path, self.job_id)
