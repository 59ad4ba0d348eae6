"""Ask a broker to do its maintenance now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import RetryLater
from ...protocol.messages import Maintain, Maintained
from ..session.broker_connection import BrokerConnection

DEFAULT_TIMEOUT_SECONDS = 60.0


def maintain(
    connection: BrokerConnection,
    duties: Iterable[str] = (),
    *,
    again_in_seconds: float = 0.0,
    timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Have the broker do maintenance duties; returns its report.

    This is safe at any time and from several clients at once: a duty that is running is waited for, not run twice.

    Args:
        duties: some of ``route``, ``expire_leases`` and ``collect``; empty means all of them.
        again_in_seconds: when the caller will ask again; the broker does not collect by itself until that is overdue.
            0 means unknown.
        timeout: seconds to wait for the report; None waits for ever.

    Returns:
        ``duties`` (those that were done), ``routed``, ``leases_expired``, ``settled_collected``, ``expired_removed``,
        ``staged_removed`` (each with its duty), ``seconds``, and ``joined`` (the duties that were running already).
        The counts cover everything since the last report to any client, or since the broker's start, including the
        broker's own maintenance. Clients that waited for the same run get the same report.

    Raises:
        RequestError: there is no such duty.
        RetryLater: no report in time, and the maintenance goes on in the broker; or the store takes no writes.
        OpenDataError: as :meth:`BrokerConnection.call`.
    """
    try:
        answer: Maintained = connection.call(Maintain(0, list(duties), float(again_in_seconds)), timeout)
    except TimeoutError as exc:
        raise RetryLater(
            f"maintenance did not end within {timeout:g} s and goes on in the broker: see its status and its log, "
            "or allow it more time",
            timeout=timeout,
        ) from exc
    return answer.report
