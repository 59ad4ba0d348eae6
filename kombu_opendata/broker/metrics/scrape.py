"""The broker's metrics for Prometheus: their registry and its scrapes (docs/monitoring.md).

A scrape waits in a thread of its own until the broker's loop has collected the figures, up to a deadline. Scrapes
within a second get the same answer, so many scrapes cost no more than one.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from ...version import __version__
from ..delivery.time_slices import Pace
from ..instance.instance import Instance
from .exposition import render
from .http_server import MetricsServer, Page
from .slatedb_families import slate_families
from .snapshot import InstanceView, Snapshot

log = logging.getLogger(__name__)

DEFAULT_MAX_QUEUES = 200
#: how long the loop may take to collect the figures; Prometheus itself gives up after 10 s
SNAPSHOT_SECONDS = 8.0
#: how long an answer is reused
FRESH_SECONDS = 1.0
_TEXT = "text/plain; charset=utf-8"


class Unanswered(Exception):
    """The loop did not collect the figures in time."""


class Metrics:
    """The metrics of one broker. It is created in the broker's event loop; scrapes run in threads."""

    def __init__(
        self,
        instances: Mapping[str, Instance],
        measure: Callable[[Snapshot], None],
        host: str,
        port: int,
        max_queues: int = DEFAULT_MAX_QUEUES,
    ) -> None:
        """Bind the address.

        Args:
            instances: the open instances; may change.
            measure: adds the figures of the broker's connections.

        Raises:
            StartError: the address is not available.
        """
        self._instances = instances
        self._measure = measure
        self._max_queues = max_queues
        self._loop = asyncio.get_running_loop()
        self._views: dict[str, InstanceView] = {}
        self._lock = threading.Lock()
        self._page = Page(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"")
        self._page_at = -FRESH_SECONDS
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_SlateMetrics(instances))
        self._http = MetricsServer(host, port, self.page)
        self.port = self._http.port

    def start(self) -> None:
        """Answer scrapes from now on."""
        self._http.start()

    def stop(self) -> None:
        """Stop serving; blocks for a moment."""
        self._http.stop()

    # ------------------------------------------------------------------ in the threads of scrapes
    def page(self) -> Page:
        """The answer to a scrape: the last one if it is fresh."""
        with self._lock:
            if time.monotonic() - self._page_at >= FRESH_SECONDS:
                self._page = self._make_page()
                self._page_at = time.monotonic()
            return self._page

    def _make_page(self) -> Page:
        try:
            body = render(self.snapshot()) + generate_latest(self._registry)
        except Unanswered as exc:
            log.warning("a scrape of the metrics failed: %s", exc)
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{exc}\n".encode())
        except Exception as exc:
            log.exception("a scrape of the metrics failed")
            return Page(HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, f"{exc!r}; see the broker's log\n".encode())
        return Page(HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, body, gzip.compress(body, 1))

    def snapshot(self) -> Snapshot:
        """Collect the figures in the event loop.

        Raises:
            Unanswered: the loop did not answer in time, or is closed.
        """
        asked_at = time.monotonic()
        work = self._collect(asked_at)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as exc:
            work.close()
            raise Unanswered("the broker has stopped") from exc
        try:
            return future.result(SNAPSHOT_SECONDS)
        except CancelledError as exc:
            raise Unanswered("the broker stops") from exc
        except FutureTimeout as exc:
            future.cancel()
            raise Unanswered(f"the broker did not collect its figures within {SNAPSHOT_SECONDS:g} s") from exc

    async def _collect(self, asked_at: float) -> Snapshot:
        began = time.monotonic()
        instances = dict(self._instances)
        for name in self._views.keys() - instances.keys():
            del self._views[name]
        for name, instance in instances.items():
            if name not in self._views:
                self._views[name] = InstanceView(instance, self._max_queues)
        found = Snapshot()
        for view in list(self._views.values()):
            await view.collect(found, Pace())
        self._measure(found)
        found.set("build_info", 1, __version__, version("slatedb"), platform.python_version())
        found.set("event_loop_delay_seconds", began - asked_at)
        found.set("snapshot_duration_seconds", time.monotonic() - began)
        return found


class _SlateMetrics(Collector):
    """SlateDB's metrics, for the registry."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self._instances = instances

    def collect(self) -> Iterable[Family]:
        return slate_families(self._metrics())

    def _metrics(self) -> Iterator[tuple[str, Any]]:
        """Each instance's name with one of SlateDB's own metrics."""
        for name, instance in list(self._instances.items()):
            for metric in instance.engine.store.metrics():
                yield name, metric
