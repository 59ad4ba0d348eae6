"""Tasks that fail in several ways until a file exists, for the app of farm.py."""

from __future__ import annotations

import os
import signal

from celery.exceptions import Reject
from farm import app, pass_gate, write  # type: ignore[import-not-found]  # the worker stands beside it


@app.task(ignore_result=False)
def pay(mended: str, amount: int) -> int:
    if not os.path.exists(mended):
        raise ValueError(f"no money for {amount}")
    return amount


@app.task(ignore_result=False, soft_time_limit=1)
def hang(mended: str) -> str:
    pass_gate(mended)
    return "in time"


@app.task(ignore_result=False, acks_late=True)
def refuse(mended: str) -> str:
    if not os.path.exists(mended):
        raise Reject("not for me", requeue=False)
    return "taken"


@app.task(ignore_result=False)
def die(mended: str) -> str:
    if not os.path.exists(mended):
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@app.task(ignore_result=False)
def total(amounts: list[int], ledger: str) -> int:
    """The body of a chord."""
    write(ledger, f"total {sum(amounts)}")
    return sum(amounts)
