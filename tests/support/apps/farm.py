"""The app of the workers under test. Its broker is CELERY_BROKER_URL, and nothing here knows which kind it is."""

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.signals import worker_ready

GATE_SECONDS = 300

app = Celery("farm")
app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False)
app.conf.update(json.loads(os.environ.get("FARM_SETTINGS", "{}")))


def write(ledger: str, line: object) -> None:
    """Append a line: one write, so that processes do not mix theirs."""
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def pass_gate(gate: str) -> None:
    """Wait until the file exists."""
    deadline = time.monotonic() + GATE_SECONDS
    while not os.path.exists(gate):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{gate} was not opened")
        time.sleep(0.01)


@app.task
def note(ledger: str, line: str) -> None:
    write(ledger, line)


@app.task
def work(ledger: str, line: str, seconds: float) -> None:
    """Something that takes its time."""
    time.sleep(seconds)
    write(ledger, line)


@app.task(bind=True)
def note_headers(task: Task, ledger: str) -> None:
    write(ledger, {"headers": task.request.headers, "price": task.request.get("price")})


@app.task(acks_late=True)
def note_late(ledger: str, line: str) -> None:
    write(ledger, line)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def tell(result: int, ledger: str) -> None:
    """The end of a chain."""
    write(ledger, result)


@app.task(bind=True, max_retries=3)
def stubborn(self: Task, ledger: str, succeeds_at: int, countdown: float) -> None:
    """Fails until its n-th retry."""
    write(ledger, f"try {self.request.retries} at {time.time():.3f}")
    if self.request.retries < succeeds_at:
        raise self.retry(countdown=countdown)


@app.task
def breed(ledger: str, name: str, number: int) -> None:
    """Publishes tasks from within a task."""
    for child in range(number):
        note.delay(ledger, f"{name}.{child}")
    write(ledger, name)


@app.task
def hold(ledger: str, line: str, gate: str) -> None:
    """Runs until the gate opens."""
    write(ledger, f"{line} began")
    pass_gate(gate)
    write(ledger, f"{line} ended")


@app.task(acks_late=True)
def hold_late(ledger: str, line: str, gate: str) -> None:
    hold(ledger, line, gate)


@app.task(bind=True)
def attempted(self: Task, ledger: str, line: str) -> None:
    """Tells how many earlier deliveries were counted as attempts."""
    write(ledger, f"{line} {self.request.get('x-delivery-count', 0)}")


@worker_ready.connect
def tell_that_it_is_ready(sender: Any, **_: Any) -> None:
    path = Path(os.environ["FARM_READY"])
    about = {"loop": sender.loop.__name__, "asynchronous": bool(sender.connection.transport.implements.asynchronous)}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(about))
    part.rename(path)
