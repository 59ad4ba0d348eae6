"""Another client of a broker, who must notice nothing of what is done to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .kombu_client import declare, send, take_bodies


class Neighbour:
    """Another client of the same broker, who must notice nothing."""

    def __init__(self, connection: Any, pid: Callable[[], int | None]) -> None:
        self._channel = connection.channel()
        self._pid_of = pid
        self._pid = pid()
        declare(self._channel, "neighbours")
        send(self._channel, "neighbours", "before")
        self._held = self._channel.basic_get("neighbours")
        assert self._held.body == "before"

    def check(self) -> None:
        """Nothing was lost, the connection still works, and it is still the same broker."""
        send(self._channel, "neighbours", "after")
        self._held.ack()
        assert take_bodies(self._channel, "neighbours") == ["after"]
        assert self._pid_of() == self._pid, "the broker was restarted"
