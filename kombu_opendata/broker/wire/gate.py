"""The gate for clients: closed at a standby, which sends them to the active broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...errors import NotActive


class Gate:
    """The gate that every client passes before its login. It is open unless this broker is the standby.

    Attributes:
        active: the addresses of the active broker.
        sends_away: another broker is active.
        on_change: called after each change.
    """

    def __init__(self) -> None:
        self.active: tuple[str, ...] = ()
        self.on_change: Callable[[], None] = lambda: None
        self.sends_away = False
        self._is_known = asyncio.Event()  # it is known whether clients may pass
        self._is_known.set()

    def send_away(self) -> None:
        """Send clients to the active broker, which is another one."""
        self.sends_away = True
        self._is_known.set()
        self.on_change()

    def hold(self) -> None:
        """Make clients wait, because this broker is about to be the active one."""
        self.sends_away = False
        self._is_known.clear()
        self.on_change()

    def open(self) -> None:
        """Let clients pass, because this broker is the active one."""
        self.sends_away = False
        self._is_known.set()
        self.on_change()

    @property
    def is_open(self) -> bool:
        return self._is_known.is_set() and not self.sends_away

    async def check(self) -> None:
        """Let a client pass, after a wait if necessary.

        Raises:
            NotActive: the client must connect to the active broker.
        """
        while not self._is_known.is_set():
            await self._is_known.wait()
        if self.sends_away:
            raise self.refusal()

    def refusal(self) -> NotActive:
        """Return the error for clients while another broker is active."""
        where = ", ".join(self.active)
        text = f"this broker is not the active one of its store: connect to {where}" if where else (
            "this broker is not the active one of its store, and none is known now: try again"
        )  # fmt: skip
        return NotActive(text, active=",".join(self.active))
