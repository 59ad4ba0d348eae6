"""Interface of an event loop that reads a connection."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Event loop's side of a connection."""

    def socket_opened(self, fd: int) -> None: ...

    def socket_closing(self, fd: int) -> None: ...

    def events_buffered(self) -> None:
        """Handle events that arrived while a call waited for its reply; no poller reports them."""

    def will_flush(self) -> bool:
        """Return True if the event loop will call ``flush_reports`` within some milliseconds."""

    def connection_lost(self) -> None:
        """Call ``resume_once`` until it returns True."""
