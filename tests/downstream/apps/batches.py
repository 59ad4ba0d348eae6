"""Tasks of celery-batches: each in a form that acknowledges early, and one that acknowledges late."""

import os
import signal
from typing import Any

from celery import Celery
from celery_batches import Batches

app = Celery("batches")
app.conf.task_default_queue = "batches"
SIZE = 3


def both(run: Any) -> Any:
    options = {"base": Batches, "flush_every": SIZE, "flush_interval": 60}
    app.task(name=f"batches.{run.__name__}_late", acks_late=True, **options)(run)
    return app.task(name=f"batches.{run.__name__}", **options)(run)


@both
def total(requests: list[Any]) -> int:
    return sum(request.args[0] for request in requests)


@both
def fails(requests: list[Any]) -> None:
    raise ValueError(f"{len(requests)} requests")


@both
def dies(requests: list[Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def single(number: int) -> int:
    return number
