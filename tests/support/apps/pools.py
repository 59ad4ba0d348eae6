"""More tasks for the app of farm.py, which includes this module where FARM_SETTINGS says so."""

import os
import signal
import time
import uuid

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from farm import app, pass_gate, work, write  # type: ignore[import-not-found]  # the worker stands beside it

from kombu_opendata import delay_key


@app.task(name="farm.stamp")
def stamp(ledger: str, line: str) -> None:
    """Tells when it ran."""
    write(ledger, f"{line} {time.time():.3f}")


@app.task(name="farm.limited", soft_time_limit=4, time_limit=60)
def limited(ledger: str, gate: str) -> None:
    """Waits past its soft limit."""
    try:
        pass_gate(gate)
    except SoftTimeLimitExceeded:
        write(ledger, "soft limit")


@app.task(name="farm.fatal", acks_late=True, reject_on_worker_lost=True)
def fatal(ledger: str, line: str, first: str) -> None:
    """Kills the process that runs it, the first time."""
    write(ledger, line)
    if not os.path.exists(first):
        write(first, "killed")
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="farm.sign", bind=True, acks_late=True)
def sign(self: Task, ledger: str, line: str, seconds: float) -> None:
    """Works a while and tells who did it."""
    work(ledger, f"{line} {self.request.hostname}", seconds)


@app.task(name="farm.delay", bind=True)
def delay(self: Task, ledger: str, line: str, seconds: float) -> None:
    """Delays the queue of its message, or the partition."""
    until = delay_key(seconds)
    write(ledger, f"{line} {self.request.retries} {until is not None}")
    if not self.request.retries and seconds:
        raise self.retry(countdown=0, args=(ledger, line, 0), max_retries=1)


@app.task(name="farm.delay_late", bind=True, acks_late=True)
def delay_late(self: Task, ledger: str, line: str, seconds: float, gate: str) -> None:
    """Delays the partition of its message, and continues until the gate opens."""
    write(ledger, f"{line} {self.request.retries} {delay_key(seconds) is not None}")
    pass_gate(gate)
    write(ledger, f"{line} ended")


def work_between(ledger: str, line: str, hostname: str, seconds: float, gate: str = "") -> None:
    """Work, until the gate opens if there is one; tell where, when it began and when it ended."""
    run = f"{uuid.uuid4().hex} {hostname}"
    write(ledger, f"{line} {run} began {time.time():.6f}")
    if gate:
        pass_gate(gate)
    time.sleep(seconds)
    write(ledger, f"{line} {run} ended {time.time():.6f}")


@app.task(name="farm.span", bind=True)
def span(self: Task, ledger: str, line: str, seconds: float) -> None:
    work_between(ledger, line, self.request.hostname, seconds)


@app.task(name="farm.span_late", bind=True, acks_late=True)
def span_late(self: Task, ledger: str, line: str, seconds: float, gate: str = "") -> None:
    work_between(ledger, line, self.request.hostname, seconds, gate)
