"""``celery.contrib.pytest`` with this transport, in a test run of a user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

USERS_TESTS = """
import os

import pytest

pytest_plugins = ("celery.contrib.pytest",)


@pytest.fixture(scope="session")
def celery_worker_parameters():
    return {"ping_task_timeout": 60, "shutdown_timeout": 60}


@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": os.environ["USERS_BROKER"], "result_backend": "cache+memory://"}


def test_with_a_worker(celery_app, celery_worker):
    @celery_app.task
    def multiply(x, y):
        return x * y

    celery_worker.reload()
    assert multiply.delay(4, 4).get(timeout=60) == 16
    assert multiply.apply_async((3, 3), countdown=0.5).get(timeout=60) == 9


@pytest.mark.parametrize("number", range(3))
def test_with_the_session_s_worker(celery_session_app, celery_session_worker, number):
    @celery_session_app.task(name="add")
    def add(x, y):
        return x + y

    celery_session_worker.reload()
    assert add.delay(number, 1).get(timeout=60) == number + 1


def test_control(celery_session_app, celery_session_worker):
    (answer,) = celery_session_app.control.ping(timeout=60, limit=1)
    assert list(answer.values()) == [{"ok": "pong"}]
"""


@pytest.mark.timeout(660)
@pytest.mark.parametrize("kind", ["memory", pytest.param("embedded", marks=pytest.mark.slow)])
def test_a_worker_in_a_thread(kind: str, broker_url: str, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # no settings of a folder above
    (tmp_path / "test_users.py").write_text(USERS_TESTS)
    url = {"memory": "opendata+memory://users", "embedded": broker_url}[kind]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:celery",
        "-p",
        "no:docker_tools",
        "-p",
        "no:cacheprovider",
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CELERY_", "PYTEST_"))}
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**env, "USERS_BROKER": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout
