"""No command, answer or log of a worker shows the broker's secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import celery

from ..support.processes import Children
from ..support.served import ServedBroker
from ..support.users import user_table, write_users
from ..support.workers import APPS, Worker

SECRET = "s3cret/With#Signs@in:it"
ENCODED = "s3cret%2FWith%23Signs%40in%3Ait"


def test_stats_report_and_logs_have_no_secret(store_folder: Path, tmp_path: Path, started: Children) -> None:
    users = tmp_path / "users"
    write_users(users, user_table("alice", SECRET))
    options = ("--store", f"file://{store_folder}", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
    broker = ServedBroker(tmp_path, *options)
    started.add(broker)
    place = f"opendata://alice:{ENCODED}@127.0.0.1:{broker.port}"
    urls = f"{place};{place.replace('127.0.0.1', 'localhost')}"
    worker = Worker(urls, tmp_path, "worker", result_backend=urls)
    started.add(worker)
    worker.wait_ready()

    env = {**os.environ, "CELERY_BROKER_URL": urls, "FARM_SETTINGS": json.dumps({"result_backend": place})}
    shown = {}
    for words in ("inspect stats -j", "report", "inspect report", "amqp queue.purge nothing"):
        command = [sys.executable, "-m", "celery", "-A", "farm", *words.split()]
        done = subprocess.run(command, cwd=APPS, env=env, capture_output=True, text=True, timeout=60)
        shown[words] = done.stdout + done.stderr
        assert done.returncode == 0 or words.startswith("amqp"), shown[words]
    answer = json.loads(shown["inspect stats -j"])
    stats = answer[worker.name]["broker"]
    seen = {name: stats[name] for name in ("transport", "hostname", "port", "userid", "virtual_host")}
    assert seen == {
        "transport": "opendata", "hostname": "127.0.0.1", "port": broker.port, "userid": "alice",
        "virtual_host": "default",
    }  # fmt: skip

    if celery.VERSION < (5, 7):  # it masks the secret of the first URL only
        del stats["alternates"]
        shown["inspect stats -j"] = json.dumps(answer)

    assert worker.terminate() == 0
    broker.terminate()
    shown |= {"the worker's log": worker.log.read_text(), "the broker's log": broker.log.read_text()}
    assert f"opendata://alice:**@127.0.0.1:{broker.port}/default" in shown["the worker's log"]
    for what, text in shown.items():
        assert "s3cret" not in text, what
