"""The checks, one module for each family of records. To add one: a :class:`~.base.Family`, and its line here.

A kind of record that no family claims is still read and decoded, so a record that does not decode is found. What must
hold for a message goes into :mod:`.messages`; a new scheme of payload URIs into :mod:`.payload_uris`.
"""

from __future__ import annotations

from .base import Context, Family
from .header import HeaderFamily
from .history import HistoryFamily
from .queues import QueueFamily
from .results import ResultFamily
from .routing import RoutingFamily
from .sessions import SessionFamily
from .staged import StagedFamily
from .topology import TopologyFamily

__all__ = ["FAMILIES", "Context", "Family"]

FAMILIES: tuple[type[Family], ...] = (
    HeaderFamily,
    QueueFamily,
    TopologyFamily,
    SessionFamily,
    ResultFamily,
    RoutingFamily,
    StagedFamily,
    HistoryFamily,
)
