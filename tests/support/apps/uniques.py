"""Unique tasks, for a worker that stands beside farm.py, and for the app of a test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery import Celery, Task

from kombu_opendata import Unique


def register(app: Celery) -> SimpleNamespace:
    """The tasks, by name; all hold a key of their name and ``line``."""
    by = ("task", "line")

    def hold(ledger: str, line: str, gate: str = "/") -> str:
        from farm import pass_gate, write  # type: ignore[import-not-found]

        write(ledger, f"{line} began")
        pass_gate(gate)
        write(ledger, f"{line} ended")
        return line

    def again(task: Task, ledger: str, line: str, gate: str, retries: int = 2) -> str:
        from farm import pass_gate, write

        write(ledger, f"{line} try {task.request.retries}")
        if task.request.retries < retries:
            raise task.retry(countdown=0.1, max_retries=None)
        pass_gate(gate)
        return line

    def total(lines: list[str]) -> str:
        return "+".join(lines)

    kinds: dict[str, dict[str, Any]] = {
        "early": {"unique": Unique(by)},
        "late": {"unique": Unique(by), "acks_late": True},
        "started": {"unique": Unique(by, until="started")},
        "hourly": {"unique": Unique(by, until=3600)},
        "newest": {"unique": Unique(by, until="started", on_conflict="replace")},
        "strict": {"unique": Unique(by, on_conflict="error")},
    }
    tasks = {name: app.task(hold, name=f"uniques.{name}", shared=False, **options) for name, options in kinds.items()}
    tasks["again"] = app.task(again, name="uniques.again", bind=True, shared=False, unique=Unique(by))
    tasks["total"] = app.task(total, name="uniques.total", shared=False, unique=Unique())
    return SimpleNamespace(**tasks)


if __name__ == "uniques":
    from farm import app

    register(app)
