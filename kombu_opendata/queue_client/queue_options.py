"""What a queue can be told when it is created, with names and types instead of ``x-`` arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from ..errors import RequestError

#: field → argument, and what a second is in the argument's unit
_ARGUMENTS = {
    "filter": ("x-filter", 0),
    "filter_mode": ("x-filter-mode", 0),
    "max_attempts": ("x-delivery-limit", 0),
    "lease_seconds": ("x-lease", 1),
    "done_retention_seconds": ("x-done-retention", 1),
    "failed_retention_seconds": ("x-failed-retention", 1),
    "message_ttl_seconds": ("x-message-ttl", 1000),
    "expires_seconds": ("x-expires", 1000),
    "max_length": ("x-max-length", 0),
    "max_length_bytes": ("x-max-length-bytes", 0),
    "overflow": ("x-overflow", 0),
    "dead_letter_exchange": ("x-dead-letter-exchange", 0),
    "dead_letter_routing_key": ("x-dead-letter-routing-key", 0),
    "retry_delay_seconds": ("x-retry-delay", 1000),
    "retry_max_delay_seconds": ("x-retry-max-delay", 1000),
}


@dataclass(frozen=True)
class QueueOptions:
    """Settings of a queue; None leaves the broker's default, seconds may be a timedelta. See docs/queue-arguments.md.

    Attributes:
        filter: a selector; the queue gets every message for which it is true.
        filter_mode: ``any`` (besides what its bindings give) or ``all`` (of that, what the filter lets pass).
        start: where a new queue begins: ``now``, ``first``, a time or a message id.
        max_attempts: deliveries after which a message that is returned goes to the failed ones; -1: never.
        lease_seconds: how long, after a restart of the broker, a message waits for the consumer that held it.
        done_retention_seconds, failed_retention_seconds: how long settled messages are kept; 0: for ever.
        message_ttl_seconds: how long a message may wait.
        expires_seconds: a queue that nobody uses for so long goes.
        max_length, max_length_bytes: how many messages, and bytes, may wait.
        overflow: what happens past that: ``drop-head``, ``reject-publish`` or ``reject-publish-dlx``.
        dead_letter_exchange, dead_letter_routing_key: where what leaves the queue unwanted is published.
        retry_delay_seconds, retry_max_delay_seconds: the wait before a second attempt, which doubles, and its bound.
        single_active_consumer: only one consumer gets messages at a time.
        durable: False is a queue in memory, gone with the broker (pgmq's unlogged one).
        auto_delete: it goes with its last consumer; it is in memory then.
        exclusive: for this client alone; it is in memory then.
        arguments: any other ``x-`` arguments; unknown ones are refused.
    """

    filter: str | None = None
    filter_mode: Literal["any", "all"] | None = None
    start: Literal["now", "first"] | datetime | int | str | None = None
    max_attempts: int | None = None
    lease_seconds: int | timedelta | None = None
    done_retention_seconds: int | timedelta | None = None
    failed_retention_seconds: int | timedelta | None = None
    message_ttl_seconds: float | timedelta | None = None
    expires_seconds: float | timedelta | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    retry_delay_seconds: float | timedelta | None = None
    retry_max_delay_seconds: float | timedelta | None = None
    single_active_consumer: bool = False
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def as_arguments(self) -> dict[str, Any]:
        """The arguments of the declaration.

        Raises:
            RequestError: a number of seconds that is none.
        """
        found = dict(self.arguments)
        for name, (argument, unit) in _ARGUMENTS.items():
            value = getattr(self, name)
            if value is not None:
                found[argument] = _in_units(name, value, unit) if unit else value
        if self.single_active_consumer:
            found["x-single-active-consumer"] = True
        if self.start is not None:
            found["x-start"] = self.start.isoformat() if isinstance(self.start, datetime) else self.start
        return found


def _in_units(name: str, value: Any, unit: int) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not -1e15 < seconds < 1e15:
        raise RequestError(f"{name} is a number of seconds or a timedelta, not {value!r}", name=name)
    if unit == 1 and seconds != int(seconds):
        raise RequestError(f"{name} is a whole number of seconds, not {value!r}", name=name)
    return round(seconds * unit) or (seconds > 0) - (seconds < 0)  # a part of a unit is one: 0 means something else
