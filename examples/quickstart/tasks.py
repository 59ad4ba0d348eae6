"""An ordinary Celery app. The broker is a folder; nothing of kombu-opendata is imported here."""

import os
from pathlib import Path

from celery import Celery

app = Celery("quickstart", broker=os.environ.get("OPENDATA_URL", f"opendata://{Path.home()}/tasks-queue"))
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(x: int, y: int) -> int:
    return x + y
