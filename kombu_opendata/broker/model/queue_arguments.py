"""The arguments of queues: one table of all that are known, and what a declaration says by them.

A declaration is read once, by :func:`parse`. ``docs/queue-arguments.md`` has the table's rows (:func:`markdown`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from ...errors import RequestError, SelectorError
from ...storage.routing.queue_filters import ANY, FILTER, FILTER_MODE, MODES, filter_of
from ...storage.state.queue_limits import DEFAULT_RETRY_MAX_DELAY_MS
from ...storage.state.store_state import (
    DEFAULT_DONE_RETENTION_SECONDS,
    DEFAULT_FAILED_RETENTION_SECONDS,
    DEFAULT_LEASE_SECONDS,
    DEFAULT_MAX_ATTEMPTS,
    UNLIMITED_ATTEMPTS,
    QueueOptions,
)
from . import log_positions

#: of AMQP's short strings: names, routing keys, tags
MAX_NAME_BYTES = 255
MAX_ARGUMENTS_BYTES = 60_000
MAX_ARGUMENTS_DEPTH = 20
MAX_MS = (1 << 53) - 1
MAX_SECONDS = 0xFFFF_FFFF
MIN_LEASE_SECONDS = 30
MAX_LEASE_SECONDS = 86_400

#: arguments of a declaration that are compared with all known names, and how long such a name may be
_MAX_SUGGESTIONS = 8
_MAX_COMPARED = 64

DROP_HEAD = "drop-head"
REJECT_PUBLISH = "reject-publish"
REJECT_PUBLISH_DLX = "reject-publish-dlx"


class Argument(NamedTuple):
    """One known argument.

    ``kind`` is int, str or bool; ``low`` and ``high`` bound an int, ``choices`` are all that a text may be, ``also`` is
    one more int; or ``parse`` says what is right by
    raising RequestError, and ``words`` says it to people. ``field`` is the one of :class:`QueueArguments` that it sets;
    "" if the broker ignores it.
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

    @property
    def allowed(self) -> str:
        """What values it takes, in words."""
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
        """Whether the value is of the right type and in range; a bool is no int."""
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

#: every known argument of a queue, in the order of the documentation
KNOWN = (
    Argument(
        "x-message-ttl", int, "ms", "none",
        "how long a message may wait before it expires. With 0 it is delivered at once to a waiting consumer,"
        " or never. If the message has its own `expiration`, the earlier one counts",
        "starts when an `eta` is due. Expired messages are removed anywhere in the queue, not only at its "
        "head",
        "message_ttl_ms",
    ),
    Argument(
        "x-expires", int, "ms", "none",
        "a queue without consumers, gets and declarations for this time is deleted with its messages. A "
        "restart of the broker starts the time again", "", "expires_ms", 1,
    ),
    Argument(
        "x-max-length", int, "messages", "none",
        "how many messages may wait; delivered messages that are not acknowledged do not count",
        "messages with a later `eta` count", "max_length",
    ),
    Argument(
        "x-max-length-bytes", int, "bytes", "none", "the largest total size of waiting messages",
        "includes headers and properties. The broker reads such a queue once when it starts",
        "max_length_bytes",
    ),
    Argument(
        "x-overflow", str, "", DROP_HEAD,
        "what happens when the queue is full: the oldest waiting message is dropped, the publisher gets "
        "`QueueFull`, or the new message becomes a dead letter",
        "`reject-publish` stores the message in none of its queues. `reject-publish-dlx` confirms the "
        "publish; without `x-dead-letter-exchange` it acts as `reject-publish`. The oldest message is the "
        "oldest by time, whatever its priority",
        "overflow", choices=(DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX),
    ),
    Argument(
        "x-dead-letter-exchange", str, "", "none", "where rejected, expired and dropped messages are published",
        "", "dead_letter_exchange",
    ),
    Argument(
        "x-dead-letter-routing-key", str, "", "the message's own", "the routing key of dead letters", "",
        "dead_letter_routing_key",
    ),
    Argument(
        "x-single-active-consumer", bool, "", "false",
        "only one consumer gets messages; the next one takes over when it is gone",
        "a consumer that reconnects within its session's grace period (2 s) keeps its place",
        "single_active_consumer",
    ),
    Argument(
        "x-delivery-limit", int, "attempts", str(DEFAULT_MAX_ATTEMPTS),
        "after this many deliveries, a returned message joins the failed messages; -1 means never",
        "counts deliveries, not redeliveries. Durable queues only", "delivery_limit", 1, UNLIMITED_ATTEMPTS, -1,
    ),
    Argument(
        "x-retry-delay", int, "ms", "0",
        "how long a requeued message, or one whose consumer was lost, waits before its next delivery; doubles"
        " with each attempt", "ours", "retry_delay_ms",
    ),
    Argument(
        "x-retry-max-delay", int, "ms", f"{DEFAULT_RETRY_MAX_DELAY_MS}, or `x-retry-delay` if that is more",
        "the longest retry delay", "ours", "retry_max_delay_ms",
    ),
    Argument(
        "x-done-retention", int, "s", str(DEFAULT_DONE_RETENTION_SECONDS),
        "how long an acknowledged message is kept in the store; 0 means for ever", "ours. Durable queues only",
        "done_retention_seconds", 0, MAX_SECONDS,
    ),
    Argument(
        "x-failed-retention", int, "s", str(DEFAULT_FAILED_RETENTION_SECONDS),
        "how long a failed message is kept in the store; 0 means for ever", "ours. Durable queues only",
        "failed_retention_seconds", 0, MAX_SECONDS,
    ),
    Argument(
        "x-lease", int, "s", str(DEFAULT_LEASE_SECONDS),
        "how long, after a restart of the broker, a message in flight waits for its consumer to reconnect",
        "ours. Durable queues only", "lease_seconds", MIN_LEASE_SECONDS,
        MAX_LEASE_SECONDS,
    ),
    Argument(
        "x-start", object, "", log_positions.NOW,
        "the point in the log where a new queue begins: it gets the messages published from now on and, in "
        "the background, the stored ones since that point that match its filter "
        "([replay](rfcs/0006-replay.md))",
        "ours; streams have `x-stream-offset`. Durable queues only", "start",
        parse=log_positions.parse, words=log_positions.ALLOWED,
    ),
    Argument(
        "x-filter", str, "", "none",
        "a condition on message headers: the queue gets the messages that match it ([filters](filters.md))",
        "ours", "filter",
    ),
    Argument(
        "x-filter-mode", str, "", "any",
        "with `any`, the queue gets messages that match its filter or one of its bindings; with `all`, "
        "messages that match both", "ours", "filter_mode", choices=MODES,
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

_DEAD_LETTERS = {a.name: a.field for a in KNOWN if a.field.startswith("dead_letter_")}
_BY_NAME = {argument.name: argument for argument in KNOWN}

#: x-priority is a consumer's
CONSUMER_PRIORITY = Argument("x-priority", int, "", "0", "higher first", low=-(1 << 31), high=(1 << 31) - 1)


class QueueArguments(NamedTuple):
    """What a declaration says. -1 is none where 0 is a value."""

    message_ttl_ms: int = -1
    expires_ms: int = 0
    max_length: int = -1
    max_length_bytes: int = -1
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    single_active_consumer: bool = False
    delivery_limit: int = DEFAULT_MAX_ATTEMPTS
    retry_delay_ms: int = 0
    retry_max_delay_ms: int = 0
    done_retention_seconds: int = DEFAULT_DONE_RETENTION_SECONDS
    failed_retention_seconds: int = DEFAULT_FAILED_RETENTION_SECONDS
    lease_seconds: int = DEFAULT_LEASE_SECONDS
    start: str | int = log_positions.NOW
    filter: str | None = None
    filter_mode: str = ANY

    @property
    def is_bounded(self) -> bool:
        """Whether the queue has a maximum length."""
        return self.max_length >= 0 or self.max_length_bytes >= 0

    @property
    def rejects(self) -> bool:
        """Whether a publish to the full queue is refused."""
        dead_letters = self.overflow == REJECT_PUBLISH_DLX and self.dead_letter_exchange is not None
        return self.overflow != DROP_HEAD and not dead_letters

    def options(self, arguments: Mapping[str, Any]) -> QueueOptions:
        """The settings of a durable queue that was declared with these ``arguments``."""
        attempts = UNLIMITED_ATTEMPTS if self.delivery_limit < 0 else self.delivery_limit
        retentions = self.done_retention_seconds, self.failed_retention_seconds
        return QueueOptions(attempts, *retentions, self.lease_seconds, dict(arguments))


def parse(queue: str, arguments: Mapping[str, Any]) -> QueueArguments:
    """Read a queue's arguments; unknown ones are left to :func:`unknown`.

    Raises:
        RequestError: a value of the wrong type or out of range; the text says which, and what is right.
    """
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        argument = _BY_NAME.get(name)
        if argument is None:
            continue
        check(argument, value, f"queue {queue!r}", queue=queue)
        if argument.field:
            found[argument.field] = value
    _check_retry(queue, found)
    _check_dead_letters(queue, found)
    _check_filter(queue, arguments)
    return QueueArguments(**found)


def check(argument: Argument, value: Any, place: str, **values: Any) -> None:
    """Refuse a value that the argument does not take.

    Raises:
        RequestError: the text begins with ``place``.
    """
    if not argument.takes(value):
        raise RequestError(
            f"{place}: {argument.name} must be {argument.allowed}, not {value!r}", argument=argument.name, **values
        )


def _check_retry(queue: str, found: Mapping[str, Any]) -> None:
    longest, first = found.get("retry_max_delay_ms"), found.get("retry_delay_ms", 0)
    if longest is not None and (not first or longest < first):
        raise RequestError(
            f"queue {queue!r}: x-retry-max-delay must be {first or 'given with an x-retry-delay and be that'} or more, "
            f"not {longest!r}",
            argument="x-retry-max-delay",
            queue=queue,
        )


def _check_filter(queue: str, arguments: Mapping[str, Any]) -> None:
    if FILTER_MODE in arguments and FILTER not in arguments:
        raise RequestError(
            f"queue {queue!r} has an {FILTER_MODE} and no {FILTER}: give both", argument=FILTER_MODE, queue=queue
        )
    try:
        filter_of(arguments)
    except SelectorError as exc:
        raise SelectorError(
            f"queue {queue!r}: {FILTER}, {exc.text}", **exc.values, argument=FILTER, queue=queue
        ) from exc


def _check_dead_letters(queue: str, found: Mapping[str, Any]) -> None:
    for name, value in _DEAD_LETTERS.items():
        size = len(found.get(value, "").encode("utf-8", "surrogatepass"))
        if size > MAX_NAME_BYTES:
            raise RequestError(
                f"queue {queue!r}: {name} has {size} bytes, the limit is {MAX_NAME_BYTES}", argument=name, queue=queue
            )
    if "dead_letter_routing_key" in found and "dead_letter_exchange" not in found:
        raise RequestError(
            f"queue {queue!r} has an x-dead-letter-routing-key and no x-dead-letter-exchange: give both "
            "(the default exchange is an empty text)",
            argument="x-dead-letter-routing-key",
            queue=queue,
        )


def parse_stored(queue: str, arguments: Mapping[str, Any]) -> QueueArguments:
    """Read the arguments of a queue that is in the store; what an older version let pass is as if it were not there."""
    good = {name: value for name, value in arguments.items() if name not in _BY_NAME or _BY_NAME[name].takes(value)}
    for name in (FILTER, FILTER_MODE):  # the storage has compiled it already, or said in the log that it can't
        good.pop(name, None)
    try:
        return parse(queue, good)
    except RequestError:
        for name in ("x-retry-max-delay", *_DEAD_LETTERS):
            good.pop(name, None)
        return parse(queue, good)


def unknown(what: str, name: str, arguments: Iterable[str], known: Collection[str] = _BY_NAME.keys()) -> list[str]:
    """A warning for each argument that is not known and begins with ``x-``, or would be known if it did.

    Args:
        what: "queue" or "exchange".
    """
    odd = [one for one in arguments if one not in known and (one.startswith("x-") or f"x-{one}" in known)]
    return [
        f"{what} {name!r}: the argument {one!r} is unknown and has no effect"
        # a comparison with all known names takes time, and a declaration may have any number of arguments
        + (_did_you_mean(one, known) if at < _MAX_SUGGESTIONS else "")
        for at, one in enumerate(odd)
    ]


def _did_you_mean(name: str, known: Collection[str]) -> str:
    bare = {one.removeprefix("x-"): one for one in known}
    wanted = name.removeprefix("x-").replace("_", "-")
    close = get_close_matches(wanted, bare, n=1) if len(name) <= _MAX_COMPARED else []
    return f"; did you mean {bare[close[0]]!r}?" if close else ""


def refuse_unknown(queue: str, arguments: Iterable[str]) -> None:
    """Refuse a queue's arguments that are not known.

    Raises:
        RequestError: there is one; the text names the argument that was probably meant.
    """
    found = unknown("queue", queue, arguments)
    if found:
        text = found[0] if found[0].endswith("?") else f"{found[0]}."
        raise RequestError(f"{text} To keep it for another broker, use force (--force).", queue=queue)


def difference(have: Mapping[str, Any], want: Mapping[str, Any]) -> tuple[str, str, str]:
    """Of two sets of arguments that differ: the name of the first that does, and both sides in words."""
    name = min(name for name in have.keys() | want.keys() if have.get(name, have) != want.get(name, want))
    ours, theirs = (f"with {name}={side[name]!r}" if name in side else f"without {name}" for side in (have, want))
    return name, ours, theirs


def markdown() -> str:
    """The table of the documentation."""
    rows = ["| argument | type | unit | default | meaning | unlike RabbitMQ |", "|---|---|---|---|---|---|"]
    for a in KNOWN:
        rows.append(f"| `{a.name}` | {a.allowed} | {a.unit} | {a.default} | {a.meaning} | {a.differs} |")
    return "\n".join(rows) + "\n"


def check_short(text: str, what: str, error: type[RequestError] = RequestError) -> None:
    """AMQP's short strings: up to 255 bytes.

    Raises:
        RequestError: too long; ``error`` is its class.
    """
    if len(text) > MAX_NAME_BYTES // 4:  # a character has up to four
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_NAME_BYTES:
            raise error(f"the {what} has {size} bytes, the limit is {MAX_NAME_BYTES}", size=size, limit=MAX_NAME_BYTES)


def check_name(name: str, what: str) -> None:
    """The name of a queue or an exchange.

    Raises:
        RequestError: it is empty, too long, or no valid Unicode.
    """
    if not name:
        raise RequestError(f"the {what} name is empty: give one")
    check_short(name, f"{what} name")
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise RequestError(f"the {what} name is not valid Unicode: {exc.reason}") from exc


def check_storable(arguments: dict[str, Any], what: str) -> None:
    """Arguments are stored as JSON.

    Raises:
        RequestError: they can't be stored as JSON, are nested too deeply, or too long for a record.
    """
    level: list[Any] = [arguments]
    for _ in range(MAX_ARGUMENTS_DEPTH):
        level = [v for x in level if isinstance(x, (dict, list)) for v in (x.values() if isinstance(x, dict) else x)]
    if level:
        raise RequestError(f"the arguments of {what} are nested more than {MAX_ARGUMENTS_DEPTH} levels deep")
    try:
        size = len(json.dumps(arguments, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as exc:
        raise RequestError(f"the arguments of {what} can't be stored as JSON: {exc}") from exc
    if size > MAX_ARGUMENTS_BYTES:
        raise RequestError(f"the arguments of {what} have {size} bytes, the limit is {MAX_ARGUMENTS_BYTES}", size=size)
