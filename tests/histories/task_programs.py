"""Programs of Celery: workers of every pool, and a client that sends tasks and chords and reads their results."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery, chord

from . import events as e
from .programs import PATIENT, Run, pause
from .queue_programs import connected
from .recorder import NO_ANSWER, Recorder

QUEUE = "celery"
#: the environment of a worker: its name, the folder of its events, and its broker
NAME, FOLDER, URL = "HISTORY_CLIENT", "HISTORY_FOLDER", "CELERY_BROKER_URL"

app = Celery("histories")
app.conf.update(
    broker_transport_options=PATIENT,
    result_backend_transport_options=PATIENT,
    worker_redirect_stdouts=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    result_expires=86_400,
)


def execute(key: str, end: str) -> str:
    """Run a task: record its end, and return a result that no other run has."""
    name = os.environ[NAME]
    record = Recorder(Path(os.environ[FOLDER]), f"{name}-{os.getpid()}")
    try:
        result = f"{key} by {name} at {time.monotonic()}"
        if zlib.crc32(key.encode()) % 4 == 0:  # in a payload segment
            result += random.Random(key).randbytes(60_000).hex()
        record.called(e.StoreResult(task=key, result=f"SUCCESS {_shown(result)}" if end == "succeeded" else "FAILURE"))
        record.add(e.TaskEnded, client=name, key=key, end=end)
    finally:
        record.close()
    if end == "raised":
        raise ValueError(key)
    return result


@app.task(name="histories.early", bind=True)
def early(self: Any, end: str) -> str:
    return execute(self.request.id, end)


@app.task(name="histories.late", bind=True, acks_late=True)
def late(self: Any, end: str) -> str:
    return execute(self.request.id, end)


@app.task(name="histories.collect", bind=True, acks_late=True)
def collect(self: Any, parts: list[str]) -> str:
    """The callback of a chord."""
    return execute(self.request.id, "succeeded")


def work(run: Run, name: str, pool: str) -> None:
    """A worker; a pool of green threads needs an interpreter of its own."""
    environment = {**run.environment, NAME: name, FOLDER: str(run.folder), URL: run.url}
    os.environ.update(environment)
    arguments = ["worker", "--loglevel=INFO", f"--hostname={name}@test", f"--pool={pool}", "--concurrency=2"]
    arguments += ["--without-mingle", "--without-gossip"]
    if pool in ("gevent", "eventlet"):
        os.environ.pop("LD_PRELOAD", None)
        os.execv(sys.executable, [sys.executable, "-m", "celery", "-A", "tests.histories.task_programs", *arguments])
    app.conf.update(broker_url=run.url, result_backend=run.url)
    app.worker_main(arguments)


if URL in os.environ:
    app.conf.update(broker_url=os.environ[URL], result_backend=os.environ[URL])


def send_tasks(run: Run, name: str) -> None:
    """Send tasks that succeed and that raise, and chords; read results until there are any."""
    dice, record = run.begin(name)
    app.conf.update(broker_url=run.url, result_backend=run.url)
    known: list[str] = []
    with connected(run.url, f"{name}-results") as client:
        number = 0
        while not run.end.exists():
            key, number = f"{name}-{number}", number + 1
            known += send_chord(record, key) if dice.random() < 0.2 else send_task(dice, record, key)
            task = dice.choice(known[: 1 + len(known) // 2])
            record.run(e.GetResult(task=task), partial(client.task_result, task), result_text)
            pause(dice)
    app.close()


def result_text(result: Any) -> str | None:
    """A final result as the tasks record it."""
    if result is None or result.state not in ("SUCCESS", "FAILURE"):
        return None
    return f"SUCCESS {_shown(result.value)}" if result.state == "SUCCESS" else "FAILURE"


def _shown(value: str) -> str:
    """Return a value, or the beginning and the hash of a large one."""
    return value if len(value) < 1000 else f"{value[:100]} {hashlib.sha256(value.encode()).hexdigest()}"


def send_task(dice: random.Random, record: Recorder, key: str) -> list[str]:
    end, task = dice.choice(("succeeded", "succeeded", "raised")), dice.choice((early, late))
    record.run(e.Publish(key=key, queues=(QUEUE,)), lambda: task.apply_async((end,), task_id=key, retry=False))
    return [key]


def send_chord(record: Recorder, key: str) -> list[str]:
    parts = [f"{key}-part{number}" for number in range(2)]
    calls = [record.called(e.Publish(key=part, queues=(QUEUE,))) for part in parts]
    started = record.called(e.StartChord(callback=f"{key}-callback", parts=tuple(parts)))
    header = [late.si("succeeded").set(task_id=part) for part in parts]
    try:
        chord(header)(collect.s().set(task_id=f"{key}-callback"))
    except NO_ANSWER:
        return parts
    for call in (*calls, started):
        record.returned(call)
    return [*parts, f"{key}-callback"]
