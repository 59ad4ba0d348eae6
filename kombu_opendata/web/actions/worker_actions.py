"""Actions on workers and other clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import Field

from ...queue_client import AsyncQueueClient
from ..brokers import Broker
from .action import Action, Done, Parameters, Preview, Report, counted


class OfWorker(Parameters):
    worker: str = Field(title="Worker", description="its id", min_length=1)


Control = Callable[[AsyncQueueClient, str], Awaitable[int]]


def _action(
    name: str, title: str, before: str, after: str, word: str, control: Control, danger: bool
) -> Action[OfWorker]:
    """An action by a call that returns a number."""

    async def preview(broker: Broker, given: OfWorker) -> Preview:
        found = await broker.client.worker(given.worker)
        return Preview(before.format(name=found.name, held=counted(found.held, "message")), found.held)

    async def perform(broker: Broker, given: OfWorker, _report: Report) -> Done:
        found = await broker.client.worker(given.worker)
        count = await control(broker.client, given.worker)
        return Done(after.format(name=found.name, count=counted(count, word)), {"count": count}, "workers")

    return Action(name, title, OfWorker, preview, perform, frozenset(("worker",)), is_dangerous=danger)


ACTIONS: tuple[Action[Any], ...] = (
    _action(
        "suspend-worker", "Suspend",
        "{name} will get no more messages until it is resumed; it keeps the {held} it holds.",
        "{name} is suspended, with {count}.", "consumer", AsyncQueueClient.suspend_worker, False,
    ),
    _action(
        "resume-worker", "Resume", "{name} will get messages again.", "{name} goes on, with {count}.", "consumer",
        AsyncQueueClient.resume_worker, False,
    ),
    _action(
        "release-worker", "Return its messages",
        "The {held} that {name} holds will return to their queues; if it still runs their tasks, they run twice.",
        "{count} of {name} returned.", "message", AsyncQueueClient.release_worker_messages, True,
    ),
    _action(
        "shutdown-worker", "Cancel its consumers",
        "{name} will no longer consume. A Celery worker consumes again: stop it with Celery's own remote control.",
        "{count} of {name} cancelled.", "consumer", AsyncQueueClient.shutdown_worker, True,
    ),
)  # fmt: skip
