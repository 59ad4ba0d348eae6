"""celery-once: its locks in files work with this broker, those in Redis need a Redis."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ..support.processes import tail, wait_until
from ..support.served import ServedBroker
from .compatibility import Row
from .conftest import RunProgram, StartWorker

COMPATIBILITY = Row(
    package="celery-once",
    tried="the `File` backend: duplicates, success, failure; the `Redis` backend",
    result="The `File` backend works for senders and workers of one host. The `Redis` backend refuses this broker's "
    "URL: its locks are Redis commands. It imports `six`, which it does not declare.",
    settings='`six`, and `ONCE = {"backend": "celery_once.backends.File", "settings": {"location": …}}`; with '
    "several hosts use celery-singleton",
)
PATIENCE_SECONDS = 60


def in_files(folder: Path) -> dict[str, str]:
    return {"ONCE": json.dumps({"backend": "celery_once.backends.File", "settings": {"location": str(folder)}})}


def test_locks_in_files(
    client: QueueClient, start_worker: StartWorker, run_program: RunProgram, tmp_path: Path
) -> None:
    env = in_files(tmp_path / "locks")
    for name in ("once", "fails"):
        assert "already queued" not in run_program("once.py", name, env=env)
        assert run_program("once.py", name, env=env) == "already queued\n"
    assert client.metrics("celery").ready == 2
    worker = start_worker("once", env=env)
    wait_until(lambda: not list((tmp_path / "locks").iterdir()), PATIENCE_SECONDS, lambda: tail(worker.log))
    assert "already queued" not in run_program("once.py", "once", env=env)


def test_six_is_not_declared(run_program: RunProgram) -> None:
    assert not any("six" in requirement for requirement in metadata.requires("celery-once") or ())
    with pytest.raises(AssertionError, match="import of six halted"):
        run_program("-c", "import sys; sys.modules['six'] = None; import celery_once")


def test_locks_in_redis_refuse_this_broker(broker: ServedBroker, client: QueueClient, run_program: RunProgram) -> None:
    env = {"ONCE": json.dumps({"backend": "celery_once.backends.Redis", "settings": {"url": broker.url}})}
    assert run_program("once.py", "once", env=env) == "Unsupported protocol opendata\n"
    assert "celery" not in client.metrics_all(), "nothing was sent"
