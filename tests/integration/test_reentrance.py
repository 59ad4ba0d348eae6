"""Code that publishes wherever it interrupts its thread, with a real broker: nothing hangs, is lost or sent twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ..support.workers import APPS

SECONDS = 240


@pytest.mark.parametrize(("how", "count"), [("signal", 50), ("fork", 10), ("finalizer", 50), ("client", 50)])
def test_every_message_is_stored_once(connect: Callable[..., Any], broker_url: str, how: str, count: int) -> None:
    channel = connect(broker_url).channel()
    command = [sys.executable, str(APPS / "interrupted.py"), broker_url, how, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    sent = json.loads(done.stdout)
    assert sent["main"] == count + 1
    assert sent["inner"] > count // 10
    assert {name: channel._size(name) for name in ("main", "inner", "work")} == {**sent, "work": 0}
