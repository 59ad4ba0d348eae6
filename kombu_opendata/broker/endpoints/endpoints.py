"""The HTTP endpoints of ``--metrics``: metrics, probes, the list of queues. They listen before the store is opened."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec

from ...configuration.addresses import LOOPBACK, Listen
from ..instance.instance import Instance
from ..metrics.exposition import MetricsSnapshot
from .health import Health
from .http_server import JSON, HttpBody, HttpServer, Route, Unanswered, ask
from .queue_list import QueueListEndpoint
from .scrape import MetricsEndpoint

log = logging.getLogger(__name__)

#: the deadline of a probe's reply from the event loop; a slower loop counts as hanging
PROBE_SECONDS = 5.0
#: the same during startup, when the loop reads a journal without pauses
START_SECONDS = 120.0


class Endpoints:
    """The HTTP listener of one broker."""

    def __init__(
        self,
        health: Health,
        instances: Mapping[str, Instance],
        measure: Callable[[MetricsSnapshot], None],
        at: Listen,
        max_queues: int,
    ) -> None:
        """Bind, and begin to serve.

        Raises:
            StartError: the address is not available.
        """
        self._loop = asyncio.get_running_loop()
        self._health = health
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

    # ------------------------------------------------------------------ in the threads of requests
    def healthz(self, _query: str) -> HttpBody:
        """Report whether the event loop runs: 200 also for a standby, and while the store takes no writes."""
        state = self._health.state
        if state == "starting" and time.monotonic() - self._health.ticked_at < START_SECONDS:
            return _page(HTTPStatus.OK, {"healthy": True, "state": state})
        try:
            report = ask(self._loop, _report(self._health), PROBE_SECONDS)
        except Unanswered as exc:
            return _page(HTTPStatus.SERVICE_UNAVAILABLE, {"healthy": False, "reason": str(exc)})
        return _page(HTTPStatus.OK, {"healthy": True, "state": report["state"]})

    def readyz(self, _query: str) -> HttpBody:
        """Report whether clients are served: 200 only for the active broker whose store takes writes."""
        try:
            report = ask(self._loop, _report(self._health), PROBE_SECONDS)
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


def _page(status: HTTPStatus, answer: object) -> HttpBody:
    return HttpBody(status, JSON, msgspec.json.encode(answer) + b"\n")
