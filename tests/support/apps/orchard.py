"""The app of tests/acceptance that looks at results: the farm's, with tasks that return something."""

import os
from typing import Any

from celery import Task, chord, group
from celery.result import allow_join_result
from farm import add, app, pass_gate, write  # type: ignore[import-not-found]

__all__ = ["add", "app"]


class Fallen(Exception):
    """An error that the client knows too, where it has imported this module."""


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def same(value: Any) -> Any:
    return value


@app.task
def who(value: Any) -> tuple[Any, int]:
    return value, os.getpid()


@app.task
def fall(text: str) -> None:
    raise Fallen(text)


@app.task
def large(size: int) -> str:
    return "x" * size


@app.task
def fall_hard(size: int) -> None:
    raise Fallen("x" * size)


@app.task(bind=True)
def climb(self: Task, gate: str) -> str:
    """Tells how far it is, waits for the gate, and ends."""
    self.update_state(state="PROGRESS", meta={"done": 1})
    pass_gate(gate)
    self.update_state(state="PROGRESS", meta={"done": 2})
    return "top"


@app.task(ignore_result=True)
def silent(value: Any) -> Any:
    return value


@app.task(trail=True)
def parent(count: int) -> Any:
    return group(add.s(number, number) for number in range(count))()


@app.task
def ask(x: int, y: int) -> int:
    """A task that waits for another one, whose result comes over this process's own connection."""
    with allow_join_result():
        return int(add.apply_async((x, y), queue="asked").get(timeout=60))


@app.task(bind=True)
def swap(self: Task, count: int) -> Any:
    """Becomes a chord."""
    raise self.replace(chord([add.s(number, 1) for number in range(count)], total.s()))


@app.task(bind=True, max_retries=2)
def again(self: Task, value: Any) -> Any:
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return value


@app.task(acks_late=True)
def hold_late_and_return(value: Any, ledger: str, gate: str) -> Any:
    write(ledger, f"{value} began")
    pass_gate(gate)
    return value


@app.task
def note_error(request: Any, exc: Exception, traceback: Any, ledger: str) -> None:
    write(ledger, f"errback {exc!r}")


@app.task
def put_down(value: Any, ledger: str) -> Any:
    write(ledger, f"got {value}")
    return value
