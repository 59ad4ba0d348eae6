"""The permissions that calls need: the ``needs`` of :func:`.registry.handles`. docs/permissions.md has the table.

A function gets the call's context and its message, and raises :class:`.AccessRefused`. It runs before the handler does,
so a client that may not use a name does not learn whether it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ....errors import InvalidMessage
from ....protocol import messages as m
from ....protocol.envelope import open_properties
from ....protocol.revocation import PROPERTY
from ....storage.routing.exchange import ALTERNATE_EXCHANGE
from ....storage.routing.queue_filters import ANY, FILTER, FILTER_MODE
from ...access.rights import ALL_EXCHANGES, RESULTS, STAGED_JOBS
from ...model.argument_table import DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY
from ...model.sessions import Session
from .contents import is_shown
from .context import Context

Needs = Callable[[Context, Any], None]

_PROPERTY, _USER_ID = PROPERTY.encode(), b"user_id"


def entry(_call: Context, _msg: Any) -> None:
    """Require only the user's entry for the instance, which the greeting has checked."""


def role(name: str, what: str) -> Needs:
    """Require a role; ``what`` names the operation that needs it."""

    def check(call: Context, _msg: Any) -> None:
        call.session.rights.check_role(name, what)

    return check


def on_queue(right: str, *, or_role: str = "") -> Needs:
    """Require a right on the message's queue, or a role."""

    def check(call: Context, msg: Any) -> None:
        call.session.rights.check(right, "queue", msg.queue, or_role=or_role)

    return check


def on_queues(right: str, *, or_role: str = "") -> Needs:
    """Require a right on each queue that the message names, or a role. If it names none, the handler omits some."""

    def check(call: Context, msg: Any) -> None:
        for queue in msg.queues:
            call.session.rights.check(right, "queue", queue, or_role=or_role)

    return check


def on_exchange(right: str, *, or_role: str = "") -> Needs:
    """Require a right on the message's exchange, or a role."""

    def check(call: Context, msg: Any) -> None:
        call.session.rights.check(right, "exchange", msg.exchange, or_role=or_role)

    return check


def on_results(right: str) -> Needs:
    """Require a right on :data:`.RESULTS`, which permits each result whose name is known; task ids can't be guessed."""

    def check(call: Context, _msg: Any) -> None:
        call.session.rights.check(right, "exchange", RESULTS)

    return check


def on_staged_jobs(*, or_role: str = "") -> Needs:
    """Require write on :data:`.STAGED_JOBS`: the rows of a job may be published to any exchange."""

    def check(call: Context, _msg: Any) -> None:
        call.session.rights.check("write", "exchange", STAGED_JOBS, or_role=or_role)

    return check


# ---------------------------------------------------------------------- publishing
def publish(call: Context, msg: m.Publish) -> None:
    """Require write on the exchange (:meth:`.Rights.check_publish`); the handler also checks :func:`properties`."""
    rights = call.session.rights
    if not rights.write[msg.exchange]:
        rights.check_publish(msg.exchange, msg.routing_key)


def send(call: Context, msg: m.Send) -> None:
    """Require the rights for a publish of each message."""
    call.session.rights.check_publish(msg.exchange, msg.routing_key)


def ask_routes(call: Context, msg: m.AskRoutes) -> None:
    """Require the rights for a publish, or the role monitor."""
    rights = call.session.rights
    if "monitor" not in rights.roles:
        rights.check_publish(msg.exchange, msg.routing_key)


def properties(session: Session, envelope: bytes) -> None:
    """Check the properties of a message.

    A result that the broker stores when the message expires needs write on the results. The property ``user_id``, as in
    RabbitMQ, must be the user's name; only the role admin may give another name.
    """
    if session.rights.permits_all:
        return
    claimed_properties = open_properties(envelope, (_PROPERTY, _USER_ID))
    if PROPERTY in claimed_properties:
        session.rights.check("write", "exchange", RESULTS)
    user, claimed = session.user.name, claimed_properties.get("user_id")
    if claimed is not None and claimed != user:
        text = f"the property user_id is {str(claimed)[:80]!r}, and the publisher is {user!r}: leave user_id out"
        raise InvalidMessage(text, name="user_id")


# ---------------------------------------------------------------------- definitions
def declare_queue(call: Context, msg: m.DeclareQueue) -> None:
    """Require the rights of :func:`check_declaration`; none for a passive declaration, as in RabbitMQ."""
    if not msg.passive and msg.queue:
        check_declaration(call, msg.queue, msg.arguments)


def check_declaration(call: Context, queue: str, arguments: Mapping[str, Any]) -> None:
    """Require configure on the queue; for a dead-letter exchange, also read on the queue and write on the exchange.

    A queue with a filter in mode "any" gets messages of all exchanges, so it needs read on :data:`.ALL_EXCHANGES`.
    """
    rights = call.session.rights
    rights.check("configure", "queue", queue)
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if isinstance(exchange, str):
        rights.check("read", "queue", queue)
        key = arguments.get(DEAD_LETTER_ROUTING_KEY)
        rights.check_publish(exchange, key if isinstance(key, str) else "")
    if _takes_all(arguments):
        rights.check("read", "exchange", ALL_EXCHANGES)


def alter_queue(call: Context, queue: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Require the rights for a declaration with the altered arguments, or the role operator.

    Dead letters and a filter bring messages into queues that other users read, so the role is not sufficient to change
    those: dead letters need read on the queue, a filter in mode "any" read on :data:`.ALL_EXCHANGES`.
    """
    rights = call.session.rights
    if "operator" not in rights.roles:
        check_declaration(call, queue, after)
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


def declare_exchange(call: Context, msg: m.DeclareExchange) -> None:
    """Require configure on the exchange; for an alternate exchange, also read on it and write on the alternate."""
    if msg.passive:
        return
    rights = call.session.rights
    rights.check("configure", "exchange", msg.exchange)
    alternate = msg.arguments.get(ALTERNATE_EXCHANGE)
    if isinstance(alternate, str):
        rights.check("read", "exchange", msg.exchange)
        rights.check_publish(alternate, "")


def bind(call: Context, msg: m.Bind | m.Unbind) -> None:
    """Require write on the queue, read on the exchange."""
    call.session.rights.check("write", "queue", msg.queue)
    call.session.rights.check("read", "exchange", msg.exchange)


# ---------------------------------------------------------------------- messages that were published before
def replay(call: Context, msg: m.Replay) -> None:
    """Require configure and read on the queue, which also permit to declare it again with an `x-start` in the past.

    The role operator is sufficient, too, but not with a selector: the number of matches reveals contents of headers.
    """
    rights = call.session.rights
    rights.check("configure", "queue", msg.queue, or_role="operator")
    rights.check("read", "queue", msg.queue, or_role="" if msg.selector else "operator")


def redrive(call: Context, msg: m.Redrive | m.MoveMessages) -> None:
    """Require read on the queue, and write on the queue that gets the messages.

    The role operator stands for both only if the messages stay in their queue, and are not selected by their headers.
    Otherwise it stands for write: in another queue, other users could read them.
    """
    rights = call.session.rights
    target = msg.target or msg.queue
    rights.check("read", "queue", msg.queue, or_role="" if msg.selector or target != msg.queue else "operator")
    rights.check("write", "queue", target, or_role="operator")


def archive(call: Context, msg: m.ArchiveFailed) -> None:
    """Require configure on the queue, or the role operator; also read if the messages are selected by their headers."""
    rights = call.session.rights
    rights.check("configure", "queue", msg.queue, or_role="operator")
    if msg.selector:
        rights.check("read", "queue", msg.queue)


def failures(call: Context, msg: m.ListFailures | m.GroupFailures) -> None:
    """Require the rights of :func:`history`; a filter by headers and tracebacks need read in any case."""
    in_queues(call, msg.queues, shown_only=not msg.selector and not getattr(msg, "tracebacks", False))


def retry(call: Context, msg: m.RetryFailures) -> None:
    """Require the rights of :func:`redrive` for each queue of the message; without a queue, also the role operator."""
    rights = call.session.rights
    if not msg.queues:
        rights.check_role("operator", "run the failures of all queues again")
        if msg.target or msg.selector:
            rights.check("read", "exchange", ALL_EXCHANGES)
    for queue in msg.queues:
        target = msg.target or queue
        rights.check("read", "queue", queue, or_role="" if msg.selector or target != queue else "operator")
        rights.check("write", "queue", target, or_role="operator")


def dismiss(call: Context, msg: m.DismissFailures) -> None:
    """Require configure on each queue that the message names, or the role operator; if it names none, the role.

    A filter by headers needs read in any case.
    """
    if not msg.queues:
        call.session.rights.check_role("operator", "dismiss the failures of all queues")
    for queue in msg.queues:
        call.session.rights.check("configure", "queue", queue, or_role="operator")
    if msg.selector:
        in_queues(call, msg.queues, shown_only=False)


def history(call: Context, msg: Any) -> None:
    """Require read on all queues of the message, or on :data:`.ALL_EXCHANGES` without a queue; or the role monitor.

    A filter by headers that the role monitor does not show, and bodies, need read in any case.
    """
    in_queues(call, msg.queues, shown_only=not getattr(msg, "bodies", False) and is_shown(msg.headers))


def get_message(call: Context, msg: m.GetMessage) -> None:
    """Require read on the queue of the message, or the role monitor; the reply has only what they show."""
    if msg.queue:
        in_queues(call, [msg.queue], shown_only=True)


def explain(call: Context, msg: m.Explain) -> None:
    """Require read on the queue, or on :data:`.ALL_EXCHANGES` for a filter alone; or the role monitor.

    A stored message is read, so that the role is not sufficient. The message may be any: the handler checks
    :func:`of_message`.
    """
    in_queues(call, [msg.queue] if msg.queue else [], shown_only=msg.message_id < 0)


def of_message(call: Context, headers: Mapping[str, str]) -> None:
    """Require read on the exchange that a message was published to, or on the queue if that was the default exchange.

    A user with this right could have bound a queue, or consumed the message. Otherwise read on :data:`.ALL_EXCHANGES`
    is required, so that a refusal does not reveal where the message was routed.
    """
    rights = call.session.rights
    if not rights.read[headers.get("exchange") or headers.get("routing_key", "")]:
        rights.check("read", "exchange", ALL_EXCHANGES)


def in_queues(call: Context, queues: Iterable[str], *, shown_only: bool) -> None:
    """Check that stored messages of these queues, or of all queues if there is none, may be read.

    Args:
        shown_only: only the part that the role monitor shows is read.
    """
    rights, or_role = call.session.rights, "monitor" if shown_only else ""
    if rights.read[ALL_EXCHANGES]:
        return
    for queue in queues:
        rights.check("read", "queue", queue, or_role=or_role)
    if not queues:
        rights.check("read", "exchange", ALL_EXCHANGES, or_role=or_role)
