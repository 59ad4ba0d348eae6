"""What an event loop that reads a connection is told about it."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """The event loop's side of a connection."""

    def socket_opened(self, fd: int) -> None: ...

    def socket_closing(self, fd: int) -> None: ...

    def events_buffered(self) -> None:
        """Events came in while a call waited for its answer; no poller reports them."""

    def will_flush(self) -> bool:
        """Whether ``flush_reports`` will be called in some milliseconds."""

    def connection_lost(self) -> None:
        """``resume_once`` should be called until it returns True."""
