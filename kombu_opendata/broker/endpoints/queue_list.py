"""``/queues``: the metrics of the stored queues as JSON, for autoscalers (docs/monitoring.md)."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qs

import msgspec

from ...storage.clock import TimeSlice
from ..instance.instance import Instance
from ..metrics.queue_depths import standing_of
from ..model.queue import BrokerQueue
from .http_server import JSON, Fresh, HttpBody, Unanswered, ask

log = logging.getLogger(__name__)

#: maximum number of queues in a response; others can be requested by name
MAX_LISTED = 1000
_GZIP_BYTES = 1000


class ListedQueue(msgspec.Struct, frozen=True):
    """A stored queue."""

    instance: str
    queue: str
    ready: int
    in_flight: int
    delayed: int
    oldest_ready_seconds: float
    consumers: int
    published_per_second: float
    delivered_per_second: float
    acked_per_second: float
    paused: bool = False
    failed_per_second: float = 0.0


class QueueListEndpoint:
    """The endpoint: collects the metrics in the broker's loop and responds in the threads of requests."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self._instances = instances
        self._loop = asyncio.get_running_loop()
        self._fresh = Fresh(lambda: ask(self._loop, self._collect()))

    def page(self, query: str) -> HttpBody:
        """Return the queues, or those that ``instance=`` and ``queue=`` name."""
        try:
            filters = parse_qs(query, strict_parsing=bool(query), max_num_fields=100)
        except ValueError:
            return _page(HTTPStatus.BAD_REQUEST, {"error": "the query is not instance=NAME&queue=NAME"})
        if unknown := filters.keys() - {"instance", "queue"}:
            error = f"the query has only instance= and queue=, not {min(unknown)}"
            return _page(HTTPStatus.BAD_REQUEST, {"error": error})
        try:
            queues = self._fresh.get()
        except Unanswered as exc:
            return _page(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(exc)})
        matches = [queue for queue in queues if all(getattr(queue, name) in values for name, values in filters.items())]
        reported = matches[:MAX_LISTED]
        return _page(HTTPStatus.OK, {"queues": reported, "left_out": len(matches) - len(reported)})

    async def _collect(self) -> list[ListedQueue]:
        queues = []
        pace = TimeSlice()
        for instance in list(self._instances.values()):
            now = instance.engine.clock.now_ms()
            async for stored in pace.over(list(instance.engine.state.queues.values())):
                queue = instance.queues.get(stored.name)
                if queue is not None and not queue.deleting:
                    queues.append(await _figures(instance, queue, now, pace))
        return sorted(queues, key=lambda queue: (queue.instance, queue.queue))


async def _figures(instance: Instance, queue: BrokerQueue, now: int, pace: TimeSlice) -> ListedQueue:
    standing = await standing_of(queue.messages, now, pace)
    oldest = max(now - standing.oldest_at_ms, 0) / 1000 if standing.oldest_at_ms else 0.0
    return ListedQueue(
        instance.name, queue.name, standing.ready, len(queue.messages.in_flight), standing.delayed, oldest,
        len(queue.consumers), paused=queue.is_paused, **instance.figures.rates(queue),
    )  # fmt: skip


def _page(status: HTTPStatus, answer: object) -> HttpBody:
    body = msgspec.json.encode(answer) + b"\n"
    return HttpBody(status, JSON, body, gzip.compress(body, 1) if len(body) > _GZIP_BYTES else b"")
