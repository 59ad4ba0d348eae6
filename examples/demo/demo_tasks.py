"""The demo's Celery app. Its broker comes from the environment: CELERY_BROKER_URL."""

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

#: names the file that a worker creates once it consumes
READY_VARIABLE = "DEMO_READY_FILE"
#: bytes of one line of the ledger, so that its size tells how many tasks ran
LINE_BYTES = 9

app = Celery("demo")
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_redirect_stdouts=False,
)


@app.task
def note(ledger: str, number: int) -> None:
    """Append the number to the ledger with a single write, so that the lines of several processes do not mix."""
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, b"%08d\n" % number)
    finally:
        os.close(file)


@worker_ready.connect
def tell_that_it_is_ready(**_: Any) -> None:
    if path := os.environ.get(READY_VARIABLE):
        Path(path).touch()
