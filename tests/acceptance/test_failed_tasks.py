"""Failed tasks with a real worker, from the shell: what failed is understood, mended and run again."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from celery import chord

from kombu_opendata import QueueClient

from ..support.ledger import Ledger
from ..support.processes import children, wait_until
from ..support.served import COMMAND
from ..support.workers import Worker, sender

pytestmark = pytest.mark.contract(5)

PATIENCE_SECONDS = 60


def command(folder: Path, *words: str) -> Any:
    """The JSON of the real console script."""
    env = {**os.environ, "OPENDATA_QUEUE_URL": str(folder)}
    told = subprocess.run(
        [str(COMMAND), *words, "--json"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def test_what_failed_is_found_mended_and_run_again(store_folder: Path, tmp_path: Path) -> None:
    url, mended, ledger = f"opendata://{store_folder}", tmp_path / "mended", Ledger(tmp_path / "ledger")
    with children() as started, sender(url) as app, QueueClient(url) as client:
        app.conf.result_backend = url
        options: dict[str, Any] = {"pool": "prefork", "concurrency": 2, "include": ["mended"], "result_backend": url}
        worker = Worker(url, tmp_path, "w", **options)
        started.add(worker)
        worker.wait_ready()

        def task(name: str, *args: object) -> Any:
            return app.signature(name, (str(mended), *args))

        for number in range(3):
            task("mended.pay", number).delay()
        chain = (task("mended.pay", 7) | app.signature("farm.tell", (str(ledger.path),))).delay()
        total = chord([task("mended.pay", 1), app.signature("farm.add", (2, 3), options={"ignore_result": False})])(
            app.signature("mended.total", (str(ledger.path),))
        )
        for name in ("mended.hang", "mended.refuse", "mended.die"):
            task(name).delay()
        expected = {("mended.pay", "raised"): 5, ("mended.hang", "timed_out"): 1, ("mended.refuse", "rejected"): 1}
        expected |= {("mended.die", "lost"): 1}

        def now() -> dict[tuple[str, ...], int]:
            groups = client.group_failures(["task", "reason"]).groups
            return {group.values: group.count for group in groups}

        wait_until(lambda: now() == expected, PATIENCE_SECONDS, lambda: f"{now()}\n{worker.log.read_text()[-5000:]}")
        found = command(store_folder, "failed", "list", "--by", "task,exception")["groups"]
        assert {(group["task"], group["exception"]) for group in found} >= {
            ("mended.pay", "ValueError"),
            ("mended.refuse", "celery.exceptions.Reject"),
        }
        shown = command(store_folder, "task", "show", chain.parent.id)
        assert shown["state"] == "raised"
        assert "no money for 7" in shown["attempts"][0]["traceback"]
        assert command(store_folder, "failed", "retry", "--task", "mended.pay", "--limit", "1")["published"] == 1
        wait_until(lambda: now() == expected, PATIENCE_SECONDS, lambda: f"it failed again: {now()}")

        mended.touch()
        done = command(store_folder, "failed", "retry", "--all")
        assert (done["redriven"], done["published"]) == (1, 7)
        wait_until(
            lambda: len(list(client.iter_attempts(states=["succeeded"], headers={"task": "mended.pay"}))) == 5,
            PATIENCE_SECONDS,
            lambda: worker.log.read_text()[-5000:],
        )
        wait_until(lambda: "7" in ledger.lines(), PATIENCE_SECONDS, lambda: f"the rest of the chain: {ledger.lines()}")
        assert not now()
        (again,) = client.task(chain.parent.id).again
        assert command(store_folder, "result", "get", again.task_id)["value"] == 7
        assert again.task_id == chain.parent.id
        # its header has failed, and what ran again is outside of it
        wait_until(lambda: total.state == "FAILURE", PATIENCE_SECONDS, lambda: total.state)
        assert not [line for line in ledger.lines() if line.startswith("total")]
        app.control.shutdown(destination=[worker.name])
        assert worker.wait(PATIENCE_SECONDS) == 0
