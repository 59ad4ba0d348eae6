"""Bad input: a clear error of the right class at the caller, the broker and everybody else unharmed, nothing lost.

The errors that a Kombu caller sees are of two families at once: this package's, and AMQP's, by which Kombu decides.
"""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import amqp.exceptions as amqp
import msgspec
import pytest
from kombu.exceptions import OperationalError

from kombu_opendata import errors
from kombu_opendata.broker.server import BrokerSettings, Server
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import HELLO_MAX_FRAME_BYTES, PREAMBLE, frame
from kombu_opendata.storage import clock as clocks
from kombu_opendata.storage.records import header, keys
from kombu_opendata.storage.slate import SlateStore

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected, declare, drain_until, open_connection, send, take_bodies
from ..support.processes import Children, wait_until
from ..support.raw import RawClient
from ..support.served import ServedBroker

MIB = 1 << 20


class Neighbour:
    """Another client of the same broker, who must notice nothing."""

    def __init__(self, connection: Any, pid: Callable[[], int | None]) -> None:
        self._channel = connection.channel()
        self._pid_of = pid
        self._pid = pid()
        declare(self._channel, "neighbours")
        send(self._channel, "neighbours", "before")
        self._held = self._channel.basic_get("neighbours")
        assert self._held.body == "before"

    def check(self) -> None:
        """Nothing was lost, the connection still works, and it is still the same broker."""
        send(self._channel, "neighbours", "after")
        self._held.ack()
        assert take_bodies(self._channel, "neighbours") == ["after"]
        assert self._pid_of() == self._pid, "the broker was restarted"


@pytest.fixture(scope="module")
def shared_url(module_store_folder: Path) -> Iterator[str]:
    """A broker that most of the tests share: none of them may harm it."""
    url = f"opendata://{module_store_folder}"
    with connected(url):
        yield url


@pytest.fixture
def broker(module_store_folder: Path) -> EmbeddedBroker:
    return EmbeddedBroker(module_store_folder)


@pytest.fixture
def neighbour(shared_url: str, broker: EmbeddedBroker) -> Iterator[Neighbour]:
    with connected(shared_url) as connection:
        found = Neighbour(connection, broker.pid)
        yield found
        found.check()


@pytest.fixture
def channel(neighbour: Neighbour, shared_url: str) -> Iterator[Any]:
    """The channel of the caller who does it wrong; it must stay usable. There is an empty queue ``q``."""
    with connected(shared_url) as connection:
        opened = connection.channel()
        declare(opened, "q")
        yield opened
        for queue in ("q", "limited"):
            opened.queue_delete(queue)
        opened.exchange_delete("e")


@pytest.fixture
def raw(channel: Any, module_store_folder: Path) -> Iterator[RawClient]:
    """A client that sends what no real one would."""
    with RawClient(f"{module_store_folder}/broker.sock") as client:
        yield client


@contextmanager
def small_disk(*options: str) -> Iterator[Path]:
    """A file system in memory, mounted with these options."""
    folder = Path(tempfile.mkdtemp(prefix="odq-disk-", dir="/tmp"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], capture_output=True
    )
    try:
        if mounted.returncode:
            reason = f"file systems can't be mounted: {mounted.stderr.decode().strip()}"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        yield folder
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def refused(url: str, **options: Any) -> Any:
    """The error of a client that can't connect."""
    with pytest.raises(errors.OpenDataError) as caught, open_connection(url, **options) as connection:
        connection.connect()
    return caught.value


# ------------------------------------------------------------------ folders and disks
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
        assert served.wait(10) == 1


@pytest.mark.parametrize("below", ["", "/store"], ids=["the path itself", "a part of it"])
def test_a_path_that_is_a_file(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    error = refused(f"opendata://{file}{below}")
    assert isinstance(error, errors.StoreUnwritable)
    assert isinstance(error, amqp.IrrecoverableConnectionError)
    assert f"{file}{below} can't be the store's folder: it, or a part of it, is a file" in str(error)
    assert file.read_text() == "precious"


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
            with pytest.raises(errors.StoreFull, match="nothing was stored; free space") as caught:
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
            assert broker.report()["stalled_seconds"] == 0
        finally:
            end(broker)


def fill(channel: Any, queue: str, stored: list[int]) -> None:
    """Publish until it is refused; ``stored`` are those that were answered."""
    for number in range(96):
        send(channel, queue, b"%04d" % number + bytes(MIB))
        stored.append(number)


def send_when_possible(channel: Any, queue: str, body: bytes, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return send(channel, queue, body)
        except errors.RetryLater:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def end(broker: EmbeddedBroker) -> None:
    pid = broker.pid()
    if pid is not None:
        os.kill(pid, 9)
        wait_until(lambda: broker.pid() is None, 10, "end of the broker")


def _make_newer(folder: Path, instance: str) -> None:
    async def write() -> None:
        store = await SlateStore.open(f"file://{folder}", instance)
        batch = store.batch()
        batch.put(keys.STORE_HEADER_KEY, header.encode(header.StoreHeader(1, instance, format_version=2)))
        await store.write(batch)
        await store.flush_wal()
        await store.close()

    asyncio.run(write())


def test_a_store_of_a_newer_format(store_folder: Path, broker_url: str) -> None:
    _make_newer(store_folder, "default")
    error = refused(broker_url)
    assert isinstance(error, errors.NewerFormat)
    assert isinstance(error, amqp.IrrecoverableConnectionError)
    assert "the store has format version 2, this kombu-opendata reads up to 1; upgrade it" in str(error)
    assert (error.version, error.supported) == (2, 1)


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
    assert served.report["code"] == "socket_path_too_long"
    assert "107" in served.report["text"]
    assert served.wait(10) == 1


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


# ------------------------------------------------------------------ the socket
def test_a_frame_over_the_limit_before_the_hello(raw: RawClient) -> None:
    raw.send_bytes(struct.pack("<I", HELLO_MAX_FRAME_BYTES + 1))
    said = raw.last_word()
    assert said is not None
    assert said.code == "frame_too_large"
    assert said.values == {"size": HELLO_MAX_FRAME_BYTES + 1, "limit": HELLO_MAX_FRAME_BYTES}


def test_a_frame_over_the_limit_after_the_hello(raw: RawClient) -> None:
    limit = raw.hello().max_frame_bytes
    raw.send_bytes(struct.pack("<I", limit + 1) + b"begin of it")
    said = raw.last_word()
    assert said is not None
    assert said.code == "frame_too_large"
    assert f"a frame of {limit + 1} bytes is over the limit of {limit}" in said.text


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"ODQ\1\1\0\0\0", b"\x16\x03\x01\x02\x00", bytes(64)])
def test_something_else_than_the_protocol(neighbour: Neighbour, module_store_folder: Path, data: bytes) -> None:
    with RawClient(f"{module_store_folder}/broker.sock", preamble=data) as raw:
        received = b""
        while chunk := raw.sock.recv(4096):
            received += chunk
    assert b"protocol_error" in received
    assert b"does not speak the opendata protocol" in received


NESTED = b"\x91" * 5000 + b"\x90"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\xff" * 100,
        b"\x93\x01",
        msgspec.msgpack.encode({"op": 1}),
        msgspec.msgpack.encode([999, 1]),
        msgspec.msgpack.encode(["publish", 1]),
        msgspec.msgpack.encode([4, 1, 7, True, False, False, {}, False]),
        msgspec.msgpack.encode([3, 1, 1, "", "q", b"e", {"a": 1}, 0, 0]),
        msgspec.msgpack.encode([3, 1, 1, "", "q", b"e", {}, 1 << 63, 0])[:-3],
        msgspec.msgpack.encode([11, 1]),
        b"\x93\x06\x01\xa2\xff\xfe",
        b"\x98\x04\x01\xa1q\xc3\xc2\xc2\x81\xa1a" + NESTED + b"\xc2",
        msgspec.msgpack.encode([1, 9, b"s" * 16, "again"]),
        msgspec.msgpack.encode([101, 1, "", 1, 1, 1, 1, 1]),
    ],
    ids=[
        "empty", "never used byte", "noise", "cut short", "a map", "unknown number", "no number", "wrong type",
        "header not text", "truncated", "fields missing", "not UTF-8", "deep nesting", "second Hello",
        "a broker's message",
    ],
)  # fmt: skip
def test_garbage_in_a_frame(raw: RawClient, body: bytes) -> None:
    raw.hello()
    raw.declare("q")
    raw.send_frame(body)
    said = raw.last_word()
    assert said is not None
    assert said.code == "protocol_error"


@pytest.mark.parametrize("first", [[2], [15, 1, 0, 1, []], [17, 1]])
def test_a_first_message_that_is_no_hello(raw: RawClient, first: list[Any]) -> None:
    raw.send_array(*first)
    said = raw.last_word()
    assert said is not None
    assert "the first message must be a Hello" in said.text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"session": b"short"}, "a session id has 16 bytes"),
        ({"instance": "../etc"}, "instance name '../etc'"),
        ({"instance": ""}, "instance name ''"),
        ({"instance": "default.journal"}, "no '.journal' at the end"),
        ({"name": "n" * 256}, "at most 255 bytes"),
    ],
)
def test_a_hello_that_can_not_be_welcomed(raw: RawClient, fields: dict[str, Any], text: str) -> None:
    answer = raw.call(m.Hello(0, **{"session": bytes(16), "name": "raw", **fields}))
    assert isinstance(answer, m.Failed)
    assert answer.code == "bad_request"
    assert text in answer.text
    assert raw.receive() is None


def test_half_a_frame_and_then_nothing(neighbour: Neighbour, module_store_folder: Path) -> None:
    for data in (PREAMBLE[:3], PREAMBLE, PREAMBLE + b"\x10\0\0\0half"):
        with RawClient(f"{module_store_folder}/broker.sock", preamble=data):
            pass


@pytest.mark.parametrize(
    "message",
    [
        m.Publish(0, 1, "", "q", b"e", {}, 256, 1),
        m.Publish(0, 1, "", "q", b"e", {}, -1, 1),
        m.Publish(0, 0, "", "q", b"e", {}, 0, 1),
        m.Publish(0, 1 << 63, "", "q", b"e", {}, 0, 1),
        m.Publish(0, 1, "", "q", b"e", {}, 0, 1 << 60),
        m.Publish(0, 1, "", "q", b"e", {}, 0, 1, -(1 << 40)),
        m.Publish(0, 1, "", "q", b"e", {}, 0, 1, 0, -2),
        m.Publish(0, 1, "", "q", b"e", {f"h{number}": "" for number in range(256)}, 0, 1),
        m.Publish(0, 1, "", "q", b"e", {"long": "x" * 65_536}, 0, 1),
        m.Publish(0, 1, "", "q", b"e", {"x" * 65_536: "long"}, 0, 1),
    ],
    ids=[
        "priority 256", "priority -1", "number 0", "number 2^63", "created", "visible", "ttl", "256 headers",
        "long header", "long header name",
    ],
)  # fmt: skip
def test_a_publish_that_no_client_of_ours_would_send(raw: RawClient, message: m.Publish) -> None:
    raw.hello()
    raw.declare("q")
    answer = raw.call(message)
    assert isinstance(answer, m.Failed), answer
    assert answer.code == "invalid_message"
    assert raw.publish("q", 7, b"good").queues == 1
    assert raw.declare("q").ready == 1


@pytest.mark.parametrize("depth", [21, 100, 900])
def test_arguments_that_are_nested_too_deeply(raw: RawClient, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    raw.hello()
    answer = raw.call(m.DeclareQueue(0, "deep", True, False, False, {"x": value}, False))
    assert isinstance(answer, m.Failed)
    assert answer.code == "bad_request"
    assert "nested more than 20 levels deep" in answer.text


@pytest.mark.parametrize("value", [b"bytes", float("nan"), "x" * 60_001], ids=["bytes", "nan", "long"])
def test_arguments_that_can_not_be_stored(raw: RawClient, value: Any) -> None:
    raw.hello()
    answer = raw.call(m.DeclareQueue(0, "odd", True, False, False, {"x": value}, False))
    assert isinstance(answer, m.Failed)
    assert answer.code == "bad_request"
    assert "the arguments of queue 'odd'" in answer.text


def test_stale_and_invented_leases_are_ignored(raw: RawClient) -> None:
    raw.hello()
    raw.declare("q")
    raw.publish("q", 1)
    raw.consume("q")
    lease = raw.wait_deliveries(1)[0][2:5]
    invented = [("q", lease[1], lease[2] + 1), ("q", 1 << 60, 1), ("q", -5, -5), ("nowhere", 1, 1)]
    raw.send(m.Settle(4, m.Outcome.ACK, 1, invented))
    raw.send(m.Settle(6, m.Outcome.REQUEUE, 1, [lease, lease]))
    again = raw.wait_deliveries(2)[1]
    assert (again[3], again[5]) == (lease[1], 2)
    raw.send(m.Settle(7, m.Outcome.ACK, 99, [again[2:5]]))
    assert raw.declare("q").ready == 0


def test_a_client_that_asks_and_does_not_read(raw: RawClient, broker: EmbeddedBroker) -> None:
    """The broker stops reading its requests; otherwise the answers, gigabytes of them, would be in its memory."""
    raw.hello()
    for number in range(20):
        raw.call(m.DeclareQueue(0, f"flood-{number}", False, True, False, {}, False))
    requests = frame(m.ListBindings(1)) + frame(m.GetStatus(1)) * 1000
    raw.sock.settimeout(5)
    with pytest.raises(TimeoutError):
        flood(raw, requests)
    pages = int(Path(f"/proc/{broker.pid()}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 400 * MIB


def test_many_questions_with_large_answers_at_once(raw: RawClient, broker: EmbeddedBroker) -> None:
    """A few kilobytes of them: the broker answers them one after the other, as they are read, and in order."""
    raw.hello()
    raw.call(m.StoreResult(0, b"large", 1, b"x" * 4_000_000, 0))
    count = 150
    raw.send_bytes(b"".join(frame(m.GetResults(1000 + number, [b"large"])) for number in range(count)))
    raw.send_bytes(frame(m.DeclareQueue(5000, "behind", False, True, False, {}, False)))
    for number in range(count):
        answer = raw.answer(1000 + number)
        assert len(answer.values[0]) == 4_000_000
    assert raw.answer(5000).queue == "behind"
    peak = next(line for line in Path(f"/proc/{broker.pid()}/status").read_text().splitlines() if "VmHWM" in line)
    assert int(peak.split()[1]) < 500 << 10  # KiB


def test_a_question_that_could_not_be_answered(raw: RawClient) -> None:
    raw.hello()
    raw.send_array(19, 0)  # GetStatus
    failed = raw.last_word()
    assert failed is not None
    assert "without a request number" in failed.text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (m.Consume(0, 1, "t" * 256, "q", False, False, {}), "the consumer tag is over 255 bytes"),
        (m.Maintain(0, ["collect"], float("nan")), "again in nan s: give a number of seconds"),
        (m.Maintain(0, ["collect"], float("-inf")), "again in -inf s"),
    ],
)
def test_a_call_that_no_client_of_ours_would_make(raw: RawClient, message: Any, text: str) -> None:
    raw.hello()
    raw.declare("q")
    failed = raw.call(message)
    assert isinstance(failed, m.Failed)
    assert text in failed.text


def test_envelopes_that_are_none_are_dead_lettered(raw: RawClient) -> None:
    """Whatever bytes a client publishes, a dead letter of them arrives."""
    encode = msgspec.msgpack.encode
    hostile = [
        b"", b"\xc1", b"\x91" * 5000 + b"\xc0", encode(1), encode([]), encode([b"b", 1, 2, [], [], 1, 2]),
        encode([b"b", "t", "e", {"x-death": [{"queue": [], "reason": {}}, 5, None]}, {}, "x", "k"]),
        encode([b"b", "t", "e", {"x-death": [{"queue": "src", "count": float("nan")}]}, {"expiration": {}}, "x", "k"]),
        encode([b"b", "t", "e", {1: 2, None: 3}, {}, "x" * 70_000, "k" * 100_000]),
        encode([b"b", "t", "e", {f"h{number}": "v" for number in range(70_000)}, {}, "x", "k"]),
        b"\x97\xc4\x01b\xa1t\xa1e" + b"\x81\xa1a" * 3000 + b"\xc0\x80\xa1x\xa1k",
        b"\x97\xc4\x01b\xa1t\xa1e\x81\x91\x01\x02\x80\xa1x\xa1k",
    ]  # fmt: skip
    raw.hello()
    raw.declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 0}
    raw.call(m.DeclareQueue(0, "src", True, False, False, arguments, False))
    for seq, envelope in enumerate(hostile, 1):
        assert isinstance(raw.publish("src", seq, envelope), m.Published)
    wait_until(lambda: raw.declare("dead").ready == len(hostile), 10, "all dead letters")


def flood(raw: RawClient, requests: bytes) -> None:
    """Send the same again and again; a TimeoutError says that nothing was taken for a while."""
    for _ in range(1000):
        raw.sock.sendall(requests)


# ------------------------------------------------------------------ names, definitions, messages
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q" * 256, "the queue name has 256 bytes, the limit is 255"),
        ("é" * 128, "the queue name has 256 bytes, the limit is 255"),
        ("", "a durable queue needs a name"),
    ],
    ids=["256 letters", "256 bytes", "empty"],
)
def test_queue_names(channel: Any, name: str, text: str) -> None:
    with pytest.raises(errors.RequestError, match=text) as caught:
        declare(channel, name)
    assert isinstance(caught.value, amqp.IrrecoverableChannelError)
    for call in (channel.basic_get, channel.basic_consume, channel.queue_purge, channel.queue_delete):
        with pytest.raises(errors.RequestError, match="the queue name"):
            call(name)
    declare(channel, "é" * 127 + "q")
    send(channel, "é" * 127 + "q", "fits")
    assert take_bodies(channel, "é" * 127 + "q") == ["fits"]


def test_exchange_names_and_routing_keys(channel: Any) -> None:
    with pytest.raises(errors.RequestError, match="the exchange name has 256 bytes"):
        channel.exchange_declare("e" * 256, "direct", durable=True)
    with pytest.raises(errors.AccessRefused, match=r"'amq\.' are reserved") as caught:
        channel.exchange_declare("amq.mine", "direct", durable=True)
    assert isinstance(caught.value, amqp.AccessRefused)
    with pytest.raises(errors.RequestError, match="exchange type 'x-random' is not supported: use "):
        channel.exchange_declare("odd", "x-random", durable=True)
    channel.exchange_declare("e", "topic", durable=True, auto_delete=False)
    with pytest.raises(errors.RequestError, match="the routing key is over 255 bytes"):
        channel.queue_bind("q", "e", "k" * 256)
    channel.queue_bind("q", "e", "#")
    with pytest.raises(errors.RequestError, match=r"65,?535|255"):
        send(channel, "k" * 70_000, "x", exchange="e")
    assert channel._size("q") == 0


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"arguments": {"x-delivery-limit": 5}}, "without x-delivery-limit"),
        ({"durable": False}, "with durable=True"),
        ({"auto_delete": True}, "with auto_delete=False"),
    ],
)
def test_a_queue_declared_again_with_other_arguments(channel: Any, other: dict[str, Any], field: str) -> None:
    send(channel, "q", "kept")
    with pytest.raises(errors.PreconditionFailed, match=f"queue 'q' exists {field}, declared again with") as caught:
        declare(channel, "q", **other)
    assert isinstance(caught.value, amqp.PreconditionFailed)
    assert caught.value.queue == "q"
    assert take_bodies(channel, "q") == ["kept"]


def test_a_queue_declared_again_after_a_restart(
    connect: Callable[..., Any], broker_url: str, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "limited", arguments={"x-delivery-limit": 5})
    EmbeddedBroker(store_folder).kill()
    declare(channel, "limited", arguments={"x-delivery-limit": 5})
    with pytest.raises(amqp.PreconditionFailed, match="x-delivery-limit"):
        declare(channel, "limited", arguments={"x-delivery-limit": 6})


def test_an_exchange_declared_again_with_another_type(channel: Any) -> None:
    channel.exchange_declare("e", "topic", durable=True, auto_delete=False)
    with pytest.raises(
        errors.PreconditionFailed, match="exchange 'e' exists with type='topic', declared again with 'direct'"
    ) as caught:
        channel.exchange_declare("e", "direct", durable=True, auto_delete=False)
    assert isinstance(caught.value, amqp.PreconditionFailed)


@pytest.mark.parametrize("limit", [0, 65_536, "many", -2, True])
def test_a_delivery_limit_that_is_none(channel: Any, limit: Any) -> None:
    with pytest.raises(errors.RequestError, match=r"x-delivery-limit must be an integer from 1 to 65535, or -1"):
        declare(channel, "limited", arguments={"x-delivery-limit": limit})


def test_too_many_headers(channel: Any) -> None:
    headers = {f"h{number}": number for number in range(256)}
    with pytest.raises(errors.InvalidMessage, match="headers and the limit is 255") as caught:
        send(channel, "q", "x", headers=headers)
    assert isinstance(caught.value, amqp.PreconditionFailed)
    assert caught.value.limit == 255
    send(channel, "q", "fits", headers=dict(list(headers.items())[:251]))
    assert take_bodies(channel, "q") == ["fits"]


@pytest.mark.parametrize(("text", "size"), [("x" * 65_536, 65_536), ("é" * 32_768, 65_536)], ids=["letters", "bytes"])
def test_a_header_that_is_too_long(channel: Any, text: str, size: int) -> None:
    with pytest.raises(errors.InvalidMessage, match=f"header 'h' has {size} bytes and the limit is 65535") as caught:
        send(channel, "q", "x", headers={"h": text})
    assert isinstance(caught.value, amqp.PreconditionFailed)
    send(channel, "q", "fits", headers={"h": "x" * 65_535})
    got = channel.basic_get("q")
    assert len(got.headers["h"]) == 65_535
    got.ack()


@pytest.mark.parametrize(
    "bad", [{"headers": {"h": object()}}, {"priority": "urgent"}, {"priority": 256}, {"expiration": "soon"}]
)
def test_a_message_that_can_not_be_encoded(channel: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidMessage):
        send(channel, "q", "x", **bad)
    assert channel._size("q") == 0


def test_a_payload_above_the_configured_maximum(
    started: Children, store_folder: Path, connect: Callable[..., Any]
) -> None:
    listen = ("--listen", "tcp:127.0.0.1:0", "--listen", f"unix:{store_folder}/raw.sock")
    options = ("--store", f"file://{store_folder}", "--max-message-bytes", "100000", *listen)
    served = ServedBroker(store_folder, *options)
    started.add(served)
    url = f"opendata://127.0.0.1:{served.port}"
    neighbour = Neighbour(connect(url), lambda: served.pid)
    channel = connect(url).channel()
    declare(channel, "q")
    with pytest.raises(
        errors.MessageTooLarge, match=r"the message has 100\d{3} bytes and the broker's limit is 100000"
    ) as caught:
        send(channel, "q", b"x" * 100_000)
    assert isinstance(caught.value, amqp.PreconditionFailed)
    assert caught.value.limit == 100_000
    with RawClient(f"{store_folder}/raw.sock") as raw:
        assert raw.hello().max_message_bytes == 100_000
        answer = raw.publish("q", 1, bytes(100_001))
        assert isinstance(answer, m.Failed)
        assert (answer.code, answer.values) == ("message_too_large", {"size": 100_001, "limit": 100_000})
        assert raw.publish("q", 2, bytes(100_000)).queues == 1
    channel.queue_purge("q")
    send(channel, "q", b"y" * 99_000)
    assert [len(body) for body in take_bodies(channel, "q")] == [99_000]
    neighbour.check()
    assert served.terminate() == 0


def test_wrong_credentials(started: Children, store_folder: Path) -> None:
    from kombu_opendata.broker.users import hash_secret

    users = store_folder / "users"
    users.write_text(f"alice:{hash_secret('right')}\n")
    options = ("--store", f"file://{store_folder}/s", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
    served = ServedBroker(store_folder, *options)
    started.add(served)
    for login in ("alice:wrong@", "bob:right@", ""):
        error = refused(f"opendata://{login}127.0.0.1:{served.port}")
        assert isinstance(error, errors.AccessRefused)
        assert isinstance(error, amqp.AccessRefused)
        assert "is unknown or the secret is wrong" in str(error)
    with connected(f"opendata://alice:right@127.0.0.1:{served.port}") as connection:
        declare(connection.channel(), "q")
    assert served.terminate() == 0


# ------------------------------------------------------------------ time
class WallClock:
    """Stands in for the ``time`` module of the broker's clock."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def time_ns(self) -> int:
        return time.time_ns() + 1_000_000 * self.offset_ms

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


@contextmanager
def broker_in_thread(folder: Path) -> Iterator[SimpleNamespace]:
    """A broker in this process that serves the folder's socket, as an embedded one does."""
    ready = threading.Event()
    served = SimpleNamespace()

    async def serve() -> None:
        served.loop = asyncio.get_running_loop()
        served.server = Server(BrokerSettings(store=f"file://{folder}"))
        await served.server.instance("default")
        await served.server.listen_unix(f"{folder}/broker.sock")
        ready.set()
        await served.server.run()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield served
    finally:
        served.loop.call_soon_threadsafe(served.server.stop, "end of the test")
        thread.join(30)
        assert not thread.is_alive()


def test_a_clock_that_is_set_back(store_folder: Path, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = WallClock()
    monkeypatch.setattr(clocks, "time", wall)
    with broker_in_thread(store_folder), connected(broker_url) as connection:
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", "a", "b")
        send(channel, "q", "ages", expiration="600000")
        held = channel.basic_get("q")
        wall.offset_ms = -3_600_000
        send(channel, "q", "c")
        held.requeue()
        inbox: list[Any] = []
        channel.basic_qos(0, 2, False)
        channel.basic_consume("q", callback=inbox.append)
        drain_until(connection, lambda: len(inbox) == 2)
        assert [message.body for message in inbox] == ["a", "b"]
        inbox[0].ack()
        drain_until(connection, lambda: len(inbox) == 3)
    with broker_in_thread(store_folder), connected(broker_url) as connection:
        channel = connection.channel()
        send(channel, "q", "d")
        assert take_bodies(channel, "q") == ["b", "ages", "c", "d"]


def test_errors_reach_callers_who_only_know_kombu(channel: Any) -> None:
    """``retry`` gives up on what can't be mended, and raises Kombu's OperationalError only for the rest."""
    with channel.connection.client.Producer() as producer:
        with pytest.raises(amqp.NotFound) as caught:
            producer.publish(
                "x", exchange="no such exchange", routing_key="k", retry=True, retry_policy={"max_retries": 1}
            )
        assert not isinstance(caught.value, OperationalError)
