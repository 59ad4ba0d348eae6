"""When leases from before a restart return to their queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.broker.delivery.leases.lease_expiry import LeaseExpiry

GRACE_MS = 2000
OPENED_AT_MS = 100_000


class Reopened:
    """An instance that was opened with a lease of a session that is not there."""

    def __init__(self, lease_until: int) -> None:
        self.now_ms = OPENED_AT_MS
        self.returned: list[tuple[Any, str, bool]] = []
        self.entry = SimpleNamespace(queue="q", lease_until=lease_until)
        state = SimpleNamespace(leases={b"session": {1: self.entry}}, session_names={b"session": "name"}, producers={})
        nothing = SimpleNamespace(schedule=lambda: None, wake=lambda _queue: None, get=lambda _name: self)
        clock = SimpleNamespace(now_ms=lambda: self.now_ms)
        core = SimpleNamespace(sessions={}, queues=nothing, clock=clock, outbox=nothing)
        parts: list[Any] = [core, nothing, nothing, state, nothing, GRACE_MS, GRACE_MS]
        self.expiry = LeaseExpiry(*parts)

    def end(self, entry: Any, _outcome: int, name: str, *, lease_expired: bool) -> None:
        """As that of the queue."""
        self.returned.append((entry, name, lease_expired))

    def expire(self, after_ms: int) -> None:
        self.now_ms = OPENED_AT_MS + after_ms
        self.expiry.expire()


@pytest.mark.parametrize(
    ("lease_ends_after_ms", "kept_until_ms"), [(-60_000, GRACE_MS), (500, GRACE_MS), (30_000, 30_000)]
)
def test_a_lease_lasts_and_never_less_than_the_grace(lease_ends_after_ms: int, kept_until_ms: int) -> None:
    instance = Reopened(OPENED_AT_MS + lease_ends_after_ms)
    instance.expire(0)
    instance.expire(kept_until_ms - 1)
    assert instance.returned == []
    instance.expire(kept_until_ms)
    assert instance.returned == [(instance.entry, "name", True)]
