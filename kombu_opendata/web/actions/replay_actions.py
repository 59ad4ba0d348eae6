"""Actions that put stored messages into a queue again."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..brokers import Broker
from .action import Action, Done, Preview, Report, counted
from .queue_actions import OfQueue


class Replay(OfQueue):
    start: str = Field(
        "first", title="From", description='"first", a message id, or a time with its offset', min_length=1
    )
    until: str = Field("now", title="Until", description='"now", a message id, or a time with its offset', min_length=1)
    where: str = Field("", title="Filter", description="only messages that match it")


def _point(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() else text


async def preview_replay(broker: Broker, given: Replay) -> Preview:
    consumers = (await broker.client.metrics(given.queue)).consumers
    notes = (f"{counted(consumers, 'consumer')} will run tasks that were done, once more.",) if consumers else ()
    return Preview(
        f"{given.queue} gets all stored messages that it would get now, again, in the background.", None, notes
    )


async def replay(broker: Broker, given: Replay, _report: Report) -> Done:
    await broker.client.replay(given.queue, _point(given.start), _point(given.until), where=given.where)
    return Done(f"A replay into {given.queue} has begun.", {}, "replays")


async def preview_stop(_broker: Broker, given: OfQueue) -> Preview:
    return Preview(f"The replay into {given.queue} will stop where it is. What it has put there stays.")


async def stop(broker: Broker, given: OfQueue, _report: Report) -> Done:
    await broker.client.stop_replay(given.queue)
    return Done(f"The replay into {given.queue} has stopped.", {}, "replays")


_QUEUE = frozenset(("queue",))
ACTIONS: tuple[Action[Any], ...] = (
    Action("replay", "Replay", Replay, preview_replay, replay, _QUEUE),
    Action("stop-replay", "Stop the replay", OfQueue, preview_stop, stop, _QUEUE, is_dangerous=True),
)
