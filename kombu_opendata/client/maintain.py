"""Requests for immediate maintenance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import RetryLater
from ..protocol.messages import Maintain, Maintained
from .session.broker_connection import BrokerConnection

DEFAULT_TIMEOUT_SECONDS = 60.0


def maintain(
    connection: BrokerConnection,
    duties: Iterable[str] = (),
    *,
    again_in_seconds: float = 0.0,
    timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Run maintenance duties in the broker and return its report.

    This is safe at any time and from several clients concurrently: a request for a running duty waits for its end.

    Args:
        duties: some of ``route``, ``expire_leases`` and ``collect``; empty means all of them.
        again_in_seconds: time until the caller's next request; the broker's own timer starts no collection before that
            request is overdue. 0 means unknown.

    Returns:
        A dictionary. ``duties`` are the duties that were done, and ``joined`` are those of them that were running
        already. ``seconds`` is the duration. The counts are ``routed`` for the duty ``route``, ``leases_expired`` for
        ``expire_leases``, and ``settled_collected``, ``expired_removed`` and ``staged_removed`` for ``collect``. They
        start at the last report to any client, or at the broker's startup, and include the broker's own maintenance.
        Clients that waited for the same run receive the same report.

    Raises:
        RequestError: there is no such duty.
        RetryLater: no report in time, and the maintenance continues in the broker; or the store accepts no writes.
        OpenDataError: as :meth:`BrokerConnection.call`.
    """
    try:
        answer: Maintained = connection.call(Maintain(0, list(duties), float(again_in_seconds)), timeout)
    except TimeoutError as exc:
        raise RetryLater(
            f"maintenance did not end within {timeout:g} s and continues in the broker: see its status and its log, "
            "or allow it more time",
            timeout=timeout,
        ) from exc
    return answer.report
