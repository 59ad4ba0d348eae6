"""Options for the creation of a queue, with names and types instead of ``x-`` arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from ..errors import RequestError
from ..protocol.log_position import wire_position
from ..protocol.queue_arguments import KNOWN


@dataclass(frozen=True)
class QueueOptions:
    """Options of a queue. None keeps the broker's default, and seconds may be a timedelta; see docs/queue-arguments.md.

    Attributes:
        filter: a filter; the queue receives every message that matches.
        filter_mode: ``any`` (the filter or a binding must match) or ``all`` (both must match).
        start: the position from which a new queue receives messages: ``now``, ``first``, a time or a message id.
        max_attempts: the number of deliveries after which a returned message fails; -1 means unlimited attempts.
        lease_seconds: after a restart of the broker, the time for which a message waits for the consumer that held it.
        done_retention_seconds: the retention of acknowledged messages; 0 means no limit.
        failed_retention_seconds: the retention of failed messages; 0 means no limit.
        message_ttl_seconds: the time after which a ready message expires.
        expires_seconds: the time without use after which the queue is deleted.
        max_length: the limit for the backlog, in messages.
        max_length_bytes: the limit for the backlog, in bytes.
        overflow: the behaviour at these limits: ``drop-head``, ``reject-publish`` or ``reject-publish-dlx``.
        dead_letter_exchange: the exchange for rejected, expired and dropped messages.
        dead_letter_routing_key: the routing key of dead letters; by default the message's own.
        retry_delay_seconds: the delay before the second attempt, which doubles with each further one.
        retry_max_delay_seconds: the maximum delay.
        single_active_consumer: deliver to one consumer at a time.
        partition_by: a header, or an expression over headers, that splits the queue into partitions with fair shares.
        partition_weights: the shares of partitions by key; ``*`` stands for all others.
        partition_concurrency: the limit for the messages of a partition in flight.
        partition_rate: the limit for the deliveries of a partition, such as ``100/m``.
        concurrency: the limit for messages in flight.
        rate: the limit for deliveries, such as ``100/m``.
        durable: False means a queue in memory, which ends with the broker (like an unlogged queue of pgmq).
        auto_delete: delete the queue with its last consumer; it is then in memory.
        exclusive: only this client may use it; it is then in memory.
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
    partition_by: str | None = None
    partition_weights: dict[str, int] | None = None
    partition_concurrency: int | None = None
    partition_rate: str | None = None
    concurrency: int | None = None
    rate: str | None = None
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def as_arguments(self) -> dict[str, Any]:
        """Return the arguments of the declaration; raise RequestError if a number of seconds is not valid."""
        declared = dict(self.arguments)
        for argument in KNOWN:
            value = getattr(self, argument.option) if argument.option else None
            if isinstance(value, datetime):
                value = wire_position(value)
            if value is not None and value is not False:
                unit = argument.units_per_second
                declared[argument.name] = _in_units(argument.option, value, unit) if unit else value
        return declared


def _in_units(name: str, value: Any, unit: int) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not -1e15 < seconds < 1e15:
        raise RequestError(f"{name} must be a number of seconds or a timedelta, not {value!r}", name=name)
    if unit == 1 and seconds != int(seconds):
        raise RequestError(f"{name} must be a whole number of seconds, not {value!r}", name=name)
    return round(seconds * unit) or (seconds > 0) - (
        seconds < 0
    )  # round a fraction of a unit up, because 0 has a special meaning
