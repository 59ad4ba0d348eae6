"""The programs in docs/coming-from, run as they are but for their folders."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from kombu_opendata import QueueClient

PAGES = Path(__file__).resolve().parents[2] / "docs" / "coming-from"


def run(page: str, folder: str, instead: Path, *, then: str = "") -> str:
    """Run the page's first program in a process of its own, and something more at its end; returns what it printed."""
    code = re.findall(r"(?s)```python\n(.*?)```", (PAGES / page).read_text())[0]
    assert folder in code
    command = [sys.executable, "-c", code.replace(folder, str(instead)) + then]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def test_pgmq(store_folder: Path) -> None:
    run("pgmq.md", "{Path.home()}/queues", store_folder)
    with QueueClient(f"opendata://{store_folder}") as client:
        assert client.metrics("orders").done == 1


def test_dramatiq(store_folder: Path) -> None:
    told = "print(charge.name, charge.max_retries, charge.retry_backoff, charge.retry_backoff_max)"
    name, *retries = run("dramatiq.md", "/var/lib/app-queue", store_folder, then=told).split()
    assert retries == ["20", "15", str(7 * 86400)]
    with QueueClient(f"opendata://{store_folder}") as client:
        (waiting,) = client.peek("celery")
        assert waiting.headers["task"] == name
        assert waiting.headers["eta"]
