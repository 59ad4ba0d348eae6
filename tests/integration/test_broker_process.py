"""The broker as a process: how it starts, ends, is killed and comes back, and what its clients see of that."""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import errors
from kombu_opendata.broker import memory
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import MAGIC, MAJOR, MINOR
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.transport.envelope import encode

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import declare, drain_until, open_connection, send, take, take_bodies
from ..support.plain_store import PlainStore
from ..support.processes import Child, Children, is_running, wait_until
from ..support.raw import RawClient, publish
from ..support.served import ServedBroker

CONNECT = """
import os, sys, time
import kombu_opendata
from kombu import Connection
connection = Connection(sys.argv[1])
channel = connection.channel()
"""


@pytest.fixture
def broker(store_folder: Path) -> EmbeddedBroker:
    return EmbeddedBroker(store_folder)


@pytest.fixture
def script(tmp_path: Path, broker_url: str, started: Children) -> Callable[..., Child]:
    """Runs Python code in a process of its own, with an open ``channel`` of ``connection``."""

    def run(code: str, name: str = "script") -> Child:
        child = Child([sys.executable, "-c", CONNECT + code, broker_url], tmp_path / f"{name}.log", cwd=tmp_path)
        started.add(child)
        return child

    return run


@pytest.fixture
def serve(store_folder: Path, started: Children) -> Callable[..., ServedBroker]:
    """Runs ``opendata-queue broker`` on the store, listening on ``by-hand.sock``."""

    def run(*options: str) -> ServedBroker:
        listen = ("--listen", f"unix:{store_folder}/by-hand.sock")
        child = ServedBroker(store_folder, "--store", f"file://{store_folder}", *listen, *options)
        started.add(child)
        return child

    return run


def stop(broker: EmbeddedBroker) -> None:
    pid = broker.wait_up()
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_running(pid), 20, lambda: f"end of broker {pid}:\n{broker.log.read_text()}")


# ------------------------------------------------------------------ starting
def test_the_first_client_starts_it(connect: Callable[..., Any], store_folder: Path, broker: EmbeddedBroker) -> None:
    folder = store_folder / "new" / "store"
    connect(f"opendata://{folder}")
    pid = int((folder / "broker.pid").read_text())
    assert is_running(pid)
    assert os.getsid(pid) != os.getsid(0), "a signal to the client's terminal must not reach the broker"
    modes = {
        name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("", "broker.sock", "broker.lock", "broker.log")
    }
    assert modes == {"": 0o700, "broker.sock": 0o600, "broker.lock": 0o600, "broker.log": 0o600}
    assert stat.S_IMODE((folder / "default").stat().st_mode) == 0o700
    assert stat.S_ISSOCK((folder / "broker.sock").stat().st_mode)
    assert f"listening on unix:{folder}/broker.sock" in (folder / "broker.log").read_text()
    connect(f"opendata://{folder}")
    assert int((folder / "broker.pid").read_text()) == pid, "the second client attaches"


def test_ten_clients_that_race_get_one_broker(
    script: Callable[..., Child], connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker
) -> None:
    code = """
channel.queue_declare("race", durable=True, auto_delete=False)
channel.basic_publish(channel.prepare_message("x"), routing_key="race")
print(open(sys.argv[1].removeprefix("opendata://") + "/broker.pid").read())
connection.close()
"""
    clients = [script(code, f"client{number}") for number in range(10)]
    assert [client.wait(60) for client in clients] == [0] * 10, [client.log.read_text() for client in clients]
    assert {client.log.read_text().strip() for client in clients} == {str(broker.pid())}
    assert connect(broker_url).channel()._size("race") == 10
    assert broker.log.read_text().count("listening on") == 1


def test_a_second_broker_on_the_same_store_is_refused(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, serve: Callable[..., ServedBroker]
) -> None:
    channel = connect(broker_url).channel()
    second = serve()
    assert second.report["code"] == "store_in_use"
    assert f"another broker (pid {broker.pid()}) owns" in second.report["text"]
    assert second.wait(10) == 1
    declare(channel, "still")
    assert broker.pid() is not None


def test_a_file_in_place_of_the_socket_is_left_alone(store_folder: Path, serve: Callable[..., ServedBroker]) -> None:
    precious = store_folder / "by-hand.sock"
    precious.write_text("precious")
    refused = serve()
    assert refused.report["code"] == "start_error"
    assert "by-hand.sock exists and is no socket" in refused.report["text"]
    assert refused.wait(10) == 1
    assert precious.read_text() == "precious"


def test_a_socket_in_use_is_left_alone(
    store_folder: Path, serve: Callable[..., ServedBroker], started: Children
) -> None:
    first = serve()
    options = ("--store", f"file://{store_folder}/other", "--listen", f"unix:{store_folder}/by-hand.sock")
    second = ServedBroker(store_folder, *options)
    started.add(second)
    assert second.report["code"] == "start_error"
    assert "by-hand.sock" in second.report["text"]
    assert second.wait(10) == 1
    with RawClient(f"{store_folder}/by-hand.sock") as raw:
        raw.hello()
    assert first.terminate() == 0


# ------------------------------------------------------------------ ending
def test_it_ends_when_no_client_is_left(broker_url: str, broker: EmbeddedBroker, store_folder: Path) -> None:
    connection = open_connection(broker_url, idle_exit=0.5)
    channel = connection.channel()
    declare(channel, "kept")
    send(channel, "kept", "a")
    pid = broker.wait_up()
    connection.close()
    wait_until(lambda: not is_running(pid), 15, "end of the idle broker")
    assert "stopped: no client for 0.5 s" in broker.log.read_text()
    assert not (store_folder / "broker.sock").exists()
    assert not (store_folder / "broker.pid").exists()
    with open_connection(broker_url) as again:
        assert take_bodies(again.channel(), "kept") == ["a"]
    assert broker.wait_up() != pid


def test_sigterm_ends_it_cleanly_and_answers_are_kept(serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    served = serve()
    with RawClient(f"{store_folder}/by-hand.sock") as raw:
        raw.hello()
        raw.declare("q")
        rids = [raw.send(publish("q", seq, b"body %d" % seq)) for seq in range(1, 501)]
        ids = [raw.answer(rids[0]).message_id]
        served.process.terminate()
        goodbye = False
        while (message := raw.receive()) is not None:
            if isinstance(message, m.Published):
                ids.append(message.message_id)
            goodbye |= isinstance(message, m.BrokerGoodbye)
    assert served.wait(20) == 0, served.log.read_text()
    assert goodbye
    assert "stopped: SIGTERM" in served.log.read_text()
    assert not (store_folder / "by-hand.sock").exists()
    assert not (store_folder / "broker.pid").exists()
    store = PlainStore(store_folder)  # no broker, no journal: a clean end leaves nothing outside of SlateDB
    available, in_flight = store.active("q")
    assert set(ids) <= {row[0] for row in available}
    assert in_flight == []
    assert [store.envelope(row[0]) for row in available] == [b"body %d" % seq for seq in range(1, len(available) + 1)]


def test_a_killed_brokers_lock_and_socket_heal(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    send(channel, "q", "a")
    killed = broker.kill()
    assert (store_folder / "broker.sock").exists()
    assert (store_folder / "broker.pid").read_text().strip() == str(killed)
    assert take_bodies(connect(broker_url).channel(), "q") == ["a"]
    assert broker.wait_up() != killed


# ------------------------------------------------------------------ versions
def _fake_broker(path: Path, preamble: bytes, stack: ExitStack) -> None:
    """Listens where an embedded broker would, and sends this preamble to everybody."""
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.recv(8)
                    peer.sendall(preamble)
                    peer.recv(1 << 16)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    stack.callback(thread.join, 10)
    stack.callback(listener.shutdown, socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("major", "text"),
    [
        (MAJOR - 1, "the broker is older than this side and must be upgraded"),
        (MAJOR + 1, "this side is older than the broker and must be upgraded"),
    ],
)
def test_a_client_of_another_protocol_version(
    store_folder: Path, broker_url: str, stack: ExitStack, major: int, text: str
) -> None:
    _fake_broker(store_folder / "broker.sock", struct.pack("<4sHH", MAGIC, major, 0), stack)
    connection = open_connection(broker_url)
    with pytest.raises(
        errors.VersionMismatch, match=f"the broker speaks {major}, this side speaks {MAJOR}; {text}"
    ) as caught:
        connection.connect()
    assert isinstance(caught.value, amqp.IrrecoverableConnectionError)
    assert (caught.value.peer_version, caught.value.own_version) == (major, MAJOR)


@pytest.mark.parametrize(
    ("major", "text"),
    [
        (MAJOR - 1, "the client is older than this side and must be upgraded"),
        (MAJOR + 1, "this side is older than the client and must be upgraded"),
    ],
)
def test_a_broker_of_another_protocol_version(
    connect: Callable[..., Any], broker_url: str, store_folder: Path, major: int, text: str
) -> None:
    connect(broker_url)
    with RawClient(f"{store_folder}/broker.sock", preamble=struct.pack("<4sHH", MAGIC, major, 7)) as raw:
        said = raw.last_word()
    assert said is not None
    assert said.code == "version_mismatch"
    assert text in said.text
    assert f"the client speaks {major}, this side speaks {MAJOR}" in said.text


def test_another_minor_version_is_no_obstacle(connect: Callable[..., Any], broker_url: str, store_folder: Path) -> None:
    connect(broker_url)
    with RawClient(f"{store_folder}/broker.sock", preamble=struct.pack("<4sHH", MAGIC, MAJOR, MINOR + 5)) as raw:
        raw.hello()


# ------------------------------------------------------------------ a broker that comes back
@pytest.mark.parametrize("end", [EmbeddedBroker.kill, stop], ids=["kill", "sigterm"])
def test_a_consumer_goes_on_after_a_restart_with_what_it_holds(
    connect: Callable[..., Any],
    broker_url: str,
    broker: EmbeddedBroker,
    store_folder: Path,
    end: Callable[[EmbeddedBroker], None],
) -> None:
    connection = connect(broker_url)
    channel = connection.channel()
    declare(channel, "q")
    channel.basic_qos(0, 2, False)
    inbox: list[Any] = []
    channel.basic_consume("q", callback=inbox.append)
    send(channel, "q", "a", "b", "c", "d")
    drain_until(connection, lambda: inbox)
    killed = broker.wait_up()
    end(broker)
    send(channel, "q", "e")
    assert broker.wait_up(other_than=killed) != killed
    inbox[0].ack()
    drain_until(connection, lambda: len(inbox) == 2)
    inbox[1].ack()
    drain_until(connection, lambda: len(inbox) == 4)
    for message in inbox[2:]:
        message.ack()
    drain_until(connection, lambda: len(inbox) == 5)
    inbox[4].ack()
    assert [message.body for message in inbox] == list("abcde")
    assert [message.delivery_info["redelivered"] for message in inbox] == [False] * 5
    connection.close()
    stop(broker)
    store = PlainStore(store_folder)
    assert [row[2] for row in store.rows(RecordKind.DONE, "q")] == [1] * 5
    assert store.active("q") == ([], [])
    assert store.rows(RecordKind.FAILED, "q") == []


def test_what_was_never_received_is_released_at_no_cost(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as raw:
        raw.hello()
        raw.declare("q")
        for seq in range(1, 4):
            raw.publish("q", seq)
        raw.consume("q")
        held, acked, _lost = raw.wait_deliveries(3)
    broker.kill()
    declare(channel, "q")  # any call brings the broker back
    with RawClient(path) as again:
        settles = [(m.Outcome.ACK, *acked[2:5])]
        welcome = again.hello(raw.session, resume=True, held=[(1, *held[2:5])], settles=settles)
        assert (welcome.adopted, welcome.last_seq) == (1, 3)
        again.consume("q")
        released = again.wait_deliveries(1)[0]
        assert released[3] == raw.deliveries[2][3]
        assert released[5] == 1, "its first attempt, as before"
        assert released[4] > raw.deliveries[2][4], "a lease of its own"
        again.send(m.Settle(2, m.Outcome.ACK, 1, [held[2:5], released[2:5]]))
        assert again.call(m.Goodbye(0))
    stop(broker)
    store = PlainStore(store_folder)
    assert sorted(row[2] for row in store.rows(RecordKind.DONE, "q")) == [1, 1, 1]
    assert store.active("q") == ([], [])


def test_a_publish_that_is_retried_over_a_kill_is_stored_once(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as raw:
        raw.hello()
        first = raw.publish("q", 1)
    broker.kill()
    assert channel._size("q") == 1
    with RawClient(path) as again:
        assert again.hello(raw.session, resume=True).last_seq == 1
        repeated = again.publish("q", 1)
        assert (repeated.message_id, repeated.queues) == (first.message_id, 1)
        assert again.publish("q", 2).message_id > first.message_id
    assert channel._size("q") == 2


def test_publishes_under_kills_are_stored_once_and_in_order(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    progress = threading.Event()
    failures: list[BaseException] = []

    def publish_all() -> None:
        try:
            for number in range(400):
                send(channel, "q", str(number))
                if number % 100 == 50:
                    progress.set()
        except BaseException as exc:
            failures.append(exc)

    publisher = threading.Thread(target=publish_all)
    publisher.start()
    for _ in range(3):
        assert progress.wait(30), failures
        progress.clear()
        broker.kill()
    publisher.join(60)
    assert not failures
    assert take_bodies(connect(broker_url).channel(), "q") == [str(number) for number in range(400)]


# ------------------------------------------------------------------ clients that fork or die
def _run_in_child(work: Callable[[], None]) -> int:
    """Fork, run, return the child's exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as exc:
            print(f"in the child: {exc!r}", file=sys.stderr)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_a_session_of_its_own(connect: Callable[..., Any], broker_url: str) -> None:
    connection = connect(broker_url)
    channel = connection.channel()
    for queue in ("parents", "childs", "answers"):
        declare(channel, queue)
    send(channel, "parents", "held", "later")
    send(channel, "childs", "x", "y")
    held = channel.basic_get("parents")
    inbox: list[Any] = []
    channel.basic_consume("parents", callback=inbox.append)

    def child() -> None:
        got: list[Any] = []
        its = connection.channel()
        its.basic_consume("childs", callback=got.append)
        drain_until(connection, lambda: len(got) == 2)
        for message in got:
            send(its, "answers", f"{message.body} in the child")
            message.ack()
        send(channel, "answers", "over the parent's channel object")
        connection.close()

    assert _run_in_child(child) == 0
    held.ack()
    drain_until(connection, lambda: inbox)
    assert [message.body for message in inbox] == ["later"]
    inbox[0].ack()
    assert take_bodies(channel, "answers") == ["x in the child", "y in the child", "over the parent's channel object"]
    assert channel._size("childs") == 0
    assert take(channel, "childs") == []


def test_a_broker_in_memory_is_not_for_forked_children(connect: Callable[..., Any]) -> None:
    """Its thread stays behind in the parent; a child must not wait for it."""
    channel = connect("opendata+memory://forked").channel()
    declare(channel, "q")

    def child() -> None:
        with pytest.raises(errors.RequestError, match="stays with the process that made it"):
            declare(channel, "q")

    assert _run_in_child(child) == 0
    assert channel._size("q") == 0
    channel.connection.client.close()
    memory.stop("forked")


def test_the_leases_of_a_killed_client_return_after_the_grace(
    connect: Callable[..., Any], broker_url: str, script: Callable[..., Child]
) -> None:
    connection = connect(broker_url)
    channel = connection.channel()
    declare(channel, "q")
    send(channel, "q", "a", "b")
    victim = script('[channel.basic_get("q") for _ in range(2)]\nprint("holding", flush=True)\ntime.sleep(60)\n')
    wait_until(lambda: "holding" in victim.log.read_text(), 30, "the victim's leases")
    victim.kill()
    assert channel.basic_get("q") is None, "it may still come back"
    inbox: list[Any] = []
    channel.basic_consume("q", callback=inbox.append)
    drain_until(connection, lambda: len(inbox) == 2)
    assert [(message.body, message.delivery_info["redelivered"]) for message in inbox] == [("a", True), ("b", True)]


def test_a_session_that_held_nothing_leaves_nothing(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    connect(broker_url)
    with RawClient(f"{store_folder}/broker.sock") as raw:
        raw.hello()
    wait_until(lambda: broker.report()["sessions"] == 2, 20, "the end of the grace")  # the test's and the report's own
    wait_until(lambda: raw.session not in _sessions(store_folder), 20, "its record to go")


def _sessions(folder: Path) -> set[bytes]:
    return set(PlainStore(folder).of[RecordKind.LEASES])


def test_settlements_during_the_deletion_of_their_queue(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    """What comes after the deletion in the journal must not speak of the queue: it could not be opened again."""
    channel = connect(broker_url).channel()
    declare(channel, "q")
    send(channel, "q", *map(str, range(1000)))
    with RawClient(f"{store_folder}/broker.sock") as raw:
        raw.hello()
        raw.consume("q")
        leases = [delivery[2:5] for delivery in raw.wait_deliveries(1000)]
        deleted = raw.send(m.DeleteQueue(0, "q", False, False))
        for number, lease in enumerate(leases, 1):
            raw.send(m.Settle(number, m.Outcome.ACK, 1, [lease]))
        assert raw.answer(deleted).count == 0
    broker.kill()
    with pytest.raises(amqp.NotFound):
        channel.queue_declare("q", passive=True)


def test_a_second_connection_of_a_session_replaces_the_first(
    connect: Callable[..., Any], broker_url: str, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as first, RawClient(path) as second:
        first.hello()
        first.declare("q")
        for seq in (1, 2):
            first.publish("q", seq, encode(f"body {seq}", None, None, {}, {}, "", "q"))
        first.consume("q")
        held, unread = first.wait_deliveries(2)
        welcome = second.hello(first.session, resume=True, held=[(1, *held[2:5])])
        assert (welcome.adopted, welcome.last_seq) == (1, 2)
        assert first.receive() is None
        got = channel.basic_get("q")
        assert (got.body, got.delivery_info["redelivered"]) == ("body 2", False)
        assert unread[3] > held[3]
        got.ack()
        second.send(m.Settle(1, m.Outcome.ACK, 1, [held[2:5]]))
        assert second.publish("q", 3).queues == 1
    assert channel._size("q") == 1


# ------------------------------------------------------------------ what is left on disk
def test_the_store_is_read_with_the_plain_slatedb_package(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    connection = connect(broker_url, consumer_name="the consumer")
    channel = connection.channel()
    channel.exchange_declare("news", "topic", durable=True, auto_delete=False)
    for queue in ("full", "copy", "häppy"):
        declare(channel, queue, arguments={"x-delivery-limit": 2})
        channel.queue_bind(queue, "news", "eu.#")
    declare(channel, "deleted")
    channel.queue_bind("deleted", "news", "#")
    send(channel, "eu.de", "to three", exchange="news", headers={"task": "t", "retries": 0})
    for number in range(600):  # more than two buckets
        send(channel, "full", f"number {number}", priority=number % 3)
    send(channel, "full", b"\xff" * 70_000, b"z" * (3 << 20))
    send(channel, "full", "short-lived", expiration="600000")
    done, held, returned, rejected = (channel.basic_get("full") for _ in range(4))
    done.ack()
    returned.requeue()
    rejected.reject()
    for _ in range(2):
        channel.basic_get("copy").requeue()  # that was the last attempt
    channel.queue_purge("häppy")
    channel.queue_delete("deleted")
    broker.kill()
    send(channel, "full", "after the kill")
    held.ack()
    unsettled = channel.basic_get("full")
    stop(broker)

    store = PlainStore(store_folder)
    ids = store.message_ids()
    available, in_flight = store.active("full")
    settled = [*store.rows(RecordKind.DONE, "full"), *store.rows(RecordKind.FAILED, "full")]
    assert (len(available), len(in_flight)) == (601, 1)
    assert [len(store.rows(kind, "full")) for kind in (RecordKind.DONE, RecordKind.FAILED)] == [2, 1]
    assert len({row[0] for row in [*available, *in_flight, *settled]}) == 605, "each in one place"
    assert len(store.buckets(RecordKind.ACTIVE, "full")) >= 3
    assert {row[0] for row in [*available, *in_flight, *settled]} <= ids[RecordKind.PAYLOAD]
    assert ids[RecordKind.PAYLOAD] == ids[RecordKind.METADATA]
    sizes = sorted(len(store.envelope(row[0])) for row in available)
    assert 3 << 20 < sizes[-1] < (3 << 20) + 1000
    assert 70_000 < sizes[-2] < 71_000
    assert len(ids[RecordKind.CHUNK]) == 2
    failed = store.rows(RecordKind.FAILED, "copy")
    assert [row[2] for row in failed] == [2]
    assert store.of[RecordKind.ATTEMPTS][failed[0][0]] == ["the consumer", "the consumer"]
    assert store.active("häppy") == ([], [])
    assert {name for name, _ in store.of[RecordKind.ACTIVE]} == {"full", "copy", "häppy"}
    assert set(store.of[RecordKind.CONFIG]) == {"full", "copy", "häppy"}
    assert "topic(routing_key, 'eu.#')" in str(store.of[RecordKind.CONFIG]["full"])
    assert set(store.of[RecordKind.BINDING]) == {("news", queue, "eu.#") for queue in ("full", "copy", "häppy")}
    first = store.of[RecordKind.METADATA][min(ids[RecordKind.METADATA])]
    assert dict(first.headers) == {
        "task": "t",
        "retries": "0",
        "exchange": "news",
        "routing_key": "eu.de",
        "priority": "0",
    }
    assert [row[4] for row in in_flight] == [2], "it was requeued before"
    unsettled.ack()
