"""Permissions that operations need: rights on names, and roles (docs/permissions.md).

The check of a call gets the user's rights and the message, and raises :class:`.AccessRefused`. The check runs before
the handler, so a client without a right on a name does not learn whether an object with that name exists. The
documentation and the web UI read the text and the required rights: the web UI offers the operations that the user may
do on some object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .queue_arguments import ALTERNATE_EXCHANGE, ANY, DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY, FILTER, FILTER_MODE

# names with which patterns are compared, in place of the names of exchanges
#: the default exchange, whose name is empty
DEFAULT_EXCHANGE = "amq.default"
#: all exchanges together: all messages of an instance
ALL_EXCHANGES = "amq.all"
#: results of tasks and chords; a right on them covers every result whose name the user knows, and the names contain
#: random task ids
RESULTS = "amq.results"
#: staged jobs, whose messages may go to any exchange
STAGED_JOBS = "amq.staged"
#: headers that the role monitor may see: Celery's, without the arguments of the task, and the broker's own
SHOWN_HEADERS = frozenset(
    (
        "content_type", "eta", "exchange", "expires", "group", "group_index", "id", "lang", "origin", "parent_id",
        "priority", "retries", "root_id", "routing_key", "task",
    )
)  # fmt: skip


class AccessRights(Protocol):
    """Rights of a user in an instance: decisions by name, and roles."""

    @property
    def roles(self) -> Collection[str]: ...
    @property
    def read(self) -> Mapping[str, bool]: ...
    @property
    def write(self) -> Mapping[str, bool]: ...

    def check(self, right: str, kind: str, name: str, *, or_role: str = "") -> None: ...
    def check_publish(self, exchange: str, routing_key: str) -> None: ...
    def check_role(self, role: str, what: str) -> None: ...


Check = Callable[[AccessRights, Any], None]


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission that an operation needs."""

    check: Check  # raises AccessRefused if the rights do not permit the message
    text: str  # the permission, for the documentation
    #: required rights, each with the role that replaces it (``""``: none); a role required alone has the key ``""``
    rights: Mapping[str, str] = field(default_factory=dict)


def permission(**rights: str) -> Callable[[Check], Permission]:
    """Declare a check as a permission, whose text is the docstring of the check; see :class:`Permission`."""

    def make(check: Check) -> Permission:
        text = " ".join((check.__doc__ or "").split()).removeprefix("Require ").rstrip(".")
        return Permission(check, text.replace("``", "`"), rights)

    return make


def _or(role: str) -> str:
    return f", or `{role}`" if role else ""


# ---------------------------------------------------------------------- permissions for any operation
def entry(text: str = "nothing: it concerns the client itself") -> Permission:
    """Require only the user's entry for the instance, which the login checks."""
    return Permission(lambda _rights, _message: None, text)


#: for a list, and for a reply about one message
LISTED = entry("lists those that the user has any right on, with `monitor` all")
SHOWN = entry("the reply has what `read` on the queues, or `monitor`, shows")


def role(name: str) -> Permission:
    """Require a role."""

    def check(rights: AccessRights, message: Any) -> None:
        rights.check_role(name, message.operation.title)

    return Permission(check, f"`{name}`", {"": name})


def on_queue(right: str, *, or_role: str = "") -> Permission:
    """Require a right on the message's queue, or a role."""

    def check(rights: AccessRights, message: Any) -> None:
        rights.check(right, "queue", message.queue, or_role=or_role)

    return Permission(check, f"`{right}` on the queue{_or(or_role)}", {right: or_role})


def on_queues(right: str, *, or_role: str = "") -> Permission:
    """Require a right on each queue of the message, or a role.

    If the message has no queues, the handler omits the queues without the right.
    """

    def check(rights: AccessRights, message: Any) -> None:
        for queue in message.queues:
            rights.check(right, "queue", queue, or_role=or_role)

    text = f"`{right}` on each queue{_or(or_role)}; of all queues, the reply has those with this permission"
    return Permission(check, text, {right: or_role})


def on_exchange(right: str, name: str = "", *, or_role: str = "") -> Permission:
    """Require a right on the message's exchange, or on this name in place of it; or a role."""

    def check(rights: AccessRights, message: Any) -> None:
        rights.check(right, "exchange", name or message.exchange, or_role=or_role)

    return Permission(check, f"`{right}` on {f'`{name}`' if name else 'the exchange'}{_or(or_role)}", {right: or_role})


# ---------------------------------------------------------------------- publishing
@permission(write="")
def publish(rights: AccessRights, message: Any) -> None:
    """Require ``write`` on the exchange.

    The property ``user_id`` must be the user's own name, or the user has the role ``admin``. A task with an expiry
    whose result is in this instance also needs ``write`` on ``amq.results``, because the broker stores ``REVOKED``.
    """
    if not rights.write[message.exchange]:
        rights.check_publish(message.exchange, message.routing_key)


@permission(write="monitor")
def test_routing(rights: AccessRights, message: Any) -> None:
    """Require ``write`` on the exchange, or ``monitor``; the reply names only queues that the user has any right on."""
    if "monitor" not in rights.roles:
        rights.check_publish(message.exchange, message.routing_key)


# ---------------------------------------------------------------------- definitions
def check_declaration(rights: AccessRights, queue: str, arguments: Mapping[str, Any]) -> None:
    """Require configure on the queue; for a dead-letter exchange, also read on the queue and write on the exchange.

    A queue with a filter in mode "any" gets messages of all exchanges, so it needs read on :data:`ALL_EXCHANGES`.
    """
    rights.check("configure", "queue", queue)
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if isinstance(exchange, str):
        rights.check("read", "queue", queue)
        key = arguments.get(DEAD_LETTER_ROUTING_KEY)
        rights.check_publish(exchange, key if isinstance(key, str) else "")
    if _takes_all(arguments):
        rights.check("read", "exchange", ALL_EXCHANGES)


def check_alteration(rights: AccessRights, queue: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Require the rights for a declaration with the altered arguments, or the role operator.

    Dead letters and a filter bring messages into queues that other users read. The role is therefore not sufficient to
    change them: dead letters also need read on the queue, and a filter in mode "any" read on :data:`ALL_EXCHANGES`.
    """
    if "operator" not in rights.roles:
        check_declaration(rights, queue, after)
        return
    if after.get(DEAD_LETTER_EXCHANGE) is not None and _differ(
        before, after, DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY
    ):
        rights.check("read", "queue", queue)
    if _takes_all(after) and _differ(before, after, FILTER, FILTER_MODE):
        rights.check("read", "exchange", ALL_EXCHANGES)


def _differ(before: Mapping[str, Any], after: Mapping[str, Any], *names: str) -> bool:
    return any(before.get(name) != after.get(name) for name in names)


def _takes_all(arguments: Mapping[str, Any]) -> bool:
    """Return True for the arguments of a queue whose filter selects from all messages."""
    return arguments.get(FILTER) is not None and arguments.get(FILTER_MODE, ANY) == ANY


@permission(configure="operator")
def alter_queue(rights: AccessRights, message: Any) -> None:
    """Require ``configure`` on the queue, or ``operator``.

    A user without the role needs the rights for a declaration with the altered arguments. A user with the role needs
    ``read`` on the queue for another dead-letter exchange, and ``read`` on ``amq.all`` for another filter in mode
    ``any``.
    """
    rights.check("configure", "queue", message.queue, or_role="operator")


@permission(configure="")
def declare_queue(rights: AccessRights, message: Any) -> None:
    """Require ``configure`` on the queue; nothing for a passive declaration, as in RabbitMQ.

    A dead-letter exchange also needs ``read`` on the queue and ``write`` on that exchange; an ``x-filter`` in mode
    ``any`` also needs ``read`` on ``amq.all``.
    """
    if not message.passive and message.queue:  # the handler checks a generated name
        check_declaration(rights, message.queue, message.arguments)


@permission(configure="")
def declare_exchange(rights: AccessRights, message: Any) -> None:
    """Require ``configure`` on the exchange; nothing for a passive declaration, as in RabbitMQ.

    An alternate exchange also needs ``read`` on the exchange and ``write`` on the alternate.
    """
    if message.passive:
        return
    rights.check("configure", "exchange", message.exchange)
    alternate = message.arguments.get(ALTERNATE_EXCHANGE)
    if isinstance(alternate, str):
        rights.check("read", "exchange", message.exchange)
        rights.check_publish(alternate, "")


@permission(write="", read="")
def bind(rights: AccessRights, message: Any) -> None:
    """Require ``write`` on the queue and ``read`` on the exchange."""
    rights.check("write", "queue", message.queue)
    rights.check("read", "exchange", message.exchange)


# ---------------------------------------------------------------------- messages that were published before
@permission(configure="operator", read="operator")
def replay(rights: AccessRights, message: Any) -> None:
    """Require ``configure`` and ``read`` on the queue, or ``operator``.

    These also permit a new declaration of the queue with an ``x-start`` in the past. The role does not replace ``read``
    for a filter on headers, because the number of matches reveals the headers.
    """
    rights.check("configure", "queue", message.queue, or_role="operator")
    rights.check("read", "queue", message.queue, or_role="" if message.selector else "operator")


def _redrive(rights: AccessRights, queue: str, target: str, selector: str) -> None:
    """Require read on the queue, and write on the queue that gets the messages.

    The role operator replaces both rights if the messages stay in their queue and are not selected by their headers.
    Otherwise it replaces only write: other users could read the messages in the other queue.
    """
    target = target or queue
    rights.check("read", "queue", queue, or_role="" if selector or target != queue else "operator")
    rights.check("write", "queue", target, or_role="operator")


@permission(read="operator", write="operator")
def redrive(rights: AccessRights, message: Any) -> None:
    """Require ``read`` and ``write`` on the queue, or ``operator``.

    The role does not replace ``read`` if the messages move to another queue, or are selected by a filter on headers.
    ``write`` is required on the queue that gets the messages.
    """
    _redrive(rights, message.queue, message.target, message.selector)


@permission(read="", write="operator")
def move(rights: AccessRights, message: Any) -> None:
    """Require ``read`` on the queue, and ``write`` (or ``operator``) on the queue that gets the messages."""
    _redrive(rights, message.queue, message.target, message.selector)


@permission(configure="operator")
def archive_failed(rights: AccessRights, message: Any) -> None:
    """Require ``configure`` on the queue, or ``operator``; for a filter on headers also ``read``."""
    rights.check("configure", "queue", message.queue, or_role="operator")
    if message.selector:
        rights.check("read", "queue", message.queue)


@permission(read="operator", write="operator")
def retry_failures(rights: AccessRights, message: Any) -> None:
    """Require ``read`` and ``write`` on each queue, or ``operator``; for all queues, ``operator``.

    The role does not replace ``read`` if the messages move to another queue, or are selected by a filter on headers;
    for all queues, ``read`` on ``amq.all`` is then required. ``write`` is required on the queue that gets the messages.
    """
    if not message.queues:
        rights.check_role("operator", "retry the failures of all queues")
        if message.target or message.selector:
            rights.check("read", "exchange", ALL_EXCHANGES)
    for queue in message.queues:
        _redrive(rights, queue, message.target, message.selector)


@permission(configure="operator")
def delete_failures(rights: AccessRights, message: Any) -> None:
    """Require ``configure`` on each queue, or ``operator``; for all queues, ``operator``.

    A filter on headers also needs ``read`` on each.
    """
    if not message.queues:
        rights.check_role("operator", "delete the failures of all queues")
    for queue in message.queues:
        rights.check("configure", "queue", queue, or_role="operator")
    if message.selector:
        _read(rights, message.queues)


# ---------------------------------------------------------------------- staged jobs
@permission(write="operator", read="operator")
def cancel_job(rights: AccessRights, message: Any) -> None:
    """Require ``write`` on ``amq.staged`` and ``read`` on each queue of the job, as for a purge; or ``operator``.

    For a job with messages in more than 500 queues, ``read`` on ``amq.all`` replaces that on each queue.
    """
    rights.check("write", "exchange", STAGED_JOBS, or_role="operator")


@permission(write="operator", read="operator")
def retry_job(rights: AccessRights, message: Any) -> None:
    """Require ``write`` on ``amq.staged``, and ``read`` and ``write`` on each queue of the job; or ``operator``.

    A job with messages in more than 500 queues needs ``operator``.
    """
    rights.check("write", "exchange", STAGED_JOBS, or_role="operator")


# ---------------------------------------------------------------------- reading stored messages
def _read(rights: AccessRights, queues: Iterable[str], or_role: str = "") -> None:
    """Require read on these queues, or on :data:`ALL_EXCHANGES` if there are no queues."""
    if rights.read[ALL_EXCHANGES]:
        return
    for queue in queues:
        rights.check("read", "queue", queue, or_role=or_role)
    if not queues:
        rights.check("read", "exchange", ALL_EXCHANGES, or_role=or_role)


@permission(read="monitor")
def history(rights: AccessRights, message: Any) -> None:
    """Require ``read`` on each queue (for all queues, on ``amq.all``) or ``monitor``, which does not show task errors.

    The role does not replace ``read`` for bodies, and for a search by a header of the application.
    """
    is_shown = not getattr(message, "bodies", False) and SHOWN_HEADERS.issuperset(message.headers)
    _read(rights, message.queues, "monitor" if is_shown else "")


@permission(read="monitor")
def failures(rights: AccessRights, message: Any) -> None:
    """Require ``read`` on each queue (for all queues, on ``amq.all``) or ``monitor``, which does not show exceptions.

    The role does not replace ``read`` for tracebacks, and for a filter on headers.
    """
    is_shown = not message.selector and not getattr(message, "tracebacks", False)
    _read(rights, message.queues, "monitor" if is_shown else "")


@permission()
def get_message(rights: AccessRights, message: Any) -> None:
    """Require nothing; the reply has what ``read`` on its queues, or ``monitor``, shows."""
    if message.queue:
        _read(rights, [message.queue], "monitor")


@permission(read="monitor")
def explain(rights: AccessRights, message: Any) -> None:
    """Require ``read`` on the queue (for a filter without a queue, on ``amq.all``) or ``monitor``.

    The role does not replace ``read`` for a stored message, which also needs ``read`` on the exchange that it was sent
    to, or on ``amq.all``.
    """
    _read(rights, [message.queue] if message.queue else [], "monitor" if message.message_id < 0 else "")


def check_stored_message(rights: AccessRights, headers: Mapping[str, str]) -> None:
    """Require read on the exchange that a message was published to, or on the queue if that was the default exchange.

    A user with this right could have bound a queue, or consumed the message. Other users need read on
    :data:`ALL_EXCHANGES`, so that a refusal does not reveal where the message was routed.
    """
    if not rights.read[headers.get("exchange") or headers.get("routing_key", "")]:
        rights.check("read", "exchange", ALL_EXCHANGES)
