"""The options of a client, and those of the broker that it starts."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import kombu.transport
import pytest
from click.testing import CliRunner
from kombu.transport import redis

from kombu_opendata import AsyncQueueClient, QueueClient, errors
from kombu_opendata.cli.administration.serve import broker
from kombu_opendata.client.connection_options import (
    KOMBU_OPTIONS,
    MAX_NAME_BYTES,
    TRANSPORT_OPTIONS,
    check_broker_options,
    check_names,
    default_name,
    name_process,
    read_values,
)
from kombu_opendata.client.foreign_options import BY_NAME, FOREIGN_OPTIONS


@pytest.mark.parametrize("size", [0, 1 << 40, "1073741824", "500M", "20G", "1t"])
def test_a_size_is_written_as_for_the_broker(size: Any) -> None:
    assert check_broker_options({"retention_bytes": size}) == {"retention_bytes": str(size)}
    words = ["--retention-bytes", str(size), "--store", "x"]
    assert "Error: --listen is missing" in CliRunner().invoke(broker, words).output, "the broker takes it"


@pytest.mark.parametrize("size", ["lots", -1, 1.5, "20GB", "20 G"])
def test_what_is_no_size_is_refused_as_by_the_broker(size: Any) -> None:
    with pytest.raises(errors.RequestError, match="retention_bytes"):
        check_broker_options({"retention_bytes": size})
    words = ["--retention-bytes", str(size), "--store", "x"]
    assert "is not a size" in CliRunner().invoke(broker, words).output


@pytest.mark.parametrize("given", ["text", {"users": "users.txt"}, {"log_level": "LOUD"}])
def test_a_queue_client_takes_what_the_transport_takes(given: Any, tmp_path: Path) -> None:
    async def make() -> None:
        AsyncQueueClient(f"opendata://{tmp_path}/q", broker_options=given)

    with pytest.raises(errors.RequestError, match="broker_options"):
        QueueClient(f"opendata://{tmp_path}/q", broker_options=given)
    with pytest.raises(errors.RequestError, match="broker_options"):
        asyncio.run(make())


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"pipeline_depth": "100"}, {"pipeline_depth": 100}),
        ({"start_timeout": "20", "idle_exit": 5, "close_timeout": "1.5"},
         {"start_timeout": 20.0, "idle_exit": 5.0, "close_timeout": 1.5}),
        ({"resume_timeout": "2m"}, {"resume_timeout": 120.0}),
        ({"task_outcomes": "False"}, {"task_outcomes": False}),
        ({"task_outcomes": 0}, {"task_outcomes": False}),
        ({"task_outcomes": "yes"}, {"task_outcomes": True}),
        ({"publish_mode": "Pipeline"}, {"publish_mode": "pipeline"}),
        ({"publish_mode": "", "pipeline_depth": None}, {}),
        ({"broker_options": {"memory_limit": "40%"}}, {"broker_options": {"memory_limit": "40%"}}),
    ],
)  # fmt: skip
def test_values_may_be_texts(given: dict[str, Any], read: dict[str, Any]) -> None:
    assert read_values("options", given) == read


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("pipeline_depth", "many", "'many' is not a whole number"),
        ("pipeline_depth", 0, "0 is out of range: give 1 to 1,000"),
        ("pipeline_depth", 1.5, "1.5 is not a whole number"),
        ("start_timeout", "soon", "'soon' is not a time: write a number of seconds, or 500ms"),
        ("start_timeout", -1, "-1 is out of range: give at least 0"),
        ("start_timeout", True, "true is not a time"),
        ("task_outcomes", "maybe", "'maybe' is neither true nor false"),
        ("publish_mode", "fast", "'fast' is not one of confirm, pipeline"),
        ("broker_options", ["x"], "is not a dictionary"),
    ],
)
def test_a_wrong_value_is_refused(name: str, value: Any, error: str) -> None:
    with pytest.raises(errors.RequestError) as caught:
        read_values("options", {name: value})
    assert name in str(caught.value)
    assert error in str(caught.value)


def test_each_option_of_another_broker_is_listed_once() -> None:
    assert len(BY_NAME) == sum(len(options.names) for options in FOREIGN_OPTIONS)
    assert not set(BY_NAME) & {*TRANSPORT_OPTIONS, *KOMBU_OPTIONS}
    of_other_transports = {*redis.Channel.from_transport_options, *redis.SentinelChannel.from_transport_options}
    of_other_transports |= {*inspect.signature(amqp.Connection).parameters} - {"kwargs"}
    assert of_other_transports - {*BY_NAME, *TRANSPORT_OPTIONS} == set()


KOMBU_TRANSPORTS = Path(kombu.transport.__file__).parent


def options_read(path: Path) -> set[str]:
    """The transport options that a module of Kombu reads: names in ``from_transport_options``, and arguments of get."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "from_transport_options":
            names |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("transport_options.get"):
            names.add(ast.literal_eval(node.args[0]))
    return {name for name in names if isinstance(name, str)}


@pytest.mark.parametrize("path", sorted(KOMBU_TRANSPORTS.rglob("*.py")), ids=lambda path: path.name)
def test_each_option_that_a_transport_of_kombu_reads_is_listed(path: Path) -> None:
    assert options_read(path) - {*BY_NAME, *TRANSPORT_OPTIONS, *KOMBU_OPTIONS} == set()


def test_the_options_of_sqs_and_mongodb_are_found() -> None:
    of_sqs = [options_read(path) for path in KOMBU_TRANSPORTS.rglob("*.py") if "SQS" in str(path)]
    assert {"region", "predefined_queues", "sts_role_arn"} < set().union(*of_sqs)
    assert {"capped_queue_size", "ttl"} < options_read(KOMBU_TRANSPORTS / "mongodb.py")


@pytest.mark.parametrize("name", ["max_retries", "interval_start", "errback", "retry_errors"])
def test_options_of_kombu_are_no_mistake(name: str, caplog: pytest.LogCaptureFixture) -> None:
    check_names("options", {name: 1}, TRANSPORT_OPTIONS)
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pipelin_depth", "did you mean 'pipeline_depth'?"),
        ("visibility_timout", "did you mean 'visibility_timeout'?"),
        ("colour", "known are start_timeout, reconnect_timeout, "),
    ],
)
def test_an_option_that_no_broker_has_is_refused(name: str, hint: str) -> None:
    with pytest.raises(errors.RequestError) as caught:
        check_names("transport options", {name: 1}, TRANSPORT_OPTIONS)
    assert f"transport options: the option {name!r} is unknown; {hint}" in str(caught.value)


def test_an_option_without_effect_is_reported_once_in_a_process(tmp_path: Path) -> None:
    program = f"""if True:
        import logging, sys
        from celery import Celery
        from kombu import Connection
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        options = {{"visibility_timeout": 3600, "priority_steps": [0, 3], "connect_timeout": 3}}
        app = Celery(broker="opendata://{tmp_path}/q", backend="opendata", set_as_current=False)
        app.conf.result_backend_transport_options = {{**options, "global_keyprefix": "a.", "publish_mode": "confirm"}}
        app.conf.broker_transport_options = {{**options, "idle_exit": "1"}}
        app.conf.broker_use_ssl = True
        app.conf.update(broker_login_method="PLAIN", redis_backend_use_ssl={{"ssl_cert_reqs": 0}}, redis_port=None)
        for _ in range(2):
            type(app.backend)(app, url="opendata://{tmp_path}/q")
            with app.connection_for_write() as connection:
                connection.connect()
    """
    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    lease = "has no effect with this broker: a message is leased as long as its consumer is connected"
    for place in ("result_backend_transport_options", "transport options"):
        assert output.count(f"WARNING {place}: 'visibility_timeout' (an option of Redis, SQS, pgmq") == 1
        assert output.count(f"WARNING {place}: 'priority_steps' (an option of Redis) has no effect") == 1
    assert output.count(lease) == 2
    assert output.count("WARNING broker_use_ssl has no effect with this broker: the connection stays") == 1
    assert output.count("'connect_timeout'") == 1  # the backend has it
    assert "'global_keyprefix'" not in output
    assert "'publish_mode' (an option of the transport) has no effect with this broker: set it in broker_tran" in output
    assert output.count("WARNING broker_login_method has no effect with this broker: users log in by a secret") == 1
    assert output.count("WARNING redis_backend_use_ssl has no effect with this broker: its replacement is") == 1
    assert output.count("\n") == 9


# ---------------------------------------------------------------------- the name of a process's clients
@pytest.fixture
def unnamed() -> Iterator[None]:
    """A process without a name, before and after."""
    name_process("")
    yield
    name_process("")


def test_clients_are_named_by_host_and_process_or_as_the_process_was_told(unnamed: None) -> None:
    assert default_name().endswith(f":{os.getpid()}")
    name_process("w1@host")
    assert default_name() == "w1@host"


@pytest.mark.parametrize("name", ["n" * 300, "é" * 200, "x" + "é" * 200, "\udcff" * 300])
def test_a_long_or_broken_name_is_cut_to_what_a_broker_takes(unnamed: None, name: str) -> None:
    name_process(name)
    assert MAX_NAME_BYTES - 1 <= len(default_name().encode()) <= MAX_NAME_BYTES
