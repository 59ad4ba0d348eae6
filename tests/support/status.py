"""The report of a broker that runs."""

from __future__ import annotations

from typing import Any

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import GetStatus
from kombu_opendata.url import parse


def read_report(url: str) -> dict[str, Any]:
    """The report of the broker at a URL, or of a folder's broker; never starts one."""
    address = parse(url if "://" in url else f"opendata://{url}")
    connection = BrokerConnection(address, Options(may_start=False, reconnect_timeout=0))
    try:
        connection.connect()
        report: dict[str, Any] = connection.call(GetStatus(0)).report
        return report
    finally:
        connection.close()
