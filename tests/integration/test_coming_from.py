"""The programs in docs/coming-from, run as they are but for their folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kombu_opendata import QueueClient

PAGES = Path(__file__).resolve().parents[2] / "docs" / "coming-from"


def run(page: str, folder: str, instead: Path) -> dict[str, Any]:
    code = re.findall(r"(?s)```python\n(.*?)```", (PAGES / page).read_text())[0]
    assert folder in code
    names: dict[str, Any] = {}
    exec(code.replace(folder, str(instead)), names)  # the page is ours
    return names


def test_pgmq(store_folder: Path) -> None:
    run("pgmq.md", "{Path.home()}/queues", store_folder)
    with QueueClient(f"opendata://{store_folder}") as client:
        assert client.metrics("orders").done == 1


def test_dramatiq(store_folder: Path) -> None:
    names = run("dramatiq.md", "/var/lib/app-queue", store_folder)
    names["app"].close()
    charge = names["charge"]
    assert (charge.max_retries, charge.retry_backoff, charge.retry_backoff_max) == (20, 15, 7 * 86400)
    with QueueClient(f"opendata://{store_folder}") as client:
        (waiting,) = client.peek("celery")
        assert waiting.headers["task"] == charge.name
        assert client.metrics("celery").delayed == 1
