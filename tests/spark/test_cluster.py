"""``spark-submit`` to a cluster of two workers; the broker has TLS and users, and its store is a bucket."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from kombu_opendata.spark import use_java

from ..support.certificates import Authority
from ..support.processes import Child, Children
from ..support.s3 import BUCKET, S3
from ..support.served import ServedBroker
from ..support.spark import SETTINGS, cluster
from ..support.users import user_table, write_users
from ..support.workers import APPS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 3_000
APP = """
import celery

app = celery.Celery("shipping", broker={url!r})
app.conf.update(broker_use_ssl={{"ca_certs": {authority!r}}}, task_routes={{"ship.even": "even"}})


@app.task(name="ship.even")
def even(id): ...


@app.task(name="ship.odd")
def odd(id): ...
"""


def test_an_app_in_an_archive(started: Children, s3: S3, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", "localhost")
    users = write_users(tmp_path / "users.toml", user_table("driver", "s3cr3t"))
    secured = ("--users", str(users), "--tls-cert", str(issued.chain), "--tls-key", str(issued.key))
    store = f"s3://{BUCKET}/{tmp_path.name}"
    started.add(broker := ServedBroker(tmp_path, "--store", store, "--listen", "tcp:127.0.0.1:0", *secured))
    with zipfile.ZipFile(archive := tmp_path / "shipping.zip", "w") as file:
        url = f"opendatas://driver:s3cr3t@localhost:{broker.port}"
        file.writestr("shipping.py", APP.format(url=url, authority=str(authority.path)))
    settings = {**SETTINGS, "spark.pyspark.python": sys.executable, "spark.executor.memory": "512m"}
    master = cluster(started, tmp_path)
    use_java(tmp_path)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master]
    command += ["--py-files", str(archive), *(part for pair in settings.items() for part in ("--conf", "=".join(pair)))]
    program = Child([*command, str(APPS / "spark_cluster_job.py"), str(ROWS)], tmp_path / "job.log", cwd=tmp_path)
    started.add(program)

    assert program.wait(600) == 0, program.log.read_text()

    log = program.log.read_text()
    half = ROWS // 2
    assert f"queues: {json.dumps({'celery': half, 'even': half})} added: True False".replace('"', "'") in log
    assert f"messages: {json.dumps({'ship.even': half, 'ship.odd': half})}".replace('"', "'") in log
    assert f"has {ROWS:,} tasks in " in log
    assert "replaced" not in log
    assert "s3cr3t" not in log
