"""Tasks for workflows. One folder is both broker and result backend: there is no second service."""

import os
from collections.abc import Iterable
from pathlib import Path

from celery import Celery, Task

url = os.environ.get("OPENDATA_URL", f"opendata://{Path.home()}/canvas-queue")
app = Celery("canvas", broker=url, backend=url)
app.conf.broker_connection_retry_on_startup = True
app.conf.result_expires = 3600  # seconds


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def double(x: int) -> int:
    return 2 * x


@app.task
def total(numbers: Iterable[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def unreliable(self: Task, works_at: int) -> str:
    """Fails until its n-th try. Between tries it waits in storage, not in a worker."""
    attempt = self.request.retries + 1
    if attempt < works_at:
        raise self.retry(countdown=0.5)
    return f"worked at try {attempt}"
