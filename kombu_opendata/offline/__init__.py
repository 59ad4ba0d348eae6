"""A store without its broker: reading it, figures about it, verifying it. Read only. The functions are asynchronous."""

from __future__ import annotations

from .findings import Finding, Report, Severity, Status
from .store import OfflineStore, open_store
from .verify import Progress, verify, verify_store

__all__ = [
    "Finding",
    "OfflineStore",
    "Progress",
    "Report",
    "Severity",
    "Status",
    "open_store",
    "verify",
    "verify_store",
]
