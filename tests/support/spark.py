"""A real Spark on this machine, and what tests look at after it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyspark

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.spark import use_java
from kombu_opendata.url import parse

from .processes import Child, Children, free_ports

PROJECT = Path(__file__).resolve().parents[2]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.artifact.isolation.enabled": "false",
}


def new_session(scratch: Path, master: str = "local[2,3]", *, remote: str = "", **settings: str) -> Any:
    """A session of a Java that may come with a package; ``scratch`` is for its launcher and files.

    Args:
        remote: what Spark Connect is given instead of a master; ``local`` starts a server of its own.
    """
    use_java(scratch)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # executors import the tests' helpers
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own imports
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder.master(master)
        builder = builder.appName("tests")
        for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(scratch / "warehouse"), **settings}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    if not remote:
        session.sparkContext.setLogLevel("OFF")
    return session


def cluster(started: Children, folder: Path) -> str:
    """Start a Spark master and two workers; returns the master's URL.

    The workers' hosts have different names: no speculative attempt is made on the host of the first one.
    """
    use_java(folder)
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    worker = ["worker.Worker", "--cores", "1", "--memory", "600m", "--work-dir", str(folder / "work"), url]
    parts = {"127.0.0.1": ["master.Master", "--port", str(port)], "127.0.0.2": worker, "127.0.0.3": worker}
    for host, (part, *options) in parts.items():
        command = [program, f"org.apache.spark.deploy.{part}", "--host", host, "--webui-port", "0", *options]
        started.add(Child(command, folder / f"{host}.log", cwd=PROJECT, env={"PYTHONPATH": str(PROJECT)}))
    return url


def task_context() -> Any:
    """Spark's context of the task that runs this."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context


def completed_tasks(session: Any) -> int:
    """How many tasks of the stages that run now have ended well, as the driver knows."""
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


class Sent:
    """A message that was in a queue."""

    def __init__(self, envelope: bytes) -> None:
        body, kind, encoding, headers, properties, exchange, routing_key = msgspec.msgpack.decode(envelope)
        self.body: Any = body
        self.content_type: str = kind
        self.content_encoding: str = encoding
        self.headers: dict[str, Any] = headers
        self.properties: dict[str, Any] = properties
        self.exchange: str = exchange
        self.routing_key: str = routing_key

    @property
    def id(self) -> str:
        return str(self.headers["id"])

    @property
    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments, as a worker decodes them."""
        from kombu.serialization import loads

        args, kwargs, _embed = loads(self.body, self.content_type, self.content_encoding, accept=[self.content_type])
        return list(args), kwargs


@contextlib.contextmanager
def client(url: str) -> Iterator[BrokerConnection]:
    """A connection of the package's own client."""
    connection = BrokerConnection(parse(url), Options(name="spark-tests", start_timeout=60, reconnect_timeout=60))
    connection.connect()
    try:
        yield connection
    finally:
        connection.close()


def taken(url: str, queue: str = "celery", limit: int = 100_000) -> list[Sent]:
    """All messages that the queue has now, in the order of their delivery; they are taken out."""
    from kombu_opendata.errors import NotFound
    from kombu_opendata.protocol.messages import Outcome

    found: list[Sent] = []
    with client(url) as connection, contextlib.suppress(NotFound):
        while len(found) < limit:
            delivery = connection.get(1, queue, no_ack=False)
            if delivery is None:
                return found
            found.append(Sent(delivery.envelope))
            connection.settle(1, Outcome.ACK, [delivery.lease])
    return found
