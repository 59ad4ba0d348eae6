"""A store without its broker: reading it, figures about it, verifying it. Read only. The functions are asynchronous."""

from __future__ import annotations

from .files.location import instances
from .findings import Finding, Report, Severity, Status
from .inspection import MessageDetails, QueueDetails, Record, inspect, message, queue, record, scan
from .records.offline_store import OfflineStore, open_store
from .stats import StoreStats, stats
from .verify import Progress, verify, verify_store

__all__ = [
    "Finding",
    "MessageDetails",
    "OfflineStore",
    "Progress",
    "QueueDetails",
    "Record",
    "Report",
    "Severity",
    "Status",
    "StoreStats",
    "inspect",
    "instances",
    "message",
    "open_store",
    "queue",
    "record",
    "scan",
    "stats",
    "verify",
    "verify_store",
]
