"""An app with OpenTelemetry's instrumentation of Celery, as its documentation has it, and an exporter by OTLP."""

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

app = Celery("otel")


@worker_process_init.connect(weak=False)
def instrument(**_: Any) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=100))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument(use_span_links="SPAN_LINKS" in os.environ)
    return provider


@app.task
def parent(number: int) -> None:
    child.delay(number)


@app.task
def child(number: int) -> None:
    if number < 0:
        raise ValueError(f"{number} is negative")


if __name__ == "__main__":
    provider = instrument()
    with trace.get_tracer("sender").start_as_current_span("sender"):
        for number in (1, -1):
            print(parent.delay(number).id)
    provider.force_flush()
