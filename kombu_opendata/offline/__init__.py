"""A store without its broker: reading it, figures about it, verifying it. Read only. The functions are asynchronous."""

from __future__ import annotations

from .findings import Finding, Report, Severity, Status
from .inspection import MessageDetails, QueueDetails, Record, inspect, message, queue, record, scan
from .location import instances
from .stats import StoreStats, stats
from .store import OfflineStore, open_store
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
