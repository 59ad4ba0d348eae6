"""The example apps do what their text says: workers, beat and commands in processes of their own."""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx

from ..support.broker import EmbeddedBroker
from ..support.processes import Child, Children, run, tail, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CELERY = [sys.executable, "-m", "celery"]
DEADLINE_SECONDS = 90


def start(started: Children, name: str, command: list[str], log: Path, cwd: Path, env: dict[str, str]) -> Child:
    child = Child(command, log / f"{name}.log", cwd=cwd, env=env)
    started.add(child)
    return child


def wait_for_line(pattern: str, child: Child) -> None:
    def found() -> bool:
        child.check()
        return re.search(pattern, child.log.read_text()) is not None

    wait_until(found, DEADLINE_SECONDS, lambda: f"{pattern!r} in the log:\n{tail(child.log)}")


def end(child: Child) -> None:
    assert child.terminate() == 0, tail(child.log)
    assert "Traceback" not in child.log.read_text()


def test_each_workflow_of_the_canvas_example_ends(broker_url: str, tmp_path: Path, started: Children) -> None:
    folder = EXAMPLES / "canvas"
    env = {"OPENDATA_URL": broker_url}
    command = [*CELERY, "-A", "tasks", "worker", "--loglevel=INFO", "--concurrency=2"]
    worker = start(started, "worker", command, tmp_path, folder, env)
    told = run([sys.executable, "workflows.py"], folder, env)
    assert [re.split(r"  +", line) for line in told.splitlines()] == [
        ["chain", "16"],
        ["group", "[0, 2, 4, 6, 8]"],
        ["chord", "90"],
        ["map", "[2, 4, 6]"],
        ["starmap", "[3, 7]"],
        ["chunks", "[[0, 2], [4, 6], [8, 10]]"],
        ["chord in chain", "12"],
        ["countdown", "2"],
        ["eta", "4"],
        ["retries", "worked at try 3"],
    ]
    end(worker)


def test_the_unique_tasks_of_the_example_run_once(broker_url: str, tmp_path: Path, started: Children) -> None:
    folder = EXAMPLES / "unique"
    env = {"OPENDATA_URL": broker_url}
    command = [*CELERY, "-A", "unique_tasks", "worker", "--loglevel=INFO", "--concurrency=2"]
    sender = start(started, "sender", [sys.executable, "send.py"], tmp_path, folder, env)
    wait_for_line("all are sent", sender)
    worker = start(started, "worker", command, tmp_path, folder, env)
    assert sender.wait(DEADLINE_SECONDS) == 0, tail(sender.log)
    assert sender.log.read_text().splitlines() == [
        "refused, because of this task",
        "all are sent",
        "report of May for Ada",
        "replaced",
        "document 1: hello",
        "/dev/sda is full",
    ]
    end(worker)


def test_no_tenant_waits_for_the_backlog_of_another(broker_url: str, tmp_path: Path, started: Children) -> None:
    folder, reports = EXAMPLES / "fair_tenants", tmp_path / "reports.txt"
    env = {"OPENDATA_URL": broker_url, "REPORTS": str(reports)}
    run([sys.executable, "submit.py", "big=60", "gold=60", "small=1"], folder, env)
    worker = start(started, "worker", [*CELERY, "-A", "reports", "worker", "--pool=solo"], tmp_path, folder, env)

    def lines() -> list[str]:
        worker.check()
        return reports.read_text().splitlines() if reports.exists() else []

    wait_until(lambda: len(lines()) == 121, DEADLINE_SECONDS, lambda: f"the tasks:\n{tail(worker.log)}")
    tenants = [line.split()[0] for line in lines()]
    assert "small" in tenants[:5]
    assert 28 <= tenants[:41].count("gold") <= 32
    for tenant in ("big", "gold"):
        assert [line for line in lines() if line.startswith(tenant)] == [f"{tenant} {each}" for each in range(60)]
    end(worker)


def test_beat_has_the_maintenance_done(broker_url: str, store_folder: Path, tmp_path: Path, started: Children) -> None:
    folder, notes = EXAMPLES / "beat_app", tmp_path / "notes.txt"
    env = {"OPENDATA_URL": broker_url, "NOTE_EVERY": "0.5", "NOTE_FILE": str(notes), "MAINTAIN_EVERY": "0.5"}
    worker = start(
        started,
        "worker",
        [*CELERY, "-A", "periodic", "worker", "--loglevel=INFO", "--pool=solo"],
        tmp_path,
        folder,
        env,
    )
    command = [*CELERY, "-A", "periodic", "beat", "--loglevel=INFO", f"--schedule={tmp_path / 'schedule'}"]
    beat = start(started, "beat", [*command, "--pidfile="], tmp_path, folder, env)
    wait_for_line("beat: Starting", beat)
    wait_for_line(r"Task opendata\.maintain\[.*succeeded in .*'expired_removed': 0", worker)
    wait_until(lambda: notes.exists() and len(notes.read_text().split()) >= 2, DEADLINE_SECONDS, "two lines of notes")

    maintenance = EmbeddedBroker(store_folder).report()["maintenance"]
    for duty in ("route", "expire_leases", "collect"):
        assert maintenance[duty]["asked_at_ms"] > 0
        assert maintenance[duty]["asked_by"], duty
    assert maintenance["collect"]["by"] == maintenance["collect"]["asked_by"] != "broker"
    assert "expired messages removed" in run([*CELERY, "-A", "periodic", "opendata", "maintain"], folder, env)
    end(beat)
    end(worker)


def test_ticks_that_nobody_ran_do_not_pile_up(
    broker_url: str, store_folder: Path, tmp_path: Path, started: Children
) -> None:
    folder = EXAMPLES / "beat_app"
    env = {"OPENDATA_URL": broker_url, "NOTE_EVERY": "3600", "MAINTAIN_EVERY": "0.2"}
    command = [*CELERY, "-A", "periodic", "beat", "--loglevel=DEBUG", f"--schedule={tmp_path / 'schedule'}"]
    beat = start(started, "beat", [*command, "--pidfile="], tmp_path, folder, env)
    sent = r"(?s)(opendata\.maintain sent.*?){5}"
    wait_for_line(sent, beat)
    end(beat)
    broker = EmbeddedBroker(store_folder)
    removed = run([*CELERY, "-A", "periodic", "opendata", "maintain", "--json"], folder, env)
    assert '"expired_removed"' in removed
    wait_until(
        lambda: broker.queue("celery") == (0, 0) or not run_maintain(folder, env),
        DEADLINE_SECONDS,
        lambda: f"no tick left: {broker.queue('celery')}",
    )


def run_maintain(folder: Path, env: dict[str, str]) -> str:
    return run([*CELERY, "-A", "periodic", "opendata", "maintain", "collect"], folder, env)


def test_the_django_project_sends_its_letters(broker_url: str, tmp_path: Path, started: Children) -> None:
    folder = tmp_path / "django_app"
    shutil.copytree(EXAMPLES / "django_app", folder)
    env = {"OPENDATA_URL": broker_url, "DATABASE_FILE": str(tmp_path / "db.sqlite3")}
    manage = [sys.executable, "manage.py"]
    run([*manage, "migrate"], folder, env)
    assert "No changes detected" in run([*manage, "makemigrations", "--check"], folder, env)
    assert "letter 1 to Ada is written" in run([*manage, "write_letter", "Ada"], folder, env)
    worker = start(started, "worker", [*CELERY, "-A", "project", "worker", "--loglevel=INFO"], tmp_path, folder, env)
    told = run([*manage, "write_letter", "Grace", "--wait"], folder, env)
    assert told.splitlines() == ["letter 2 to Grace is written", "sent"]

    def all_sent() -> bool:
        with closing(sqlite3.connect(tmp_path / "db.sqlite3")) as database:
            rows = database.execute('SELECT "to", sent_at IS NOT NULL FROM mailing_letter ORDER BY id').fetchall()
        return rows == [("Ada", 1), ("Grace", 1)]

    wait_until(all_sent, DEADLINE_SECONDS, lambda: tail(worker.log))
    status = run([*CELERY, "-A", "project", "opendata", "status"], folder, env)
    assert re.search(r"celery +0 +0 +1\s*$", status, re.MULTILINE), status
    end(worker)


def test_the_fastapi_app_prices_orders_in_two_processes(broker_url: str, tmp_path: Path, started: Children) -> None:
    folder, env = EXAMPLES / "fastapi_app", {"OPENDATA_URL": broker_url}
    worker = start(started, "worker", [*CELERY, "-A", "shop_tasks", "worker", "--loglevel=INFO"], tmp_path, folder, env)
    command = [sys.executable, "-m", "uvicorn", "main:app", "--workers=2", "--port=0"]
    server = start(started, "server", command, tmp_path, folder, env)
    wait_for_line(r"(?s)(Application startup complete.*){2}", server)
    port = re.search(r"running on http://127.0.0.1:(\d+)", server.log.read_text())
    assert port is not None
    with ThreadPoolExecutor(40) as threads, httpx.Client(base_url=f"http://127.0.0.1:{port[1]}", timeout=60) as client:
        ids = list(threads.map(lambda n: client.post("/prices", params={"item": "lamp", "count": n}).json(), range(40)))
        told = list(threads.map(lambda task_id: client.get(f"/prices/{task_id}").json(), ids))
        assert told == [
            {"state": "failed", "reason": "0 pieces of lamp have no price"},
            *({"price": 4.0 * n} for n in range(1, 40)),
        ]
        assert client.get("/prices/unknown", params={"seconds": 0.1}).json() == {"state": "not ready"}
        orders = threads.map(lambda n: client.post("/orders", json=["lamp", "x" * n]).json(), range(1, 9))
        assert list(orders) == [4.0 + n for n in range(1, 9)]
        purged = run([*CELERY, "-A", "shop_tasks", "purge", "--force"], folder, env)
        assert "No messages purged" in purged
    end(server)
    assert worker.terminate() == 0, tail(worker.log)
