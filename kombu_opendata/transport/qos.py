"""A channel's unacknowledged messages, as helpers for Kombu's virtual transports see them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

if TYPE_CHECKING:
    from .channel import Channel


class Delivered(dict[Any, Any]):
    """Unacknowledged messages by delivery tag. ``restored``: they were given back by ``restore_unacked_once``."""

    restored = False


class QoS(virtual.QoS):
    """What a channel holds, and how much it may hold.

    Messages that the broker delivered have a lease: the broker returns them when the channel closes or its process
    dies. Those that :meth:`append` adds are the client's alone, as ``Channel._get`` has taken them off their queue.
    They count in the limit that :meth:`can_consume` looks at, and closing the channel puts them back, but a process
    that dies loses them.
    """

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        # not the base's: it registers an exit handler that would restore what the broker returns by itself
        self.channel = channel
        self.limit = prefetch_count or 0
        self._delivered = channel.delivered
        self._dirty: set[Any] = set()
        self._quick_ack = self._dirty.add
        self._quick_append = self._delivered.__setitem__
        self._on_collect = SimpleNamespace(cancel=lambda: None)

    @property
    def prefetch_count(self) -> int:
        """How many unacknowledged messages the channel takes; 0 is no limit."""
        return self.limit

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        self.channel.basic_qos(prefetch_count=count)

    @property
    def can_consume(self) -> Callable[[], bool]:
        """Whether one more message is wanted. Celery's ``worker_disable_prefetch`` puts its own function here; from
        then on the broker sends a message only when it says so."""
        return self.channel.can_consume or super().can_consume

    @can_consume.setter
    def can_consume(self, function: Callable[[], bool]) -> None:
        self.channel.set_gate(function)

    def _has_lease(self, delivery_tag: Any) -> bool:
        return getattr(self._delivered.get(delivery_tag), "lease", None) is not None

    def ack(self, delivery_tag: Any) -> None:
        if self._has_lease(delivery_tag):
            self.channel.basic_ack(delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        if self._has_lease(delivery_tag):
            self.channel.basic_reject(delivery_tag, requeue=requeue)
        else:
            super().reject(delivery_tag, requeue=requeue)

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        """Give back all unacknowledged messages; returns those that could not be put back, each with its error."""
        self.channel.release_leased()
        failed: list[tuple[BaseException, Any]] = super().restore_unacked()
        return failed
