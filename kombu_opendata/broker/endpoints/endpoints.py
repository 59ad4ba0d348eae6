"""The HTTP endpoints of ``--metrics``: metrics, probes, and for autoscalers the list of queues (docs/monitoring.md).

They listen before the store is opened.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qs

import msgspec

from ...configuration.addresses import LOOPBACK, Listen
from ...storage.clock import TimeSlice
from ..instance.instance import Instance
from ..metrics.metric_catalogue import MetricsSnapshot
from ..metrics.queue_depths import standing_of
from ..model.queue import BrokerQueue
from .health import Health
from .http_server import JSON, Fresh, HttpBody, HttpServer, Route, Unanswered, ask
from .scrape import MetricsEndpoint

log = logging.getLogger(__name__)

#: maximum number of queues in a response; others can be requested by name
MAX_LISTED = 1000
_GZIP_BYTES = 1000
#: deadline of the event loop's reply to a probe; a slower loop is reported as hanging
PROBE_SECONDS = 5.0
#: the same during startup, when the loop reads a journal without pauses
START_SECONDS = 120.0


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
    """Endpoint ``/queues``: collects the metrics in the broker's event loop, and responds in the requests' threads."""

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
                    queues.append(await _listed(instance, queue, now, pace))
        return sorted(queues, key=lambda queue: (queue.instance, queue.queue))


async def _listed(instance: Instance, queue: BrokerQueue, now: int, pace: TimeSlice) -> ListedQueue:
    standing = await standing_of(queue.messages, now, pace)
    oldest = max(now - standing.oldest_at_ms, 0) / 1000 if standing.oldest_at_ms else 0.0
    return ListedQueue(
        instance=instance.name,
        queue=queue.name,
        ready=standing.ready,
        in_flight=len(queue.messages.in_flight),
        delayed=standing.delayed,
        oldest_ready_seconds=oldest,
        consumers=len(queue.consumers),
        paused=queue.is_paused,
        **instance.recent_metrics.rates(queue),
    )


def _page(status: HTTPStatus, answer: object) -> HttpBody:
    body = msgspec.json.encode(answer) + b"\n"
    return HttpBody(status, JSON, body, gzip.compress(body, 1) if len(body) > _GZIP_BYTES else b"")


class Endpoints:
    """The HTTP listener of one broker."""

    def __init__(
        self,
        health: Health,
        instances: Mapping[str, Instance],
        measure: Callable[[MetricsSnapshot], None],
        at: Listen,
        max_queues: int,
        *,
        probe_seconds: float = PROBE_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Bind, and begin to serve; raise StartError if the address is not available."""
        self._loop = asyncio.get_running_loop()
        self._health = health
        self._probe_seconds, self._start_seconds = probe_seconds, start_seconds
        self._queues = QueueListEndpoint(instances)
        metrics = MetricsEndpoint(instances, measure, max_queues)
        routes: dict[str, Route] = {
            "/metrics": metrics.page, "/healthz": self.healthz, "/readyz": self.readyz, "/queues": self.queues,
        }  # fmt: skip
        self._http = HttpServer(at.host, at.port, routes)
        self.port = self._http.port
        self._http.start()
        address = Listen(host=at.host, port=self.port).authority
        log.info("metrics at http://%s/metrics", address)
        if at.host not in LOOPBACK:
            log.warning("every host that reaches %s can read the metrics, names of queues included", address)

    def stop(self) -> None:
        """Stop listening. Blocks for a short time."""
        self._http.stop()

    def healthz(self, _query: str) -> HttpBody:
        """Report whether the event loop runs: 200 also for a standby, and while the store takes no writes."""
        state = self._health.state
        if state == "starting" and time.monotonic() - self._health.ticked_at < self._start_seconds:
            return _page(HTTPStatus.OK, {"healthy": True, "state": state})
        try:
            report = ask(self._loop, _report(self._health), self._probe_seconds)
        except Unanswered as exc:
            return _page(HTTPStatus.SERVICE_UNAVAILABLE, {"healthy": False, "reason": str(exc)})
        return _page(HTTPStatus.OK, {"healthy": True, "state": report["state"]})

    def readyz(self, _query: str) -> HttpBody:
        """Report whether clients are served: 200 only for the active broker whose store takes writes."""
        try:
            report = ask(self._loop, _report(self._health), self._probe_seconds)
        except Unanswered as exc:
            report = {"ready": False, "reason": str(exc)}
        return _page(HTTPStatus.OK if report["ready"] else HTTPStatus.SERVICE_UNAVAILABLE, report)

    def queues(self, query: str) -> HttpBody:
        """List the queues; 503 at a broker that is not active, whose queues are unknown rather than empty."""
        if self._health.state != "active":
            return _page(HTTPStatus.SERVICE_UNAVAILABLE, {"error": self._health.fault})
        return self._queues.page(query)


async def _report(health: Health) -> dict[str, object]:
    return health.report()
