"""The notebook of examples/spark, run as a script beside a worker, twice."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ..support.processes import Child, Children, wait_until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark"
COUNT = 1200


def test_the_letters_are_written_once_and_counted(started: Children, store_folder: Path, tmp_path: Path) -> None:
    env = {"MAIL_FOLDER": str(store_folder), "MAIL_COUNT": str(COUNT)}
    celery = [sys.executable, "-m", "celery", "-A", "mail_tasks", "worker", "-P", "solo", "-Q", "celery,urgent"]
    worker = Child([*celery, "-l", "INFO"], tmp_path / "worker.log", cwd=EXAMPLE, env=env)
    started.add(worker)
    texts = []
    for number in (1, 2):
        log = tmp_path / f"run-{number}.log"
        script = Child([sys.executable, "nightly_letters.py"], log, cwd=EXAMPLE, env=env)
        started.add(script)
        assert script.wait(280) == 0, log.read_text()
        texts.append(log.read_text())
    worker.check()

    urgent = sum(n % 1000 - 950.5 < -500 for n in range(COUNT))
    visits = sum(-500 <= n % 1000 - 950.5 < -499 for n in range(COUNT))
    lines = (store_folder / "letters.txt").read_text().splitlines()
    assert sorted(int(line.split()[1]) for line in lines) == sorted(
        n for n in range(COUNT) if not -500 <= n % 1000 - 950.5 < -499
    )
    assert f"{COUNT} tasks, sent\n" in texts[0]
    assert f"{COUNT} tasks, sent before\n" in texts[1]
    for text in texts:
        assert f"celery: {COUNT - urgent - visits} done, {visits} failed" in text
        assert f"urgent: {urgent} done, 0 failed" in text
        assert len(re.findall(r"failed: \['[0-9a-f-]{36}'", text)) == 1
        found = re.findall(r"mail\.(\w+) in the hour of .*: (\d+) tasks, p95 [\d.]+ s", text)
        assert sum(int(count) for _, count in found) == COUNT - visits
    wait_until(lambda: not worker.ended, 60, "the worker")
