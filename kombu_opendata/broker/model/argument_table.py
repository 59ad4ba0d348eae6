"""The table of all known queue arguments, which also generates the table of ``docs/queue-arguments.md``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import RequestError
from ...protocol.argument_names import DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY
from ...storage.routing.queue_filters import MODES
from ...storage.state.message_deadlines import DEFAULT_RETRY_MAX_DELAY_MS
from ...storage.state.store_state import (
    DEFAULT_DONE_RETENTION_SECONDS,
    DEFAULT_FAILED_RETENTION_SECONDS,
    DEFAULT_LEASE_SECONDS,
    DEFAULT_MAX_ATTEMPTS,
    UNLIMITED_ATTEMPTS,
)
from . import log_positions

MAX_MS = (1 << 53) - 1
MAX_SECONDS = 0xFFFF_FFFF
MIN_LEASE_SECONDS = 30
MAX_LEASE_SECONDS = 86_400

DROP_HEAD = "drop-head"
REJECT_PUBLISH = "reject-publish"
REJECT_PUBLISH_DLX = "reject-publish-dlx"


class Argument(NamedTuple):
    """A known argument.

    Attributes:
        kind: int, str or bool.
        field: the field of :class:`.QueueArguments` that it sets; empty if the broker ignores it.
        low, high, also: bounds of an int, and one more valid int.
        choices: the valid texts; empty if all are valid.
        parse: raises RequestError if a value is not valid; replaces the checks above.
        words: describes the valid values, for ``parse``.
        altered: the effect of ``queue alter``.
        fixed: the reason why it can't be altered, for an argument with a field that can't be.
        stored_only: it has no effect on a queue that is not stored.
    """

    name: str
    kind: type
    unit: str
    default: str
    meaning: str
    differs: str = ""
    field: str = ""
    low: int = 0
    high: int = MAX_MS
    also: int | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[Any], object] | None = None
    words: str = ""
    altered: str = "takes effect at once"
    fixed: str = ""
    stored_only: bool = False

    @property
    def cannot_alter(self) -> str:
        """The reason why an operator can't alter the argument; empty if it can be altered."""
        return self.fixed if self.field else "this broker ignores it"

    @property
    def allowed(self) -> str:
        """A description of the valid values."""
        if self.words:
            return self.words
        if self.kind is bool:
            return "true or false"
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is str:
            return "a text"
        bounds = f"from {self.low} up" if self.high == MAX_MS else f"from {self.low} to {self.high}"
        return f"an integer {bounds}" + ("" if self.also is None else f", or {self.also}")

    def takes(self, value: Any) -> bool:
        """Return whether a value has the right type and range; a bool is not an int."""
        if self.parse is not None:
            return _is_good(self.parse, value)
        if type(value) is not self.kind:
            return False
        if isinstance(value, int) and self.kind is int:
            return self.low <= value <= self.high or value == self.also
        return not self.choices or value in self.choices


def _is_good(parse: Callable[[Any], object], value: Any) -> bool:
    try:
        parse(value)
    except RequestError:
        return False
    return True


_IGNORED = "accepted and ignored"
#: texts of ``altered`` that several arguments share
_SHORTER = "takes effect at once; the oldest messages that exceed the maximum are dropped, if `force` allows it"
_LETTERS = "counts for dead letters from now on"
_RETURNS = "counts for messages that return from now on"
_KEPT = "takes effect with the next sweep; a shorter time that deletes messages needs `force`"
_CHOSEN = "counts for messages that come from now on; those that wait stay"

#: every known argument of a queue, in the order of the documentation
KNOWN = (
    Argument(
        "x-message-ttl", int, "ms", "none",
        "how long a message may wait before it expires. With 0 it is delivered at once to a waiting consumer,"
        " or never. If the message has its own `expiration`, the earlier one counts",
        "starts when an `eta` is due. Expired messages are removed anywhere in the queue, not only at its "
        "head",
        "message_ttl_ms", altered="counts for messages that come from now on, as a policy of RabbitMQ does",
    ),
    Argument(
        "x-expires", int, "ms", "none",
        "a queue without consumers, gets and declarations for this time is deleted with its messages. A "
        "restart of the broker starts the time again", "", "expires_ms", 1, altered="starts the time again",
    ),
    Argument(
        "x-max-length", int, "messages", "none",
        "how many messages may wait; delivered messages that are not acknowledged do not count",
        "messages with a later `eta` count", "max_length", altered=_SHORTER,
    ),
    Argument(
        "x-max-length-bytes", int, "bytes", "none", "the largest total size of waiting messages",
        "includes headers and properties. The broker reads such a queue once when it starts",
        "max_length_bytes", altered=_SHORTER,
    ),
    Argument(
        "x-overflow", str, "", DROP_HEAD,
        "what happens when the queue is full: the oldest waiting message is dropped, the publisher gets "
        "`QueueFull`, or the new message becomes a dead letter",
        "`reject-publish` stores the message in none of its queues. `reject-publish-dlx` confirms the "
        "publish; without `x-dead-letter-exchange` it acts as `reject-publish`. The oldest message is the "
        "oldest by time, whatever its priority",
        "overflow", choices=(DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX), altered=_SHORTER,
    ),
    Argument(
        DEAD_LETTER_EXCHANGE, str, "", "none", "where rejected, expired and dropped messages are published",
        "", "dead_letter_exchange", altered=_LETTERS,
    ),
    Argument(
        DEAD_LETTER_ROUTING_KEY, str, "", "the message's own", "the routing key of dead letters", "",
        "dead_letter_routing_key", altered=_LETTERS,
    ),
    Argument(
        "x-single-active-consumer", bool, "", "false",
        "only one consumer gets messages; the next one takes over when it ends",
        "a consumer that reconnects within its session's grace period (2 s) keeps its place",
        "single_active_consumer", altered="takes effect at once; the other consumers keep what they hold",
    ),
    Argument(
        "x-delivery-limit", int, "attempts", str(DEFAULT_MAX_ATTEMPTS),
        "after this many deliveries, a returned message joins the failed messages; -1 means never",
        "counts deliveries, not redeliveries. Durable queues only", "delivery_limit", 1, UNLIMITED_ATTEMPTS, -1,
        altered="counts when a message returns the next time", stored_only=True,
    ),
    Argument(
        "x-retry-delay", int, "ms", "0",
        "how long a requeued message, or one whose consumer was lost, waits before its next delivery; doubles"
        " with each attempt", "ours", "retry_delay_ms", altered=_RETURNS,
    ),
    Argument(
        "x-retry-max-delay", int, "ms", f"{DEFAULT_RETRY_MAX_DELAY_MS}, or `x-retry-delay` if that is more",
        "the longest retry delay", "ours", "retry_max_delay_ms", altered=_RETURNS,
    ),
    Argument(
        "x-done-retention", int, "s", str(DEFAULT_DONE_RETENTION_SECONDS),
        "how long an acknowledged message is kept in the store; 0 means no limit", "ours. Durable queues only",
        "done_retention_seconds", 0, MAX_SECONDS, altered=_KEPT, stored_only=True,
    ),
    Argument(
        "x-failed-retention", int, "s", str(DEFAULT_FAILED_RETENTION_SECONDS),
        "how long a failed message is kept in the store; 0 means no limit", "ours. Durable queues only",
        "failed_retention_seconds", 0, MAX_SECONDS, altered=_KEPT, stored_only=True,
    ),
    Argument(
        "x-lease", int, "s", str(DEFAULT_LEASE_SECONDS),
        "how long, after a restart of the broker, a message in flight waits for its consumer to reconnect",
        "ours. Durable queues only", "lease_seconds", MIN_LEASE_SECONDS,
        MAX_LEASE_SECONDS, altered="counts for leases from now on", stored_only=True,
    ),
    Argument(
        "x-start", object, "", log_positions.NOW,
        "the point in the log where a new queue begins: it gets the messages published from now on and, in "
        "the background, the stored ones since that point that match its filter "
        "([replay](rfcs/0006-replay.md))",
        "ours; streams have `x-stream-offset`. Durable queues only", "start",
        parse=log_positions.parse, words=log_positions.ALLOWED, stored_only=True,
        fixed="it counted when the queue was created; use a replay",
    ),
    Argument(
        "x-filter", str, "", "none",
        "a condition on message headers: the queue gets the messages that match it ([filters](filters.md))",
        "ours", "filter", altered=_CHOSEN,
    ),
    Argument(
        "x-filter-mode", str, "", "any",
        "with `any`, the queue gets messages that match its filter or one of its bindings; with `all`, "
        "messages that match both", "ours", "filter_mode", choices=MODES, altered=_CHOSEN,
    ),
    Argument(
        "x-max-priority", int, "", "255", _IGNORED, "priorities from 0 to 255 are always available as separate levels",
        "", 1, 255,
    ),
    Argument("x-queue-type", str, "", "", _IGNORED, "there is only one type", choices=("classic", "quorum")),
    Argument("x-queue-mode", str, "", "", _IGNORED, "long queues are in the store, not in memory",
             choices=("default", "lazy")),
    Argument("x-queue-version", int, "", "", _IGNORED, "there is only one version", "", 1, 2),
    Argument("x-queue-master-locator", str, "", "", _IGNORED, "there is only one broker"),
    Argument("x-queue-leader-locator", str, "", "", _IGNORED, "there is only one broker"),
    Argument("x-quorum-initial-group-size", int, "", "", _IGNORED, "there is only one broker", "", 1),
    Argument("x-quorum-target-group-size", int, "", "", _IGNORED, "there is only one broker", "", 1),
    Argument("x-max-in-memory-length", int, "", "", _IGNORED, "memory is always bounded"),
    Argument("x-max-in-memory-bytes", int, "", "", _IGNORED, "memory is always bounded"),
    Argument("x-consumer-timeout", int, "ms", "", _IGNORED, "a task may run as long as its worker is connected"),
    Argument("x-dead-letter-strategy", str, "", "", _IGNORED, "dead letters are stored in the commit that creates them",
             choices=("at-most-once", "at-least-once")),
)  # fmt: skip

BY_NAME = {argument.name: argument for argument in KNOWN}

#: an argument of consumers
CONSUMER_PRIORITY = Argument("x-priority", int, "", "0", "higher first", low=-(1 << 31), high=(1 << 31) - 1)
