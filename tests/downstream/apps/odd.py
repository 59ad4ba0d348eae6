"""Tasks whose results are of types that no serializer of Celery expects."""

import math
import os
from decimal import Decimal
from typing import Any

import numpy
from celery import Celery, Task

app = Celery("odd", broker=os.environ["CELERY_BROKER_URL"], backend=os.environ["CELERY_BROKER_URL"])
RESULTS: dict[str, Any] = {
    "set": {1},
    "decimal": Decimal("1.5"),
    "nan": math.nan,
    "numpy float": numpy.float64(0.5),
    "numpy array": numpy.array([1, 2]),
    "object": object(),
    "function": math.sin,
    "generator": (n for n in (1, 2)),
    "exception": ValueError("returned"),
    "large": 2**200,
    "surrogate": "\ud800",
}


@app.task
def result(kind: str) -> Any:
    return RESULTS[kind]


@app.task(bind=True)
def headers(self: Task) -> list[str]:
    """The types of the headers that begin with x-."""
    found = self.request.headers or {}
    return [f"{name} {type(found[name]).__name__} {found[name]}" for name in sorted(found) if name.startswith("x-")]
