"""What the metadata log keeps that no queue needs any more: its retention, and how far it was swept."""

from __future__ import annotations

from .ffi import Batch
from .records import keys, log_retention
from .records.log_retention import FOREVER, LogRetention


class LogState:
    """The retention of one instance's log.

    Attributes:
        stored: as the record says, or will; None where nothing was ever kept.
    """

    def __init__(self) -> None:
        self.stored: LogRetention | None = None

    @property
    def kept_from(self) -> int:
        """From this id on messages are kept that no queue needs."""
        if self.stored is None or not self.stored.retention_ms:
            return keys.MAX_MESSAGE_ID
        return 0 if self.stored.retention_ms == FOREVER else self.stored.position

    @property
    def kept(self) -> int:
        """How many messages only the log keeps, as of the last checkpoint."""
        return self.stored.kept if self.stored is not None else 0

    def count(self, more: int) -> bool:
        """So many more messages, or fewer, are kept; returns whether the record changed."""
        if not more or self.stored is None:
            return False
        self.stored = self.stored._replace(kept=max(self.stored.kept + more, 0))
        return True

    def put_into(self, batch: Batch) -> None:
        """Add the record to a checkpoint."""
        if self.stored is None:
            batch.delete(keys.LOG_RETENTION_KEY)
        else:
            batch.put(keys.LOG_RETENTION_KEY, log_retention.encode(self.stored))
