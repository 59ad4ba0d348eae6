"""kill -9 of a broker and of its workers: what became of tasks is known as their acknowledgements are, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import DeclareQueue, Lease, Outcome, Publish
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.url import parse

from ..support.broker import EmbeddedBroker
from ..support.processes import wait_until
from ..support.seeds import seeded_random

RAISED = TaskReport.cut(TaskState.RAISED, 1000, 7, "task", "app.Bad", "no", "Traceback: …")
SUCCEEDED = TaskReport(TaskState.SUCCEEDED, 1000, 7, "task")


def opened(folder: Path) -> BrokerConnection:
    connection = BrokerConnection(parse(f"opendata://{folder}"), Options(start_timeout=60, reconnect_timeout=60))
    connection.connect()
    connection.call(DeclareQueue(0, "q", True, False, False, {}, False))
    return connection


def claim(connection: BrokerConnection) -> Lease:
    connection.io.publish(Publish(0, 0, "", "q", b"body", {"task": "task"}, 0, 1))
    delivery = connection.get(1, "q", no_ack=False)
    assert delivery is not None
    return delivery.lease


def test_reports_survive_kills_of_the_broker(store_folder: Path) -> None:
    dice = seeded_random()
    connection, broker = opened(store_folder), EmbeddedBroker(store_folder)
    running: dict[int, Lease] = {}
    wanted: dict[int, str] = {}
    for number in range(60):
        lease = claim(connection)
        if dice.random() < 0.5:
            connection.settle(1, Outcome.START, [lease])
            running[lease[1]] = lease
        else:
            report = dice.choice((RAISED, SUCCEEDED))
            connection.settle_task(1, dice.choice((Outcome.ACK, Outcome.REJECT)), lease, report)
            wanted[lease[1]] = "raised" if report is RAISED else "succeeded"
        for id in [id for id in running if dice.random() < 0.3]:
            report = dice.choice((RAISED, SUCCEEDED))
            connection.settle_task(1, Outcome.REPORT, running.pop(id), report)
            wanted[id] = "raised" if report is RAISED else "succeeded"
        if number % 30 == 15:
            broker.kill()  # some of the last settlements and reports have not been read
    with QueueClient(f"opendata://{store_folder}") as client:
        listed = list(client.iter_messages(queues=["q"], statuses=["running"]))
        assert {message.id for message in listed} == running.keys()
        connection.close()
        wanted |= dict.fromkeys(running, "lost")
        found = list(client.iter_attempts(queues=["q"], tracebacks=True))
        assert len(found) == len(wanted)
        assert {one.message_id: one.state for one in found} == wanted
        assert {one.traceback for one in found if one.state == "raised"} == {RAISED.traceback}


WORKER = """
import sys
from pathlib import Path
from tests.faults.test_kill_reports import RAISED, SUCCEEDED, claim, opened
from kombu_opendata.protocol.messages import Outcome
connection = opened(Path(sys.argv[1]))
for report in (RAISED, SUCCEEDED, None):
    lease = claim(connection)
    connection.settle(1, Outcome.START, [lease])
    if report is not None:
        connection.settle_task(1, Outcome.REPORT, lease, report)
connection.settle_task(1, Outcome.ACK, claim(connection), RAISED)
print("reported", flush=True)
sys.stdin.read()
"""


def test_a_killed_workers_tasks_are_lost_but_not_its_reports(store_folder: Path) -> None:
    with QueueClient(f"opendata://{store_folder}") as client:
        command = [sys.executable, "-c", WORKER, str(store_folder)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reported\n"
        finally:
            process.kill()
            process.communicate()

        def states() -> list[str]:
            return [one.state for one in client.iter_attempts(queues=["q"], order="asc")]

        wait_until(lambda: len(states()) == 4, 60, "the end of the task that the worker ran")
        assert states() == ["raised", "succeeded", "raised", "lost"]
