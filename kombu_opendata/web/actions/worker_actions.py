"""Actions on workers and other clients."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ...protocol import messages as m
from ...queue_client.administration import Worker
from ...readable_text import counted
from ..user_clients import UserBroker
from .action import ActionOutcome, Parameters, Preview, action


class OnWorker(Parameters):
    """An action on a worker.

    Attributes:
        effect, result: sentences with the ``name`` of the worker; ``held`` is the messages that it holds, and ``count``
            the consumers or messages that the action concerned.
        call: the method of the client, which returns a number of ``unit``.
    """

    worker: str = Field(title="Worker", description="its id", min_length=1)
    result: ClassVar[str]
    call: ClassVar[str]
    unit: ClassVar[str] = "consumer"

    async def effect_on(self, broker: UserBroker) -> Preview:
        worker = await broker.client.worker(self.worker)
        effect = self.sentence_on(worker).format(name=worker.name, held=counted(worker.held, "message"))
        return Preview(effect, worker.held)

    def sentence_on(self, worker: Worker) -> str:
        """Return the sentence about the effect on a worker."""
        return self.effect

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        worker = await broker.client.worker(self.worker)
        count = await getattr(broker.client, self.call)(self.worker)
        text = self.result.format(name=worker.name, count=counted(count, self.unit))
        return ActionOutcome(text, {"count": count}, "workers")


@action("suspend-worker", "Suspend", m.ControlWorker, "worker")
class SuspendWorkerAction(OnWorker):
    effect = "{name} will get no more messages until it is resumed; it keeps the {held} it holds."
    call, result = "suspend_worker", "{name} is suspended, with {count}."


@action("resume-worker", "Resume", m.ControlWorker, "worker")
class ResumeWorkerAction(OnWorker):
    effect = "{name} will get messages again."
    call, result = "resume_worker", "{name} resumed, with {count}."


@action("release-worker", "Return its messages", m.ControlWorker, "worker", is_dangerous=True)
class ReleaseWorkerAction(OnWorker):
    effect = "The {held} that {name} holds will return to their queues; if it still runs their tasks, they run twice."
    call, unit, result = "release_worker_messages", "message", "{count} of {name} returned."


@action("shutdown-worker", "Shut down", m.ControlWorker, "worker", is_dangerous=True)
class ShutdownWorkerAction(OnWorker):
    effect = "{name} is no Celery worker. It will no longer consume: its consumers are cancelled."
    call, result = "shutdown_worker", "{count} of {name} cancelled."

    def sentence_on(self, worker: Worker) -> str:
        if _control_exchange(worker):
            return "{name} will end its running tasks, return what it holds besides, and end."
        return self.effect

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        worker = await broker.client.worker(self.worker)
        if not (exchange := _control_exchange(worker)):
            return await super().perform(broker)
        await broker.client.publish({"method": "shutdown", "destination": [worker.name]}, exchange=exchange)
        return ActionOutcome(f"{worker.name} received a shutdown request.", {"asked": 1}, "workers")


def _control_exchange(worker: Worker) -> str:
    """Return the exchange of Celery's remote control for this worker; empty if it is no Celery worker."""
    prefix, suffix = f"{worker.name}.", ".pidbox"
    queues = (name for name in worker.consumers if name.startswith(prefix) and name.endswith(suffix))
    return next((name.removeprefix(prefix) for name in queues), "")
