"""A bucket that does not answer for a while: who waits, who is refused, and what is stored in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from kombu_opendata import QueueClient
from kombu_opendata.errors import StoreStalled

from ..support.kombu_client import open_connection
from ..support.processes import children, tail, wait_until
from ..support.s3 import BUCKET, S3
from ..support.s3_proxy import Fault
from ..support.served import ServedBroker
from ..support.status import read_report

TIMEOUT_SECONDS = 2
#: a refusal comes at the next tick, and before all that waits is given up
REFUSED_WITHIN_SECONDS = TIMEOUT_SECONDS + 20
HELD = 5
PRODUCERS, MESSAGES = 8, 12


@pytest.fixture
def broker(s3: S3, tmp_path: Path) -> Iterator[ServedBroker]:
    with children() as started:
        found = ServedBroker(
            tmp_path, "--store", f"s3://{BUCKET}/{tmp_path.name}", "--listen", "tcp:127.0.0.1:0",
            "--store-timeout", str(TIMEOUT_SECONDS),
        )  # fmt: skip
        started.add(found)
        try:
            yield found
        finally:
            s3.proxy.go_on()
        assert found.terminate() == 0, tail(found.log)


def url_of(broker: ServedBroker) -> str:
    return f"opendata://127.0.0.1:{broker.port}"


def refused(client: QueueClient, body: bytes) -> StoreStalled:
    """The error of a send, which came in time."""
    began = time.monotonic()
    with pytest.raises(StoreStalled) as caught:
        client.send("q", body)
    assert time.monotonic() - began < REFUSED_WITHIN_SECONDS
    return caught.value


def send_at_last(client: QueueClient, body: bytes, seconds: float = 60) -> None:
    """Send a message again and again until it is stored."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            client.send("q", body)
            return
        except StoreStalled:
            assert time.monotonic() < deadline


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.SILENCE, Fault.SLOW_DOWN, Fault.CUT], ids=lambda fault: fault.name)
def test_publishes_are_refused_and_all_recovers(s3: S3, broker: ServedBroker, fault: Fault) -> None:
    with (
        QueueClient(url_of(broker)) as client,
        open_connection(url_of(broker)) as connection,
        open_connection(url_of(broker)) as consuming,
    ):
        client.create("q")
        client.send_batch("q", [b"held %d" % number for number in range(HELD)])
        channel = consuming.channel()
        channel.basic_qos(0, HELD, False)
        held: list[Any] = []
        channel.basic_consume("q", no_ack=False, callback=held.append, consumer_tag="consumer")
        while len(held) < HELD:
            consuming.drain_events(timeout=60)
        producer = connection.Producer()
        producer.publish(b"before", routing_key="q")

        s3.proxy.stop_answering(fault)
        assert refused(client, b"in flight").values["uncertain"] is True
        assert refused(client, b"in flight").values["uncertain"] is False  # its first attempt is known
        assert refused(client, b"new").values["uncertain"] is False
        with pytest.raises(OperationalError, match="has not answered"):
            producer.publish(b"from kombu", routing_key="q", retry=True, retry_policy={"max_retries": 2})
        for message in held:
            message.ack()
        wait_until(lambda: instance_report(broker)["stalled_seconds"] > 5, 60, "a stall in the status")
        wait_until(lambda: broker.log.read_text().count("has accepted no writes") == 1, 60, lambda: tail(broker.log))

        s3.proxy.go_on()
        send_at_last(client, b"in flight")
        producer.publish(b"from kombu", routing_key="q", retry=True)
        wait_until(lambda: instance_report(broker)["queues"]["q"]["in_flight"] == 3, 60, "acks in the store")
        assert instance_report(broker)["stalled_seconds"] == 0
        wait_until(lambda: "accepts writes again, after" in broker.log.read_text(), 60, lambda: tail(broker.log))
        while len(held) < HELD + 3:
            consuming.drain_events(timeout=60)
        bodies = [bytes(message.body) for message in held[HELD:]]
        assert sorted(bodies) == [b"before", b"from kombu", b"in flight"]
        for message in held[HELD:]:
            message.ack()


def instance_report(broker: ServedBroker) -> dict[str, Any]:
    found: dict[str, Any] = read_report(url_of(broker))["instances"]["default"]
    return found


@pytest.mark.slow
def test_celerys_retries_store_a_task_once_and_end_in_time(s3: S3, broker: ServedBroker) -> None:
    app = Celery(broker=url_of(broker))

    failed: list[Exception] = []
    policy = {"errback": lambda exc, _interval: failed.append(exc)}

    def send(task: str) -> None:
        app.send_task("run", task_id=task, queue="tasks", retry_policy=policy)

    send("before")
    s3.proxy.stop_answering(Fault.CUT)
    with ThreadPoolExecutor(1) as pool:
        retried = pool.submit(send, "retried")
        wait_until(lambda: failed, 60, "a refusal whose outcome is not known")
        s3.proxy.go_on()
        retried.result(30)
    s3.proxy.stop_answering(Fault.CUT)
    began = time.monotonic()
    with pytest.raises(OperationalError, match="has not answered"):
        send("given up")
    assert time.monotonic() - began < 60
    s3.proxy.go_on()
    with QueueClient(url_of(broker)) as client:
        found = [message.headers["id"] for message in client.pop("tasks", 10)]
    assert sorted(set(found) - {"given up"}) == ["before", "retried"]
    assert len(found) == len(set(found))
    app.close()


@pytest.mark.slow
def test_many_producers_that_try_again_store_each_message_once(s3: S3, broker: ServedBroker) -> None:
    """The store stops four times in different ways; producers repeat what was refused until it is stored."""
    with QueueClient(url_of(broker)) as client:
        client.create("q")
        finished = threading.Event()

        def produce(producer: int) -> None:
            with QueueClient(url_of(broker)) as own:
                for number in range(MESSAGES):
                    send_at_last(own, b"%d/%d" % (producer, number))
                    finished.wait(0.2)

        def disturb() -> None:
            for fault in (Fault.SILENCE, Fault.SLOW_DOWN, Fault.LATE, Fault.CUT_ANSWER):
                s3.proxy.stop_answering(fault)
                finished.wait(TIMEOUT_SECONDS + 2)
                s3.proxy.go_on()
                finished.wait(1)

        with ThreadPoolExecutor(PRODUCERS + 1) as pool:
            disturbing = pool.submit(disturb)
            for producing in [pool.submit(produce, producer) for producer in range(PRODUCERS)]:
                producing.result()
            disturbing.result()
        found = []
        while messages := client.pop("q", 100):
            found += [message.body for message in messages]
        assert sorted(found) == sorted(b"%d/%d" % (one, two) for one in range(PRODUCERS) for two in range(MESSAGES))
