"""``opendata-queue`` in a process with OpenTelemetry's SDK, whose exporters stay in memory.

TELEMETRY_FILE gets what they have, whenever it has changed. With TELEMETRY_HANGS, the exporter of spans never returns.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kombu_opendata.cli.root import main as cli


class HangingExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        threading.Event().wait()
        return SpanExportResult.SUCCESS


def telemetry(spans: InMemorySpanExporter, reader: InMemoryMetricReader) -> dict[str, Any]:
    data: Any = reader.get_metrics_data()
    points = {
        metric.name: [[dict(point.attributes or {}), point.value] for point in metric.data.data_points]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    return {"spans": [json.loads(span.to_json()) for span in spans.get_finished_spans()], "metrics": points}


def report(spans: InMemorySpanExporter, reader: InMemoryMetricReader, path: Path) -> None:
    before, pause = "", threading.Event()
    while not pause.wait(0.2):
        if (text := json.dumps(telemetry(spans, reader))) != before:
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").rename(path)
            before = text


if __name__ == "__main__":
    spans, reader, provider = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    if os.environ.get("TELEMETRY_HANGS"):
        provider.add_span_processor(BatchSpanProcessor(HangingExporter(), max_export_batch_size=1))
    else:
        provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    path = Path(os.environ["TELEMETRY_FILE"])
    threading.Thread(target=report, args=(spans, reader, path), daemon=True).start()
    cli()
