"""``celery -A app opendata …``, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.broker import EmbeddedBroker
from ..support.processes import is_running
from ..support.workers import APPS, Worker, sender

COMMAND = [sys.executable, "-m", "celery", "-A", "farm"]


def celery(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CELERY_BROKER_URL": url, "COLUMNS": "80"}
    return subprocess.run(
        [*COMMAND, *arguments], cwd=APPS, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_it_shows_the_queues_of_the_apps_broker(broker_url: str, store_folder: Path, tmp_path: Path) -> None:
    with sender(broker_url) as app:
        for number in range(3):
            app.send_task("farm.note", [str(tmp_path / "ledger"), str(number)], queue="bulk")
        told = celery(broker_url, "opendata", "status")
        assert told.returncode == 0, told.stderr
        assert f"store file://{store_folder}" in told.stdout
        row = next(line for line in told.stdout.splitlines() if "bulk" in line)
        assert row.split() == ["bulk", "3", "0", "0"]
        assert max(map(len, told.stdout.splitlines())) <= 80

        worker = Worker(broker_url, tmp_path, "w", "-Q", "bulk")
        try:
            worker.wait_ready()
            EmbeddedBroker(store_folder).wait_queue("bulk", 0, 0)
            report = json.loads(celery(broker_url, "opendata", "status", "--json").stdout)
            assert report["instances"]["default"]["queues"]["bulk"]["consumers"] == 1
            assert worker.terminate() == 0
        finally:
            worker.clean_up()


def test_it_starts_no_broker_to_ask_it(broker_url: str, store_folder: Path) -> None:
    told = celery(broker_url, "opendata", "status")
    assert told.returncode == 3
    assert "no broker runs for" in told.stderr
    assert "Traceback" not in told.stderr
    assert not (store_folder / "broker.pid").exists()


def test_the_first_of_a_list_that_runs_is_asked(broker_url: str, store_folder: Path) -> None:
    with sender(broker_url) as app:
        app.send_task("farm.add", [1, 2])
        told = celery(f"opendata:///tmp/odq-nobody-there;{broker_url}", "opendata", "status")
    assert told.returncode == 0, told.stderr
    assert str(store_folder) in told.stdout


def test_it_does_maintenance_now(broker_url: str, store_folder: Path) -> None:
    broker = EmbeddedBroker(store_folder)
    with sender(broker_url) as app:
        app.send_task("farm.add", [1, 2], expiration=0.001)
        app.send_task("farm.add", [1, 2])
        told = celery(broker_url, "opendata", "maintain", "--json")
        assert told.returncode == 0, told.stderr
        assert json.loads(told.stdout)["expired_removed"] == 1
        told = celery(broker_url, "opendata", "maintain", "collect")
        assert "expired messages removed    0" in told.stdout
        assert "leases" not in told.stdout
        assert broker.report()["maintenance"]["collect"]["asked_by"]
        pid = broker.pid()
    assert pid is not None
    assert is_running(pid)


@pytest.mark.parametrize("verb", ["status", "maintain", "flower"])
def test_another_broker_is_told(verb: str) -> None:
    told = celery("memory://", "opendata", verb)
    assert told.returncode == 1
    assert "opendata:// URL" in told.stderr
    assert "Traceback" not in told.stderr


def test_flowers_own_errors_are_its_own(broker_url: str) -> None:
    for words in (["flower"], ["opendata", "flower"]):
        told = celery(broker_url, *words, "--port=0", "--certfile=here")
        assert told.returncode == 1
        assert "Both 'certfile' and 'keyfile' are required to enable SSL" in told.stderr


def test_without_flower_it_says_what_to_install(broker_url: str) -> None:
    program = "import sys; sys.modules['flower'] = None; from celery.__main__ import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", program, "-b", broker_url, "opendata", "flower"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1
    assert told.stderr.endswith("Error: Flower is not installed: pip install flower\n")
    assert "Traceback" not in told.stderr


def test_an_unknown_duty_is_told(broker_url: str) -> None:
    told = celery(broker_url, "opendata", "maintain", "sweep")
    assert told.returncode == 2
    assert "'sweep' is not one of 'route', 'expire_leases', 'collect'" in told.stderr


def test_celerys_amqp_shell_publishes_and_gets(broker_url: str) -> None:
    for arguments, shown in [
        (["queue.declare", "shell", "false", "true", "false"], "queue:shell messages:0 consumers:0"),
        (["basic.publish", "from the shell", "", "shell"], "OK"),
        (["basic.publish", "lost", "", "nobody", "true"], "no queue takes messages"),
        (["basic.get", "shell"], "from the shell"),
    ]:
        told = celery(broker_url, "amqp", *arguments)
        assert told.returncode == 0, told.stderr
        assert shown in told.stdout + told.stderr
        assert ("ERROR" in told.stderr) == ("lost" in arguments)


@pytest.mark.parametrize("words", [["opendata"], ["opendata", "queue", "create"], ["opendata", "flower"]])
def test_help_has_a_short_name(words: list[str], broker_url: str) -> None:
    short, long = celery(broker_url, *words, "-h"), celery(broker_url, *words, "--help")
    assert short.returncode == 0, short.stderr
    assert short.stdout == long.stdout
    assert f"celery {' '.join(words)} [" in short.stdout.splitlines()[0]


def test_a_misspelt_scheme_is_told_what_was_meant() -> None:
    told = celery("opendta:///tmp/q", "opendata", "status")
    assert told.returncode == 1
    assert told.stderr.endswith(": No such transport: opendta.  Did you mean opendata?\n")
    assert "Traceback" not in told.stderr
    worker = celery("opendta:///tmp/q", "worker")
    assert "Did you mean opendata?" in worker.stderr, "Kombu knows our names, as it loads the package's serializer"
