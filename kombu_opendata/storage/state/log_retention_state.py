"""What the metadata log keeps that no queue needs any more: its retention, and how far it was swept."""

from __future__ import annotations

from ..records import keys, log_retention
from ..records.log_retention import FOREVER, LogRetention
from ..slatedb.ffi import Batch


class LogState:
    """The retention of one instance's log.

    Attributes:
        record: as the record says, or will; None where nothing was ever kept.
    """

    def __init__(self) -> None:
        self.record: LogRetention | None = None

    @property
    def kept_from(self) -> int:
        """From this id on messages are kept that no queue needs."""
        if self.record is None or not self.record.retention_ms:
            return keys.MAX_MESSAGE_ID
        return 0 if self.record.retention_ms == FOREVER else self.record.position

    @property
    def kept(self) -> int:
        """How many messages only the log keeps, as of the last checkpoint."""
        return self.record.kept if self.record is not None else 0

    def count(self, more: int) -> bool:
        """So many more messages, or fewer, are kept; returns whether the record changed."""
        if not more or self.record is None:
            return False
        self.record = self.record._replace(kept=max(self.record.kept + more, 0))
        return True

    def put_into(self, batch: Batch) -> None:
        """Add the record to a checkpoint."""
        if self.record is None:
            batch.delete(keys.LOG_RETENTION_KEY)
        else:
            batch.put(keys.LOG_RETENTION_KEY, log_retention.encode(self.record))
