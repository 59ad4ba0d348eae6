"""``store backup`` and ``store restore``, and what they made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kombu_opendata import QueueClient
from kombu_opendata.cli.root import main


def command(*arguments: object, ok: bool = True) -> Result:
    """Run ``opendata-queue store …``."""
    ended = CliRunner().invoke(main, ["store", *map(str, arguments)])
    if ok:
        assert ended.exit_code == 0, ended.output
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
