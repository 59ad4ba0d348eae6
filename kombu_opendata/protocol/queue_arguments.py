"""Table of queue arguments.

Each argument is declared once, as a field of :class:`QueueArguments`. The field has the type and the default, and its
:class:`Argument` has the rest. The broker's parser and ``queue alter``, the fields of a queue's stored config, the
options of the command line and of :class:`.QueueOptions`, and the tables of ``docs/queue-arguments.md`` derive from
these declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

from .log_position import ALLOWED, NOW
from .rate import RATE_FORMAT, Rate

#: names that several layers read; the last one is an argument of exchanges
DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY = "x-dead-letter-routing-key"
FILTER, FILTER_MODE = "x-filter", "x-filter-mode"
ALTERNATE_EXCHANGE = "alternate-exchange"
PARTITION_BY, PARTITION_WEIGHTS = "x-partition-by", "x-partition-weights"
#: the key in weights that stands for all other partitions
OTHER_PARTITIONS = "*"
MAX_WEIGHT, MAX_WEIGHTS = 1000, 1000
#: modes of a filter: the queue receives messages that a binding or the filter matches, or that both match
ANY, ALL = "any", "all"

DEFAULT_MAX_ATTEMPTS = 20
DEFAULT_DONE_RETENTION_SECONDS = 86_400
DEFAULT_FAILED_RETENTION_SECONDS = 14 * 86_400
DEFAULT_LEASE_SECONDS = 60
DEFAULT_RETRY_MAX_DELAY_MS = 3_600_000
#: the stored number of attempts that means unlimited attempts
UNLIMITED_ATTEMPTS = 0xFFFF
MAX_MS = (1 << 53) - 1
MAX_SECONDS = 0xFFFF_FFFF

DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX = "drop-head", "reject-publish", "reject-publish-dlx"

_IGNORED = "accepted and ignored"
# texts of ``altered`` that several arguments share
_SHORTER = "takes effect immediately; the oldest messages that exceed the maximum are dropped, if `force` allows it"
_LETTERS = "counts for dead letters from now on"
_RETURNS = "counts for messages that return from now on"
_KEPT = "takes effect with the next garbage collection; a shorter time that deletes messages needs `force`"
_CHOSEN = "counts for messages that come from now on; those that wait stay"
_LIMITS = "takes effect immediately; consumers keep the messages in flight"


def _is_weights(value: Any) -> bool:
    """Return True if a value is a valid mapping of partition keys to weights."""
    return (
        isinstance(value, dict)
        and 0 < len(value) <= MAX_WEIGHTS
        and all(isinstance(key, str) for key in value)
        and all(type(weight) is int and 0 < weight <= MAX_WEIGHT for weight in value.values())
    )


class Argument(NamedTuple):
    """Argument that the broker knows."""

    name: str
    unit: str = ""
    meaning: str = _IGNORED
    differs: str = ""  # the differences from RabbitMQ, for the documentation
    default: str = ""  # a description of the default; if it is empty, the default is the value of the field
    low: int = 0  # the lowest valid int
    high: int = MAX_MS  # the highest valid int
    also: int | None = None  # one more valid int outside these bounds
    choices: tuple[str, ...] = ()  # the valid texts; empty if all are valid
    words: str = ""  # a description of the valid values of an object
    altered: str = "takes effect immediately"  # the effect of ``queue alter``, for the documentation
    fixed: str = ""  # the reason why ``queue alter`` can't change the argument; empty if it can
    stored_only: bool = False  # the argument has no effect on a queue that is not stored
    setting: str = ""  # its field in a stored queue's config record; empty if only the record's JSON has the argument
    help: str = ""  # the help of its command-line option; empty if there is no such option
    metavar: str = "N"  # the placeholder of that option
    option: str = ""  # the field of :class:`.QueueOptions`, where a time is in seconds
    check: Callable[[Any], bool] | None = None  # an additional check of a value of the right type
    kind: type = int  # int, str, bool or dict; object for a position in the log
    field: str = ""  # the field of :class:`QueueArguments`; empty if the broker ignores the argument

    @property
    def cannot_alter(self) -> str:
        """Reason why an operator can't alter the argument; empty if it can be altered."""
        return self.fixed if self.field else "this broker ignores it"

    @property
    def allowed(self) -> str:
        """Description of the valid values."""
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

    @property
    def units_per_second(self) -> int:
        """Number of the argument's units in a second; 0 if the argument is not a time."""
        return {"ms": 1000, "s": 1}.get(self.unit, 0)

    def takes(self, value: Any) -> bool:
        """Return True if a value has the right type and range; a bool is not an int."""
        if self.kind is object:
            return True
        if type(value) is not self.kind:
            return False
        if isinstance(value, int) and self.kind is int:
            return self.low <= value <= self.high or value == self.also
        return (not self.choices or value in self.choices) and (self.check is None or self.check(value))


class QueueArguments(NamedTuple):
    """Parsed arguments of a queue. -1 means no limit where 0 is a valid value."""

    # fmt: off
    message_ttl_ms: Annotated[int, Argument(
        "x-message-ttl", "ms",
        "how long a message may wait before it expires. With 0 it is delivered immediately to a waiting consumer,"
        " or never. If the message has its own `expiration`, the earlier one counts",
        "starts when an `eta` is due. Expired messages are removed anywhere in the queue, not only at its head",
        altered="counts for messages that come from now on, as a policy of RabbitMQ does",
        help="how long a message may wait",
    )] = -1
    expires_ms: Annotated[int, Argument(
        "x-expires", "ms",
        "a queue without consumers, gets and declarations for this time is deleted with its messages. A restart of the "
        "broker starts the time again", default="none", low=1, altered="starts the time again",
        help="delete the queue when it has been unused for this long",
    )] = 0
    max_length: Annotated[int, Argument(
        "x-max-length", "messages",
        "how many messages may wait; delivered messages that are not acknowledged do not count",
        "messages with a later `eta` count", altered=_SHORTER, help="how many messages may wait in it",
    )] = -1
    max_length_bytes: Annotated[int, Argument(
        "x-max-length-bytes", "bytes", "the largest total size of waiting messages",
        "includes headers and properties. The broker reads such a queue once when it starts", altered=_SHORTER,
        help="how many bytes may wait in it",
    )] = -1
    overflow: Annotated[str, Argument(
        "x-overflow", "",
        "what happens when the queue is full: the oldest waiting message is dropped, the publisher gets `QueueFull`, "
        "or the new message becomes a dead letter",
        "`reject-publish` stores the message in none of its queues. `reject-publish-dlx` confirms the publish; without "
        "`x-dead-letter-exchange` it acts as `reject-publish`. The oldest message is the oldest by time, whatever its "
        "priority",
        choices=(DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX), altered=_SHORTER, help="what happens when it is full",
    )] = DROP_HEAD
    dead_letter_exchange: Annotated[str | None, Argument(
        DEAD_LETTER_EXCHANGE, "", "where rejected, expired and dropped messages are published", altered=_LETTERS,
        help="where rejected, expired and dropped messages are published", metavar="EXCHANGE",
    )] = None
    dead_letter_routing_key: Annotated[str | None, Argument(
        DEAD_LETTER_ROUTING_KEY, "", "the routing key of dead letters", default="the message's own", altered=_LETTERS,
        help="the routing key of dead letters; default: their own", metavar="KEY",
    )] = None
    single_active_consumer: Annotated[bool, Argument(
        "x-single-active-consumer", "", "only one consumer gets messages; the next one takes over when it ends",
        "a consumer that reconnects within its session's grace period (2 s) keeps its place",
        altered="takes effect immediately; the other consumers keep what they hold",
    )] = False
    delivery_limit: Annotated[int, Argument(
        "x-delivery-limit", "attempts",
        "after this many deliveries, a returned message joins the failed messages; -1 means never",
        "counts deliveries, not redeliveries. Durable queues only", low=1, high=UNLIMITED_ATTEMPTS, also=-1,
        altered="counts when a message returns the next time", stored_only=True, setting="max_attempts",
        help="deliveries before a message fails; -1: no limit", option="max_attempts",
    )] = DEFAULT_MAX_ATTEMPTS
    retry_delay_ms: Annotated[int, Argument(
        "x-retry-delay", "ms",
        "how long a requeued message, or one whose consumer was lost, waits before its next delivery; doubles with "
        "each attempt", "ours", altered=_RETURNS, help="wait before the second attempt; doubles with each further one",
    )] = 0
    retry_max_delay_ms: Annotated[int, Argument(
        "x-retry-max-delay", "ms", "the longest retry delay", "ours",
        f"{DEFAULT_RETRY_MAX_DELAY_MS}, or `x-retry-delay` if that is more", altered=_RETURNS,
        help="the longest of these waits",
    )] = 0
    done_retention_seconds: Annotated[int, Argument(
        "x-done-retention", "s", "how long an acknowledged message is kept in the store; 0 means no limit",
        "ours. Durable queues only", high=MAX_SECONDS, altered=_KEPT, stored_only=True,
        setting="done_retention_seconds", help="how long archived messages are kept",
    )] = DEFAULT_DONE_RETENTION_SECONDS
    failed_retention_seconds: Annotated[int, Argument(
        "x-failed-retention", "s", "how long a failed message is kept in the store; 0 means no limit",
        "ours. Durable queues only", high=MAX_SECONDS, altered=_KEPT, stored_only=True,
        setting="failed_retention_seconds", help="how long failed messages are kept",
    )] = DEFAULT_FAILED_RETENTION_SECONDS
    lease_seconds: Annotated[int, Argument(
        "x-lease", "s",
        "how long, after a restart of the broker, a message in flight waits for its consumer to reconnect",
        "ours. Durable queues only", low=30, high=86_400, altered="counts for leases from now on", stored_only=True,
        setting="lease_seconds", help="how long messages wait for their consumer after a restart",
    )] = DEFAULT_LEASE_SECONDS
    start: Annotated[str | int, Argument(
        "x-start", "",
        "the point in the log where a new queue begins: it gets the messages published from now on and, in the "
        "background, the stored ones since that point that match its filter ([replay](rfcs/0006-replay.md))",
        "ours; streams have `x-stream-offset`. Durable queues only", stored_only=True, kind=object,
        words=ALLOWED,
        fixed="it counted when the queue was created; use a replay",
    )] = NOW
    filter: Annotated[str | None, Argument(
        FILTER, "", "a condition on message headers: the queue gets the messages that match it ([filters](filters.md))",
        "ours", altered=_CHOSEN, help="the queue gets every message that matches", metavar="SELECTOR",
    )] = None
    filter_mode: Annotated[str, Argument(
        FILTER_MODE, "",
        "with `any`, the queue gets messages that match its filter or one of its bindings; with `all`, messages that "
        "match both", "ours", choices=(ANY, ALL), altered=_CHOSEN,
        help="any: filter or binding must match; all: filter and binding must match",
    )] = ANY
    partition_by: Annotated[str | None, Argument(
        PARTITION_BY, "",
        "a header, or an expression over headers, whose value is a message's partition. Within a priority, the next "
        "message comes from the partition that is furthest behind its share ([flow control](flow-control.md))",
        "ours. Durable queues only", stored_only=True,
        altered="moves the messages that wait to their new partitions, in the background",
        help="the header or expression that splits it into fair partitions", metavar="EXPRESSION",
    )] = None
    partition_weights: Annotated[dict[str, int] | None, Argument(
        PARTITION_WEIGHTS, "", 'the shares of partitions by key; `"*"` is the weight of all others, by default 1',
        "ours. Durable queues only", stored_only=True, check=_is_weights,
        words=f"an object of up to {MAX_WEIGHTS} integers from 1 to {MAX_WEIGHT} by key",
    )] = None
    partition_concurrency: Annotated[int, Argument(
        "x-partition-concurrency", "messages",
        "how many messages of a partition may be in flight; with 1, its messages are processed in order",
        "ours. Durable queues only", default="none", low=1, stored_only=True, altered=_LIMITS,
        help="how many messages of a partition may be in flight",
    )] = 0
    partition_rate: Annotated[str | None, Argument(
        "x-partition-rate", "", "how often a message of a partition may be delivered", "ours. Durable queues only",
        stored_only=True, words=RATE_FORMAT, check=Rate.is_valid, altered=_LIMITS,
        help="deliveries of a partition, such as 100/m", metavar="RATE",
    )] = None
    concurrency: Annotated[int, Argument(
        "x-concurrency", "messages", "how many messages may be in flight, over all consumers", "ours", default="none",
        low=1, altered=_LIMITS, help="how many messages may be in flight",
    )] = 0
    rate: Annotated[str | None, Argument(
        "x-rate", "", "how often a message may be delivered, over all consumers", "ours", words=RATE_FORMAT,
        check=Rate.is_valid, altered=_LIMITS, help="deliveries, such as 100/m", metavar="RATE",
    )] = None
    # fmt: on

    @property
    def is_bounded(self) -> bool:
        """True if the queue has a maximum length."""
        return self.max_length >= 0 or self.max_length_bytes >= 0

    @property
    def rejects(self) -> bool:
        """True if the queue refuses publishes when it is full."""
        dead_letters = self.overflow == REJECT_PUBLISH_DLX and self.dead_letter_exchange is not None
        return self.overflow != DROP_HEAD and not dead_letters


#: the kinds of arguments by the types of their fields
_KINDS: dict[Any, type] = {
    int: int, str: str, str | None: str, bool: bool, dict[str, int] | None: dict,
}  # fmt: skip


def _declared() -> list[Argument]:
    """Return the arguments of :class:`QueueArguments`, completed with the types and defaults of their fields."""
    arguments = []
    for field, hint in get_type_hints(QueueArguments, include_extras=True).items():
        argument, value = hint.__metadata__[0], QueueArguments._field_defaults[field]
        kind = _KINDS.get(hint.__origin__, object)
        default = argument.default or ("none" if value in (-1, None) else str(value).lower())
        option = argument.option or field.replace("_ms", "_seconds")
        arguments.append(argument._replace(kind=kind, default=default, option=option, field=field))
    return arguments


#: every known argument of a queue, in the order of the documentation
KNOWN = (
    *_declared(),
    Argument("x-max-priority", "", _IGNORED, "priorities from 0 to 255 are always available as separate levels", "255",
             1, 255),
    Argument("x-queue-type", differs="there is only one type", kind=str, choices=("classic", "quorum")),
    Argument("x-queue-mode", differs="long queues are in the store, not in memory", kind=str,
             choices=("default", "lazy")),
    Argument("x-queue-version", differs="there is only one version", low=1, high=2),
    Argument("x-queue-master-locator", differs="there is only one broker", kind=str),
    Argument("x-queue-leader-locator", differs="there is only one broker", kind=str),
    Argument("x-quorum-initial-group-size", differs="there is only one broker", low=1),
    Argument("x-quorum-target-group-size", differs="there is only one broker", low=1),
    Argument("x-max-in-memory-length", differs="memory is always bounded"),
    Argument("x-max-in-memory-bytes", differs="memory is always bounded"),
    Argument("x-consumer-timeout", "ms", differs="a task may run as long as its worker is connected"),
    Argument("x-dead-letter-strategy", differs="dead letters are stored in the commit that creates them", kind=str,
             choices=("at-most-once", "at-least-once")),
)  # fmt: skip

BY_NAME = {argument.name: argument for argument in KNOWN}

#: an argument of consumers
CONSUMER_PRIORITY = Argument("x-priority", low=-(1 << 31), high=(1 << 31) - 1)
