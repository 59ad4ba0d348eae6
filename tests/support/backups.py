"""``store backup`` and ``store restore``, run as commands, and what they made."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from kombu_opendata import QueueClient

from .served import COMMAND


def command(*arguments: object, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``opendata-queue store …``."""
    ended = subprocess.run(
        [str(COMMAND), "store", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    if ok:
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def back_up(target: object, store: object, *options: str) -> dict[str, Any]:
    """Make a backup; what the command reports."""
    report: dict[str, Any] = json.loads(command("backup", target, store, "--json", *options).stdout)
    return report


def drained(url: str, queue: str, vt: float = 60) -> list[bytes]:
    """The bodies of all messages that wait, which are acknowledged."""
    bodies: list[bytes] = []
    with QueueClient(url) as client:
        while messages := client.read(queue, vt=vt, qty=100):
            bodies += [message.body for message in messages]
            client.delete_many(queue, messages)
    return bodies


def bodies(folder: Path, queue: str) -> list[bytes]:
    """As :func:`drained`, of a store in a folder."""
    return drained(f"opendata://{folder}", queue)
