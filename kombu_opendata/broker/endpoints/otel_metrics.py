"""The metrics as instruments of OpenTelemetry, beside those of Prometheus (docs/monitoring.md#opentelemetry).

The SDK of the process collects them in a separate thread. The broker counts the values of a histogram itself, so a
histogram is exported as three counters, as in Prometheus: ``…_bucket`` with the attribute ``le``, ``…_count`` and
``…_sum``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation

from ...version import __version__
from ..metrics.metric_catalogue import ALL, PREFIX, Metric, MetricsSnapshot, Ranges, cumulated
from .http_server import FRESH_SECONDS, Fresh, Unanswered

log = logging.getLogger(__name__)


def export_metrics(snapshot: Callable[[], MetricsSnapshot]) -> None:
    """Create the instruments; ``snapshot`` is called in the SDK's thread and raises Unanswered if the loop hangs."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        log.warning("--open-telemetry: no SDK exports anything: start the broker with opentelemetry-instrument")
    latest = Fresh(snapshot, FRESH_SECONDS)
    meter = metrics.get_meter("kombu_opendata", __version__)
    for metric in ALL:
        name = PREFIX + metric.name.removesuffix("_total")
        if metric.kind == "histogram":
            for part in ("bucket", "count", "sum"):
                callbacks = [partial(_observations, latest, metric, part)]
                meter.create_observable_counter(f"{name}_{part}", callbacks, description=metric.help)
        else:
            create = meter.create_observable_gauge if metric.kind == "gauge" else meter.create_observable_counter
            create(name, [partial(_observations, latest, metric, "")], description=metric.help)


def _observations(
    latest: Fresh[MetricsSnapshot], metric: Metric, part: str, _options: CallbackOptions
) -> Iterable[Observation]:
    try:
        samples = latest.get().samples.get(metric.name, {})
    except Unanswered as exc:
        log.warning("the metrics for OpenTelemetry are missing: %s", exc)
        return
    for labels, value in samples.items():
        attributes = dict(zip(metric.labels, labels, strict=True))
        if isinstance(value, tuple):
            yield from _of_histogram(value, part, attributes)
        else:
            yield Observation(value, attributes)


def _of_histogram(value: Ranges, part: str, attributes: dict[str, str]) -> Iterator[Observation]:
    bounds, counts, total = value
    if part == "bucket":
        for bound, count in cumulated(bounds, counts):
            yield Observation(count, {**attributes, "le": bound})
    else:
        yield Observation(total if part == "sum" else sum(counts), attributes)
