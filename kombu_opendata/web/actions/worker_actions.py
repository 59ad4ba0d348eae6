"""Actions on workers and other clients."""

from __future__ import annotations

from pydantic import Field

from ...protocol import messages as m
from ...queue_client.administration import Worker
from ...readable_text import counted
from ..user_clients import UserBroker
from .action import ActionOutcome, Parameters, Preview, action


class OnWorker(Parameters):
    worker: str = Field(title="Worker", description="its id", min_length=1)

    async def preview(self, broker: UserBroker) -> Preview:
        worker = await broker.client.worker(self.worker)
        return Preview(self.effect(worker), worker.held)

    def effect(self, worker: Worker) -> str:
        """Return the effect on a worker as a sentence."""
        raise NotImplementedError

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        worker = await broker.client.worker(self.worker)
        text, count = await self.control(broker, worker)
        return ActionOutcome(text, count, "workers")

    async def control(self, broker: UserBroker, worker: Worker) -> tuple[str, dict[str, int]]:
        """Control a worker, and return the result as a sentence and as numbers."""
        raise NotImplementedError


@action("suspend-worker", "Suspend", m.ControlWorker, "worker")
class SuspendWorkerAction(OnWorker):
    def effect(self, worker: Worker) -> str:
        held = counted(worker.held, "message")
        return f"{worker.name} will get no more messages until it is resumed; it keeps the {held} it holds."

    async def control(self, broker: UserBroker, worker: Worker) -> tuple[str, dict[str, int]]:
        count = await broker.client.suspend_worker(self.worker)
        return f"{worker.name} is suspended, with {counted(count, 'consumer')}.", {"count": count}


@action("resume-worker", "Resume", m.ControlWorker, "worker")
class ResumeWorkerAction(OnWorker):
    def effect(self, worker: Worker) -> str:
        return f"{worker.name} will get messages again."

    async def control(self, broker: UserBroker, worker: Worker) -> tuple[str, dict[str, int]]:
        count = await broker.client.resume_worker(self.worker)
        return f"{worker.name} resumed, with {counted(count, 'consumer')}.", {"count": count}


@action("release-worker", "Return its messages", m.ControlWorker, "worker", is_dangerous=True)
class ReleaseWorkerAction(OnWorker):
    def effect(self, worker: Worker) -> str:
        held = f"The {counted(worker.held, 'message')} that {worker.name} holds"
        return f"{held} will return to their queues; if it still runs their tasks, they run twice."

    async def control(self, broker: UserBroker, worker: Worker) -> tuple[str, dict[str, int]]:
        count = await broker.client.release_worker_messages(self.worker)
        return f"{counted(count, 'message')} of {worker.name} returned.", {"count": count}


@action("shutdown-worker", "Shut down", m.ControlWorker, "worker", is_dangerous=True)
class ShutdownWorkerAction(OnWorker):
    def effect(self, worker: Worker) -> str:
        if _control_exchange(worker):
            return f"{worker.name} will end its running tasks, return what it holds besides, and end."
        return f"{worker.name} is no Celery worker. It will no longer consume: its consumers are cancelled."

    async def control(self, broker: UserBroker, worker: Worker) -> tuple[str, dict[str, int]]:
        if exchange := _control_exchange(worker):
            await broker.client.publish({"method": "shutdown", "destination": [worker.name]}, exchange=exchange)
            return f"{worker.name} received a shutdown request.", {"asked": 1}
        count = await broker.client.shutdown_worker(self.worker)
        return f"{counted(count, 'consumer')} of {worker.name} cancelled.", {"count": count}


def _control_exchange(worker: Worker) -> str:
    """Return the exchange of Celery's remote control for this worker; empty if it is no Celery worker."""
    prefix, suffix = f"{worker.name}.", ".pidbox"
    queues = (name for name in worker.consumers if name.startswith(prefix) and name.endswith(suffix))
    return next((name.removeprefix(prefix) for name in queues), "")
