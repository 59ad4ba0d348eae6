"""The retention of the metadata log: the first message from which it keeps unneeded ones."""

from __future__ import annotations

from ..records import keys, log_retention
from ..records.log_retention import FOREVER, LogRetention
from ..slatedb.ffi import WriteBatch


class LogState:
    """The retention of one instance's log.

    Attributes:
        record: the record, as the next checkpoint writes it; None if the log never kept a message.
    """

    def __init__(self) -> None:
        self.record: LogRetention | None = None

    @property
    def kept_from(self) -> int:
        """The first id from which the log keeps messages that no queue needs."""
        if self.record is None or not self.record.retention_ms:
            return keys.MAX_MESSAGE_ID
        return 0 if self.record.retention_ms == FOREVER else self.record.position

    @property
    def kept(self) -> int:
        """The number of messages that only the log keeps, at the last checkpoint."""
        return self.record.kept if self.record is not None else 0

    def count(self, more: int) -> bool:
        """Change the number of kept messages; return True if the record changed."""
        if not more or self.record is None:
            return False
        self.record = self.record._replace(kept=max(self.record.kept + more, 0))
        return True

    def put_into(self, batch: WriteBatch) -> None:
        """Add the record to a checkpoint's batch."""
        if self.record is None:
            batch.delete(keys.LOG_RETENTION_KEY)
        else:
            batch.put(keys.LOG_RETENTION_KEY, log_retention.encode(self.record))
