"""Broker's metrics for Prometheus: their registry and its scrapes (docs/monitoring.md).

A scrape waits in its thread until the broker's loop has collected the metrics, up to a deadline. Scrapes within a
second get the same response, so frequent scrapes cost no more than one.

SlateDB's own metrics are exported, too. A name such as ``slatedb.db.write_ops`` becomes ``slatedb_db_write_ops_total``,
with SlateDB's labels and ``broker_instance``. SlateDB defines their meaning, which may change with its version.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from ...storage.clock import TimeSlice
from ...version import __version__
from ..instance.instance import Instance
from ..metrics.metric_catalogue import MetricsSnapshot, cumulated, render
from .http_server import ANSWER_SECONDS, FRESH_SECONDS, TEXT, Fresh, HttpBody, Unanswered, ask
from .instance_metrics import InstanceView

log = logging.getLogger(__name__)

#: labels with new values after each startup, which a time series database would collect without end
_UNBOUNDED_LABELS = {"worker_id"}
DEFAULT_MAX_QUEUES = 200
#: type of Prometheus' text format; the constants of prometheus_client differ between its versions
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def slate_families(metrics: Iterable[tuple[str, Any]]) -> Iterable[Family]:
    """Convert (instance, SlateDB's metric) to families. Omits empty histograms."""
    families: dict[str, Family] = {}
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for instance, metric in metrics:
        name = re.sub(r"\W", "_", metric.name)
        labels = {label.key: label.value for label in metric.labels if label.key not in _UNBOUNDED_LABELS}
        labels = {re.sub(r"\W", "_", key): value for key, value in labels.items()} | {"broker_instance": instance}
        kind = _kind(metric.value)
        family = families.get(name)
        if family is None:
            family = families[name] = Family(name, metric.description or f"SlateDB's {metric.name}.", kind)
        if family.type != kind:
            continue
        value = metric.value[0]
        if kind == "histogram":
            _add_histogram(family, labels, value)
            continue
        place = (name, tuple(sorted(labels.items())))
        sums[place] = sums.get(place, 0) + value
    for (name, pairs), value in sums.items():
        family = families[name]
        sample_name = f"{name}_total" if family.type == "counter" else name
        family.add_sample(sample_name, dict(pairs), value)
    return [family for family in families.values() if family.samples]


def _kind(value: Any) -> str:
    if value.is_counter():
        return "counter"
    return "histogram" if value.is_histogram() else "gauge"


def _add_histogram(family: Family, labels: dict[str, str], value: Any) -> None:
    if not value.count:
        return
    for bound, total in cumulated(value.boundaries, value.bucket_counts):
        family.add_sample(family.name + "_bucket", {**labels, "le": bound}, total)
    family.add_sample(family.name + "_count", labels, value.count)
    family.add_sample(family.name + "_sum", labels, value.sum)


class MetricsEndpoint:
    """Metrics of one broker. It is created in the broker's event loop; scrapes run in threads."""

    def __init__(
        self,
        instances: Mapping[str, Instance],
        measure: Callable[[MetricsSnapshot], None],
        max_queues: int = DEFAULT_MAX_QUEUES,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        """Prepare the metrics of the open instances, and those that ``measure`` adds; :meth:`page` serves them."""
        self._instances, self._measure, self._max_queues = instances, measure, max_queues
        self._answer_seconds = answer_seconds
        self._loop = asyncio.get_running_loop()
        self._views: dict[str, InstanceView] = {}
        self._fresh = Fresh(self._make_page, fresh_seconds)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_SlateMetrics(instances))

    def page(self, query: str = "") -> HttpBody:
        """Return the response to a scrape: the last one if it is fresh."""
        return self._fresh.get()

    def _make_page(self) -> HttpBody:
        try:
            body = render(self.snapshot()) + generate_latest(self._registry)
        except Unanswered as exc:
            log.warning("a scrape of the metrics failed: %s", exc)
            return HttpBody(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"{exc}\n".encode())
        except Exception as exc:
            log.exception("a scrape of the metrics failed")
            return HttpBody(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, f"{exc!r}; see the broker's log\n".encode())
        return HttpBody(HTTPStatus.OK, CONTENT_TYPE, body, gzip.compress(body, 1))

    def snapshot(self) -> MetricsSnapshot:
        """Collect the metrics in the event loop; raise Unanswered if the loop did not reply in time, or is closed."""
        return ask(self._loop, self._collect(time.monotonic()), self._answer_seconds)

    async def _collect(self, asked_at: float) -> MetricsSnapshot:
        began = time.monotonic()
        instances = dict(self._instances)
        for name in self._views.keys() - instances.keys():
            del self._views[name]
        for name, instance in instances.items():
            if name not in self._views:
                self._views[name] = InstanceView(instance, self._max_queues)
        snapshot = MetricsSnapshot()
        for view in list(self._views.values()):
            await view.collect(snapshot, TimeSlice())
        self._measure(snapshot)
        snapshot.set("build_info", 1, __version__, version("slatedb"), platform.python_version())
        snapshot.set("event_loop_delay_seconds", began - asked_at)
        snapshot.set("snapshot_duration_seconds", time.monotonic() - began)
        return snapshot


class _SlateMetrics(Collector):
    """SlateDB's metrics, for the registry."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self._instances = instances

    def collect(self) -> Iterable[Family]:
        instances = list(self._instances.items())
        return slate_families((name, metric) for name, each in instances for metric in each.engine.store.metrics())
