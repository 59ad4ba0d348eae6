"""A broker in a process with OpenTelemetry's SDK: spans of a real worker's tasks, metrics, and exporters that hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient

from ...support.kombu_client import Inbox, connected, declare
from ...support.ledger import Ledger
from ...support.processes import Children, wait_until
from ...support.served import ServedBroker
from ...support.workers import Worker, sender

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE[::-1]}-{PARENT}-00"
SECONDS = 60

Traced = Callable[..., ServedBroker]
Span = dict[str, Any]


@pytest.fixture
def telemetry(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.json"


@pytest.fixture
def traced(store_folder: Path, started: Children, telemetry: Path, monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Runs a broker whose telemetry a file gets."""

    def run(*options: str) -> ServedBroker:
        monkeypatch.setenv("TELEMETRY_FILE", str(telemetry))
        words = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0", "--open-telemetry", *options)
        started.add(child := ServedBroker(store_folder, *words, app="traced_broker.py"))
        return child

    return run


def spans_of(telemetry: Path) -> list[Span]:
    spans: list[Span] = json.loads(telemetry.read_text())["spans"] if telemetry.exists() else []
    return spans


def wait_spans(telemetry: Path, *names: str) -> list[Span]:
    """The spans with these names, in this order, once there are as many."""

    def found() -> list[Span]:
        spans = spans_of(telemetry)
        return [span for name in dict.fromkeys(names) for span in spans if span["name"] == name]

    wait_until(lambda: len(found()) >= len(names), SECONDS, lambda: f"{names} in {spans_of(telemetry)}")
    return found()


def test_a_task_of_a_worker_has_four_spans(
    traced: Traced, telemetry: Path, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    url = f"opendata://127.0.0.1:{traced().port}"
    started.add(worker := Worker(url, tmp_path, "w"))
    worker.wait_ready()
    with sender(url) as app:
        for text in (SAMPLED, NOT_SAMPLED):
            app.send_task("farm.note", (str(ledger.path), text), headers={"traceparent": text})
        app.send_task("farm.note", (str(ledger.path), "plain"))
    wait_until(lambda: len(ledger.lines()) == 3, SECONDS, "three tasks")
    names = "publish celery", "queue wait celery", "deliver celery", "settle celery"
    spans = wait_spans(telemetry, *names)
    publish = spans[0]["context"]["span_id"]
    assert [span["name"] for span in spans] == list(names)
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{TRACE}"}
    assert [span["parent_id"] for span in spans] == [f"0x{PARENT}", publish, publish, publish]
    times = [(span["start_time"], span["end_time"]) for span in spans]
    assert [end for _start, end in times] == sorted(end for _start, end in times)
    assert all(start <= end for start, end in times)
    about = spans[2]["attributes"]
    assert about["messaging.system"] == "opendata_queue"
    assert (about["messaging.destination.name"], about["messaging.client.id"]) == ("celery", "w@test")
    assert (about["opendata_queue.outcome"], about["opendata_queue.attempt"]) == ("acked", 1)
    with QueueClient(url) as client:
        attempts = client.list_attempts(headers={"trace_id": TRACE}).items
        assert [attempt.message_id for attempt in attempts] == [int(about["messaging.message.id"])]
        assert attempts[0].trace_id == client.list_messages(headers={"trace_id": TRACE}).items[0].trace_id == TRACE


def test_the_spans_of_a_message_that_returns_and_fails(traced: Traced, telemetry: Path) -> None:
    broker = traced()
    with connected(f"opendata://127.0.0.1:{broker.port}") as connection:
        channel = connection.channel()
        declare(channel, "q", arguments={"x-delivery-limit": 2})
        connection.Producer().publish("x", routing_key="q", headers={"traceparent": SAMPLED})
        inbox = Inbox()
        inbox.consume(channel, "q")
        for count in (1, 2):
            while len(inbox) < count:
                connection.drain_events(timeout=SECONDS)
            inbox[-1].reject(requeue=True)
        spans = wait_spans(telemetry, *2 * ("queue wait q", "deliver q", "settle q"))
        deliveries = [span for span in spans if span["name"] == "deliver q"]
        assert [span["attributes"]["opendata_queue.attempt"] for span in deliveries] == [1, 2]
        assert [span["status"]["status_code"] for span in deliveries] == ["ERROR", "ERROR"]
        settled = [span for span in spans if span["name"] == "settle q"]
        assert [span["attributes"]["opendata_queue.outcome"] for span in settled] == ["rejected", "failed"]
        waits = [span for span in spans if span["name"] == "queue wait q"]
        assert waits[1]["start_time"] >= deliveries[0]["end_time"], "the second wait begins with the return"


def test_messages_that_were_published_before_the_broker_started(
    traced: Traced, telemetry: Path, store_folder: Path
) -> None:
    count = 200
    broker = traced()
    with connected(f"opendata://127.0.0.1:{broker.port}") as connection:
        declare(connection.channel(), "q")
        for _ in range(count):
            connection.Producer().publish("x", routing_key="q", headers={"traceparent": SAMPLED})
        wait_spans(telemetry, *count * ["publish q"])
    assert broker.terminate() == 0
    telemetry.unlink()
    broker = traced()
    with QueueClient(f"opendata://127.0.0.1:{broker.port}") as client:
        while messages := client.read("q", count):
            for message in messages:
                client.ack(message)
    spans = wait_spans(telemetry, *count * ["queue wait q"], *count * ["deliver q"], *count * ["settle q"])
    assert {span["parent_id"] for span in spans} == {f"0x{PARENT}"}
    assert not [span for span in spans_of(telemetry) if span["name"] == "publish q"], "its span was made before"


def test_a_slow_commit_has_a_span_of_its_own(traced: Traced, telemetry: Path) -> None:
    broker = traced("--slow-commit", "0.0000001")
    with connected(f"opendata://127.0.0.1:{broker.port}") as connection:
        declare(connection.channel(), "q")
    span = wait_spans(telemetry, "slow commit")[0]
    assert span["parent_id"] is None
    assert span["attributes"]["opendata_queue.commit.effects"] >= 1


def test_the_metrics_are_instruments(traced: Traced, telemetry: Path) -> None:
    broker = traced()
    with connected(f"opendata://127.0.0.1:{broker.port}") as connection:
        declare(connection.channel(), "q")
        connection.Producer().publish("x", routing_key="q")

    def values(name: str) -> dict[str, float]:
        data = json.loads(telemetry.read_text())["metrics"] if telemetry.exists() else {}
        points = data.get(f"opendata_queue_{name}", [])
        return {attributes.get("queue", ""): value for attributes, value in points}

    wait_until(lambda: values("messages_ready").get("q") == 1, SECONDS, lambda: str(values("messages_ready")))
    assert values("messages_published")["q"] == 1
    assert values("commit_duration_seconds_count")[""] >= 1
    assert 0 < values("commit_duration_seconds_sum")[""] < 60
    assert values("connections")[""] >= 0


def test_an_exporter_that_hangs_delays_no_client(
    traced: Traced, telemetry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TELEMETRY_HANGS", "1")
    broker = traced()
    with QueueClient(f"opendata://127.0.0.1:{broker.port}") as client:
        client.create("q")
        for number in range(500):
            client.send("q", number, headers={"traceparent": SAMPLED})
            (message,) = client.read("q", 1)
            client.ack(message)
        assert client.is_healthy()


def test_without_a_history_there_are_no_spans_to_export(traced: Traced) -> None:
    broker = traced("--history-days", "0")
    assert broker.report["text"].startswith("--open-telemetry makes spans from the history")
    assert broker.wait(SECONDS) == 1
