"""Memory limit for partial frames: large messages of which only a part has arrived.

Beyond the limit, the broker reads only the oldest partial frame; the other connections wait. While they wait, a client
that sends nothing more of its message loses its connection.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, Protocol

from ...errors import ProtocolError

#: minimum size of a partial frame that is counted
LEAST_BYTES = 256 << 10
#: limit for a broker without a memory limit; otherwise the limit is a quarter of the memory limit
DEFAULT_BYTES = 1 << 30
#: maximum time in which a client sends nothing of its message while other connections wait
SILENT_SECONDS = 10.0


class LargeFrameReader(Protocol):
    """Connection that reads a large message."""

    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    def give_up(self, exc: ProtocolError) -> None: ...

    @property
    def socket(self) -> Any: ...


class _PartialFrame:
    __slots__ = ("at", "paused", "size")

    def __init__(self) -> None:
        self.size = 0
        self.at = 0.0
        self.paused = False


class PartialFrames:
    """Partial frames of all connections; their total size is ``total_bytes``, and its limit is ``bound_bytes``."""

    def __init__(self, time: Callable[[], float], bound_bytes: int = DEFAULT_BYTES) -> None:
        self.bound_bytes = bound_bytes
        self.total_bytes = 0
        self._time = time
        self._parts: dict[LargeFrameReader, _PartialFrame] = {}  # in the order in which they began

    def note(self, reader: LargeFrameReader, size: int) -> None:
        """Record the received size of a connection's incomplete message; 0 if there is none."""
        if size <= LEAST_BYTES:
            self.forget(reader)
            return
        part = self._parts.get(reader)
        if part is None:
            part = self._parts[reader] = _PartialFrame()
        self.total_bytes += size - part.size
        part.size, part.at = size, self._time()
        if self.total_bytes > self.bound_bytes and reader is not next(iter(self._parts)):
            part.paused = True
            reader.pause()

    def forget(self, reader: LargeFrameReader) -> None:
        """Stop counting a message that is complete, or whose connection was closed."""
        part = self._parts.pop(reader, None)
        if part is None:
            return
        self.total_bytes -= part.size
        for other_reader, other_part in list(self._parts.items()):
            if other_part.paused:
                other_part.paused = False
                other_part.at = self._time()
                other_reader.go_on()
            if self.total_bytes > self.bound_bytes:
                return  # only the oldest continues

    def tick(self, *, memory_is_full: bool) -> None:
        """End connections that hold memory and send nothing, but only while memory is scarce.

        Called twice per second.
        """
        if not memory_is_full and self.total_bytes <= self.bound_bytes:
            return
        before = self._time() - SILENT_SECONDS
        silent = [reader for reader, part in self._parts.items() if part.at < before and not _has_unread(reader.socket)]
        for reader in silent:
            size = self._parts[reader].size
            reader.give_up(
                ProtocolError(
                    f"{size} bytes of a message arrived and then nothing for {SILENT_SECONDS:g} s, while others wait "
                    "for the memory: connect again",
                    size=size,
                )
            )
            self.forget(reader)


def _has_unread(sock: Any) -> bool:
    """Return True if the kernel has received bytes that were not read."""
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
