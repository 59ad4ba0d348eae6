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
    """Have the broker do maintenance duties and return its report.

    Safe to call at any time and from several clients at once: a duty that is under way is waited for, not run twice.

    Args:
        duties: of ``route``, ``expire_leases`` and ``collect``; none is all of them.
        again_in_seconds: when the caller means to ask again; until that is overdue the broker does not collect by
            itself. 0 is: the caller does not say.
        timeout: seconds to wait for the report, None for ever.

    Returns:
        ``duties`` (those that were done), ``routed``, ``leases_expired``, ``settled_collected``, ``expired_removed``,
        ``staged_removed`` (each with its duty), ``seconds``, and ``joined`` (the duties that were under way already).
        Counts are of what was done since the last report that any client got, or since the broker's start, whoever did
        it; only clients that waited for the same run get the same report.

    Raises:
        RequestError: no such duty.
        RetryLater: no report in time; the maintenance goes on in the broker. Or the store takes no writes.
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
