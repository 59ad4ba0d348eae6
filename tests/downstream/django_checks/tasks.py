"""Tasks of the tests."""

import os
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from celery import Task, shared_task
from django.conf import settings
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from mailing.models import Letter

GATE_SECONDS = 120
#: results of types that JSON does not have, by name
RESULTS: dict[str, Callable[[], Any]] = {
    "datetime": lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "decimal": lambda: Decimal("1.10"),
    "uuid": lambda: uuid.UUID(int=1),
    "bytes": lambda: b"\xff\x00",
    "lazy text": lambda: gettext_lazy("sent"),
    "safe text": lambda: mark_safe("<b>sent</b>"),
    "tuple": lambda: (1, 2),
    "model": lambda: Letter(to="Ada"),
    "queryset": lambda: Letter.objects.all(),
    "object": object,
}


@shared_task
def note(ledger: str, line: str) -> str:
    """Append a line to the file."""
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
    return line


@shared_task(queue=settings.SEARCH_QUEUE_NAME, expires=600)
def update_search(ledger: str) -> None:
    """Saleor names a queue by a variable that may be missing."""
    note(ledger, "search")


@shared_task
def add(x: int, y: int) -> int:
    return x + y


@shared_task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@shared_task
def fail(text: str) -> None:
    raise ValueError(text)


@shared_task(bind=True, max_retries=2)
def stubborn(self: Task, succeeds_at: int) -> int:
    if self.request.retries < succeeds_at:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@shared_task(bind=True)
def hold(self: Task, gate: str) -> str:
    """Report progress once ``gate`` exists, and end once ``gate.open`` does."""
    wait_for(Path(gate))
    self.update_state(state="PROGRESS", meta={"done": 1, "of": 2})
    wait_for(Path(f"{gate}.open"))
    return "held"


@shared_task
def result_of(kind: str) -> Any:
    return RESULTS[kind]()


def wait_for(gate: Path) -> None:
    deadline = time.monotonic() + GATE_SECONDS
    while not gate.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{gate} was not opened")
        time.sleep(0.01)
