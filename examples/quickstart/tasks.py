"""An ordinary Celery app. The broker is a folder; nothing of kombu-opendata is imported here."""

import os

from celery import Celery

app = Celery("quickstart", broker=os.environ.get("OPENDATA_URL", "opendata:///tmp/queue"))
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(x: int, y: int) -> int:
    return x + y
