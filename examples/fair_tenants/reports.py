"""A queue that shares its workers fairly between tenants. Nothing of kombu-opendata is imported here."""

import os
from pathlib import Path

from celery import Celery
from kombu import Queue  # type: ignore[attr-defined]

app = Celery("fair_tenants", broker=os.environ.get("OPENDATA_URL", f"opendata://{Path.home()}/tasks-queue"))
app.conf.broker_connection_retry_on_startup = True
app.conf.task_default_queue = "reports"
app.conf.worker_prefetch_multiplier = 1  # what a worker has prefetched comes before a new tenant's task
app.conf.task_queues = [
    Queue(  # type: ignore[no-untyped-call]
        "reports", queue_arguments={"x-partition-by": "tenant", "x-partition-weights": {"gold": 3, "*": 1}}
    ),
]


@app.task
def report(tenant: str, number: int) -> None:
    with Path(os.environ.get("REPORTS", "reports.txt")).open("a") as file:
        file.write(f"{tenant} {number}\n")
