"""Unique tasks: a report that is built once, an index that is written after the last change, a warning once an hour."""

import os
from pathlib import Path

from celery import Celery

from kombu_opendata import Unique

url = os.environ.get("OPENDATA_URL", f"opendata://{Path.home()}/unique-queue")
app = Celery("unique", broker=url, backend=url)
app.conf.broker_connection_retry_on_startup = True


@app.task(unique=Unique(by=("task", "month")))
def build_report(month: str, requested_by: str) -> str:
    """Whoever requests the report while it waits or is built gets the result of the first request."""
    return f"report of {month} for {requested_by}"


@app.task(unique=Unique(by=("task", "document"), until="started", on_conflict="replace"))
def index(document: int, text: str) -> str:
    """Debounced by a countdown: each change replaces the task that waits, so only the last one runs."""
    return f"document {document}: {text}"


@app.task(unique=Unique(by=("task", "disk"), until=3600, on_conflict="error"))
def warn(disk: str) -> str:
    """Throttled: a second warning within an hour raises UniqueViolation."""
    return f"{disk} is full"
