"""The settings with Sentry, OpenTelemetry and the packages of Django, as the documentation of each has it.

Those of Celery are only what docs/compatibility.md names: a test compares them.
"""

import os
from typing import Any

import sentry_sdk
from celery.signals import beat_init, worker_process_init
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from sentry_sdk.integrations.celery import CeleryIntegration

from .settings import DATABASES, DEFAULT_AUTO_FIELD, INSTALLED_APPS, SEARCH_QUEUE_NAME, SECRET_KEY, USE_TZ

__all__ = ["DATABASES", "DEFAULT_AUTO_FIELD", "INSTALLED_APPS", "SEARCH_QUEUE_NAME", "SECRET_KEY", "USE_TZ"]

CELERY_BROKER_URL = os.environ["OPENDATA_URL"]
CELERY_RESULT_BACKEND = "django-db"
CELERY_RESULT_EXTENDED = True
CELERY_WORKER_SEND_TASK_EVENTS = True
sentry_sdk.init(
    dsn=os.environ["SENTRY_DSN"], traces_sample_rate=1.0, integrations=[CeleryIntegration(monitor_beat_tasks=True)]
)


@beat_init.connect(weak=False)
@worker_process_init.connect(weak=False)
def instrument(**_: Any) -> None:
    """Instrument a process that publishes or runs tasks, after the fork."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=100))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()
