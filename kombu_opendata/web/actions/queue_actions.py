"""Actions on queues: create, delete, purge, pause, resume, alter."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field, field_validator

from ...protocol import messages as m
from ...queue_client import QueueOptions
from ..brokers import UserBroker
from .action import Action, ActionOutcome, JsonObject, Parameters, Preview, Report, counted, words


class QueueParameters(Parameters):
    """The parameters of an action on one queue."""

    queue: str = Field(title="Queue", min_length=1)


class CreateQueueParameters(QueueParameters):
    arguments: JsonObject = Field(
        default_factory=dict,
        title="Arguments",
        description='x- arguments as JSON, such as {"x-max-length": 1000}',
        json_schema_extra={"lines": True},
    )

    @field_validator("arguments", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return value or {}


async def preview_create(broker: UserBroker, given: CreateQueueParameters) -> Preview:
    existing_names = {queue.name for queue in await broker.client.list_queues()}
    if given.queue in existing_names:
        return Preview(f"There is a queue {given.queue} already.", is_possible=False)
    return Preview("A new queue that survives restarts.")


async def create(broker: UserBroker, given: CreateQueueParameters, _report: Report) -> ActionOutcome:
    await broker.client.create(given.queue, QueueOptions(arguments=given.arguments))
    return ActionOutcome(f"The queue {given.queue} is there.", {}, "queue", {"name": given.queue})


async def _waiting(broker: UserBroker, queue: str) -> int:
    figures = await broker.client.metrics(queue)
    return figures.visible + figures.delayed


async def preview_purge(broker: UserBroker, given: QueueParameters) -> Preview:
    count = await _waiting(broker, given.queue)
    text = f"{counted(count, 'waiting message')} of {given.queue} will be deleted for good. Messages in flight stay."
    return Preview(text, count)


async def purge(broker: UserBroker, given: QueueParameters, _report: Report) -> ActionOutcome:
    count = await broker.client.purge(given.queue)
    text = f"{counted(count, 'message')} of {given.queue} deleted."
    return ActionOutcome(text, {"deleted": count}, "queue", {"name": given.queue})


async def preview_drop(broker: UserBroker, given: QueueParameters) -> Preview:
    figures = await broker.client.metrics(given.queue)
    text = (
        f"The queue {given.queue} will be deleted with {counted(figures.length, 'message')} that wait or are in "
        f"flight, {figures.done:,} done and {figures.failed:,} failed."
    )
    notes = (f"{counted(figures.consumers, 'consumer')} will be cancelled.",) if figures.consumers else ()
    return Preview(text, figures.length, notes)


async def drop(broker: UserBroker, given: QueueParameters, _report: Report) -> ActionOutcome:
    count = await broker.client.drop(given.queue)
    return ActionOutcome(
        f"The queue {given.queue} is deleted, and {counted(count, 'message')} with it.", {"deleted": count}
    )


class PauseParameters(QueueParameters):
    publishes: bool = Field(False, title="Refuse publishes as well", description="senders get an error")


async def preview_pause(broker: UserBroker, given: PauseParameters) -> Preview:
    figures = await broker.client.metrics(given.queue)
    text = f"{counted(figures.consumers, 'consumer')} of {given.queue} will get nothing until it is resumed."
    return Preview(text, figures.consumers)


async def pause(broker: UserBroker, given: PauseParameters, _report: Report) -> ActionOutcome:
    answer = await broker.client.pause(given.queue, publishes=given.publishes)
    text = f"{given.queue} is paused." if answer.changed else f"{given.queue} was paused already."
    return ActionOutcome(text, {"changed": answer.changed}, "queue", {"name": given.queue})


class ResumeParameters(QueueParameters):
    publishes_only: bool = Field(False, title="Only take publishes again", description="consumers still get nothing")


async def preview_resume(broker: UserBroker, given: ResumeParameters) -> Preview:
    count = await _waiting(broker, given.queue)
    return Preview(f"Consumers of {given.queue} will get its {counted(count, 'waiting message')}.", count)


async def resume(broker: UserBroker, given: ResumeParameters, _report: Report) -> ActionOutcome:
    answer = await broker.client.resume(given.queue, publishes_only=given.publishes_only)
    text = f"{given.queue} resumed." if answer.changed else f"{given.queue} was not paused."
    return ActionOutcome(text, {"changed": answer.changed}, "queue", {"name": given.queue})


class AlterQueueParameters(QueueParameters):
    arguments: JsonObject = Field(
        default_factory=dict,
        title="Arguments to set",
        description='as JSON, such as {"x-max-length": 1000}; null means as if it were not declared',
        json_schema_extra={"lines": True},
    )
    unset: list[str] = Field(default_factory=list, title="Arguments that return to what apps declare")
    reset: bool = Field(False, title="Return all arguments to what apps declare")
    force: bool = Field(False, title="Even if messages are deleted")

    @field_validator("arguments", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return value or {}

    @field_validator("unset", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return words(value)


async def preview_alter(broker: UserBroker, given: AlterQueueParameters) -> Preview:
    if not (given.arguments or given.unset or given.reset):
        info = await broker.client.get_queue(given.queue)
        return Preview(f"In effect now: {json.dumps(info.effective)}")
    answer = await broker.client.alter(
        given.queue, given.arguments, unset=given.unset, reset=given.reset, force=True, dry_run=True
    )
    count = sum(answer.counts.get(name, 0) for name in ("dropped", "excess"))
    return Preview(f"Then in effect: {json.dumps(answer.after)}", count, tuple(answer.notes))


async def alter(broker: UserBroker, given: AlterQueueParameters, _report: Report) -> ActionOutcome:
    answer = await broker.client.alter(
        given.queue, given.arguments, unset=given.unset, reset=given.reset, force=given.force
    )
    text = " ".join([f"{given.queue} has changed.", *answer.notes])
    return ActionOutcome(text, dict(answer.counts), "queue", {"name": given.queue})


_QUEUE = frozenset(("queue",))
ACTIONS: tuple[Action[Any], ...] = (
    Action("create-queue", "Create a queue", m.DeclareQueue, CreateQueueParameters, preview_create, create),
    Action(
        "purge", "Purge", m.PurgeQueue, QueueParameters, preview_purge, purge, _QUEUE, "queue",
        is_dangerous=True, is_long=True,
    ),
    Action(
        "drop-queue", "Delete the queue", m.DeleteQueue, QueueParameters, preview_drop, drop, _QUEUE, "queue",
        is_dangerous=True,
    ),
    Action("pause", "Pause", m.PauseQueue, PauseParameters, preview_pause, pause, _QUEUE),
    Action("resume", "Resume", m.ResumeQueue, ResumeParameters, preview_resume, resume, _QUEUE),
    Action("alter", "Change arguments", m.AlterQueue, AlterQueueParameters, preview_alter, alter, _QUEUE),
)  # fmt: skip
