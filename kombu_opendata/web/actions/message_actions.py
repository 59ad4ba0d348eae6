"""Actions on messages: send and publish; return, reject, delete and mark as done; move and copy."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import Field

from ...errors import PreconditionFailed, QueueFull
from ...protocol import messages as m
from ...queue_client.message_models import Settled
from ...readable_text import counted
from ..user_clients import UserBroker
from .action import LINES, ActionOutcome, Ids, JsonObject, Parameters, Preview, SomeIds, action, json_field
from .queue_actions import OnQueue


class MessageFields(Parameters):
    body: str = Field(title="Body", description="JSON; anything else is sent as text", json_schema_extra=LINES)
    headers: JsonObject = json_field("Headers", "as JSON")
    priority: int = Field(0, ge=0, le=255, title="Priority")
    delay: float = Field(0, ge=0, title="Delay in seconds")

    def content(self) -> Any:
        """Return the body as a JSON value, or as text."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return self.body

    def options(self) -> dict[str, Any]:
        """Return the other arguments of the call."""
        return {"headers": self.headers or None, "delay": self.delay or None, "priority": self.priority}


@action("send", "Send a message", m.Send, "queue")
class SendAction(MessageFields):
    queue: str = Field(title="Queue", min_length=1)

    async def effect_on(self, broker: UserBroker) -> Preview:
        return Preview(f"One message to {self.queue}.", 1)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        id = await broker.client.send(self.queue, self.content(), **self.options())
        return ActionOutcome(f"Message {id} was sent to {self.queue}.", {"id": id}, "message", {"id": id})


@action("publish", "Publish a message", m.Send, "exchange")
class PublishAction(MessageFields):
    exchange: str = Field("", title="Exchange", description="empty means: to the queue that the key names")
    routing_key: str = Field("", title="Routing key")

    async def effect_on(self, broker: UserBroker) -> Preview:
        queues = await broker.client.test_routing(self.exchange, self.routing_key, self.headers or None)
        return Preview(f"One message to {', '.join(queues) or 'no queue'}.", len(queues))

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        published = await broker.client.publish(
            self.content(), exchange=self.exchange, routing_key=self.routing_key, **self.options()
        )
        id = published.id
        if id is None:
            return ActionOutcome("No queue got the message, so it was not stored.", {"queues": 0})
        counts = {"id": id, "queues": len(published.queues)}
        return ActionOutcome(f"Message {id} went to {', '.join(published.queues)}.", counts, "message", {"id": id})


# ---------------------------------------------------------------------- messages by their ids
class OnMessages(OnQueue):
    """A settlement by a method of the client. ``effect`` describes it before it happens, and ``result`` afterwards."""

    ids: Ids = Field(title="Messages", min_length=1)
    result: ClassVar[str]
    call: ClassVar[str]

    async def effect_on(self, broker: UserBroker) -> Preview:
        return Preview(f"{counted(len(self.ids), 'message')} of {self.queue} {self.effect}", len(self.ids))

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        answer: Settled = await getattr(broker.client, self.call)(self.queue, self.ids, **self.options())
        text = f"{counted(len(answer.done), 'message')} {self.result}."
        if answer.refused:
            first = next(iter(answer.refused.values()))
            if not answer.done:
                raise type(first)(f"No message was {self.result}: {first}", **first.values)
            text += f" {counted(len(answer.refused), 'message')} not: {first}"
        return self.outcome(text, {"done": len(answer.done), "refused": len(answer.refused)})

    def options(self) -> dict[str, Any]:
        """Return further arguments of the call."""
        return {}


@action("release", "Return", m.SettleMessages, "queue ids")
class ReleaseAction(OnMessages):
    call, effect, result = "release_many", "will be ready again; it costs no attempt.", "returned"
    delay: float = Field(0, ge=0, title="Delay in seconds")

    def options(self) -> dict[str, Any]:
        return {"delay": self.delay}


@action("reject", "Reject", m.SettleMessages, "queue ids", is_dangerous=True)
class RejectAction(OnMessages):
    call, effect, result = "reject_many", "will fail; dead letters are published.", "rejected"


@action("delete-messages", "Delete", m.SettleMessages, "queue ids", is_dangerous=True)
class DeleteMessagesAction(OnMessages):
    call, effect, result = "delete_many", "will be deleted for good.", "deleted"


@action("mark-done", "Mark as done", m.SettleMessages, "queue ids")
class MarkDoneAction(OnMessages):
    call, effect, result = "archive_many", "will count as done.", "marked as done"


# ---------------------------------------------------------------------- to another queue
@action("move", "Move", m.MoveMessages, "queue ids", is_long=True)
class MoveAction(OnQueue):
    target: str = Field(title="To the queue", min_length=1)
    where: str = Field("", title="Filter", description="only messages that match it, as in task = 'app.pay'")
    ids: SomeIds = Field(None, title="Messages")
    limit: int = Field(0, ge=0, title="At most", description="0 means all")
    verb: ClassVar[str] = "moved"

    async def effect_on(self, broker: UserBroker) -> Preview:
        if self.ids is not None:
            return Preview(f"{counted(len(self.ids), 'message')} of {self.queue}.", len(self.ids))
        count = await self.ready_and_delayed(broker)
        prefix = "Those that match, of " if self.where else ""
        text = f"{prefix}{counted(count, 'ready or delayed message')} of {self.queue}."
        return Preview(text, None if self.where else count)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        call = broker.client.copy_messages if self.verb == "copied" else broker.client.move_messages
        answer = await call(self.queue, self.target, where=self.where, ids=self.ids, limit=self.limit)
        left_counts = {name: getattr(answer, name) for name in ("already", "expired", "waiting", "unmatched")}
        left = ", ".join(f"{count:,} {name}" for name, count in left_counts.items() if count)
        if not answer.count:
            if answer.is_full:
                raise QueueFull(f"No message was {self.verb}: queue {self.target} is full.", queue=self.target)
            if answer.waiting or answer.unmatched:
                text = f"No message was {self.verb} to {self.target}: {left}."
                raise PreconditionFailed(text, queue=self.target)
        text = f"{counted(answer.count, 'message')} {self.verb} to {self.target}." + (f" Not: {left}." if left else "")
        if answer.is_full:
            text += f" {self.target} is full: the rest stays."
        return ActionOutcome(text, {"count": answer.count, **left_counts}, "queue", {"name": self.target})


@action("copy", "Copy", m.MoveMessages, "queue ids", is_long=True)
class CopyAction(MoveAction):
    verb = "copied"
