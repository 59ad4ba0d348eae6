"""Large bodies with a real broker: kill -9, damage, backups, and the largest message."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.errors import QueueFull
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES, encode_envelope
from kombu_opendata.protocol.unique_key import UniqueKey
from kombu_opendata.queue_client import QueueOptions
from kombu_opendata.staging.folder_url import open_folder
from kombu_opendata.storage.commit.file_calls import FileCalls
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.operations.unique_keys import UniqueKeys
from kombu_opendata.storage.records.keys import RecordKind

from ..support.backups import back_up, bodies, command, drained
from ..support.broker import EmbeddedBroker
from ..support.caller import Caller
from ..support.clock import ManualClock
from ..support.kombu_client import declare, send, take_bodies
from ..support.plain_store import PlainStore
from ..support.processes import Children, wait_until
from ..support.raw import RawClient, publish
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


def test_messages_of_any_size_keep_their_order(
    connect: Callable[..., Any], broker_url: str, store_folder: Path, broker: EmbeddedBroker
) -> None:
    declare(connect(broker_url).channel(), "q")
    sent = [random.Random(number).randbytes(size) for number, size in enumerate((3_000_000, 10, 3_000_000, 100_000))]
    with RawClient(f"{store_folder}/broker.sock") as client:
        client.hello()
        envelopes = [encode_envelope(each, None, None, {}, {}, "", "q") for each in sent]
        numbers = [client.send(publish("q", seq, each)) for seq, each in enumerate(envelopes, 1)]
        ids = [client.answer(number).message_id for number in numbers]
    assert ids == sorted(ids)
    assert take_bodies(connect(broker_url).channel(), "q") == sent


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


@pytest.mark.damages_store
def test_a_segment_that_can_not_be_read_fails_only_its_messages(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    send(channel, "q", b"before", body(1), b"after")
    broker.terminate()
    (file,) = segments(store_folder)
    file.unlink()
    file.mkdir()
    (finding,) = verify(store_folder).findings
    assert finding.code == "batch-missing"
    assert finding.message_id == sorted(PlainStore(store_folder).of[RecordKind.PAYLOAD])[1]
    assert take_bodies(connect(broker_url).channel(), "q") == [b"before", b"after"]
    broker.terminate()
    assert [row[0] for row in PlainStore(store_folder).rows(RecordKind.FAILED, "q")] == [finding.message_id]


def test_nested_headers_are_written_once_and_read_everywhere(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path, tmp_path: Path
) -> None:
    """Journal and records have only the place of the message, as the metadata omits nested headers."""
    channel = connect(broker_url).channel()
    declare(channel, "dead")
    declare(channel, "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    texts = [random.Random(number).randbytes(450_000).hex() for number in range(3)]

    def nested(number: int) -> dict[str, Any]:
        return {"nested": {"text": [texts[number]]}}

    for number in range(2):
        send(channel, "q", b"%d" % number, headers=nested(number))
    broker.kill()
    with QueueClient(broker_url) as client:
        assert [message.headers for message in client.peek("q", 9)] == [nested(0), nested(1)]
    channel.basic_get("q").reject()
    broker.wait_queue("dead", 1, 0)
    send(channel, "q", b"2", headers=nested(2), expiration="0")
    broker.wait_queue("dead", 2, 0)
    with QueueClient(broker_url) as client:
        client.create("again", QueueOptions(start="first", filter="routing_key IN ('q', 'dead')"))
        wait_until(lambda: client.replay_progress(["again"])[0]["done"], 60, "the end of the replay")
        assert {message.headers["nested"]["text"][0] for message in client.peek("again", 9)} == set(texts)
    broker.terminate()
    assert not verify(store_folder).findings
    for file in (*store_folder.glob("default/**/*"), *store_folder.glob("default.journal/*")):
        assert not (file.is_file() and any(text[:64].encode() in file.read_bytes() for text in texts)), file
    assert max(map(len, PlainStore(store_folder).raw.values())) < 10_000
    back_up(tmp_path / "target", store_folder)
    restored = store_folder / "restored"
    command("restore", tmp_path / "target", restored)
    with QueueClient(f"opendata://{restored}") as client:
        found = [message.headers["nested"]["text"][0] for message in client.peek("dead", 9)]
    assert found == [texts[0], texts[2]]
    EmbeddedBroker(restored).terminate()


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


def test_a_batch_that_does_not_fit_is_refused_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileCalls, "write", _write_to_full_disk)
    asyncio.run(_send_to_full_disk(tmp_path, monkeypatch))


def _write_to_full_disk(self: FileCalls, fd: int, data: bytes | memoryview, offset: int) -> int:
    if offset > 200_000 and os.readlink(f"/proc/self/fd/{fd}").endswith(".segment"):
        raise OSError(errno.ENOSPC, "full")
    return os.pwrite(fd, data, offset)


async def _send_to_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await Engine.open(f"file://{folder}/store", "default", ManualClock())
    instance = Instance("default", engine, grace_ms=2000, max_message_bytes=1 << 20)
    session = instance.sessions[b"s" * 16] = Session(b"s" * 16, "a client")
    call = Caller(instance, session)
    call(m.DeclareQueue(1, "q", True, False, False, {}, False))
    batch: list[Any] = [(encode_envelope(body(1), None, None, {}, {}, "", "q"), {}, 0, 0, -1) for _ in range(8)]
    call(m.Send(2, 1, "", "q", batch, 1, True, "key", b"d" * 16, 60_000))
    await call.done()
    assert len(engine.state.queues["q"].messages) == 0
    monkeypatch.undo()
    call(m.Send(3, 2, "", "q", batch, 1, True, "key", b"d" * 16, 60_000))
    await call.done()
    assert len(engine.state.queues["q"].messages) == 8
    await engine.close()


def test_a_large_envelope_is_written_while_other_clients_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_publish_beside_large_ones(tmp_path, monkeypatch))


async def _publish_beside_large_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()

    def write(self: FileCalls, fd: int, data: bytes | memoryview, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".segment"):
            assert may_write.wait(20), "the event loop waits for the write"
            assert threading.current_thread() is not threading.main_thread()
        return os.pwrite(fd, data, offset)

    monkeypatch.setattr(FileCalls, "write", write)
    monkeypatch.setattr(UniqueKeys, "is_loading", lambda *_: True)  # so that a publish waits for its key
    engine = await Engine.open(f"file://{folder}/store", "default", ManualClock())
    instance = Instance("default", engine, grace_ms=2000, max_message_bytes=8 << 20)
    (large, replies), (other, confirms) = (_client(instance, name) for name in ("large", "other"))
    envelopes = [encode_envelope(random.Random(n).randbytes(3 << 20), None, None, {}, {}, "", "q") for n in range(7)]
    large(m.DeclareQueue(1, "q", True, False, False, {}, False))
    large(m.DeclareQueue(2, "full", True, False, False, {"x-max-length": 0, "x-overflow": "reject-publish"}, False))
    large(m.Publish(3, 1, "", "q", envelopes[0], {}, 0, 0))
    with pytest.raises(QueueFull):
        large(m.Publish(4, 2, "", "full", envelopes[1], {}, 0, 0))
    large(m.Publish(5, 1, "", "q", envelopes[0], {}, 0, 0))  # as a client that comes back
    large(m.Publish(6, 3, "", "nowhere", envelopes[2], {}, 0, 0))
    large(m.Send(7, 4, "", "q", [(envelopes[3], {}, 0, 0, -1)], 1, True, "key", b"d" * 16, 60_000))
    large(m.StoreResult(8, b"name", 2, envelopes[4], 0))
    large(m.Publish(9, 5, "", "q", envelopes[5], {}, 0, 0, unique=UniqueKey("published")))
    large(m.Send(10, 6, "", "q", [(envelopes[6], {}, 0, 0, -1)], 1, True, unique=UniqueKey("sent")))
    other(m.Publish(1, 1, "", "q", encode_envelope(b"x", None, None, {}, {}, "", "q"), {}, 0, 0))
    while not (confirms and 6 in replies):  # noqa: ASYNC110 - replies are no events
        await asyncio.sleep(0)
    assert not replies.keys() - {1, 2, 6}
    may_write.set()
    await large.done()
    while not replies.keys() >= {3, *range(5, 11)}:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert replies[3].message_id == replies[5].message_id > 0
    assert replies[6].queues == 0
    assert len(replies[7].ids) == 1
    assert replies[8].stored
    assert (replies[9].queues, len(replies[10].ids)) == (1, 1)
    assert len(engine.state.queues["q"].messages) == 5
    kept = [len(envelopes[number]) for number in (0, 3, 4, 5, 6)]
    assert sorted(file.stat().st_size for file in segments(folder / "store")) == sorted(kept)
    await engine.close()


def _client(instance: Instance, name: str) -> tuple[Caller, dict[int, Any]]:
    """A client, and the replies that it has received, by request number."""
    session = Session(name.encode().ljust(16), name)
    replies: dict[int, Any] = {}
    session.connection = Mock(send_all=lambda messages: replies.update((each.rid, each) for each in messages))
    instance.sessions[session.id] = session
    return Caller(instance, session), replies


def test_a_dead_letter_waits_until_a_segment_can_be_opened(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "dead")
    declare(channel, "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    sent = random.Random(1).randbytes(17 << 20)  # a copy needs another segment
    send(channel, "q", sent)
    pid = broker.pid()
    assert pid is not None
    message = channel.basic_get("q")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{pid}/fd").iterdir())), limits[1]))
    try:
        message.reject()
        wait_until(lambda: "dead letters" in broker.log.read_text(), 60, "a refused attempt")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    broker.wait_queue("dead", 1, 0)
    assert take_bodies(channel, "dead") == [sent]
