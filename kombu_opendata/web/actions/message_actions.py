"""Actions on messages: send and publish; release, reject, delete and archive; move and copy."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import Field, field_validator

from ...errors import PreconditionFailed, QueueFull
from ...protocol import messages as m
from ...queue_client.message_models import Settled
from ..brokers import UserBroker
from .action import Action, ActionOutcome, JsonObject, Parameters, Preview, Report, counted, words
from .queue_actions import QueueParameters

MAX_IDS = 1000


class MessageParameters(Parameters):
    body: str = Field(
        title="Body", description="JSON; anything else is sent as text", json_schema_extra={"lines": True}
    )
    headers: JsonObject = Field(
        default_factory=dict, title="Headers", description="as JSON", json_schema_extra={"lines": True}
    )
    priority: int = Field(0, ge=0, le=255, title="Priority")
    delay: float = Field(0, ge=0, title="Delay in seconds")

    @field_validator("headers", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return value or {}

    def content(self) -> Any:
        """Return the body as a JSON value, or as text."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return self.body


class SendParameters(MessageParameters):
    queue: str = Field(title="Queue", min_length=1)


async def preview_send(_broker: UserBroker, given: SendParameters) -> Preview:
    return Preview(f"One message to {given.queue}.", 1)


async def send(broker: UserBroker, given: SendParameters, _report: Report) -> ActionOutcome:
    id = await broker.client.send(
        given.queue, given.content(), given.headers or None, delay=given.delay or None, priority=given.priority
    )
    return ActionOutcome(f"Message {id} was sent to {given.queue}.", {"id": id}, "message", {"id": id})


class PublishParameters(MessageParameters):
    exchange: str = Field("", title="Exchange", description="empty means: to the queue that the key names")
    routing_key: str = Field("", title="Routing key")


async def preview_publish(broker: UserBroker, given: PublishParameters) -> Preview:
    queues = await broker.client.test_routing(given.exchange, given.routing_key, given.headers or None)
    names = ", ".join(queues) or "no queue"
    return Preview(f"One message to {names}.", len(queues))


async def publish(broker: UserBroker, given: PublishParameters, _report: Report) -> ActionOutcome:
    published = await broker.client.publish(
        given.content(), given.headers or None, exchange=given.exchange, routing_key=given.routing_key,
        delay=given.delay or None, priority=given.priority,
    )  # fmt: skip
    if published.id is None:
        return ActionOutcome("No queue got the message, so it was not stored.", {"queues": 0})
    text = f"Message {published.id} went to {', '.join(published.queues)}."
    return ActionOutcome(text, {"id": published.id, "queues": len(published.queues)}, "message", {"id": published.id})


# ---------------------------------------------------------------------- messages by their ids
class QueueMessagesParameters(QueueParameters):
    ids: list[int] = Field(title="Messages", min_length=1, max_length=MAX_IDS)

    @field_validator("ids", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return words(value)


class ReleaseParameters(QueueMessagesParameters):
    delay: float = Field(0, ge=0, title="Delay in seconds")


def _preview_of(text: str) -> Callable[[UserBroker, QueueMessagesParameters], Awaitable[Preview]]:
    async def preview(_broker: UserBroker, given: QueueMessagesParameters) -> Preview:
        return Preview(f"{counted(len(given.ids), 'message')} of {given.queue} {text}", len(given.ids))

    return preview


def _settled(answer: Settled, text: str, queue: str) -> ActionOutcome:
    summary = f"{counted(len(answer.done), 'message')} {text}."
    if answer.refused:
        first = next(iter(answer.refused.values()))
        if not answer.done:
            raise type(first)(f"No message was {text}: {first}", **first.values)
        summary += f" {counted(len(answer.refused), 'message')} not: {first}"
    return ActionOutcome(summary, {"done": len(answer.done), "refused": len(answer.refused)}, "queue", {"name": queue})


async def release(broker: UserBroker, given: ReleaseParameters, _report: Report) -> ActionOutcome:
    answer = await broker.client.release_many(given.queue, given.ids, delay=given.delay)
    return _settled(answer, "returned", given.queue)


async def reject(broker: UserBroker, given: QueueMessagesParameters, _report: Report) -> ActionOutcome:
    return _settled(await broker.client.reject_many(given.queue, given.ids), "rejected", given.queue)


async def delete(broker: UserBroker, given: QueueMessagesParameters, _report: Report) -> ActionOutcome:
    return _settled(await broker.client.delete_many(given.queue, given.ids), "deleted", given.queue)


async def archive(broker: UserBroker, given: QueueMessagesParameters, _report: Report) -> ActionOutcome:
    return _settled(await broker.client.archive_many(given.queue, given.ids), "archived as done", given.queue)


# ---------------------------------------------------------------------- to another queue
class MoveParameters(QueueParameters):
    target: str = Field(title="To the queue", min_length=1)
    where: str = Field("", title="Filter", description="only messages that match it, as in task = 'app.pay'")
    ids: list[int] | None = Field(None, title="Messages", max_length=MAX_IDS)
    limit: int = Field(0, ge=0, title="At most", description="0 means all")

    @field_validator("ids", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return words(value)


async def preview_move(broker: UserBroker, given: MoveParameters) -> Preview:
    if given.ids == []:
        return Preview("Nothing is selected.", 0, is_possible=False)
    if given.ids is not None:
        return Preview(f"{counted(len(given.ids), 'message')} of {given.queue}.", len(given.ids))
    figures = await broker.client.metrics(given.queue)
    count = figures.visible + figures.delayed
    prefix = "Those that match, of " if given.where else ""
    return Preview(f"{prefix}{counted(count, 'waiting message')} of {given.queue}.", None if given.where else count)


def _moved(answer: Any, verb: str, target: str) -> ActionOutcome:
    remaining_counts = {name: getattr(answer, name) for name in ("already", "expired", "waiting", "unmatched")}
    remaining = ", ".join(f"{count:,} {name}" for name, count in remaining_counts.items() if count)
    if not answer.count:
        if answer.is_full:
            raise QueueFull(f"No message was {verb}: queue {target} is full.", queue=target)
        if answer.waiting or answer.unmatched:
            raise PreconditionFailed(f"No message was {verb} to {target}: {remaining}.", queue=target)
    text = f"{counted(answer.count, 'message')} {verb} to {target}." + (f" Not: {remaining}." if remaining else "")
    if answer.is_full:
        text += f" {target} is full: the rest stays."
    return ActionOutcome(text, {"count": answer.count, **remaining_counts}, "queue", {"name": target})


async def move(broker: UserBroker, given: MoveParameters, _report: Report) -> ActionOutcome:
    answer = await broker.client.move_messages(
        given.queue, given.target, where=given.where, ids=given.ids, limit=given.limit
    )
    return _moved(answer, "moved", given.target)


async def copy(broker: UserBroker, given: MoveParameters, _report: Report) -> ActionOutcome:
    answer = await broker.client.copy_messages(
        given.queue, given.target, where=given.where, ids=given.ids, limit=given.limit
    )
    return _moved(answer, "copied", given.target)


_QUEUE = frozenset(("queue",))
_IDS = frozenset(("queue", "ids"))
ACTIONS: tuple[Action[Any], ...] = (
    Action("send", "Send a message", m.Send, SendParameters, preview_send, send, _QUEUE),
    Action(
        "publish", "Publish a message", m.Send, PublishParameters, preview_publish, publish,
        frozenset(("exchange",)),
    ),
    Action(
        "release", "Return", m.SettleMessages, ReleaseParameters,
        _preview_of("will be available again; it costs no attempt."),
        release, _IDS,
    ),
    Action(
        "reject", "Reject", m.SettleMessages, QueueMessagesParameters,
        _preview_of("will fail; dead letters are published."),
        reject, _IDS, is_dangerous=True,
    ),
    Action(
        "delete-messages", "Delete", m.SettleMessages, QueueMessagesParameters,
        _preview_of("will be deleted for good."), delete, _IDS,
        is_dangerous=True,
    ),
    Action(
        "archive", "Mark as done", m.SettleMessages, QueueMessagesParameters,
        _preview_of("will count as done."), archive, _IDS,
    ),
    Action("move", "Move", m.MoveMessages, MoveParameters, preview_move, move, _IDS, is_long=True),
    Action("copy", "Copy", m.MoveMessages, MoveParameters, preview_move, copy, _IDS, is_long=True),
)  # fmt: skip
