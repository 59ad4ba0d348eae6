"""The limit on a connection's concurrent queries: calls whose replies may be far larger than the calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...errors import ProtocolError
from ...protocol.messages.message_base import WireMessage

_MAX_QUERIES = 4


class Queries:
    """The running queries of one connection.

    Attributes:
        count: the number of running queries.
        is_full: further messages wait until a query is answered.
    """

    __slots__ = ("_under_way", "count", "is_full")

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()  # by request number
        self.count = 0
        self.is_full = False

    def begin(self, rid: int, name: str) -> None:
        """Count a query that begins.

        Raises:
            ProtocolError: it has no request number.
        """
        if not rid:
            raise ProtocolError(f"a {name} without a request number could not be answered")
        self._under_way[rid] += 1
        self._change(1)

    def answered(self, outgoing: Iterable[WireMessage]) -> None:
        """Count the queries that these messages answer."""
        under_way = self._under_way
        for message in outgoing:
            rid = getattr(message, "rid", 0)
            if rid in under_way:
                under_way[rid] -= 1
                if not under_way[rid]:
                    del under_way[rid]
                self._change(-1)

    def _change(self, by: int) -> None:
        self.count += by
        self.is_full = self.count >= _MAX_QUERIES
