"""The tasks of the shop. Broker and results are in one folder, which the first process that connects starts."""

import os
import time
from pathlib import Path

from celery import Celery

URL = os.environ.get("OPENDATA_URL", f"opendata://{Path.home()}/shop-queue")
app = Celery("shop", broker=URL, backend=URL)


@app.task
def price(item: str, count: int) -> float:
    if count < 1:
        raise ValueError(f"{count} pieces of {item} have no price")
    time.sleep(0.1)
    return len(item) * count


@app.task
def total(prices: list[float]) -> float:
    return sum(prices)
