"""The sync client is the async one without its loop."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from kombu_opendata import AsyncQueueClient, QueueClient

ROOT = Path(__file__).resolve().parents[3]


def test_the_sync_half_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "unasync.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"run tools/unasync.py, these are stale:\n{checked.stdout}{checked.stderr}"


def test_both_clients_have_the_same_calls() -> None:
    for name, function in inspect.getmembers(AsyncQueueClient, inspect.isfunction):
        if name.startswith("_"):
            continue
        twin = getattr(QueueClient, name)
        assert inspect.signature(function).parameters.keys() == inspect.signature(twin).parameters.keys(), name
        assert not inspect.iscoroutinefunction(twin), name
        assert inspect.getdoc(function), f"{name} has no docstring"
