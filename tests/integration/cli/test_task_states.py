"""What became of tasks, from the shell: attempts by state and exception, and what runs now."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import Lease, Outcome, Ping
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.url import parse

from .conftest import run

QUEUE = "emails/“☃”"


@pytest.fixture(scope="module")
def running(url: str, client: QueueClient) -> Iterator[Lease]:
    """A task that runs, after one that raised and one that succeeded."""
    client.create(QUEUE)
    connection = BrokerConnection(parse(f"opendata://{url}"), Options(name="mailer@host"))
    connection.connect()
    leases: list[Lease] = []
    for number in range(3):
        client.send(QUEUE, number, {"task": "app.mail"})
        delivery = connection.get(1, QUEUE, no_ack=False)
        assert delivery is not None
        leases.append(delivery.lease)
        connection.settle(1, Outcome.START, leases[-1:])
    raised = TaskReport.cut(TaskState.RAISED, 1500, 7, "app.mail", "app.Bounced", "no such box", "Traceback: …")
    connection.settle_task(1, Outcome.REPORT, leases[0], raised)
    connection.settle_task(1, Outcome.REPORT, leases[1], TaskReport(TaskState.SUCCEEDED, 10, 7))
    connection.call(Ping(0))
    yield leases[2]
    connection.close()


def test_attempts_by_state_and_exception(url: str, running: Lease) -> None:
    told = run("attempts", "-q", QUEUE, "--state", "raised", url=url, COLUMNS="200")
    assert told.returncode == 0, told.stderr
    heading, _rule, line = told.stdout.splitlines()
    assert heading.split()[-4:] == ["outcome", "state", "exception", "consumer"]
    assert line.split()[-4:] == ["acked", "raised", "app.Bounced", "mailer@host"]
    told = run("attempts", "--exception", "app.Bounced", "--tracebacks", "--json", url=url)
    (shown,) = json.loads(told.stdout)["items"]
    assert (shown["state"], shown["runtime_ms"], shown["pid"]) == ("raised", 1.5, 7)
    assert (shown["error"], shown["traceback"]) == ("no such box", "Traceback: …")
    refused = run("attempts", "--state", "broken", url=url)
    assert refused.returncode == 2
    assert "'broken' is not one of 'succeeded', 'raised'" in refused.stderr


def test_what_runs_is_shown(url: str, running: Lease, invoke: Callable[..., Any]) -> None:
    (line,) = (line for line in run("worker", "list", url=url).stdout.splitlines() if "mailer@host" in line)
    assert line.split()[2:6] == ["connected", line.split()[3], "0", "1"]
    (shown,) = json.loads(invoke("worker", "messages", "mailer@host", "--json").stdout)
    assert (shown["queue"], shown["id"], shown["state"]) == (QUEUE, running[1], "running")
    assert shown["running_since"]
    listed = invoke("messages", "-q", QUEUE, "--status", "running").stdout.splitlines()
    assert [line.split()[0] for line in listed[2:]] == [str(running[1])]
    assert "running" in invoke("message", str(running[1])).stdout
