"""Let a broker read its files of users and certificates again."""

from __future__ import annotations

from ...protocol.messages.admin_messages import Reload, Reloaded
from ..session.broker_connection import BrokerConnection


def reload(connection: BrokerConnection) -> Reloaded:
    """Let the broker read its files again; returns which users are new, gone or changed.

    Raises:
        AccessRefused: the user has not the role admin.
        StartError: a file can't be used; what it says stays as before.
    """
    answer: Reloaded = connection.call(Reload(0))
    return answer
