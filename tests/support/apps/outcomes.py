"""Tasks that end in every way, for the app of farm.py: each in two forms, of which ``…_late`` acknowledges late."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request
from farm import app, pass_gate, write  # type: ignore[import-not-found]  # the worker stands beside it


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def both(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a task that acknowledges early, and one that acknowledges late."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        app.task(name=f"farm.{run.__name__}", **options)(run)
        app.task(name=f"farm.{run.__name__}_late", acks_late=True, **options)(run)
        return run

    return register


@both()
def fine() -> str:
    return "fine"


@both()
def raises() -> None:
    try:
        raise KeyError("the cause")
    except KeyError as exc:
        raise ValueError("it went wrong") from exc


@both()
def unprintable() -> None:
    raise Unprintable


@both()
def unpicklable() -> None:
    class Local(Exception):
        pass

    raise Local("stays here")


@both()
def surrogates() -> None:
    raise ValueError("bad \ud800 text")


@both()
def huge() -> None:
    raise ValueError("x" * 10_000_000)


@both(bind=True, max_retries=1)
def again(self: Task) -> None:
    """Raises an error in the end."""
    try:
        raise TimeoutError("not yet")
    except TimeoutError as exc:
        raise self.retry(exc=exc, countdown=0.01) from exc


@both()
def rejects() -> None:
    raise Reject("not for me", requeue=False)


@both()
def ignores() -> None:
    raise Ignore("never mind")


@both(soft_time_limit=1, time_limit=60)
def too_long() -> None:
    pass_gate("a gate that nobody opens")


@both()
def hangs(ledger: str, line: str, gate: str) -> None:
    write(ledger, f"{line} began")
    pass_gate(gate)


@both()
def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@both()
def exits() -> None:
    raise SystemExit(3)


class OwnRequest(Request):
    """A request as users write them."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        write(os.environ["FARM_OWN"], f"on_timeout {self.name}")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        write(os.environ["FARM_OWN"], f"on_failure {self.name}")


@app.task(name="farm.own", Request="outcomes:OwnRequest")
def own() -> None:
    raise ValueError("own")


@app.task(name="farm.unkept", acks_late=True, acks_on_failure_or_timeout=False)
def unkept() -> None:
    raise ValueError("not acknowledged")


@app.task(name="farm.dies_once", acks_late=True, reject_on_worker_lost=True)
def dies_once(first: str) -> None:
    """Kills the process that runs it, the first time."""
    if not os.path.exists(first):
        write(first, "killed")
        os.kill(os.getpid(), signal.SIGKILL)


@both()
def fails_after(ledger: str, line: str, gate: str) -> None:
    """Raises when the gate opens."""
    hangs(ledger, line, gate)
    write(ledger, f"{line} raised")
    raise ValueError(line)


@both(bind=True)
def replaced(self: Task) -> None:
    """Runs another task in its place."""
    raise self.replace(app.signature("farm.fine", immutable=True))


@both(bind=True)
def sends(self: Task) -> None:
    """Sends another task with its own headers, as a careless user does."""
    app.send_task("farm.raises", headers=dict(self.request.headers or {}))


@app.task(name="farm.step", soft_time_limit=1, time_limit=60)
def step(n: int, end: str, repaired: str) -> dict[str, int]:
    """Ends in this way until the file exists."""
    if not os.path.exists(repaired):
        if end == "raised":
            raise ValueError(f"step {n} is not ready")
        if end == "timed_out":
            pass_gate("a gate that nobody opens")
        if end == "lost":
            os.kill(os.getpid(), signal.SIGKILL)
    return {"square": n * n}
