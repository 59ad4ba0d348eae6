"""Apache Airflow: CeleryExecutor's own processes run a DAG over TLS, and a DAG submits jobs and waits for them."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient

from ..support.batches import commit_job
from ..support.certificates import Authority
from ..support.processes import Child, Children, free_ports, run, tail, wait_until
from ..support.served import ServedBroker
from ..support.users import user_table, write_users
from .compatibility import Row
from .conftest import APPS
from .environments import ROOT

COMPATIBILITY = Row(
    package="apache-airflow-providers-celery",
    tried="CeleryExecutor of Airflow 3.3, with a user and TLS: a DAG of 20 tasks; a killed broker; `airflow celery "
    "list-workers`; task states from `opendata`; [jobs](airflow.md) that a DAG submits",
    result="Works with Celery 5.6; the provider imports a name that Celery 5.7 no longer has. `ssl_active` is refused "
    "for brokers other than RabbitMQ and Redis ([patch](upstream/apache-airflow.md)). The scheduler fails a "
    "task that it can't send in four attempts of one second.",
    settings="`celery<5.7`; in `[celery]`, `broker_url`, and as `result_backend` the same URL; for TLS, "
    '`extra_celery_config = {"broker_use_ssl": {"ca_certs": "…"}}` instead of `ssl_active`; for restarts of the '
    "broker, `operation_timeout = 60`",
)
#: with the installation of Airflow
pytestmark = pytest.mark.timeout(1500)
MODULE = "celery.backends.database"
TASKS = 20
START_SECONDS = 90
RUN_SECONDS = 300


class Airflow:
    """An installation with a database of its own, and its processes.

    Args:
        python: the interpreter of Airflow's environment.
        settings: names of the section and the key, and their values.
        env: further variables of its processes.
    """

    def __init__(
        self, python: str, folder: Path, started: Children, settings: dict[tuple[str, str], str], **env: str
    ) -> None:
        self._command = [python, "-m", "airflow"]
        self._folder = folder
        self._started = started
        self._database = folder / "airflow.db"
        (self.port,) = free_ports(1)
        api = f"http://127.0.0.1:{self.port}"
        common = {
            ("core", "executor"): "CeleryExecutor",
            ("core", "dags_folder"): str(APPS / "airflow_dags"),
            ("core", "load_examples"): "False",
            ("core", "execution_api_server_url"): f"{api}/execution/",
            ("database", "sql_alchemy_conn"): f"sqlite:///{self._database}",
            ("api", "base_url"): api,
            ("api", "host"): "127.0.0.1",
            ("api", "port"): str(self.port),
            ("api", "workers"): "1",
            ("api", "secret_key"): "for this test only",
            ("api_auth", "jwt_secret"): "for this test only; of the length that a signature needs: 64 or more bytes",
            ("celery", "worker_concurrency"): "4",
            ("workers", "min_heartbeat_interval"): "1",
        }
        names = {f"AIRFLOW__{section}__{key}".upper(): value for (section, key), value in (common | settings).items()}
        self._env = {"AIRFLOW_HOME": str(folder), **names, **env}

    def run(self, *arguments: str) -> str:
        return run([*self._command, *arguments], self._folder, self._env)

    def start(self, *arguments: str) -> Child:
        log = self._folder / f"{arguments[0]}.log"
        self._started.add(child := Child([*self._command, *arguments], log, cwd=self._folder, env=self._env))
        return child

    def listens(self) -> bool:
        """Whether the API server accepts connections."""
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def states(self, table: str) -> Counter[str]:
        """Return the number of rows by state: of ``dag_run`` or ``task_instance``."""
        with closing(sqlite3.connect(self._database, timeout=30)) as database:
            return Counter(state for (state,) in database.execute(f"SELECT state FROM {table}"))

    def state(self, task: str) -> str:
        """Return the state of a task instance."""
        with closing(sqlite3.connect(self._database, timeout=30)) as database:
            ((state,),) = database.execute("SELECT state FROM task_instance WHERE task_id = ?", (task,))
        return str(state)

    def result(self, task: str) -> Any:
        """Return the value that a task returned."""
        with closing(sqlite3.connect(self._database, timeout=30)) as database:
            ((value,),) = database.execute("SELECT value FROM xcom WHERE task_id = ?", (task,))
        return json.loads(str(value))  # SQLite stores JSON that is a number as a number


def test_a_dag_runs_over_tls(
    python_with: Callable[[str], str], store_folder: Path, tmp_path: Path, started: Children
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", "localhost")
    users = write_users(tmp_path / "users.toml", user_table("airflow", "s3cr3t"))
    options = ("--store", f"file://{store_folder}/store", "--users", str(users))
    secured = (*options, "--tls-cert", str(issued.chain), "--tls-key", str(issued.key))

    def serve(port: int = 0) -> ServedBroker:
        started.add(served := ServedBroker(tmp_path, *secured, "--listen", f"tcp:127.0.0.1:{port}"))
        return served

    broker = serve()
    url = f"opendatas://airflow:s3cr3t@localhost:{broker.port}"
    tls = {"ca_certs": str(authority.path)}
    settings = {
        ("celery", "broker_url"): url,
        ("celery", "result_backend"): url,
        ("celery", "extra_celery_config"): json.dumps({"broker_use_ssl": tls}),
        ("celery", "operation_timeout"): "60",
    }
    airflow = Airflow(python_with("airflow"), tmp_path, started, settings)
    airflow.run("db", "migrate")
    server = airflow.start("api-server")
    wait_until(airflow.listens, START_SECONDS, lambda: tail(server.log))
    # With a name, the command looks for a worker of this name first, in the process that becomes the worker.
    worker = airflow.start("celery", "worker", "--skip-serve-logs", "--celery-hostname=of-airflow")
    processes = [server, worker, airflow.start("scheduler"), airflow.start("dag-processor")]

    def logs() -> str:
        return "\n\n".join(tail(process.log) for process in processes)

    def has_ended() -> bool:
        for process in processes:
            process.check()
        return bool({"success", "failed"} & airflow.states("dag_run").keys())

    wait_until(lambda: airflow.states("task_instance")["success"] > 2, RUN_SECONDS, logs)
    broker.kill()
    assert has_ended() is False, "most tasks are queued"
    serve(broker.port)
    wait_until(has_ended, RUN_SECONDS, logs)
    assert airflow.states("dag_run") == {"success": 1}
    assert airflow.states("task_instance") == {"success": TASKS}
    assert airflow.result("total") == sum(range(1, 19))
    # It gives workers one second to answer.
    wait_until(lambda: "celery@of-airflow" in airflow.run("celery", "list-workers"), START_SECONDS, "a listed worker")
    assert worker.terminate() == 0, tail(worker.log)
    with QueueClient(url, tls=tls) as client:
        metrics = client.metrics("default")
    assert (metrics.length, metrics.in_flight, metrics.done, metrics.failed) == (0, 0, TASKS, 0)
    assert metrics.counts["redelivered"] == 0


def test_a_dag_submits_jobs_and_waits_for_them(
    python_with: Callable[[str], str], client: QueueClient, broker: ServedBroker, tmp_path: Path, started: Children
) -> None:
    """With the operator and the sensor of the example. Of two jobs a task is rejected, and of one it is retried."""
    client.create("q")
    client.create("own")
    commit_job(client, "given", 2)
    rejected = {commit_job(client, "half", 2).first_id}
    settings = {
        ("core", "executor"): "LocalExecutor",
        ("core", "dags_folder"): str(APPS / "airflow_jobs"),
        ("core", "plugins_folder"): str(ROOT / "examples" / "airflow" / "plugins"),
    }
    airflow = Airflow(python_with("airflow"), tmp_path, started, settings, AIRFLOW_CONN_OPENDATA=broker.url)
    airflow.run("db", "migrate")
    run = airflow.start("dags", "test", "jobs")
    deadline = time.monotonic() + RUN_SECONDS
    while not run.ended:
        assert time.monotonic() < deadline, tail(run.log)
        for message in client.read("q", vt=600, qty=10):
            (client.reject if message.id in rejected else client.archive)("q", message)
        for message in client.read_with_poll("own", vt=600, qty=1, max_poll_seconds=0.5):
            (client.archive if len(rejected) > 1 else client.reject)("own", message)
            rejected.add(message.id)
    states = {task: airflow.state(task) for task in ("own", "polled", "tolerant", "strict", "missing")}
    expected = {"own": "success", "polled": "success", "tolerant": "success", "strict": "failed", "missing": "failed"}
    assert states == expected, tail(run.log)
    assert (airflow.result("own"), airflow.result("polled")) == ({"acknowledged": 3}, {"acknowledged": 2})
    assert airflow.result("tolerant") == {"acknowledged": 1, "rejected": 1}
    assert {job.rows for job in client.iter_jobs() if job.job_id.startswith("jobs/own/")} == {3}
    assert client.metrics("own").done == 3
    assert "the broker knows no job 'never'" in run.log.read_text()


def test_an_operator_that_would_retry_at_each_poll_is_refused(
    python_with: Callable[[str], str], tmp_path: Path
) -> None:
    env = {"AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "examples" / "airflow" / "plugins")}
    options = "task_id='own', submit=print, broker_url='', mode='reschedule'"
    program = f"from opendata_jobs import JobOperator; JobOperator({options}); JobOperator({options}, deferrable=False)"
    with pytest.raises(AssertionError, match="ValueError: each poll in mode 'reschedule' would retry"):
        run([python_with("airflow"), "-c", program], tmp_path, env)


def test_ssl_active_is_for_rabbitmq_and_redis(python_with: Callable[[str], str], tmp_path: Path) -> None:
    settings = {"BROKER_URL": "opendatas://localhost:5677", "SSL_ACTIVE": "True", "SSL_MUTUAL_TLS": "False"}
    env = {f"AIRFLOW__CELERY__{name}": value for name, value in settings.items()} | {"AIRFLOW_HOME": str(tmp_path)}
    program = "from airflow.providers.celery.executors import celery_executor_utils as u; u.get_celery_configuration()"
    with pytest.raises(AssertionError, match="does not support SSL_ACTIVE"):
        run([python_with("airflow"), "-c", program], tmp_path, env)


def test_the_provider_imports_a_name_that_celery_5_7_does_not_have(
    python_with: Callable[[str], str], tmp_path: Path
) -> None:
    program = "from airflow.providers.celery.executors import celery_executor_utils as u; print(u.retry.__module__)"
    printed = run([python_with("airflow"), "-c", program], tmp_path, {"AIRFLOW_HOME": str(tmp_path)})
    assert printed.split()[-1] == MODULE
    newest = find_spec(MODULE)
    assert newest
    assert "def retry(" not in Path(str(newest.origin)).read_text()
