"""The status report of a running broker. This never starts a broker."""

from __future__ import annotations

from typing import Any

from .client.connection_options import Options
from .client.session.broker_connection import BrokerConnection
from .protocol.messages import GetStatus, Status
from .url import parse


def read_report(url: str) -> dict[str, Any]:
    """The report of the broker at a URL, or of a folder's broker.

    Raises:
        ConnectionLost: no broker runs there.
        OpenDataError: the URL is wrong, or the broker refuses.
    """
    address = parse(url if "://" in url else f"opendata://{url}")
    connection = BrokerConnection(address, Options(name="opendata-queue status", may_start=False, reconnect_timeout=0))
    try:
        connection.connect()
        return ask(connection)
    finally:
        connection.close()


def ask(connection: BrokerConnection) -> dict[str, Any]:
    """The report of the broker that the connection is to."""
    answer: Status = connection.call(GetStatus(0))
    return answer.report
