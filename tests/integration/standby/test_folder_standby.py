"""A standby of a folder: a second process on the same host, which waits for the folder's lock."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import NotActive
from kombu_opendata.protocol.envelope import decode
from kombu_opendata.protocol.framing import PREAMBLE, FrameReader, broker_messages, frame
from kombu_opendata.protocol.messages import Delivery, Failed, Outcome, StandbyHello, prove
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.queue_client import QueueClient

from ...support.batches import Sink, as_objects, stage
from ...support.kombu_client import Inbox, connected, declare, drain_quiet, drain_until, send, take
from ...support.pair import Pair, greet, url
from ...support.processes import children, wait_until
from ...support.served import COMMAND


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with children() as started:
        yield Pair(str(tmp_path / "store"), tmp_path, started)


def test_a_standby_sends_clients_to_the_active_broker_and_takes_over(pair: Pair, tmp_path: Path) -> None:
    first = pair.start()
    pair.wait_active(first)
    with QueueClient(url(first)) as client:
        client.create("letters")
        client.send("letters", {"to": "you"})
    second = pair.start()
    refused = greet(second.port)
    assert isinstance(refused, NotActive)
    assert refused.active == f"127.0.0.1:{first.port}"
    assert json.loads((tmp_path / "store/broker.active").read_text())["addresses"] == [f"127.0.0.1:{first.port}"]
    first.kill()
    pair.wait_active(second)
    with QueueClient(url(second)) as client:
        assert [message.body for message in client.pop("letters")] == [{"to": "you"}]


def test_a_hand_over_by_command_needs_a_standby(pair: Pair) -> None:
    first = pair.start()
    pair.wait_active(first)
    alone = hand_over(url(first))
    assert alone.returncode == 1
    assert "no standby is connected" in alone.stderr
    with QueueClient(url(first)) as client:
        status = client.status()
        assert (status["standbys"], status["standby_expected"], status["standby_seen_at_ms"]) == ([], True, 0)
        second = pair.start()
        pair.wait_connected(first)
        status = client.status()
        assert [one["addresses"] for one in status["standbys"]] == [[f"127.0.0.1:{second.port}"]]
        assert status["standby_seen_at_ms"] >= status["standbys"][0]["since_ms"]
    done = hand_over(url(first))
    assert (done.returncode, done.stdout) == (0, f"the broker hands over to 127.0.0.1:{second.port}\n")
    pair.wait_active(second)
    assert first.wait(60) == 0


@pytest.mark.parametrize("knows", ["nothing", "another hello"])
def test_who_does_not_read_the_store_is_no_standby(knows: str, pair: Pair, tmp_path: Path) -> None:
    first = pair.start()
    pair.wait_active(first)
    key = json.loads((tmp_path / "store/broker.active").read_text())["key"] if knows == "another hello" else "00" * 16
    nonce = b"n" * 16
    proof = prove(key, "standby", "stranger", nonce, ["127.0.0.1:2"])
    hello = StandbyHello(1, "stranger", ["127.0.0.1:1"], nonce, proof)
    with socket.create_connection(("127.0.0.1", first.port), 10) as sock, sock.makefile("rb") as answers:
        sock.sendall(PREAMBLE + frame(hello))
        assert answers.read(len(PREAMBLE)) == PREAMBLE
        (refused,) = FrameReader(broker_messages).feed(answers.read())
    assert isinstance(refused, Failed)
    assert refused.code == "protocol_error"
    assert "no standby is connected" in hand_over(url(first)).stderr


def hand_over(url: str) -> subprocess.CompletedProcess[str]:
    command = [str(COMMAND), "broker", "hand-over", "--url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("clock_ahead", [600.0, pytest.param(-600.0, marks=pytest.mark.slow)])
def test_a_standby_whose_clock_is_wrong_keeps_what_clients_hold(pair: Pair, clock_ahead: float) -> None:
    first = pair.start()
    pair.wait_active(first)
    second = pair.start(clock_ahead=clock_ahead)
    pair.wait_connected(first)
    assert f"the standby's clock is 600 s {'ahead of' if clock_ahead > 0 else 'behind'}" in first.log.read_text()
    hosts = f"opendata://127.0.0.1:{first.port},127.0.0.1:{second.port}"
    with connected(hosts) as holding, connected(hosts) as waiting:
        holder, other = holding.channel(), waiting.channel()
        declare(holder, "letters")
        send(holder, "letters", "held")
        (held,) = take(holder, "letters")
        first.kill()
        pair.wait_active(second)
        inbox = Inbox()
        inbox.consume(other, "letters")
        drain_quiet(waiting, 4)  # longer than the usual grace; the holder does not come back meanwhile
        assert inbox == []
        held.ack()
        send(other, "letters", "later")
        drain_until(waiting, lambda: inbox)
        assert inbox.bodies == ["later"]
        inbox[0].ack()


def test_a_job_goes_on_at_the_standby_with_its_counts(pair: Pair) -> None:
    """It is being routed, some of its tasks have raised, and others run."""
    first = pair.start()
    pair.wait_active(first)
    second = pair.start()
    pair.wait_connected(first)
    sink = Sink(f"opendata://127.0.0.1:{first.port},127.0.0.1:{second.port}")
    sink.declare("q")
    client, rows = StagingClient(sink.connection), [b"%d" % number for number in range(400)]
    client.commit_job("job", stage(as_objects(client.staging_target()), "job", [rows]), rate_limit=200)
    wait_until(lambda: client.job_status("job").routed >= 40, 60, lambda: str(client.job_status("job")))
    found: list[Delivery] = []

    def claim(count: int) -> list[Delivery]:
        claimed = [sink.connection.get(1, "q", no_ack=False) for _ in range(count)]
        found.extend(delivery for delivery in claimed if delivery is not None)
        return found[-count:]

    for delivery in claim(20):
        sink.connection.settle_task(1, Outcome.ACK, delivery.lease, TaskReport(TaskState.RAISED))
    held = claim(20)
    assert client.job_status("job").state == "routing"
    first.kill()
    pair.wait_active(second)
    wait_until(lambda: client.job_status("job").state == "routed", 60, lambda: str(client.job_status("job")))
    for delivery in [*held, *claim(360)]:
        sink.connection.settle_task(1, Outcome.ACK, delivery.lease, TaskReport(TaskState.SUCCEEDED))
    wait_until(lambda: client.job_status("job").has_ended, 60, lambda: str(client.job_status("job")))
    tasks = client.job_status("job").tasks
    assert (tasks.total, tasks.raised, tasks.succeeded) == (400, 20, 380)
    assert sorted(decode(delivery.envelope)[0] for delivery in found) == sorted(rows)
    sink.close()
