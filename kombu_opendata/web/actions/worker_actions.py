"""Actions on workers and other clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import Field

from ...protocol import messages as m
from ...queue_client import AsyncQueueClient
from ...queue_client.queue_models import Worker
from ..brokers import UserBroker
from .action import Action, ActionOutcome, Parameters, Preview, Report, counted


class WorkerParameters(Parameters):
    worker: str = Field(title="Worker", description="its id", min_length=1)


Control = Callable[[AsyncQueueClient, str], Awaitable[int]]


def _action(
    name: str, title: str, before: str, after: str, word: str, control: Control, danger: bool
) -> Action[WorkerParameters]:
    """Return an action that makes one call, which returns a number."""

    async def preview(broker: UserBroker, given: WorkerParameters) -> Preview:
        worker = await broker.client.worker(given.worker)
        return Preview(before.format(name=worker.name, held=counted(worker.held, "message")), worker.held)

    async def perform(broker: UserBroker, given: WorkerParameters, _report: Report) -> ActionOutcome:
        worker = await broker.client.worker(given.worker)
        count = await control(broker.client, given.worker)
        return ActionOutcome(after.format(name=worker.name, count=counted(count, word)), {"count": count}, "workers")

    given = frozenset(("worker",))
    return Action(name, title, m.ControlWorker, WorkerParameters, preview, perform, given, is_dangerous=danger)


# ---------------------------------------------------------------------- shutting down
async def preview_shutdown(broker: UserBroker, given: WorkerParameters) -> Preview:
    worker = await broker.client.worker(given.worker)
    if _control_exchange(worker):
        text = f"{worker.name} will end its running tasks, return what it holds besides, and end."
    else:
        text = f"{worker.name} is no Celery worker. It will no longer consume: its consumers are cancelled."
    return Preview(text, worker.held)


async def shut_down(broker: UserBroker, given: WorkerParameters, _report: Report) -> ActionOutcome:
    worker = await broker.client.worker(given.worker)
    exchange = _control_exchange(worker)
    if exchange:
        await broker.client.publish({"method": "shutdown", "destination": [worker.name]}, exchange=exchange)
        return ActionOutcome(f"{worker.name} received a shutdown request.", {"asked": 1}, "workers")
    count = await broker.client.shutdown_worker(given.worker)
    return ActionOutcome(f"{counted(count, 'consumer')} of {worker.name} cancelled.", {"count": count}, "workers")


def _control_exchange(worker: Worker) -> str:
    """Return the exchange of Celery's remote control for this worker; empty if it is no Celery worker."""
    prefix, suffix = f"{worker.name}.", ".pidbox"
    queues = (name for name in worker.consumers if name.startswith(prefix) and name.endswith(suffix))
    return next((name.removeprefix(prefix) for name in queues), "")


ACTIONS: tuple[Action[Any], ...] = (
    _action(
        "suspend-worker", "Suspend",
        "{name} will get no more messages until it is resumed; it keeps the {held} it holds.",
        "{name} is suspended, with {count}.", "consumer", AsyncQueueClient.suspend_worker, False,
    ),
    _action(
        "resume-worker", "Resume", "{name} will get messages again.", "{name} resumed, with {count}.", "consumer",
        AsyncQueueClient.resume_worker, False,
    ),
    _action(
        "release-worker", "Return its messages",
        "The {held} that {name} holds will return to their queues; if it still runs their tasks, they run twice.",
        "{count} of {name} returned.", "message", AsyncQueueClient.release_worker_messages, True,
    ),
    Action(
        "shutdown-worker", "Shut down", m.ControlWorker, WorkerParameters, preview_shutdown, shut_down,
        frozenset(("worker",)),
        is_dangerous=True,
    ),
)  # fmt: skip
