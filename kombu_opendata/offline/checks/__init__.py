"""Checks of records, one module for each family. To add one, write a :class:`~.family.Family` and list it here.

Records of kinds without a family are decoded, too, and reported if they do not decode.
Invariants of messages belong in :mod:`.message_checks`.
"""

from __future__ import annotations

from .family import CheckContext, Family
from .history_records import HistoryFamily
from .queue_records import HeaderFamily, QueueFamily
from .result_records import ResultFamily
from .routing_records import RoutingFamily, TopologyFamily
from .session_records import SessionFamily
from .staged_records import StagedFamily

__all__ = ["FAMILIES", "CheckContext", "Family"]

FAMILIES: tuple[type[Family], ...] = (
    HeaderFamily, QueueFamily, TopologyFamily, SessionFamily, ResultFamily, RoutingFamily, StagedFamily, HistoryFamily,
)  # fmt: skip
