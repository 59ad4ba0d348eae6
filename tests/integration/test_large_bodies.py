"""Large bodies with a real broker: kill -9, damage, backups, and the largest message."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES
from kombu_opendata.staging.folder_url import open_folder
from kombu_opendata.storage.records.keys import RecordKind

from ..support.backups import back_up, bodies, command, drained
from ..support.broker import EmbeddedBroker
from ..support.kombu_client import declare, send, take_bodies
from ..support.plain_store import PlainStore
from ..support.processes import Children, wait_until
from ..support.s3 import BUCKET, S3
from ..support.served import ServedBroker
from ..support.verified import verify

SIZES = (65_000, 66_000, 100_000, 700_000, 3_000_000)


def body(number: int) -> bytes:
    """A body that can't be compressed, or every third one that can."""
    size = SIZES[number % len(SIZES)]
    return b"%08d" % number + (bytes(size) if number % 3 == 0 else random.Random(number).randbytes(size))


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "default.staged").glob("segments/*.segment"))


def test_no_confirmed_body_is_lost_by_kills(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q", arguments={"x-done-retention": 1})
    confirmed: list[int] = []

    def produce() -> None:
        producer = connect(broker_url).channel()
        for number in range(40):
            send(producer, "q", body(number))
            confirmed.append(number)

    thread = threading.Thread(target=produce)
    thread.start()

    def has(count: int) -> bool:
        return len(confirmed) >= count or not thread.is_alive()

    for count in (5, 15, 25):
        wait_until(partial(has, count), 60, f"{count} confirms")
        broker.kill()
    thread.join(120)
    assert confirmed == list(range(40))
    assert segments(store_folder)
    assert take_bodies(connect(broker_url).channel(), "q") == [body(number) for number in range(40)]
    broker.wait_queue("q", 0, 0)
    broker.kill()

    def is_collected() -> bool:
        with QueueClient(broker_url) as client:
            client.maintain(["collect"])
        return not segments(store_folder)

    wait_until(is_collected, 60, "the deletion of the segments")


@pytest.mark.damages_store
def test_damage_is_reported_with_the_message_and_fails_no_other(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    expected = [b"%d" % number + random.Random(number).randbytes(100_000) for number in range(5)]
    send(channel, "q", *expected)
    broker.terminate()
    (file,) = segments(store_folder)
    data = bytearray(file.read_bytes())
    data[250_000] ^= 0xFF
    file.write_bytes(data)
    (finding,) = verify(store_folder).findings
    assert finding.code == "batch-damaged"
    assert finding.message_id == sorted(PlainStore(store_folder).of[RecordKind.PAYLOAD])[2]
    assert take_bodies(connect(broker_url).channel(), "q") == [each for each in expected if each != expected[2]]
    broker.terminate()
    assert [row[0] for row in PlainStore(store_folder).rows(RecordKind.FAILED, "q")] == [finding.message_id]


def test_backups_of_a_segment_that_grows(store_folder: Path, tmp_path: Path) -> None:
    store = store_folder / "store"
    for count in (2, 4):
        with QueueClient(f"opendata://{store}") as client:
            client.create("q")
            client.send("q", body(count - 2))
            client.send("q", body(count - 1))
        back_up(tmp_path / "target", store)
        restored = store_folder / f"restored{count}"
        command("restore", tmp_path / "target", restored)
        assert bodies(restored, "q") == [body(number) for number in range(count)]
        EmbeddedBroker(restored).terminate()
    EmbeddedBroker(store).terminate()


@pytest.mark.slow
def test_the_largest_body(connect: Callable[..., Any], broker_url: str) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    largest = random.Random(1).randbytes(DEFAULT_MAX_MESSAGE_BYTES - 1000)
    send(channel, "q", b"first", largest, b"last")
    assert take_bodies(channel, "q") == [b"first", largest, b"last"]


def test_in_a_bucket_they_are_objects(s3: S3, started: Children, tmp_path: Path) -> None:
    """Each is durable when it is confirmed, and the next broker delivers it and deletes its object."""
    folder = open_folder(f"s3://{BUCKET}/large/default.staged")

    def serve() -> ServedBroker:
        broker = ServedBroker(tmp_path, "--store", f"s3://{BUCKET}/large", "--listen", "tcp:127.0.0.1:0")
        started.add(broker)
        return broker

    sent = [random.Random(number).randbytes(size) for number, size in enumerate((1000, 300_000, 1_000_000, 100_000))]
    first = serve()
    with QueueClient(f"opendata://127.0.0.1:{first.port}") as client:
        client.create("q")
        for each in sent:
            client.send("q", each)
    assert len(list(folder.files("segments"))) == 2
    first.kill()
    first.wait(60)
    second = serve()
    url = f"opendata://127.0.0.1:{second.port}"
    assert drained(url, "q") == sent
    with QueueClient(url) as client:
        client.delete_queue("q")

    def is_collected() -> bool:
        with QueueClient(url) as client:
            client.maintain(["collect"])
        return not list(folder.files("segments"))

    wait_until(is_collected, 60, "the deletion of the objects")
