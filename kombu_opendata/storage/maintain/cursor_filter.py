"""Which stored messages a cursor brings into its queue, by their metadata headers."""

from __future__ import annotations

from ...selectors import compile_selector
from ..read.stored_messages import PRIORITY, priority_of
from ..records import metadata
from ..routing.topology import Topology
from ..state.queue_limits import TTL_HEADER

#: combinations of headers of which is remembered whether they match, and how long their texts are together at most
_VERDICTS_KEPT = 4096
_VERDICT_TEXT = 256


class CursorFilter:
    """Whether a stored message belongs into a queue.

    Attributes:
        decode: reads the metadata of a message, with the headers that matter for that and for a row of the queue.
    """

    def __init__(self, topology: Topology, queue: str, selector: str) -> None:
        own = topology.definition_of(queue).selector
        further = compile_selector(selector) if selector else None
        names = {PRIORITY, TTL_HEADER, *own.names, *(further.names if further is not None else ())}
        self.made_of = (topology.version, selector)
        self.decode = metadata.Decoder(names).decode
        self._own, self._further = own, further
        self._known: dict[metadata.Pairs, int | None] = {}

    def priority_in(self, pairs: metadata.Pairs) -> int | None:
        """The stored priority that a message with such headers has in the queue; None if it does not belong there.

        Few headers matter, so the same ones come again and again.
        """
        known = self._known
        if pairs in known:
            return known[pairs]
        headers = dict(pairs)
        matches = self._own.matches(headers) and (self._further is None or self._further.matches(headers))
        found = priority_of(headers) if matches else None
        if sum(len(text) for _name, text in pairs) <= _VERDICT_TEXT:
            if len(known) >= _VERDICTS_KEPT:
                known.clear()
            known[pairs] = found
        return found
