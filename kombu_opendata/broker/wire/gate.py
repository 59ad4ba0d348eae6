"""Whether clients may come in: not at a standby, which sends them to the active broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...errors import NotActive


class Gate:
    """Every client passes it before its login. It is open unless this broker is the standby.

    Attributes:
        active: the addresses of the active broker.
        sends_away: whether another broker is active.
        on_change: called after each change.
    """

    def __init__(self) -> None:
        self.active: tuple[str, ...] = ()
        self.on_change: Callable[[], None] = lambda: None
        self.sends_away = False
        self._is_known = asyncio.Event()  # whether clients may pass or not
        self._is_known.set()

    def send_away(self) -> None:
        """Another broker is active: send clients there."""
        self.sends_away = True
        self._is_known.set()
        self.on_change()

    def hold(self) -> None:
        """This broker is about to be the active one: clients wait."""
        self.sends_away = False
        self._is_known.clear()
        self.on_change()

    def open(self) -> None:
        """This broker is the active one."""
        self.sends_away = False
        self._is_known.set()
        self.on_change()

    @property
    def is_open(self) -> bool:
        return self._is_known.is_set() and not self.sends_away

    async def check(self) -> None:
        """Let a client pass, perhaps after a while.

        Raises:
            NotActive: it must go to the active broker.
        """
        while not self._is_known.is_set():
            await self._is_known.wait()
        if self.sends_away:
            raise self.refusal()

    def refusal(self) -> NotActive:
        """What clients are told while another broker is active."""
        where = ", ".join(self.active)
        text = f"this broker is not the active one of its store: connect to {where}" if where else (
            "this broker is not the active one of its store, and none is known now: try again"
        )  # fmt: skip
        return NotActive(text, active=",".join(self.active))
