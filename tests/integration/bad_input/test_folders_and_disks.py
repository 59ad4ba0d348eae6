"""Bad input: folders that can't be the store's, a full disk, stores of a newer format, URLs that are no client's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import errors
from kombu_opendata.storage.records import keys, store_records
from kombu_opendata.storage.slatedb.caches import DiskCache
from kombu_opendata.storage.slatedb.store_writer import SlateStore

from ...support.broker import EmbeddedBroker
from ...support.disks import small_disk
from ...support.kombu_client import declare, refused, send, take_bodies
from ...support.neighbour import Neighbour
from ...support.processes import Children, wait_until
from ...support.served import ServedBroker

MIB = 1 << 20


def test_a_folder_that_can_not_be_written(started: Children, tmp_path: Path) -> None:
    with small_disk("ro") as folder:
        error = refused(f"opendata://{folder}/store")
        assert isinstance(error, errors.StoreUnwritable)
        assert isinstance(error, amqp.IrrecoverableConnectionError)
        assert f"{folder}/store" in str(error)
        assert "Read-only file system" in str(error)
        options = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0")
        served = ServedBroker(tmp_path, *options)
        started.add(served)
        assert served.report["code"] == "store_unwritable"
        assert "Read-only file system" in served.report["text"]
        assert served.wait(60) == 1


@pytest.mark.parametrize("below", ["", "/store"], ids=["the path itself", "a part of it"])
def test_a_path_that_is_a_file(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    error = refused(f"opendata://{file}{below}")
    assert isinstance(error, errors.StoreUnwritable)
    assert isinstance(error, amqp.IrrecoverableConnectionError)
    assert f"{file}{below} can't be the store's folder: the path, or a part of it, is a file" in str(error)
    assert file.read_text() == "precious"


def test_a_path_whose_folder_does_not_exist(tmp_path: Path, started: Children) -> None:
    """A mistyped path makes no store."""
    path = tmp_path / "vra" / "lib" / "queue"
    error = refused(f"opendata://{path}")
    assert isinstance(error, errors.StoreUnwritable)
    assert isinstance(error, amqp.IrrecoverableConnectionError)
    assert f"there is no folder {path.parent}; the nearest one that exists is {tmp_path}." in str(error)
    assert f"mkdir -p {path.parent}" in str(error)
    served = ServedBroker(tmp_path, "--store", f"file://{path}", "--listen", "tcp:127.0.0.1:0")
    started.add(served)
    assert served.report["code"] == "store_unwritable"
    assert f"the nearest one that exists is {tmp_path}." in served.report["text"]
    assert served.wait(60) == 1
    with pytest.raises(errors.StoreUnwritable, match=r"no cache on disk: .* No such file"):
        DiskCache(path, "s3://bucket", "default")
    assert not (tmp_path / "vra").exists()


@pytest.mark.damages_store
def test_a_file_where_the_database_should_be(store_folder: Path, broker_url: str) -> None:
    (store_folder / "default").write_text("precious")
    error = refused(broker_url)
    assert isinstance(error, errors.StoreUnwritable)
    assert f"{store_folder}/default" in str(error)
    assert (store_folder / "default").read_text() == "precious"


def test_a_full_disk(connect: Callable[..., Any]) -> None:
    with small_disk("size=96m") as disk:
        folder = disk / "store"
        broker = EmbeddedBroker(folder)
        ballast = disk / "ballast"
        try:
            ballast.write_bytes(bytes(40 * MIB))
            producer, consumer = (connect(f"opendata://{folder}").channel() for _ in range(2))
            pid = broker.pid()
            declare(producer, "q")
            stored: list[int] = []
            with pytest.raises(errors.StoreFull, match="nothing was stored; free disk space") as caught:
                fill(producer, "q", stored)
            assert isinstance(caught.value, amqp.RecoverableChannelError)
            assert len(stored) > 4

            first = consumer.basic_get("q")
            first.ack()
            held = consumer.basic_get("q")
            assert [int(bytes(message.body[:4])) for message in (first, held)] == [0, 1]
            assert consumer._size("q") == len(stored) - 2

            ballast.unlink()
            send_when_possible(producer, "q", b"%04d" % 999)
            held.ack()
            rest = [int(bytes(body[:4])) for body in take_bodies(consumer, "q")]
            assert rest == [*stored[2:], 999]
            assert broker.pid() == pid
            wait_until(lambda: broker.report()["stalled_seconds"] == 0, 60, "the next checkpoint")
        finally:
            end(broker)


def test_a_file_system_without_free_inodes(connect: Callable[..., Any]) -> None:
    """A broker starts, and serves as on a full disk: consumers continue, and publishes are refused in the end."""
    with small_disk("size=400m", "nr_inodes=160", "mode=700") as disk:
        folder = disk / "store"
        broker = EmbeddedBroker(folder)
        try:
            channel = connect(f"opendata://{folder}").channel()
            declare(channel, "q")
            send(channel, "q", *(b"%04d" % number for number in range(20)))
            pid = broker.pid()
            assert pid is not None
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: broker.pid() is None, 60, "end of the broker")
            use_up_inodes(disk)

            channel = connect(f"opendata://{folder}").channel()
            assert channel._size("q") == 20
            assert "has only 0 free inodes: delete files there" in (folder / "broker.log").read_text()
            use_up_inodes(disk)
            stored: list[int] = []
            with pytest.raises(errors.StoreFull, match="no free inodes: delete files there"):
                fill(channel, "q", stored)
            consumer = connect(f"opendata://{folder}").channel()
            for number in range(20):
                message = consumer.basic_get("q")
                assert bytes(message.body) == b"%04d" % number
                message.ack()
            pid = broker.pid()
            for path in disk.glob("ballast*"):
                path.unlink()
            send_when_possible(channel, "q", b"%04d" % 999)
            assert [int(bytes(body[:4])) for body in take_bodies(consumer, "q")] == [*stored, 999]
            assert broker.pid() == pid
        finally:
            end(broker)


def use_up_inodes(disk: Path) -> None:
    """Create empty files until there are no inodes left."""
    while os.statvfs(disk).f_favail:
        with contextlib.suppress(OSError):  # the broker took the last one
            (disk / f"ballast-{time.monotonic_ns()}").touch()


def fill(channel: Any, queue: str, stored: list[int]) -> None:
    """Publish until it is refused; ``stored`` are those that were answered."""
    for number in range(96):
        send(channel, queue, b"%04d" % number + os.urandom(MIB))
        stored.append(number)


def send_when_possible(channel: Any, queue: str, body: bytes, seconds: float = 60) -> None:
    def is_sent() -> bool:
        try:
            send(channel, queue, body)
        except errors.RetryLater:
            return False
        return True

    wait_until(is_sent, seconds, "a publish that is not refused")


def end(broker: EmbeddedBroker) -> None:
    pid = broker.pid()
    if pid is not None:
        os.kill(pid, 9)
        wait_until(lambda: broker.pid() is None, 60, "end of the broker")


def _make_newer(folder: Path, instance: str) -> None:
    async def write() -> None:
        store = await SlateStore.open(f"file://{folder}", instance)
        batch = store.batch()
        batch.put(
            keys.STORE_HEADER_KEY, store_records.encode_header(store_records.StoreHeader(1, instance, format_version=3))
        )
        await store.write(batch)
        await store.flush_wal()
        await store.close()

    asyncio.run(write())


@pytest.mark.damages_store
def test_a_store_of_a_newer_format(store_folder: Path, broker_url: str) -> None:
    _make_newer(store_folder, "default")
    error = refused(broker_url)
    assert isinstance(error, errors.NewerFormat)
    assert isinstance(error, amqp.IrrecoverableConnectionError)
    assert "the store has format version 3, this kombu-opendata reads up to 2; upgrade it" in str(error)
    assert (error.version, error.supported) == (3, 2)


@pytest.mark.damages_store
def test_one_instance_of_a_newer_format(started: Children, store_folder: Path, connect: Callable[..., Any]) -> None:
    _make_newer(store_folder / "served", "newer")
    served = ServedBroker(store_folder, "--store", f"file://{store_folder}/served", "--listen", "tcp:127.0.0.1:0")
    started.add(served)
    neighbour = Neighbour(connect(f"opendata://127.0.0.1:{served.port}"), lambda: served.pid)
    assert isinstance(refused(f"opendata://127.0.0.1:{served.port}/newer"), errors.NewerFormat)
    error = refused(f"opendata://127.0.0.1:{served.port}/default.journal")
    assert isinstance(error, errors.RequestError)
    assert "'.journal'" in str(error), "it would be the journal's folder of another instance"
    neighbour.check()
    assert served.terminate() == 0


def test_a_socket_path_that_is_too_long(started: Children, tmp_path: Path) -> None:
    folder = f"/tmp/{'long/' * 22}store"
    error = refused(f"opendata://{folder}")
    assert isinstance(error, errors.SocketPathTooLong)
    assert isinstance(error, amqp.IrrecoverableConnectionError)
    assert f"{folder}/broker.sock has {len(folder) + 12} bytes and the limit is 107" in str(error)
    assert "--listen tcp:" in str(error)
    assert not Path("/tmp/long").exists()
    served = ServedBroker(tmp_path, "--store", f"file://{tmp_path}/store", "--listen", f"unix:{folder}/broker.sock")
    started.add(served)
    assert served.report["code"] == "invalid_configuration"
    assert "107" in served.report["text"]
    assert served.wait(60) == 2


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/prefix",
        "opendata://s3://bucket/prefix",
        "opendata+s3://bucket/prefix",
        "gs://bucket",
        "az://container",
    ],
)
def test_a_remote_stores_url_given_to_a_client(url: str) -> None:
    error = refused(url)
    assert isinstance(error, errors.InvalidURL)
    assert isinstance(error, ValueError)
    assert "a store is given to the broker, not to a client, because a store has one writer" in str(error)
    store = url.removeprefix("opendata://").removeprefix("opendata+")
    assert f"opendata-queue broker --store {store} --listen" in str(error)
