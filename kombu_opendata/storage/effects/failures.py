"""The effect of handling failures: their tasks were retried, or they were archived."""

from __future__ import annotations

from ..records.handled_failures import Handled
from ..state.store_state import StoreState
from .effect import Effect


class HandleFailuresEffect(Effect, tag=65):
    """Failed attempts were retried, in the same commit, or archived.

    ``rows`` is a flat list attempt's number, new message id, …; the ids are 0 if the attempts were archived.
    """

    how: int
    at_ms: int
    rows: list[int]

    def apply(self, state: StoreState) -> None:
        how, at = self.how, self.at_ms
        pairs = zip(self.rows[::2], self.rows[1::2], strict=True)
        state.handled.handled(Handled(number, how, at, id) for number, id in pairs)
