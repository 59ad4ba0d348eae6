"""A standby of a bucket: the active record, claims, hand-over, and what a fenced broker does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import obstore
import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import ConnectionLost, NotActive
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.messages import prove

from ...support.kombu_client import connected, declare, take
from ...support.pair import Pair, greet, took_over, url
from ...support.processes import Child, children, wait_until
from ...support.raw import RawClient
from ...support.s3 import BUCKET, S3
from ...support.served import COMMAND

DELAY_SECONDS = 0.02
FENCED = 6
LEASE_SECONDS = 3.0


@pytest.fixture
def s3(s3: S3) -> S3:
    s3.proxy.go_on()
    s3.proxy.delay_seconds = DELAY_SECONDS
    return s3


@pytest.fixture
def pair(tmp_path: Path, s3: S3) -> Iterator[Pair]:
    with children() as started:
        yield Pair(f"s3://{BUCKET}/{tmp_path.name}", tmp_path, started)


@pytest.fixture
def quick(pair: Pair) -> Pair:
    """With a lease of a few seconds."""
    pair.options = ("--renew-every", "0.7")
    return pair


def record(pair: Pair) -> dict[str, object]:
    """The active record."""
    found: dict[str, object] = json.loads(bytes(obstore.get(bucket(pair), "broker.active").bytes()))
    return found


def bucket(pair: Pair) -> obstore.store.ObjectStore:
    return obstore.store.from_url(pair.store)


def test_a_standby_takes_over_from_a_killed_broker(pair: Pair) -> None:
    first = pair.start()
    pair.wait_active(first)
    with QueueClient(url(first)) as client:
        client.create("letters")
        client.send("letters", {"to": "you"})
    subprocess.run([str(COMMAND), "instance", "create", "later", "--url", url(first)], check=True, timeout=60)
    with QueueClient(f"{url(first)}/later") as client:
        client.create("letters")
        client.send("letters", "in a later instance")
    second = pair.start()
    refused = greet(second.port)
    assert isinstance(refused, NotActive)
    assert refused.active == f"127.0.0.1:{first.port}"
    killed_at = time.monotonic()
    first.kill()
    assert pair.wait_active(second) - killed_at < 30
    assert record(pair)["addresses"] == [f"127.0.0.1:{second.port}"]
    assert record(pair)["instances"] == ["default", "later"]
    with QueueClient(url(second)) as client, QueueClient(f"{url(second)}/later") as other:
        assert [message.body for message in client.pop("letters")] == [{"to": "you"}]
        assert [message.body for message in other.pop("letters")] == ["in a later instance"]


def test_a_frozen_broker_is_replaced_and_says_nothing_when_it_wakes_up(quick: Pair, s3: S3) -> None:
    first = quick.start()
    quick.wait_active(first)
    second = quick.start()
    quick.wait_connected(first)
    with ThreadPoolExecutor() as pool, connected(url(first), reconnect_timeout=1) as connection:
        channel = connection.channel()
        declare(channel, "transient", durable=False)
        os.kill(first.pid, signal.SIGSTOP)
        asking = pool.submit(channel.queue_declare, "transient", passive=True)
        quick.wait_active(second)
        s3.proxy.delay_seconds = 1  # so long it does not know that it was replaced
        os.kill(first.pid, signal.SIGCONT)
        with pytest.raises((ConnectionLost, NotActive)):
            asking.result(30)
    assert first.wait(60) == FENCED
    second.check()
    assert took_over(second)


def test_a_broker_that_was_not_started_as_a_standby_shortens_its_lease_for_one(quick: Pair) -> None:
    first = quick.start(standby=False)
    quick.wait_active(first)
    assert record(quick)["lease_seconds"] == 25
    quick.start()
    wait_until(lambda: record(quick)["lease_seconds"] == pytest.approx(2.1), 60, "the shorter lease")


def test_sigterm_hands_over_to_the_standby(quick: Pair) -> None:
    first = quick.start()
    quick.wait_active(first)
    second = quick.start()
    quick.wait_connected(first)
    assert first.terminate() == 0
    quick.wait_active(second)
    assert second.terminate() == 0
    assert record(quick)["state"] == "stopped"


def test_a_successor_reads_the_tables_before_it_is_waited_for(pair: Pair, s3: S3) -> None:
    first = pair.start()
    pair.wait_active(first)
    with QueueClient(url(first)) as client:
        for number in range(5):
            client.create(f"letters{number}")
            client.send(f"letters{number}", "to you")
    second = pair.start()
    pair.wait_connected(first)
    began = len(s3.proxy.log)
    first.process.terminate()
    pair.wait_active(second)
    asked = s3.proxy.log[began:]
    taken = next(number for number, one in enumerate(asked) if one.method == "PUT" and "broker.active" in one.path)
    assert any(one.kind == "compacted" for one in asked[:taken])
    assert not [str(one) for one in asked[taken:] if one.kind == "compacted"]
    assert first.wait(60) == 0
    with QueueClient(url(second)) as client:
        assert [message.body for message in client.pop("letters4")] == ["to you"]


def test_a_standby_that_can_not_prepare_is_not_asked_to(quick: Pair) -> None:
    first = quick.start()
    quick.wait_active(first)
    nonce, places = b"n" * 16, ["127.0.0.1:1"]
    proof = prove(str(record(quick)["key"]), "standby", "old", nonce, places)
    with RawClient(first.port) as old:
        old.send(m.StandbyHello(1, "old", places, nonce, proof))
        assert isinstance(old.receive(), m.StandbyWelcome)
        first.process.terminate()
        said = list(iter(old.receive, None))
    assert {type(one) for one in said} <= {m.BrokerHeartbeat, m.TakeOver, m.Failed}
    (told,) = [one for one in said if isinstance(one, m.TakeOver)]
    assert json.loads(told.record)["id"] == record(quick)["id"]
    assert first.wait(60) == 0
    assert (record(quick)["state"], record(quick)["successor"]) == ("handing-over", "old")


def test_a_second_broker_without_standby_is_refused_unless_it_takes_over(quick: Pair, tmp_path: Path) -> None:
    first = quick.start()
    quick.wait_active(first)
    refused = broker(quick, tmp_path, "refused")
    assert refused.wait(60) == 1
    assert f"another broker, at 127.0.0.1:{first.port}, is active on this store" in refused.log.read_text()
    assert first.process.poll() is None
    broker(quick, tmp_path, "forced", "--take-over")
    assert first.wait(60) == FENCED
    wait_until(lambda: record(quick)["addresses"] != [f"127.0.0.1:{first.port}"], 60, "the other broker's record")


@pytest.mark.slow
def test_a_broker_whose_store_another_version_wrote_does_not_take_over(quick: Pair, tmp_path: Path) -> None:
    first = quick.start()
    quick.wait_active(first)
    second = quick.start()
    quick.wait_connected(first)
    first.kill()
    newer = record(quick) | {"store_format": 99, "version": "9.0"}
    obstore.put(bucket(quick), "broker.active", json.dumps(newer).encode())
    assert second.wait(60) == 1
    assert "the store's active broker is kombu-opendata 9.0, whose store_format is 99" in second.log.read_text()
    assert record(quick)["id"] == newer["id"]


@pytest.mark.slow
def test_a_standby_that_can_not_reach_the_active_broker_does_not_replace_it(quick: Pair) -> None:
    first = quick.start("--advertise", "127.0.0.1:1")
    quick.wait_active(first)
    second = quick.start()
    wait_until(lambda: second.log.read_text().count("answered in the store") == 2, 60, lambda: second.log.read_text())
    assert greet(first.port) is None
    assert isinstance(greet(second.port), NotActive)
    assert second.terminate() == 0
    assert first.terminate() == 0


@pytest.mark.slow
def test_a_standby_does_not_replace_a_living_broker_whose_record_was_deleted(quick: Pair) -> None:
    first = quick.start("--advertise", "127.0.0.1:1")
    quick.wait_active(first)
    second = quick.start()
    wait_until(lambda: "the active broker is at" in second.log.read_text(), 60, lambda: second.log.read_text())

    def is_missed() -> bool:
        assert not took_over(second)
        with suppress(FileNotFoundError):
            obstore.delete(bucket(quick), "broker.active")
        return "the active record was deleted" in second.log.read_text()

    wait_until(is_missed, 60, lambda: second.log.read_text())
    wait_until(lambda: "answered in the store" in second.log.read_text(), 60, lambda: second.log.read_text())
    assert greet(first.port) is None
    assert not took_over(second)
    assert second.terminate() == 0
    assert first.terminate() == 0


@pytest.mark.slow
def test_without_its_store_the_active_broker_answers_nobody_and_goes_on_later(quick: Pair, s3: S3) -> None:
    first = quick.start()
    quick.wait_active(first)
    with connected(url(first)) as connection, ThreadPoolExecutor(1) as pool:
        channel = connection.channel()
        declare(channel, "transient", durable=False)
        assert take(channel, "transient") == []
        s3.proxy.stop_answering()
        calls: list[Future[list[Any]]] = []

        def is_silent() -> bool:  # until the end of its lease it may answer
            calls.append(pool.submit(take, channel, "transient"))
            return not wait(calls[-1:], 1).done

        try:
            wait_until(is_silent, 60, lambda: first.log.read_text())
        finally:
            s3.proxy.go_on()
        assert calls[-1].result(60) == []
    assert first.terminate() == 0


def broker(pair: Pair, folder: Path, name: str, *options: str) -> Child:
    """A broker of the pair's store that shall not be a standby."""
    command = [str(COMMAND), "broker", "--store", pair.store, "--listen", "tcp:127.0.0.1:0", *options]
    child = Child(command, folder / f"{name}.log", cwd=folder)
    pair.started.add(child)
    return child
