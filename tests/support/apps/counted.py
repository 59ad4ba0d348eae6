"""An app whose workers write down each run and each ack, on a disk that no cut of the network concerns.

A line is a time (of the clock that all processes of the machine share), what happened, and the number of the task.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.app.task import Task
from celery.signals import worker_ready
from celery.worker.request import Request

app = Celery("counted")
app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False)
app.conf.update(json.loads(os.environ.get("FARM_SETTINGS", "{}")))


def note(what: str, number: int) -> None:
    """Write a line: one write, so that processes do not mix theirs."""
    file = os.open(os.environ["COUNTED_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{time.monotonic():.3f} {what} {number}\n".encode())
    finally:
        os.close(file)


class NotedRequest(Request):
    """Writes down when the worker acknowledges; the broker may hear of it later."""

    def acknowledge(self) -> None:
        if not self.acknowledged:
            note("ack", self.args[0])
        super().acknowledge()


class CountedTask(Task):
    Request = NotedRequest


@app.task(base=CountedTask)
def early(number: int, seconds: float) -> None:
    run(number, seconds)


@app.task(base=CountedTask, acks_late=True)
def late(number: int, seconds: float) -> None:
    run(number, seconds)


def run(number: int, seconds: float) -> None:
    note("run", number)
    time.sleep(seconds)
    note("end", number)


@worker_ready.connect
def tell_that_it_is_ready(sender: Any, **_: Any) -> None:
    path = Path(os.environ["FARM_READY"])
    part = path.with_suffix(".part")
    part.write_text("{}")
    part.rename(path)
