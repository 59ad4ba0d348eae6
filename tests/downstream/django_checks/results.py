"""Results of tasks, as an app reads them, and as rows of django-celery-results."""

import time
from pathlib import Path
from typing import Any

from celery import chord, current_app, group
from celery.exceptions import ChordError
from celery.result import AsyncResult, GroupResult
from django_celery_results.models import ChordCounter, TaskResult
from django_celery_results.models import GroupResult as GroupRow

from kombu_opendata import QueueClient

from .tasks import RESULTS, add, fail, hold, result_of, stubborn, total

WAIT_SECONDS = 60


def states(gate: str) -> dict[str, Any]:
    """Return the states that a result has."""
    held = hold.delay(gate)
    queued = add.delay(1, 1)
    seen = {"queued": queued.state, "started": state_after(held, "PENDING")}
    current_app.control.revoke(queued.id, reply=True, timeout=WAIT_SECONDS, limit=1)
    Path(gate).touch()
    seen["progress"] = state_after(held, "STARTED")
    seen["progress of"] = held.info["of"]
    Path(f"{gate}.open").touch()
    seen["held"] = held.get(timeout=WAIT_SECONDS)
    seen["held, in the end"] = held.state
    queued.get(timeout=WAIT_SECONDS, propagate=False)
    seen["revoked"] = queued.state
    seen["sum"] = add.delay(2, 3).get(timeout=WAIT_SECONDS)
    seen["retried"] = stubborn.delay(2).get(timeout=WAIT_SECONDS)
    failed = fail.delay("broken")
    seen["error"] = repr(failed.get(timeout=WAIT_SECONDS, propagate=False))
    seen["failed"] = failed.state
    seen["traceback"] = "ValueError: broken" in failed.traceback
    failed.forget()
    seen["forgotten"] = AsyncResult(failed.id).state
    return seen


def state_after(result: Any, state: str) -> Any:
    """Return the task's next state."""
    deadline = time.monotonic() + WAIT_SECONDS
    while result.state == state:
        if time.monotonic() > deadline:
            raise TimeoutError(f"still {state}")
        time.sleep(0.05)
    return result.state


def expired(url: str) -> str:
    """Return the state of a task that expires in its queue."""
    result = add.apply_async((1, 1), queue="without a worker", expires=1)
    deadline = time.monotonic() + WAIT_SECONDS
    with QueueClient(url) as client:
        while client.metrics("without a worker").length:
            if time.monotonic() > deadline:
                raise TimeoutError("not expired")
            time.sleep(0.05)
    if current_app.conf.result_backend != "django-db":
        result.get(timeout=WAIT_SECONDS, propagate=False)
    return str(result.state)


def workflows() -> dict[str, Any]:
    """Return the results of groups and chords."""
    running = group(add.s(number, number) for number in range(5))()
    running.save()
    restored = GroupResult.restore(running.id)
    seen: dict[str, Any] = {"group": restored.get(timeout=WAIT_SECONDS)}
    seen["group is ready"] = restored.successful()
    running.delete()
    seen["deleted group"] = GroupResult.restore(running.id)
    seen["chord"] = chord(add.s(number, 1) for number in range(10))(total.s()).get(timeout=WAIT_SECONDS)
    seen["chain with chord"] = (add.s(1, 2) | group(add.s(1), add.s(2)) | total.s())().get(timeout=WAIT_SECONDS)
    failing = chord([add.s(1, 1), fail.s("part")])(total.s())
    error = failing.get(timeout=WAIT_SECONDS, propagate=False)
    seen["chord with a failed part"] = [isinstance(error, ChordError), "part" in str(error), failing.state]
    return seen


def types() -> dict[str, list[str]]:
    """Return the state and the type of results, by their kind."""
    sent = {kind: result_of.delay(kind) for kind in RESULTS}
    values = {kind: result.get(timeout=WAIT_SECONDS, propagate=False) for kind, result in sent.items()}
    return {kind: [sent[kind].state, type(value).__name__] for kind, value in values.items()}


def rows() -> dict[str, Any]:
    """Return what django-celery-results has in its tables."""
    return {
        "tasks": {row.task_id: [row.task_name, row.status, row.periodic_task_name] for row in TaskResult.objects.all()},
        "groups": GroupRow.objects.count(),
        "chords": ChordCounter.objects.count(),
    }


def send_failing() -> str:
    """Send a task that raises an error; return its id."""
    return str(fail.delay("broken").id)
