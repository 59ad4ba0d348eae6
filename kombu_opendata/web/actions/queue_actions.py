"""Actions on queues: create, delete, purge, pause, resume, alter; and replays into them."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from ...protocol import messages as m
from ...queue_client import QueueOptions
from ...readable_text import counted
from ..user_clients import UserBroker
from .action import ActionOutcome, JsonObject, Parameters, Preview, Words, action, json_field


class OnQueue(Parameters):
    """An action on one queue."""

    queue: str = Field(title="Queue", min_length=1)

    def outcome(self, text: str, counts: dict[str, Any] | None = None) -> ActionOutcome:
        """Return an outcome that leads to the queue."""
        return ActionOutcome(text, counts or {}, "queue", {"name": self.queue})

    async def ready_and_delayed(self, broker: UserBroker) -> int:
        """Return the number of messages that are ready or delayed."""
        metrics = await broker.client.metrics(self.queue)
        return metrics.ready + metrics.delayed


@action("create-queue", "Create a queue", m.DeclareQueue)
class CreateQueueAction(OnQueue):
    arguments: JsonObject = json_field("Arguments", 'x- arguments as JSON, such as {"x-max-length": 1000}')

    async def effect_on(self, broker: UserBroker) -> Preview:
        if self.queue in {queue.name for queue in await broker.client.list_queues()}:
            return Preview(f"There is a queue {self.queue} already.", is_possible=False)
        return Preview("A new queue that survives restarts.")

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.create(self.queue, QueueOptions(arguments=self.arguments))
        return self.outcome(f"The queue {self.queue} is there.")


@action("purge", "Purge", m.PurgeQueue, "queue", typed="queue", is_dangerous=True, is_long=True)
class PurgeAction(OnQueue):
    async def effect_on(self, broker: UserBroker) -> Preview:
        count = await self.ready_and_delayed(broker)
        text = f"{counted(count, 'ready or delayed message')} of {self.queue} will be deleted for good."
        return Preview(f"{text} Messages in flight stay.", count)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        count = await broker.client.purge(self.queue)
        return self.outcome(f"{counted(count, 'message')} of {self.queue} deleted.", {"deleted": count})


@action("delete-queue", "Delete the queue", m.DeleteQueue, "queue", typed="queue", is_dangerous=True)
class DeleteQueueAction(OnQueue):
    async def effect_on(self, broker: UserBroker) -> Preview:
        metrics = await broker.client.metrics(self.queue)
        text = (
            f"The queue {self.queue} will be deleted with {counted(metrics.length, 'message')} that are ready, "
            f"delayed or in flight, {metrics.done:,} done and {metrics.failed:,} failed."
        )
        notes = (f"{counted(metrics.consumers, 'consumer')} will be cancelled.",) if metrics.consumers else ()
        return Preview(text, metrics.length, notes)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        count = await broker.client.delete_queue(self.queue)
        text = f"The queue {self.queue} is deleted, and {counted(count, 'message')} with it."
        return ActionOutcome(text, {"deleted": count})


@action("pause", "Pause", m.PauseQueue, "queue")
class PauseAction(OnQueue):
    publishes: bool = Field(False, title="Refuse publishes as well", description="senders get an error")

    async def effect_on(self, broker: UserBroker) -> Preview:
        count = (await broker.client.metrics(self.queue)).consumers
        return Preview(f"{counted(count, 'consumer')} of {self.queue} will get nothing until it is resumed.", count)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        answer = await broker.client.pause(self.queue, publishes=self.publishes)
        text = f"{self.queue} is paused." if answer.changed else f"{self.queue} was paused already."
        return self.outcome(text, {"changed": answer.changed})


@action("resume", "Resume", m.ResumeQueue, "queue")
class ResumeAction(OnQueue):
    publishes_only: bool = Field(False, title="Only accept publishes again", description="consumers still get nothing")

    async def effect_on(self, broker: UserBroker) -> Preview:
        count = await self.ready_and_delayed(broker)
        return Preview(f"Consumers of {self.queue} will get its {counted(count, 'ready or delayed message')}.", count)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        answer = await broker.client.resume(self.queue, publishes_only=self.publishes_only)
        text = f"{self.queue} resumed." if answer.changed else f"{self.queue} was not paused."
        return self.outcome(text, {"changed": answer.changed})


@action("alter", "Change arguments", m.AlterQueue, "queue")
class AlterAction(OnQueue):
    arguments: JsonObject = json_field(
        "Arguments to set", 'as JSON, such as {"x-max-length": 1000}; null means as if it were not declared'
    )
    unset: Words = Field(default_factory=list, title="Arguments that return to what apps declare")
    reset: bool = Field(False, title="Return all arguments to what apps declare")
    force: bool = Field(False, title="Even if messages are deleted")

    async def effect_on(self, broker: UserBroker) -> Preview:
        if not (self.arguments or self.unset or self.reset):
            info = await broker.client.get_queue(self.queue)
            return Preview(f"In effect now: {json.dumps(info.effective)}")
        answer = await broker.client.alter(
            self.queue, self.arguments, unset=self.unset, reset=self.reset, force=True, dry_run=True
        )
        count = sum(answer.counts.get(name, 0) for name in ("dropped", "excess"))
        return Preview(f"Then in effect: {json.dumps(answer.after)}", count, tuple(answer.notes))

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        answer = await broker.client.alter(
            self.queue, self.arguments, unset=self.unset, reset=self.reset, force=self.force
        )
        return self.outcome(" ".join([f"{self.queue} has changed.", *answer.notes]), dict(answer.counts))


@action("delay-key", "Delay", m.DelayKey, "queue")
class DelayKeyAction(OnQueue):
    seconds: float = Field(60, title="Seconds", description="0 removes the delay", ge=0)
    key: str = Field("", title="Partition", description="its key; empty for the whole queue")

    async def effect_on(self, broker: UserBroker) -> Preview:
        return Preview(f"Nothing of {self._what} is delivered; messages in flight stay.")

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        until = await broker.client.delay_key(self.queue, self.seconds, key=self.key or None)
        text = f"delayed until {until:%H:%M:%S} UTC" if until else "not delayed any more"
        return self.outcome(f"{self._what} is {text}.", {})

    @property
    def _what(self) -> str:
        return f"the partition {self.key} of {self.queue}" if self.key else self.queue


# ---------------------------------------------------------------------- replays
@action("replay", "Replay", m.Replay, "queue")
class ReplayAction(OnQueue):
    start: str = Field(
        "first", title="From", description='"first", a message id, or a time with its offset', min_length=1
    )
    until: str = Field("now", title="Until", description='"now", a message id, or a time with its offset', min_length=1)
    where: str = Field("", title="Filter", description="only messages that match it")

    async def effect_on(self, broker: UserBroker) -> Preview:
        consumers = (await broker.client.metrics(self.queue)).consumers
        notes = (f"{counted(consumers, 'consumer')} will run tasks that were done, once more.",) if consumers else ()
        text = f"{self.queue} gets all stored messages that it would get now, again, in the background."
        return Preview(text, None, notes)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        start, until = (int(at) if at.isascii() and at.isdigit() else at for at in (self.start, self.until))
        await broker.client.replay(self.queue, start, until, where=self.where)
        return ActionOutcome(f"A replay into {self.queue} has begun.", {}, "replays")


@action("stop-replay", "Stop the replay", m.Replay, "queue", is_dangerous=True)
class StopReplayAction(OnQueue):
    effect = "The replay into {queue} will stop where it is. What it has put there stays."

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.stop_replay(self.queue)
        return ActionOutcome(f"The replay into {self.queue} has stopped.", {}, "replays")
