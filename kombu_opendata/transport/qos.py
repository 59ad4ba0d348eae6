"""Unacknowledged messages of a channel and its prefetch limit, with the interface of Kombu's virtual transports."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

from kombu.transport import virtual


class Delivered(dict[Any, Any]):
    """Unacknowledged messages by delivery tag.

    Attributes:
        restored: True after ``restore_unacked_once`` has restored them.
    """

    restored = False


class LeasingChannel(Protocol):
    """Interface of the channel."""

    delivered: Delivered
    can_consume: Callable[[], bool] | None

    def set_gate(self, can_consume: Callable[[], bool]) -> None: ...

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None: ...

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None: ...

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None: ...

    def release_leased(self) -> None: ...


class QoS(virtual.QoS):
    """Unacknowledged messages of a channel, and their limit.

    Messages that the broker delivered have a lease: the broker returns them to their queue when the channel closes or
    its process dies. Messages that :meth:`append` adds are known only to the client, because ``Channel._get`` has taken
    them off their queue. They count towards the limit of :meth:`can_consume`, and closing the channel puts them back,
    but a process that dies loses them.
    """

    def __init__(self, channel: LeasingChannel, prefetch_count: int = 0) -> None:
        # The base's constructor would register an exit handler that restores messages, which the broker does.
        self.channel = channel
        self.limit = prefetch_count or 0
        self._delivered = channel.delivered
        self._dirty: set[Any] = set()
        self._quick_ack = self._dirty.add
        self._quick_append = self._delivered.__setitem__
        self._on_collect = SimpleNamespace(cancel=lambda: None)

    @property
    def prefetch_count(self) -> int:
        """Limit for the channel's unacknowledged messages; 0 means no limit."""
        return self.limit

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        self.channel.basic_qos(prefetch_count=count)

    @property
    def can_consume(self) -> Callable[[], bool]:
        """Function that returns True to receive one more message.

        Celery's ``worker_disable_prefetch`` sets its own function. The broker then delivers a message only when that
        function returns True.
        """
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
        """Release all unacknowledged messages; return those that could not be put back, each with its error."""
        self.channel.release_leased()
        failed: list[tuple[BaseException, Any]] = super().restore_unacked()
        return failed
