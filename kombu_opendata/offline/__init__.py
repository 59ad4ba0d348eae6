"""Access to a store without its broker: reading, counting and verification. The functions are asynchronous.

:mod:`.backup` copies stores and restores copies.
"""

from __future__ import annotations

from .files.store_location import instances
from .findings import Finding, Progress, Report, Severity, VerifyStatus
from .inspection import MessageDetails, QueueDetails, inspect, message, queue
from .records.offline_store import OfflineStore
from .records.open_store import open_store
from .records.record_view import Record, record, scan
from .stats import StoreStats, stats
from .verify import verify_store

__all__ = [
    "Finding", "MessageDetails", "OfflineStore", "Progress", "QueueDetails", "Record", "Report", "Severity",
    "StoreStats", "VerifyStatus", "inspect", "instances", "message", "open_store", "queue", "record", "scan", "stats",
    "verify_store",
]  # fmt: skip
