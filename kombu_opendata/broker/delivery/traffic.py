"""How many messages clients brought and got: background work makes room while these numbers change."""

from __future__ import annotations


class Traffic:
    """Messages of one instance since the start."""

    __slots__ = ("delivered", "published")

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0

    @property
    def total(self) -> int:
        """A number that changes when a client was served."""
        return self.published + self.delivered
